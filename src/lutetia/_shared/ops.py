"""Functions as torch.library ops, so that torch.compile, torch.export and autograd know them.

They are defined with a Library and not with `torch.library.custom_op`: a call costs 3 µs instead of 11.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensorMode  # loaded with torch

from lutetia._shared import graph_calls
from lutetia._shared.direct import is_direct
from lutetia._shared.replay import Replayed
from lutetia.errors import ArgumentError, describe

LIBRARY = torch.library.Library("lutetia", "FRAGMENT")
IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {}
SCHEMAS: dict[str, tuple[str, Callable[..., Any]]] = {}  # and what each op gives where tensors have no data
Op = TypeVar("Op", bound=Callable[..., Any])


def op(name: str, *tensors: Tensor) -> Callable[..., Any]:
    """An op for these tensors, or what it does."""
    return IMPLEMENTATIONS[name] if is_direct(*tensors) else getattr(torch.ops.lutetia, name)


class Replay(NamedTuple):
    """How the calls of an op are replayed: see `Replayed`. The values of tensors of these names decide what it does."""

    constants: tuple[str, ...]
    watched: Callable[[], bool]


def define(schema: str, fake: Callable[..., Any], replay: Replay | None = None) -> Callable[[Op], Op]:
    """Make an op of a function; `fake` is what it gives where tensors have no data. With `replay` calls on CUDA are replayed."""
    name, given = schema.split("(")[0], schema[schema.index("(") + 1 : schema.index(") ->")]

    def register(run: Op) -> Op:
        if replay is not None:
            names = [each.split("=")[0].split()[-1] for each in given.split(",")]
            places = [place for place, each in enumerate(names) if each in replay.constants]
            run = Replayed(run, places, replay.watched)  # type: ignore[assignment]
        IMPLEMENTATIONS[name] = run
        _define(schema, name, run, fake)
        return run

    return register


def _define(schema: str, name: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    SCHEMAS[name] = schema, fake
    LIBRARY.define(schema)
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, run, device)
        LIBRARY.impl(name, _refuse_sparse, f"Sparse{device}")
    graph_calls.offer(name, run)

    def traced(*arguments: Any) -> Any:
        graph_calls.teach()
        return fake(*arguments)

    torch.library.register_fake(f"lutetia::{name}", traced, lib=LIBRARY)


def show_alone(name: str) -> None:
    """Let compiled graphs call an op without its autograd formula, which a call passes even where no gradient is wanted."""
    (schema, fake), alone = SCHEMAS[name], f"{name}_alone"
    _define(schema.replace(name, alone, 1), alone, IMPLEMENTATIONS[name], fake)
    show_as(name, lambda *args: None if torch.compiler.is_exporting() else getattr(torch.ops.lutetia, alone)(*args))


def show_as(name: str, kernels: Callable[..., Any]) -> None:
    """Let compiled graphs see what an op is made of: kernels(*arguments) gives what the op would, or None to keep the op."""

    def decompose(mode: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        with mode:
            results = None if kwargs else kernels(*args)
        return mode.__torch_dispatch__(func, types, args, kwargs or {}) if results is None else results

    torch.library.register_torch_dispatch(f"lutetia::{name}", FunctionalTensorMode, decompose, lib=LIBRARY)


def _refuse_sparse(*arguments: Any) -> NoReturn:
    sparse = next(each for each in arguments if isinstance(each, Tensor) and each.layout != torch.strided)
    raise ArgumentError(f"a tensor of the call is {describe(sparse)} and sparse, expected dense tensors")

"""Functions as torch.library ops, so that torch.compile, torch.export and autograd know them.

They are defined with a Library and not with `torch.library.custom_op`: a call costs 3 µs instead of 11.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from lutetia._shared.direct import is_direct
from lutetia.errors import ArgumentError, describe

LIBRARY = torch.library.Library("lutetia", "FRAGMENT")
IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {}
Op = TypeVar("Op", bound=Callable[..., Any])


def op(name: str, *tensors: Tensor) -> Callable[..., Any]:
    """An op for these tensors, or what it does."""
    return IMPLEMENTATIONS[name] if is_direct(*tensors) else getattr(torch.ops.lutetia, name)


def define(schema: str, fake: Callable[..., Any]) -> Callable[[Op], Op]:
    """Make an op of a function; `fake` is what it gives where tensors have no data."""
    name = schema.split("(")[0]

    def register(run: Op) -> Op:
        IMPLEMENTATIONS[name] = run
        LIBRARY.define(schema)
        for device in ("CPU", "CUDA"):
            LIBRARY.impl(name, run, device)
            LIBRARY.impl(name, _refuse_sparse, f"Sparse{device}")
        torch.library.register_fake(f"lutetia::{name}", fake, lib=LIBRARY)
        return run

    return register


def _refuse_sparse(*arguments: Any) -> NoReturn:
    sparse = next(each for each in arguments if isinstance(each, Tensor) and each.layout != torch.strided)
    raise ArgumentError(f"a tensor of the call is {describe(sparse)} and sparse, expected dense tensors")

"""Steps that compute nothing: what torch alone takes for the tensors of a layer, called eagerly or from a compiled graph.

A compiled graph sees only that memory is allocated, for y and for the gradients: no op and no kernel. What is left are guards,
wrappers and the hand-over to the backward pass, which every compiled module with these tensors has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensorMode

LIBRARY = torch.library.Library("lutetia_bench", "FRAGMENT")
LIBRARY.define("nothing(Tensor[] given, int[] size) -> Tensor")
LIBRARY.define("nothing_back(Tensor grad, Tensor[] given) -> Tensor[]")


def nothing_from(given: Sequence[Tensor], size: Sequence[int]) -> Tensor:
    """Memory of a size, as if it were computed from the given tensors."""
    return torch.ops.lutetia_bench.nothing(list(given), list(size))


def empty_step(given: Sequence[Tensor], like: Tensor) -> Callable[[], Tensor]:
    """A forward pass from tensors to one like another, which computes nothing, nor does its backward pass."""
    tensors, size = list(given), list(like.shape)
    return lambda: nothing_from(tensors, size)


def _forward(given: list[Tensor], size: list[int]) -> Tensor:
    return given[0].new_empty(size)


def _back(grad: Tensor, given: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(each) for each in given]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    given = inputs[0]
    ctx.wanted = [each.requires_grad for each in given]
    ctx.save_for_backward(*given)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, None]:
    saved = ctx.saved_tensors
    made = iter(torch.ops.lutetia_bench.nothing_back(grad, [t for t, want in zip(saved, ctx.wanted, strict=True) if want]))
    return [next(made) if want else None for want in ctx.wanted], None


def _define(name: str, does: Callable[..., Any]) -> None:
    """What an op does, also where a graph is traced: there it is no op, but the memory that it allocates."""
    LIBRARY.impl(name, does, "CompositeExplicitAutograd")
    torch.library.register_fake(f"lutetia_bench::{name}", does, lib=LIBRARY)

    def allocate(mode: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any = None) -> Any:
        with mode:
            return does(*args)

    torch.library.register_torch_dispatch(f"lutetia_bench::{name}", FunctionalTensorMode, allocate, lib=LIBRARY)


_define("nothing", _forward)
_define("nothing_back", _back)
torch.library.register_autograd("lutetia_bench::nothing", _backward, setup_context=_keep, lib=LIBRARY)

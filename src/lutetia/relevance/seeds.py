"""The relevance that a walk begins with, from the target that a user names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lutetia.errors import fail

KINDS = (
    "None, an int, a tuple such as (position, class), a list or an integer tensor with one target per row, a seed shaped "
    "like the output, relevance.Contrast, or the name of an output"
)


@dataclass(frozen=True)
class Contrast:
    """This output rather than that one: relevance for `this` minus relevance for `that`.

    Both are targets by index, such as 3 or (position, class). Without `that`, the runner-up is meant: the largest of
    the other outputs.
    """

    this: Any = None
    that: Any = None


def make_seed(output: Tensor, target: object) -> Tensor:
    """The relevance that the walk begins with, shaped like the output [..., C].

    None: each row's own largest output; an int or a LongTensor [...]: that output of each row; a tuple indexes the last
    dimensions, as (position, class) does; a list holds a target for each row. The chosen elements have the output's own value,
    the others zero. A floating-point tensor shaped like the output is used as it is.
    """
    if isinstance(target, list):
        return torch.stack([make_seed(row, each) for row, each in _rows(output, target)])
    weights = make_weights(output, target)
    if isinstance(target, Tensor) and target.is_floating_point():
        return weights
    return torch.where(weights == 0, weights, weights * output.detach())


def make_weights(output: Tensor, target: object) -> Tensor:
    """What each element of an output [..., C] counts: 1 if the target names it, -1 if it is the rival of one, 0 otherwise.

    Targets are those of `make_seed`; a floating-point tensor is used as it is.
    """
    output = output.detach()
    if isinstance(target, Tensor) and target.is_floating_point():
        if target.shape != output.shape or target.layout != torch.strided:
            fail("target", target, f"a seed of the output's shape {list(output.shape)}")
        return target.detach().to(dtype=output.dtype, device=output.device)
    if isinstance(target, list):
        return torch.stack([make_weights(row, each) for row, each in _rows(output, target)])
    if isinstance(target, Contrast):
        return _contrast(output, target)
    return _chosen(output, target).to(output.dtype)


def _contrast(output: Tensor, target: Contrast) -> Tensor:
    """The weights of `this` minus those of `that`."""
    this = _chosen(output, target.this)
    if target.that is not None:
        return this.to(output.dtype) - _chosen(output, target.that).to(output.dtype)
    if output.dim() == 0 or output.shape[-1] < 2:
        fail("target", target, "an output with at least two classes")
    rivals = _chosen(output.masked_fill(this, -torch.inf), None) & this.any(-1, keepdim=True)
    return this.to(output.dtype) - rivals.to(output.dtype)


def _chosen(output: Tensor, target: object) -> Tensor:
    """Which elements of the output are chosen; boolean, shaped like it."""
    if isinstance(target, list):
        return torch.stack([_chosen(row, each) for row, each in _rows(output, target)])
    chosen = torch.zeros_like(output, dtype=torch.bool)
    if isinstance(target, slice):
        target = (target,)
    if isinstance(target, tuple):
        chosen[(..., *_place(output, target))] = True
    elif output.dim() == 0:
        if target not in (None, 0):
            fail("target", target, "None for an output that is a single number")
        chosen.fill_(True)
    else:
        chosen.scatter_(-1, _index(output, target), True)
    return chosen


def _rows(output: Tensor, targets: list[Any]) -> list[tuple[Tensor, Any]]:
    """Each row of an output [B, ...] with its own target."""
    if output.dim() < 2 or len(targets) != output.shape[0]:
        rows = "an output without rows" if output.dim() < 2 else f"{output.shape[0]} rows"
        fail("target", targets, f"one target per row: the output has {rows}")
    return list(zip(output, targets, strict=True))


def _place(output: Tensor, place: tuple[Any, ...]) -> tuple[Any, ...]:
    """A place in the last dimensions, in numbers and slices."""
    if not place or len(place) > output.dim():
        fail("target", place, f"at most {output.dim()} numbers, one per dimension of the output {list(output.shape)}")
    for number, size in zip(place, output.shape[-len(place) :], strict=True):
        if isinstance(number, slice):
            continue
        if isinstance(number, bool) or not isinstance(number, int) or not -size <= number < size:
            fail("target", place, f"numbers or slices within the last sizes of the output, {list(output.shape[-len(place) :])}")
    return place


def _index(output: Tensor, target: object) -> Tensor:
    rows, size = output.shape[:-1], output.shape[-1]
    if target is None:
        return output.argmax(-1, keepdim=True)
    if isinstance(target, bool) or not isinstance(target, (int, Tensor)):
        fail("target", target, KINDS)
    if isinstance(target, int) and not -size <= target < size:
        fail("target", target, f"indices below {size}, the last size of the output")
    index = torch.as_tensor(target, device=output.device)
    if index.is_floating_point() or index.dtype == torch.bool or index.is_complex():
        fail("target", target, "integers, or a floating-point seed shaped like the output")
    while index.dim() and index.dim() < len(rows):
        index = index.unsqueeze(-1)
    try:
        index = index.expand(rows)
    except RuntimeError:
        fail("target", target, f"one index per row, so a shape of {list(rows)}")
    if index.numel() and not (-size <= int(index.min()) and int(index.max()) < size):
        fail("target", target, f"indices below {size}, the last size of the output")
    return (index.long() % size).unsqueeze(-1)

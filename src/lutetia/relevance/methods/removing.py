"""Methods that replace one thing after another: ablation of groups of values, and occlusion of boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from lutetia.errors import fail
from lutetia.relevance.methods.case import Model
from lutetia.relevance.methods.grouped import Grouped, Grouping


def ablation(model: Model, inputs: Any, target: object = None, **grouping: Unpack[Grouping]) -> Any:
    """Ablation: how much the score falls when a group of values is replaced by the baseline; each value gets that of its group.

    Options: `groups`, integers that broadcast to a row of x: values with the same number are replaced together, in several
    inputs, too. By default each value is its own group. `baseline`, a number (0 by default), a tensor that broadcasts to x, or
    one for each of several inputs; where a tuple or a mapping has None, or nothing, that input stays as it is. `at_once` copies
    of x (64 by default) are computed in one batch.
    """
    grouped = Grouped(model, inputs, target, grouping)
    return grouped.result(_falls(grouped))


def occlusion(
    model: Model,
    x: Tensor,
    target: object = None,
    *,
    window: int | Sequence[int] = 1,
    baseline: float | Tensor = 0.0,
    at_once: int = 64,
) -> Tensor:
    """Occlusion: how much the score falls when a box of x is replaced by the baseline; each element gets that of its box.

    `window`: the sizes of a box, one per dimension of a row, such as (3, 4, 4) for 3 channels of 4 x 4 pixels, or one for all.
    Boxes lie side by side. `at_once` copies of x are computed in one batch.
    """
    if not isinstance(x, Tensor):
        fail("x", x, "one tensor; ablation takes several inputs")
    boxes = _boxes(x.shape[1:], _sizes(window, x))
    grouped = Grouped(model, x, target, {"groups": boxes, "baseline": baseline, "at_once": at_once})
    found: Tensor = grouped.result(_falls(grouped))
    return found


def _falls(grouped: Grouped) -> Tensor:
    """How far the score falls without each group, [groups, B]."""
    every = torch.arange(grouped.count)
    whole = grouped.scores(every.unsqueeze(0) >= 0)
    return torch.cat([whole - grouped.scores(every != some.unsqueeze(1)) for some in every.split(grouped.at_once)])


def _sizes(window: int | Sequence[int], x: Tensor) -> list[int]:
    sizes = [window] * (x.dim() - 1) if isinstance(window, int) else [*window] if isinstance(window, (list, tuple)) else []
    whole = all(isinstance(size, int) and not isinstance(size, bool) and 0 < size < 2**31 for size in sizes)
    if isinstance(window, bool) or not whole or len(sizes) != x.dim() - 1:
        fail("window", window, f"a size, or {x.dim() - 1} of them, one per dimension of a row {list(x.shape[1:])}")
    return sizes


def _boxes(shape: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """The number of the box of each place of a shape; boxes lie side by side, and the last ones may be smaller."""
    numbers = torch.zeros(1, dtype=torch.long)
    for length, size in zip(shape, sizes, strict=True):
        count = -(-length // size)
        numbers = numbers.unsqueeze(-1) * count + torch.arange(length) // size
    return numbers[0]

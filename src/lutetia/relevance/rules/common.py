"""What several rule files need: saved numbers as they were, and the node's own backward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lutetia.relevance.graph import Node


def integer(number: int) -> int:
    """A saved dimension or index: torch hands negative ones out as unsigned 64-bit numbers."""
    return number - 2**64 if number >= 2**63 else number


def dims(numbers: Iterable[int] | None) -> Any:
    """Saved dimensions; None means all of them."""
    return None if numbers is None else [integer(number) for number in numbers]


def backward(node: Node, R: Any) -> Any:
    """The node's own backward: where each output came from, R goes back. R: one per output number where several are in use."""
    fn = node.fn
    if isinstance(R, tuple):
        return fn(*R)
    if node.nr == 0:
        count = len(fn._input_metadata)
        return fn(R) if count == 1 else fn(R, *[None] * (count - 1))
    grads: list[Tensor | None] = [None] * len(fn._input_metadata)
    grads[node.nr] = R
    return fn(*grads)


def fit(node: Node, position: int, R: Tensor) -> Tensor:
    """R in the shape and dtype of an input: summed where it was broadcast, cast where dtypes were mixed."""
    edge = node.edges[position]
    assert edge is not None
    meta = edge.child.fn._input_metadata[edge.nr]
    if R.shape != torch.Size(meta.shape):
        R = R.sum_to_size(meta.shape)
    return R if R.dtype == meta.dtype else R.to(meta.dtype)

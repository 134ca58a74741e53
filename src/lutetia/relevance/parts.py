"""Relevance of slices, added up in place.

A scan reads one step of a tensor after the other. If each step gave a whole tensor, zero but for its own place, a scan of n steps
would hold n of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lutetia.relevance.graph import Node


class SlicedRelevance:
    """What one slice of a tensor gets; the rest of it gets nothing."""

    __slots__ = ("R", "_lutetia_sum", "node", "stack", "view")

    def __init__(self, node: Node, R: Tensor, view: Callable[[Node, Tensor], Tensor], stack: Sequence[int] = ()) -> None:
        self.node, self.R, self.view = node, R, view  # view(node, the whole tensor) is the slice, shaped like R
        self.stack = stack  # (N,) where it holds N relevances

    def add_to(self, total: Tensor) -> None:
        """Add it to the relevance of the whole tensor, in place."""
        self.view(self.node, total).add_(self.R)

    def whole(self) -> Tensor:
        """Relevance in the shape of the whole tensor."""
        total = self.R.new_zeros((*self.stack, *self.node.input_shape(0)))
        self.add_to(total)
        return total


def whole(relevance: object) -> Any:
    """Relevance as a tensor, whether it is a part or not; None stays None."""
    return relevance.whole() if isinstance(relevance, SlicedRelevance) else relevance


def added(total: Tensor, relevance: Tensor | SlicedRelevance, owned: bool) -> Tensor:
    """total + relevance, both of one shape; in place where `total` is `owned`."""
    if isinstance(relevance, SlicedRelevance):
        total = total if owned else total.clone()
        relevance.add_to(total)
        return total
    return total.add_(relevance) if owned else total + relevance

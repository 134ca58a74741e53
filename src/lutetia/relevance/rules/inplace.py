"""Writing into a slice in place, `y[:, 1:3] = x`, and strided views. Autograd hides which elements; its backward reveals them.

The node `CopySlices` has the base as its first input, and what was written as its second. Sent backward, ones show which
elements of the base survived, and a numbering of the elements shows where each written one went.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance, unknown
from lutetia.relevance.registry import Args, Given, Op, register
from lutetia.relevance.rules.common import fit, integer
from lutetia.relevance.rules.views import Move

EXACT = 2**24  # integers that float32 holds exactly


class CopySlices(Op):
    """A copy over a slice, or a scaling or activation of a slice of the base."""

    def _backward(self, node: Node, R: Tensor) -> tuple[Tensor | None, ...]:
        given = node.fn(R)
        return given if isinstance(given, tuple) else (given,)

    def _survivors(self, node: Node, like: Tensor) -> Tensor | None:
        """Where the base is still there."""
        coefficients = self._backward(node, torch.ones_like(like))[0]
        return None if coefficients is None else coefficients != 0

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        survivors = self._survivors(node, R)
        written = [at for at in node.walked if at > 0]
        given: list[Tensor | None] = [None] * len(node.edges)
        if survivors is None:  # the base was a constant
            survivors = torch.zeros_like(R, dtype=torch.bool)
        if written:
            mixed = self._backward(node, survivors.to(R.dtype))
            if any(mixed[at] is not None and bool(mixed[at].any()) for at in written):  # type: ignore[union-attr]
                raise unknown(node, "in-place arithmetic of two tensors on a slice has unknown operands; write it out of place")
            for at, piece in enumerate(self._backward(node, R)):
                if at in written and piece is not None:
                    given[at] = fit(node, at, piece)
        if 0 in node.walked:
            given[0] = torch.where(survivors, R, R.new_zeros(()))
        return given

    def value(self, node: Node, args: Args) -> Relevance:
        written = args[1] if len(args) == 2 else None
        if len(args) != 2 or written is None:
            return super().value(node, args)
        shape = node.shape()
        numbers = torch.arange(shape.numel(), dtype=torch.float64, device=written.device).reshape(shape)
        places, counts = self._backward(node, numbers)[1], self._backward(node, torch.ones_like(numbers))[1]
        if places is None or counts is None or shape.numel() > EXACT or not bool((counts == 1).all()):
            return super().value(node, args)
        base = written.new_zeros(shape) if args[0] is None else args[0]
        return base.flatten().scatter(0, places.long().flatten(), written.flatten()).reshape(shape)


def _strided(node: Node, x: Tensor) -> Tensor:
    """`as_strided` of x, whose own strides may differ: the backward shows which element went where."""
    shape = node.shape()
    numbers = torch.arange(shape.numel(), dtype=torch.float64, device=x.device).reshape(shape)
    places, counts = node.fn(numbers), node.fn(torch.ones_like(numbers))
    if bool((counts > 1).any()) or shape.numel() > EXACT:
        fn = node.fn
        offset = fn._saved_storage_offset
        return x.contiguous().as_strided(
            list(fn._saved_size), list(fn._saved_stride), None if offset is None else integer(offset)
        )
    used = counts.flatten() == 1
    made = x.new_zeros(shape.numel())
    return made.scatter(0, places.flatten()[used].long(), x.flatten()[used]).reshape(shape)


register(CopySlices(), "CopySlices")
register(Move(_strided), "AsStridedBackward0", "AsStridedBackward1")

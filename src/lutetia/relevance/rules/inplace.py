"""Writing into a slice in place, `y[:, 1:3] = x`, `y[0] += x`, and strided views. Autograd hides which operation it was.

The node `CopySlices` has the base as its first input, and what was written as its second. Its backward, a linear map, shows what
each operand contributed to the output: J₀ base and J₁ written, in the output's shape. Where only one of them reaches an element,
it gets everything. Where both do, they were added, multiplied or divided: the two contributions then are parts of a sum, equal,
or opposite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lutetia.relevance.graph import WRITE, Node, Relevance, unknown
from lutetia.relevance.registry import Args, Given, Op, divide, register, seen_value
from lutetia.relevance.rules.common import fit, forward_map, integer, pieces
from lutetia.relevance.rules.views import Move

EXACT = 2**24  # integers that float32 holds exactly


class CopySlices(Op):
    """A slice of the base overwritten, added to, multiplied, or passed through a function."""

    wide = False

    def family(self, node: Node) -> str:
        return "sum"

    def _survivors(self, node: Node) -> Tensor:
        """Where the base is still there, boolean, shaped like it."""
        meta = node.metas[0]
        ones = torch.ones(meta.shape, dtype=meta.dtype, device=meta.device)
        coefficients = pieces(node, ones)[0] if node.edges[0] is not None else None
        return torch.zeros_like(ones, dtype=torch.bool) if coefficients is None else coefficients != 0

    def _write(self, node: Node) -> Any:
        """The operation, if `watch` recorded it and its operands are those of the node; else None."""
        write = node.notes.get(WRITE)
        fits = write is not None and write.operands == sum(edge is not None for edge in node.edges[1:])
        return write if fits else None

    def _mixed(self, node: Node) -> bool:
        """Whether some element of the output comes from both the base and what was written."""
        others = [at for at in range(1, len(node.edges)) if node.edges[at] is not None]
        if node.edges[0] is None:  # a constant: it has a share where something was added to it
            return len(others) == len(node.edges) - 1 == 1 and self._write(node) is not None and self._write(node).adds
        if not others:
            return False
        back = pieces(node, self._survivors(node).to(node.metas[0].dtype))
        return any(back[at] is not None and bool(back[at].any()) for at in others)  # type: ignore[union-attr]

    def needs(self, node: Node) -> Sequence[int]:
        return [at for at, edge in enumerate(node.edges) if edge is not None] if self._mixed(node) else ()

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        given: list[Tensor | None] = [None] * len(node.edges)
        if not self._mixed(node):
            back = pieces(node, R)
            for at in node.walked:
                piece = back[at]
                given[at] = piece if piece is None or not at else fit(node, at, piece)
            if 0 in node.walked:
                given[0] = torch.where(self._survivors(node), R, R.new_zeros(()))
            return given
        shares = self._shares(node, R, args)
        return [share if at in node.walked else None for at, share in enumerate(shares)]

    def _met(self, node: Node, args: Args) -> tuple[str, Tensor, Tensor, Tensor]:
        """How base and written operand were combined, J₀ base, J₁ written, and where the base reaches the output."""
        if len(node.edges) == 2:
            base, other = forward_map(node, 0, args[0]), forward_map(node, 1, args[1])
            ones = forward_map(node, 0, torch.ones_like(args[0]))
            if base is not None and other is not None and ones is not None:
                reached = ones != 0
                met = (other != 0) & reached
                if bool((ones[met] == 1).all()):
                    return "sum", base, other, reached
                if torch.allclose(base[met], other[met]):
                    return "product", base, other, reached
                if torch.allclose(base[met], -other[met]):
                    return "quotient", base, other, reached
        raise unknown(node, "in-place arithmetic on a slice has unknown operands; write it out of place")

    def _shares(self, node: Node, R: Tensor, args: Args) -> list[Tensor | None]:
        """What base and written operand get of R where arithmetic combined them."""
        if node.edges[0] is None:
            return [None, self._to_other(node, divide(R, self._write(node).again(args), node.choice.eps), args)]
        kind, base, other, reached = self._met(node, args)
        met, nothing, eps = (other != 0) & reached, R.new_zeros(()), node.choice.eps
        if kind == "sum":
            s = divide(R, base + other, eps)
            return [torch.where(met, s * base, torch.where(reached, R, nothing)), self._to_other(node, s, args)]
        if kind == "quotient":  # what divides is a scale
            return [R, None]
        s = torch.where(met, 0.5 * divide(R, other, eps), nothing)
        return [torch.where(met, 0.5 * R, R), self._to_other(node, s, args)]

    def _to_other(self, node: Node, s: Tensor, args: Args) -> Tensor:
        back = pieces(node, s)[1]
        assert back is not None
        return fit(node, 1, back) * args[1]

    def value(self, node: Node, args: Args) -> Relevance:
        write = self._write(node)
        if write is not None:
            return write.again(args)
        written = [at for at in range(1, len(node.edges)) if node.edges[at] is not None]
        if not written:
            raise unknown(
                node, "the in-place operation is not known; run the model through relevance.attribute or inside relevance.watch"
            )
        if self._mixed(node):
            kind, base, other, _ = self._met(node, args)
            return base + other if kind == "sum" else base
        if args[0] is None:
            node.note = "a constant was written into, and its value was not kept"
        parts = [forward_map(node, at, arg) for at, arg in enumerate(args) if arg is not None]
        return torch.stack([part for part in parts if part is not None]).sum(0)


class Copy(Op):
    """`y.copy_(x)`: x gets everything, what was there before nothing."""

    def value(self, node: Node, args: Args) -> Relevance:
        meta = node.metas[0]
        return args[1].to(dtype=meta.dtype, device=meta.device).expand(node.shape())

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        edge = node.edges[1]
        if edge is None:
            return None, None
        meta = edge.child.metas[edge.nr]
        return None, fit(node, 1, R.to(meta.device))


class Fill(Op):
    """`zero_` and `fill_`: nothing is left of what was there; a value with a node is in every place."""

    wants_output = True

    def result(self, node: Node) -> Relevance | None:
        return seen_value(node)

    def value(self, node: Node, args: Args) -> Relevance:
        number = args[1] if len(args) > 1 and args[1] is not None else None
        if number is None and node.name != "ZeroBackward0":
            raise unknown(node, "its output is needed, was not kept, and cannot be computed")
        meta = node.metas[0]
        filled = torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device)
        return filled if number is None else filled + number

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return [fit(node, at, R) if at == 1 and at in node.walked else None for at in range(len(node.edges))]


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
register(Copy(), "CopyBackwards")
register(Fill(), "ZeroBackward0", *(f"FillBackward{number}" for number in range(4)))
register(Move(_strided), "AsStridedBackward0", "AsStridedBackward1")

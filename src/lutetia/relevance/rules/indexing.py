"""Indexing: gather, index, take, sort and the scatters: the relevance goes where the value came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance
from lutetia.relevance.registry import Args, Given, Op, known_sum, register
from lutetia.relevance.rules.common import backward, fit, integer
from lutetia.relevance.rules.views import Move


class Place(Op):
    """Values of one input written over another: overwritten elements get nothing, written ones get their own relevance."""

    def __init__(self, forward: Callable[..., Tensor], saved_source: bool = False) -> None:
        self._forward, self._saved_source = forward, saved_source

    def kept(self, node: Node) -> Args:
        kept: list[Tensor | None] = [None] * len(node.edges)
        if self._saved_source and len(kept) > 1:
            kept[1] = node.fn._saved_source
        return kept

    def value(self, node: Node, args: Args) -> Relevance:
        base, source = args[0], args[1] if len(args) > 1 else None
        if base is None:
            base = node.constant()
        elif source is None:
            source = node.constant()
        if base is None:
            assert source is not None
            base = torch.zeros(node.shape(), dtype=source.dtype, device=source.device)
            node.note = "a constant was written into, and its value was not kept"
        return self._forward(node, base, source)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        given = backward(node, R)
        given = given if isinstance(given, tuple) else (given,)
        return [fit(node, at, g) if g is not None and at in node.walked else None for at, g in enumerate(given)]


class Accumulate(Place):
    """Values of one input added to another: in proportion to the signed share, as in a sum."""

    def family(self, node: Node) -> str:
        return "sum"

    def needs(self, node: Node) -> Sequence[int]:
        return [position for position, edge in enumerate(node.edges) if edge is not None]

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        known = known_sum(node, seen=None not in node.edges)
        z = self.value(node, args) if known is None else known
        (s,) = node.choice.share([torch.ones_like(R)], R, z)  # R / (z + ε·sgn z)
        shares = backward(node, s)
        shares = shares if isinstance(shares, tuple) else (shares,)
        return [
            fit(node, at, share * arg) if arg is not None and at in node.walked else None
            for at, (share, arg) in enumerate(zip(shares, args, strict=True))
        ]


class IndexPut(Op):
    """`x[index] = values`, or += with accumulate."""

    wide = False

    _over = Place(lambda node, x, v: x.index_put(_indices(node), v))
    _plus = Accumulate(lambda node, x, v: x.index_put(_indices(node), v, accumulate=True))

    def _of(self, node: Node) -> Place:
        return self._plus if node.fn._saved_accumulate else self._over

    def family(self, node: Node) -> str:
        return self._of(node).family(node)

    def needs(self, node: Node) -> Sequence[int]:
        return self._of(node).needs(node)

    def value(self, node: Node, args: Args) -> Relevance:
        return self._of(node).value(node, args)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return self._of(node).relevance(node, R, args)


class Where(Op):
    """`where(c, a, b)` and masked_fill: each element from one of two."""

    def __init__(self, inverted: bool) -> None:
        self._inverted = inverted  # masked_fill takes the second where the mask holds

    def _mask(self, node: Node) -> Tensor:
        return node.fn._saved_mask if self._inverted else node.fn._saved_condition

    def value(self, node: Node, args: Args) -> Relevance:
        first = args[0]
        second: Any = args[1] if len(args) > 1 else None
        if first is None or second is None:
            constant = node.constant()
            if constant is None:
                constant = 0.0
                node.note = "a constant was filled in, and its value was not kept"
            first, second = (constant if first is None else first), (constant if second is None else second)
        mask = self._mask(node)
        made = torch.where(mask, second, first) if self._inverted else torch.where(mask, first, second)
        return made.to(node.metas[0].dtype)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        mask = self._mask(node)
        nothing = R.new_zeros(())
        kept, filled = (torch.where(mask, nothing, R), torch.where(mask, R, nothing))
        pair = (kept, filled) if self._inverted else (filled, kept)
        return [fit(node, at, piece) if at in node.walked else None for at, piece in enumerate(pair[: len(node.edges)])]


def _indices(node: Node) -> tuple[Tensor | None, ...]:
    return tuple(node.fn._saved_indices)


def _index(node: Node, x: Tensor) -> Tensor:
    return torch.ops.aten.index(x, list(node.fn._saved_indices))


def _gather(node: Node, x: Tensor) -> Tensor:
    return x.gather(integer(node.fn._saved_dim), node.fn._saved_index)


def _by_indices(node: Node, x: Tensor) -> Tensor:
    """The elements at saved indices along a dimension: max, min, median, mode, kthvalue, topk, sort, cummax."""
    dim, indices = integer(node.fn._saved_dim), node.fn._saved_indices
    if x.dim() and indices.dim() < x.dim():
        return x.gather(dim, indices.unsqueeze(dim)).squeeze(dim)
    return x.gather(dim, indices)


def _scatter(node: Node, x: Tensor, source: Any) -> Tensor:
    source = 0.0 if source is None else source
    return x.scatter(integer(node.fn._saved_dim), node.fn._saved_index, source)


def _index_add(node: Node, x: Tensor, source: Tensor) -> Tensor:
    fn = node.fn
    return x.index_add(integer(fn._saved_dim), fn._saved_index, source, alpha=fn._saved_alpha)


def _slice_scatter(node: Node, x: Tensor, source: Tensor) -> Tensor:
    fn = node.fn
    start, end = (None if n is None else integer(n) for n in (fn._saved_start, fn._saved_end))
    return x.slice_scatter(source, integer(fn._saved_dim), start, end, fn._saved_step)


def _select_scatter(node: Node, x: Tensor, source: Tensor) -> Tensor:
    return x.select_scatter(source, integer(node.fn._saved_dim), integer(node.fn._saved_index))


def _diagonal_scatter(node: Node, x: Tensor, source: Tensor) -> Tensor:
    fn = node.fn
    return x.diagonal_scatter(source, integer(fn._saved_offset), integer(fn._saved_dim1), integer(fn._saved_dim2))


register(Move(_index), "IndexBackward0", "UnsafeIndexBackward0")
register(Move(_gather, saved=True), "GatherBackward0")
register(Move(lambda node, x: x.index_select(integer(node.fn._saved_dim), node.fn._saved_index)), "IndexSelectBackward0")
register(Move(lambda node, x: x.masked_select(node.fn._saved_mask), saved=True), "MaskedSelectBackward0")
register(Move(lambda node, x: x.take(node.fn._saved_index), saved=True), "TakeBackward0")
register(
    Move(_by_indices),
    "MaxBackward0",
    "MinBackward0",
    "MedianBackward1",
    "NanmedianBackward1",
    "ModeBackward0",
    "KthvalueBackward0",
    "TopkBackward0",
    "SortBackward0",
    "SortBackward1",
)
register(Move(_by_indices, saved=True), "CummaxBackward0", "CumminBackward0")
register(Where(inverted=False), "WhereBackward0")
register(Where(inverted=True), "MaskedFillBackward0", "MaskedFillBackward1")
register(Place(_scatter), "ScatterBackward0", "ScatterBackward1")
register(Place(_slice_scatter), "SliceScatterBackward0")
register(Place(_select_scatter), "SelectScatterBackward0")
register(Place(_diagonal_scatter), "DiagonalScatterBackward0")
register(
    Place(lambda node, x, v: x.index_copy(integer(node.fn._saved_dim), node.fn._saved_index, v), saved_source=True),
    "IndexCopyBackward0",
)
register(Place(lambda node, x, v: x.index_fill(integer(node.fn._saved_dim), node.fn._saved_index, v)), "IndexFillBackward1")
register(
    Place(lambda node, x, v: x.index_fill(integer(node.fn._saved_dim), node.fn._saved_index, 0.0 if v is None else v)),
    "IndexFillBackward0",
)
register(Place(lambda node, x, v: x.masked_scatter(node.fn._saved_mask, v)), "MaskedScatterBackward0")
register(
    Accumulate(lambda node, x, v: x.scatter_add(integer(node.fn._saved_dim), node.fn._saved_index, v)), "ScatterAddBackward0"
)
register(Accumulate(_index_add, saved_source=True), "IndexAddBackward0")
register(IndexPut(), "IndexPutBackward0", "IndexPutImplBackward0", "UnsafeIndexPutBackward0")

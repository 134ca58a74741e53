"""Relevance through the reads of `LUT` that are not plain: rows that are added with coefficients, y = Σ_t a W[index] + b W[alt].

Such a layer is two autograd nodes. At the tables, detector t gets R_t = Σ_o c_o (a W[t, index, o] + b W[t, alt, o]), in two
parts: the relevance of a and that of b. Where x becomes a and b, R_t goes to the anchor pairs by what each comparison decides:
D_r is how much R_t would change if its bit were the other one in both rows, the coefficients staying as they are. With a = 1 and
b = 0 that is the rule of the hard read. Only the tables can tell what a bit decides, so the first node leaves a note for the
second.

B batch · I inputs · O outputs · N_t detectors · N_c anchor pairs · R rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia.lut.reference import rows_of
from lutetia.lut.sums import sum_dtype
from lutetia.nn.lut_relevance import Tables, dot, in_pieces, output_dtype, sizes_of, to_anchors, to_bits
from lutetia.relevance.graph import Node, Relevance
from lutetia.relevance.registry import Args, Given, Op, divide, register

DECIDED = "lutetia.decided"  # grad_fn.metadata key of a read: what each bit decides, [B, N_t, N_c]


class Rows(NamedTuple):
    """What the forward pass kept, whatever way its gradient takes, and which inputs of the node are which."""

    weight: Tensor | None  # [N_t, R, O] or [n_weights]
    indices: Tensor  # [B, N_t]
    alternatives: Tensor | None  # [B, N_t]; None where a read has one row
    a: Tensor | None  # [B, N_t]
    b: Tensor | None
    synapses: tuple[Any, ...]  # start, targets, meta, header; () when fully connected
    at: tuple[int, int, int]  # the places of weight, a and b among the inputs


def rows_kept(fn: Any) -> Rows:
    """Of `weigh_rows`, `weigh_rows_sparse`, and the layers with sparse gradients or steps in place."""
    indices, alternatives, *saved = fn.saved_tensors
    second = alternatives if alternatives.numel() or not indices.numel() else None
    if hasattr(fn, "call"):
        a, b, weight = saved
        return Rows(weight, indices, second, a, b, fn.call.call.synapses, (2, 0, 1))
    sparse = len(fn.rest) == 4 and isinstance(fn.rest[0], str)
    wiring = (*saved[-3:], fn.rest[0]) if sparse else ()
    saved = saved[: len(saved) - 3] if sparse else saved
    a, b = (saved[0], saved[1]) if len(saved) > 1 else (None, None)
    weight = saved[-1] if len(saved) in (1, 3) else None
    return Rows(weight, indices, second, a, b, wiring, (0, 3, 4))


class RowsOp(Tables):
    """The tables: a, b [B, N_t], weight -> y [B, O]."""

    def kept(self, node: Node) -> Args:
        rows = rows_kept(node.fn)
        kept: list[Tensor | None] = [None] * len(node.edges)
        for at, tensor in zip(rows.at, (rows.weight, rows.a, rows.b), strict=True):
            if at < len(kept):
                kept[at] = tensor
        return kept

    def needs(self, node: Node) -> list[int]:
        return [at for at in rows_kept(node.fn).at[1:] if node.edges[at] is not None]

    def value(self, node: Node, args: Args) -> Relevance:
        rows = rows_kept(node.fn)
        weight = self.weight(node, rows.weight, rows.synapses)
        return self._sum(rows, weight, *_coefficients(rows, args)).to(output_dtype(node))

    def _sum(self, rows: Rows, weight: Tensor, a: Tensor, b: Tensor | None) -> Tensor:
        """y [B, O]."""

        def add(at: slice) -> Tensor:
            y = torch.einsum("bt,bto->bo", a[at], rows_of(weight, rows.indices[at]).to(a.dtype))
            if b is not None and rows.alternatives is not None:
                y += torch.einsum("bt,bto->bo", b[at], rows_of(weight, rows.alternatives[at]).to(a.dtype))
            return y

        return in_pieces(rows.indices, weight, add)

    def relevance(self, node: Node, R: Tensor, args: Args) -> Given:
        rows = rows_kept(node.fn)
        weight = self.weight(node, rows.weight, rows.synapses)
        a, b = _coefficients(rows, args)
        c = divide(R, self._sum(rows, weight, a, b).to(R.dtype), node.choice.eps).to(sum_dtype(weight))
        given: list[Tensor | None] = [None] * len(node.edges)
        at_weight, at_a, at_b = rows.at
        first = in_pieces(rows.indices, weight, lambda at: a[at] * dot(c[at], weight, rows.indices[at]))
        if at_a in node.walked:
            given[at_a] = first.to(a.dtype)
            self._leave_note(node, at_a, in_pieces(rows.indices, weight, lambda at: _decided(at, c, weight, rows, a, b)))
        if at_b < len(given) and at_b in node.walked and b is not None and rows.alternatives is not None:
            others = rows.alternatives
            given[at_b] = in_pieces(others, weight, lambda at: b[at] * dot(c[at], weight, others[at])).to(b.dtype)
        if at_weight in node.walked:
            given[at_weight] = self._to_tables(node, rows, weight, c, a, b)
        return given

    def _leave_note(self, node: Node, at: int, decided: Tensor) -> None:
        edge = node.edges[at]
        assert edge is not None
        child = edge.child
        while child.name == "MulBackward0" and child.edges[0] is not None:  # table dropout scales the coefficients
            child = child.edges[0].child
        child.fn.metadata[DECIDED] = decided

    def _to_tables(self, node: Node, rows: Rows, weight: Tensor, c: Tensor, a: Tensor, b: Tensor | None) -> Tensor:
        counted = torch.zeros_like(weight, dtype=c.dtype)
        detectors = torch.arange(weight.shape[0], device=weight.device).expand_as(rows.indices)
        for indices, coefficient in ((rows.indices, a), (rows.alternatives, b)):
            if indices is not None and coefficient is not None:
                counted.index_put_((detectors, indices.long()), c[:, None] * coefficient[..., None], accumulate=True)
        return self.like_weight(node, rows.at[0], rows.synapses, counted * weight)


def _coefficients(rows: Rows, args: Args) -> tuple[Tensor, Tensor | None]:
    """a and b [B, N_t]: as they were kept, or as promises brought them."""
    a, b = (args[at] if kept is None else kept for at, kept in zip(rows.at[1:], (rows.a, rows.b), strict=True))
    return a, b if rows.alternatives is not None else None


def _decided(at: slice, c: Tensor, weight: Tensor, rows: Rows, a: Tensor, b: Tensor | None) -> Tensor:
    """What each bit decides, for a piece of the batch: [B, N_t, N_c]."""
    n_anchors = weight.shape[1].bit_length() - 1
    masks = [0, *(1 << r for r in range(n_anchors))]
    worth = [a[at] * dot(c[at], weight, rows.indices[at] ^ mask) for mask in masks]
    if b is not None and rows.alternatives is not None:
        worth = [w + b[at] * dot(c[at], weight, rows.alternatives[at] ^ mask) for w, mask in zip(worth, masks, strict=True)]
    return torch.stack([worth[0] - other for other in worth[1:]], -1)


class ReadOp(Op):
    """Where x [B, I] becomes a and b [B, N_t]: what both got goes to the anchors."""

    def reads_data(self, node: Node) -> bool:
        return True

    def kept(self, node: Node) -> Args:
        return [node.fn.saved_tensors[0], *[None] * (len(node.edges) - 1)]

    def result(self, node: Node) -> Relevance | None:
        fn = node.fn
        x, anchors, *saved = fn.saved_tensors
        learned = iter(saved)
        scalars = [next(learned) if given else None for given in fn.given]
        made = torch.ops.lutetia.read_detectors(x, anchors, *scalars, fn.read, *fn.options)
        return tuple(made) if node.several else made[node.nr]

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        x, anchors = node.fn.saved_tensors[:2]
        parts = [part for part in R if part is not None] if isinstance(R, tuple) else [R]
        decided = node.fn.metadata.pop(DECIDED, None)
        if decided is None:  # the coefficients went somewhere else than into tables
            decided = parts[0].new_zeros(*parts[0].shape, anchors.shape[1])
        given: list[Tensor | None] = [None] * len(node.edges)
        if 0 in node.walked:
            found = torch.zeros_like(x, dtype=decided.dtype)
            to_anchors(found, anchors.long(), to_bits(node, sum(parts), decided), sizes_of(node, args))
            given[0] = found.to(x.dtype)
        return given


register(
    RowsOp(),
    "GeneratedBackwardFor_lutetia_weigh_rows_defaultBackward",
    "GeneratedBackwardFor_lutetia_weigh_rows_sparse_defaultBackward",
    "_SparseRowsBackward",
    "_RowsInPlaceBackward",
)
register(ReadOp(), "GeneratedBackwardFor_lutetia_read_detectors_defaultBackward")

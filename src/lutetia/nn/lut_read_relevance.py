"""Relevance through the soft reads of `LUT`, whose rows are added with coefficients, y = Σ_t a W[index] + b W[alt].

Such a layer is two autograd nodes. At the tables, detector t gets R_t = Σ_o c_o (a W[t, index, o] + b W[t, alt, o]), in two
parts: the relevance of a and that of b. Where x becomes a and b, R_t goes to the anchor pairs by what each comparison decides:
D_r is how much R_t would change if its bit were the other one in both rows, the coefficients staying as they are. With a = 1 and
b = 0 that is the rule of the hard read. Only the node of the tables knows what a bit decides, so the first node leaves that for
the second.

B batch · I inputs · O outputs · N_t detectors · N_c anchor pairs · R rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lutetia.lut import Record, nodes_of, record_of, rows_of, sum_dtype
from lutetia.nn.lut_relevance import SharedTables, dot, in_pieces, output_dtype, sizes_of, to_anchors, to_bits
from lutetia.relevance import Args, Given, Node, Op, Relevance, divide, register

DECIDED = "lutetia.decided"  # grad_fn.metadata key of a read: what each bit decides, [B, N_t, N_c]


WEIGHT, A, B = 0, 3, 4  # the places of these among the inputs of a node


class RowsOp(SharedTables):
    """The tables: a, b [B, N_t], weight -> y [B, O]."""

    def kept(self, node: Node) -> Args:
        saved = record_of(node.fn).saved
        kept: list[Tensor | None] = [None] * len(node.edges)
        for at, tensor in ((WEIGHT, saved.weight), (A, saved.a), (B, saved.b)):
            if at < len(kept):
                kept[at] = tensor
        return kept

    def needs(self, node: Node) -> list[int]:
        return [at for at in (A, B) if at < len(node.edges) and node.edges[at] is not None]

    def value(self, node: Node, args: Args) -> Relevance:
        record = record_of(node.fn)
        return self._sum(record, self.weight(node, record)).to(output_dtype(node))

    def _sum(self, record: Record, weight: Tensor) -> Tensor:
        """y [B, O]."""
        rows = _rows_read(record)

        def add(at: slice) -> Tensor:
            return sum(torch.einsum("bt,bto->bo", a[at], rows_of(weight, indices[at]).to(a.dtype)) for indices, a in rows)  # type: ignore[return-value]

        return in_pieces(record.saved.indices, weight, add)

    def relevance(self, node: Node, R: Tensor, args: Args) -> Given:
        record = record_of(node.fn)
        weight, rows = self.weight(node, record), _rows_read(record)
        c = divide(R, self._sum(record, weight).to(R.dtype), node.choice.eps).to(sum_dtype(weight))
        given: list[Tensor | None] = [None] * len(node.edges)
        for place, (indices, factor) in zip((A, B), rows, strict=False):
            if place in node.walked:
                worth = in_pieces(indices, weight, lambda at: factor[at] * dot(c[at], weight, indices[at]))  # noqa: B023
                given[place] = worth.to(factor.dtype)
        if A in node.walked:
            self._leave_note(node, A, in_pieces(record.saved.indices, weight, lambda at: _decided(at, c, weight, rows)))
        if WEIGHT in node.walked:
            counted = torch.zeros_like(weight, dtype=c.dtype)
            detectors = torch.arange(weight.shape[0], device=weight.device).expand_as(record.saved.indices)
            for indices, factor in rows:
                counted.index_put_((detectors, indices.long()), c[:, None] * factor[..., None], accumulate=True)
            given[WEIGHT] = self.like_weight(node, WEIGHT, record, counted * weight)
        return given

    def _leave_note(self, node: Node, at: int, decided: Tensor) -> None:
        edge = node.edges[at]
        assert edge is not None
        child = edge.child
        while child.name == "MulBackward0" and child.edges[0] is not None:  # table dropout scales the coefficients
            child = child.edges[0].child
        child.fn.metadata[DECIDED] = decided


def _rows_read(record: Record) -> list[tuple[Tensor, Tensor]]:
    """Indices and coefficients of the rows that were added, [B, N_t] each."""
    saved = record.saved
    assert saved.a is not None
    rows = [(saved.indices, saved.a)]
    if saved.b is not None and saved.alternatives is not None:
        rows.append((saved.alternatives, saved.b))
    return rows


def _decided(at: slice, c: Tensor, weight: Tensor, rows: list[tuple[Tensor, Tensor]]) -> Tensor:
    """What each bit decides, for a piece of the batch: [B, N_t, N_c]."""
    masks = [0, *(1 << r for r in range(weight.shape[1].bit_length() - 1))]
    worths = [[factor[at] * dot(c[at], weight, indices[at] ^ mask) for indices, factor in rows] for mask in masks]
    worth = [torch.stack(parts).sum(0) for parts in worths]
    return torch.stack([worth[0] - other for other in worth[1:]], -1)


class ReadOp(Op):
    """Where x [B, I] becomes a and b [B, N_t]: the relevance of both goes to the anchors."""

    wide = False

    def reads_data(self, node: Node) -> bool:
        return True

    def kept(self, node: Node) -> Args:
        return [node.fn.saved_tensors[0], *[None] * (len(node.edges) - 1)]

    def result(self, node: Node) -> Relevance | None:
        *inputs, thresholds = node.fn.saved_tensors
        made = torch.ops.lutetia.read_detectors(*inputs, None, None, None, node.fn.how, thresholds)
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


register(RowsOp(), *nodes_of("weigh_rows"))
register(ReadOp(), *nodes_of("read_detectors"))

"""Relevance through lookup tables: the rules of `LUT` and `LUTAttention` for `lutetia.relevance`.

y_o = Σ_t W[t, index_t, o]: detector t gets R_t = Σ_o W[t, index_t, o] · c_o, with c_o = R_o / (y_o + ε·sgn y_o). Comparison r
decides D_r = Σ_o c_o (W[t, index, o] - W[t, index ^ (1 << r), o]): for R_t, or against it. R_t goes to the comparisons in
proportion to |D_r|, equally if none decides anything, and half of a pair's part to each of its two inputs; a constant gets
nothing, and the input compared with it gets the whole part. In LUT attention the same holds for every pair of positions and
detector: the bits are those of j, of i, and of their distance.

With `relevance.Decisive` each of n comparisons first gets D_r / n, and the rest of R_t is divided as above. Where x is an
intermediate value, the two inputs of a pair share in proportion to |x|: the rules of earlier layers divide by x, so half of a
part at a value near zero would become huge.

B batch · S sequence length · I inputs · O outputs · N_t detectors · N_c anchor pairs · N_pe positional bits · R rows.
`lutetia.relevance` loads this module when it meets a node of these layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lutetia.lut import Record, like_positions, nodes_of, record_of, rows_of, sum_dtype
from lutetia.relevance import Args, Decisive, Given, Node, Op, Relevance, divide, register, unknown

MOST_NUMBERS = 1 << 24  # in one scratch tensor; larger batches are done in pieces


class SharedTables(Op):
    """What all layers share: their tables, and the relevance that goes to them."""

    wide = False

    def family(self, node: Node) -> str:
        return "sum"

    def reads_data(self, node: Node) -> bool:
        return True  # indices, if nothing else

    def needs(self, node: Node) -> list[int]:
        return [0] if is_decisive(node) and is_computed(node) else []

    def weight(self, node: Node, record: Record) -> Tensor:
        """The tables [N_t, R, O], from a weight that was kept or is an input of the node."""
        weight = record.saved.weight
        if weight is None:
            at = next((at for at, edge in enumerate(node.edges) if edge is not None and edge.child.is_weight), None)
            weight = None if at is None else node.operands()[at]
        if weight is None:
            raise unknown(node, "the tables were not kept, because the inputs need no gradient")
        return record.connectivity().expand(weight.detach())

    def like_weight(self, node: Node, at: int, record: Record, tables: Tensor) -> Tensor:
        """The relevance of tables [N_t, R, O], shaped like the weight, which is the input `at`."""
        edge = node.edges[at]
        assert edge is not None
        return record.connectivity().flatten(tables).to(edge.child.fn._input_metadata[edge.nr].dtype)


class LutOp(SharedTables):
    """`LUT`: x [B, I], weight -> y [B, O]."""

    def result(self, node: Node) -> Relevance | None:
        record = record_of(node.fn)
        saved, weight = record.saved, self.weight(node, record)
        return in_pieces(saved.indices, weight, lambda at: rows_of(weight, saved.indices[at]).sum(1)).to(output_dtype(node))

    def relevance(self, node: Node, R: Tensor, args: Args) -> Given:
        record = record_of(node.fn)
        saved, weight = record.saved, self.weight(node, record)
        c = divide(R, node.output(), node.choice.eps).to(sum_dtype(weight))  # type: ignore[arg-type]
        given: list[Tensor | None] = [None] * len(node.edges)
        if 0 in node.walked:
            sizes = sizes_of(node, args)
            x = in_pieces(saved.indices, weight, lambda at: self._to_inputs(node, record, weight, c[at], at, sizes))
            given[0] = x.to(record.facts.dtype)
        if 1 in node.walked:
            counted = torch.zeros_like(weight, dtype=c.dtype)
            detectors = torch.arange(weight.shape[0], device=weight.device).expand_as(saved.indices)
            counted.index_put_((detectors, saved.indices.long()), c[:, None].expand(-1, weight.shape[0], -1), accumulate=True)
            given[1] = self.like_weight(node, 1, record, counted * weight)
        return given

    def _to_inputs(self, node: Node, record: Record, weight: Tensor, c: Tensor, at: slice, sizes: Tensor | None) -> Tensor:
        """A piece of the batch: c [B, O] -> relevance [B, I]."""
        assert record.saved.anchors is not None
        anchors, indices = record.saved.anchors.long(), record.saved.indices[at]
        worth = dot(c, weight, indices)
        decided = torch.stack([worth - dot(c, weight, indices ^ (1 << r)) for r in range(anchors.shape[1])], -1)
        x = c.new_zeros(c.shape[0], record.facts.n_inputs)
        to_anchors(x, anchors, to_bits(node, worth, decided), None if sizes is None else sizes[at])
        return x


def _by_distance(record: Record) -> Iterator[tuple[int, Tensor]]:
    """All pairs (j - d, j), one distance d after the other, with the cell each detector reads, int64 [B, S - d, N_t]."""
    sequence = record.sequence()
    n_pe, indices, pe_indices = sequence.positional_dim, sequence.x.indices.long(), sequence.positions.indices.long()
    for d in range(1, indices.shape[1]):
        yield d, indices[:, d:] << (sequence.n_anchors + n_pe) | indices[:, :-d] << n_pe | pe_indices[d - 1]


class AttentionOp(SharedTables):
    """`LUTAttention`: x [B, S, I], weight, positions [L-1, N_t or 1, N_pe] -> y [B, S, O]."""

    def result(self, node: Node) -> Relevance | None:
        record = record_of(node.fn)
        weight = self.weight(node, record)
        y = weight.new_zeros(*record.saved.indices.shape[:2], weight.shape[2], dtype=sum_dtype(weight))
        for d, cells in _by_distance(record):
            y[:, d:] += rows_of(weight, cells.flatten(0, 1)).sum(1).unflatten(0, cells.shape[:2])
        return y.to(output_dtype(node))

    def relevance(self, node: Node, R: Tensor, args: Args) -> Given:
        record = record_of(node.fn)
        saved, facts, weight = record.saved, record.facts, self.weight(node, record)
        assert saved.pe_indices is not None
        n_anchors, n_pe = facts.n_anchors, facts.positions_shape[2]
        c = divide(R, node.output(), node.choice.eps).to(sum_dtype(weight))  # type: ignore[arg-type]
        worths, sizes = _dots(c, weight), sizes_of(node, args)
        x = c.new_zeros(*c.shape[:2], facts.n_inputs)
        positions = c.new_zeros(*saved.pe_indices.shape, n_pe)
        counted = torch.zeros_like(weight, dtype=c.dtype) if 1 in node.walked else None
        for d, cells in _by_distance(record):
            worth = worths(d, cells)  # [B, S - d, N_t]
            decided = torch.stack([worth - worths(d, cells ^ (1 << r)) for r in range(2 * n_anchors + n_pe)], -1)
            pe, k, q = to_bits(node, worth, decided).split([n_pe, n_anchors, n_anchors], -1)  # from the lowest bits up
            positions[d - 1] += pe.sum((0, 1))
            if saved.anchors is not None:
                to_anchors(x[:, d:], saved.anchors.long(), q, None if sizes is None else sizes[:, d:])
                to_anchors(x[:, :-d], saved.anchors.long(), k, None if sizes is None else sizes[:, :-d])
            if counted is not None:
                detectors = torch.arange(weight.shape[0], device=weight.device).expand_as(cells)
                counted.index_put_((detectors, cells), c[:, d:, None].expand(*cells.shape, -1), accumulate=True)
        return self._given(node, record, x, positions, None if counted is None else counted * weight)

    def _given(self, node: Node, record: Record, x: Tensor, positions: Tensor, tables: Tensor | None) -> Given:
        facts = record.facts
        given: list[Tensor | None] = [None] * len(node.edges)
        if 0 in node.walked:
            given[0] = x.to(facts.dtype)
        if tables is not None:
            given[1] = self.like_weight(node, 1, record, tables)
        if 3 in node.walked:
            given[3] = like_positions(positions, facts.positions_shape).to(facts.positions_dtype)
        return given


def is_decisive(node: Node) -> bool:
    """Whether the rule is `Decisive`."""
    return isinstance(node.rules.sum, Decisive)


def is_computed(node: Node) -> bool:
    """Whether x, the first input, is an intermediate value: more than an input of the model behind views and activations."""
    if 0 not in node.walked:
        return False
    edge = node.edges[0]
    while edge is not None and edge.child.op.conserves and len(edge.child.edges) == 1:
        edge = edge.child.edges[0]
    return edge is not None and bool(edge.child.edges)


def sizes_of(node: Node, args: Args) -> Tensor | None:
    """|x|, by which the two inputs of a pair share; None where they share equally."""
    return args[0].abs() if is_decisive(node) and is_computed(node) else None


def to_bits(node: Node, worth: Tensor, decided: Tensor) -> Tensor:
    """What each bit gets of a detector's relevance, `worth` [...]; `decided` [..., n] is what each bit decides -> [..., n]."""
    if not is_decisive(node):
        return worth[..., None] * shares(decided.abs())
    own = decided / decided.shape[-1]
    return own + (worth - own.sum(-1))[..., None] * shares(decided.abs())


def shares(sizes: Tensor) -> Tensor:
    """Shares that add up to 1, in proportion to sizes [..., n] -> [..., n]; equal ones where all are 0."""
    total = sizes.sum(-1, keepdim=True)
    return torch.where(total > 0, sizes / total.where(total > 0, torch.ones_like(total)), 1 / sizes.shape[-1])


def to_anchors(x: Tensor, anchors: Tensor, parts: Tensor, sizes: Tensor | None) -> None:
    """Add each pair's part to its two inputs, in place and in proportion to their sizes (None: in halves).

    x [..., I], anchors [N_t, N_c, 2], parts [..., N_t, N_c], sizes [..., I]. Where the second is a constant the first gets both
    shares.
    """
    (a, b), parts = anchors.reshape(-1, 2).unbind(-1), parts.flatten(-2)
    flat = torch.stack([a, b.where(b < x.shape[-1], a)], -1)
    of_pair = parts.new_full((2,), 0.5) if sizes is None else shares(sizes[..., flat].to(parts.dtype))
    for side in (0, 1):
        x.index_add_(-1, flat[:, side], parts * of_pair[..., side])


def dot(c: Tensor, weight: Tensor, indices: Tensor) -> Tensor:
    """Σ_o c_o W[t, index_t, o]: c [B, O], weight [N_t, R, O], indices [B, N_t] -> [B, N_t]."""
    return torch.bmm(rows_of(weight, indices).to(c.dtype), c.unsqueeze(-1)).squeeze(-1)


def _dots(c: Tensor, weight: Tensor) -> Callable[[int, Tensor], Tensor]:
    """The same for pairs of one distance, all at once where that is little: c [B, S, O]; cells [B, S-d, N_t] -> [B, S-d, N_t]."""
    if c.shape[0] * c.shape[1] * weight.shape[0] * weight.shape[1] <= MOST_NUMBERS:
        every = torch.einsum("bjo,tro->bjtr", c, weight.to(c.dtype))
        return lambda d, cells: every[:, d:].gather(3, cells.unsqueeze(3)).squeeze(3)
    return lambda d, cells: dot(c[:, d:].flatten(0, 1), weight, cells.flatten(0, 1)).view(cells.shape)


def in_pieces(indices: Tensor, weight: Tensor, run: Callable[[slice], Tensor]) -> Tensor:
    """What `run` makes of each piece of the batch, joined: a piece's rows stay below MOST_NUMBERS."""
    size = max(1, MOST_NUMBERS // max(1, weight.shape[0] * weight.shape[2]))
    pieces = [run(slice(start, start + size)) for start in range(0, max(indices.shape[0], 1), size)]
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0]


def output_dtype(node: Node) -> torch.dtype:
    return node.fn._input_metadata[0].dtype


register(LutOp(), *nodes_of("lut"))
register(AttentionOp(), *nodes_of("lut_attention"))

"""Relevance through lookup tables: the rules of `LUT` and `LUTAttention` for `lutetia.relevance`.

y_o = Σ_t W[t, index_t, o]: detector t gets R_t = Σ_o W[t, index_t, o] · c_o, with c_o = R_o / (y_o + ε·sgn y_o). Comparison r
decides D_r = Σ_o c_o (W[t, index, o] - W[t, index ^ (1 << r), o]): for R_t, or against it. R_t goes to the anchor pairs in
proportion to |D_r|, equally if none decides anything, and half of a pair's part to each of its two inputs. In LUT attention the
same holds for every pair of positions and detector: the bits are those found at j, at i, and those of their distance.

With `relevance.Decisive` each of n comparisons gets D_r / n first, and they share what is left of R_t so. And where x was
computed, the two inputs of a pair share in proportion to |x|: the rules below divide by x, so half of a part at a number near
zero would come out of them huge.

B batch · S sequence length · I inputs · O outputs · N_t detectors · N_c anchor pairs · N_pe positional bits · R rows.
The relevance part asks for this module when it meets a node of theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia.lut.attention_ops import like_positions
from lutetia.lut.ops import synapses_of
from lutetia.lut.reference import rows_of
from lutetia.lut.reference_seq import pairs_of
from lutetia.lut.sums import sum_dtype
from lutetia.relevance.graph import Node, Relevance, unknown
from lutetia.relevance.registry import Args, Given, Op, divide, register
from lutetia.relevance.rules.choices import Decisive

MOST_NUMBERS = 1 << 24  # in one scratch tensor; larger batches are done in pieces


class Saved(NamedTuple):
    """What the forward pass of a layer kept, whatever way its gradient takes."""

    weight: Tensor | None  # [N_t, R, O] or [n_weights]; None where no gradient goes to the inputs
    indices: Tensor  # [B, N_t] or [B, S, N_t]
    pe_indices: Tensor | None  # [S-1, N_t]
    anchors: Tensor | None  # [N_t, N_c, 2]
    synapses: tuple[Any, ...]  # start, targets, meta, header; () when fully connected


def saved_by_lut(fn: Any) -> Saved:
    """Of `lut`, `lut_sparse`, and the layers with sparse gradients or steps in place."""
    tensors = fn.saved_tensors
    if hasattr(fn, "call"):
        indices, weight, _, _, anchors = tensors if len(tensors) > 1 else (tensors[0], *[None] * 4)
        return Saved(weight, indices, None, anchors, fn.call.synapses)
    first, wiring = tensors[: fn.n_for_x], tensors[fn.n_for_x :]
    weight, indices, _, _, anchors = first if len(first) > 1 else (None, first[0], *[None] * 3)
    return Saved(weight, indices, None, anchors, (*wiring, fn.rest[0]) if wiring else ())


def saved_by_attention(fn: Any) -> Saved:
    """Of `lut_attention`, in all its ways."""
    tensors = fn.saved_tensors
    first, wiring = tensors[: fn.n_saved], tensors[fn.n_saved :]
    header = fn.setup.synapses[3] if hasattr(fn, "setup") else fn.options[0]
    synapses = (*wiring, header) if header else ()
    if fn.wants_inputs:
        return Saved(first[0], first[1], first[4], first[7], synapses)
    return Saved(None, first[0], first[1], None, synapses)


class Token(Op):
    """The scalar that stands for the weight of a layer with steps in place: it has no value of its own."""

    def result(self, node: Node) -> Relevance | None:
        return torch.zeros(())

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return [None] * len(node.edges)


class Tables(Op):
    """What all layers share: their tables, and the relevance that goes to them."""

    def family(self, node: Node) -> str:
        return "sum"

    def reads_data(self, node: Node) -> bool:
        return True  # indices, if nothing else

    def needs(self, node: Node) -> list[int]:
        return [0] if is_decisive(node) and is_computed(node) else []

    def weight(self, node: Node, weight: Tensor | None, synapses: tuple[Any, ...]) -> Tensor:
        """The tables [N_t, R, O], of a weight that was kept or is an input of the node."""
        if weight is None:
            at = next((at for at, edge in enumerate(node.edges) if edge is not None and edge.child.is_weight), None)
            weight = None if at is None else node.operands()[at]
        if weight is None:
            raise unknown(node, "the tables were not kept, as no gradient goes to the inputs")
        weight = weight.detach()
        return synapses_of(*synapses).expand(weight) if synapses else weight

    def like_weight(self, node: Node, at: int, synapses: tuple[Any, ...], tables: Tensor) -> Tensor:
        """The relevance of tables [N_t, R, O], shaped like the weight, which is the input `at`."""
        edge = node.edges[at]
        assert edge is not None
        flat = synapses_of(*synapses).flatten(tables) if synapses else tables
        return flat.to(edge.child.fn._input_metadata[edge.nr].dtype)


class LutOp(Tables):
    """`LUT`: x [B, I], weight -> y [B, O]."""

    def result(self, node: Node) -> Relevance | None:
        saved = saved_by_lut(node.fn)
        weight = self.weight(node, saved.weight, saved.synapses)
        return in_pieces(saved.indices, weight, lambda at: rows_of(weight, saved.indices[at]).sum(1)).to(output_dtype(node))

    def relevance(self, node: Node, R: Tensor, args: Args) -> Given:
        saved = saved_by_lut(node.fn)
        weight = self.weight(node, saved.weight, saved.synapses)
        c = divide(R, node.output(), node.choice.eps).to(sum_dtype(weight))  # type: ignore[arg-type]
        given: list[Tensor | None] = [None] * len(node.edges)
        if 0 in node.walked:
            sizes = sizes_of(node, args)
            x = in_pieces(saved.indices, weight, lambda at: self._to_inputs(node, saved, weight, c[at], at, sizes))
            given[0] = x.to(node.fn.x_dtype)
        if 1 in node.walked:
            counted = torch.zeros_like(weight, dtype=c.dtype)
            detectors = torch.arange(weight.shape[0], device=weight.device).expand_as(saved.indices)
            counted.index_put_((detectors, saved.indices.long()), c[:, None].expand(-1, weight.shape[0], -1), accumulate=True)
            given[1] = self.like_weight(node, 1, saved.synapses, counted * weight)
        return given

    def _to_inputs(self, node: Node, saved: Saved, weight: Tensor, c: Tensor, at: slice, sizes: Tensor | None) -> Tensor:
        """A piece of the batch: c [B, O] -> relevance [B, I]."""
        assert saved.anchors is not None
        anchors, indices = saved.anchors.long(), saved.indices[at]
        worth = dot(c, weight, indices)
        decided = torch.stack([worth - dot(c, weight, indices ^ (1 << r)) for r in range(anchors.shape[1])], -1)
        x = c.new_zeros(c.shape[0], node.fn.n_inputs)
        to_anchors(x, anchors, to_bits(node, worth, decided), None if sizes is None else sizes[at])
        return x


class AttentionOp(Tables):
    """`LUTAttention`: x [B, S, I], weight, positions [L-1, N_t or 1, N_pe] -> y [B, S, O]."""

    def result(self, node: Node) -> Relevance | None:
        saved = saved_by_attention(node.fn)
        weight = self.weight(node, saved.weight, saved.synapses)
        assert saved.pe_indices is not None
        y = weight.new_zeros(*saved.indices.shape[:2], weight.shape[2], dtype=sum_dtype(weight))
        for d, cells in pairs_of(saved.indices, saved.pe_indices, node.fn.positional_dim, node.fn.n_anchors):
            y[:, d:] += rows_of(weight, cells.flatten(0, 1)).sum(1).unflatten(0, cells.shape[:2])
        return y.to(output_dtype(node))

    def relevance(self, node: Node, R: Tensor, args: Args) -> Given:
        fn, saved = node.fn, saved_by_attention(node.fn)
        weight = self.weight(node, saved.weight, saved.synapses)
        assert saved.pe_indices is not None
        n_anchors, n_pe = fn.n_anchors, fn.positional_dim
        c = divide(R, node.output(), node.choice.eps).to(sum_dtype(weight))  # type: ignore[arg-type]
        worths, sizes = _dots(c, weight), sizes_of(node, args)
        x = c.new_zeros(*c.shape[:2], fn.n_inputs)
        positions = c.new_zeros(*saved.pe_indices.shape, n_pe)
        counted = torch.zeros_like(weight, dtype=c.dtype) if 1 in node.walked else None
        for d, cells in pairs_of(saved.indices, saved.pe_indices, n_pe, n_anchors):
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
        return self._given(node, saved, x, positions, None if counted is None else counted * weight)

    def _given(self, node: Node, saved: Saved, x: Tensor, positions: Tensor, tables: Tensor | None) -> Given:
        fn = node.fn
        given: list[Tensor | None] = [None] * len(node.edges)
        if 0 in node.walked:
            given[0] = x.to(fn.dtype)
        if tables is not None:
            given[1] = self.like_weight(node, 1, saved.synapses, tables)
        if 3 in node.walked:
            given[3] = like_positions(positions, fn.positions_shape).to(fn.positions_dtype)
        return given


class _Either(Op):
    """Nodes whose name both layers use: those of sparse gradients and of steps in place."""

    def __init__(self, lut: LutOp, attention: AttentionOp) -> None:
        self._lut, self._attention = lut, attention

    def _of(self, node: Node) -> Tables:
        return self._attention if hasattr(node.fn, "setup") else self._lut

    def family(self, node: Node) -> str:
        return self._of(node).family(node)

    def reads_data(self, node: Node) -> bool:
        return True

    def needs(self, node: Node) -> list[int]:
        return self._of(node).needs(node)

    def result(self, node: Node) -> Relevance | None:
        return self._of(node).result(node)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return self._of(node).relevance(node, R, args)


def is_decisive(node: Node) -> bool:
    """Whether the finer sharing was chosen."""
    return isinstance(node.rules.sum, Decisive)


def is_computed(node: Node) -> bool:
    """Whether x, the first input, is more than an input of the model seen through views and activations."""
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
    """What each bit gets of a detector's relevance: worth [...], what a bit decides, decided [..., n] -> [..., n]."""
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

    x [..., I], anchors [N_t, N_c, 2], parts [..., N_t, N_c], sizes [..., I].
    """
    flat, parts = anchors.reshape(-1, 2), parts.flatten(-2)
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


_LUT, _ATTENTION = LutOp(), AttentionOp()
register(_LUT, "GeneratedBackwardFor_lutetia_lut_defaultBackward", "GeneratedBackwardFor_lutetia_lut_sparse_defaultBackward")
register(_ATTENTION, "GeneratedBackwardFor_lutetia_lut_attention_defaultBackward")
register(_Either(_LUT, _ATTENTION), "_SparseGradientBackward", "_InPlaceBackward")
register(Token(), "TokenBackward", "_TokenBackward")

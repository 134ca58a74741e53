"""Decoding with LUT attention: what must be kept of earlier positions is one small integer per detector, and nothing else.

A new position j reads the cells it forms with all i < j: O(j · N_t · O) work, from the K indices of the cache, the Q index of the
new input and the PE index of each distance. Without positions a cell is the same at any distance: then it is enough to know how
often each of the C = 2**N_c indices was seen, and a step that has more than C earlier positions costs O(C · N_t · O).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lutetia._uncompiled import uncompiled
from lutetia.errors import ArgumentError, check_tensor, fail
from lutetia.lut import backend
from lutetia.lut.anchors import INTEGER_DTYPES, check_int
from lutetia.lut.attention import Options, check_lengths, check_tensors
from lutetia.lut.attention_ops import NO_SYNAPSES, Call, check_sequences, n_outputs_of, positions_of, sizes_of
from lutetia.lut.functional import Wiring
from lutetia.lut.reference import rows_of
from lutetia.lut.reference_seq import anchors_of_rows
from lutetia.lut.sums import convert_integers_to_floats, sum_dtype, to_fixed

NUMBERS_AT_ONCE = 1 << 24  # numbers of scratch: pairs are taken in turns of so many


class IndexCache:
    """The indices of the positions seen so far.

    indices   int16 [B, N_t, max_length]; an index has at most 12 bits
    lengths   int64 [B], in the memory of the host: how many positions of each row are filled
    counts    int32 [B, N_t, C]: how often each index was seen, once a step has asked for it
    """

    def __init__(self, batch: int, n_detectors: int, max_length: int, device: torch.device | str | None = None) -> None:
        check_int("batch", batch, 0)
        check_int("n_detectors", n_detectors, 1)
        check_int("max_length", max_length, 1)
        self.indices = torch.zeros(batch, n_detectors, max_length, dtype=torch.int16, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.int64)
        self.counts: Tensor | None = None
        self.counted = torch.zeros_like(self.lengths)  # the lengths that counts stand for

    @property
    def max_length(self) -> int:
        """How many positions a row has room for."""
        return self.indices.shape[2]

    def reset(self) -> None:
        """Forget all positions."""
        self.lengths.zero_()
        self.counts = None

    def reorder(self, index: Tensor) -> None:
        """Make row b the former row index[b]: index, an integer tensor [any B], may repeat rows or leave some out."""
        check_tensor("index", index, ["B"], INTEGER_DTYPES)
        index = index.long()
        rows = index.cpu()
        if bool(((rows < 0) | (rows >= len(self.lengths))).any()):
            fail("index", rows.tolist(), f"rows from 0 to {len(self.lengths) - 1}")
        index = index.to(self.indices.device)
        self.indices, self.lengths, self.counted = self.indices[index], self.lengths[rows], self.counted[rows]
        self.counts = None if self.counts is None else self.counts[index]

    def count(self, n_cells: int) -> Tensor:
        """`counts` for indices below n_cells, brought up to date: steps that did not ask for them are counted now."""
        if self.counts is None or not torch.equal(self.counted, self.lengths):
            held = (torch.arange(self.max_length) < self.lengths[:, None]).to(self.indices.device, torch.int32)
            self.counts = held.new_zeros(*self.indices.shape[:2], n_cells)
            self.counts.scatter_add_(2, self.indices.long(), held.unsqueeze(1).expand(self.indices.shape))
            self.counted = self.lengths.clone()
        return self.counts

    def note(self, row: Tensor, indices: Tensor | None) -> None:
        """Keep `counts` in step with `lengths`: rows [n], no two the same, got the indices [n, N_t], or None: forget them."""
        if indices is None or self.counts is None:
            self.counts = None
            return
        seen = indices.long().unsqueeze(-1)
        self.counts[row] = self.counts[row].scatter_add(2, seen, torch.ones_like(seen, dtype=torch.int32))
        self.counted = self.lengths.clone()

    def __repr__(self) -> str:
        return f"IndexCache(lengths={self.lengths.tolist()}, max_length={self.max_length})"


@uncompiled("decoding with an index cache depends on how full the cache is")
@torch.no_grad()
def decode(
    x: Tensor,
    cache: IndexCache,
    weight: Tensor,
    anchors: Tensor,
    positions: Tensor,
    lengths: Tensor | None,
    wiring: Wiring | None,
    options: Options,
) -> Tensor:
    """y of new positions, whose indices join the cache: x [B, s, I] -> y [B, s, O], without gradients.

    `lengths` [B] says how many of the s are new in each row, all when None; y is zero past them.
    """
    new = _check(x, cache, weight, anchors, positions, lengths, wiring)
    check_sequences(x, anchors)
    call = _call(x, weight, anchors, positions, wiring, options)
    row, at = _tokens(new)
    earlier = cache.lengths[row] + at
    fresh = not bool(cache.lengths.any())
    reached = x.shape[1] if fresh else int(earlier.max()) + 1 if len(earlier) else 1
    pe_indices = call.kernels.check_positions_eval(positions_of(positions, reached, anchors.shape[0], sum_dtype(x)))
    indices = call.kernels.check_detectors_eval(x.contiguous(), anchors.contiguous())

    here = (row.to(x.device), at.to(x.device))
    # Past its length a row holds nothing: what is written there counts only once the length says so, at the end.
    cache.indices[here[0], :, earlier.to(x.device)] = indices[here].short()
    n_cells = 1 << anchors.shape[1]
    by_counts = _counts_serve(call, positions.shape[2], new, earlier, n_cells) and not fresh
    if fresh:
        filled = call.fill(weight.contiguous(), indices, pe_indices, positions.shape[2])[here]
    elif by_counts:
        filled = _fill_by_counts(call, weight.contiguous(), cache.count(n_cells)[here[0]], indices[here])
    else:
        filled = _fill(call, weight.contiguous(), cache, indices[here], pe_indices, row, earlier, positions.shape[2])
    y = filled.new_zeros(*x.shape[:2], filled.shape[-1])
    y[here] = filled
    cache.lengths += new
    cache.note(here[0], indices[here] if by_counts else None)
    return y.to(torch.promote_types(x.dtype, weight.dtype))


def _call(x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, wiring: Wiring | None, options: Options) -> Call:
    synapses = NO_SYNAPSES if wiring is None else (*wiring.tensors, wiring.header)
    sizes = sizes_of((*x.shape[:2], len(anchors)), n_outputs_of(weight, synapses[3]), anchors.shape[1], positions.shape[2])
    return Call.of((*synapses, *options, backend.chosen), x, sizes, sum_dtype(weight))


def _tokens(new: Tensor) -> tuple[Tensor, Tensor]:
    """Every new position: its row, and its place among the new ones of that row. new [B] -> two of [n], on the host."""
    row = torch.repeat_interleave(torch.arange(len(new)), new)
    return row, torch.arange(len(row)) - (new.cumsum(0) - new)[row]


def _fill(
    call: Call,
    weight: Tensor,
    cache: IndexCache,
    q: Tensor,
    pe_indices: Tensor,
    row: Tensor,
    earlier: Tensor,
    positional_dim: int,
) -> Tensor:
    """y of n new positions: q [n, N_t], pe_indices [L-1, N_t]; on the host row [n] and how many come before it, earlier [n]."""
    exact, dtype, device = call.options["sums"] == "fixed", sum_dtype(weight), weight.device
    table = call.synapses.expand(weight) if exact and call.synapses is not None else weight
    n_rows, n_outputs = weight.shape[1:] if call.synapses is None else (call.synapses.n_rows, call.synapses.n_outputs)
    q_shift = positional_dim + anchors_of_rows(n_rows, positional_dim)
    y = torch.zeros(len(row), n_outputs, dtype=torch.int64 if exact else dtype, device=device)
    width = n_outputs * q.shape[1] if exact else max(n_outputs, q.shape[1])
    for some in _turns(earlier, NUMBERS_AT_ONCE // width):
        token, i = _tokens(earlier[some])  # all pairs: the number of the new position, and i
        token += some.start
        distance = (earlier[token] - i).to(device)
        b, token, i = row[token].to(device), token.to(device), i.to(device)
        cells = q[token] << q_shift | cache.indices[b, :, i].int() << positional_dim | pe_indices[distance - 1]
        y.index_add_(0, token, _addends(call, table, cells, exact))
    return convert_integers_to_floats(y, call.options["int_rescaler"], dtype) if exact else y


def _counts_serve(call: Call, positional_dim: int, new: Tensor, earlier: Tensor, n_cells: int) -> bool:
    """Whether counts say all about the earlier positions, and in fewer numbers; on the host new [B], earlier [n]."""
    plain = positional_dim == 0 and call.synapses is None
    return plain and len(earlier) > 0 and int(new.max()) == 1 and int(earlier.max()) > n_cells


def _fill_by_counts(call: Call, weight: Tensor, counts: Tensor, q: Tensor) -> Tensor:
    """y of n new positions, each in a row of its own: counts [n, N_t, C] of what came before, q [n, N_t]."""
    exact, dtype = call.options["sums"] == "fixed", sum_dtype(weight)
    (n_new, n_detectors, n_cells), n_outputs = counts.shape, weight.shape[2]
    tables = weight.view(n_detectors, n_cells, n_cells, n_outputs)  # by Q, then K
    t = torch.arange(n_detectors, device=weight.device)
    y = torch.empty(n_new, n_outputs, dtype=torch.int64 if exact else dtype, device=weight.device)
    at_once = max(1, NUMBERS_AT_ONCE // (n_detectors * n_cells * n_outputs))
    for begin in range(0, n_new, at_once):
        some = slice(begin, begin + at_once)
        rows = tables[t, q[some].long()].to(dtype)  # [some, N_t, C, O]
        if exact:
            y[some] = (to_fixed(rows, call.options["int_rescaler"]) * counts[some].unsqueeze(-1)).sum((1, 2))
        else:
            y[some] = torch.einsum("ntc,ntco->no", counts[some].to(dtype), rows)
    return convert_integers_to_floats(y, call.options["int_rescaler"], dtype) if exact else y


def _turns(earlier: Tensor, limit: int) -> Iterator[slice]:
    """Runs of new positions with no more than `limit` pairs together, or of a single one: earlier [n]."""
    begin, pairs = 0, 0
    for end, count in enumerate(earlier.tolist()):
        if end > begin and pairs + count > limit:
            yield slice(begin, end)
            begin, pairs = end, 0
        pairs += count
    if begin < len(earlier):
        yield slice(begin, len(earlier))


def _addends(call: Call, table: Tensor, cells: Tensor, exact: bool) -> Tensor:
    """What each pair adds, over all detectors: cells [n, N_t] -> [n, O], in units when the sum is exact."""
    if exact:
        return to_fixed(rows_of(table, cells), call.options["int_rescaler"]).sum(1)
    if call.synapses is None:
        return call.kernels.fill_outputs_fc(table, cells, **call.options)
    return call.kernels.fill_outputs_sparse(table, cells, call.synapses, **call.options)


def _check(
    x: Any,
    cache: Any,
    weight: Tensor,
    anchors: Tensor,
    positions: Tensor,
    lengths: Tensor | None,
    wiring: Wiring | None,
) -> Tensor:
    """How many positions are new in each row, int64 [B] on the host, once all is known to fit."""
    if not isinstance(cache, IndexCache):
        fail("cache", cache, "an IndexCache, made with new_cache")
    check_tensors(x, weight, anchors, positions, wiring)
    check_tensor("cache.indices", cache.indices, [x.shape[0], anchors.shape[0], "max_length"], device=x.device)
    if cache.max_length > positions.shape[0] + 1:
        fail("cache", cache, f"a max_length of at most {positions.shape[0] + 1}, that of the layer")
    if lengths is not None:
        check_lengths(lengths, x)
    new = torch.full((x.shape[0],), x.shape[1]) if lengths is None else lengths.cpu().long()
    over = cache.lengths + new > cache.max_length
    if bool(over.any()):
        b = int(over.nonzero()[0])
        raise ArgumentError(
            f"row {b} of the cache holds {int(cache.lengths[b])} positions and x brings {int(new[b])} more, "
            f"expected no more than max_length {cache.max_length} together"
        )
    return new

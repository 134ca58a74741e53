"""Decoding with LUT attention: only one small integer per detector is kept of each earlier position.

A new position j reads the cells it forms with all i < j: O(j · N_t · O) work, from the K indices of the cache, the Q index of the
new input and the PE index of each distance. Without positions a cell is the same at any distance: then it is enough to know how
often each of the C = 2**N_c indices was seen, and a step that has more than C earlier positions costs O(C · N_t · O).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia._shared.dtypes import FLOATS, INTEGER_DTYPES
from lutetia._shared.memo import Memo
from lutetia._uncompiled import uncompiled
from lutetia.errors import ArgumentError, check_int, check_memory, check_tensor, fail
from lutetia.lut.api import Options, Tables, check_attention, check_lengths
from lutetia.lut.autograd.how import How
from lutetia.lut.autograd.ops import output_dtype, positions_of, ready, solid, with_algorithm
from lutetia.lut.connectivity.full import Connectivity, Full
from lutetia.lut.kernels import choice
from lutetia.lut.kernels.backend import Backend
from lutetia.lut.kernels.protocol import Detected, Sequence
from lutetia.lut.kernels.reference.rows import rows_of
from lutetia.lut.sums import from_units, sum_dtype, to_units

HOST = torch.device("cpu")
NUMBERS_AT_ONCE = 1 << 24  # numbers of scratch: pairs are taken in turns of this many


class IndexCache:
    """The indices of the positions seen so far.

    indices   int16 [B, N_t, max_length]; an index has at most 12 bits
    lengths   int64 [B], in the memory of the host: how many positions of each row are filled
    counts    int32 [B, N_t, C]: how often each index was seen, once a step has asked for it
    owner     the anchors that made the indices, None while it is empty: another layer's indices mean something else
    """

    def __init__(self, batch: int, n_detectors: int, max_length: int, device: torch.device | str | None = None) -> None:
        check_int("batch", batch, 0)
        check_int("n_detectors", n_detectors, 1)
        check_int("max_length", max_length, 1)
        self.indices = torch.zeros(batch, n_detectors, max_length, dtype=torch.int16, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.int64)
        self.counts: Tensor | None = None
        self._counted = torch.zeros_like(self.lengths)  # the lengths that counts stand for
        self.owner: int | None = None
        self._places: tuple[weakref.ref[Tensor], int, Tensor] | None = None

    @property
    def max_length(self) -> int:
        """How many positions a row has room for."""
        return self.indices.shape[2]

    @property
    def nbytes(self) -> int:
        """The bytes of the indices."""
        return self.indices.nbytes

    def reset(self) -> None:
        """Forget all positions."""
        self.lengths.zero_()
        self.counts = self.owner = None

    clear = reset  # under the name that all caches have

    def reorder(self, index: Tensor) -> None:
        """Make row b the former row index[b]: index, an integer tensor [any B], may repeat rows or leave some out."""
        rows = rows_in(index, len(self.held()))
        index = rows.to(self.indices.device)
        self.indices, self.lengths, self._counted = self.indices[index], self.lengths[rows], self._counted[rows]
        self.counts = None if self.counts is None else self.counts[index]

    def check(self, x: Tensor, anchors: Tensor) -> list[int]:
        """How many positions each row holds, once the cache is known to be that of x [B, S, I] and of these anchors."""
        check_tensor("cache.indices", self.indices, [len(x), len(anchors), "max_length"], torch.int16, x.device)
        check_tensor("cache.lengths", self.lengths, [len(x)], torch.int64, HOST)
        if not (self.indices.is_contiguous() and self.lengths.is_contiguous()):
            fail("cache.indices", self.indices, "contiguous tensors, as new_cache makes them")
        held = self.lengths.tolist()
        for row, length in enumerate(held):
            if not 0 <= length <= self.max_length:
                raise ArgumentError(f"lengths of the cache has {length} in row {row}, expected 0 to {self.max_length}")
        if self.owner not in (None, fingerprints.get((anchors,), None)):
            raise ArgumentError("the cache holds indices from other anchors, expected those of this layer: reset() clears them")
        return held

    def held(self) -> list[int]:
        """How many positions each row holds."""
        check_tensor("cache.indices", self.indices, ["B", "n_detectors", "max_length"], torch.int16)
        check_tensor("cache.lengths", self.lengths, [len(self.indices)], torch.int64, HOST)
        return self.lengths.tolist()

    def grow(self, new: Tensor | int, anchors: Tensor) -> None:
        """Count new positions [B], or as many of every row, whose indices are there already."""
        self.lengths += new
        self.owner = fingerprints.get((anchors,), None)

    def count(self, n_cells: int) -> Tensor:
        """`counts` for indices below n_cells, brought up to date: steps that did not need them are counted now."""
        shape, counts = (*self.indices.shape[:2], n_cells), self.counts
        sound = isinstance(counts, Tensor) and counts.shape == shape and counts.dtype == torch.int32
        if counts is None or not sound or not torch.equal(self._counted, self.lengths):
            held = (torch.arange(self.max_length) < self.lengths[:, None]).to(self.indices.device, torch.int32)
            counts = held.new_zeros(shape)
            # Past its length a row may hold anything.
            seen = self.indices.long() & (n_cells - 1)
            counts.scatter_add_(2, seen * held.unsqueeze(1), held.unsqueeze(1).expand(self.indices.shape))
            self.counts, self._counted = counts, self.lengths.clone()
        return counts

    def note(self, row: Tensor, indices: Tensor | None) -> None:
        """Keep `counts` in step with `lengths`: rows [n], no two the same, got the indices [n, N_t], or None: forget them."""
        if indices is None or self.counts is None:
            self.counts = None
            return
        seen = indices.long().unsqueeze(-1)
        self.counts[row] = self.counts[row].scatter_add(2, seen, torch.ones_like(seen, dtype=torch.int32))
        self._counted = self.lengths.clone()

    def places_of(self, positions: Tensor, kernels: Backend) -> Tensor:
        """The PE indices of all distances, the longest first, int32 [N_t, max_length - 1]; made anew when positions change."""
        version = -1 if positions.is_inference() else positions._version
        if self._places is None or self._places[0]() is not positions or self._places[1] != version:
            n_detectors, length = self.indices.shape[1:]
            signs = kernels.detect_positions(positions_of(positions, length, n_detectors, positions.dtype), False).indices
            self._places = (weakref.ref(positions), version, signs.flip(0).t().contiguous())
        return self._places[2]

    def __repr__(self) -> str:
        return f"IndexCache(lengths={self.lengths.tolist()}, max_length={self.max_length})"


# What tells anchors from others: a number made of their values, once per tensor and version.
fingerprints = Memo(lambda anchors, _: hash((tuple(anchors.shape), anchors.cpu().numpy().tobytes())))


def rows_in(index: Any, batch: int) -> Tensor:
    """index, an integer tensor [any B] that names rows of a cache of `batch`, as int64 on the host."""
    check_tensor("index", index, ["B"], INTEGER_DTYPES)
    check_memory("index", index)
    rows = index.long().cpu()
    if bool(((rows < 0) | (rows >= batch)).any()):
        fail("index", rows.tolist(), f"rows from 0 to {batch - 1}")
    return rows


@uncompiled("decoding with an index cache depends on how full the cache is")
@torch.no_grad()
def decode(x: Tensor, cache: IndexCache, tables: Tables, lengths: Tensor | None, options: Options) -> Tensor:
    """y of new positions, whose indices join the cache: x [B, s, I] -> y [B, s, O], without gradients.

    `lengths` [B] says how many of the s are new in each row, all when None; y is zero past them.
    """
    if not isinstance(cache, IndexCache):
        fail("cache", cache, "an IndexCache, made with new_cache")
    held = cache.check(x, tables.anchors)
    if _is_step(x, cache, tables, lengths, options, max(held, default=0)):
        return _step(x, cache, tables)
    return _decode(x, cache, tables, lengths, options)


# ---- one new position of each row ------------------------------------------------------------------------------------


def _is_step(x: Tensor, cache: IndexCache, tables: Tables, lengths: Tensor | None, options: Options, longest: int) -> bool:
    """Whether this is one new position of each row, for which `fill_step` serves, and all fits; rows hold up to `longest`."""
    weight, anchors, wiring, positions, _ = tables
    if lengths is not None or wiring is not None or options.sums.exact:
        return False
    if x.shape[1] != 1 or x.dtype not in FLOATS or weight.dtype not in FLOATS or positions is None or positions.dim() != 3:
        return False
    if positions.shape[1] not in (1, len(anchors)) or positions.device != x.device or positions.dtype not in FLOATS:
        return False
    if weight.is_cuda and sum_dtype(weight) != weight.dtype:  # there, `fill_step` adds in the dtype of the table
        return False
    if not 1 < cache.max_length <= positions.shape[0] + 1 or not len(x) or x.device != weight.device:
        return False
    n_rows = 1 << (2 * anchors.shape[1] + positions.shape[2])
    if weight.dim() != 3 or weight.shape[:2] != (len(anchors), n_rows) or len(anchors) * n_rows >= 2**31:
        return False
    counted = positions.shape[2] == 0 and longest > 1 << anchors.shape[1]  # counts are fewer than positions
    return not counted and longest < cache.max_length


def _step(x: Tensor, cache: IndexCache, tables: Tables) -> Tensor:
    """x [B, 1, I] -> y [B, 1, O]."""
    weight, anchors, _, positions, _ = tables
    assert positions is not None
    kernels, anchors = choice.backend_for(choice.chosen, x), ready(x, anchors).anchors
    held = (cache.indices, cache.lengths, cache.places_of(positions, kernels))
    y = kernels.fill_step(solid(x.squeeze(1)), solid(weight.detach()), anchors, *held)
    cache.grow(1, tables.anchors)
    return y.unsqueeze(1).to(output_dtype(x, weight))


# ---- any number of new positions -------------------------------------------------------------------------------------


class DecodingLayer(NamedTuple):
    """A layer, and what runs it."""

    kernels: Backend
    how: How
    weight: Tensor
    connectivity: Connectivity
    n_anchors: int
    positional_dim: int


def _decode(x: Tensor, cache: IndexCache, tables: Tables, lengths: Tensor | None, options: Options) -> Tensor:
    new = _check(x, cache, tables, lengths)
    weight, anchors, wiring, positions, _ = tables
    assert positions is not None
    header = "" if wiring is None else wiring.header
    how = How(options.sums, choice.chosen, header=header, algorithm=options.algorithm, products=options.products)
    connectivity = how.connectivity(tables.wires, weight.shape)
    layer = DecodingLayer(how.kernels(x), how, solid(weight), connectivity, anchors.shape[1], positions.shape[2])
    row, at = _tokens(new)
    earlier = cache.lengths[row] + at
    fresh = not bool(cache.lengths.any())
    reached = x.shape[1] if fresh else int(earlier.max()) + 1 if len(earlier) else 1
    places = positions_of(positions, reached, len(anchors), sum_dtype(x))
    pe_indices = layer.kernels.detect_positions(places, False).indices
    indices = layer.kernels.detect(solid(x), ready(x, anchors), False).indices

    here = (row.to(x.device), at.to(x.device))
    # Past its length a row holds nothing: what is written there counts only once the length says so, at the end.
    cache.indices[here[0], :, earlier.to(x.device)] = indices[here].short()
    n_cells = 1 << layer.n_anchors
    # Counts say all about the earlier positions where there are no distances, and are fewer numbers where those are many.
    plain = layer.positional_dim == 0 and isinstance(layer.connectivity, Full) and len(earlier) > 0 and not fresh
    by_counts = plain and int(new.max()) == 1 and int(earlier.max()) > n_cells
    if fresh:
        sequence = Sequence(Detected(indices), Detected(pe_indices), layer.n_anchors, layer.positional_dim)
        sequence = with_algorithm(sequence, how, connectivity.n_outputs, layer.weight)
        filled = layer.kernels.fill_sequence(layer.weight, connectivity, sequence, how.sums)[here]
    elif by_counts:
        filled = _fill_by_counts(layer, cache.count(n_cells)[here[0]], indices[here])
    else:
        filled = _fill(layer, cache, indices[here], pe_indices, row, earlier)
    y = filled.new_zeros(*x.shape[:2], filled.shape[-1])
    y[here] = filled
    cache.grow(new, tables.anchors)
    cache.note(here[0], indices[here] if by_counts else None)
    return y.to(output_dtype(x, layer.weight))


def _tokens(new: Tensor) -> tuple[Tensor, Tensor]:
    """Every new position: its row, and its place among the new ones of that row. new [B] -> two of [n], on the host."""
    row = torch.repeat_interleave(torch.arange(len(new)), new)
    return row, torch.arange(len(row)) - (new.cumsum(0) - new)[row]


def _fill(layer: DecodingLayer, cache: IndexCache, q: Tensor, pe_indices: Tensor, row: Tensor, earlier: Tensor) -> Tensor:
    """y of n new positions: q [n, N_t], pe_indices [L-1, N_t]; on the host row [n] and how many come before it, earlier [n]."""
    dtype, device, n_outputs = sum_dtype(layer.weight), layer.weight.device, layer.connectivity.n_outputs
    exact = layer.how.sums.exact
    table = layer.connectivity.expand(layer.weight) if exact else layer.weight
    q_shift = layer.positional_dim + layer.n_anchors
    y = torch.zeros(len(row), n_outputs, dtype=torch.int64 if exact else dtype, device=device)
    width = n_outputs * q.shape[1] if exact else max(n_outputs, q.shape[1])
    for some in _turns(earlier, NUMBERS_AT_ONCE // width):
        token, i = _tokens(earlier[some])  # all pairs: the number of the new position, and i
        token += some.start
        distance = (earlier[token] - i).to(device)
        b, token, i = row[token].to(device), token.to(device), i.to(device)
        k = cache.indices[b, :, i].int() & ((1 << layer.n_anchors) - 1)  # on CUDA nobody has looked at them
        cells = q[token] << q_shift | k << layer.positional_dim | pe_indices[distance - 1]
        if exact:
            addends = to_units(rows_of(table, cells), layer.how.sums).sum(1)
        else:
            addends = layer.kernels.fill_rows(table, layer.connectivity, cells, None, layer.how.sums)
        y.index_add_(0, token, addends)
    return from_units(y, layer.how.sums, dtype)


def _fill_by_counts(layer: DecodingLayer, counts: Tensor, q: Tensor) -> Tensor:
    """y of n new positions, each in a row of its own: counts [n, N_t, C] of what came before, q [n, N_t]."""
    weight, dtype, exact = layer.weight, sum_dtype(layer.weight), layer.how.sums.exact
    (n_new, n_detectors, n_cells), n_outputs = counts.shape, weight.shape[2]
    tables = weight.view(n_detectors, n_cells, n_cells, n_outputs)  # by Q, then K
    t = torch.arange(n_detectors, device=weight.device)
    y = torch.empty(n_new, n_outputs, dtype=torch.int64 if exact else dtype, device=weight.device)
    at_once = max(1, NUMBERS_AT_ONCE // (n_detectors * n_cells * n_outputs))
    for begin in range(0, n_new, at_once):
        some = slice(begin, begin + at_once)
        rows = tables[t, q[some].long()].to(dtype)  # [some, N_t, C, O]
        if exact:
            y[some] = (to_units(rows, layer.how.sums) * counts[some].unsqueeze(-1)).sum((1, 2))
        else:
            y[some] = torch.einsum("ntc,ntco->no", counts[some].to(dtype), rows)
    return from_units(y, layer.how.sums, dtype)


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


def _check(x: Tensor, cache: IndexCache, tables: Tables, lengths: Tensor | None) -> Tensor:
    """How many positions are new in each row, int64 [B] on the host, once all is known to fit."""
    check_attention(x, tables)
    assert tables.positions is not None
    longest = tables.positions.shape[0] + 1
    if cache.max_length > longest:
        fail("cache", cache, f"a max_length of at most {longest}, that of the layer")
    if lengths is not None:
        check_lengths(lengths, x)
    new = torch.full((x.shape[0],), x.shape[1]) if lengths is None else lengths.cpu().long()
    over = cache.lengths + new > cache.max_length
    if bool(over.any()):
        b = int(over.nonzero()[0])
        raise ArgumentError(
            f"row {b} of the cache holds {int(cache.lengths[b])} positions and x brings {int(new[b])} more, "
            f"expected no more than max_length {cache.max_length} in total"
        )
    if not x.is_cuda and cache.lengths.any():  # on CUDA looking would mean waiting
        held = cache.indices.where((torch.arange(cache.max_length) < cache.lengths[:, None])[:, None], 0)
        low, high, end = int(held.min()), int(held.max()), 1 << tables.anchors.shape[1]
        if low < 0 or high >= end:
            raise ArgumentError(f"the cache holds indices from {low} to {high}, expected 0 to {end - 1}: reset() it")
    return new

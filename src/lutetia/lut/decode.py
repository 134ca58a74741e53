"""Decoding with LUT attention: only one small integer per detector is kept of each earlier position.

A new position j reads the cells it forms with all i < j: O(j · N_t · O) work, from the K indices of the cache, the Q index of the
new input and the PE index of each distance. Without positions a cell is the same at any distance: then it is enough to know how
often each of the C = 2**N_c indices was seen, and a step that has more than C earlier positions costs O(C · N_t · O).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia._shared.dtypes import FLOATS, without_rounding
from lutetia._shared.memo import Memo
from lutetia._shared.ragged import check_lengths, listed, rows_in, turns_of
from lutetia._uncompiled import uncompiled
from lutetia.errors import ArgumentError, check_int, check_tensor, fail
from lutetia.lut.api import LayerDescription, check_attention
from lutetia.lut.autograd.how import How
from lutetia.lut.autograd.ops import output_dtype, positions_of, ready, solid, with_algorithm
from lutetia.lut.kernels import choice
from lutetia.lut.kernels.backend import Backend
from lutetia.lut.kernels.protocol import Full, Sequence
from lutetia.lut.kernels.reference.rows import rows_of
from lutetia.lut.sums import Sums, from_units, sum_dtype, to_units

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

    def __repr__(self) -> str:
        return f"IndexCache(lengths={self.lengths.tolist()}, max_length={self.max_length})"


# What tells anchors from others: a number made of their values, once per tensor and version.
fingerprints = Memo(lambda anchors, _: hash((tuple(anchors.shape), anchors.cpu().numpy().tobytes())))


def _places_of(positions: Tensor, how: tuple[int, int, Backend]) -> Tensor:
    length, n_detectors, kernels = how
    signs = kernels.detect_positions(positions_of(positions, length, n_detectors, positions.dtype), False).indices
    return signs.flip(0).t().contiguous()


places_seen = Memo(_places_of)  # the PE indices of all distances, the longest first, int32 [N_t, max_length - 1]


@uncompiled("decoding with an index cache depends on how full the cache is")
@torch.no_grad()
def decode(x: Tensor, cache: IndexCache, layer: LayerDescription, lengths: Tensor | None, how: How) -> Tensor:
    """y of new positions, whose indices join the cache: x [B, s, I] -> y [B, s, O], without gradients.

    `lengths` [B] says how many of the s are new in each row, all when None; y is zero past them.
    """
    if not isinstance(cache, IndexCache):
        fail("cache", cache, "an IndexCache, made with new_cache")
    held = cache.check(x, layer.anchors)
    if lengths is None and not how.sums.exact and _is_step(x, cache, layer, max(held, default=0)):
        return _step(x, cache, layer)
    return _decode(x, cache, layer, lengths, how)


# ---- one new position of each row ------------------------------------------------------------------------------------


def _is_step(x: Tensor, cache: IndexCache, layer: LayerDescription, longest: int) -> bool:
    """Whether this is one new position of each row, for which `fill_step` serves, and all fits; rows hold up to `longest`."""
    weight, anchors, connectivity, positions = layer[:4]
    if x.shape[1] != 1 or x.dtype not in FLOATS or weight.dtype not in FLOATS or not isinstance(connectivity, Full):
        return False
    if positions is None or positions.dim() != 3 or positions.shape[1] not in (1, len(anchors)):
        return False
    if positions.device != x.device or positions.dtype not in FLOATS:
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


def _step(x: Tensor, cache: IndexCache, layer: LayerDescription) -> Tensor:
    """x [B, 1, I] -> y [B, 1, O]."""
    kernels, anchors = choice.backend_for(choice.chosen, x), ready(x, layer.anchors).anchors
    places = places_seen.get((layer.positions,), (cache.max_length, len(anchors), kernels))  # type: ignore[arg-type]
    held = (cache.indices, cache.lengths, places)
    y = kernels.fill_step(solid(x.squeeze(1)), solid(layer.weight.detach()), anchors, *held)
    cache.grow(1, layer.anchors)
    return y.unsqueeze(1).to(output_dtype(x, layer.weight))


# ---- any number of new positions -------------------------------------------------------------------------------------


def _decode(x: Tensor, cache: IndexCache, layer: LayerDescription, lengths: Tensor | None, how: How) -> Tensor:
    new = _check(x, cache, layer, lengths)
    weight, anchors, connectivity, positions = layer[:4]
    assert positions is not None
    kernels, n_cells = choice.backend_for(choice.chosen, x), 1 << anchors.shape[1]
    row, at = listed(new)  # every new position: its row, and its place among the new ones of that row
    earlier = cache.lengths[row] + at
    fresh = not bool(cache.lengths.any())
    reached = x.shape[1] if fresh else int(earlier.max()) + 1 if len(earlier) else 1
    places = kernels.detect_positions(positions_of(positions, reached, len(anchors), sum_dtype(x)), False)
    detected = kernels.detect(solid(x), ready(x, anchors), False)

    here = (row.to(x.device), at.to(x.device))
    q = detected.indices[here]
    # Past its length a row holds nothing: what is written there counts only once the length says so, at the end.
    cache.indices[here[0], :, earlier.to(x.device)] = q.short()
    # Counts say all about the earlier positions where there are no distances, and are fewer numbers where those are many.
    plain = positions.shape[2] == 0 and isinstance(connectivity, Full) and len(earlier) > 0 and not fresh
    by_counts = plain and int(new.max()) == 1 and int(earlier.max()) > n_cells
    if fresh:
        sequence = Sequence(detected, places, anchors.shape[1], positions.shape[2])
        sequence = with_algorithm(sequence, how, connectivity, weight)
        filled = kernels.fill_sequence(solid(weight), connectivity, sequence, how.sums)[here]
    elif by_counts:
        filled = _fill_by_counts(solid(weight), cache.count(n_cells)[here[0]], q, how.sums)
    else:
        keys = (cache.indices, places.indices)
        filled = _fill(layer._replace(weight=solid(weight)), kernels, keys, q, (row, earlier), how.sums)
    y = filled.new_zeros(*x.shape[:2], filled.shape[-1])
    y[here] = filled
    cache.grow(new, anchors)
    cache.note(here[0], q if by_counts else None)
    return y.to(output_dtype(x, weight))


def _fill(
    layer: LayerDescription, kernels: Backend, keys: tuple[Tensor, Tensor], q: Tensor, new: tuple[Tensor, Tensor], sums: Sums
) -> Tensor:
    """y of n new positions q [n, N_t]: keys are the indices of the cache and of distances [L-1, N_t]; `new`, on the host, the row
    of each and how many come before it, [n]."""
    (weight, anchors, connectivity, positions), (indices, pe_indices), (row, earlier) = layer[:4], keys, new
    assert positions is not None
    dtype, device, n_outputs, n_pe = sum_dtype(weight), weight.device, connectivity.n_outputs, positions.shape[2]
    table = connectivity.expand(weight) if sums.exact else weight
    y = torch.zeros(len(row), n_outputs, dtype=torch.int64 if sums.exact else dtype, device=device)
    width = n_outputs * q.shape[1] if sums.exact else max(n_outputs, q.shape[1])
    for some in turns_of(earlier, NUMBERS_AT_ONCE // width):
        token, i = listed(earlier[some])  # all pairs: the number of the new position, and i
        token += some.start
        distance = (earlier[token] - i).to(device)
        b, token, i = row[token].to(device), token.to(device), i.to(device)
        k = indices[b, :, i].int() & ((1 << anchors.shape[1]) - 1)  # on CUDA nobody has looked at them
        cells = q[token] << (n_pe + anchors.shape[1]) | k << n_pe | pe_indices[distance - 1]
        if sums.exact:
            addends = to_units(rows_of(table, cells), sums).sum(1)
        else:
            addends = kernels.fill_rows(table, connectivity, cells, None, sums)
        y.index_add_(0, token, addends)
    return from_units(y, sums, dtype)


def _fill_by_counts(weight: Tensor, counts: Tensor, q: Tensor, sums: Sums) -> Tensor:
    """y of n new positions, each in a row of its own: counts [n, N_t, C] of what came before, q [n, N_t]."""
    (_, n_detectors, n_cells), n_outputs, dtype = counts.shape, weight.shape[2], sum_dtype(weight)
    tables = weight.view(n_detectors, n_cells, n_cells, n_outputs)  # by Q, then K
    t, filled = torch.arange(n_detectors, device=weight.device), []
    at_once = max(1, NUMBERS_AT_ONCE // (n_detectors * n_cells * n_outputs))
    for some, counted in zip(q.long().split(at_once), counts.split(at_once), strict=True):
        rows = tables[t, some].to(dtype)  # [some, N_t, C, O]
        if sums.exact:
            filled.append((to_units(rows, sums) * counted.unsqueeze(-1)).sum((1, 2)))
        else:
            with without_rounding():
                filled.append(torch.einsum("ntc,ntco->no", counted.to(dtype), rows))
    return from_units(torch.cat(filled), sums, dtype)


def _check(x: Tensor, cache: IndexCache, layer: LayerDescription, lengths: Tensor | None) -> Tensor:
    """How many positions are new in each row, int64 [B] on the host, once all is known to fit."""
    check_attention(x, layer.tables)
    assert layer.positions is not None
    longest = layer.positions.shape[0] + 1
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
        low, high, end = int(held.min()), int(held.max()), 1 << layer.anchors.shape[1]
        if low < 0 or high >= end:
            raise ArgumentError(f"the cache holds indices from {low} to {high}, expected 0 to {end - 1}: reset() it")
    return new

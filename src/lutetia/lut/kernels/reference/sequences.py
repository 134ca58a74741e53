"""Sequences (LUT attention): the definition, in plain torch.

For each pair i < j of positions and each detector, the index of x[j] (Q), the index of x[i] (K) and the signs of the learned
position of the distance j - i (PE) form one *cell*: Q << (N_c + N_pe) | K << N_pe | PE. Its row of weights is added to y[j].
By *pairs*, these are walked, many at a time. By *cells*: for a given j, Q is fixed,
so only C = 2**(N_c + N_pe) cells can fire; they are counted, and the sum over pairs becomes a product.

B batch · S sequence length · I inputs · O outputs · N_t detectors · N_c anchor pairs · N_pe positional bits ·
R = 2**(2 N_c + N_pe) rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia._shared.dtypes import without_rounding
from lutetia.lut.kernels.protocol import Comparisons, Connectivity, Into, Sequence
from lutetia.lut.kernels.recorder import kernel, unrecorded
from lutetia.lut.kernels.reference.detect import anchor_deltas, pack_bits
from lutetia.lut.kernels.reference.rows import closest_anchors, gradient_of, of_each_meta, rows_of, subtract, uncertainty_slope
from lutetia.lut.sums import Sums, from_units, sum_dtype, to_units

NUMBERS_AT_ONCE = 2**22  # of what pairs read


class CellsOfPairs(NamedTuple):
    """Some pairs i < j of all sequences: their positions [n], and the cell that each detector reads, int32 [B, n, N_t]."""

    i: Tensor
    j: Tensor
    cells: Tensor


def pairs_of(sequence: Sequence, width: int = 1) -> Iterator[CellsOfPairs]:
    """The pairs, so many at a time that `width` numbers of each cell take little memory."""
    index, pe, shift = sequence.x.indices, sequence.positions.indices, sequence.n_anchors + sequence.positional_dim
    batch, length, n_detectors = index.shape
    both = torch.tril_indices(length, length, -1, device=index.device)
    some = max(1, NUMBERS_AT_ONCE // max(1, batch * n_detectors * width))
    for j, i in zip(*(each.split(some) for each in both), strict=True):
        yield CellsOfPairs(i, j, index[:, j] << shift | index[:, i] << sequence.positional_dim | pe[j - i - 1])


# ---- forward ---------------------------------------------------------------------------------------------------------


def fill_sequence(weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums) -> Tensor:
    """y[j] = Σ_{i < j} Σ_t W[t, cell] -> [B, S, O]. Connectivity is full where cells are counted."""
    if sequence.products is None:
        return _fill_sequence(weight, connectivity, sequence, sums)
    batch, length, _ = sequence.x.indices.shape
    firings = list_firings(count_firings(sequence), sequence.x.indices, sequence.n_anchors)
    return fill_firings(weight, firings, (batch, length), sums)


@kernel
def _fill_sequence(weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums) -> Tensor:
    tables, dtype = connectivity.expand(weight), sum_dtype(weight)
    y = weight.new_zeros(*sequence.x.indices.shape[:2], tables.shape[2], dtype=torch.int64 if sums.exact else dtype)
    for _, j, cells in pairs_of(sequence, tables.shape[2]):
        y.index_add_(1, j, to_units(rows_of_pairs(tables, cells), sums).sum(2))
    return from_units(y, sums, dtype)


def rows_of_pairs(tables: Tensor, cells: Tensor) -> Tensor:
    """W[t, cell]: tables [N_t, R, O], cells [B, L, N_t] -> [B, L, N_t, O]."""
    return rows_of(tables, cells.flatten(0, 1)).unflatten(0, cells.shape[:2])


@kernel
def count_firings(sequence: Sequence) -> Tensor:
    """How often each cell (K, PE) fires for each j: int32 [B, S, N_t, C]."""
    stat = torch.zeros(*sequence.x.indices.shape, sequence.n_cells, dtype=torch.int32, device=sequence.x.indices.device)
    t = torch.arange(stat.shape[2], device=stat.device)
    for _, j, cells in pairs_of(sequence):
        b = torch.arange(len(stat), device=stat.device)[:, None, None]
        fired = (b.expand_as(cells), j[:, None].expand_as(cells), t.expand_as(cells), cells.long() & (sequence.n_cells - 1))
        stat.index_put_(fired, torch.ones_like(cells, dtype=stat.dtype), accumulate=True)
    return stat


@kernel
def list_firings(stat: Tensor, indices: Tensor, n_anchors: int) -> tuple[Tensor, Tensor, Tensor]:
    """stat [B, S, N_t, C], indices [B, S, N_t] -> place b·S + j, rising, row t·R + cell, and count of what fired, [n] each."""
    length, n_cells = stat.shape[1], stat.shape[3]
    b, j, t, cell = stat.nonzero(as_tuple=True)
    row = ((t << n_anchors) + indices[b, j, t].long()) * n_cells + cell
    return b * length + j, row, stat[b, j, t, cell]


@kernel
def fill_firings(weight: Tensor, firings: tuple[Tensor, Tensor, Tensor], shape: tuple[int, int], sums: Sums) -> Tensor:
    """y = Σ count · W[row]: weight [N_t, R, O], shape (B, S) -> [B, S, O]."""
    place, row, count = firings
    dtype, flat = sum_dtype(weight), weight.flatten(0, 1)
    addends = count[:, None] * to_units(flat[row].to(dtype), sums)
    y = addends.new_zeros(shape[0] * shape[1], flat.shape[1]).index_add_(0, place, addends)
    return from_units(y, sums, dtype).view(*shape, flat.shape[1])


# ---- backward, to the inputs and the positions -----------------------------------------------------------------------


@kernel
def propagate_sequence(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, sequence: Sequence, anchors: Tensor, n_inputs: int, sums: Sums
) -> tuple[Tensor, Tensor]:
    """grad [B, S, O], anchors [N_t, N_c, 2] -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
    dtype, (_, which), (_, pe_which) = sum_dtype(grad, weight), sequence.x.closest, sequence.positions.closest
    gain = _gain(grad, weight, connectivity, sequence, sums)
    slopes, distances = slopes_of_pairs(sequence, gain, grad.shape[2], sums, dtype)
    dx, dpositions = slopes.new_zeros(*slopes.shape[:2], n_inputs), slopes.new_zeros(*pe_which.shape, sequence.positional_dim)
    a, b = closest_anchors(anchors, which)  # [B, S, N_t]
    dx.scatter_add_(2, a, slopes).scatter_add_(2, b, -slopes)
    if sequence.positional_dim:
        dpositions.scatter_(2, pe_which.long()[..., None], distances[..., None])
    return from_units(dx, sums, dtype), from_units(dpositions, sums, dtype)


def slopes_of_pairs(
    sequence: Sequence, gain: Callable[[CellsOfPairs, Tensor], Tensor], width: int, sums: Sums, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The slopes of all pairs, added up for each place [B, S, N_t] and for each distance [S-1, N_t]; fixed ones in units.

    Per pair and detector: the closer call of Q and K is flipped and its slope goes to its anchors, at j or at i; where PE is
    closer than both, it is flipped too and its slope goes to the position of that distance. `gain` says what flipping changes:
    pairs, bits like their cells -> g·W[t, cell] - g·W[t, flipped], which takes `width` numbers of scratch for each.
    """
    (delta, which), (pe_delta, pe_which), n_pe = sequence.x.closest, sequence.positions.closest, sequence.positional_dim
    slopes = torch.zeros_like(delta, dtype=torch.int64 if sums.exact else dtype)
    distances = slopes.new_zeros(pe_delta.shape)
    for pairs in pairs_of(sequence, width):
        i, j, of_q, of_k = pairs.i, pairs.j, delta[:, pairs.j], delta[:, pairs.i]
        at_q, far = of_q.abs() < of_k.abs(), pe_delta[j - i - 1].expand_as(of_q)
        bits = torch.where(at_q, 1 << (which[:, j] + sequence.n_anchors + n_pe), 1 << (which[:, i] + n_pe))
        slope = to_units(uncertainty_slope(torch.where(at_q, of_q, of_k)) * gain(pairs, bits), sums).to(slopes.dtype)
        slopes.index_add_(1, j, slope * at_q).index_add_(1, i, slope * ~at_q)
        if n_pe:
            nearest = far.abs() < torch.minimum(of_q.abs(), of_k.abs())
            slope = uncertainty_slope(far) * gain(pairs, (1 << pe_which[j - i - 1]).expand_as(pairs.cells)) * nearest
            distances.index_add_(0, j - i - 1, to_units(slope, sums).to(slopes.dtype).sum(0))
    return slopes, distances


def _gain(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums
) -> Callable[[CellsOfPairs, Tensor], Tensor]:
    """That of `slopes_of_pairs`. By cells P = g·Wᵀ holds g·W[t, cell] of all cells, and a pair looks up a few of them.

    Fixed sums are those of the pairs.
    """
    dtype, tables = sum_dtype(grad, weight), connectivity.expand(weight)

    def of_pairs(pairs: CellsOfPairs, bits: Tensor) -> Tensor:
        g, both = grad[:, pairs.j].to(dtype).unsqueeze(2), (pairs.cells, pairs.cells ^ bits)
        main, other = (to_units(g * rows_of_pairs(tables, rows), sums) for rows in both)
        return from_units((main - other).sum(3), sums, dtype)

    if sequence.products is None or sums.exact:
        return of_pairs
    with without_rounding():
        p = torch.einsum("bjo,tro->bjtr", grad.to(dtype), tables.to(dtype))

    def of_cells(pairs: CellsOfPairs, bits: Tensor) -> Tensor:
        both = (pairs.cells, pairs.cells ^ bits)
        main, other = (p[:, pairs.j].gather(3, rows.long().unsqueeze(3)).squeeze(3) for rows in both)
        return main - other

    return of_cells


# ---- backward, to the weights ----------------------------------------------------------------------------------------


@kernel
def gather_sequence(grad: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums, into: Into | None) -> Tensor:
    """dW[t, cell] += lr_scale · g[j] over all pairs: grad [B, S, O] -> dW, or `into` after its step.

    By pairs, every pair is a row of a batch of the one-step kernel. By cells, each firing adds count · lr_scale · g[j].
    """
    indices, dtype = sequence.x.indices, sum_dtype(grad)
    if sequence.products is None:
        pairs = list(pairs_of(sequence))
        grads = torch.cat([grad.new_empty(0, grad.shape[2]), *(grad[:, each.j].flatten(0, 1) for each in pairs)])
        cells = torch.cat([indices.new_empty(0, indices.shape[2]), *(each.cells.flatten(0, 1) for each in pairs)])
        return subtract(gradient_of(grads, connectivity, cells, None, sums), into)
    place, row, count = unrecorded(list_firings)(unrecorded(count_firings)(sequence), indices, sequence.n_anchors)

    def gather(lr_scale: float) -> Tensor:
        addends = count[:, None] * to_units((grad.to(dtype) * lr_scale).flatten(0, 1)[place], sums)
        sum_ = addends.new_zeros(connectivity.n_detectors * connectivity.n_rows, grad.shape[2]).index_add_(0, row, addends)
        return from_units(sum_, sums, dtype).view(connectivity.n_detectors, connectivity.n_rows, -1)

    return subtract(of_each_meta(connectivity, gather), into)


# ---- decoding --------------------------------------------------------------------------------------------------------


@kernel
def fill_step(x: Tensor, weight: Tensor, anchors: Tensor, cache: Tensor, lengths: Tensor, places: Tensor) -> Tensor:
    """y [B, O] of one new position of each row: x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2].

    cache int16 [B, N_t, S] holds lengths [B] (int64, in the memory of the host) earlier indices and gets the new ones; places
    int32 [N_t, S-1] are the PE indices, farthest first. Fewer than 2**31 rows in all.
    """
    return add_step(pack_bits(anchor_deltas(x, Comparisons(anchors)) > 0), weight, anchors.shape[1], cache, lengths, places)


def add_step(q: Tensor, weight: Tensor, n_anchors: int, cache: Tensor, lengths: Tensor, places: Tensor) -> Tensor:
    """The rows of one step, added up: q [B, N_t] are the new indices, the others as in `fill_step` -> y [B, O]."""
    n_detectors, n_rows, n_outputs = weight.shape
    n_pe = n_rows.bit_length() - 1 - 2 * n_anchors
    held, table = lengths.tolist(), weight.detach().to(sum_dtype(weight)).view(-1, n_outputs)
    longest = max(held, default=0)
    starts = torch.arange(0, n_detectors * n_rows, n_rows, dtype=torch.int32, device=q.device)
    cells = (q << (n_anchors + n_pe)).add_(starts)  # the first row of this Q, of each detector
    rows = torch.empty(*cache.shape[:2], longest, dtype=torch.int32, device=q.device)
    # Masked as it is copied: on CUDA nobody looks at what the cache holds, and no index may leave its table.
    torch.bitwise_and(cache[:, :, :longest], (1 << n_anchors) - 1, out=rows).bitwise_left_shift_(n_pe)
    if min(held, default=0) < longest:
        return _add_ragged(q, cells, rows, table, cache, lengths.to(q.device), places)
    cache.select(2, longest).copy_(q)
    if not longest:
        return table.new_zeros(len(q), n_outputs)
    rows = rows.bitwise_or_(places.narrow(1, places.shape[1] - longest, longest)).add_(cells.unsqueeze(2))
    return F.embedding_bag(rows.flatten(1), table, mode="sum")


def _add_ragged(
    q: Tensor, cells: Tensor, earlier: Tensor, table: Tensor, cache: Tensor, lengths: Tensor, places: Tensor
) -> Tensor:
    """The same where rows of the batch hold different numbers of positions."""
    batch, n_detectors, longest = earlier.shape
    cache[torch.arange(batch, device=q.device), :, lengths] = q.short()
    i = torch.arange(longest, device=q.device)
    at = (places.shape[1] - lengths[:, None] + i).clamp_(max=places.shape[1] - 1)  # [B, longest]; past the end nothing counts
    rows = (earlier | places[:, at].transpose(0, 1)) + cells[:, :, None]
    real = (i < lengths[:, None])[:, None].expand_as(rows)
    counts = lengths * n_detectors
    return F.embedding_bag(rows[real], table, (counts.cumsum(0) - counts).int(), mode="sum")

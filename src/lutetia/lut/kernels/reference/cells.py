"""Sequences by counting cells: the same sums as by pairs, in plain torch.

For a given j, Q is fixed, so only C = 2**(N_c + N_pe) cells can fire: count them, and the sum over pairs becomes a product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia.lut.connectivity.anchors import Comparisons
from lutetia.lut.connectivity.full import Connectivity
from lutetia.lut.kernels.protocol import Into, Sequence
from lutetia.lut.kernels.recorder import kernel, unrecorded
from lutetia.lut.kernels.reference.detect import anchor_deltas, pack_bits
from lutetia.lut.kernels.reference.pairs import Gain, gain_of_pairs, pairs_of, send_gains
from lutetia.lut.kernels.reference.rows import of_each_meta, subtract
from lutetia.lut.sums import Sums, from_units, sum_dtype, to_units

# ---- forward ---------------------------------------------------------------------------------------------------------


@kernel
def count_firings(sequence: Sequence) -> Tensor:
    """How often each cell (K, PE) fires for each j: int32 [B, S, N_t, C]."""
    stat = torch.zeros(*sequence.x.indices.shape, sequence.n_cells, dtype=torch.int32, device=sequence.x.indices.device)
    for d, cells in pairs_of(sequence):
        fired = (cells & (sequence.n_cells - 1)).unsqueeze(-1)
        stat[:, d:].scatter_add_(-1, fired, torch.ones_like(fired, dtype=torch.int32))
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


def fill_cells(weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums) -> Tensor:
    """`fill_pairs` by cells -> [B, S, O]. Connectivity is full; where a backend cannot count (fixed sums), it walks pairs."""
    indices = sequence.x.indices
    firings = list_firings(count_firings(sequence), indices, sequence.n_anchors)
    return fill_firings(weight, firings, (indices.shape[0], indices.shape[1]), sums)


# ---- backward --------------------------------------------------------------------------------------------------------


@kernel
def propagate_cells(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, sequence: Sequence, anchors: Tensor, n_inputs: int, sums: Sums
) -> tuple[Tensor, Tensor]:
    """`propagate_pairs` by cells: P = g·Wᵀ holds g·W[t, cell] of all cells, and a pair looks up a few of them.

    Fixed sums are those of the pairs.
    """
    if sums.exact:
        return send_gains(gain_of_pairs(grad, connectivity.expand(weight), sums), sequence, anchors, n_inputs, sums)
    dtype = sum_dtype(grad, weight)
    p = torch.einsum("bjo,tro->bjtr", grad.to(dtype), weight.to(dtype))

    def gain(distance: int, cells: Tensor, others: Tensor) -> Tensor:
        main, other = (p[:, distance:].gather(3, c.unsqueeze(3)).squeeze(3) for c in (cells, others))
        return main - other

    return send_gains(Gain(gain, dtype), sequence, anchors, n_inputs, sums)


@kernel
def gather_cells(grad: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums, into: Into | None) -> Tensor:
    """`gather_pairs` by cells: each firing adds count · lr_scale · g[j], at once for all its pairs."""
    dtype = sum_dtype(grad)
    stat = unrecorded(count_firings)(sequence)
    place, row, count = unrecorded(list_firings)(stat, sequence.x.indices, sequence.n_anchors)

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

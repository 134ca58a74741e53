"""The Triton sources of the LUT kernels for sequences: what is found, in which order, and the walk over pairs.

Indices come by detector, [B, N_t, S], so that neighbouring lanes read neighbouring positions; PE indices come as [N_t, S - 1].
For a pair i < j of one detector: cell = Q[j] << (N_c + N_pe) | K[i] << N_pe | PE[j - i - 1].
A *place* n = b · S + j is one position of one sequence; there are N = B · S. Counting cells is in `source.cells`.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from lutetia._shared.triton_fixed import from_units, to_fixed, units
from lutetia.lut.kernels.triton.source.basics import uncertainty_slope

# ---- walking pairs ---------------------------------------------------------------------------------------------------
# One program walks the earlier positions of one place, for one detector or a few. Those that run at one time belong to few
# detectors, so that a row which is read again comes out of the cache.


class PairCase(NamedTuple):
    """What a walk over pairs is compiled for."""

    N_ROWS: int
    N_C: int
    N_PE: int
    FAR: bool  # a table has more numbers than an int32 can say
    SCALE: float
    ACC: tl.dtype
    BLOCK_I: int
    BLOCK_O: int


class Totals(NamedTuple):
    """Where slopes are added: of positions [B, N_t, S], of distances [copies, N_t, S - 1], and the flag of fixed sums."""

    positions: Tensor
    distances: Tensor
    overflow: Tensor | None = None


@triton.jit
def offsets(cell, n_outputs, FAR: tl.constexpr):
    """Where the rows of some cells begin in their table."""
    return cell.to(tl.int64) * n_outputs if FAR else cell * n_outputs


@triton.jit
def fill_pairs_kernel(weight_ptr, indices, sums, numbers, steps, CASE: tl.constexpr, DETECTORS: tl.constexpr):
    """One program per (b, j, tile of outputs, DETECTORS detectors): add the rows of all earlier i to y.

    index [B, S, N_t] and pe [S - 1, N_t] have steps of their own: step_s from one position to the next, and so on.
    """
    index_ptr, pe_ptr = indices
    length, n_detectors, n_outputs = numbers
    step_s, step_t, pe_step_d, pe_step_t = steps
    b = (tl.program_id(0) // length).to(tl.int64)
    j = length - 1 - tl.program_id(0) % length  # the longest first
    o = tl.program_id(1) * CASE.BLOCK_O + tl.arange(0, CASE.BLOCK_O)
    o_mask = o < n_outputs
    first = (tl.program_id(2) * DETECTORS).to(tl.int64)
    total = tl.full([CASE.BLOCK_I, CASE.BLOCK_O], 0, tl.int64 if CASE.SCALE > 0 else CASE.ACC)
    for more in range(tl.minimum(DETECTORS, n_detectors - tl.program_id(2) * DETECTORS)):
        t = first + more
        row_ptr = index_ptr + b * length * n_detectors + t * step_t
        table_ptr = weight_ptr + t * CASE.N_ROWS * n_outputs
        q = tl.load(row_ptr + j * step_s) << (CASE.N_C + CASE.N_PE)
        for start in range(0, j, CASE.BLOCK_I):
            i = start + tl.arange(0, CASE.BLOCK_I)
            k = tl.load(row_ptr + i * step_s, mask=i < j, other=0)
            pe = tl.load(pe_ptr + t * pe_step_t + (j - i - 1) * pe_step_d, mask=i < j, other=0)
            row = offsets(q | (k << CASE.N_PE) | pe, n_outputs, CASE.FAR)
            mask = (i < j)[:, None] & o_mask[None, :]
            addend = tl.load(table_ptr + row[:, None] + o[None, :], mask=mask, other=0.0).to(CASE.ACC)
            total += units(addend, sums.overflow, mask, CASE.SCALE)
    tl.atomic_add(sums.out + (b * length + j) * n_outputs + o, tl.sum(total, axis=0), mask=o_mask, sem="relaxed")


@triton.jit
def add_up(ptr, value, overflow_ptr, mask, SCALE: tl.constexpr):
    """Add slopes to their totals, which are integers in fixed sums."""
    tl.atomic_add(ptr, units(value, overflow_ptr, mask, SCALE), mask=mask, sem="relaxed")


@triton.jit
def slopes_of_pairs_kernel(grad_ptr, weight_ptr, rows, positions, totals, numbers, CASE: tl.constexpr):
    """One program per (b, j, t): the slopes of all pairs (i, j), added to the totals."""
    length, n_detectors, n_outputs, copies = numbers
    overflow_ptr = totals.overflow
    bj = tl.program_id(0).to(tl.int64)
    b, j = bj // length, length - 1 - (bj % length).to(tl.int32)  # the longest first
    t = tl.program_id(1).to(tl.int64)
    grad_ptr += (b * length + j) * n_outputs
    weight_ptr += t * CASE.N_ROWS * n_outputs
    distance_ptr = totals.distances + (bj % copies) * n_detectors * (length - 1)
    base = (b * n_detectors + t) * length
    q = tl.load(rows.indices + base + j) << (CASE.N_C + CASE.N_PE)
    delta_q = tl.load(rows.min_delta + base + j)
    flip_q = 1 << (tl.load(rows.min_delta_index + base + j) + CASE.N_C + CASE.N_PE)
    sum_q = tl.full([CASE.BLOCK_I], 0, tl.int64 if CASE.SCALE > 0 else CASE.ACC)
    for start in range(0, j, CASE.BLOCK_I):
        i = start + tl.arange(0, CASE.BLOCK_I)
        mask = i < j
        k = tl.load(rows.indices + base + i, mask=mask, other=0)
        delta_k = tl.load(rows.min_delta + base + i, mask=mask, other=1.0)
        flip_k = 1 << (tl.load(rows.min_delta_index + base + i, mask=mask, other=0) + CASE.N_PE)
        d = t * (length - 1) + j - i - 1
        cell = q | (k << CASE.N_PE) | tl.load(positions.indices + d, mask=mask, other=0)
        at_q = tl.abs(delta_q) < tl.abs(delta_k)
        row = offsets(cell, n_outputs, CASE.FAR)[:, None]
        other = offsets(cell ^ tl.where(at_q, flip_q, flip_k), n_outputs, CASE.FAR)[:, None]
        near = mask
        delta_pe = delta_k
        other_pe = row
        if CASE.N_PE > 0:
            delta_pe = tl.load(positions.min_delta + d, mask=mask, other=1.0)
            near = mask & (tl.abs(delta_pe) < tl.abs(delta_q)) & (tl.abs(delta_pe) < tl.abs(delta_k))
            other_pe = offsets(cell ^ (1 << tl.load(positions.min_delta_index + d, mask=near, other=0)), n_outputs, CASE.FAR)[
                :, None
            ]
        gain2 = tl.full([CASE.BLOCK_I, CASE.BLOCK_O], 0, tl.int64 if CASE.SCALE > 0 else CASE.ACC)
        gain2_pe = tl.full([CASE.BLOCK_I, CASE.BLOCK_O], 0, tl.int64 if CASE.SCALE > 0 else CASE.ACC)
        for o_start in range(0, n_outputs, CASE.BLOCK_O):
            o = o_start + tl.arange(0, CASE.BLOCK_O)
            o_mask = (o < n_outputs)[None, :]
            mask2, near2 = mask[:, None] & o_mask, near[:, None] & o_mask
            g = tl.load(grad_ptr + o, mask=o < n_outputs, other=0.0).to(CASE.ACC)[None, :]
            main = tl.load(weight_ptr + row + o[None, :], mask=mask2, other=0.0).to(CASE.ACC)
            flipped = tl.load(weight_ptr + other + o[None, :], mask=mask2, other=0.0).to(CASE.ACC)
            if CASE.SCALE > 0:
                main_units = to_fixed(g * main, overflow_ptr, mask2, CASE.SCALE)
                gain2 += main_units - to_fixed(g * flipped, overflow_ptr, mask2, CASE.SCALE)
            else:
                gain2 += g * (main - flipped)
            if CASE.N_PE > 0:
                flipped_pe = tl.load(weight_ptr + other_pe + o[None, :], mask=near2, other=0.0).to(CASE.ACC)
                if CASE.SCALE > 0:
                    gain2_pe += tl.where(near2, main_units - to_fixed(g * flipped_pe, overflow_ptr, near2, CASE.SCALE), 0)
                else:
                    gain2_pe += g * (main - flipped_pe)  # of use only where the position is near
        gain = from_units(tl.sum(gain2, axis=1), overflow_ptr, mask, CASE.SCALE, CASE.ACC)
        slope = uncertainty_slope(tl.where(at_q, delta_q, delta_k)).to(CASE.ACC) * gain
        from_q = tl.where(mask & at_q, slope, 0.0)
        sum_q += units(from_q, overflow_ptr, mask, CASE.SCALE)
        add_up(totals.positions + base + i, slope, overflow_ptr, mask & (at_q == 0), CASE.SCALE)
        if CASE.N_PE > 0:
            gain = from_units(tl.sum(gain2_pe, axis=1), overflow_ptr, near, CASE.SCALE, CASE.ACC)
            add_up(distance_ptr + d, uncertainty_slope(delta_pe).to(CASE.ACC) * gain, overflow_ptr, near, CASE.SCALE)
    tl.atomic_add(totals.positions + base + j, tl.sum(sum_q, axis=0), sem="relaxed")


@triton.jit
def scatter_totals_kernel(total_ptr, which_ptr, anchors_ptr, dx_ptr, numbers, N_C: tl.constexpr, BLOCK_T: tl.constexpr):
    """The total slope of each (b, s, t) to the anchors of its closest call.

    totals [B, N_t, S], which [B, S, N_t] -> dx [B, S, I].
    """
    length, n_inputs, n_detectors = numbers
    bs = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    mask = t < n_detectors
    at = ((bs // length) * n_detectors + t) * length + bs % length
    total = tl.load(total_ptr + at, mask=mask, other=0)
    pair_ptr = anchors_ptr + (t * N_C + tl.load(which_ptr + bs * n_detectors + t, mask=mask, other=0)) * 2
    tl.atomic_add(dx_ptr + bs * n_inputs + tl.load(pair_ptr, mask=mask, other=0), total, mask=mask, sem="relaxed")
    tl.atomic_add(dx_ptr + bs * n_inputs + tl.load(pair_ptr + 1, mask=mask, other=0), -total, mask=mask, sem="relaxed")


@triton.jit
def place_totals_kernel(total_ptr, which_ptr, out_ptr, sizes, N_PE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr):
    """The total slope of each distance to its closest bit: totals [copies, N_t, S - 1] -> out [S - 1, N_t, N_PE]."""
    copies, n_detectors, n_distances = sizes
    n, bit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PADDED)
    mask = n < n_distances * n_detectors
    at = n % n_detectors * n_distances + n // n_detectors
    total = tl.zeros([BLOCK], total_ptr.dtype.element_ty)
    for copy in range(copies):
        total += tl.load(total_ptr + copy * n_detectors * n_distances + at, mask=mask, other=0)
    which = tl.load(which_ptr + n, mask=mask, other=0)
    chosen = tl.where(bit[None, :] == which[:, None], total[:, None], 0)
    tl.store(out_ptr + n[:, None] * N_PE + bit[None, :], chosen, mask=mask[:, None] & (bit < N_PE)[None, :])


@triton.jit
def gather_pairs_kernel(grad_ptr, indices, sums, numbers, CASE: tl.constexpr):
    """One program per (b, j, t): add g[j] to the row of every pair (i, j)."""
    index_ptr, pe_ptr = indices
    length, n_detectors, n_outputs, step = numbers
    bj = tl.program_id(0).to(tl.int64)
    b, j = bj // length, length - 1 - (bj % length).to(tl.int32)
    t = tl.program_id(1).to(tl.int64)
    base = (b * n_detectors + t) * length
    out_ptr = sums.out + t * CASE.N_ROWS * n_outputs
    q = tl.load(index_ptr + base + j) << (CASE.N_C + CASE.N_PE)
    for o_start in range(0, n_outputs, CASE.BLOCK_O):
        o = o_start + tl.arange(0, CASE.BLOCK_O)
        o_mask = o < n_outputs
        g = tl.load(grad_ptr + (b * length + j) * n_outputs + o, mask=o_mask, other=0.0).to(CASE.ACC)
        if step is not None:
            g = -step * g
        g2 = tl.broadcast_to(g[None, :], [CASE.BLOCK_I, CASE.BLOCK_O])
        for start in range(0, j, CASE.BLOCK_I):
            i = start + tl.arange(0, CASE.BLOCK_I)
            k = tl.load(index_ptr + base + i, mask=i < j, other=0)
            pe = tl.load(pe_ptr + t * (length - 1) + j - i - 1, mask=i < j, other=0)
            row = offsets(q | (k << CASE.N_PE) | pe, n_outputs, CASE.FAR)[:, None]
            add_up(out_ptr + row + o[None, :], g2, sums.overflow, (i < j)[:, None] & o_mask[None, :], CASE.SCALE)

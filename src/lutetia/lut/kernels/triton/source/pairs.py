"""The Triton sources of the LUT kernels for sequences: what is found, in which order, and the walk over pairs.

Indices come by detector, [B, N_t, S], so that neighbouring lanes read neighbouring positions; PE indices come as [N_t, S - 1].
For a pair i < j of one detector: cell = Q[j] << (N_c + N_pe) | K[i] << N_pe | PE[j - i - 1].
A *place* n = b · S + j is one position of one sequence; there are N = B · S. Counting cells is in `triton_seq_cells_kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lutetia.lut.kernels.triton.source.basics import from_units, to_fixed, uncertainty_slope, units

# ---- what was found --------------------------------------------------------------------------------------------------


@triton.jit
def by_detector_kernel(
    index_ptr, delta_ptr, which_ptr, index_out_ptr, delta_out_ptr, which_out_ptr, length, n_detectors, BLOCK: tl.constexpr
):
    """Three tensors [B, S, N_t] as [B, N_t, S]; one program per (b, tile of positions, tile of detectors)."""
    s = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    t = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * length * n_detectors
    mask = (s < length)[:, None] & (t < n_detectors)[None, :]
    at = first + s[:, None] * n_detectors + t[None, :]
    to, to_mask = first + t[:, None] * length + s[None, :], tl.trans(mask)
    tl.store(index_out_ptr + to, tl.trans(tl.load(index_ptr + at, mask=mask)), mask=to_mask)
    tl.store(delta_out_ptr + to, tl.trans(tl.load(delta_ptr + at, mask=mask)), mask=to_mask)
    tl.store(which_out_ptr + to, tl.trans(tl.load(which_ptr + at, mask=mask)), mask=to_mask)


# ---- places in order of their Q --------------------------------------------------------------------------------------
# A counting sort without atomics: where thousands of places share a few values, those would wait for each other.


@triton.jit
def count_chunks_kernel(
    index_ptr, count_ptr, n_places, n_detectors, chunk, N_Q: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """How often each value occurs in each chunk of places: index [N, N_t] -> count [N_t, chunks, N_Q]."""
    t = tl.program_id(1)
    first = tl.program_id(0) * chunk
    last = tl.minimum(first + chunk, n_places)
    q = tl.arange(0, N_Q)
    count = tl.zeros([N_Q], tl.int32)
    for start in range(first, last, BLOCK):
        n = start + tl.arange(0, BLOCK)
        value = tl.load(index_ptr + n.to(tl.int64) * n_detectors + t, mask=n < last, other=-1)
        count += tl.sum((value[:, None] == q[None, :]).to(tl.int32), axis=0)
    tl.store(count_ptr + (t * tl.num_programs(0) + tl.program_id(0)) * N_Q + q, count)


@triton.jit
def order_chunks_kernel(
    index_ptr, count_ptr, order_ptr, end_ptr, total_ptr, n_places, n_detectors, chunk,
    N_Q: tl.constexpr, N_CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Put the places of each chunk where they belong: order [N_t, N]; and end and count of each value, [N_t, N_Q]."""
    t = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * chunk
    last = tl.minimum(first + chunk, n_places)
    q = tl.arange(0, N_Q)
    which = tl.arange(0, N_CHUNKS)
    at = (t * tl.num_programs(0) + which)[:, None] * N_Q + q[None, :]
    counts = tl.load(count_ptr + at, mask=(which < tl.num_programs(0))[:, None], other=0)
    total = tl.sum(counts, axis=0)
    end = tl.cumsum(total, axis=0)
    if tl.program_id(0) == 0:
        tl.store(end_ptr + t * N_Q + q, end)
        tl.store(total_ptr + t * N_Q + q, total)
    free = end - total + tl.sum(tl.where((which < tl.program_id(0))[:, None], counts, 0), axis=0)
    for start in range(first, last, BLOCK):
        n = start + tl.arange(0, BLOCK)
        value = tl.load(index_ptr + n.to(tl.int64) * n_detectors + t, mask=n < last, other=-1)
        hit = (value[:, None] == q[None, :]).to(tl.int32)
        place = tl.sum(hit * (free[None, :] + tl.cumsum(hit, axis=0) - 1), axis=1)
        tl.store(order_ptr + t * n_places + place, n, mask=n < last)
        free += tl.sum(hit, axis=0)


# ---- walking pairs ---------------------------------------------------------------------------------------------------
# One program walks the earlier positions of one place, for one detector or a few. Those that run at one time belong to few
# detectors, so that a row which is read again comes out of the cache. FAR: a table has more numbers than an int32 can say.


@triton.jit
def offsets(cell, n_outputs, FAR: tl.constexpr):
    """Where the rows of some cells begin in their table."""
    return cell.to(tl.int64) * n_outputs if FAR else cell * n_outputs


@triton.jit
def fill_pairs_kernel(
    weight_ptr, index_ptr, pe_ptr, out_ptr, overflow_ptr, length, n_detectors, n_outputs, step_s, step_t, pe_step_d, pe_step_t,
    N_ROWS: tl.constexpr, N_C: tl.constexpr, N_PE: tl.constexpr, FAR: tl.constexpr, SCALE: tl.constexpr, ACC: tl.constexpr,
    DETECTORS: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (b, j, tile of outputs, DETECTORS detectors): add the rows of all earlier i to y.

    index [B, S, N_t] and pe [S - 1, N_t] have steps of their own: step_s from one position to the next, and so on.
    """
    b = (tl.program_id(0) // length).to(tl.int64)
    j = length - 1 - tl.program_id(0) % length  # the longest first
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    o_mask = o < n_outputs
    first = (tl.program_id(2) * DETECTORS).to(tl.int64)
    total = tl.zeros([BLOCK_I, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
    for more in range(tl.minimum(DETECTORS, n_detectors - tl.program_id(2) * DETECTORS)):
        t = first + more
        row_ptr = index_ptr + b * length * n_detectors + t * step_t
        table_ptr = weight_ptr + t * N_ROWS * n_outputs
        q = tl.load(row_ptr + j * step_s) << (N_C + N_PE)
        for start in range(0, j, BLOCK_I):
            i = start + tl.arange(0, BLOCK_I)
            k = tl.load(row_ptr + i * step_s, mask=i < j, other=0)
            pe = tl.load(pe_ptr + t * pe_step_t + (j - i - 1) * pe_step_d, mask=i < j, other=0)
            row = offsets(q | (k << N_PE) | pe, n_outputs, FAR)
            mask = (i < j)[:, None] & o_mask[None, :]
            addend = tl.load(table_ptr + row[:, None] + o[None, :], mask=mask, other=0.0).to(ACC)
            total += units(addend, overflow_ptr, mask, SCALE)
    tl.atomic_add(out_ptr + (b * length + j) * n_outputs + o, tl.sum(total, axis=0), mask=o_mask, sem="relaxed")


@triton.jit
def add_up(ptr, value, overflow_ptr, mask, SCALE: tl.constexpr):
    """Add slopes to their totals, which are integers in fixed sums."""
    tl.atomic_add(ptr, units(value, overflow_ptr, mask, SCALE), mask=mask, sem="relaxed")


@triton.jit
def slopes_of_pairs_kernel(
    grad_ptr, weight_ptr, index_ptr, delta_ptr, which_ptr, pe_ptr, pe_delta_ptr, pe_which_ptr,
    total_ptr, position_ptr, overflow_ptr, length, n_detectors, n_outputs, copies,
    N_ROWS: tl.constexpr, N_C: tl.constexpr, N_PE: tl.constexpr, FAR: tl.constexpr, SCALE: tl.constexpr, ACC: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (b, j, t): the slopes of all pairs (i, j), added to totals [B, N_t, S], [copies, N_t, S - 1]."""
    bj = tl.program_id(0).to(tl.int64)
    b, j = bj // length, length - 1 - (bj % length).to(tl.int32)  # the longest first
    t = tl.program_id(1).to(tl.int64)
    grad_ptr += (b * length + j) * n_outputs
    weight_ptr += t * N_ROWS * n_outputs
    position_ptr += (bj % copies) * n_detectors * (length - 1)
    base = (b * n_detectors + t) * length
    q = tl.load(index_ptr + base + j) << (N_C + N_PE)
    delta_q = tl.load(delta_ptr + base + j)
    flip_q = 1 << (tl.load(which_ptr + base + j) + N_C + N_PE)
    sum_q = tl.zeros([BLOCK_I], tl.int64 if SCALE > 0 else ACC)
    for start in range(0, j, BLOCK_I):
        i = start + tl.arange(0, BLOCK_I)
        mask = i < j
        k = tl.load(index_ptr + base + i, mask=mask, other=0)
        delta_k = tl.load(delta_ptr + base + i, mask=mask, other=1.0)
        flip_k = 1 << (tl.load(which_ptr + base + i, mask=mask, other=0) + N_PE)
        d = t * (length - 1) + j - i - 1
        cell = q | (k << N_PE) | tl.load(pe_ptr + d, mask=mask, other=0)
        at_q = tl.abs(delta_q) < tl.abs(delta_k)
        row = offsets(cell, n_outputs, FAR)[:, None]
        other = offsets(cell ^ tl.where(at_q, flip_q, flip_k), n_outputs, FAR)[:, None]
        near = mask
        delta_pe = delta_k
        other_pe = row
        if N_PE > 0:
            delta_pe = tl.load(pe_delta_ptr + d, mask=mask, other=1.0)
            near = mask & (tl.abs(delta_pe) < tl.abs(delta_q)) & (tl.abs(delta_pe) < tl.abs(delta_k))
            other_pe = offsets(cell ^ (1 << tl.load(pe_which_ptr + d, mask=near, other=0)), n_outputs, FAR)[:, None]
        gain2 = tl.zeros([BLOCK_I, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
        gain2_pe = tl.zeros([BLOCK_I, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
        for o_start in range(0, n_outputs, BLOCK_O):
            o = o_start + tl.arange(0, BLOCK_O)
            o_mask = (o < n_outputs)[None, :]
            mask2, near2 = mask[:, None] & o_mask, near[:, None] & o_mask
            g = tl.load(grad_ptr + o, mask=o < n_outputs, other=0.0).to(ACC)[None, :]
            main = tl.load(weight_ptr + row + o[None, :], mask=mask2, other=0.0).to(ACC)
            flipped = tl.load(weight_ptr + other + o[None, :], mask=mask2, other=0.0).to(ACC)
            if SCALE > 0:
                main_units = to_fixed(g * main, overflow_ptr, mask2, SCALE)
                gain2 += main_units - to_fixed(g * flipped, overflow_ptr, mask2, SCALE)
            else:
                gain2 += g * (main - flipped)
            if N_PE > 0:
                flipped_pe = tl.load(weight_ptr + other_pe + o[None, :], mask=near2, other=0.0).to(ACC)
                if SCALE > 0:
                    gain2_pe += tl.where(near2, main_units - to_fixed(g * flipped_pe, overflow_ptr, near2, SCALE), 0)
                else:
                    gain2_pe += g * (main - flipped_pe)  # of use only where the position is near
        gain = from_units(tl.sum(gain2, axis=1), overflow_ptr, mask, SCALE, ACC)
        slope = uncertainty_slope(tl.where(at_q, delta_q, delta_k)).to(ACC) * gain
        from_q = tl.where(mask & at_q, slope, 0.0)
        sum_q += units(from_q, overflow_ptr, mask, SCALE)
        add_up(total_ptr + base + i, slope, overflow_ptr, mask & (at_q == 0), SCALE)
        if N_PE > 0:
            gain = from_units(tl.sum(gain2_pe, axis=1), overflow_ptr, near, SCALE, ACC)
            add_up(position_ptr + d, uncertainty_slope(delta_pe).to(ACC) * gain, overflow_ptr, near, SCALE)
    tl.atomic_add(total_ptr + base + j, tl.sum(sum_q, axis=0), sem="relaxed")


@triton.jit
def scatter_totals_kernel(
    total_ptr, which_ptr, anchors_ptr, dx_ptr, length, n_inputs, n_detectors, N_C: tl.constexpr, BLOCK_T: tl.constexpr
):
    """The total slope of each (b, s, t) to the anchors of its closest call: totals [B, N_t, S] -> dx [B, S, I]."""
    bs = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    mask = t < n_detectors
    at = ((bs // length) * n_detectors + t) * length + bs % length
    total = tl.load(total_ptr + at, mask=mask, other=0)
    pair_ptr = anchors_ptr + (t * N_C + tl.load(which_ptr + at, mask=mask, other=0)) * 2
    tl.atomic_add(dx_ptr + bs * n_inputs + tl.load(pair_ptr, mask=mask, other=0), total, mask=mask, sem="relaxed")
    tl.atomic_add(dx_ptr + bs * n_inputs + tl.load(pair_ptr + 1, mask=mask, other=0), -total, mask=mask, sem="relaxed")


@triton.jit
def gather_pairs_kernel(
    grad_ptr, index_ptr, pe_ptr, out_ptr, overflow_ptr, length, n_detectors, n_outputs, step,
    N_ROWS: tl.constexpr, N_C: tl.constexpr, N_PE: tl.constexpr, FAR: tl.constexpr, IN_PLACE: tl.constexpr, SCALE: tl.constexpr,
    ACC: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (b, j, t): add g[j] to the row of every pair (i, j)."""
    bj = tl.program_id(0).to(tl.int64)
    b, j = bj // length, length - 1 - (bj % length).to(tl.int32)
    t = tl.program_id(1).to(tl.int64)
    base = (b * n_detectors + t) * length
    out_ptr += t * N_ROWS * n_outputs
    q = tl.load(index_ptr + base + j) << (N_C + N_PE)
    for o_start in range(0, n_outputs, BLOCK_O):
        o = o_start + tl.arange(0, BLOCK_O)
        o_mask = o < n_outputs
        g = tl.load(grad_ptr + (b * length + j) * n_outputs + o, mask=o_mask, other=0.0).to(ACC)
        if IN_PLACE:
            g = -step * g
        g2 = tl.broadcast_to(g[None, :], [BLOCK_I, BLOCK_O])
        for start in range(0, j, BLOCK_I):
            i = start + tl.arange(0, BLOCK_I)
            k = tl.load(index_ptr + base + i, mask=i < j, other=0)
            pe = tl.load(pe_ptr + t * (length - 1) + j - i - 1, mask=i < j, other=0)
            row = offsets(q | (k << N_PE) | pe, n_outputs, FAR)[:, None]
            add_up(out_ptr + row + o[None, :], g2, overflow_ptr, (i < j)[:, None] & o_mask[None, :], SCALE)

"""The Triton sources of the LUT kernels for sequences: walking pairs, and counting cells.

Indices come by detector, [B, N_t, S], so that neighbouring lanes read neighbouring positions; PE indices come as [N_t, S - 1].
For a pair i < j of one detector: cell = Q[j] << (N_c + N_pe) | K[i] << N_pe | PE[j - i - 1].
"""

from __future__ import annotations

import triton
import triton.language as tl

from lutetia.lut.triton_kernels import to_fixed, uncertainty_slope

# ---- walking pairs ---------------------------------------------------------------------------------------------------


@triton.jit
def fill_pairs_kernel(
    weight_ptr, index_ptr, pe_ptr, out_ptr, overflow_ptr, length, n_detectors, n_outputs,
    N_ROWS: tl.constexpr, N_C: tl.constexpr, N_PE: tl.constexpr, SCALE: tl.constexpr, ACC: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (b, j, tile of outputs): add the rows of all earlier i and all detectors."""
    b = (tl.program_id(0) // length).to(tl.int64)
    j = length - 1 - tl.program_id(0) % length  # the longest first
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    o_mask = o < n_outputs
    # A step takes BLOCK_T detectors × BLOCK_I positions: many independent rows under way hide the wait for each.
    lane = tl.arange(0, BLOCK_T * BLOCK_I)
    total = tl.zeros([BLOCK_T * BLOCK_I, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
    for first in range(0, n_detectors, BLOCK_T):
        t = first + lane // BLOCK_I
        t_mask = t < n_detectors
        row_ptr = index_ptr + (b * n_detectors + t) * length
        q = tl.load(row_ptr + j, mask=t_mask, other=0)
        for start in range(0, j, BLOCK_I):
            i = start + lane % BLOCK_I
            i_mask = t_mask & (i < j)
            k = tl.load(row_ptr + i, mask=i_mask, other=0)
            pe = tl.load(pe_ptr + t * (length - 1) + j - i - 1, mask=i_mask, other=0)
            cell = (q << (N_C + N_PE)) | (k << N_PE) | pe
            row = (t.to(tl.int64) * N_ROWS + cell) * n_outputs
            mask = i_mask[:, None] & o_mask[None, :]
            addend = tl.load(weight_ptr + row[:, None] + o[None, :], mask=mask, other=0.0).to(ACC)
            total += to_fixed(addend, overflow_ptr, mask, SCALE) if SCALE > 0 else addend
    tl.store(out_ptr + (b * length + j) * n_outputs + o, tl.sum(total, axis=0), mask=o_mask)


@triton.jit
def in_floats(gain, overflow_ptr, mask, SCALE: tl.constexpr, ACC: tl.constexpr):
    """A dot product as a float; in fixed sums it was added in integers and must fit its range."""
    if SCALE > 0:
        tl.store(overflow_ptr + tl.zeros_like(gain).to(tl.int32), 1, mask=mask & (tl.abs(gain) > 2147483647))
        return (gain.to(tl.float64) / SCALE).to(ACC)
    else:
        return gain


@triton.jit
def add_up(ptr, value, overflow_ptr, mask, SCALE: tl.constexpr):
    """Add slopes to their totals, which are integers in fixed sums."""
    if SCALE > 0:
        tl.atomic_add(ptr, to_fixed(value, overflow_ptr, mask, SCALE), mask=mask, sem="relaxed")
    else:
        tl.atomic_add(ptr, value, mask=mask, sem="relaxed")


@triton.jit
def slopes_of_pairs_kernel(
    grad_ptr, weight_ptr, index_ptr, delta_ptr, which_ptr, pe_ptr, pe_delta_ptr, pe_which_ptr,
    total_ptr, position_ptr, overflow_ptr, length, n_detectors, n_outputs,
    N_ROWS: tl.constexpr, N_C: tl.constexpr, N_PE: tl.constexpr, SCALE: tl.constexpr, ACC: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (b, j, tile of detectors): the slopes of all pairs (i, j), added to totals [B, N_t, S], [N_t, S - 1]."""
    bj = tl.program_id(0).to(tl.int64)
    b, j = bj // length, length - 1 - (bj % length).to(tl.int32)  # the longest first
    bj = b * length + j
    lane = tl.arange(0, BLOCK_T * BLOCK_I)
    t = tl.program_id(1) * BLOCK_T + lane // BLOCK_I
    t_mask = t < n_detectors
    base = (b * n_detectors + t) * length
    q = tl.load(index_ptr + base + j, mask=t_mask, other=0)
    delta_q = tl.load(delta_ptr + base + j, mask=t_mask, other=1.0)
    flip_q = 1 << (tl.load(which_ptr + base + j, mask=t_mask, other=0) + N_C + N_PE)
    sum_q = tl.zeros([BLOCK_T], tl.int64 if SCALE > 0 else ACC)
    for start in range(0, j, BLOCK_I):
        i = start + lane % BLOCK_I
        mask = t_mask & (i < j)
        k = tl.load(index_ptr + base + i, mask=mask, other=0)
        delta_k = tl.load(delta_ptr + base + i, mask=mask, other=1.0)
        flip_k = 1 << (tl.load(which_ptr + base + i, mask=mask, other=0) + N_PE)
        d = t * (length - 1) + j - i - 1
        cell = (q << (N_C + N_PE)) | (k << N_PE) | tl.load(pe_ptr + d, mask=mask, other=0)
        at_q = tl.abs(delta_q) < tl.abs(delta_k)
        near = mask
        flip_pe = cell * 0
        delta_pe = delta_k
        if N_PE > 0:
            delta_pe = tl.load(pe_delta_ptr + d, mask=mask, other=1.0)
            near = mask & (tl.abs(delta_pe) < tl.abs(delta_q)) & (tl.abs(delta_pe) < tl.abs(delta_k))
            flip_pe = 1 << tl.load(pe_which_ptr + d, mask=near, other=0)
        first = t.to(tl.int64) * N_ROWS
        row = ((first + cell) * n_outputs)[:, None]
        other = ((first + (cell ^ tl.where(at_q, flip_q, flip_k))) * n_outputs)[:, None]
        other_pe = ((first + (cell ^ flip_pe)) * n_outputs)[:, None]
        gain2 = tl.zeros([BLOCK_T * BLOCK_I, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
        gain2_pe = tl.zeros([BLOCK_T * BLOCK_I, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
        for o_start in range(0, n_outputs, BLOCK_O):
            o = o_start + tl.arange(0, BLOCK_O)
            o_mask = o < n_outputs
            mask2 = mask[:, None] & o_mask[None, :]
            near2 = near[:, None] & o_mask[None, :]
            g = tl.load(grad_ptr + bj * n_outputs + o, mask=o_mask, other=0.0).to(ACC)[None, :]
            main_g = g * tl.load(weight_ptr + row + o[None, :], mask=mask2, other=0.0).to(ACC)
            other_g = g * tl.load(weight_ptr + other + o[None, :], mask=mask2, other=0.0).to(ACC)
            if SCALE > 0:
                main_units = to_fixed(main_g, overflow_ptr, mask2, SCALE)
                gain2 += main_units - to_fixed(other_g, overflow_ptr, mask2, SCALE)
            else:
                gain2 += main_g - other_g
            if N_PE > 0:
                pe_g = g * tl.load(weight_ptr + other_pe + o[None, :], mask=near2, other=0.0).to(ACC)
                if SCALE > 0:
                    gain2_pe += tl.where(near2, main_units - to_fixed(pe_g, overflow_ptr, near2, SCALE), 0)
                else:
                    gain2_pe += tl.where(near2, main_g - pe_g, 0.0)
        gain = in_floats(tl.sum(gain2, axis=1), overflow_ptr, mask, SCALE, ACC)
        slope = uncertainty_slope(tl.where(at_q, delta_q, delta_k)).to(ACC) * gain
        from_q = tl.where(mask & at_q, slope, 0.0)
        if SCALE > 0:
            sum_q += tl.sum(tl.reshape(to_fixed(from_q, overflow_ptr, mask, SCALE), [BLOCK_T, BLOCK_I]), axis=1)
        else:
            sum_q += tl.sum(tl.reshape(from_q, [BLOCK_T, BLOCK_I]), axis=1)
        add_up(total_ptr + base + i, slope, overflow_ptr, mask & (at_q == 0), SCALE)
        if N_PE > 0:
            gain = in_floats(tl.sum(gain2_pe, axis=1), overflow_ptr, near, SCALE, ACC)
            add_up(position_ptr + d, uncertainty_slope(delta_pe).to(ACC) * gain, overflow_ptr, near, SCALE)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    tl.atomic_add(total_ptr + (b * n_detectors + t) * length + j, sum_q, mask=t < n_detectors, sem="relaxed")


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
    N_ROWS: tl.constexpr, N_C: tl.constexpr, N_PE: tl.constexpr, IN_PLACE: tl.constexpr, SCALE: tl.constexpr,
    ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (b, j, tile of detectors): add g[j] to the row of every pair (i, j)."""
    bj = tl.program_id(0).to(tl.int64)
    b, j = bj // length, length - 1 - (bj % length).to(tl.int32)
    bj = b * length + j
    lane = tl.arange(0, BLOCK_T * BLOCK_I)
    t = tl.program_id(1) * BLOCK_T + lane // BLOCK_I
    t_mask = t < n_detectors
    base = (b * n_detectors + t) * length
    q = tl.load(index_ptr + base + j, mask=t_mask, other=0)
    for o_start in range(0, n_outputs, BLOCK_O):
        o = o_start + tl.arange(0, BLOCK_O)
        o_mask = o < n_outputs
        g = tl.load(grad_ptr + bj * n_outputs + o, mask=o_mask, other=0.0).to(ACC)
        if IN_PLACE:
            g = -step * g
        g2 = tl.broadcast_to(g[None, :], [BLOCK_T * BLOCK_I, BLOCK_O])
        for start in range(0, j, BLOCK_I):
            i = start + lane % BLOCK_I
            mask = t_mask & (i < j)
            k = tl.load(index_ptr + base + i, mask=mask, other=0)
            pe = tl.load(pe_ptr + t * (length - 1) + j - i - 1, mask=mask, other=0)
            cell = (q << (N_C + N_PE)) | (k << N_PE) | pe
            row = (t.to(tl.int64) * N_ROWS + cell) * n_outputs
            add_up(out_ptr + row[:, None] + o[None, :], g2, overflow_ptr, mask[:, None] & o_mask[None, :], SCALE)


# ---- counting cells --------------------------------------------------------------------------------------------------
# For one j and one detector, Q is fixed and C = 2**(N_c + N_pe) cells can fire. Counted once, the sums over pairs become matrix
# products, one per table and Q: the rows (b, j) are put in order of their Q first, as `order` [N_t, N], N = B · S.


@triton.jit
def fill_firing_stat_kernel(
    index_ptr, pe_ptr, stat_ptr, length, n_detectors,
    N_PE: tl.constexpr, N_CELLS: tl.constexpr, BINS: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """One program per (b, j, t): how often each cell (K, PE) fires."""
    bj = tl.program_id(0).to(tl.int64)
    b, j = bj // length, (bj % length).to(tl.int32)
    t = tl.program_id(1)
    base = (b * n_detectors + t) * length
    count = tl.zeros([BINS], tl.int32)
    for start in range(0, j, BLOCK_I):
        i = start + tl.arange(0, BLOCK_I)
        k = tl.load(index_ptr + base + i, mask=i < j, other=0)
        pe = tl.load(pe_ptr + t * (length - 1) + j - i - 1, mask=i < j, other=0)
        count += tl.histogram((k << N_PE) | pe, BINS, mask=i < j)
    cell = tl.arange(0, BINS)
    tl.store(stat_ptr + (bj * n_detectors + t) * N_CELLS + cell, count.to(stat_ptr.dtype.element_ty), mask=cell < N_CELLS)


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """acc + a · b on the tensor cores: three tf32 products are as good as float32, one is tf32, or bf16."""
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    elif PRECISION == "tf32":
        return tl.dot(a, b, acc, input_precision="tf32")
    else:
        return tl.dot(a, b, acc, input_precision="tf32x3")


@triton.jit
def fill_cells_kernel(
    weight_ptr, stat_ptr, index_ptr, order_ptr, out_ptr, n_places, n_detectors, n_outputs,
    N_Q: tl.constexpr, N_CELLS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """y += stat · W[t, Q], one program per (BLOCK_N places in order of Q, tile of outputs, detector)."""
    t = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = p < n_places
    n = tl.load(order_ptr + t * n_places + p, mask=live, other=0).to(tl.int64)
    q = tl.load(index_ptr + n * n_detectors + t, mask=live, other=N_Q)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    acc = tl.zeros([BLOCK_N, BLOCK_O], tl.float32)
    for which in range(tl.min(q), tl.max(tl.where(live, q, 0)) + 1):
        mine = live & (q == which)
        for start in range(0, N_CELLS, BLOCK_C):
            c = start + tl.arange(0, BLOCK_C)
            at = (n * n_detectors + t)[:, None] * N_CELLS + c[None, :]
            stat = tl.load(stat_ptr + at, mask=mine[:, None] & (c < N_CELLS)[None, :], other=0).to(tl.float32)
            rows = ((t * N_Q + which) * N_CELLS + c)[:, None] * n_outputs + o[None, :]
            weight = tl.load(weight_ptr + rows, mask=(c < N_CELLS)[:, None] & (o < n_outputs)[None, :], other=0.0).to(tl.float32)
            acc = product(stat, weight, acc, PRECISION)
    mask = live[:, None] & (o < n_outputs)[None, :]
    tl.atomic_add(out_ptr + n[:, None] * n_outputs + o[None, :], acc, mask=mask, sem="relaxed")


@triton.jit
def project_cells_kernel(
    grad_ptr, weight_ptr, index_ptr, order_ptr, out_ptr, n_places, n_detectors, n_outputs,
    N_Q: tl.constexpr, N_CELLS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """P[n, t, c] = g[n] · W[t, Q[n, t], c], one program per (BLOCK_N places in order of Q, tile of cells, detector)."""
    t = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = p < n_places
    n = tl.load(order_ptr + t * n_places + p, mask=live, other=0).to(tl.int64)
    q = tl.load(index_ptr + n * n_detectors + t, mask=live, other=N_Q)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros([BLOCK_N, BLOCK_C], tl.float32)
    for which in range(tl.min(q), tl.max(tl.where(live, q, 0)) + 1):
        mine = live & (q == which)
        for start in range(0, n_outputs, BLOCK_O):
            o = start + tl.arange(0, BLOCK_O)
            o_mask = o < n_outputs
            g = tl.load(grad_ptr + n[:, None] * n_outputs + o[None, :], mask=mine[:, None] & o_mask[None, :], other=0.0)
            rows = ((t * N_Q + which) * N_CELLS + c)[None, :] * n_outputs + o[:, None]
            weight = tl.load(weight_ptr + rows, mask=(c < N_CELLS)[None, :] & o_mask[:, None], other=0.0).to(tl.float32)
            acc = product(g.to(tl.float32), weight, acc, PRECISION)
    at = (n * n_detectors + t)[:, None] * N_CELLS + c[None, :]
    tl.store(out_ptr + at, acc, mask=live[:, None] & (c < N_CELLS)[None, :])


@triton.jit
def gather_cells_kernel(
    grad_ptr, stat_ptr, order_ptr, end_ptr, count_ptr, out_ptr, n_places, n_detectors, n_outputs,
    N_Q: tl.constexpr, N_CELLS: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """dW[t, Q] = statᵀ · g over the places of that Q, one program per (t and Q, tile of cells, tile of outputs)."""
    tq = tl.program_id(0)
    t = (tq // N_Q).to(tl.int64)
    last = tl.load(end_ptr + tq)
    first = last - tl.load(count_ptr + tq)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    o = tl.program_id(2) * BLOCK_O + tl.arange(0, BLOCK_O)
    acc = tl.zeros([BLOCK_C, BLOCK_O], tl.float32)
    for start in range(first, last, BLOCK_N):
        p = start + tl.arange(0, BLOCK_N)
        live = p < last
        n = tl.load(order_ptr + t * n_places + p, mask=live, other=0).to(tl.int64)
        at = (n * n_detectors + t)[None, :] * N_CELLS + c[:, None]
        stat = tl.load(stat_ptr + at, mask=live[None, :] & (c < N_CELLS)[:, None], other=0).to(tl.float32)
        g = tl.load(grad_ptr + n[:, None] * n_outputs + o[None, :], mask=live[:, None] & (o < n_outputs)[None, :], other=0.0)
        acc = product(stat, g.to(tl.float32), acc, PRECISION)
    at = (tq.to(tl.int64) * N_CELLS + c)[:, None] * n_outputs + o[None, :]
    mask = (c < N_CELLS)[:, None] & (o < n_outputs)[None, :]
    if ADD:
        acc += tl.load(out_ptr + at, mask=mask, other=0.0)
    tl.store(out_ptr + at, acc, mask=mask)


@triton.jit
def slopes_of_cells_kernel(
    main_ptr, flipped_ptr, index_ptr, delta_ptr, which_ptr, pe_ptr, pe_delta_ptr, pe_which_ptr, total_ptr, position_ptr,
    length, n_detectors, N_PE: tl.constexpr, N_CELLS: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """The slopes of pairs, as in `slopes_of_pairs_kernel`, with every dot product looked up in P: main at Q, flipped at Q ^ bit.

    One program per (b and tile of j, t); it walks the tiles of i.
    """
    tiles = (length + BLOCK_J - 1) // BLOCK_J
    b = (tl.program_id(0) // tiles).to(tl.int64)
    j = (tl.program_id(0) % tiles) * BLOCK_J + tl.arange(0, BLOCK_J)
    t = tl.program_id(1)
    base = (b * n_detectors + t) * length
    j_mask = j < length
    delta_q = tl.load(delta_ptr + base + j, mask=j_mask, other=1.0)[None, :]
    slope_q = uncertainty_slope(delta_q)
    p_row = (((b * length + j) * n_detectors + t) * N_CELLS)[None, :]
    sum_q = tl.zeros([BLOCK_J], tl.float32)
    for start in range(0, tl.minimum((tl.program_id(0) % tiles + 1) * BLOCK_J, length), BLOCK_I):
        i = start + tl.arange(0, BLOCK_I)
        i_mask = i < length
        pair = (i[:, None] < j[None, :]) & j_mask[None, :]
        delta_k = tl.load(delta_ptr + base + i, mask=i_mask, other=1.0)[:, None]
        k = tl.load(index_ptr + base + i, mask=i_mask, other=0)[:, None]
        flip_k = 1 << (tl.load(which_ptr + base + i, mask=i_mask, other=0) + N_PE)[:, None]
        d = t * (length - 1) + j[None, :] - i[:, None] - 1
        cell = (k << N_PE) | tl.load(pe_ptr + d, mask=pair, other=0)
        at_q = tl.abs(delta_q) < tl.abs(delta_k)
        main = tl.load(main_ptr + p_row + cell, mask=pair, other=0.0)
        at_k_other = tl.load(main_ptr + p_row + (cell ^ flip_k), mask=pair & (at_q == 0), other=0.0)
        at_q_other = tl.load(flipped_ptr + p_row + cell, mask=pair & at_q, other=0.0)
        from_q = tl.where(pair & at_q, slope_q * (main - at_q_other), 0.0)
        from_k = tl.where(pair & (at_q == 0), uncertainty_slope(delta_k) * (main - at_k_other), 0.0)
        sum_q += tl.sum(from_q, axis=0)
        tl.atomic_add(total_ptr + base + i, tl.sum(from_k, axis=1), mask=i_mask, sem="relaxed")
        if N_PE > 0:
            delta_pe = tl.load(pe_delta_ptr + d, mask=pair, other=1.0)
            near = pair & (tl.abs(delta_pe) < tl.abs(delta_q)) & (tl.abs(delta_pe) < tl.abs(delta_k))
            flip = 1 << tl.load(pe_which_ptr + d, mask=near, other=0)
            other = tl.load(main_ptr + p_row + (cell ^ flip), mask=near, other=0.0)
            tl.atomic_add(position_ptr + d, uncertainty_slope(delta_pe) * (main - other), mask=near, sem="relaxed")
    tl.atomic_add(total_ptr + base + j, sum_q, mask=j_mask, sem="relaxed")

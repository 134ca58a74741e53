"""The Triton sources of the LUT kernels: CUDA on a GPU, and the same text under Triton's interpreter on a CPU.

Names in capitals are compile-time constants. One source serves three layouts of the weights:

    FC       W[t, row, o]: every detector reaches every output
    SHARED   the rows of detector t reach `targets[start[t] : start[t + 1]]`; detectors with the same targets form a block
    GENERAL  lookup neuron n reaches `targets[start[n] : start[n + 1]]`

A fully connected layer is one block of all detectors, so FC and SHARED run the same loops. WIDTH is the number of outputs that
every detector reaches, 0 when they differ: known at compile time, rows are read 16 bytes at a time (4x less instructions).
SCALE is 0 for sums in floating point, else the number of units that make 1.0 in fixed sums. ACC is the dtype of float sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

FC = tl.constexpr(0)
SHARED = tl.constexpr(1)
GENERAL = tl.constexpr(2)

FIXED_MAX = tl.constexpr(2147483647.0)
ROUND = tl.constexpr(6755399441055744.0)  # 1.5 · 2**52: adding and taking it away rounds a float64 half to even


# ---- small pieces ----------------------------------------------------------------------------------------------------


@triton.jit
def to_fixed(value, overflow_ptr, mask, SCALE: tl.constexpr):
    """An addend as an int64 multiple of one unit; what does not fit an int32 raises the flag."""
    scaled = value.to(tl.float64) * SCALE
    fits = tl.abs(scaled) <= FIXED_MAX
    tl.store(overflow_ptr + tl.zeros_like(scaled).to(tl.int32), 1, mask=mask & (fits == 0))
    return ((tl.where(fits, scaled, 0.0) + ROUND) - ROUND).to(tl.int64)


@triton.jit
def anchor_delta(x_ptr, anchor_ptr, row, mask, ACC: tl.constexpr):
    """u = x[a] - x[b] for anchors at anchor_ptr, in input rows that start at `row`."""
    a = tl.load(anchor_ptr, mask=mask, other=0)
    b = tl.load(anchor_ptr + 1, mask=mask, other=0)
    left = tl.load(x_ptr + row + a, mask=mask, other=0.0).to(ACC)
    right = tl.load(x_ptr + row + b, mask=mask, other=0.0).to(ACC)
    return left - right


@triton.jit
def uncertainty_slope(u):
    """0.5 sgn(u) / (1 + |u|)², sgn(0) = -1; divided with correct rounding so that every backend gives the same bits."""
    near = 1.0 + tl.abs(u)
    half = tl.where(u > 0, 0.5, -0.5).to(u.dtype)
    square = near * near
    return half / square if u.dtype == tl.float64 else tl.div_rn(half, square)


# ---- detect ----------------------------------------------------------------------------------------------------------


@triton.jit
def detect_tile(
    x_ptr, anchors_ptr, row, t, t_mask,
    N_C: tl.constexpr, N_C_PADDED: tl.constexpr, TRAIN: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Indices, closest deltas and their numbers of several detectors [T] on one row of x, all pairs compared at once."""
    r = tl.arange(0, N_C_PADDED)
    pair_mask = t_mask[:, None] & (r < N_C)[None, :]
    pair_ptr = anchors_ptr + t[:, None] * (2 * N_C) + 2 * r[None, :]
    u = anchor_delta(x_ptr, pair_ptr, row, pair_mask, ACC)
    index = tl.sum((u > 0).to(tl.int32) << r[None, :], axis=1)
    if TRAIN:
        distance = tl.where(pair_mask, tl.abs(u), float("inf"))
        nearest = tl.min(distance, axis=1)
        # The first of equals: the smallest r whose distance is the least one. (A NaN equals nothing and leaves N_C - 1.)
        which = tl.min(tl.where(distance == nearest[:, None], r[None, :], N_C - 1), axis=1)
        closest = tl.sum(tl.where(r[None, :] == which[:, None], u, 0.0), axis=1)
        return index, closest, which
    else:
        return index, index, index


@triton.jit
def check_detectors_kernel(
    x_ptr, anchors_ptr, index_ptr, delta_ptr, which_ptr, n_inputs, n_detectors,
    N_C: tl.constexpr, N_C_PADDED: tl.constexpr, TRAIN: tl.constexpr, ACC: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """One program per (row of x, tile of detectors)."""
    b = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    mask = t < n_detectors
    index, closest, which = detect_tile(x_ptr, anchors_ptr, b * n_inputs, t, mask, N_C, N_C_PADDED, TRAIN, ACC)
    at = b * n_detectors + t
    tl.store(index_ptr + at, index, mask=mask)
    if TRAIN:
        tl.store(delta_ptr + at, closest, mask=mask)
        tl.store(which_ptr + at, which, mask=mask)


@triton.jit
def transpose_kernel(x_ptr, out_ptr, n_rows, n_columns, BLOCK: tl.constexpr):
    """out [columns, rows] = x [rows, columns], tile by tile."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < n_rows)[:, None] & (column < n_columns)[None, :]
    tile = tl.load(x_ptr + row[:, None] * n_columns + column[None, :], mask=mask)
    tl.store(out_ptr + column[:, None] * n_rows + row[None, :], tl.trans(tile), mask=tl.trans(mask))


@triton.jit
def check_columns_kernel(
    columns_ptr, anchors_ptr, index_ptr, batch, n_detectors,
    N_C: tl.constexpr, ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Indices [N_t, B] from x by columns [I, B], one program per BLOCK_B rows of the batch and all detectors.

    Neighbouring lanes are neighbouring rows of the batch, so every read is in line, and the columns of these rows stay in the
    first-level cache while all detectors compare them.
    """
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    for start in range(0, n_detectors, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        t_mask = t < n_detectors
        mask = t_mask[:, None] & (b < batch)[None, :]
        index = tl.zeros([BLOCK_T, BLOCK_B], tl.int32)
        for r in tl.static_range(N_C):
            left = tl.load(anchors_ptr + (t * N_C + r) * 2, mask=t_mask, other=0).to(tl.int64) * batch
            right = tl.load(anchors_ptr + (t * N_C + r) * 2 + 1, mask=t_mask, other=0).to(tl.int64) * batch
            u = tl.load(columns_ptr + left[:, None] + b[None, :], mask=mask, other=0.0).to(ACC)
            u -= tl.load(columns_ptr + right[:, None] + b[None, :], mask=mask, other=0.0).to(ACC)
            index += (u > 0).to(tl.int32) << r
        tl.store(index_ptr + t.to(tl.int64)[:, None] * batch + b[None, :], index, mask=mask)


# ---- forward ---------------------------------------------------------------------------------------------------------


@triton.jit
def block_of_detectors(
    block, start_ptr, block_start_ptr, block_detectors_ptr, n_detectors, LAYOUT: tl.constexpr, WIDTH: tl.constexpr
):
    """First and last place of a block in the list of detectors, how many outputs it reaches, where their list begins."""
    if LAYOUT == FC:
        return 0, n_detectors, WIDTH, 0
    else:
        first = tl.load(block_start_ptr + block)
        head = tl.load(block_detectors_ptr + first)
        targets = tl.load(start_ptr + head)
        width = WIDTH if WIDTH > 0 else (tl.load(start_ptr + head + 1) - targets).to(tl.int32)
        return first, tl.load(block_start_ptr + block + 1), width, targets


@triton.jit
def row_offset(
    t, index, start_ptr, width, t_mask, N_ROWS: tl.constexpr, LAYOUT: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr
):
    """Where the row `index` of detector t begins in the flat weights."""
    if WIDTH > 0:
        row = t * N_ROWS + index
        return row.to(tl.int64) * WIDTH if WIDE else row * WIDTH
    else:
        start = tl.load(start_ptr + t, mask=t_mask, other=0) * N_ROWS
        return start + index * width if WIDE else start.to(tl.int32) + index * width


@triton.jit
def fill_outputs_kernel(
    x_ptr, anchors_ptr, weight_ptr, index_ptr, delta_ptr, which_ptr, out_ptr, overflow_ptr,
    start_ptr, targets_ptr, block_start_ptr, block_detectors_ptr,
    n_inputs, n_detectors, n_outputs, n_blocks,
    N_ROWS: tl.constexpr, N_C: tl.constexpr, N_C_PADDED: tl.constexpr, LAYOUT: tl.constexpr, WIDTH: tl.constexpr,
    ATOMIC: tl.constexpr, DETECT: tl.constexpr, TRAIN: tl.constexpr, SCALE: tl.constexpr,
    WIDE: tl.constexpr, ACC: tl.constexpr, X_ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (row of the batch, block of detectors, tile of its outputs): detect if asked, add up the chosen rows."""
    b = (tl.program_id(0) // n_blocks).to(tl.int64)
    block = tl.program_id(0) % n_blocks
    tile = tl.program_id(1)
    first, last, width, target_base = block_of_detectors(
        block, start_ptr, block_start_ptr, block_detectors_ptr, n_detectors, LAYOUT, WIDTH
    )
    o = tile * BLOCK_O + tl.arange(0, BLOCK_O)
    o_mask = o < width
    total = tl.zeros([BLOCK_T, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
    for start in range(first, last, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        t_mask = t < last
        if LAYOUT == SHARED:
            t = tl.load(block_detectors_ptr + t, mask=t_mask, other=0)
        if DETECT:
            index, closest, which = detect_tile(x_ptr, anchors_ptr, b * n_inputs, t, t_mask, N_C, N_C_PADDED, TRAIN, X_ACC)
            if TRAIN:
                at = b * n_detectors + t
                keep = t_mask & (tile == 0)
                tl.store(index_ptr + at, index, mask=keep)
                tl.store(delta_ptr + at, closest, mask=keep)
                tl.store(which_ptr + at, which, mask=keep)
        else:
            index = tl.load(index_ptr + b * n_detectors + t, mask=t_mask, other=0)
        row = row_offset(t, index, start_ptr, width, t_mask, N_ROWS, LAYOUT, WIDTH, WIDE)
        mask = t_mask[:, None] & o_mask[None, :]
        addend = tl.load(weight_ptr + row[:, None] + o[None, :], mask=mask, other=0.0).to(ACC)
        total += to_fixed(addend, overflow_ptr, mask, SCALE) if SCALE > 0 else addend
    y = tl.sum(total, axis=0)
    if LAYOUT == SHARED:
        o = tl.load(targets_ptr + target_base + o, mask=o_mask, other=0)
    if ATOMIC:
        tl.atomic_add(out_ptr + b * n_outputs + o, y, mask=o_mask, sem="relaxed")
    else:
        tl.store(out_ptr + b * n_outputs + o, y, mask=o_mask)


@triton.jit
def fill_outputs_slab_kernel(
    weight_ptr, index_ptr, out_ptr, overflow_ptr, batch, n_detectors, row_stride, detector_stride,
    N_ROWS: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Large batches, FC: one program per (many rows of the batch, slab of outputs).

    The programs of one processor walk the detectors at one pace, so the slab W[t, :, o] stays in its first-level cache while
    many rows of the batch choose from it (B 32768, O 256, 128 tables: 0.32 ms against 0.44 ms).
    """
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    b_mask = b < batch
    mask = b_mask[:, None] & (o < WIDTH)[None, :]
    row_ptr = index_ptr + b.to(tl.int64) * row_stride
    total = tl.zeros([BLOCK_B, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
    for t in range(n_detectors):
        index = tl.load(row_ptr + tl.cast(t, tl.int64) * detector_stride, mask=b_mask, other=0)
        row = row_offset(t, index, index_ptr, WIDTH, b_mask, N_ROWS, FC, WIDTH, WIDE)
        addend = tl.load(weight_ptr + row[:, None] + o[None, :], mask=mask, other=0.0).to(ACC)
        total += to_fixed(addend, overflow_ptr, mask, SCALE) if SCALE > 0 else addend
    tl.store(out_ptr + b.to(tl.int64)[:, None] * WIDTH + o[None, :], total, mask=mask)


@triton.jit
def fill_outputs_general_kernel(
    weight_ptr, index_ptr, out_ptr, overflow_ptr, start_ptr, targets_ptr,
    n_detectors, n_outputs, max_fan_out,
    N_ROWS: tl.constexpr, SCALE: tl.constexpr, ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (row of the batch, tile of detectors): walk the forward synapse groups of their lookup neurons."""
    b = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    t_mask = t < n_detectors
    neuron = t * N_ROWS + tl.load(index_ptr + b * n_detectors + t, mask=t_mask, other=0)
    first = tl.load(start_ptr + neuron, mask=t_mask, other=0)
    last = tl.load(start_ptr + neuron + 1, mask=t_mask, other=0)
    for start in range(0, max_fan_out, BLOCK_O):
        synapse = first[:, None] + (start + tl.arange(0, BLOCK_O))[None, :]
        mask = synapse < last[:, None]
        addend = tl.load(weight_ptr + synapse, mask=mask, other=0.0).to(ACC)
        o = tl.load(targets_ptr + synapse, mask=mask, other=0)
        if SCALE > 0:
            tl.atomic_add(out_ptr + b * n_outputs + o, to_fixed(addend, overflow_ptr, mask, SCALE), mask=mask, sem="relaxed")
        else:
            tl.atomic_add(out_ptr + b * n_outputs + o, addend, mask=mask, sem="relaxed")


# ---- backward, to the inputs -----------------------------------------------------------------------------------------


@triton.jit
def propagate_kernel(
    grad_ptr, weight_ptr, index_ptr, delta_ptr, which_ptr, anchors_ptr, dx_ptr, overflow_ptr,
    start_ptr, targets_ptr, block_start_ptr, block_detectors_ptr,
    n_inputs, n_detectors, n_outputs, n_blocks,
    N_ROWS: tl.constexpr, N_C: tl.constexpr, LAYOUT: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr, WIDE: tl.constexpr,
    ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (row of the batch, tile of detectors of one block): two dot products, then the anchors."""
    b = (tl.program_id(0) // n_blocks).to(tl.int64)
    block = tl.program_id(0) % n_blocks
    first, last, width, target_base = block_of_detectors(
        block, start_ptr, block_start_ptr, block_detectors_ptr, n_detectors, LAYOUT, WIDTH
    )
    t = first + tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    t_mask = t < last
    if LAYOUT == SHARED:
        t = tl.load(block_detectors_ptr + t, mask=t_mask, other=0)
    at = b * n_detectors + t
    index = tl.load(index_ptr + at, mask=t_mask, other=0)
    which = tl.load(which_ptr + at, mask=t_mask, other=0)
    row = row_offset(t, index, start_ptr, width, t_mask, N_ROWS, LAYOUT, WIDTH, WIDE)
    alt = row_offset(t, index ^ (1 << which), start_ptr, width, t_mask, N_ROWS, LAYOUT, WIDTH, WIDE)
    gain2 = tl.zeros([BLOCK_T, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
    for start in range(0, width, BLOCK_O):
        o = start + tl.arange(0, BLOCK_O)
        o_mask = o < width
        mask = t_mask[:, None] & o_mask[None, :]
        main_w = tl.load(weight_ptr + row[:, None] + o[None, :], mask=mask, other=0.0).to(ACC)
        alt_w = tl.load(weight_ptr + alt[:, None] + o[None, :], mask=mask, other=0.0).to(ACC)
        if LAYOUT == SHARED:
            o = tl.load(targets_ptr + target_base + o, mask=o_mask, other=0)
        g = tl.load(grad_ptr + b * n_outputs + o, mask=o_mask, other=0.0).to(ACC)[None, :]
        if SCALE > 0:
            gain2 += to_fixed(g * main_w, overflow_ptr, mask, SCALE) - to_fixed(g * alt_w, overflow_ptr, mask, SCALE)
        else:
            gain2 += g * (main_w - alt_w)
    send_to_anchors(
        tl.sum(gain2, axis=1), tl.load(delta_ptr + at, mask=t_mask, other=1.0), which, t, t_mask, b,
        anchors_ptr, dx_ptr, overflow_ptr, n_inputs, N_C, SCALE, ACC,
    )  # fmt: skip


@triton.jit
def send_to_anchors(
    gain, delta, which, t, t_mask, b, anchors_ptr, dx_ptr, overflow_ptr, n_inputs,
    N_C: tl.constexpr, SCALE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """dx[a] += slope, dx[b] -= slope at the anchors of the closest call; gain and delta [T]."""
    if SCALE > 0:
        limit = tl.abs(gain) > 2147483647
        tl.store(overflow_ptr + tl.zeros_like(which), 1, mask=t_mask & limit)
        gain = (gain.to(tl.float64) / SCALE).to(ACC)
    slope = uncertainty_slope(delta).to(ACC) * gain
    pair_ptr = anchors_ptr + (t * N_C + which) * 2
    into_a = dx_ptr + b * n_inputs + tl.load(pair_ptr, mask=t_mask, other=0)
    into_b = dx_ptr + b * n_inputs + tl.load(pair_ptr + 1, mask=t_mask, other=0)
    if SCALE > 0:
        units = to_fixed(slope, overflow_ptr, t_mask, SCALE)
        tl.atomic_add(into_a, units, mask=t_mask, sem="relaxed")
        tl.atomic_add(into_b, -units, mask=t_mask, sem="relaxed")
    else:
        tl.atomic_add(into_a, slope, mask=t_mask, sem="relaxed")
        tl.atomic_add(into_b, -slope, mask=t_mask, sem="relaxed")


@triton.jit
def neuron_dot(
    grad_row_ptr, weight_ptr, start_ptr, targets_ptr, overflow_ptr, neuron, t_mask, max_fan_out,
    SCALE: tl.constexpr, ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """g · W[neuron] over the synapses of each lookup neuron [T]."""
    first = tl.load(start_ptr + neuron, mask=t_mask, other=0)
    last = tl.load(start_ptr + neuron + 1, mask=t_mask, other=0)
    total = tl.zeros([BLOCK_T, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
    for start in range(0, max_fan_out, BLOCK_O):
        synapse = first[:, None] + (start + tl.arange(0, BLOCK_O))[None, :]
        mask = synapse < last[:, None]
        weight = tl.load(weight_ptr + synapse, mask=mask, other=0.0).to(ACC)
        o = tl.load(targets_ptr + synapse, mask=mask, other=0)
        g = tl.load(grad_row_ptr + o, mask=mask, other=0.0).to(ACC)
        total += to_fixed(g * weight, overflow_ptr, mask, SCALE) if SCALE > 0 else g * weight
    return tl.sum(total, axis=1)


@triton.jit
def propagate_general_kernel(
    grad_ptr, weight_ptr, index_ptr, delta_ptr, which_ptr, anchors_ptr, dx_ptr, overflow_ptr, start_ptr, targets_ptr,
    n_inputs, n_detectors, n_outputs, max_fan_out,
    N_ROWS: tl.constexpr, N_C: tl.constexpr, SCALE: tl.constexpr, ACC: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (row of the batch, tile of detectors)."""
    b = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    t_mask = t < n_detectors
    at = b * n_detectors + t
    index = tl.load(index_ptr + at, mask=t_mask, other=0)
    which = tl.load(which_ptr + at, mask=t_mask, other=0)
    row_ptr = grad_ptr + b * n_outputs
    gain = neuron_dot(
        row_ptr, weight_ptr, start_ptr, targets_ptr, overflow_ptr, t * N_ROWS + index, t_mask, max_fan_out,
        SCALE, ACC, BLOCK_T, BLOCK_O,
    )  # fmt: skip
    gain -= neuron_dot(
        row_ptr, weight_ptr, start_ptr, targets_ptr, overflow_ptr, t * N_ROWS + (index ^ (1 << which)), t_mask,
        max_fan_out, SCALE, ACC, BLOCK_T, BLOCK_O,
    )  # fmt: skip
    send_to_anchors(
        gain, tl.load(delta_ptr + at, mask=t_mask, other=1.0), which, t, t_mask, b,
        anchors_ptr, dx_ptr, overflow_ptr, n_inputs, N_C, SCALE, ACC,
    )  # fmt: skip


# ---- backward, to the weights ----------------------------------------------------------------------------------------
# Two ways. *Scatter*: add each row of g to the weights it chose, with atomics: best where rows are short.
# *Sort*: put the rows of the batch in order of the lookup neuron they chose, detector by detector (a counting sort); then each
# neuron adds up its own rows of g and writes its weights once, without atomics.


@triton.jit
def scatter_weight_gradients_kernel(
    grad_ptr, index_ptr, lr_ptr, out_ptr, start_ptr, targets_ptr, block_start_ptr, block_detectors_ptr,
    batch, n_detectors, n_outputs, n_blocks, n_tiles, step,
    N_ROWS: tl.constexpr, LAYOUT: tl.constexpr, WIDTH: tl.constexpr, MIXED_LR: tl.constexpr, IN_PLACE: tl.constexpr,
    WIDE: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (ROWS rows of the batch, tile of detectors of a block, tile of outputs).

    Neighbouring rows that chose the same neuron are added before the atomic: a batch that hits one entry would wait in line
    for its address otherwise (about 40 ns each).
    """
    b = (tl.program_id(0) // n_blocks).to(tl.int64) * ROWS
    block = tl.program_id(0) % n_blocks
    first, last, width, target_base = block_of_detectors(
        block, start_ptr, block_start_ptr, block_detectors_ptr, n_detectors, LAYOUT, WIDTH
    )
    t = first + (tl.program_id(1) % n_tiles) * BLOCK_T + tl.arange(0, BLOCK_T)
    t_mask = t < last
    if LAYOUT == SHARED:
        t = tl.load(block_detectors_ptr + t, mask=t_mask, other=0)
    k = (tl.program_id(1) // n_tiles) * BLOCK_O + tl.arange(0, BLOCK_O)
    k_mask = k < width
    o = k
    if LAYOUT == SHARED:
        o = tl.load(targets_ptr + target_base + k, mask=k_mask, other=0)
    lr = tl.full([1, BLOCK_O], 1.0, ACC)
    if MIXED_LR:
        lr = tl.load(lr_ptr + target_base + k, mask=k_mask, other=0.0).to(ACC)[None, :]
    if IN_PLACE:
        lr = -step * lr
    index = tl.load(index_ptr + b * n_detectors + t, mask=t_mask, other=-1)
    total = tl.zeros([BLOCK_T, BLOCK_O], ACC)
    for j in tl.static_range(ROWS):
        g = tl.load(grad_ptr + (b + j) * n_outputs + o, mask=k_mask & (b + j < batch), other=0.0).to(ACC)
        total += g[None, :] * lr
        # A row past the batch, or the last of this program, has no successor: -1 differs from every index.
        alive = t_mask & (b + j + 1 < batch) & (j + 1 < ROWS)
        following = tl.load(index_ptr + (b + j + 1) * n_detectors + t, mask=alive, other=-1)
        ends = (following != index)[:, None]
        row = row_offset(t, tl.maximum(index, 0), start_ptr, width, t_mask, N_ROWS, LAYOUT, WIDTH, WIDE)
        tl.atomic_add(
            out_ptr + row[:, None] + k[None, :], total, mask=ends & (index >= 0)[:, None] & k_mask[None, :], sem="relaxed"
        )
        total = tl.where(ends, 0.0, total)
        index = following


@triton.jit
def rank_kernel(index_ptr, count_ptr, rank_ptr, total, n_detectors, N_ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Count how often each lookup neuron was chosen; rank[b, t] = how many chose it before."""
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < total
    neuron = (lane % n_detectors) * N_ROWS + tl.load(index_ptr + lane, mask=mask, other=0)
    rank = tl.atomic_add(count_ptr + neuron, tl.full([BLOCK], 1, tl.int32), mask=mask, sem="relaxed")
    tl.store(rank_ptr + lane, rank, mask=mask)


@triton.jit
def place_kernel(
    index_ptr, end_ptr, count_ptr, rank_ptr, order_ptr, total, batch, n_detectors,
    N_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """order[t, :] lists the rows of the batch, sorted by the lookup neuron that detector t chose for them."""
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < total
    t = lane % n_detectors
    neuron = t * N_ROWS + tl.load(index_ptr + lane, mask=mask, other=0)
    start = tl.load(end_ptr + neuron, mask=mask, other=0) - tl.load(count_ptr + neuron, mask=mask, other=0)
    rank = tl.load(rank_ptr + lane, mask=mask, other=0)
    tl.store(order_ptr + t * batch + start + rank, (lane // n_detectors).to(tl.int32), mask=mask)


@triton.jit
def neuron_synapses(neuron, start_ptr, n_outputs, N_ROWS: tl.constexpr, LAYOUT: tl.constexpr):
    """Where the weights and the targets of one lookup neuron begin, and how many there are (start: det_start or row_start)."""
    if LAYOUT == FC:
        return neuron.to(tl.int64) * n_outputs, neuron.to(tl.int64) * 0, n_outputs
    elif LAYOUT == SHARED:
        start = tl.load(start_ptr + neuron // N_ROWS)
        width = (tl.load(start_ptr + neuron // N_ROWS + 1) - start).to(tl.int32)
        return start * N_ROWS + (neuron % N_ROWS).to(tl.int64) * width, start, width
    else:
        start = tl.load(start_ptr + neuron)
        return start, start, (tl.load(start_ptr + neuron + 1) - start).to(tl.int32)


@triton.jit
def sum_rows(
    grad_ptr, order_ptr, overflow_ptr, first, last, o, o_mask, lr, n_outputs,
    SCALE: tl.constexpr, ACC: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Σ lr · g[b, o] over the rows of the batch listed in order[first:last]; lr [1, O]."""
    total = tl.zeros([BLOCK_B, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
    for start in range(first, last, BLOCK_B):
        i = start + tl.arange(0, BLOCK_B)
        b = tl.load(order_ptr + i, mask=i < last, other=0).to(tl.int64)
        mask = (i < last)[:, None] & o_mask[None, :]
        addend = tl.load(grad_ptr + b[:, None] * n_outputs + o[None, :], mask=mask, other=0.0).to(ACC) * lr
        total += to_fixed(addend, overflow_ptr, mask, SCALE) if SCALE > 0 else addend
    return tl.sum(total, axis=0)


@triton.jit
def gather_weight_gradients_kernel(
    grad_ptr, order_ptr, end_ptr, count_ptr, lr_ptr, out_ptr, overflow_ptr, start_ptr, targets_ptr, compact_ptr,
    batch, n_outputs, step,
    N_ROWS: tl.constexpr, LAYOUT: tl.constexpr, MIXED_LR: tl.constexpr, IN_PLACE: tl.constexpr, COMPACT: tl.constexpr,
    SCALE: tl.constexpr, ACC: tl.constexpr, CAP: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (lookup neuron, tile of its synapses): the first CAP rows that chose it; `overflow` takes the rest."""
    neuron = tl.program_id(0)
    count = tl.load(count_ptr + neuron)
    if IN_PLACE or COMPACT:
        if count == 0:
            return
    base, target_base, width = neuron_synapses(neuron, start_ptr, n_outputs, N_ROWS, LAYOUT)
    if COMPACT:  # only neurons that were chosen have a place in the output
        base = tl.load(compact_ptr + neuron)
    k = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    k_mask = k < width
    o = k
    if LAYOUT != FC:
        o = tl.load(targets_ptr + target_base + k, mask=k_mask, other=0)
    lr = tl.full([1, BLOCK_O], 1.0, ACC)
    if MIXED_LR:
        lr = tl.load(lr_ptr + target_base + k, mask=k_mask, other=0.0).to(ACC)[None, :]
    first = tl.load(end_ptr + neuron) - count
    total = sum_rows(
        grad_ptr, order_ptr + (neuron // N_ROWS).to(tl.int64) * batch, overflow_ptr, first, first + tl.minimum(count, CAP),
        o, k_mask, lr, n_outputs, SCALE, ACC, BLOCK_B, BLOCK_O,
    )  # fmt: skip
    if IN_PLACE:
        total = tl.load(out_ptr + base + k, mask=k_mask, other=0.0) - step * total
    tl.store(out_ptr + base + k, total, mask=k_mask)


@triton.jit
def gather_overflow_kernel(
    grad_ptr, index_ptr, order_ptr, end_ptr, count_ptr, lr_ptr, out_ptr, overflow_ptr,
    start_ptr, targets_ptr, compact_ptr,
    batch, n_detectors, n_outputs, n_chunks, step,
    N_ROWS: tl.constexpr, LAYOUT: tl.constexpr, MIXED_LR: tl.constexpr, IN_PLACE: tl.constexpr, COMPACT: tl.constexpr,
    SCALE: tl.constexpr, ACC: tl.constexpr, CAP: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (detector and CAP places of its `order`, tile of synapses): rows past a neuron's first CAP.

    Such a row lies more than CAP places behind its neuron's first, so all of them within these CAP places belong to the one
    neuron that owns the first place. This is what keeps a batch that hits one entry from running on one processor.
    """
    t = tl.program_id(0) // n_chunks
    here = (tl.program_id(0) % n_chunks) * CAP
    order_ptr += t.to(tl.int64) * batch
    head = tl.load(order_ptr + here).to(tl.int64)
    neuron = t * N_ROWS + tl.load(index_ptr + head * n_detectors + t)
    end = tl.load(end_ptr + neuron)
    first = tl.maximum(here, end - tl.load(count_ptr + neuron) + CAP)
    last = tl.minimum(here + CAP, end)
    if first >= last:
        return
    base, target_base, width = neuron_synapses(neuron, start_ptr, n_outputs, N_ROWS, LAYOUT)
    if COMPACT:  # only neurons that were chosen have a place in the output
        base = tl.load(compact_ptr + neuron)
    k = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    k_mask = k < width
    o = k
    if LAYOUT != FC:
        o = tl.load(targets_ptr + target_base + k, mask=k_mask, other=0)
    lr = tl.full([1, BLOCK_O], 1.0, ACC)
    if MIXED_LR:
        lr = tl.load(lr_ptr + target_base + k, mask=k_mask, other=0.0).to(ACC)[None, :]
    total = sum_rows(grad_ptr, order_ptr, overflow_ptr, first, last, o, k_mask, lr, n_outputs, SCALE, ACC, BLOCK_B, BLOCK_O)
    if IN_PLACE:
        total = -step * total
    tl.atomic_add(out_ptr + base + k, total, mask=k_mask, sem="relaxed")


# ---- sums ------------------------------------------------------------------------------------------------------------


@triton.jit
def convert_kernel(sum_ptr, out_ptr, overflow_ptr, total, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    """Integer sums back to floating point; a sum past the range of an int32 raises the flag."""
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < total
    units = tl.load(sum_ptr + lane, mask=mask, other=0).to(tl.int64)
    tl.store(overflow_ptr + tl.zeros([BLOCK], tl.int32), 1, mask=mask & (tl.abs(units) > 2147483647))
    tl.store(out_ptr + lane, (units.to(tl.float64) / SCALE).to(out_ptr.dtype.element_ty), mask=mask)

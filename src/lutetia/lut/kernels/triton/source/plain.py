"""The Triton sources of plain layers, for compiled graphs: hard reads, full connectivity, float32.

A compiled graph takes kernels whose arguments are tensors and numbers one by one, and launches them itself. These do what those
of `rows` do for the same layers, but the backward pass is one kernel, which compares x again, so that a graph keeps nothing else
for it. They trust nobody: an anchor outside of the inputs reads 0 and gets no gradient.

A row of a batch goes its own way through layers that follow each other: one launch serves up to four of them, `stack_...`.

    N_I inputs · N_T detectors · N_C anchor pairs of each · N_O outputs; of the layers of a stack T_1, C_1, O_1, ...
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import triton
import triton.language as tl

from lutetia.lut.kernels.triton.source.basics import also, uncertainty_slope
from lutetia.lut.kernels.triton.source.detect import closest_call
from lutetia.lut.kernels.triton.source.rows import clear


@triton.jit
def are_inputs(place, mask, N_I: tl.constexpr):
    """Which places are those of inputs."""
    return mask & (place >= 0) & (place < N_I)


@triton.jit
def chosen_rows(u, r):
    """The rows of tables that margins u [n, BLOCK_C] of pairs r choose."""
    return tl.sum((u > 0).to(tl.int32) << r[None, :], axis=1)


@triton.jit
def fill_row(x_ptr, layer, y_ptr, tile, sizes, blocks):
    """One row x of the batch -> one tile of the outputs of its y, by the weight and the anchors of a layer."""
    weight_ptr, anchors_ptr = layer
    N_T: tl.constexpr = sizes[1]
    N_C: tl.constexpr = sizes[2]
    N_O: tl.constexpr = sizes[3]
    o, r = tile * blocks[2] + tl.arange(0, blocks[2]), tl.arange(0, blocks[1])
    total = tl.zeros([blocks[0], blocks[2]], tl.float32)
    for start in range(0, N_T, blocks[0]):
        t = start + tl.arange(0, blocks[0])
        mask = (t < N_T)[:, None] & (r < N_C)[None, :]
        pair_ptr = anchors_ptr + t[:, None] * (2 * N_C) + 2 * r[None, :]
        left, right = tl.load(pair_ptr, mask=mask, other=0), tl.load(pair_ptr + 1, mask=mask, other=0)
        u = tl.load(x_ptr + left, mask=are_inputs(left, mask, sizes[0]), other=0.0)
        u -= tl.load(x_ptr + right, mask=are_inputs(right, mask, sizes[0]), other=0.0)
        row = ((t << N_C) + chosen_rows(u, r)) * N_O
        total += tl.load(weight_ptr + row[:, None] + o[None, :], mask=(t < N_T)[:, None] & (o < N_O)[None, :], other=0.0)
    tl.store(y_ptr + o, tl.sum(total, axis=0), mask=o < N_O)


@triton.jit
def plain_fill_kernel(
    x_ptr, weight_ptr, anchors_ptr, y_ptr,
    N_I: tl.constexpr, N_T: tl.constexpr, N_C: tl.constexpr, N_O: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (row of the batch, tile of outputs): y."""
    b, layer = tl.program_id(0).to(tl.int64), (weight_ptr, anchors_ptr)
    fill_row(x_ptr + b * N_I, layer, y_ptr + b * N_O, tl.program_id(1), (N_I, N_T, N_C, N_O), (BLOCK_T, BLOCK_C, BLOCK_O))


@triton.jit
def add_gradients(grad_ptr, x_ptr, layer, into, rows, sizes, blocks):
    """What some rows of the batch and one tile of the detectors add to dW and, unless dx is None, send to dx.

    layer: weight and anchors; into: dx and dW; rows: the first of them, the tile, the size of the batch.

    Neighbours in the batch that chose the same row of a table are added before the atomic: otherwise a batch that hits one entry
    would wait for its address.
    """
    weight_ptr, anchors_ptr = layer
    dx_ptr, dw_ptr = into
    first, tile, batch = rows
    TO_X: tl.constexpr = dx_ptr is not None
    N_I: tl.constexpr = sizes[0]
    N_T: tl.constexpr = sizes[1]
    N_C: tl.constexpr = sizes[2]
    N_O: tl.constexpr = sizes[3]
    BLOCK_B: tl.constexpr = blocks[0]
    BLOCK_T: tl.constexpr = blocks[1]
    BLOCK_O: tl.constexpr = blocks[3]
    n = tl.arange(0, BLOCK_B * BLOCK_T)  # a row of the batch and a detector
    b, t = first + n // BLOCK_T, tile * BLOCK_T + n % BLOCK_T
    there, r = (b < batch) & (t < N_T), tl.arange(0, blocks[2])
    # Loaded here and not in a function: torch takes all that a function is given for written to, if its result is an address.
    counts = there[:, None] & (r < N_C)[None, :]
    pair_ptr, row_ptr = anchors_ptr + t[:, None] * (2 * N_C) + 2 * r[None, :], x_ptr + (b * N_I)[:, None]
    left, right = tl.load(pair_ptr, mask=counts, other=0), tl.load(pair_ptr + 1, mask=counts, other=0)
    u = tl.load(row_ptr + left, mask=are_inputs(left, counts, N_I), other=0.0)
    u -= tl.load(row_ptr + right, mask=are_inputs(right, counts, N_I), other=0.0)
    index = chosen_rows(u, r)
    chosen = tl.reshape(tl.where(there, index, -1), [BLOCK_B, BLOCK_T])  # -1 differs from every index
    j, detectors = tl.arange(0, BLOCK_B)[:, None], tile * BLOCK_T + tl.arange(0, BLOCK_T)
    if TO_X:
        _, which = closest_call(tl.where(counts, tl.abs(u), float("inf")), N_C)
        row, other_row = ((t << N_C) + index) * N_O, ((t << N_C) + (index ^ (1 << which))) * N_O
        gain = tl.zeros([BLOCK_B * BLOCK_T], tl.float32)
    for start in range(0, N_O, BLOCK_O):
        o = start + tl.arange(0, BLOCK_O)
        if TO_X:
            mask = there[:, None] & (o < N_O)[None, :]
            weight = tl.load(weight_ptr + row[:, None] + o[None, :], mask=mask, other=0.0)
            other = tl.load(weight_ptr + other_row[:, None] + o[None, :], mask=mask, other=0.0)
            gain += tl.sum(tl.load(grad_ptr + (b * N_O)[:, None] + o[None, :], mask=mask, other=0.0) * (weight - other), axis=1)
        total = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
        following = tl.sum(tl.where(j == 0, chosen, 0), axis=0)
        for k in tl.static_range(BLOCK_B):
            here, following = following, tl.full([BLOCK_T], -1, tl.int32)
            if k + 1 < BLOCK_B:
                following = tl.sum(tl.where(j == k + 1, chosen, 0), axis=0)
            total += tl.load(grad_ptr + (first + k) * N_O + o, mask=also(o < N_O, first + k < batch), other=0.0)[None, :]
            ends = (following != here)[:, None]
            place = ((detectors << N_C) + tl.maximum(here, 0)) * N_O
            added = ends & (here >= 0)[:, None] & (o < N_O)[None, :]
            tl.atomic_add(dw_ptr + place[:, None] + o[None, :], total, mask=added, sem="relaxed")
            total = tl.where(ends, 0.0, total)
    if TO_X:
        slope = uncertainty_slope(tl.sum(tl.where(r[None, :] == which[:, None], u, 0.0), axis=1)) * gain
        near_ptr = anchors_ptr + (t * N_C + which) * 2
        near, far = tl.load(near_ptr, mask=there, other=-1), tl.load(near_ptr + 1, mask=there, other=-1)
        tl.atomic_add(dx_ptr + b * N_I + near, slope, mask=are_inputs(near, there, N_I), sem="relaxed")
        tl.atomic_add(dx_ptr + b * N_I + far, -slope, mask=are_inputs(far, there, N_I), sem="relaxed")


@triton.jit
def plain_gradients_kernel(
    grad_ptr, x_ptr, weight_ptr, anchors_ptr, dx_ptr, dw_ptr, batch,
    N_I: tl.constexpr, N_T: tl.constexpr, N_C: tl.constexpr, N_O: tl.constexpr, TO_X: tl.constexpr, ALONE: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (BLOCK_B rows of the batch, tile of detectors): what they add to dW and, TO_X, send to dx.

    A program that is ALONE has all detectors, and sets its rows of dx to zero.
    """
    first, layer = tl.program_id(0).to(tl.int64) * BLOCK_B, (weight_ptr, anchors_ptr)
    if TO_X and ALONE:
        clear(dx_ptr, first * N_I, tl.minimum(first + BLOCK_B, batch) * N_I, 128)
        tl.debug_barrier()  # the numbers are there before a thread adds to them
    rows, into = (first, tl.program_id(1), batch), (dx_ptr if TO_X else None, dw_ptr)
    add_gradients(grad_ptr, x_ptr, layer, into, rows, (N_I, N_T, N_C, N_O), (BLOCK_B, BLOCK_T, BLOCK_C, BLOCK_O))


# ---- stacks ----------------------------------------------------------------------------------------------------------
# Pointers of layers that a stack does not have are not touched.


@triton.jit
def stack_fill_kernel(
    x_ptr, weight_1, weight_2, weight_3, weight_4, anchors_1, anchors_2, anchors_3, anchors_4, y_1, y_2, y_3, y_4,
    LAYERS: tl.constexpr, N_I: tl.constexpr,
    T_1: tl.constexpr, C_1: tl.constexpr, O_1: tl.constexpr, T_2: tl.constexpr, C_2: tl.constexpr, O_2: tl.constexpr,
    T_3: tl.constexpr, C_3: tl.constexpr, O_3: tl.constexpr, T_4: tl.constexpr, C_4: tl.constexpr, O_4: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per row of the batch: y of every layer, each of one tile of outputs."""
    b = tl.program_id(0).to(tl.int64)
    fill_row(x_ptr + b * N_I, (weight_1, anchors_1), y_1 + b * O_1, 0, (N_I, T_1, C_1, O_1), (BLOCK_T, BLOCK_C, BLOCK_O))
    tl.debug_barrier()  # the next layer reads what this one wrote
    fill_row(y_1 + b * O_1, (weight_2, anchors_2), y_2 + b * O_2, 0, (O_1, T_2, C_2, O_2), (BLOCK_T, BLOCK_C, BLOCK_O))
    if LAYERS > 2:
        tl.debug_barrier()
        fill_row(y_2 + b * O_2, (weight_3, anchors_3), y_3 + b * O_3, 0, (O_2, T_3, C_3, O_3), (BLOCK_T, BLOCK_C, BLOCK_O))
    if LAYERS > 3:
        tl.debug_barrier()
        fill_row(y_3 + b * O_3, (weight_4, anchors_4), y_4 + b * O_4, 0, (O_3, T_4, C_4, O_4), (BLOCK_T, BLOCK_C, BLOCK_O))


@triton.jit
def fill_again(x_ptr, layer, y_ptr, rows, sizes, blocks):
    """y of some rows of the batch: the first of them, a tile that is not used, the size of the batch."""
    first, _, batch = rows
    for b in range(first, tl.minimum(first + blocks[0], batch)):
        fill_row(x_ptr + b * sizes[0], layer, y_ptr + b * sizes[3], 0, sizes, (blocks[1], blocks[2], blocks[4]))
    tl.debug_barrier()


@triton.jit
def add_all_gradients(grad_ptr, x_ptr, layer, into, rows, sizes, blocks):
    """`add_gradients` of all detectors, which are one tile, to rows of dx that begin with zeros."""
    first, _, batch = rows
    if into[0] is not None:
        clear(into[0], first * sizes[0], tl.minimum(first + blocks[0], batch) * sizes[0], 128)
        tl.debug_barrier()
    add_gradients(grad_ptr, x_ptr, layer, into, rows, sizes, blocks)
    tl.debug_barrier()


@triton.jit
def stack_gradients_kernel(
    grad_ptr, x_ptr, weight_1, weight_2, weight_3, weight_4, anchors_1, anchors_2, anchors_3, anchors_4, y_1, y_2, y_3,
    dy_1, dy_2, dy_3, dx_ptr, dw_1, dw_2, dw_3, dw_4, batch,
    LAYERS: tl.constexpr, N_I: tl.constexpr,
    T_1: tl.constexpr, C_1: tl.constexpr, O_1: tl.constexpr, T_2: tl.constexpr, C_2: tl.constexpr, O_2: tl.constexpr,
    T_3: tl.constexpr, C_3: tl.constexpr, O_3: tl.constexpr, T_4: tl.constexpr, C_4: tl.constexpr, O_4: tl.constexpr,
    TO_X: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
    ALL_O: tl.constexpr,
):  # fmt: skip
    """One program per BLOCK_B rows of the batch: computes y of all layers but the last again, then goes back through them.

    `grad_ptr` is the gradient of the last layer's y; dy of the others come out, as dW of all and, TO_X, dx.
    """
    rows = (tl.program_id(0).to(tl.int64) * BLOCK_B, 0, batch)
    fill_again(x_ptr, (weight_1, anchors_1), y_1, rows, (N_I, T_1, C_1, O_1), (BLOCK_B, BLOCK_T, BLOCK_C, BLOCK_O, ALL_O))
    if LAYERS > 2:
        fill_again(y_1, (weight_2, anchors_2), y_2, rows, (O_1, T_2, C_2, O_2), (BLOCK_B, BLOCK_T, BLOCK_C, BLOCK_O, ALL_O))
    if LAYERS > 3:
        fill_again(y_2, (weight_3, anchors_3), y_3, rows, (O_2, T_3, C_3, O_3), (BLOCK_B, BLOCK_T, BLOCK_C, BLOCK_O, ALL_O))
        add_all_gradients(
            grad_ptr, y_3, (weight_4, anchors_4), (dy_3, dw_4), rows, (O_3, T_4, C_4, O_4),
            (BLOCK_B, BLOCK_T, BLOCK_C, BLOCK_O, ALL_O),
        )  # fmt: skip
    if LAYERS > 2:
        grad_3 = dy_3 if LAYERS > 3 else grad_ptr
        add_all_gradients(
            grad_3, y_2, (weight_3, anchors_3), (dy_2, dw_3), rows, (O_2, T_3, C_3, O_3),
            (BLOCK_B, BLOCK_T, BLOCK_C, BLOCK_O, ALL_O),
        )  # fmt: skip
    grad_2 = dy_2 if LAYERS > 2 else grad_ptr
    add_all_gradients(
        grad_2, y_1, (weight_2, anchors_2), (dy_1, dw_2), rows, (O_1, T_2, C_2, O_2), (BLOCK_B, BLOCK_T, BLOCK_C, BLOCK_O, ALL_O)
    )
    add_all_gradients(
        dy_1, x_ptr, (weight_1, anchors_1), (dx_ptr if TO_X else None, dw_1), rows, (N_I, T_1, C_1, O_1),
        (BLOCK_B, BLOCK_T, BLOCK_C, BLOCK_O, ALL_O),
    )  # fmt: skip

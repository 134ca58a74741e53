"""The Triton sources of plain layers, for compiled graphs: hard reads, full connectivity, float32.

A compiled graph takes kernels whose arguments are tensors and numbers one by one, and launches them itself. These do what those
of `rows` do for the same layers, but the backward pass compares x again, so that a graph keeps nothing else for it. They trust
nobody: an anchor outside of the inputs reads 0 and gets no gradient.

    N_I inputs · N_T detectors · N_C anchor pairs of each · N_O outputs
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import triton
import triton.language as tl

from lutetia.lut.kernels.triton.source.basics import uncertainty_slope
from lutetia.lut.kernels.triton.source.detect import closest_call
from lutetia.lut.kernels.triton.source.rows import clear


@triton.jit
def load_input(row_ptr, place, mask, N_I: tl.constexpr):
    """The inputs of a row at these places, 0 where there are none."""
    return tl.load(row_ptr + place, mask=mask & (place >= 0) & (place < N_I), other=0.0)


@triton.jit
def plain_compare(row_ptr, anchors_ptr, t, r, N_I: tl.constexpr, N_T: tl.constexpr, N_C: tl.constexpr):
    """x[a] - x[b] of the pairs r of detectors t on one row of x [BLOCK_T, BLOCK_C], where it counts, and the chosen rows."""
    mask = (t < N_T)[:, None] & (r < N_C)[None, :]
    pair_ptr = anchors_ptr + t[:, None] * (2 * N_C) + 2 * r[None, :]
    left = load_input(row_ptr, tl.load(pair_ptr, mask=mask, other=0), mask, N_I)
    u = left - load_input(row_ptr, tl.load(pair_ptr + 1, mask=mask, other=0), mask, N_I)
    return u, mask, tl.sum((u > 0).to(tl.int32) << r[None, :], axis=1)


@triton.jit
def plain_fill_kernel(
    x_ptr, weight_ptr, anchors_ptr, y_ptr,
    N_I: tl.constexpr, N_T: tl.constexpr, N_C: tl.constexpr, N_O: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (row of the batch, tile of outputs): y."""
    b = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    total = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
    for start in range(0, N_T, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        _, _, index = plain_compare(x_ptr + b * N_I, anchors_ptr, t, tl.arange(0, BLOCK_C), N_I, N_T, N_C)
        row = ((t << N_C) + index) * N_O
        total += tl.load(weight_ptr + row[:, None] + o[None, :], mask=(t < N_T)[:, None] & (o < N_O)[None, :], other=0.0)
    tl.store(y_ptr + b * N_O + o, tl.sum(total, axis=0), mask=o < N_O)


@triton.jit
def plain_gains_kernel(
    grad_ptr, x_ptr, weight_ptr, anchors_ptr, index_ptr, dx_ptr, dw_ptr, n_cleared,
    N_I: tl.constexpr, N_T: tl.constexpr, N_C: tl.constexpr, N_O: tl.constexpr,
    TO_X: tl.constexpr, ALONE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (row of the batch, tile of detectors): the chosen rows and, TO_X, what they send to dx.

    All programs together set dW to zero. One that is ALONE has all detectors, and sets its row of dx to zero.
    """
    b = tl.program_id(0).to(tl.int64)
    program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    clear(dw_ptr, program * 128, n_cleared, tl.num_programs(0) * tl.num_programs(1) * 128)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    t_mask = t < N_T
    r = tl.arange(0, BLOCK_C)
    u, counts, index = plain_compare(x_ptr + b * N_I, anchors_ptr, t, r, N_I, N_T, N_C)
    tl.store(index_ptr + b * N_T + t, index, mask=t_mask)
    if TO_X:
        if ALONE:
            clear(dx_ptr + b * N_I, 0, N_I, 128)
            tl.debug_barrier()  # the numbers are there before a thread adds to them
        _, which = closest_call(tl.where(counts, tl.abs(u), float("inf")), N_C)
        min_delta = tl.sum(tl.where(r[None, :] == which[:, None], u, 0.0), axis=1)
        row = ((t << N_C) + index) * N_O
        other_row = ((t << N_C) + (index ^ (1 << which))) * N_O
        gain = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
        for start in range(0, N_O, BLOCK_O):
            o = start + tl.arange(0, BLOCK_O)
            mask = t_mask[:, None] & (o < N_O)[None, :]
            weight = tl.load(weight_ptr + row[:, None] + o[None, :], mask=mask, other=0.0)
            other = tl.load(weight_ptr + other_row[:, None] + o[None, :], mask=mask, other=0.0)
            gain += tl.load(grad_ptr + b * N_O + o, mask=o < N_O, other=0.0)[None, :] * (weight - other)
        slope = uncertainty_slope(min_delta) * tl.sum(gain, axis=1)
        pair_ptr = anchors_ptr + (t * N_C + which) * 2
        left = tl.load(pair_ptr, mask=t_mask, other=-1)
        right = tl.load(pair_ptr + 1, mask=t_mask, other=-1)
        tl.atomic_add(dx_ptr + b * N_I + left, slope, mask=(left >= 0) & (left < N_I), sem="relaxed")
        tl.atomic_add(dx_ptr + b * N_I + right, -slope, mask=(right >= 0) & (right < N_I), sem="relaxed")


@triton.jit
def plain_scatter_kernel(
    grad_ptr, index_ptr, dw_ptr, batch,
    N_T: tl.constexpr, N_C: tl.constexpr, N_O: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (BLOCK_B rows of the batch, tile of detectors), for all N_O <= BLOCK_O outputs: g goes to the rows of dW
    that were read. Neighbours in the batch that chose the same one are added before the atomic.
    """
    b = tl.program_id(0).to(tl.int64) * BLOCK_B
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    t_mask = t < N_T
    o = tl.arange(0, BLOCK_O)
    index = tl.load(index_ptr + b * N_T + t, mask=t_mask, other=-1)
    total = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
    for j in tl.static_range(BLOCK_B):
        total += tl.load(grad_ptr + (b + j) * N_O + o, mask=(o < N_O) & (b + j < batch), other=0.0)[None, :]
        alive = t_mask & (b + j + 1 < batch) & (j + 1 < BLOCK_B)
        following = tl.load(index_ptr + (b + j + 1) * N_T + t, mask=alive, other=-1)  # -1 differs from every index
        ends = (following != index)[:, None]
        row = ((t << N_C) + tl.maximum(index, 0)) * N_O
        tl.atomic_add(
            dw_ptr + row[:, None] + o[None, :], total, mask=ends & (index >= 0)[:, None] & (o < N_O)[None, :], sem="relaxed"
        )
        total = tl.where(ends, 0.0, total)
        index = following

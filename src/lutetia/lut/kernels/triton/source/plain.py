"""The Triton sources of plain layers, for compiled graphs: hard reads, full connectivity, float32.

A compiled graph takes kernels whose arguments are tensors and numbers one by one, and launches them itself. These do what those
of `rows` do for the same layers, but the backward pass is one kernel, which compares x again, so that a graph keeps nothing else
for it. They trust nobody: an anchor outside of the inputs reads 0 and gets no gradient.

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
def are_inputs(place, mask, N_I: tl.constexpr):
    """Which places are those of inputs."""
    return mask & (place >= 0) & (place < N_I)


@triton.jit
def chosen_rows(u, r):
    """The rows of tables that margins u [n, BLOCK_C] of pairs r choose."""
    return tl.sum((u > 0).to(tl.int32) << r[None, :], axis=1)


@triton.jit
def plain_fill_kernel(
    x_ptr, weight_ptr, anchors_ptr, y_ptr,
    N_I: tl.constexpr, N_T: tl.constexpr, N_C: tl.constexpr, N_O: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (row of the batch, tile of outputs): y."""
    b = tl.program_id(0).to(tl.int64)
    o, r = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O), tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
    for start in range(0, N_T, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        mask = (t < N_T)[:, None] & (r < N_C)[None, :]
        pair_ptr = anchors_ptr + t[:, None] * (2 * N_C) + 2 * r[None, :]
        left, right = tl.load(pair_ptr, mask=mask, other=0), tl.load(pair_ptr + 1, mask=mask, other=0)
        u = tl.load(x_ptr + b * N_I + left, mask=are_inputs(left, mask, N_I), other=0.0)
        u -= tl.load(x_ptr + b * N_I + right, mask=are_inputs(right, mask, N_I), other=0.0)
        row = ((t << N_C) + chosen_rows(u, r)) * N_O
        total += tl.load(weight_ptr + row[:, None] + o[None, :], mask=(t < N_T)[:, None] & (o < N_O)[None, :], other=0.0)
    tl.store(y_ptr + b * N_O + o, tl.sum(total, axis=0), mask=o < N_O)


@triton.jit
def plain_gradients_kernel(
    grad_ptr, x_ptr, weight_ptr, anchors_ptr, dx_ptr, dw_ptr, batch,
    N_I: tl.constexpr, N_T: tl.constexpr, N_C: tl.constexpr, N_O: tl.constexpr, TO_X: tl.constexpr, ALONE: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (BLOCK_B rows of the batch, tile of detectors): what they add to dW and, TO_X, send to dx.

    Neighbours in the batch that chose the same row of a table are added before the atomic: otherwise a batch that hits one entry
    would wait for its address. A program that is ALONE has all detectors, and sets its rows of dx to zero.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK_B
    if TO_X and ALONE:
        clear(dx_ptr, first * N_I, tl.minimum(first + BLOCK_B, batch) * N_I, 128)
        tl.debug_barrier()  # the numbers are there before a thread adds to them
    n = tl.arange(0, BLOCK_B * BLOCK_T)  # a row of the batch and a detector
    b, t = first + n // BLOCK_T, tl.program_id(1) * BLOCK_T + n % BLOCK_T
    there, r = (b < batch) & (t < N_T), tl.arange(0, BLOCK_C)
    # Loaded here and not in a function: torch takes all that a function is given for written to, if its result is an address.
    counts = there[:, None] & (r < N_C)[None, :]
    pair_ptr, row_ptr = anchors_ptr + t[:, None] * (2 * N_C) + 2 * r[None, :], x_ptr + (b * N_I)[:, None]
    left, right = tl.load(pair_ptr, mask=counts, other=0), tl.load(pair_ptr + 1, mask=counts, other=0)
    u = tl.load(row_ptr + left, mask=are_inputs(left, counts, N_I), other=0.0)
    u -= tl.load(row_ptr + right, mask=are_inputs(right, counts, N_I), other=0.0)
    index = chosen_rows(u, r)
    chosen = tl.reshape(tl.where(there, index, -1), [BLOCK_B, BLOCK_T])  # -1 differs from every index
    j, detectors = tl.arange(0, BLOCK_B)[:, None], tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
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
            total += tl.load(grad_ptr + (first + k) * N_O + o, mask=(o < N_O) & (first + k < batch), other=0.0)[None, :]
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

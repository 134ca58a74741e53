"""The Triton sources of what detectors find: rows of their tables, the closest calls, and the coefficients of a read."""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import triton
import triton.language as tl

from lutetia.lut.kernels.triton.source.basics import BLEND, CONFIDENCE, CONFIDENCE2


@triton.jit
def closest_call(distance, N: tl.constexpr):
    """The least distance of each row of [T, N] and its number, the first of equals. (A NaN equals nothing and leaves N - 1.)"""
    r = tl.arange(0, distance.shape[1])[None, :]
    nearest = tl.min(distance, axis=1)
    return nearest, tl.min(tl.where(distance == nearest[:, None], r, N - 1), axis=1)


@triton.jit
def compare(inputs, row, t, t_mask, READ: tl.constexpr):
    """u = x[a] - x[b] of all pairs of detectors t on one row of x [T, N_C], where it counts, and the indices that it makes.

    `row` is its number and I; b >= I names a constant.
    """
    number, n_inputs = row
    x_ptr = inputs.x + number * n_inputs
    r = tl.arange(0, READ.N_C_PADDED)
    mask = t_mask[:, None] & (r < READ.N_C)[None, :]
    pair_ptr = inputs.anchors + t[:, None] * (2 * READ.N_C) + 2 * r[None, :]
    a = tl.load(pair_ptr, mask=mask, other=0)
    b = tl.load(pair_ptr + 1, mask=mask, other=0)
    left = tl.load(x_ptr + a, mask=mask, other=0.0).to(READ.ACC)
    if inputs.thresholds is None:
        right = tl.load(x_ptr + b, mask=mask, other=0.0).to(READ.ACC)
    else:
        right = tl.load(x_ptr + b, mask=mask & (b < n_inputs), other=0.0).to(READ.ACC)
        right += tl.load(inputs.thresholds + (b - n_inputs), mask=mask & (b >= n_inputs), other=0.0)
    u = left - right
    return u, mask, tl.sum((u > 0).to(tl.int32) << r[None, :], axis=1)


@triton.jit
def detect_tile(inputs, row, t, t_mask, TRAIN: tl.constexpr, READ: tl.constexpr):
    """Indices, closest deltas and their numbers of several detectors [T] on one row of x, given by its number and length."""
    u, mask, index = compare(inputs, row, t, t_mask, READ)
    if TRAIN:
        _, which = closest_call(tl.where(mask, tl.abs(u), float("inf")), READ.N_C)
        r = tl.arange(0, READ.N_C_PADDED)[None, :]
        return index, tl.sum(tl.where(r == which[:, None], u, 0.0), axis=1), which
    else:
        return index, index, index


@triton.jit
def margins_tile(inputs, row, t, t_mask, READ: tl.constexpr):
    """Of detectors [T] on one row of x: |u| [T, N_C] (0 where padded), where it counts, indices, |min_delta| and its number."""
    u, mask, index = compare(inputs, row, t, t_mask, READ)
    size = tl.abs(u).to(READ.WORK)
    closest, which = closest_call(tl.where(mask, size, float("inf")), READ.N_C)
    return size, mask, index, tl.where(t_mask, closest, 0.0), which


# ---- reads -----------------------------------------------------------------------------------------------------------


@triton.jit
def confidence(size, mask, beta, gamma):
    """Σ|u|, exp(γ · evidence), evidence = Σ log σ(β|u|), each [T], and e**(-β|u|), which is at most 1, [T, N_C]."""
    e = tl.exp(-beta * size)
    evidence = -tl.sum(tl.where(mask, tl.log(1.0 + e), 0.0), axis=1)
    return tl.sum(size, axis=1), tl.exp(gamma * evidence), evidence, e


@triton.jit
def wavering(closest, tau):
    """σ(-2 |m| / τ)."""
    e = tl.exp(-2.0 * closest / tau)
    return e / (1.0 + e)


@triton.jit
def scalar(log_ptr, WORK: tl.constexpr):
    return tl.exp(tl.load(log_ptr).to(WORK))


@triton.jit
def coefficients_tile(inputs, row, t, t_mask, READ: tl.constexpr):
    """Index, alternative, a and b of several detectors [T] on one row of x, given by its number and length."""
    size, mask, index, closest, which = margins_tile(inputs, row, t, t_mask, READ)
    if READ.KIND >= CONFIDENCE:
        mass, power, _, _ = confidence(size, mask, scalar(inputs.log_beta, READ.WORK), scalar(inputs.log_gamma, READ.WORK))
        a = mass * power
        b = a
        if READ.KIND == CONFIDENCE2:
            v = wavering(closest, scalar(inputs.log_tau, READ.WORK))
            b = a * v
            a = a * (1.0 - v)
    elif READ.KIND == BLEND:
        b = 0.5 / (1.0 + closest)
        a = 1.0 - b
    else:
        b = closest * 0.0
        a = b + 1.0
    return index, index ^ (1 << which), a.to(READ.ACC), b.to(READ.ACC)


# ---- kernels ---------------------------------------------------------------------------------------------------------


@triton.jit
def detect_kernel(inputs, rows, sizes, length, READ: tl.constexpr, BLOCK_T: tl.constexpr):
    """One program per (row of x, tile of detectors): indices and closest calls, or indices and coefficients.

    With a length, rows of x are positions of sequences, and `Detected` goes to [B, N_t, length].
    """
    b = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    mask = t < sizes.n_detectors
    place = b * sizes.n_detectors + t
    if length is not None:
        place = (b // length * sizes.n_detectors + t) * length + b % length
    if READ.COEFFICIENTS > 0:
        index, other, factor, other_factor = coefficients_tile(inputs, (b, sizes.n_inputs), t, mask, READ)
        tl.store(rows.indices + place, index, mask=mask)
        tl.store(rows.a + place, factor, mask=mask)
        if READ.COEFFICIENTS > 1:
            tl.store(rows.alternatives + place, other, mask=mask)
            tl.store(rows.b + place, other_factor, mask=mask)
    else:
        TRAIN: tl.constexpr = rows.min_delta is not None
        index, closest, which = detect_tile(inputs, (b, sizes.n_inputs), t, mask, TRAIN, READ)
        tl.store(rows.indices + place, index, mask=mask)
        if TRAIN:
            tl.store(rows.min_delta + place, closest, mask=mask)
            tl.store(rows.min_delta_index + place, which, mask=mask)


@triton.jit
def detect_columns_kernel(inputs, index_ptr, numbers, READ: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_B: tl.constexpr):
    """Indices [N_t, B] from x by columns [I, B], one program per BLOCK_B rows of the batch and all detectors.

    Neighbouring lanes are neighbouring rows of the batch, so every read is coalesced, and the columns of these rows stay in the
    first-level cache while all detectors compare them.
    """
    N_C: tl.constexpr = READ.N_C
    batch, n_inputs, n_detectors = numbers
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    for start in range(0, n_detectors, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        t_mask = t < n_detectors
        mask = t_mask[:, None] & (b < batch)[None, :]
        index = tl.zeros([BLOCK_T, BLOCK_B], tl.int32)
        for r in tl.static_range(N_C):
            pair_ptr = inputs.anchors + (t * N_C + r) * 2
            left = tl.load(pair_ptr, mask=t_mask, other=0).to(tl.int64) * batch
            second = tl.load(pair_ptr + 1, mask=t_mask, other=0)
            right = second.to(tl.int64) * batch
            u = tl.load(inputs.x + left[:, None] + b[None, :], mask=mask, other=0.0).to(READ.ACC)
            if inputs.thresholds is None:
                u -= tl.load(inputs.x + right[:, None] + b[None, :], mask=mask, other=0.0).to(READ.ACC)
            else:
                is_input = mask & (second < n_inputs)[:, None]
                u -= tl.load(inputs.x + right[:, None] + b[None, :], mask=is_input, other=0.0).to(READ.ACC)
                u -= tl.load(inputs.thresholds + (second - n_inputs), mask=t_mask & (second >= n_inputs), other=0.0)[:, None]
            index += (u > 0).to(tl.int32) << r
        tl.store(index_ptr + t.to(tl.int64)[:, None] * batch + b[None, :], index, mask=mask)


@triton.jit
def detect_positions_kernel(
    positions_ptr, rows, n_rows, n_detectors, N_PE: tl.constexpr, N_PE_PADDED: tl.constexpr, BLOCK: tl.constexpr
):
    """The signs of BLOCK learned positions as indices, and the values nearest to zero: positions [rows, N_pe].

    With the number of detectors, `Detected` goes to [N_t, rows / N_t].
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.arange(0, N_PE_PADDED)[None, :]
    mask = (row < n_rows)[:, None] & (r < N_PE)
    u = tl.load(positions_ptr + row[:, None] * N_PE + r, mask=mask, other=0.0)
    place = row
    if n_detectors is not None:
        place = row % n_detectors * (n_rows // n_detectors) + row // n_detectors
    tl.store(rows.indices + place, tl.sum((u > 0).to(tl.int32) << r, axis=1), mask=row < n_rows)
    if rows.min_delta is not None:
        _, which = closest_call(tl.where(mask, tl.abs(u), float("inf")), N_PE)
        tl.store(rows.min_delta + place, tl.sum(tl.where(r == which[:, None], u, 0.0), axis=1), mask=row < n_rows)
        tl.store(rows.min_delta_index + place, which, mask=row < n_rows)

"""The Triton sources of the reads: what a read makes of the inputs, and rows of the tables added with coefficients.

The conventions are those of `source.rows`. KIND is the read. WORK is the dtype in which coefficients are worked out: float64
where fixed sums ask for the same on every backend, else that of the sums.
"""

# mypy: disallow-untyped-defs=False
# (Kernels are typed by their arguments at launch.)

from __future__ import annotations

import triton
import triton.language as tl

from lutetia.lut.kernels.triton.source.rows import (
    FC,
    SHARED,
    anchor_delta,
    block_of_detectors,
    neuron_dot,
    neuron_synapses,
    row_offset,
    to_fixed,
)

HARD = tl.constexpr(0)
BLEND = tl.constexpr(1)
CONFIDENCE = tl.constexpr(2)
CONFIDENCE2 = tl.constexpr(3)


# ---- detect ----------------------------------------------------------------------------------------------------------


@triton.jit
def margins_tile(
    x_ptr, anchors_ptr, row, t, t_mask, N_C: tl.constexpr, N_C_PADDED: tl.constexpr, ACC: tl.constexpr, WORK: tl.constexpr
):
    """Of several detectors [T] on one row of x: |u| [T, N_C] (0 where padded), where it counts, index, |min_delta|, its r."""
    r = tl.arange(0, N_C_PADDED)
    pair_mask = t_mask[:, None] & (r < N_C)[None, :]
    u = anchor_delta(x_ptr, anchors_ptr + t[:, None] * (2 * N_C) + 2 * r[None, :], row, pair_mask, ACC)
    index = tl.sum((u > 0).to(tl.int32) << r[None, :], axis=1)
    size = tl.abs(u).to(WORK)
    distance = tl.where(pair_mask, size, float("inf"))
    closest = tl.min(distance, axis=1)
    which = tl.min(tl.where(distance == closest[:, None], r[None, :], N_C - 1), axis=1)  # the first of equals
    return size, pair_mask, index, tl.where(t_mask, closest, 0.0), which


@triton.jit
def confidence(size, pair_mask, beta, gamma):
    """Σ|u|, exp(γ · evidence), evidence = Σ log σ(β|u|), each [T], and e**(-β|u|), which is at most 1, [T, N_C]."""
    e = tl.exp(-beta * size)
    evidence = -tl.sum(tl.where(pair_mask, tl.log(1.0 + e), 0.0), axis=1)
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
def coefficients_tile(
    x_ptr, anchors_ptr, log_beta_ptr, log_gamma_ptr, log_tau_ptr, row, t, t_mask,
    KIND: tl.constexpr, N_C: tl.constexpr, N_C_PADDED: tl.constexpr, ACC: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """Index, alternative, a and b of several detectors [T] on one row of x."""
    size, pair_mask, index, closest, which = margins_tile(x_ptr, anchors_ptr, row, t, t_mask, N_C, N_C_PADDED, ACC, WORK)
    if KIND >= CONFIDENCE:
        mass, power, _, _ = confidence(size, pair_mask, scalar(log_beta_ptr, WORK), scalar(log_gamma_ptr, WORK))
        a = mass * power
        b = a
        if KIND == CONFIDENCE2:
            v = wavering(closest, scalar(log_tau_ptr, WORK))
            b = a * v
            a = a * (1.0 - v)
    elif KIND == BLEND:
        b = 0.5 / (1.0 + closest)
        a = 1.0 - b
    else:
        b = closest * 0.0
        a = b + 1.0
    return index, index ^ (1 << which), a.to(ACC), b.to(ACC)


@triton.jit
def read_detectors_kernel(
    x_ptr, anchors_ptr, log_beta_ptr, log_gamma_ptr, log_tau_ptr, index_ptr, alt_ptr, a_ptr, b_ptr, n_inputs, n_detectors,
    KIND: tl.constexpr, N_C: tl.constexpr, N_C_PADDED: tl.constexpr, ACC: tl.constexpr, WORK: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """One program per (row of x, tile of detectors)."""
    row = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    mask = t < n_detectors
    index, alt, a, b = coefficients_tile(
        x_ptr, anchors_ptr, log_beta_ptr, log_gamma_ptr, log_tau_ptr, row * n_inputs, t, mask, KIND, N_C, N_C_PADDED, ACC, WORK
    )
    at = row * n_detectors + t
    tl.store(index_ptr + at, index, mask=mask)
    tl.store(a_ptr + at, a, mask=mask)
    if KIND != CONFIDENCE:
        tl.store(alt_ptr + at, alt, mask=mask)
        tl.store(b_ptr + at, b, mask=mask)


# ---- forward ---------------------------------------------------------------------------------------------------------


@triton.jit
def fill_weighted_kernel(
    x_ptr, anchors_ptr, log_beta_ptr, log_gamma_ptr, log_tau_ptr,
    weight_ptr, index_ptr, alt_ptr, a_ptr, b_ptr, out_ptr, overflow_ptr,
    start_ptr, targets_ptr, block_start_ptr, block_detectors_ptr,
    n_inputs, n_detectors, n_outputs, n_blocks,
    N_ROWS: tl.constexpr, N_C: tl.constexpr, N_C_PADDED: tl.constexpr, LAYOUT: tl.constexpr, WIDTH: tl.constexpr,
    ATOMIC: tl.constexpr, DETECT: tl.constexpr, KIND: tl.constexpr, TWO: tl.constexpr, SCALE: tl.constexpr,
    WIDE: tl.constexpr, ACC: tl.constexpr, X_ACC: tl.constexpr, WORK: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (row of the batch, block of detectors, tile of its outputs): read the inputs if asked, add up the rows."""
    b = (tl.program_id(0) // n_blocks).to(tl.int64)
    block = tl.program_id(0) % n_blocks
    first, last, width, target_base = block_of_detectors(
        block, start_ptr, block_start_ptr, block_detectors_ptr, n_detectors, LAYOUT, WIDTH
    )
    o = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    o_mask = o < width
    total = tl.zeros([BLOCK_T, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
    for start in range(first, last, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        t_mask = t < last
        if LAYOUT == SHARED:
            t = tl.load(block_detectors_ptr + t, mask=t_mask, other=0)
        if DETECT:
            index, alt, factor, other_factor = coefficients_tile(
                x_ptr, anchors_ptr, log_beta_ptr, log_gamma_ptr, log_tau_ptr, b * n_inputs, t, t_mask,
                KIND, N_C, N_C_PADDED, X_ACC, WORK,
            )  # fmt: skip
        else:
            at = b * n_detectors + t
            index = tl.load(index_ptr + at, mask=t_mask, other=0)
            factor = tl.load(a_ptr + at, mask=t_mask, other=0.0)
            alt = index
            other_factor = factor
            if TWO:
                alt = tl.load(alt_ptr + at, mask=t_mask, other=0)
                other_factor = tl.load(b_ptr + at, mask=t_mask, other=0.0)
        mask = t_mask[:, None] & o_mask[None, :]
        row = row_offset(t, index, start_ptr, width, t_mask, N_ROWS, LAYOUT, WIDTH, WIDE)
        addend = factor.to(ACC)[:, None] * tl.load(weight_ptr + row[:, None] + o[None, :], mask=mask, other=0.0).to(ACC)
        total += to_fixed(addend, overflow_ptr, mask, SCALE) if SCALE > 0 else addend
        if TWO:
            row = row_offset(t, alt, start_ptr, width, t_mask, N_ROWS, LAYOUT, WIDTH, WIDE)
            addend = other_factor.to(ACC)[:, None] * tl.load(weight_ptr + row[:, None] + o[None, :], mask=mask, other=0.0).to(ACC)
            total += to_fixed(addend, overflow_ptr, mask, SCALE) if SCALE > 0 else addend
    y = tl.sum(total, axis=0)
    if LAYOUT == SHARED:
        o = tl.load(targets_ptr + target_base + o, mask=o_mask, other=0)
    if ATOMIC:
        tl.atomic_add(out_ptr + b * n_outputs + o, y, mask=o_mask, sem="relaxed")
    else:
        tl.store(out_ptr + b * n_outputs + o, y, mask=o_mask)


@triton.jit
def fill_weighted_general_kernel(
    weight_ptr, index_ptr, factor_ptr, out_ptr, overflow_ptr, start_ptr, targets_ptr,
    n_detectors, n_outputs, max_fan_out,
    N_ROWS: tl.constexpr, SCALE: tl.constexpr, ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (row of the batch, tile of detectors): add factor · W of one of the two rows."""
    b = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    t_mask = t < n_detectors
    neuron = t * N_ROWS + tl.load(index_ptr + b * n_detectors + t, mask=t_mask, other=0)
    factor = tl.load(factor_ptr + b * n_detectors + t, mask=t_mask, other=0.0).to(ACC)[:, None]
    first = tl.load(start_ptr + neuron, mask=t_mask, other=0)
    last = tl.load(start_ptr + neuron + 1, mask=t_mask, other=0)
    for start in range(0, max_fan_out, BLOCK_O):
        synapse = first[:, None] + (start + tl.arange(0, BLOCK_O))[None, :]
        mask = synapse < last[:, None]
        addend = factor * tl.load(weight_ptr + synapse, mask=mask, other=0.0).to(ACC)
        o = tl.load(targets_ptr + synapse, mask=mask, other=0)
        if SCALE > 0:
            tl.atomic_add(out_ptr + b * n_outputs + o, to_fixed(addend, overflow_ptr, mask, SCALE), mask=mask, sem="relaxed")
        else:
            tl.atomic_add(out_ptr + b * n_outputs + o, addend, mask=mask, sem="relaxed")


# ---- backward, to the coefficients -----------------------------------------------------------------------------------


@triton.jit
def store_gain(gain, out_ptr, overflow_ptr, at, mask, SCALE: tl.constexpr, ACC: tl.constexpr):
    """A sum of products [T], or of their units, as a number."""
    if SCALE > 0:
        tl.store(overflow_ptr + tl.zeros_like(gain).to(tl.int32), 1, mask=mask & (tl.abs(gain) > 2147483647))
        gain = (gain.to(tl.float64) / SCALE).to(ACC)
    tl.store(out_ptr + at, gain, mask=mask)


@triton.jit
def row_gains_kernel(
    grad_ptr, weight_ptr, index_ptr, alt_ptr, da_ptr, db_ptr, overflow_ptr,
    start_ptr, targets_ptr, block_start_ptr, block_detectors_ptr,
    n_detectors, n_outputs, n_blocks,
    N_ROWS: tl.constexpr, LAYOUT: tl.constexpr, WIDTH: tl.constexpr, FOR_B: tl.constexpr, SCALE: tl.constexpr,
    WIDE: tl.constexpr, ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (row of the batch, tile of detectors of one block): g · W[index], and g · W[alt] if asked."""
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
    row = row_offset(t, tl.load(index_ptr + at, mask=t_mask, other=0), start_ptr, width, t_mask, N_ROWS, LAYOUT, WIDTH, WIDE)
    gain = tl.zeros([BLOCK_T, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
    if FOR_B:
        alt = row_offset(t, tl.load(alt_ptr + at, mask=t_mask, other=0), start_ptr, width, t_mask, N_ROWS, LAYOUT, WIDTH, WIDE)
        gain_b = tl.zeros([BLOCK_T, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
    for start in range(0, width, BLOCK_O):
        k = start + tl.arange(0, BLOCK_O)
        k_mask = k < width
        mask = t_mask[:, None] & k_mask[None, :]
        o = k
        if LAYOUT == SHARED:
            o = tl.load(targets_ptr + target_base + k, mask=k_mask, other=0)
        g = tl.load(grad_ptr + b * n_outputs + o, mask=k_mask, other=0.0).to(ACC)[None, :]
        product = g * tl.load(weight_ptr + row[:, None] + k[None, :], mask=mask, other=0.0).to(ACC)
        gain += to_fixed(product, overflow_ptr, mask, SCALE) if SCALE > 0 else product
        if FOR_B:
            product = g * tl.load(weight_ptr + alt[:, None] + k[None, :], mask=mask, other=0.0).to(ACC)
            gain_b += to_fixed(product, overflow_ptr, mask, SCALE) if SCALE > 0 else product
    store_gain(tl.sum(gain, axis=1), da_ptr, overflow_ptr, at, t_mask, SCALE, ACC)
    if FOR_B:
        store_gain(tl.sum(gain_b, axis=1), db_ptr, overflow_ptr, at, t_mask, SCALE, ACC)


@triton.jit
def row_gains_general_kernel(
    grad_ptr, weight_ptr, index_ptr, out_ptr, overflow_ptr, start_ptr, targets_ptr, n_detectors, n_outputs, max_fan_out,
    N_ROWS: tl.constexpr, SCALE: tl.constexpr, ACC: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (row of the batch, tile of detectors): g · W of one of the two rows."""
    b = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    t_mask = t < n_detectors
    at = b * n_detectors + t
    neuron = t * N_ROWS + tl.load(index_ptr + at, mask=t_mask, other=0)
    gain = neuron_dot(
        grad_ptr + b * n_outputs, weight_ptr, start_ptr, targets_ptr, overflow_ptr, neuron, t_mask, max_fan_out,
        SCALE, ACC, BLOCK_T, BLOCK_O,
    )  # fmt: skip
    store_gain(gain, out_ptr, overflow_ptr, at, t_mask, SCALE, ACC)


# ---- backward, to the inputs -----------------------------------------------------------------------------------------
# The slope to |u_r| is plain + doubtful · σ(-β|u_r|), and to the closest call one number more. That one goes to its two anchors
# by atomics; the rest would be 2 N_c atomics for each detector, so `gather_slopes` adds it up input by input instead.


@triton.jit
def add_share(share, partial_ptr, overflow_ptr, at, mask, SCALE: tl.constexpr, ACC: tl.constexpr):
    """partial[at] = Σ share [T]."""
    share = tl.where(mask, share, 0.0).to(ACC)
    if SCALE > 0:
        tl.store(partial_ptr + at, tl.sum(to_fixed(share, overflow_ptr, mask, SCALE)))
    else:
        tl.store(partial_ptr + at, tl.sum(share))


@triton.jit
def propagate_reads_kernel(
    x_ptr, anchors_ptr, log_beta_ptr, log_gamma_ptr, log_tau_ptr, da_ptr, db_ptr,
    dx_ptr, plain_ptr, doubtful_ptr, which_ptr, partial_ptr, overflow_ptr,
    n_inputs, n_detectors, batch,
    KIND: tl.constexpr, N_C: tl.constexpr, N_C_PADDED: tl.constexpr, TO_X: tl.constexpr, SCALE: tl.constexpr,
    ACC: tl.constexpr, WORK: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """One program per (row of x, tile of detectors): dx at the closest call, plain and doubtful [N_t, B], and shares."""
    b = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    t_mask = t < n_detectors
    at = b * n_detectors + t
    size, pair_mask, index, closest, which = margins_tile(x_ptr, anchors_ptr, b * n_inputs, t, t_mask, N_C, N_C_PADDED, ACC, WORK)
    da = tl.load(da_ptr + at, mask=t_mask, other=0.0).to(WORK)
    db = da * 0.0
    if KIND != CONFIDENCE:
        db = tl.load(db_ptr + at, mask=t_mask, other=0.0).to(WORK)
    if KIND >= CONFIDENCE:
        beta = scalar(log_beta_ptr, WORK)
        gamma = scalar(log_gamma_ptr, WORK)
        mass, power, evidence, e = confidence(size, pair_mask, beta, gamma)
        s = mass * power
        ds = da
        nearest = da * 0.0
        shares_at = (b * tl.num_programs(1) + tl.program_id(1)) * 3
        if KIND == CONFIDENCE2:
            tau = scalar(log_tau_ptr, WORK)
            v = wavering(closest, tau)
            ds = da * (1.0 - v) + db * v
            dv = s * (db - da) * v * (1.0 - v) * 2.0 / tau
            nearest = -dv
            add_share(dv * closest, partial_ptr, overflow_ptr, shares_at + 2, t_mask, SCALE, ACC)
        moment = tl.sum(size * (e / (1.0 + e)), axis=1)
        add_share(ds * s * gamma * beta * moment, partial_ptr, overflow_ptr, shares_at, t_mask, SCALE, ACC)
        add_share(ds * s * gamma * evidence, partial_ptr, overflow_ptr, shares_at + 1, t_mask, SCALE, ACC)
        if TO_X:
            column = t.to(tl.int64) * batch + b
            tl.store(plain_ptr + column, ds * power, mask=t_mask)
            tl.store(doubtful_ptr + column, ds * power * (mass * gamma * beta), mask=t_mask)
    else:
        near = 1.0 + closest
        nearest = (da - db) * 0.5 / (near * near)
    if TO_X and KIND != CONFIDENCE:
        if SCALE > 0 and KIND == CONFIDENCE2:
            # A fixed sum rounds each addend once: the whole slope of the closest call goes here, and gather_slopes leaves it out.
            doubt = tl.exp(-beta * closest)
            nearest += ds * power * (1.0 + mass * gamma * beta * (doubt / (1.0 + doubt)))
            tl.store(which_ptr + t.to(tl.int64) * batch + b, which, mask=t_mask)
        slope = tl.where((index >> which) & 1 == 1, nearest, -nearest).to(ACC)
        send(slope, anchors_ptr, dx_ptr + b * n_inputs, overflow_ptr, t, which, t_mask, N_C, SCALE)


@triton.jit
def send(slope, anchors_ptr, into_ptr, overflow_ptr, t, which, t_mask, N_C: tl.constexpr, SCALE: tl.constexpr):
    """into[a] += slope, into[b] -= slope at the anchors of pair `which` of detectors t; slope [T]."""
    pair_ptr = anchors_ptr + (t * N_C + which) * 2
    into_a = into_ptr + tl.load(pair_ptr, mask=t_mask, other=0)
    into_b = into_ptr + tl.load(pair_ptr + 1, mask=t_mask, other=0)
    if SCALE > 0:
        units = to_fixed(slope, overflow_ptr, t_mask, SCALE)
        tl.atomic_add(into_a, units, mask=t_mask, sem="relaxed")
        tl.atomic_add(into_b, -units, mask=t_mask, sem="relaxed")
    else:
        tl.atomic_add(into_a, slope, mask=t_mask, sem="relaxed")
        tl.atomic_add(into_b, -slope, mask=t_mask, sem="relaxed")


@triton.jit
def gather_slopes_kernel(
    columns_ptr, log_beta_ptr, plain_ptr, doubtful_ptr, which_ptr, starts_ptr, entries_ptr, dx_ptr, overflow_ptr,
    batch, n_inputs,
    ADD: tl.constexpr, SCALE: tl.constexpr, ACC: tl.constexpr, WORK: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """One program per (rows of the batch, input): add up what the pairs with this input send to it.

    `entries` [n, 2] lists for every input, from starts[i] on, the detector of such a pair, and its other input and its number r
    as ((other · 32) + r) · 2, plus one where this input is the second of the pair. x comes by columns [I, B]: neighbouring lanes
    are neighbouring rows. ADD: something is in dx already; in fixed sums all of what the pairs `which` [N_t, B] send.
    """
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    i = tl.program_id(1)
    mask = b < batch
    beta = scalar(log_beta_ptr, WORK)
    mine = tl.load(columns_ptr + i.to(tl.int64) * batch + b, mask=mask, other=0.0).to(ACC)
    into = dx_ptr + b.to(tl.int64) * n_inputs + i
    total = tl.zeros([BLOCK_B], tl.int64 if SCALE > 0 else ACC)
    if ADD:
        total = tl.load(into, mask=mask, other=0)
    for k in range(tl.load(starts_ptr + i), tl.load(starts_ptr + i + 1)):
        column = tl.load(entries_ptr + 2 * k).to(tl.int64) * batch + b
        pair = tl.load(entries_ptr + 2 * k + 1)
        theirs = tl.load(columns_ptr + (pair // 64).to(tl.int64) * batch + b, mask=mask, other=0.0).to(ACC)
        u = mine - theirs
        e = tl.exp(-beta * tl.abs(u).to(WORK))
        doubt = e / (1.0 + e)
        slope = tl.load(plain_ptr + column, mask=mask, other=0.0)
        slope += tl.load(doubtful_ptr + column, mask=mask, other=0.0) * doubt
        if ADD and SCALE > 0:
            slope = tl.where(tl.load(which_ptr + column, mask=mask, other=0) == (pair // 2) % 32, 0.0, slope)
        # The sign is that of u, for the second of a pair too; but a zero is negative for the first and positive for it.
        up = (u > 0) | ((u == 0) & (pair % 2 == 1))
        slope = tl.where(up, slope, -slope).to(ACC)
        total += to_fixed(slope, overflow_ptr, mask, SCALE) if SCALE > 0 else slope
    tl.store(into, total, mask=mask)


# ---- backward, to the weights ----------------------------------------------------------------------------------------
# The two ways of `source.rows`: scatter with atomics, or sort. A read of two rows scatters twice, or sorts both at once: a
# list of 2 B rows, of which the second half are the batch again.


@triton.jit
def scatter_weighted_kernel(
    grad_ptr, index_ptr, factor_ptr, lr_ptr, out_ptr, start_ptr, targets_ptr, block_start_ptr, block_detectors_ptr,
    batch, n_detectors, n_outputs, n_blocks, n_tiles, step,
    N_ROWS: tl.constexpr, LAYOUT: tl.constexpr, WIDTH: tl.constexpr, MIXED_LR: tl.constexpr, IN_PLACE: tl.constexpr,
    WIDE: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (ROWS rows of the batch, tile of detectors of a block, tile of outputs); equal neighbours add up first."""
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
    lr = tl.full([BLOCK_O], 1.0, ACC)
    if MIXED_LR:
        lr = tl.load(lr_ptr + target_base + k, mask=k_mask, other=0.0).to(ACC)
    if IN_PLACE:
        lr = -step * lr
    index = tl.load(index_ptr + b * n_detectors + t, mask=t_mask, other=-1)
    total = tl.zeros([BLOCK_T, BLOCK_O], ACC)
    for j in tl.static_range(ROWS):
        here = t_mask & (b + j < batch)
        g = tl.load(grad_ptr + (b + j) * n_outputs + o, mask=k_mask & (b + j < batch), other=0.0).to(ACC) * lr
        factor = tl.load(factor_ptr + (b + j) * n_detectors + t, mask=here, other=0.0).to(ACC)
        total += g[None, :] * factor[:, None]
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
def sum_weighted_rows(
    grad_ptr, factor_ptr, order_ptr, overflow_ptr, first, last, batch, n_detectors, o, o_mask, lr, n_outputs,
    SCALE: tl.constexpr, ACC: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Σ lr · g[b, o] · factor over the rows listed in order[first:last], where row `batch` is row 0 again; lr [1, O]."""
    total = tl.zeros([BLOCK_B, BLOCK_O], tl.int64 if SCALE > 0 else ACC)
    for start in range(first, last, BLOCK_B):
        i = start + tl.arange(0, BLOCK_B)
        listed = tl.load(order_ptr + i, mask=i < last, other=0).to(tl.int64)
        mask = (i < last)[:, None] & o_mask[None, :]
        factor = tl.load(factor_ptr + listed * n_detectors, mask=i < last, other=0.0).to(ACC)
        addend = tl.load(grad_ptr + (listed % batch)[:, None] * n_outputs + o[None, :], mask=mask, other=0.0).to(ACC) * lr
        addend = addend * factor[:, None]
        total += to_fixed(addend, overflow_ptr, mask, SCALE) if SCALE > 0 else addend
    return tl.sum(total, axis=0)


@triton.jit
def gather_weighted_kernel(
    grad_ptr, factor_ptr, order_ptr, end_ptr, count_ptr, lr_ptr, out_ptr, overflow_ptr, start_ptr, targets_ptr, compact_ptr,
    batch, listed, n_detectors, n_outputs, step,
    N_ROWS: tl.constexpr, LAYOUT: tl.constexpr, MIXED_LR: tl.constexpr, IN_PLACE: tl.constexpr, COMPACT: tl.constexpr,
    SCALE: tl.constexpr, ACC: tl.constexpr, CAP: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (lookup neuron, tile of its synapses): the first CAP rows that chose it, of `listed` rows in all."""
    neuron = tl.program_id(0)
    count = tl.load(count_ptr + neuron)
    if IN_PLACE or COMPACT:
        if count == 0:
            return
    base, target_base, width = neuron_synapses(neuron, start_ptr, n_outputs, N_ROWS, LAYOUT)
    if COMPACT:
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
    t = neuron // N_ROWS
    total = sum_weighted_rows(
        grad_ptr, factor_ptr + t, order_ptr + t.to(tl.int64) * listed, overflow_ptr, first, first + tl.minimum(count, CAP),
        batch, n_detectors, o, k_mask, lr, n_outputs, SCALE, ACC, BLOCK_B, BLOCK_O,
    )  # fmt: skip
    if IN_PLACE:
        total = tl.load(out_ptr + base + k, mask=k_mask, other=0.0) - step * total
    tl.store(out_ptr + base + k, total, mask=k_mask)


@triton.jit
def gather_weighted_overflow_kernel(
    grad_ptr, factor_ptr, index_ptr, order_ptr, end_ptr, count_ptr, lr_ptr, out_ptr, overflow_ptr,
    start_ptr, targets_ptr, compact_ptr,
    batch, listed, n_detectors, n_outputs, n_chunks, step,
    N_ROWS: tl.constexpr, LAYOUT: tl.constexpr, MIXED_LR: tl.constexpr, IN_PLACE: tl.constexpr, COMPACT: tl.constexpr,
    SCALE: tl.constexpr, ACC: tl.constexpr, CAP: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """One program per (detector and CAP places of its `order`, tile of synapses): rows past a neuron's first CAP."""
    t = tl.program_id(0) // n_chunks
    here = (tl.program_id(0) % n_chunks) * CAP
    order_ptr += t.to(tl.int64) * listed
    head = tl.load(order_ptr + here).to(tl.int64)
    neuron = t * N_ROWS + tl.load(index_ptr + head * n_detectors + t)
    end = tl.load(end_ptr + neuron)
    first = tl.maximum(here, end - tl.load(count_ptr + neuron) + CAP)
    last = tl.minimum(here + CAP, end)
    if first >= last:
        return
    base, target_base, width = neuron_synapses(neuron, start_ptr, n_outputs, N_ROWS, LAYOUT)
    if COMPACT:
        base = tl.load(compact_ptr + neuron)
    k = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    k_mask = k < width
    o = k
    if LAYOUT != FC:
        o = tl.load(targets_ptr + target_base + k, mask=k_mask, other=0)
    lr = tl.full([1, BLOCK_O], 1.0, ACC)
    if MIXED_LR:
        lr = tl.load(lr_ptr + target_base + k, mask=k_mask, other=0.0).to(ACC)[None, :]
    total = sum_weighted_rows(
        grad_ptr, factor_ptr + t, order_ptr, overflow_ptr, first, last, batch, n_detectors, o, k_mask, lr, n_outputs,
        SCALE, ACC, BLOCK_B, BLOCK_O,
    )  # fmt: skip
    if IN_PLACE:
        total = -step * total
    tl.atomic_add(out_ptr + base + k, total, mask=k_mask, sem="relaxed")

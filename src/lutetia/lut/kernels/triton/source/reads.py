"""The Triton sources of a read's gradients: from its coefficients to the inputs and the learned scalars.

The slope to |u_r| is plain + doubtful · σ(-β|u_r|), and to the closest call one number more. That one goes to its two anchors by
atomics; the rest would be 2 N_c atomics for each detector, so `gather_slopes_kernel` adds it up input by input instead.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from lutetia._shared.triton_fixed import units
from lutetia.lut.kernels.triton.source.basics import CONFIDENCE, CONFIDENCE2, also, send
from lutetia.lut.kernels.triton.source.detect import confidence, margins_tile, scalar, wavering


class Slopes(NamedTuple):
    """What slopes are made of: plain, doubtful and the closest pair [N_t, B], and shares of the scalars [programs, 3]."""

    plain: Tensor | None = None
    doubtful: Tensor | None = None
    which: Tensor | None = None
    shares: Tensor | None = None


@triton.jit
def store_share(share, share_ptr, overflow_ptr, mask, READ: tl.constexpr):
    """Store Σ share [T]."""
    share = tl.where(mask, share, 0.0).to(READ.ACC)
    tl.store(share_ptr, tl.sum(units(share, overflow_ptr, mask, READ.SCALE)))


@triton.jit
def send_slopes_kernel(inputs, gains, slopes, sums, numbers, READ: tl.constexpr, BLOCK_T: tl.constexpr):
    """One program per (row of x, tile of detectors): dx at the closest call, plain and doubtful [N_t, B], and shares."""
    TO_X: tl.constexpr = sums.out is not None
    batch, n_inputs, n_detectors = numbers
    da_ptr, db_ptr = gains
    b = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    t_mask = t < n_detectors
    place = b * n_detectors + t
    column = t.to(tl.int64) * batch + b
    size, pair_mask, index, closest, which = margins_tile(inputs, (b, n_inputs), t, t_mask, READ)
    da = tl.load(da_ptr + place, mask=t_mask, other=0.0).to(READ.WORK)
    db = tl.zeros_like(da)
    if db_ptr is not None:
        db = tl.load(db_ptr + place, mask=t_mask, other=0.0).to(READ.WORK)
    if READ.KIND >= CONFIDENCE:
        beta = scalar(inputs.log_beta, READ.WORK)
        gamma = scalar(inputs.log_gamma, READ.WORK)
        mass, power, evidence, e = confidence(size, pair_mask, beta, gamma)
        s = mass * power
        ds = da
        nearest = da * 0.0
        share_ptr = slopes.shares + (b * tl.num_programs(1) + tl.program_id(1)) * 3
        if READ.KIND == CONFIDENCE2:
            tau = scalar(inputs.log_tau, READ.WORK)
            v = wavering(closest, tau)
            ds = da * (1.0 - v) + db * v
            dv = s * (db - da) * v * (1.0 - v) * 2.0 / tau
            nearest = -dv
            store_share(dv * closest, share_ptr + 2, sums.overflow, t_mask, READ)
        moment = tl.sum(size * (e / (1.0 + e)), axis=1)
        store_share(ds * s * gamma * beta * moment, share_ptr, sums.overflow, t_mask, READ)
        store_share(ds * s * gamma * evidence, share_ptr + 1, sums.overflow, t_mask, READ)
        if TO_X:
            tl.store(slopes.plain + column, ds * power, mask=t_mask)
            tl.store(slopes.doubtful + column, ds * power * (mass * gamma * beta), mask=t_mask)
    else:
        near = 1.0 + closest
        nearest = (da - db) * 0.5 / (near * near)
    if TO_X and READ.KIND != CONFIDENCE:
        if READ.SCALE > 0 and READ.KIND == CONFIDENCE2:
            # A fixed sum rounds each addend once: the whole slope of the closest call goes here, and gather_slopes leaves it out.
            doubt = tl.exp(-beta * closest)
            nearest += ds * power * (1.0 + mass * gamma * beta * (doubt / (1.0 + doubt)))
            tl.store(slopes.which + column, which, mask=t_mask)
        slope = tl.where((index >> which) & 1 == 1, nearest, -nearest).to(READ.ACC)
        pair_ptr = inputs.anchors + (t * READ.N_C + which) * 2
        send(slope, pair_ptr, (sums.out + b * n_inputs, n_inputs), sums.overflow, t_mask, READ.SCALE)


@triton.jit
def gather_slopes_kernel(inputs, slopes, pairs, sums, numbers, READ: tl.constexpr, BLOCK_B: tl.constexpr):
    """One program per (rows of the batch, input): add up what the pairs with this input send to it.

    `pairs` are starts [I + 1] and entries [n, 2], which list for every input, from starts[i] on, the detector of such a pair, and
    its other input and its number r as ((other · 32) + r) · 2, plus one where this input is the second of the pair. x comes by
    columns [I, B]: neighbouring lanes are neighbouring rows. Of `confidence2` something is in dx already: in fixed sums all of
    what the closest pairs send.
    """
    batch, n_inputs = numbers
    starts_ptr, entries_ptr = pairs
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    i = tl.program_id(1)
    mask = b < batch
    beta = scalar(inputs.log_beta, READ.WORK)
    mine = tl.load(inputs.x + i.to(tl.int64) * batch + b, mask=mask, other=0.0).to(READ.ACC)
    into = sums.out + b.to(tl.int64) * n_inputs + i
    total = tl.full([BLOCK_B], 0, tl.int64 if READ.SCALE > 0 else READ.ACC)
    if READ.KIND == CONFIDENCE2:
        total = tl.load(into, mask=mask, other=0)
    for k in range(tl.load(starts_ptr + i), tl.load(starts_ptr + i + 1)):
        column = tl.load(entries_ptr + 2 * k).to(tl.int64) * batch + b
        pair = tl.load(entries_ptr + 2 * k + 1)
        other = pair // 64
        theirs = tl.load(inputs.x + other.to(tl.int64) * batch + b, mask=also(mask, other < n_inputs), other=0.0).to(READ.ACC)
        if inputs.thresholds is not None:
            theirs += tl.load(inputs.thresholds + (other - n_inputs), mask=other >= n_inputs, other=0.0)
        u = mine - theirs
        e = tl.exp(-beta * tl.abs(u).to(READ.WORK))
        doubt = e / (1.0 + e)
        slope = tl.load(slopes.plain + column, mask=mask, other=0.0)
        slope += tl.load(slopes.doubtful + column, mask=mask, other=0.0) * doubt
        if READ.KIND == CONFIDENCE2 and READ.SCALE > 0:
            slope = tl.where(tl.load(slopes.which + column, mask=mask, other=0) == (pair // 2) % 32, 0.0, slope)
        # The sign is that of u, for the second of a pair too; but a zero is negative for the first and positive for it.
        up = (u > 0) | ((u == 0) & (pair % 2 == 1))
        slope = tl.where(up, slope, -slope).to(READ.ACC)
        total += units(slope, sums.overflow, mask, READ.SCALE)
    tl.store(into, total, mask=mask)

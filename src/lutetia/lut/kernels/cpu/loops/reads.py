"""The compiled loops of the `cpu` backend for the reads, forward and backward.

The conventions are those of `rows`. Reads come as numbers, since a number is compared faster than a text, and their
scalars β, γ, τ as an array [3], whose dtype is that of the arithmetic: float64 where fixed sums ask for coefficients that are
the same everywhere, else that of x. Many batch rows are worked on at once: `lanes` [I + n, PADDED] hold the inputs, then the n
thresholds, so that an anchor which names a constant is one like the others.
"""

from __future__ import annotations

import numpy as np

from lutetia._shared.elementary import exp_negative, log_positive
from lutetia._shared.fixed import add_one, in_units, sums_in, write_sums
from lutetia._shared.loops import U, by_none, clear, jit_inline, kernel
from lutetia._shared.vectors import copy_column, transpose_in
from lutetia.lut.kernels.cpu.loops.detect import LANES, PADDED

HARD, BLEND, CONFIDENCE, CONFIDENCE2 = range(4)


# ---- detect ----------------------------------------------------------------------------------------------------------


@jit_inline
def look(lanes, pairs, scalars, m, learned, work):
    """One detector on m lanes: bits, which and the rows of `work`: |min_delta|, Σ|u|, Π (1 + e**(-β|u|))."""
    bits, which, closest, mass, product = work
    one, beta = scalars.dtype.type(1), scalars[0]
    for j in range(m):
        bits[j], which[j] = 0, 0
        closest[j], mass[j], product[j] = np.inf, 0, one
    for r in range(pairs.shape[0]):
        a, b, bit = pairs[r, 0], pairs[r, 1], np.uint32(1) << np.uint32(r)
        for j in range(m):
            u = lanes[a, j] - lanes[b, j]
            size = scalars.dtype.type(abs(u))
            bits[j] |= bit if u > 0 else np.uint32(0)
            closer = size < closest[j]
            closest[j] = size if closer else closest[j]
            which[j] = np.uint32(r) if closer else which[j]
        if learned:
            for j in range(m):
                size = scalars.dtype.type(abs(lanes[a, j] - lanes[b, j]))
                mass[j] += size
                # A product of at most 2**24: one logarithm instead of N_c.
                product[j] *= one + exp_negative(-beta * size)


@jit_inline
def wavering(closest, tau):
    """σ(-2 |m| / τ)."""
    e = exp_negative(closest * (-2 / tau))
    return e / (1 + e)


@jit_inline
def new_lanes(x, thresholds):
    """Lanes for the inputs x [B, I], which are zero, and the thresholds, which are in theirs."""
    lanes = np.zeros((x.shape[1] + thresholds.size, PADDED), x.dtype)
    for k in range(thresholds.size):
        for j in range(PADDED):
            lanes[x.shape[1] + k, j] = thresholds[k]
    return lanes


@jit_inline
def new_look(scalars):
    """Room for what `look` writes."""
    bits, which = np.empty(PADDED, np.uint32), np.empty(PADDED, np.uint32)
    return bits, which, np.empty(PADDED, scalars.dtype), np.empty(PADDED, scalars.dtype), np.empty(PADDED, scalars.dtype)


@kernel
def read(inputs, how, reads, begin, end):
    """inputs -> reads, for rows begin to end: indices and factors [B, N_t] of one row, and of another, empty where there is none.

    `inputs` are x [B, I], anchors [N_t, N_c, 2] and thresholds [n]; `how` is the scalars and the kind.
    """
    (x, anchors, thresholds), (scalars, kind) = inputs, how
    (chosen, factors), (others, other_factors) = reads
    one, half, gamma, tau = scalars.dtype.type(1), scalars.dtype.type(0.5), scalars[1], scalars[2]
    lanes, work = new_lanes(x, thresholds), new_look(scalars)
    bits, which, closest, mass, product = work
    a, b = np.empty(PADDED, scalars.dtype), np.empty(PADDED, scalars.dtype)
    for first in range(begin, end, LANES):
        n = min(LANES, end - first)
        m = (n + 7) & ~7
        transpose_in(lanes, x, first, n)
        for t in range(anchors.shape[0]):
            look(lanes, anchors[t], scalars, m, kind >= CONFIDENCE, work)
            if kind == HARD:
                for j in range(m):
                    a[j], b[j] = 1, 0
            elif kind == BLEND:
                for j in range(m):
                    b[j] = half / (one + closest[j])
                    a[j] = one - b[j]
            else:
                for j in range(m):
                    a[j] = mass[j] * exp_negative(-gamma * log_positive(product[j]))
                if kind == CONFIDENCE2:
                    for j in range(m):
                        v, s = wavering(closest[j], tau), a[j]
                        a[j], b[j] = s * (one - v), s * v
            for j in range(n):
                chosen[first + j, t], factors[first + j, t] = bits[j], a[j]
            if others.size > 0:
                for j in range(n):
                    others[first + j, t] = bits[j] ^ (np.uint32(1) << which[j])
                    other_factors[first + j, t] = b[j]


# ---- backward, to the inputs -----------------------------------------------------------------------------------------


@kernel
def propagate_reads(inputs, how, gains, out, scale, begin, end):
    """gains [B, N_t] of a and b -> out, which is dx [B, I] and learned [3, B], the shares of each row in the scalars' gradients.

    For rows begin to end of `inputs`, which are those of `read`. The gains of b, and dx, may be empty; learned is float64, or
    int64 for fixed sums.
    """
    (x, anchors, thresholds), (scalars, kind), (da, db), (dx, learned) = inputs, how, gains, out
    dtype, bad, beta, gamma, tau = scalars.dtype, False, scalars[0], scalars[1], scalars[2]
    one, half, two = dtype.type(1), dtype.type(0.5), dtype.type(2)
    lanes, to_inputs = new_lanes(x, thresholds), x.shape[1] * PADDED  # what goes to constants is dropped
    slopes = np.empty(lanes.size, x.dtype)
    work = new_look(scalars)
    _, which, closest, mass, product = work
    plain, doubtful, nearest = np.zeros(PADDED, dtype), np.zeros(PADDED, dtype), np.zeros(PADDED, dtype)
    to_a, to_b = np.zeros(PADDED, dtype), np.zeros(PADDED, dtype)
    moment, shares = np.zeros(PADDED, dtype), np.zeros((3, PADDED), dtype)
    for first in range(begin, end, LANES):
        n = min(LANES, end - first)
        m = (n + 7) & ~7
        transpose_in(lanes, x, first, n)
        clear(slopes)
        total = sums_in(scale, slopes)
        for k in range(3):
            for j in range(first, first + n):
                learned[k, j] = 0
        for t in range(anchors.shape[0]):
            look(lanes, anchors[t], scalars, m, kind >= CONFIDENCE, work)
            copy_column(da, to_a, first, n, t)
            copy_column(db, to_b, first, n, t)
            # The slope to |u_r| is plain + doubtful · σ(-β|u_r|), and to the smallest also `nearest`.
            if kind < CONFIDENCE:
                for j in range(m):
                    near = one + closest[j]
                    nearest[j] = (to_a[j] - to_b[j]) * half / (near * near)
            else:
                for j in range(m):
                    evidence = -log_positive(product[j])
                    power = exp_negative(gamma * evidence)
                    s, ds = mass[j] * power, to_a[j]
                    if kind == CONFIDENCE2:
                        v = wavering(closest[j], tau)
                        ds = to_a[j] * (one - v) + to_b[j] * v
                        dv = s * (to_b[j] - to_a[j]) * v * (one - v) * two / tau
                        nearest[j] = -dv
                        shares[2, j] = dv * closest[j]
                    plain[j] = ds * power
                    doubtful[j] = plain[j] * (mass[j] * gamma * beta)
                    shares[1, j] = ds * s * gamma * evidence
                    moment[j] = 0
            for r in range(anchors.shape[1]):
                pair = (anchors[t, r, 0], anchors[t, r, 1], np.uint32(r))
                bad |= send(lanes, pair, m, (beta, kind), (which, plain, doubtful, nearest, moment), total, scale)
            if kind >= CONFIDENCE:
                for j in range(m):
                    shares[0, j] = doubtful[j] * moment[j]  # doubtful is ds · s · γ · β
                for k in range(3):
                    for j in range(n):
                        bad |= add_one(learned[k], first + j, rounded(scale, shares[k, j], x), scale)
        bad |= write_sums(total[:to_inputs], scale, slopes[:to_inputs])
        if dx.size > 0:
            for j in range(n):
                for i in range(dx.shape[1]):
                    dx[first + j, i] = slopes[i * PADDED + j]
    return bad


# Fixed sums add up what has the precision of x.
rounded = by_none(lambda scale, value, x: value, lambda scale, value, x: x.dtype.type(value))


@jit_inline
def send(lanes, pair, m, how, slopes, total, scale):
    """total[a] += slope, total[b] -= slope on m lanes, for pair r = (a, b) of a detector; moment += |u| σ(-β|u|)."""
    (a, b, r), (beta, kind), (which, plain, doubtful, nearest, moment) = pair, how, slopes
    bad, into_a, into_b = False, U(a) * U(PADDED), U(b) * U(PADDED)
    one = plain.dtype.type(1)
    for j in range(m):
        u = lanes[a, j] - lanes[b, j]
        slope = nearest[j] if which[j] == r and kind != CONFIDENCE else plain.dtype.type(0)
        if kind >= CONFIDENCE:
            size = plain.dtype.type(abs(u))
            e = exp_negative(-beta * size)
            doubt = e / (one + e)
            moment[j] += size * doubt
            slope += plain[j] + doubtful[j] * doubt
        signed = lanes.dtype.type(slope if u > 0 else -slope)
        addend, overflow = in_units(scale, signed)
        total[into_a + U(j)] += addend
        total[into_b + U(j)] -= addend
        bad |= overflow
    return bad

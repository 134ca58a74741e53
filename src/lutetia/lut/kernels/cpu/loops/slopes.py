"""The compiled loops of the `cpu` backend for sequences, pair by pair, backward to the inputs and the positions.

The conventions are those of `pairs`. A slope that goes to the anchors of x[b, i] at detector t always goes to the same two of
them, whatever the pair. So the pairs are summed up in slopes [N_t, B, S], and in pe_slopes [N_t, B, S-1] (farthest first), where
each (t, b) has its own run: threads never meet, and the sums are the same for any number of threads. `send_slopes` then spreads
them.
"""

from __future__ import annotations

import numpy as np

from lutetia._shared.fixed import from_units, in_units, sums_in, write_sums, zero_in
from lutetia._shared.loops import U, accumulate, by_none, clear, entry, first_given, jit, jit_inline, load
from lutetia._shared.vectors import dot_two_differences, fetch_row
from lutetia.lut.kernels.cpu.loops.basics import lines_of, product_of_row
from lutetia.lut.kernels.cpu.loops.pairs import AHEAD, by_query, is_far, table_of


@entry
def propagate_seq(grad, tables, seq, margins, sums, scale, begin, end):
    """grad [B · S, O] -> sums, for the numbers t · B + b from begin to end; `sums` is slopes and pe_slopes, which are zero.

    `tables` is the weights, flat, and the layer.
    """
    weight, layer = tables
    keys, _, n_anchors, positional_dim = seq
    n_batch, length, bad = max(keys.shape[1], 1), U(keys.shape[2]), False
    for t in range(begin // n_batch, (end + n_batch - 1) // n_batch):
        b, b_end = U(max(begin - t * n_batch, 0)), U(min(end - t * n_batch, n_batch))
        table, some = table_of(weight, layer, t), grad[b * length : b_end * length]
        _, order = by_query(keys[t, b:b_end].reshape(-1), n_anchors, positional_dim)
        lines, _ = lines_of(None, some, layer, t, some.reshape(-1)[:0])
        bad |= propagate_table(lines, table, (order, t, b, is_far(weight, layer)), seq, margins, sums, scale)
    return bad


@jit
def propagate_table(lines, table, places, seq, margins, sums, scale):
    """All pairs of one table. `places` is their order, counted from batch row b, the detector, b, and whether the
    table is far from the cache; each has its line of gradients.

    While the pairs of one place are worked on, the rows of the next are fetched: each pair reads its row, that with the bit of
    the closer position flipped, and where its distance is closer still, that with a bit of the distance flipped.
    """
    grad, at, stride, _ = lines
    weight, first_row, width, bad = table.weight, table.first, table.width, False
    order, t, b, far = places
    keys, signs, length, n_anchors = seq.keys[t].reshape(-1), seq.signs[t], U(seq.keys.shape[2]), U(seq.n_anchors)
    near, slope, flip = margins.near[t].reshape(-1), margins.slope[t].reshape(-1), margins.flip[t].reshape(-1)
    pe_near, pe_slope, pe_flip = margins.pe_near[t], margins.pe_slope[t], margins.pe_flip[t]
    slopes, pe_slopes = sums[0][t].reshape(-1), sums[1][t].reshape(-1)
    rows, others, thirds = np.empty(2 * length, np.uint64), np.empty(2 * length, np.uint64), np.empty(2 * length, np.uint64)
    nothing = grad.dtype.type(0)
    for n in range(U(order.size + 1)):
        if n < U(order.size):
            run, j, to = (b + order[n] // length) * length, order[n] % length, (n & U(1)) * length
            first, near_j, flip_j = U(load(keys, run + j)) << n_anchors, load(near, run + j), U(load(flip, run + j)) << n_anchors
            at_pe = length - U(1) - j
            for i in range(j):  # a function of its own for this loop, though inlined, made everything a tenth slower
                cell = first | U(load(keys, run + i)) | U(load(signs, at_pe + i))
                near_i, flip_i = load(near, run + i), U(load(flip, run + i))
                near_pe, flip_pe = load(pe_near, at_pe + i), U(load(pe_flip, at_pe + i))
                flipped, nearest = (flip_j if near_j < near_i else flip_i), (near_j if near_j < near_i else near_i)
                rows[to + i] = first_row + cell * width
                others[to + i] = first_row + (cell ^ flipped) * width
                thirds[to + i] = first_row + (cell ^ (flip_pe if near_pe < nearest else U(0))) * width
            if far:
                for i in range(to, to + min(j, U(AHEAD))):
                    fetch_row(weight, rows[i])
                    fetch_row(weight, others[i])
                    fetch_row(weight, thirds[i])
        if n > U(0):
            place, at_row = order[n - U(1)], ((n - U(1)) & U(1)) * length
            row_b, j, g_at = b + place // length, place % length, at + place * stride
            run, at_pe = row_b * length, length - U(1) - j
            near_j, slope_j, total = load(near, run + j), load(slope, run + j), zero_in(scale, grad)
            run_pe = row_b * (length - U(1)) + at_pe
            for i in range(j):
                rows_i = (rows[at_row + i], others[at_row + i], thirds[at_row + i])
                gain, pe_gain, overflow = gains_of_pair(first_given(scale, table.row_start), grad, g_at, table, rows_i, scale)
                # Everything is worked out and then chosen from: a branch would be guessed wrong half of the time.
                to_j, to_i, to_pe = slope_j * gain, load(slope, run + i) * gain, load(pe_slope, at_pe + i) * pe_gain
                at_query = near_j < load(near, run + i)
                for_j, bad_j = in_units(scale, to_j if at_query else nothing)
                for_i, bad_i = in_units(scale, nothing if at_query else to_i)
                for_pe, bad_pe = in_units(scale, to_pe if rows_i[2] != rows_i[0] else nothing)
                total += for_j
                accumulate(slopes, run + i, for_i)
                accumulate(pe_slopes, run_pe + i, for_pe)
                bad |= overflow | bad_j | bad_i | bad_pe
            accumulate(slopes, run + j, total)
    return bad


@jit_inline
def gains_of_runs(_, grad, at, table, rows, scale):
    """g·W[row] - g·W[other], g·W[row] - g·W[third] for these three `rows`, and whether something was out of range."""
    gain, pe_gain = dot_two_differences(grad, at, table.weight, rows[0], rows[1], rows[2], table.width)
    return gain, pe_gain, False


@jit_inline
def gains_one_by_one(_, grad, at, table, rows, scale):
    """The same in fixed sums, and where connectivity is general."""
    row, other, third = rows
    main, bad = product_of_row(table.row_start, grad, at, table, row, scale)
    less, bad_less = product_of_row(table.row_start, grad, at, table, other, scale)
    pe_less, bad_pe = (main, False) if third == row else product_of_row(table.row_start, grad, at, table, third, scale)
    gain, bad_gain = from_units(scale, main - less, grad)
    pe_gain, bad_pe_gain = from_units(scale, main - pe_less, grad)
    return gain, pe_gain, bad | bad_less | bad_pe | bad_gain | bad_pe_gain


gains_of_pair = by_none(gains_of_runs, gains_one_by_one)


@entry
def send_slopes(slopes, min_delta_index, anchors, dx, scale, begin, end):
    """slopes, min_delta_index [N_t, B · S], anchors [N_t, N_c, 2] -> dx [B · S, I], for places begin to end."""
    n_inputs = U(dx.shape[1])
    dx = dx[begin:end].reshape(-1)
    clear(dx)
    total = sums_in(scale, dx)
    for t in range(slopes.shape[0]):
        for place in range(U(begin), U(end)):
            pair, at = anchors[t, min_delta_index[t, place]], (place - U(begin)) * n_inputs
            total[at + U(pair[0])] += slopes[t, place]
            total[at + U(pair[1])] -= slopes[t, place]
    return write_sums(total, scale, dx)

"""The compiled loops of the `cpu` backend for sequences, pair by pair, backward to the inputs and the positions.

The conventions are those of `pairs`. A slope that goes to the anchors of x[b, i] at detector t always goes to the same two of
them, whatever the pair. So the pairs are summed up in slopes [N_t, B, S], and in pe_slopes [N_t, B, S-1] (farthest first), where
each (t, b) has its own run: threads never meet, and the sums are the same for any number of threads. `send_slopes` then spreads
them.
"""

from __future__ import annotations

import numpy as np

from lutetia._shared.loops import U, accumulate, by_none, clear, entry, first_given, jit, jit_any_order, jit_inline, load
from lutetia._shared.vectors import BLOCK, dot_blocks
from lutetia.lut.kernels.cpu.arrays import Lines
from lutetia.lut.kernels.cpu.loops.basics import add_one, gain_of, sums_in, write_sums
from lutetia.lut.kernels.cpu.loops.gather import pack_columns
from lutetia.lut.kernels.cpu.loops.pairs import AHEAD, by_query, fetch_row, is_far, pair_row, pairs_of, table_of


@entry
def propagate_seq(grad, tables, seq, margins, sums, scale, begin, end):
    """grad [B · S, O] -> sums, for the numbers t · B + b from begin to end; `sums` is slopes and pe_slopes, which are zero.

    `tables` is the weights, flat, and the layer.
    """
    weight, layer = tables
    keys, _, n_anchors, positional_dim = seq
    n_batch, length, n_outputs, bad = max(keys.shape[1], 1), U(keys.shape[2]), U(grad.shape[1]), False
    for t in range(begin // n_batch, (end + n_batch - 1) // n_batch):
        b, b_end = U(max(begin - t * n_batch, 0)), U(min(end - t * n_batch, n_batch))
        table, some = table_of(weight, layer, t), grad[b * length : b_end * length]
        _, order = by_query(keys[t, b:b_end].reshape(-1), n_anchors, positional_dim)
        if layer.column[t] >= 0:
            lines = Lines(some.reshape(-1), U(layer.column[t]), n_outputs, U(some.shape[0]))
        else:
            packed = np.empty(U(some.shape[0]) * table.width, grad.dtype)
            outputs = layer.targets[layer.list_at[t] : layer.list_at[t] + table.width]
            pack_columns(packed, some, outputs, packed[:0], U(0), None)
            lines = Lines(packed, U(0), table.width, U(some.shape[0]))
        one_by_one = first_given(scale, table.row_start)
        bad |= propagate_table(one_by_one, lines, table, (order, t, b, is_far(weight, layer)), seq, margins, sums, scale)
    return bad


@jit
def propagate_rows(_, lines, table, places, seq, margins, sums, scale):
    """All pairs of one table in float sums. `places` is their order, counted from batch row b, the detector, b, and whether the
    table is far from the cache; each has its line of gradients.

    While the pairs of one place are worked on, the rows of the next are fetched: each pair reads its row, that with the bit of
    the closer position flipped, and where its distance is closer still, that with a bit of the distance flipped.
    """
    grad, at, stride, _ = lines
    weight, first_row, width = table.weight, table.first, table.width
    order, t, b, far = places
    keys, signs, length, n_anchors = seq.keys[t].reshape(-1), seq.signs[t], U(seq.keys.shape[2]), U(seq.n_anchors)
    near, slope, flip = margins.near[t].reshape(-1), margins.slope[t].reshape(-1), margins.flip[t].reshape(-1)
    pe_near, pe_slope, pe_flip = margins.pe_near[t], margins.pe_slope[t], margins.pe_flip[t]
    slopes, pe_slopes = sums[0][t].reshape(-1), sums[1][t].reshape(-1)
    rows, others, thirds = np.empty(2 * length, np.uint64), np.empty(2 * length, np.uint64), np.empty(2 * length, np.uint64)
    none = grad.dtype.type(0)
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
            near_j, slope_j, total, run_pe = load(near, run + j), load(slope, run + j), none, row_b * (length - U(1)) + at_pe
            for i in range(j):
                row, other, third = rows[at_row + i], others[at_row + i], thirds[at_row + i]
                gain, pe_gain = two_gains(grad, g_at, weight, row, other, third, width)
                # Everything is worked out and then chosen from: a branch would be guessed wrong half of the time.
                to_j, to_i, to_pe = slope_j * gain, load(slope, run + i) * gain, load(pe_slope, at_pe + i) * pe_gain
                at_query = near_j < load(near, run + i)
                total += to_j if at_query else none
                accumulate(slopes, run + i, none if at_query else to_i)
                accumulate(pe_slopes, run_pe + i, to_pe if third != row else none)
            accumulate(slopes, run + j, total)
    return False


@jit
def propagate_places(_, lines, table, places, seq, margins, sums, scale):
    """The same for fixed sums and the general layout."""
    near, slope, flip, pe_near, pe_slope, pe_flip = margins
    order, t, b, _ = places
    bad, length, later = False, U(seq.keys.shape[2]), np.empty(seq.keys.shape[2], np.uint64)
    for place in order:
        row, j = b + place // length, place % length
        pairs = pairs_of(seq.keys[t, row], seq.signs[t], seq.n_anchors, j, length)
        one = (near[t, row], slope[t, row], flip[t, row], sums[0][t, row])
        pe = (pe_near[t], pe_slope[t], pe_flip[t], sums[1][t, row])
        flip_j = U(flip[t, row, j]) << U(seq.n_anchors)
        bad |= propagate_place((lines.data, lines.first + place * lines.stride), table, pairs, one, pe, (flip_j, later), scale)
    return bad


propagate_table = by_none(propagate_rows, propagate_places)


@jit_any_order
def two_gains(grad, at, weight, row, other, third, width):
    """g·W[row] - g·W[other], and g·W[row] - g·W[third]."""
    if width == U(BLOCK):  # then the compiler knows how many there are, and leaves out the loop
        return dot_blocks(grad, at, weight, row, other, third, U(1))
    whole = width & ~U(BLOCK - 1)
    gain, pe_gain = dot_blocks(grad, at, weight, row, other, third, whole // U(BLOCK))
    for k in range(whole, width):
        g, w = load(grad, at + k), load(weight, row + k)
        gain += g * (w - load(weight, other + k))
        pe_gain += g * (w - load(weight, third + k))
    return gain, pe_gain


@jit
def propagate_place(grad, table, pairs, one, pe, scratch, scale):
    """All pairs of one place j and one table. `grad` is an array and where the gradient of the place begins.

    `scratch` is the bit in a row that flips j's own closest call, and [S] places.
    """
    near, slope, flip, slopes = one
    pe_near, pe_slope, pe_flip, pe_slopes = pe
    (flip_j, later), j, bad, n_later = scratch, pairs.n, False, U(0)
    near_j = near[j]
    for i in range(j):
        row, near_i, flip_i = pair_row(pairs, i), near[i], U(flip[i])
        at_query = near_j < near_i
        where, flipped = (j if at_query else i), (flip_j if at_query else flip_i)  # no branch: half would be guessed wrong
        gain, overflow = gain_of_flip(grad, table, row, flipped, scale)
        bad |= overflow | add_one(slopes, where, slope[where] * gain, scale)
        later[n_later] = i  # a branch here would be guessed wrong, and what was fetched ahead of it thrown away
        n_later += U(pe_near[pairs.sign_at + i] < (near_j if at_query else near_i))
    for i in later[:n_later]:
        row, m = pair_row(pairs, i), pairs.sign_at + i
        gain, overflow = gain_of_flip(grad, table, row, U(pe_flip[m]), scale)
        bad |= overflow | add_one(pe_slopes, m, pe_slope[m] * gain, scale)
    return bad


@jit_inline
def gain_of_flip(grad, table, row, bit, scale):
    """g·W[row] - g·W[row with a bit flipped], rows of a table, and whether an addend or the sum was out of range."""
    first, width = table.first, table.width
    return gain_of(table.row_start, grad[0], grad[1], table, first + row * width, first + (row ^ bit) * width, scale)


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

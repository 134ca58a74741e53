"""The compiled loops of the `cpu` backend for sequences: the pairs i < j, one by one.

The conventions are those of `rows`. Everything is per detector first, so that one thread owns what it writes, and the pairs of
one j are the innermost loop, i rising: their keys and signs are then two plain runs of memory. A kernel is given

    seq        keys [N_t, B, S], an index << N_pe; signs [N_t, S-1], the PE indices, farthest first; N_c; N_pe
               the row that pair (i, j) reads is keys[j] << N_c | keys[i] | signs[S-1-j+i]
    tables     start [N_t + 1], where each table begins in the weights; width [N_t], how many outputs a row of it reaches;
               column [N_t], the first of them when they are consecutive, else -1; list_at [N_t], where they begin in
               `targets`; targets
    row_start  None; for the general layout [N_t · R + 1], where the weights of each lookup neuron and their `targets` begin

A flat number b · S + j of a position is called a place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.lut.kernels.cpu.loops.basics import BLOCK, dot_blocks, jit_any_order, jit_inline, prefetch
from lutetia.lut.kernels.cpu.loops.general import row_gain, row_gain_fixed
from lutetia.lut.kernels.cpu.loops.rows import (
    U,
    accumulate,
    add_8_rows,
    add_row,
    dot,
    dot_fixed,
    jit,
    load,
    out_of_range,
    pack_columns,
    round_to_unit,
    sums_in,
    write_sums,
)

FAR = U(1 << 18)  # weights of a table that a core's own cache does not hold: what is needed next is fetched ahead
AHEAD = 64  # pairs of the next place that are fetched while one is worked on
LINE = U(16)  # weights of a cache line

# Short loops of their own: numba takes half a second for the general form of each, and again for every kernel.


@jit
def clear(values: Any) -> None:
    """values [n] = 0."""
    for k in range(values.size):
        values[k] = 0


@jit
def take(values: Any, places: Any) -> Any:
    """values[places]."""
    taken = np.empty(places.size, values.dtype)
    for k in range(places.size):
        taken[k] = values[places[k]]
    return taken


# ---- order -----------------------------------------------------------------------------------------------------------


@jit
def places_of(begin: Any, end: Any, length: Any) -> Any:
    """The places of couples begin to end: a couple is an early and a late j, so that all have the same number of pairs."""
    half = (length + 1) // 2
    places, n = np.empty(2 * (end - begin), np.uint64), 0
    for couple in range(begin, end):
        first, s = couple // half * length, couple % half
        places[n] = first + s
        n += 1
        if s != length - 1 - s:
            places[n] = first + length - 1 - s
            n += 1
    return places[:n]


@jit
def by_query(keys: Any, n_anchors: Any, positional_dim: Any) -> Any:
    """Where each Q begins in the order, [2**N_c + 1], and the order [n]: positions with keys [n], sorted by Q.

    Positions of one Q share 2**(N_c + N_pe) rows of weights: taken one after the other, they find them in cache.
    """
    starts = np.zeros((1 << n_anchors) + 2, np.int64)
    order = np.empty(keys.size, np.uint64)
    for k in range(keys.size):
        starts[(keys[k] >> positional_dim) + 2] += 1
    for q in range(2, starts.size):
        starts[q] += starts[q - 1]
    for k in range(keys.size):
        slot = (keys[k] >> positional_dim) + 1
        order[starts[slot]] = k
        starts[slot] += 1
    return starts[:-1], order


@jit
def pair_row(first: Any, keys: Any, i_at: Any, signs: Any, sign_at: Any) -> Any:
    """The row that a pair reads; `first` is keys[j] << N_c."""
    return U(first | load(keys, i_at) | load(signs, sign_at))


@jit_inline
def fetch_row(weight: Any, row: Any) -> None:
    """Begin to fetch a row of weights, or where it is longer than two lines its beginning: the processor fetches on by itself."""
    prefetch(weight, row)
    prefetch(weight, row + LINE)


@jit_inline
def fetch_pairs(weight: Any, table: Any, width: Any, pairs: Any) -> None:
    """Begin to fetch the rows of the pairs of one place."""
    keys, signs, n_anchors, place, length = pairs
    j = place % length
    i_at, sign_at, first = place - j, length - U(1) - j, keys[place] << n_anchors
    for i in range(min(j, U(AHEAD))):
        fetch_row(weight, table + width * pair_row(first, keys, i_at + i, signs, sign_at + i))


# ---- forward ---------------------------------------------------------------------------------------------------------


@jit
def fill_seq(weight: Any, tables: Any, row_start: Any, seq: Any, y: Any, scale: Any, begin: Any, end: Any) -> Any:
    """weight flat -> y [B · S, O], for couples of places begin to end."""
    start, width, column, list_at, targets = tables
    keys, signs, n_anchors, positional_dim = seq
    places = places_of(begin, end, keys.shape[2])
    n_outputs, bad = U(y.shape[1]), False
    sums = np.zeros(places.size * y.shape[1], y.dtype)
    total = sums_in(sums, scale)
    packed = np.empty(y.shape[1], total.dtype)
    for t in range(keys.shape[0]):
        table_keys = keys[t].reshape(-1)
        _, order = by_query(take(table_keys, places), n_anchors, positional_dim)
        far = row_start is None and start[t + 1] - start[t] > FAR
        for n in range(order.size):
            k = order[n]
            pairs = (table_keys, signs[t], n_anchors, places[k], U(keys.shape[2]))
            if far and n + 1 < order.size:
                following = (table_keys, signs[t], n_anchors, places[order[n + 1]], U(keys.shape[2]))
                fetch_pairs(weight, start[t], width[t], following)
            if column[t] >= 0:
                at = k * n_outputs + U(column[t])
                bad |= add_pairs(total, at, weight, start[t], width[t], row_start, targets, pairs, scale)
                continue
            clear(packed)
            bad |= add_pairs(packed, U(0), weight, start[t], width[t], row_start, targets, pairs, scale)
            for m in range(width[t]):
                total[k * n_outputs + U(targets[list_at[t] + m])] += packed[m]
    bad |= write_sums(total, scale, sums)
    for k in range(U(places.size)):
        for n in range(n_outputs):
            y[places[k], n] = sums[k * n_outputs + n]
    return bad


@jit
def add_pairs(
    total: Any, at: Any, weight: Any, table: Any, width: Any, row_start: Any, targets: Any, pairs: Any, scale: Any
) -> Any:
    """total[at:] += the rows of all pairs of one place and one table."""
    keys, signs, n_anchors, place, length = pairs
    j = place % length
    i_at, sign_at, first = place - j, length - U(1) - j, keys[place] << n_anchors
    done, bad = U(0), False
    if row_start is None:
        if scale is None:
            done = j // U(8) * U(8)
            for i in range(U(0), done, U(8)):
                rows = (
                    table + width * pair_row(first, keys, i_at + i, signs, sign_at + i),
                    table + width * pair_row(first, keys, i_at + i + U(1), signs, sign_at + i + U(1)),
                    table + width * pair_row(first, keys, i_at + i + U(2), signs, sign_at + i + U(2)),
                    table + width * pair_row(first, keys, i_at + i + U(3), signs, sign_at + i + U(3)),
                    table + width * pair_row(first, keys, i_at + i + U(4), signs, sign_at + i + U(4)),
                    table + width * pair_row(first, keys, i_at + i + U(5), signs, sign_at + i + U(5)),
                    table + width * pair_row(first, keys, i_at + i + U(6), signs, sign_at + i + U(6)),
                    table + width * pair_row(first, keys, i_at + i + U(7), signs, sign_at + i + U(7)),
                )
                add_8_rows(total, at, weight, rows, width)
        for i in range(done, j):
            row = table + width * pair_row(first, keys, i_at + i, signs, sign_at + i)
            bad |= add_row(total, at, weight, row, width, scale)
    else:
        for i in range(j):
            neuron = table + pair_row(first, keys, i_at + i, signs, sign_at + i)
            for s in range(row_start[neuron], row_start[neuron + U(1)]):
                bad |= add_one(total, at + U(targets[s]), load(weight, s), scale)
    return bad


@jit
def add_one(total: Any, at: Any, value: Any, scale: Any) -> Any:
    """total[at] += value."""
    if scale is None:
        total[at] += value
        return False
    units = round_to_unit(value, scale)
    total[at] += np.int64(units)
    return out_of_range(units)


@jit
def fill_step(
    x: Any, anchors: Any, weight: Any, cache: Any, lengths: Any, places: Any, positional_dim: Any, y: Any, begin: Any, end: Any
) -> None:
    """One new position of each sequence, for batch rows begin to end: x [B, I], weight flat -> y [B, O], in float sums.

    cache [B, N_t, S] holds the indices of the earlier positions, lengths [B] of them, and gets the new ones; places
    [N_t, S-1] are the PE indices, farthest first.
    """
    n_anchors, width = U(anchors.shape[1]), U(y.shape[1])
    shift, n_cells = U(positional_dim), U(1) << (n_anchors + U(positional_dim))
    for b in range(begin, end):
        total, n = y[b], lengths[b]
        clear(total)
        for t in range(anchors.shape[0]):
            q = U(0)
            for r in range(anchors.shape[1]):
                q |= U(x[b, anchors[t, r, 0]] > x[b, anchors[t, r, 1]]) << U(r)
            first, seen, pe = ((U(t) << n_anchors) + q) * n_cells, cache[b, t], places[t, places.shape[1] - n :]
            done = n // 8 * 8
            for i in range(0, done, 8):
                rows = (
                    width * cell_at(first, seen, shift, pe, i),
                    width * cell_at(first, seen, shift, pe, i + 1),
                    width * cell_at(first, seen, shift, pe, i + 2),
                    width * cell_at(first, seen, shift, pe, i + 3),
                    width * cell_at(first, seen, shift, pe, i + 4),
                    width * cell_at(first, seen, shift, pe, i + 5),
                    width * cell_at(first, seen, shift, pe, i + 6),
                    width * cell_at(first, seen, shift, pe, i + 7),
                )
                add_8_rows(total, U(0), weight, rows, width)
            for i in range(done, n):
                add_row(total, U(0), weight, width * cell_at(first, seen, shift, pe, i), width, None)
            seen[n] = np.int16(q)


@jit_inline
def cell_at(first: Any, seen: Any, shift: Any, pe: Any, i: Any) -> Any:
    """The row, through all tables, of the pair with position i."""
    return first + ((U(seen[i]) << shift) | U(pe[i]))


# ---- backward, to the inputs and the positions -----------------------------------------------------------------------
# A slope that goes to the anchors of x[b, i] at detector t always goes to the same two of them, whatever the pair. So the
# pairs are summed up in slopes [N_t, B, S], and in pe_slopes [N_t, B, S-1] (farthest first), where each (t, b) has its own
# run: threads never meet, and the sums are the same for any number of threads. `send_slopes` then spreads them.


@jit
def propagate_seq(
    grad: Any, weight: Any, tables: Any, row_start: Any, seq: Any, margins: Any, sums: Any, scale: Any, begin: Any, end: Any
) -> Any:
    """grad [B · S, O], weight flat -> sums, for the numbers t · B + b from begin to end.

    `margins` is |min_delta|, its slope, and 1 << min_delta_index (shifted to its place in a key), each [N_t, B, S], and the
    same three for the positions, each [N_t, S-1], farthest first; `sums` is slopes and pe_slopes, which are zero.
    """
    start, width, column, list_at, targets = tables
    keys, signs, n_anchors, positional_dim = seq
    near, slope, flip, pe_near, pe_slope, pe_flip = margins
    n_batch, length, n_outputs, bad = max(keys.shape[1], 1), U(keys.shape[2]), U(grad.shape[1]), False
    flat, packed, later = grad.reshape(-1), np.empty(0, grad.dtype), np.empty(length, np.uint64)
    for t in range(begin // n_batch, (end + n_batch - 1) // n_batch):
        b, b_end = max(begin - t * n_batch, 0), min(end - t * n_batch, n_batch)
        c, first = width[t], U(b) * length
        g, at, stride = flat, first * n_outputs + U(column[t]), n_outputs
        if column[t] < 0:
            packed = np.empty(U(b_end - b) * length * c, grad.dtype)
            outputs = targets[list_at[t] : list_at[t] + c]
            pack_columns(packed, grad[first : U(b_end) * length], outputs, packed[:0], U(0), None)
            g, at, stride = packed, U(0), c
        pe = (pe_near[t], pe_slope[t], pe_flip[t])
        _, order = by_query(keys[t, b:b_end].reshape(-1), n_anchors, positional_dim)
        if row_start is None and scale is None:
            found = (keys[t].reshape(-1), near[t].reshape(-1), slope[t].reshape(-1), flip[t].reshape(-1))
            slopes = (sums[0][t].reshape(-1), sums[1][t].reshape(-1))
            table = (weight, start[t], c, start[t + 1] - start[t] > FAR)
            propagate_table(g, at, stride, table, order, U(b), length, U(n_anchors), found, (signs[t], *pe), slopes)
            continue
        for place in order:
            row, j = U(b) + place // length, place % length
            one = (near[t, row], slope[t, row], flip[t, row], sums[0][t, row])
            its = (pe[0], pe[1], pe[2], sums[1][t, row])
            g_at, k = at + place * stride, keys[t, row]
            bad |= propagate_pairs(
                g, g_at, weight, start[t], c, row_start, targets, k, signs[t], n_anchors, j, one, its, later, scale
            )
    return bad


@jit
def propagate_table(
    grad: Any,
    at: Any,
    stride: Any,
    table: Any,
    order: Any,
    b: Any,
    length: Any,
    n_anchors: Any,
    found: Any,
    pe: Any,
    sums: Any,
) -> None:
    """All pairs of one table in float sums: places in this order, counted from batch row b; their gradients begin at
    at + place · stride. What was found and the sums are flat, [B · S] and [B · (S-1)].

    While the pairs of one place are worked on, the rows of the next are fetched: each pair reads its row, that with the bit of
    the closer position flipped, and where its distance is closer still, that with a bit of the distance flipped.
    """
    weight, first_row, width, far = table
    (keys, near, slope, flip), (signs, pe_near, pe_slope, pe_flip), (slopes, pe_slopes) = found, pe, sums
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


@jit_any_order
def two_gains(grad: Any, at: Any, weight: Any, row: Any, other: Any, third: Any, width: Any) -> Any:
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
def propagate_pairs(
    grad: Any,
    at: Any,
    weight: Any,
    table: Any,
    width: Any,
    row_start: Any,
    targets: Any,
    keys: Any,
    signs: Any,
    n_anchors: Any,
    j: Any,
    one: Any,
    pe: Any,
    later: Any,
    scale: Any,
) -> Any:
    """All pairs of one place j and one table; its gradient begins at grad[at]. `later` [S] is scratch."""
    near, slope, flip, slopes = one
    pe_near, pe_slope, pe_flip, pe_slopes = pe
    bad, first, sign_at = False, keys[j] << n_anchors, U(keys.size) - U(1) - j
    near_j, flip_j, n_later = near[j], U(flip[j]) << U(n_anchors), U(0)
    for i in range(j):
        m = sign_at + i
        row, near_i, flip_i = pair_row(first, keys, i, signs, m), near[i], U(flip[i])
        at_query = near_j < near_i
        where, flipped = (j if at_query else i), (flip_j if at_query else flip_i)  # no branch: half would be guessed wrong
        gain, overflow = gain_of(grad, at, weight, table, width, row_start, targets, row, row ^ flipped, scale)
        bad |= overflow | add_one(slopes, where, slope[where] * gain, scale)
        later[n_later] = i  # a branch here would be guessed wrong, and what was fetched ahead of it thrown away
        n_later += U(pe_near[m] < (near_j if at_query else near_i))
    for i in later[:n_later]:
        m = sign_at + i
        row = pair_row(first, keys, i, signs, m)
        gain, overflow = gain_of(grad, at, weight, table, width, row_start, targets, row, row ^ U(pe_flip[m]), scale)
        bad |= overflow | add_one(pe_slopes, m, pe_slope[m] * gain, scale)
    return bad


@jit
def gain_of(
    grad: Any, at: Any, weight: Any, table: Any, width: Any, row_start: Any, targets: Any, row: Any, other: Any, scale: Any
) -> Any:
    """g·W[row] - g·W[other], and whether an addend or the sum was out of range."""
    if row_start is None:
        row, other = table + row * width, table + other * width
        if scale is None:
            return dot(grad, at, weight, row, other, width), False
        units, bad = dot_fixed(grad, at, weight, row, other, width, scale)
        return grad.dtype.type(np.float64(units) / scale), bad | out_of_range(units)
    else:
        g, row, other = grad[at:].reshape(1, -1), table + row, table + other
        if scale is None:
            plus = row_gain(g, U(0), weight, row_start, targets, row)
            return plus - row_gain(g, U(0), weight, row_start, targets, other), False
        units, bad = row_gain_fixed(g, U(0), weight, row_start, targets, row, scale)
        minus, overflow = row_gain_fixed(g, U(0), weight, row_start, targets, other, scale)
        units -= minus
        return grad.dtype.type(np.float64(units) / scale), bad | overflow | out_of_range(units)


@jit
def send_slopes(slopes: Any, min_delta_index: Any, anchors: Any, dx: Any, scale: Any, begin: Any, end: Any) -> Any:
    """slopes, min_delta_index [N_t, B · S], anchors [N_t, N_c, 2] -> dx [B · S, I], for places begin to end."""
    n_inputs = U(dx.shape[1])
    dx = dx[begin:end].reshape(-1)
    clear(dx)
    total = sums_in(dx, scale)
    for t in range(slopes.shape[0]):
        for place in range(U(begin), U(end)):
            pair, at = anchors[t, min_delta_index[t, place]], (place - U(begin)) * n_inputs
            total[at + U(pair[0])] += slopes[t, place]
            total[at + U(pair[1])] -= slopes[t, place]
    return write_sums(total, scale, dx)


# ---- backward, to the weights ----------------------------------------------------------------------------------------


@jit
def gather_seq(
    grad: Any, rates: Any, tables: Any, row_start: Any, seq: Any, out: Any, first: Any, scale: Any, begin: Any, end: Any
) -> Any:
    """out += rates · grad [B · S, O] at the rows of all pairs, for detectors first + begin to first + end.

    `out` is zero and holds the weights of the detectors from `first` on; `rates` is a number per listed target, or none.
    """
    start, width, column, list_at, targets = tables
    keys, signs, n_anchors, positional_dim = seq
    bad, flat, n_outputs = False, grad.reshape(-1), U(grad.shape[1])
    for t in range(U(first + begin), U(first + end)):
        table_keys = keys[t].reshape(-1)
        pairs = (table_keys, signs[t], n_anchors, U(keys.shape[2]))
        if row_start is None:
            starts, order = by_query(table_keys, n_anchors, positional_dim)
            part = out[start[t] - start[first] : start[t + U(1)] - start[first]]
            if scale is None and rates.size == 0 and column[t] >= 0:  # the gradients as they are
                bad |= gather_table(flat, U(column[t]), n_outputs, width[t], pairs, starts, order, part, scale)
                continue
            packed = sums_in(np.empty(U(grad.shape[0]) * width[t], grad.dtype), scale)
            listed = targets[list_at[t] : list_at[t] + width[t]]
            bad |= pack_columns(packed, grad, listed, rates, list_at[t], scale)
            bad |= gather_table(packed, U(0), width[t], width[t], pairs, starts, order, part, scale)
        else:
            base, origin = row_start[start[t]], row_start[start[first]]
            part = out[base - origin : row_start[start[t + U(1)]] - origin]
            bad |= gather_table_general(grad, rates, row_start, targets, start[t], pairs, part, scale)
    return bad


@jit
def gather_table(
    packed: Any, at: Any, stride: Any, width: Any, pairs: Any, starts: Any, order: Any, part: Any, scale: Any
) -> Any:
    """The table `part` of one detector: the gradient of a place, at + place · stride, is added to the row of each pair.

    Places of one Q together: what they write to is a small part of the table, and the integers of fixed sums are few.
    """
    keys, signs, n_anchors, length = pairs
    far = scale is None and U(part.size) > FAR
    size, bad = U(part.size // (starts.size - 1)), False
    for q in range(starts.size - 1):
        if starts[q] == starts[q + 1]:
            continue
        rows = part[U(q) * size : U(q + 1) * size]
        total = sums_in(rows, scale)
        for n in range(starts[q], starts[q + 1]):
            place = order[n]
            if far and n + 1 < order.size:
                fetch_pairs(part, U(0), width, (keys, signs, n_anchors, order[n + 1], length))
            j = place % length
            i_at, sign_at, source = place - j, length - U(1) - j, at + place * stride
            for i in range(j):
                row = pair_row(np.uint32(0), keys, i_at + i, signs, sign_at + i)
                for k in range(width):
                    accumulate(total, row * width + k, load(packed, source + k))
        bad |= write_sums(total, scale, rows)
    return bad


@jit
def gather_table_general(
    grad: Any, rates: Any, row_start: Any, targets: Any, neuron: Any, pairs: Any, part: Any, scale: Any
) -> Any:
    """The same for the general layout: the lookup neurons of the detector are counted from `neuron`."""
    keys, signs, n_anchors, length = pairs
    total, bad, base = sums_in(part, scale), False, row_start[neuron]
    for place in range(U(keys.size)):
        j = place % length
        i_at, sign_at, first = place - j, length - U(1) - j, keys[place] << n_anchors
        for i in range(j):
            row = neuron + pair_row(first, keys, i_at + i, signs, sign_at + i)
            for s in range(row_start[row], row_start[row + U(1)]):
                value = grad[place, targets[s]]
                if rates.size > 0:
                    value = value * rates[s]
                bad |= add_one(total, s - base, value, scale)
    return bad | write_sums(total, scale, part)

"""The compiled loops of the `cpu` backend for sequences: the pairs i < j, one by one.

The conventions are those of `rows`. Everything is per detector first, so that one thread owns what it writes, and the pairs of
one j are the innermost loop, i rising: their keys and signs are then two plain runs of memory. A flat number b · S + j of a
position is called a place.
"""

from __future__ import annotations

import numpy as np

from lutetia._shared.loops import U, accumulate, by_none, clear, entry, jit, jit_inline, load, prefetch
from lutetia.lut.kernels.cpu.arrays import Lines, Pairs, Table
from lutetia.lut.kernels.cpu.loops.basics import add_8_rows, add_one, add_row, sums_in, write_sums
from lutetia.lut.kernels.cpu.loops.gather import pack_columns

FAR = U(1 << 18)  # weights of a table that a core's own cache does not hold: what is needed next is fetched ahead
AHEAD = 64  # pairs of the next place that are fetched while one is worked on
LINE = U(16)  # weights of a cache line


@jit
def take(values, places):
    """values[places]."""
    taken = np.empty(places.size, values.dtype)
    for k in range(places.size):
        taken[k] = values[places[k]]
    return taken


# ---- order -----------------------------------------------------------------------------------------------------------


@jit
def places_of(begin, end, length):
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
def by_query(keys, n_anchors, positional_dim):
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


@jit_inline
def pairs_of(keys, signs, n_anchors, place, length):
    """The pairs of one place: keys [B · S] and signs [S-1] are those of a table."""
    j = place % length
    return Pairs(U(keys[place]) << U(n_anchors), keys, place - j, signs, length - U(1) - j, j)


@jit_inline
def pairs_in_slab(keys, signs, place, length):
    """The same, whose rows are counted from the first of the place's Q."""
    j = place % length
    return Pairs(U(0), keys, place - j, signs, length - U(1) - j, j)


@jit_inline
def pair_row(pairs, i):
    """The row that a pair reads."""
    return pairs.first | U(load(pairs.keys, pairs.i_at + i)) | U(load(pairs.signs, pairs.sign_at + i))


@jit_inline
def fetch_row(weight, row):
    """Begin to fetch a row of weights, or where it is longer than two lines its beginning: the processor fetches on by itself."""
    prefetch(weight, row)
    prefetch(weight, row + LINE)


@jit_inline
def fetch_pairs(weight, first, width, pairs):
    """Begin to fetch the rows of the pairs of one place, in the table that begins at `first`."""
    for i in range(min(pairs.n, U(AHEAD))):
        fetch_row(weight, first + width * pair_row(pairs, i))


# ---- forward ---------------------------------------------------------------------------------------------------------


@jit
def table_of(tables, t):
    """The table of detector t."""
    return Table(tables.weight, tables.start[t], tables.width[t], tables.targets, tables.row_start)


@entry
def fill_seq(tables, seq, y, scale, begin, end):
    """y [B · S, O], for couples of places begin to end."""
    keys, signs, n_anchors, positional_dim = seq
    places, length = places_of(begin, end, keys.shape[2]), U(keys.shape[2])
    n_outputs, bad = U(y.shape[1]), False
    sums = np.zeros(places.size * y.shape[1], y.dtype)
    total = sums_in(scale, sums)
    packed = np.empty(y.shape[1], total.dtype)
    for t in range(keys.shape[0]):
        table_keys, table = keys[t].reshape(-1), table_of(tables, t)
        _, order = by_query(take(table_keys, places), n_anchors, positional_dim)
        far = tables.row_start is None and tables.start[t + 1] - tables.start[t] > FAR
        for n in range(order.size):
            k = order[n]
            pairs = pairs_of(table_keys, signs[t], n_anchors, places[k], length)
            if far and n + 1 < order.size:
                following = pairs_of(table_keys, signs[t], n_anchors, places[order[n + 1]], length)
                fetch_pairs(table.weight, table.first, table.width, following)
            if tables.column[t] >= 0:
                bad |= add_pairs(table.row_start, total, k * n_outputs + U(tables.column[t]), table, pairs, scale)
                continue
            clear(packed)
            bad |= add_pairs(table.row_start, packed, U(0), table, pairs, scale)
            for m in range(table.width):
                total[k * n_outputs + U(table.targets[tables.list_at[t] + m])] += packed[m]
    bad |= write_sums(total, scale, sums)
    for k in range(U(places.size)):
        for n in range(n_outputs):
            y[places[k], n] = sums[k * n_outputs + n]
    return bad


@jit
def add_pairs_by_row(_, total, at, table, pairs, scale):
    """total[at:] += the rows of all pairs of one place and one table."""
    done, bad = U(0), False
    if scale is None:
        done = pairs.n // U(8) * U(8)
        for i in range(U(0), done, U(8)):
            rows = (
                table.first + table.width * pair_row(pairs, i),
                table.first + table.width * pair_row(pairs, i + U(1)),
                table.first + table.width * pair_row(pairs, i + U(2)),
                table.first + table.width * pair_row(pairs, i + U(3)),
                table.first + table.width * pair_row(pairs, i + U(4)),
                table.first + table.width * pair_row(pairs, i + U(5)),
                table.first + table.width * pair_row(pairs, i + U(6)),
                table.first + table.width * pair_row(pairs, i + U(7)),
            )
            add_8_rows(total, at, table.weight, rows, None, table.width)
    for i in range(done, pairs.n):
        row = table.first + table.width * pair_row(pairs, i)
        bad |= add_row(total, at, table.weight, row, table.width, None, scale)
    return bad


@jit
def add_pairs_by_neuron(row_start, total, at, table, pairs, scale):
    """The same for the general layout."""
    bad = False
    for i in range(pairs.n):
        neuron = table.first + pair_row(pairs, i)
        for s in range(row_start[neuron], row_start[neuron + U(1)]):
            bad |= add_one(total, at + U(table.targets[s]), load(table.weight, s), scale)
    return bad


add_pairs = by_none(add_pairs_by_row, add_pairs_by_neuron)


@entry
def fill_step(inputs, weight, cache, y, begin, end):
    """One new position of each sequence, for batch rows begin to end: weight flat -> y [B, O], in float sums.

    Returns whether the cache holds what it cannot hold.

    `inputs` is x [B, I] and the anchors. `cache` is the indices of the earlier positions [B, N_t, S], which gets the new ones,
    how many there are [B], the PE indices [N_t, S-1], farthest first, and N_pe.
    """
    (x, anchors), (indices, lengths, places, positional_dim) = inputs, cache
    n_anchors, width = U(anchors.shape[1]), U(y.shape[1])
    shift, n_cells = U(positional_dim), U(1) << (n_anchors + U(positional_dim))
    for b in range(begin, end):
        total, n = y[b], lengths[b]
        clear(total)
        if n < 0 or n >= indices.shape[2]:
            return True
        for t in range(anchors.shape[0]):
            q = U(0)
            for r in range(anchors.shape[1]):
                q |= U(x[b, anchors[t, r, 0]] > x[b, anchors[t, r, 1]]) << U(r)
            first, seen, pe = ((U(t) << n_anchors) + q) * n_cells, indices[b, t], places[t, places.shape[1] - n :]
            bits = U(0)
            for i in range(n):
                bits |= U(seen[i])
            if bits >> n_anchors:
                return True
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
                add_8_rows(total, U(0), weight, rows, None, width)
            for i in range(done, n):
                add_row(total, U(0), weight, width * cell_at(first, seen, shift, pe, i), width, None, None)
            seen[n] = np.int16(q)
    return False


@jit_inline
def cell_at(first, seen, shift, pe, i):
    """The row, through all tables, of the pair with position i."""
    return first + ((U(seen[i]) << shift) | U(pe[i]))


# ---- backward, to the weights ----------------------------------------------------------------------------------------


@entry
def gather_seq(gradients, tables, seq, sink, scale, begin, end):
    """out += rates · grad [B · S, O] at the rows of all pairs, for detectors first + begin to first + end.

    `sink` is out, which is zero and holds the weights of the detectors from `first` on, and first.
    """
    bad, first = False, sink[1]
    for t in range(U(first + begin), U(first + end)):
        bad |= gather_table(tables.row_start, gradients, tables, seq, sink, t, scale)
    return bad


@jit
def gather_rows(_, gradients, tables, seq, sink, t, scale):
    """The table of one detector, whose rows all reach the same outputs."""
    (grad, rates), (out, first) = gradients, sink
    n, c, start = U(grad.shape[0]), tables.width[t], tables.start
    part = out[start[t] - start[first] : start[t + U(1)] - start[first]]
    if scale is None and rates.size == 0 and tables.column[t] >= 0:  # the gradients as they are
        return add_lines(Lines(grad.reshape(-1), U(tables.column[t]), U(grad.shape[1]), n), c, seq, t, part, scale)
    packed = sums_in(scale, np.empty(n * c, grad.dtype))
    listed = tables.targets[tables.list_at[t] : tables.list_at[t] + c]
    bad = pack_columns(packed, grad, listed, rates, tables.list_at[t], scale)
    return bad | add_lines(Lines(packed, U(0), c, n), c, seq, t, part, scale)


@jit
def add_lines(lines, width, seq, t, part, scale):
    """The table `part`: the line of a place is added to the row of each pair.

    Places of one Q together: what they write to is a small part of the table, and the integers of fixed sums are few.
    """
    keys, signs, length = seq.keys[t].reshape(-1), seq.signs[t], U(seq.keys.shape[2])
    starts, order = by_query(keys, seq.n_anchors, seq.positional_dim)
    far = scale is None and U(part.size) > FAR
    size, bad = U(part.size // (starts.size - 1)), False
    for q in range(starts.size - 1):
        if starts[q] == starts[q + 1]:
            continue
        rows = part[U(q) * size : U(q + 1) * size]
        total = sums_in(scale, rows)
        for n in range(starts[q], starts[q + 1]):
            if far and n + 1 < order.size:
                fetch_pairs(part, U(0), width, pairs_of(keys, signs, seq.n_anchors, order[n + 1], length))
            pairs, source = pairs_in_slab(keys, signs, order[n], length), lines.first + order[n] * lines.stride
            for i in range(pairs.n):
                row = pair_row(pairs, i)
                for k in range(width):
                    accumulate(total, row * width + k, load(lines.data, source + k))
        bad |= write_sums(total, scale, rows)
    return bad


@jit
def gather_neurons(row_start, gradients, tables, seq, sink, t, scale):
    """The same for the general layout."""
    (grad, rates), (out, first) = gradients, sink
    keys, origin, start = seq.keys[t].reshape(-1), row_start[tables.start[first]], tables.start[t]
    base, end = row_start[start], row_start[tables.start[t + U(1)]]
    part, bad = out[base - origin : end - origin], False
    total = sums_in(scale, part)
    for place in range(U(keys.size)):
        pairs = pairs_of(keys, seq.signs[t], seq.n_anchors, place, U(seq.keys.shape[2]))
        for i in range(pairs.n):
            row = start + pair_row(pairs, i)
            for s in range(row_start[row], row_start[row + U(1)]):
                value = grad[place, tables.targets[s]]
                if rates.size > 0:
                    value = value * rates[s]
                bad |= add_one(total, s - base, value, scale)
    return bad | write_sums(total, scale, part)


gather_table = by_none(gather_rows, gather_neurons)

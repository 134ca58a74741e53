"""The compiled loops of the `cpu` backend for sequences: the pairs i < j, one by one.

The conventions are those of `rows`. Everything is per detector first, so that one thread owns what it writes, and the pairs of
one j are the innermost loop, i rising: their keys and signs are then two plain runs of memory. A flat number b · S + j of a
position is called a place.
"""

from __future__ import annotations

import numpy as np

from lutetia._shared.fixed import sums_in, write_sums
from lutetia._shared.loops import U, by_none, clear, entry, jit, jit_inline, load
from lutetia._shared.vectors import Lines, add_8_rows, couples_of, fetch_row, in_eights, sort_by_value, take
from lutetia.lut.kernels.cpu.arrays import Pairs, TableArrays
from lutetia.lut.kernels.cpu.loops.basics import give_row, lines_of, read_row

FAR = U(1 << 18)  # weights of a table that a core's own cache does not hold: what is needed next is fetched ahead
AHEAD = 64  # pairs of the next place that are fetched while one is worked on


# ---- order -----------------------------------------------------------------------------------------------------------


@jit
def by_query(keys, n_anchors, positional_dim):
    """Where each Q begins in the order, [2**N_c + 1], and the order [n]: positions with keys [n], sorted by Q.

    Positions of one Q share 2**(N_c + N_pe) rows of weights: taken one after the other, they find them in cache.
    """
    return sort_by_value(keys, positional_dim, U(1) << U(n_anchors))


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
def fetch_pairs(weight, first, width, pairs):
    """Begin to fetch the rows of the pairs of one place, in the table that begins at `first`."""
    for i in range(min(pairs.n, U(AHEAD))):
        fetch_row(weight, first + width * pair_row(pairs, i))


# ---- forward ---------------------------------------------------------------------------------------------------------


@jit
def table_of(weight, layer, t):
    """The table of detector t."""
    return TableArrays(weight, layer.first[t], layer.width[t], layer.targets, layer.row_start)


@jit
def is_far(weight, layer):
    """Whether the tables are too large for the cache: then rows are fetched ahead, where they are runs of weights."""
    return layer.row_start is None and U(weight.size) > FAR * U(layer.detectors.size)


@entry
def fill_seq(weight, layer, seq, y, scale, begin, end):
    """y [B · S, O], for couples of places begin to end."""
    keys, signs, n_anchors, positional_dim = seq
    places, length = couples_of(begin, end, keys.shape[2]), U(keys.shape[2])
    n_outputs, bad = U(y.shape[1]), False
    sums = np.zeros(places.size * y.shape[1], y.dtype)
    total = sums_in(scale, sums)
    packed, far = np.empty(y.shape[1], total.dtype), is_far(weight, layer)
    for t in range(keys.shape[0]):
        table_keys, table = keys[t].reshape(-1), table_of(weight, layer, t)
        _, order = by_query(take(table_keys, places), n_anchors, positional_dim)
        for n in range(order.size):
            k = order[n]
            pairs = pairs_of(table_keys, signs[t], n_anchors, places[k], length)
            if far and n + 1 < order.size:
                following = pairs_of(table_keys, signs[t], n_anchors, places[order[n + 1]], length)
                fetch_pairs(weight, table.first, table.width, following)
            if layer.column[t] >= 0:
                bad |= add_pairs(total, k * n_outputs + U(layer.column[t]), table, pairs, scale)
                continue
            clear(packed)
            bad |= add_pairs(packed, U(0), table, pairs, scale)
            for m in range(table.width):
                total[k * n_outputs + U(table.targets[layer.list_at[t] + m])] += packed[m]
    bad |= write_sums(total, scale, sums)
    for k in range(U(places.size)):
        for n in range(n_outputs):
            y[places[k], n] = sums[k * n_outputs + n]
    return bad


@jit
def add_pairs(total, at, table, pairs, scale):
    """total[at:] += the rows of all pairs of one place and one table."""
    done, bad = U(0), False
    if scale is None:
        done = pairs.n // U(8) * U(8) if table.row_start is None else U(0)
        for i in range(U(0), done, U(8)):
            add_8_rows(total, at, table.weight, eight_rows(i, table, pairs), None, table.width)
    for i in range(done, pairs.n):
        bad |= read_row(table.row_start, total, at, table, row_of_pair(i, table, pairs), None, scale)
    return bad


@jit_inline
def row_of_pair(i, table, pairs):
    """The row of the layer that a pair reads."""
    return table.first + table.width * pair_row(pairs, i)


eight_rows = in_eights(row_of_pair)


@entry
def fill_step(inputs, weight, cache, y, begin, end):
    """One new position of each sequence, for batch rows begin to end: weight flat -> y [B, O], in float sums.

    Returns whether the cache holds what it cannot hold.

    `inputs` is x [B, I] and the anchors. `cache` is the indices of the earlier positions [B, N_t, S], which gets the new ones,
    how many there are [B], the PE indices [N_t, S-1], farthest first, and N_pe.
    """
    (x, anchors), (indices, lengths, places, positional_dim) = inputs, cache
    n_anchors, width, bits = U(anchors.shape[1]), U(y.shape[1]), U(anchors.shape[1]) + U(positional_dim)
    keys, table = np.empty(indices.shape[2], np.uint32), TableArrays(weight, U(0), width, None, None)
    for b in range(begin, end):
        total, n = y[b], lengths[b]
        clear(total)
        if n < 0 or n >= indices.shape[2]:
            return True
        for t in range(anchors.shape[0]):
            q, seen, all_bits = U(0), indices[b, t], U(0)
            for r in range(anchors.shape[1]):
                q |= U(x[b, anchors[t, r, 0]] > x[b, anchors[t, r, 1]]) << U(r)
            for i in range(n):
                all_bits |= U(seen[i])
                keys[i] = U(seen[i]) << U(positional_dim)
            if all_bits >> n_anchors:
                return True
            pairs = Pairs(((U(t) << n_anchors) | q) << bits, keys, U(0), places[t], U(places.shape[1] - n), U(n))
            add_pairs(total, U(0), table, pairs, None)
            seen[n] = np.int16(q)
    return False


# ---- backward, to the weights ----------------------------------------------------------------------------------------


@entry
def gather_seq(gradients, layer, seq, sink, scale, begin, end):
    """out += rates · grad [B · S, O] at the rows of all pairs, for detectors first + begin to first + end.

    `sink` is out, which is zero and holds the weights of the detectors from `first` on, where those of each begin, and first.
    """
    bad, (out, spans, first) = False, sink
    for t in range(U(first + begin), U(first + end)):
        part = out[spans[t] - spans[first] : spans[t + U(1)] - spans[first]]
        bad |= gather_table(layer.row_start, gradients, layer, seq, t, part, scale)
    return bad


@jit
def gather_runs(_, gradients, layer, seq, t, part, scale):
    """The table of one detector, whose rows all reach the same outputs."""
    grad, rates = gradients
    lines, bad = lines_of(scale, grad, layer, t, rates)
    return bad | add_lines(None, lines, (layer, rates), seq, t, part, scale)


@jit
def gather_neurons(row_start, gradients, layer, seq, t, part, scale):
    """The same where connectivity is general."""
    grad, rates = gradients
    lines = Lines(grad.reshape(-1), U(0), U(grad.shape[1]), U(grad.shape[0]))
    return add_lines(row_start, lines, (layer, rates), seq, t, part, scale)


gather_table = by_none(gather_runs, gather_neurons)
# Where a row begins, in a table that begins with row `first`.
row_at = by_none(
    lambda row_start, first, row, width: row * width,
    lambda row_start, first, row, width: row_start[first + row] - row_start[first],
)


@jit
def add_lines(row_start, lines, listed, seq, t, part, scale):
    """The table `part`: the line of a place is added to the row of each pair.

    Places of one Q together: what they write to is a small part of the table, and the integers of fixed sums are few.
    """
    (layer, rates), keys, signs, length = listed, seq.keys[t].reshape(-1), seq.signs[t], U(seq.keys.shape[2])
    starts, order = by_query(keys, seq.n_anchors, seq.positional_dim)
    width, n_cells, bad = layer.width[t], U(1) << U(seq.n_anchors + seq.positional_dim), False
    far = scale is None and row_start is None and U(part.size) > FAR
    for q in range(starts.size - 1):
        if starts[q] == starts[q + 1]:
            continue
        first = layer.first[t] + U(q) * n_cells * width  # row of the layer
        begin = row_at(row_start, layer.first[t], U(q) * n_cells, width)
        rows = part[begin : row_at(row_start, layer.first[t], U(q + 1) * n_cells, width)]
        total = sums_in(scale, rows)
        for n in range(starts[q], starts[q + 1]):
            if far and n + 1 < order.size:
                fetch_pairs(part, U(0), width, pairs_of(keys, signs, seq.n_anchors, order[n + 1], length))
            pairs, line = pairs_in_slab(keys, signs, order[n], length), (lines.data, lines.first + order[n] * lines.stride, width)
            for i in range(pairs.n):
                row = pair_row(pairs, i)
                at = row_at(row_start, first, row, width)
                bad |= give_row(row_start, total, at, line, (layer.targets, rates), first + row, None, scale)
        bad |= write_sums(total, scale, rows)
    return bad

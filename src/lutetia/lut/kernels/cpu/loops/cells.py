"""The compiled loops of the `cpu` backend for sequences by cells: pairs are counted first, and their sums become products.

The conventions are those of `pairs` and `rows`. For a given j and detector Q is fixed, so a cell is one of the
C = 2**(N_c + N_pe) rows of that Q, its *slab*. The places of one Q share a slab [C, O], and each kernel is a small product with
it, for float sums and C of at least 4:

    forward             y [n, O]     += stat [n, C] · slab [C, O]
    to the inputs       p [n, C]      = g [n, O] · slabᵀ [O, C]        then a pair looks up the g·W it needs
    to the weights      slab' [C, O] += statᵀ [C, n] · g [n, O]

Counts are floats, exact up to 2**24. Cells that did not fire are multiplied by zero: an infinite weight makes its whole slab NaN.
"""

from __future__ import annotations

import numpy as np

from lutetia._shared.fixed import add_row
from lutetia._shared.loops import U, clear, entry, jit
from lutetia._shared.vectors import add_product, copy, couples_of, take, transposed_rows, with_bits_flipped
from lutetia.lut.kernels.cpu.loops.pairs import by_query, pair_row, pairs_in_slab


@jit
def count_pairs(pairs, stat, stride):
    """stat[cell · stride] += 1 for all pairs of one place and one detector."""
    for i in range(pairs.n):
        stat[pair_row(pairs, i) * stride] += 1


# ---- forward ---------------------------------------------------------------------------------------------------------


@entry
def fill_cells(weight, seq, y, begin, end):
    """weight flat -> y [B · S, O], for couples of places begin to end."""
    keys, signs, n_anchors, positional_dim = seq
    places, width, n_cells = couples_of(begin, end, keys.shape[2]), U(y.shape[1]), U(1) << U(n_anchors + positional_dim)
    stat, sums = np.empty(U(4) * n_cells, y.dtype), np.empty((4, y.shape[1]), y.dtype)
    for place in places:
        clear(y[place])
    for t in range(U(keys.shape[0])):
        table_keys = keys[t].reshape(-1)
        starts, order = by_query(take(table_keys, places), n_anchors, positional_dim)
        for q in range(starts.size - 1):
            slab = ((t << U(n_anchors)) + U(q)) * n_cells * width
            for first in range(starts[q], starts[q + 1], 4):
                four = order[first : min(first + 4, starts[q + 1])]
                clear(stat)
                clear(sums.reshape(-1))
                for k in range(U(four.size)):
                    pairs = pairs_in_slab(table_keys, signs[t], places[four[k]], U(keys.shape[2]))
                    count_pairs(pairs, stat[k * n_cells :], U(1))
                add_product(sums.reshape(-1), U(0), stat, n_cells, weight, slab, width)
                for k in range(four.size):
                    add_row(y[places[four[k]]], U(0), sums[k], U(0), width, None, None)


# ---- backward, to the inputs and the positions -----------------------------------------------------------------------


@entry
def propagate_cells(grad, weight, seq, margins, sums, begin, end):
    """grad [B · S, O], weight flat -> sums, for the numbers t · B + b from begin to end; as `propagate_seq`."""
    keys, _, n_anchors, positional_dim = seq
    n_batch, n_cells = max(keys.shape[1], 1), U(1) << U(n_anchors + positional_dim)
    n_outputs = U(grad.shape[1] + 3) // U(4) * U(4)  # with zeros up to a multiple of 4
    turned, g = np.zeros((n_outputs, n_cells), grad.dtype), np.zeros((U(4), n_outputs), grad.dtype)
    p = np.empty((U(4), n_cells), grad.dtype)
    for t in range(begin // n_batch, (end + n_batch - 1) // n_batch):
        b, b_end = max(begin - t * n_batch, 0), min(end - t * n_batch, n_batch)
        table_keys, flips = keys[t, b:b_end].reshape(-1), margins[2][t, b:b_end].reshape(-1)
        mine = by_query(table_keys, n_anchors, positional_dim)
        other = by_query(with_bits_flipped(table_keys, flips), n_anchors, positional_dim)
        for q in range(U(1) << U(n_anchors)):
            if mine[0][q] < mine[0][q + U(1)] or other[0][q] < other[0][q + U(1)]:
                transposed_rows(weight, ((U(t) << U(n_anchors)) + q) * n_cells, U(grad.shape[1]), turned)
                for is_mine in (True, False):
                    starts, order = mine if is_mine else other
                    places = order[starts[q] : starts[q + U(1)]]
                    propagate_slab(grad, (turned, g, p), places, (is_mine, t, b), seq, margins, sums)


@jit
def propagate_slab(grad, scratch, places, where, seq, margins, sums):
    """The places that have one Q (or, if not mine, would have it were their closest call the other way), four at a time.

    `scratch` is the slab of Q, turned [O, C], and g [4, O] and p [4, C]; `where` is whether it is theirs, the detector, and the
    batch row from which places are counted.
    """
    (turned, g, p), (is_mine, t, b) = scratch, where
    near, slope, flip, pe_near, pe_slope, pe_flip = margins
    length, n_outputs = U(seq.keys.shape[2]), U(g.shape[1])
    for first in range(0, places.size, 4):
        four = places[first : min(first + 4, places.size)]
        for k in range(four.size):
            copy(grad[U(b) * length + four[k]], g[k])
        clear(p.reshape(-1))
        add_product(p.reshape(-1), U(0), g.reshape(-1), n_outputs, turned.reshape(-1), U(0), U(turned.shape[1]))
        for k in range(four.size):
            row, j = U(b) + four[k] // length, four[k] % length
            pairs = pairs_in_slab(seq.keys[t, row], seq.signs[t], j, length)
            if is_mine:
                one = (near[t, row], slope[t, row], flip[t, row], sums[0][t, row])
                pe = (pe_near[t], pe_slope[t], pe_flip[t], sums[1][t, row])
                look_up_pairs(p[k], pairs, one, pe)
            else:
                sums[0][t, row, j] -= slope[t, row, j] * sum_at_query(p[k], pairs, near[t, row])


@jit
def look_up_pairs(p, pairs, one, pe):
    """The slopes of all pairs of one place j, but for the flipped Q, from p [C] = g·W of all cells that have its Q.

    Everything is looked up and most of it discarded, because branches would be mispredicted half of the time.
    """
    near, slope, flip, slopes = one
    pe_near, pe_slope, pe_flip, pe_slopes = pe
    j, nothing, at_query = pairs.n, p.dtype.type(0), p.dtype.type(0)
    near_j = near[j]
    for i in range(j):
        m = pairs.sign_at + i
        cell, near_i, pe_near_m = pair_row(pairs, i), near[i], pe_near[m]
        main, is_query = p[cell], near_j < near_i
        key_slope = slope[i] * (main - p[cell ^ U(flip[i])])
        position_slope = pe_slope[m] * (main - p[cell ^ U(pe_flip[m])])
        at_query += main if is_query else nothing
        slopes[i] += nothing if is_query else key_slope
        pe_slopes[m] += position_slope if pe_near_m < (near_j if is_query else near_i) else nothing
    slopes[j] += slope[j] * at_query


@jit
def sum_at_query(p, pairs, near):
    """Σ of p [C] over the pairs of place j in which Q is the closer call."""
    total, nothing, near_j = p.dtype.type(0), p.dtype.type(0), near[pairs.n]
    for i in range(pairs.n):
        other = p[pair_row(pairs, i)]
        total += other if near_j < near[i] else nothing
    return total


# ---- backward, to the weights ----------------------------------------------------------------------------------------


@entry
def gather_cells(grad, seq, out, first, tile, begin, end):
    """out += grad [B · S, O] at the rows of all pairs, for detectors first + begin to first + end; as `gather_seq`.

    The places of one Q are counted `tile` at a time, which is a multiple of 4.
    """
    keys, signs, n_anchors, positional_dim = seq
    n_cells, width = U(1) << U(n_anchors + positional_dim), U(grad.shape[1])
    stat, g = np.empty(n_cells * tile, grad.dtype), np.zeros((tile, width), grad.dtype)
    for t in range(first + begin, first + end):
        table_keys = keys[t].reshape(-1)
        starts, order = by_query(table_keys, n_anchors, positional_dim)
        for q in range(starts.size - 1):
            slab = (U(t - first) * U(starts.size - 1) + U(q)) * n_cells * width
            for n in range(starts[q], starts[q + 1], np.int64(tile)):
                places = order[n : min(n + np.int64(tile), starts[q + 1])]
                used = U(places.size + 3) // U(4) * U(4)
                clear(stat[: n_cells * used])
                for k in range(U(places.size), used):
                    clear(g[k])
                for k in range(places.size):
                    copy(grad[places[k]], g[k])
                    count_pairs(pairs_in_slab(table_keys, signs[t], places[k], U(keys.shape[2])), stat[k:], used)
                for cell in range(U(0), n_cells, U(4)):
                    add_product(out, slab + cell * width, stat[cell * used :], used, g.reshape(-1), U(0), width)

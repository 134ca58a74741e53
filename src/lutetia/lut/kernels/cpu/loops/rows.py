"""The compiled loops of the `cpu` backend over rows of tables. Each does its work for a range of batch rows, without the GIL.

Conventions: weights, targets and index tensors are flat and unsigned (a signed index would be tested for "counts from the
end" on every use). What may be None (`scale` for float sums, else how many units make 1.0; the factors of rows that are added as
they are; a second row; `row_start` but for general connectivity) is known when a loop is compiled: one source is several kernels.
What can overflow returns True when it did. `arrays` says what the tuples hold.
"""

from __future__ import annotations

import numpy as np

from lutetia._shared.fixed import in_units, sums_in, write_sums
from lutetia._shared.loops import U, by_none, clear, element, jit, jit_inline, kernel, load, prefetch
from lutetia._shared.vectors import Lines, add_8_rows, dot_two_rows, in_eights
from lutetia.lut.kernels.cpu.arrays import LayerArrays, Reads, RowArrays, TableArrays
from lutetia.lut.kernels.cpu.loops.basics import gain_of, lines_of, read_row
from lutetia.lut.kernels.cpu.loops.detect import detect, inputs_outside

FAR = 2**20  # weights that do not fit the caches of one core
ONCE = 512  # batch rows among which a row of a table is seldom looked up twice
HANDFUL = 64  # batch rows that go one after the other through tables far from the cache


# ---- forward ---------------------------------------------------------------------------------------------------------


@kernel
def fill(weight, layer, reads, y, scale, begin, end):
    """weight flat, reads [B, N_t] -> y [B, O], for rows begin to end."""
    n, n_outputs, bad, n_detectors = U(end - begin), U(y.shape[1]), False, U(reads[0][0].shape[1])
    layer, reads = LayerArrays(*layer), Reads(flat_rows(reads[0], begin, end), flat_rows(reads[1], begin, end))
    y = y[begin:end].reshape(-1)
    clear(y)
    total = sums_in(scale, y)
    for block in range(layer.start.size - 1):
        tables = tables_of(weight, layer, block, n_detectors)
        column, outputs, c = outputs_of(layer, block)
        if column >= 0:
            bad |= fill_block(Lines(total, U(column), n_outputs, n), tables, reads, scale)
            continue
        sums = np.zeros(n * c, total.dtype)
        bad |= fill_block(Lines(sums, U(0), c, n), tables, reads, scale)
        for i in range(n):
            for k in range(c):
                total[i * n_outputs + U(outputs[k])] += sums[i * c + k]
    return bad | write_sums(total, scale, y)


@kernel
def evaluate(inputs, weight, layer, y, scale, begin, end):
    """detect and fill, for rows begin to end of x [B, I], given with its anchors: one launch instead of two.

    Also True where anchors are out of range.
    """
    x, anchors = inputs
    if inputs_outside(anchors, x.shape[1]):
        return True
    n, zero = end - begin, np.int64(0)  # a constant would have the two compiled once more, for it
    indices = np.empty((n, anchors.shape[0]), np.uint32)
    detect((x[begin:end], anchors, None), indices, None, zero, n)
    return fill(weight, layer, ((indices, None), None), y[begin:end], scale, zero, n)


@jit
def outputs_of(layer, block):
    """The first output that a block reaches where they are consecutive, else -1; all of them; and how many."""
    t = layer.detectors[layer.start[block]]
    return layer.column[t], layer.targets[layer.list_at[t] : layer.list_at[t] + layer.width[t]], layer.width[t]


@jit
def tables_of(weight, layer, block, n_detectors):
    """The tables of a block."""
    detectors = layer.detectors[layer.start[block] : layer.start[block + 1]]
    return TableArrays(weight, layer.first, layer.width[detectors[0]], layer.targets, layer.row_start, detectors, n_detectors)


flat_part = by_none(lambda values, begin, end: None, lambda values, begin, end: values[begin:end].reshape(-1))
# Rows of the batch from begin to end, flat.
flat_rows = by_none(
    lambda rows, begin, end: None,
    lambda rows, begin, end: RowArrays(flat_part(rows[0], begin, end), flat_part(rows[1], begin, end)),
)


@jit
def fill_block(sums, tables, reads, scale):
    """Line i of sums += the rows of all detectors of a block.

    Detectors outside, batch rows inside: a few tables at a time stay in cache (and their pages in the TLB), up to twice as
    fast as going through all tables for each batch row.
    """
    n_tables, bad, n, runs = U(tables.detectors.size), False, sums.n, tables.row_start is None
    done, ahead = U(0), runs and tables.weight.size > FAR and n <= ONCE
    if scale is None:
        done = n_tables // U(8) * U(8) if runs else U(0)
        if ahead and n <= HANDFUL:  # too few to share a table: one batch row after the other, its sums at hand
            for i in range(n):
                for t in range(U(0), done, U(8)):
                    following = (t + U(8), i) if t + U(8) < n_tables else (U(0), i + U(1))
                    fetch_8_rows(tables, reads.first.indices, following, n)
                    add_8_tables(sums, tables, reads.first, t, i)
                    add_8_tables(sums, tables, reads.second, t, i)
        else:
            for t in range(U(0), done, U(8)):
                for i in range(n):
                    if ahead:
                        following = (t, i + U(1)) if i + U(1) < n else (t + U(8), U(0))
                        fetch_8_rows(tables, reads.first.indices, following, n)
                    add_8_tables(sums, tables, reads.first, t, i)
                    add_8_tables(sums, tables, reads.second, t, i)
    for t in range(done, n_tables):
        for i in range(n):
            bad |= add_table(sums, tables, reads.first, (t, i), scale)
            bad |= add_table(sums, tables, reads.second, (t, i), scale)
    return bad


@jit_inline
def fetch_8_rows(tables, indices, place, n):
    """Begin to fetch the rows that fill_block adds next: their first lines, from which the processor guesses the others."""
    t, i = place
    if i < n:
        for j in range(t, min(t + U(8), U(tables.detectors.size))):
            row = chosen_row(j, tables, indices, i)
            for k in range(U(0), min(tables.width, U(64)), U(16)):
                prefetch(tables.weight, row + k)


@jit_inline
def add_8_tables(sums, tables, rows, t, i):
    """Line i of sums += the rows of detectors t to t + 8 of a block."""
    if rows is not None:
        chosen, factors = chosen_8(t, tables, rows.indices, i), factors_of_8(rows.factors, t, tables, i)
        add_8_rows(sums.data, sums.first + i * sums.stride, tables.weight, chosen, factors, tables.width)


@jit_inline
def add_table(sums, tables, rows, place, scale):
    """Line i of sums += the row of detector t of a block; place is (t, i)."""
    if rows is None:
        return False
    t, i = place
    factor, row = element(rows.factors, batch_place(t, tables, i)), chosen_row(t, tables, rows.indices, i)
    return read_row(tables.row_start, sums.data, sums.first + i * sums.stride, tables, row, factor, scale)


@jit_inline
def chosen_row(t, tables, indices, i):
    """The row that the t-th detector of a block chose in batch row i."""
    first = load(tables.first, load(tables.detectors, t))
    return first + U(load(indices, batch_place(t, tables, i))) * tables.width


@jit_inline
def batch_place(t, tables, i):
    """The place in [B, N_t], flat, of the t-th detector of a block and batch row i."""
    return i * tables.n_detectors + load(tables.detectors, t)


@jit_inline
def factor_at(t, factors, tables, i):
    return factors[batch_place(t, tables, i)]


chosen_8, eight_factors = in_eights(chosen_row), in_eights(factor_at)
factors_of_8 = by_none(lambda factors, t, tables, i: None, lambda factors, t, tables, i: eight_factors(t, factors, tables, i))


# ---- backward, to the coefficients -----------------------------------------------------------------------------------


@jit
def columns_of(grad, layer, block):
    """The gradients [n, O] that a block is to get."""
    return lines_of(None, grad, layer, layer.detectors[layer.start[block]], grad.reshape(-1)[:0])[0]


@kernel
def gains(grad, weight, layer, reads, scale, begin, end):
    """grad [B, O], weight flat -> the factors of reads = g · W of their rows, for batch rows begin to end."""
    bad, n_detectors = False, U(reads[0][0].shape[1])
    layer, reads = LayerArrays(*layer), Reads(flat_rows(reads[0], begin, end), flat_rows(reads[1], begin, end))
    for block in range(layer.start.size - 1):
        columns, tables = columns_of(grad[begin:end], layer, block), tables_of(weight, layer, block, n_detectors)
        n_tables = U(tables.detectors.size)
        for some in range(U(0), n_tables, U(8)):  # eight tables at a time stay in cache
            for i in range(columns.n):
                for t in range(some, min(some + U(8), n_tables)):
                    bad |= write_gains(columns, tables, reads.first, reads.second, (t, i), scale)
    return bad


@jit_inline
def write_gains(columns, tables, first, second, place, scale):
    """g · W of the row, or the two rows, of one detector t and batch row i."""
    t, i = place
    at, here, row = columns.first + i * columns.stride, batch_place(t, tables, i), chosen_row(t, tables, first.indices, i)
    if second is None:
        first.factors[here], bad = gain_of(tables.row_start, columns.data, at, tables, row, None, scale)
        return bad
    other = chosen_row(t, tables, second.indices, i)
    if scale is None and tables.row_start is None:
        both = dot_two_rows(columns.data, at, tables.weight, row, other, tables.width)
        first.factors[here], second.factors[here] = both
        return False
    first.factors[here], bad = gain_of(tables.row_start, columns.data, at, tables, row, None, scale)
    second.factors[here], overflow = gain_of(tables.row_start, columns.data, at, tables, other, None, scale)
    return bad | overflow


# ---- backward, to the inputs -----------------------------------------------------------------------------------------


@kernel
def propagate(grad, weight, layer, found, dx, scale, begin, end):
    """grad [B, O], weight flat -> dx [B, I], for rows begin to end.

    `found` is indices, min_delta and min_delta_index, [B, N_t] each, and the anchors [N_t, N_c, 2].
    """
    bad, layer, anchors = False, LayerArrays(*layer), found[3]
    indices, min_delta, min_delta_index = found[0][begin:end], found[1][begin:end], found[2][begin:end]
    one, n_detectors = min_delta.dtype.type(1), U(indices.shape[1])
    dx, n_inputs = dx[begin:end].reshape(-1), U(dx.shape[1])
    clear(dx)
    total = sums_in(scale, dx)
    for block in range(layer.start.size - 1):
        columns, tables = columns_of(grad[begin:end], layer, block), tables_of(weight, layer, block, n_detectors)
        n_tables = U(tables.detectors.size)
        for some in range(U(0), n_tables, U(8)):  # eight tables at a time, for the same reason as in fill_block
            for i in range(columns.n):
                for j in range(some, min(some + U(8), n_tables)):
                    t, at = tables.detectors[j], columns.first + i * columns.stride
                    index, which = indices[i, t], min_delta_index[i, t]
                    row = tables.first[t] + U(index) * tables.width
                    other = tables.first[t] + U(index ^ (np.uint32(1) << which)) * tables.width
                    gain, overflow = gain_of(tables.row_start, columns.data, at, tables, row, other, scale)
                    slope = uncertainty_slope(min_delta[i, t], one) * gain
                    pair = (anchors[t, which, 0], anchors[t, which, 1])  # a slice would be an array to make and to give back
                    bad |= overflow | send_to_anchors(total, (i, n_inputs), pair, slope, scale)
    return bad | write_sums(total, scale, dx)


@jit
def uncertainty_slope(u, one):
    """0.5 sgn(u) / (1 + |u|)², with sgn(0) = -1; `one` keeps the arithmetic in the dtype of u."""
    half = one / (one + one)
    near = one + abs(u)
    return (half if u > 0 else -half) / (near * near)


@jit
def send_to_anchors(total, row, pair, slope, scale):
    """total[a] += slope, total[b] -= slope for the pair (a, b); `row` is its number and I, and b >= I a constant.

    Without a branch, which would double the time of `propagate` at 32 outputs: of a constant, a loses nothing.
    """
    i, n_inputs = row
    a, b, is_input = i * n_inputs + U(pair[0]), i * n_inputs + U(pair[1]), U(pair[1]) < n_inputs
    addend, bad = in_units(scale, slope)
    total[a] += addend
    total[b if is_input else a] -= addend if is_input else total.dtype.type(0)
    return bad

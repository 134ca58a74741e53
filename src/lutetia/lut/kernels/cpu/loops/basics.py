"""What the compiled loops of the `cpu` backend do with one row of weights: add it up, multiply it with gradients, give it some.

Sums are in floating point, or fixed, as integers. A *row* is where it begins in the weights, which then lie one after the other;
where connectivity is general, it is the number of a lookup neuron, whose weights and outputs `Synapses` lists. By `row_start`,
which is None or not, a loop is compiled for the one or the other.
"""

from __future__ import annotations

import numpy as np

from lutetia._shared.fixed import add_one, add_row, from_units, in_units, sums_in, take_columns, zero_in
from lutetia._shared.loops import U, by_none, jit, jit_inline, load, times
from lutetia._shared.vectors import Lines, dot

# ---- a row, added up -------------------------------------------------------------------------------------------------


@jit_inline
def read_run(_, total, at, table, row, factor, scale):
    """total[at:] += factor · the row."""
    return add_row(total, at, table.weight, row, table.width, factor, scale)


@jit_inline
def read_neuron(row_start, total, at, table, row, factor, scale):
    """The same where connectivity is general: at the outputs of a lookup neuron."""
    bad = False
    for s in range(row_start[row], row_start[row + U(1)]):
        bad |= add_one(total, at + U(table.targets[s]), times(factor, load(table.weight, s)), scale)
    return bad


read_row = by_none(read_run, read_neuron)  # (table.row_start, total, at, table, row, factor, scale)


# ---- a row, multiplied -----------------------------------------------------------------------------------------------


@jit_inline
def gain_of_runs(_, grad, at, table, row, other, scale):
    """g·W[row], or g·W[row] - g·W[other] as one sum, and whether something was out of range; g begins at `at`."""
    if scale is None:
        return dot(grad, at, table.weight, row, other, table.width), False
    return gain_one_by_one(None, grad, at, table, row, other, scale)


@jit_inline
def gain_one_by_one(row_start, grad, at, table, row, other, scale):
    """The same in fixed sums, and where connectivity is general."""
    total, bad = product_of_row(row_start, grad, at, table, row, scale)
    if other is not None:
        less, overflow = product_of_row(row_start, grad, at, table, other, scale)
        total, bad = total - less, bad | overflow
    gain, overflow = from_units(scale, total, grad)
    return gain, bad | overflow


@jit_inline
def product_of_row(row_start, grad, at, table, row, scale):
    """g·W[row], weight by weight, in units where sums are fixed, and whether an addend was out of range."""
    total, bad, (first, last) = zero_in(scale, grad), False, weights_of(row_start, row, table.width)
    for s in range(first, last):
        units, overflow = in_units(scale, load(grad, at + output_of(row_start, table.targets, s, first)) * load(table.weight, s))
        total, bad = total + units, bad | overflow
    return total, bad


# Where the weights of a row begin and end, and which output the weight s of it reaches.
weights_of = by_none(lambda _, row, width: (row, row + width), lambda row_start, row, _: (row_start[row], row_start[row + U(1)]))
output_of = by_none(lambda _, targets, s, first: s - first, lambda row_start, targets, s, first: U(load(targets, s)))
gain_of = by_none(gain_of_runs, gain_one_by_one)  # (table.row_start, grad, at, table, row, other, scale)


# ---- a row, given gradients ------------------------------------------------------------------------------------------


@jit
def packed_lines(scale, grad, layer, t, rates):
    """The gradients of grad [B, O] that detector t reaches, times their rates; in units, for fixed sums. And whether any is too
    large."""
    listed, n, width = layer.list_at[t], U(grad.shape[0]), layer.width[t]
    packed = sums_in(scale, np.empty(n * width, grad.dtype))
    bad = take_columns(packed, grad, layer.targets[listed : listed + width], rates, listed, scale)
    return Lines(packed, U(0), width, n), bad


@jit
def lines_in_place(scale, grad, layer, t, rates):
    """The same, where they lie if they may be added as they are."""
    if rates.size == 0 and layer.column[t] >= 0:
        return Lines(grad.reshape(-1), U(layer.column[t]), U(grad.shape[1]), U(grad.shape[0])), False
    return packed_lines(scale, grad, layer, t, rates)


lines_of = by_none(lines_in_place, packed_lines)  # (scale, grad, layer, t, rates)


@jit_inline
def give_run(_, total, at, line, listed, row, factor, scale):
    """total[at:] += factor · a line of gradients, which is in units where sums are fixed and there is no factor.

    `line` is an array, where it begins in it, and how long it is.
    """
    data, first, width = line
    return add_row(total, at, data, first, width, factor, scale_after(factor, scale))


@jit_inline
def give_neuron(row_start, total, at, line, listed, row, factor, scale):
    """The same where connectivity is general, of all gradients [O]; `listed` are the outputs and rates of all weights."""
    (data, first, _), (targets, rates), bad = line, listed, False
    begin, end = row_start[row], row_start[row + U(1)]  # read once: what is written could lie there, as far as a compiler knows
    for s in range(begin, end):
        value = load(data, first + U(load(targets, s)))
        if rates.size > 0:
            value = value * load(rates, s)
        bad |= add_one(total, at + s - begin, times(factor, value), scale)
    return bad


give_row = by_none(give_run, give_neuron)  # (layer.row_start, total, at, line, listed, row, factor, scale)
# Gradients are in units before they meet a run, unless a factor comes between: the product is what is rounded.
scale_before = by_none(lambda factors, scale: scale, lambda factors, scale: None)
scale_after = by_none(lambda factor, scale: None, lambda factor, scale: scale)

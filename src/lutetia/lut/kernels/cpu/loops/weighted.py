"""The compiled loops of the `cpu` backend that add rows of the tables with coefficients, and the way back.

The conventions are those of `rows`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.lut.kernels.cpu.loops.basics import (
    U,
    accumulate,
    jit,
    jit_any_order,
    jit_inline,
    kernel,
    load,
    out_of_range,
    round_to_unit,
    sums_in,
    write_sums,
)

# ---- forward ---------------------------------------------------------------------------------------------------------


@jit_inline
def add_scaled_row(total: Any, at: Any, source: Any, row: Any, width: Any, factor: Any, scale: Any) -> Any:
    """total[at:] += factor · source[row:], over `width` elements."""
    bad = False
    if scale is None:
        for k in range(width):
            accumulate(total, at + k, factor * load(source, row + k))
    else:
        for k in range(width):
            units = round_to_unit(factor * load(source, row + k), scale)
            bad |= out_of_range(units)
            accumulate(total, at + k, np.int64(units))
    return bad


@jit_inline
def add_4_scaled_rows(total: Any, at: Any, source: Any, rows: Any, factors: Any, width: Any) -> None:
    """The same for four rows: the sum is read and written once instead of four times."""
    whole = width & ~U(7)  # in vectors; the rest apart, or a rest of 7 would cost as much as 32
    for k in range(whole):
        accumulate(total, at + k, weighted_sum_of_4(source, rows, factors, k))
    for k in range(whole, width):
        accumulate(total, at + k, weighted_sum_of_4(source, rows, factors, k))


@jit_inline
def weighted_sum_of_4(source: Any, rows: Any, factors: Any, k: Any) -> Any:
    first = factors[0] * load(source, rows[0] + k) + factors[1] * load(source, rows[1] + k)
    return first + (factors[2] * load(source, rows[2] + k) + factors[3] * load(source, rows[3] + k))


@kernel
def fill_weighted(weight: Any, blocks: Any, chosen: Any, factors: Any, y: Any, scale: Any, begin: Any, end: Any) -> Any:
    """weight flat, chosen = indices, alternatives, factors = a, b, all [B, N_t] -> y [B, O], for rows begin to end.

    The second of each pair is empty where one row is read.
    """
    start, detectors, weight_at, list_at, width, contiguous, targets = blocks
    n, n_outputs, bad = U(end - begin), U(y.shape[1]), False
    n_detectors = U(chosen[0].shape[1])
    y = y[begin:end].reshape(-1)
    y[:] = 0
    total = sums_in(y, scale)
    for block in range(width.size):
        first, last, c = start[block], start[block + 1], width[block]
        outputs = targets[list_at[first] : list_at[first] + c]
        sums, at, stride = total, U(0), n_outputs
        if contiguous[block]:
            at = U(outputs[0])
        else:
            sums, stride = np.zeros(n * c, total.dtype), c
        tables = (weight_at[first:last], detectors[first:last], c)
        bad |= fill_weighted_block(sums, at, stride, weight, tables, chosen, factors, U(begin) * n_detectors, n, scale)
        if not contiguous[block]:
            for i in range(n):
                for k in range(c):
                    total[i * n_outputs + U(outputs[k])] += sums[i * c + k]
    return bad | write_sums(total, scale, y)


@jit
def fill_weighted_block(
    total: Any, at: Any, stride: Any, weight: Any, tables: Any, chosen: Any, factors: Any, begin: Any, n: Any, scale: Any
) -> Any:
    """Row i of total, at + i · stride, += the rows of all detectors of a block; a few tables at a time stay in cache."""
    weight_at, detectors, width = tables
    n_tables, n_detectors, bad, done = U(detectors.size), U(chosen[0].shape[1]), False, U(0)
    indices, a = chosen[0].reshape(-1), factors[0].reshape(-1)
    alternatives, b = chosen[1].reshape(-1), factors[1].reshape(-1)
    if scale is None:
        done = n_tables // U(4) * U(4)
        for t in range(U(0), done, U(4)):
            base = (weight_at[t], weight_at[t + U(1)], weight_at[t + U(2)], weight_at[t + U(3)])
            for i in range(n):
                from_ = begin + i * n_detectors
                w = (from_ + detectors[t], from_ + detectors[t + U(1)], from_ + detectors[t + U(2)], from_ + detectors[t + U(3)])
                add_4_scaled_rows(total, at + i * stride, weight, four_rows(base, indices, w, width), four(a, w), width)
                if factors[1].size > 0:
                    add_4_scaled_rows(total, at + i * stride, weight, four_rows(base, alternatives, w, width), four(b, w), width)
    for t in range(done, n_tables):
        for i in range(n):
            place = begin + i * n_detectors + detectors[t]
            row = weight_at[t] + U(indices[place]) * width
            bad |= add_scaled_row(total, at + i * stride, weight, row, width, a[place], scale)
            if factors[1].size > 0:
                row = weight_at[t] + U(alternatives[place]) * width
                bad |= add_scaled_row(total, at + i * stride, weight, row, width, b[place], scale)
    return bad


@jit_inline
def four(values: Any, where: Any) -> Any:
    return load(values, where[0]), load(values, where[1]), load(values, where[2]), load(values, where[3])


@jit_inline
def four_rows(base: Any, chosen: Any, where: Any, width: Any) -> Any:
    """Where the four rows begin in the weights."""
    p, q, r, s = four(chosen, where)
    return base[0] + U(p) * width, base[1] + U(q) * width, base[2] + U(r) * width, base[3] + U(s) * width


# ---- backward, to the coefficients -----------------------------------------------------------------------------------


@jit_any_order
def dot_row(grad: Any, at: Any, weight: Any, row: Any, width: Any) -> Any:
    """Σ grad · weight over `width` elements."""
    total = grad.dtype.type(0)
    for k in range(width):
        total += load(grad, at + k) * load(weight, row + k)
    return total


@jit_any_order
def dot_two_rows(grad: Any, at: Any, weight: Any, row: Any, other: Any, width: Any) -> Any:
    """The same for two rows: each gradient is read once."""
    first, second = grad.dtype.type(0), grad.dtype.type(0)
    for k in range(width):
        first += load(grad, at + k) * load(weight, row + k)
        second += load(grad, at + k) * load(weight, other + k)
    return first, second


@jit
def dot_row_fixed(grad: Any, at: Any, weight: Any, row: Any, width: Any, scale: Any) -> Any:
    """The same in units, and whether something was out of range."""
    total, bad = np.int64(0), False
    for k in range(width):
        units = round_to_unit(load(grad, at + k) * load(weight, row + k), scale)
        bad |= out_of_range(units)
        total += np.int64(units)
    return total, bad or out_of_range(total)


@kernel
def gains(grad: Any, weight: Any, blocks: Any, chosen: Any, out: Any, scale: Any, begin: Any, end: Any) -> Any:
    """grad [B, O], weight flat, two times chosen [B, N_t] -> two times out [B, N_t] = g · W[chosen], for rows begin to end.

    The second of each pair is empty where one row is asked for.
    """
    start, detectors, weight_at, list_at, width, contiguous, targets = blocks
    n, n_outputs, bad = U(end - begin), U(grad.shape[1]), False
    grad, both = grad[begin:end].reshape(-1), out[1].size > 0
    indices, da = chosen[0][begin:end], out[0][begin:end]
    alternatives, db = chosen[1][begin:end], out[1][begin:end]
    for block in range(width.size):
        first, last, c = start[block], start[block + 1], width[block]
        outputs = targets[list_at[first] : list_at[first] + c]
        columns, at, stride = grad, U(0), n_outputs
        if contiguous[block]:
            at = U(outputs[0])
        else:
            columns, stride = np.empty(n * c, grad.dtype), c
            for i in range(n):
                for k in range(c):
                    columns[i * c + k] = grad[i * n_outputs + U(outputs[k])]
        for some in range(first, last, U(8)):  # eight tables at a time stay in cache
            for i in range(n):
                for j in range(some, min(some + U(8), last)):
                    t, here = detectors[j], at + i * stride
                    row = weight_at[j] + U(indices[i, t]) * c
                    if scale is not None:
                        units, overflow = dot_row_fixed(columns, here, weight, row, c, scale)
                        bad |= overflow
                        da[i, t] = np.float64(units) / scale
                        if both:
                            row = weight_at[j] + U(alternatives[i, t]) * c
                            units, overflow = dot_row_fixed(columns, here, weight, row, c, scale)
                            bad |= overflow
                            db[i, t] = np.float64(units) / scale
                    elif both:
                        other = weight_at[j] + U(alternatives[i, t]) * c
                        da[i, t], db[i, t] = dot_two_rows(columns, here, weight, row, other, c)
                    else:
                        da[i, t] = dot_row(columns, here, weight, row, c)
    return bad


# ---- backward, to the weights ----------------------------------------------------------------------------------------


@kernel
def gather_weighted(
    grad: Any, rates: Any, blocks: Any, chosen: Any, factors: Any, places: Any, out: Any, scale: Any, begin: Any, end: Any
) -> Any:
    """out += factor · grad [B, O] at the rows read, for positions begin to end of the blocks' detectors.

    `chosen` and `factors` are as in fill_weighted, `rates` and `places` as in gather.
    """
    start, detectors, _, list_at, width, contiguous, targets = blocks
    n, n_outputs, bad = U(grad.shape[0]), U(grad.shape[1]), False
    flat = grad.reshape(-1)
    for block in range(width.size):
        first, last, c = max(start[block], U(begin)), min(start[block + 1], U(end)), width[block]
        if first >= last:
            continue
        as_is = rates.size == 0 and contiguous[block]
        packed, at, stride = flat, U(targets[list_at[first]]) if c > 0 else U(0), n_outputs
        if not as_is:
            packed, at, stride = np.empty(n * c, grad.dtype), U(0), c
        for j in range(first, last):
            if not as_is and (j == first or rates.size > 0):
                listed = list_at[j]
                for i in range(n):
                    for k in range(c):
                        value = flat[i * n_outputs + U(targets[listed + k])]
                        packed[i * c + k] = value * rates[listed + k] if rates.size > 0 else value
            bad |= gather_weighted_table(packed, at, stride, c, detectors[j], chosen, factors, places, out, scale)
    return bad


@jit
def gather_weighted_table(
    packed: Any, at: Any, stride: Any, width: Any, t: Any, chosen: Any, factors: Any, places: Any, out: Any, scale: Any
) -> Any:
    """The table of one detector: row i of `packed`, at + i · stride, is added where it belongs."""
    starts, spans, n_rows = places
    part, bad = out[spans[t] : spans[t + U(1)]], False
    total = sums_in(part, scale)
    for i in range(U(chosen[0].shape[0])):
        row = place_in_part(starts, spans, n_rows, t, U(chosen[0][i, t]), width)
        bad |= add_scaled_row(total, row, packed, at + i * stride, width, factors[0][i, t], scale)
        if factors[1].size > 0:
            row = place_in_part(starts, spans, n_rows, t, U(chosen[1][i, t]), width)
            bad |= add_scaled_row(total, row, packed, at + i * stride, width, factors[1][i, t], scale)
    return bad | write_sums(total, scale, part)


@jit_inline
def place_in_part(starts: Any, spans: Any, n_rows: Any, t: Any, row: Any, width: Any) -> Any:
    """Where the sums of a row begin among those of its detector."""
    if starts.size > 0:
        return starts[t * n_rows + row] - spans[t]
    return row * width

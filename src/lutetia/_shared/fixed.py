"""Pieces of compiled loops: sums in floating point or, with a `scale`, fixed: of integers, alike in any order, on any backend.

Without a scale, which is None when a loop is compiled, an addend is itself. With one it is a whole number of units, of which
`scale` make 1.0, and must fit an int32, as must the sum: where one does not, functions return True.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import numpy as np

from lutetia._shared.loops import U, accumulate, by_none, jit, jit_inline, load, times
from lutetia.errors import MAX_INT32

# sums_in(scale, out [n]): where to add up what belongs in out: there, or for fixed sums in as many integers, which are zero.
sums_in = by_none(lambda scale, out: out, lambda scale, out: np.zeros(out.size, np.int64))


@jit
def round_to_unit(value, scale):
    """A float as a whole number of units, still as a float64."""
    return np.rint(np.float64(value) * scale)


@jit
def out_of_range(units):
    return not abs(units) <= MAX_INT32  # written so that NaN is out of range too


@jit_inline
def add_one(total, at, value, scale):
    """total[at] += value."""
    if scale is None:
        total[at] += value
        return False
    units = round_to_unit(value, scale)
    total[at] += np.int64(units)
    return out_of_range(units)


@jit
def write_sums(total, scale, out):
    """Integer sums [n] into out [n], as floats; float sums are there already."""
    bad = False
    if scale is not None:
        for k in range(total.size):
            bad |= out_of_range(total[k])
            out[k] = np.float64(total[k]) / scale
    return bad


@jit_inline
def add_row(total, at, source, row, width, factor, scale):
    """total[at:] += factor · source[row:], over `width` elements; no factor is 1."""
    bad = False
    if scale is None:
        for k in range(width):
            accumulate(total, at + k, times(factor, load(source, row + k)))
    else:
        for k in range(width):
            units = round_to_unit(times(factor, load(source, row + k)), scale)
            bad |= out_of_range(units)
            accumulate(total, at + k, np.int64(units))
    return bad


@jit
def take_columns(taken, values, columns, factors, first, scale):
    """taken [n · width] = these columns [width] of values [n, m], times factors[first:] if there are any; in units, if fixed."""
    bad, width = False, U(columns.size)
    for i in range(U(values.shape[0])):
        for k in range(width):
            value = values[i, columns[k]]
            if factors.size > 0:
                value = value * factors[first + k]
            if scale is None:
                taken[i * width + k] = value
            else:
                units = round_to_unit(value, scale)
                bad |= out_of_range(units)
                taken[i * width + k] = np.int64(units)
    return bad


zero_in = by_none(lambda scale, grad: grad.dtype.type(0), lambda scale, grad: np.int64(0))
# An addend, and a sum of them in the dtype of grad; each with whether it was out of range.
in_units = by_none(
    lambda scale, value: (value, False),
    lambda scale, value: (np.int64(round_to_unit(value, scale)), out_of_range(round_to_unit(value, scale))),
)
from_units = by_none(
    lambda scale, total, grad: (total, False),
    lambda scale, total, grad: (grad.dtype.type(np.float64(total) / scale), out_of_range(total)),
)

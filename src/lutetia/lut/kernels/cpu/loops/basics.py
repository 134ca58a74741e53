"""What the compiled loops of the `cpu` backend add up with: rows of weights, in floating point or as integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia._shared.compiled import ir, load_number, numba
from lutetia._shared.loops import U, accumulate, accumulate_apart, by_none, extending, jit, jit_inline, load, times
from lutetia.lut.sums import FIXED_MAX

INT = ir.IntType(64)

# ---- vectors ---------------------------------------------------------------------------------------------------------

BLOCK = 32  # numbers that `dot_blocks` takes at once


@extending.intrinsic
def dot_blocks(typing: Any, grad: Any, at: Any, weight: Any, row: Any, other: Any, third: Any, n: Any) -> Any:
    """Σ grad[at:] · (weight[row:] - weight[other:]), and the same with `third`, over n blocks; in any order, in vectors by hand.

    A loop that the compiler vectorises starts with tests that take as long as 32 elements.
    """
    kind = ir.FloatType() if grad.dtype == numba.types.float32 else ir.DoubleType()
    flags, pair = ("contract", "reassoc", "nsz"), numba.types.UniTuple(grad.dtype, 2)
    lanes = 64 // (grad.dtype.bitwidth // 8)
    vector = ir.VectorType(kind, lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        g, at, w, row, other, third, n = args
        arrays = [context.make_array(signature.args[k])(context, builder, array).data for k, array in ((0, g), (2, w))]
        sums = [numba.core.cgutils.alloca_once_value(builder, vector([kind(0.0)] * lanes)) for _ in range(2)]
        with numba.core.cgutils.for_range(builder, n) as loop:
            for lane in range(0, BLOCK, lanes):
                offset = builder.add(builder.mul(loop.index, INT(BLOCK)), INT(lane))
                g_part = load_number(builder, builder.gep(arrays[0], [builder.add(at, offset)]), grad.dtype, lanes)
                main, *flipped = (
                    load_number(builder, builder.gep(arrays[1], [builder.add(begin, offset)]), weight.dtype, lanes)
                    for begin in (row, other, third)
                )
                for total, part in zip(sums, flipped, strict=True):
                    product = builder.fmul(g_part, builder.fsub(main, part, flags=flags), flags=flags)
                    builder.store(builder.fadd(builder.load(total), product, flags=flags), total)
        name = f"llvm.vector.reduce.fadd.v{lanes}f{grad.dtype.bitwidth}"
        reduce = numba.core.cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind, vector]), name)
        found = [builder.call(reduce, [kind(0.0), builder.load(total)], fastmath=flags) for total in sums]
        return context.make_tuple(builder, pair, found)

    place = numba.types.uint64
    return pair(grad, place, weight, place, place, place, place), generate


# ---- sums ------------------------------------------------------------------------------------------------------------


# sums_in(scale, out [n]): where to add up what belongs in out: there, or for fixed sums in as many integers, which are zero.
sums_in = by_none(lambda scale, out: out, lambda scale, out: np.zeros(out.size, np.int64))


@jit
def round_to_unit(value, scale):
    """A float as a whole number of units, still as a float64."""
    return np.rint(np.float64(value) * scale)


@jit
def out_of_range(units):
    return not abs(units) <= FIXED_MAX  # written so that NaN is out of range too


@jit_inline
def add_one(total, at, value, scale):
    """total[at] += value."""
    if scale is None:
        total[at] += value
        return False
    units = round_to_unit(value, scale)
    total[at] += np.int64(units)
    return out_of_range(units)


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


@jit_inline
def add_row_to_4(total, places, source, row, width):
    """The same to four places that do not overlap: the row is read once."""
    whole = width & ~U(15)
    for k in range(whole):
        add_to_4(total, places, k, load(source, row + k))
    for k in range(whole, width):
        add_to_4(total, places, k, load(source, row + k))


@jit_inline
def add_to_4(total, places, k, value):
    a, b, c, d = places
    accumulate_apart(total, a + k, value, 0)
    accumulate_apart(total, b + k, value, 1)
    accumulate_apart(total, c + k, value, 2)
    accumulate_apart(total, d + k, value, 3)


@jit_inline
def add_8_rows(total, at, source, rows, factors, width):
    """total[at:] += the sum of eight rows of source times their factors: it is read and written once instead of eight times."""
    whole = width & ~U(7)  # in vectors; the rest apart, or a rest of 7 would cost as much as 32
    for k in range(whole):
        accumulate(total, at + k, sum_of_8(source, rows, factors, k))
    for k in range(whole, width):
        accumulate(total, at + k, sum_of_8(source, rows, factors, k))


@jit_inline
def add_4_rows(total, at, source, rows, width):
    """The same for four rows."""
    whole = width & ~U(7)
    for k in range(whole):
        accumulate(total, at + k, sum_of_4(source, rows, k))
    for k in range(whole, width):
        accumulate(total, at + k, sum_of_4(source, rows, k))


@jit_inline
def sum_of_4(source, rows, k):
    a, b, c, d = rows
    return (load(source, a + k) + load(source, b + k)) + (load(source, c + k) + load(source, d + k))


@jit_inline
def sum_of_8(source, rows, factors, k):
    a, b, c, d, e, f, g, h = rows
    if factors is None:
        first = (load(source, a + k) + load(source, b + k)) + (load(source, c + k) + load(source, d + k))
        second = (load(source, e + k) + load(source, f + k)) + (load(source, g + k) + load(source, h + k))
    else:
        p, q, r, s, t, u, v, w = factors
        first = (p * load(source, a + k) + q * load(source, b + k)) + (r * load(source, c + k) + s * load(source, d + k))
        second = (t * load(source, e + k) + u * load(source, f + k)) + (v * load(source, g + k) + w * load(source, h + k))
    return first + second


@jit
def write_sums(total, scale, out):
    """Integer sums [n] into out [n], as floats; float sums are there already."""
    bad = False
    if scale is not None:
        for k in range(total.size):
            bad |= out_of_range(total[k])
            out[k] = np.float64(total[k]) / scale
    return bad

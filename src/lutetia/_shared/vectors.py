"""Rows of numbers in compiled loops: sorted, several added up at once, and small products, in vectors by hand where it pays."""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lutetia._shared.compiled import data_of, ir, load_number, numba
from lutetia._shared.fixed import add_row
from lutetia._shared.loops import (
    OPTIONS,
    U,
    accumulate,
    accumulate_apart,
    entry,
    extending,
    jit,
    jit_any_order,
    jit_inline,
    load,
    prefetch,
)

INT = ir.IntType(64)
BLOCK = 32  # numbers that `dot_blocks` takes at once
LINE = U(16)  # numbers of a cache line


class Lines(NamedTuple):
    """n rows of a flat array: row i begins at `first` + i · `stride`."""

    data: Any
    first: Any
    stride: Any
    n: Any


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
        arrays = [data_of(context, builder, signature.args[k], array) for k, array in ((0, g), (2, w))]
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
                    difference = builder.fsub(main, part, flags=flags)
                    if difference.type != vector:  # narrower weights, of double gradients
                        difference = builder.fpext(difference, vector)
                    product = builder.fmul(g_part, difference, flags=flags)
                    builder.store(builder.fadd(builder.load(total), product, flags=flags), total)
        name = f"llvm.vector.reduce.fadd.v{lanes}f{grad.dtype.bitwidth}"
        reduce = numba.core.cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind, vector]), name)
        found = [builder.call(reduce, [kind(0.0), builder.load(total)], fastmath=flags) for total in sums]
        return context.make_tuple(builder, pair, found)

    place = numba.types.uint64
    return pair(grad, place, weight, place, place, place, place), generate


@jit_any_order
def dot(one, at, other, row, second, width):
    """Σ one[at:] · other[row:] - Σ one[at:] · other[second:], unless that is None, over `width` numbers."""
    total = one.dtype.type(0)
    for k in range(width):
        product = load(one, at + k) * load(other, row + k)
        if second is not None:
            product -= load(one, at + k) * load(other, second + k)
        total += product
    return total


@jit_any_order
def dot_two_rows(one, at, other, row, second, width):
    """Σ one[at:] · other[row:] and Σ one[at:] · other[second:], over `width` numbers: each of `one` is read once."""
    first, last = one.dtype.type(0), one.dtype.type(0)
    for k in range(width):
        first += load(one, at + k) * load(other, row + k)
        last += load(one, at + k) * load(other, second + k)
    return first, last


@jit_any_order
def dot_two_differences(one, at, other, row, second, third, width):
    """Σ one[at:] · (other[row:] - other[second:]), and the same with `third`, over `width` numbers."""
    if width == U(BLOCK):  # then the compiler knows how many there are, and leaves out the loop
        return dot_blocks(one, at, other, row, second, third, U(1))
    whole = width & ~U(BLOCK - 1)
    first, last = dot_blocks(one, at, other, row, second, third, whole // U(BLOCK))
    for k in range(whole, width):
        g, w = load(one, at + k), load(other, row + k)
        first += g * (w - load(other, second + k))
        last += g * (w - load(other, third + k))
    return first, last


def in_eights(function: Any) -> Callable[..., Any]:
    """function(k, *arguments) of k and the seven numbers that follow it, as a tuple: what `add_8_rows` takes."""

    def eight(k: Any, *rest: Any) -> Any:
        """What the loops call."""

    def write(k: Any, *rest: Any) -> Any:
        def first_to_last(k, *rest):
            return (
                function(k, *rest), function(k + U(1), *rest), function(k + U(2), *rest), function(k + U(3), *rest),
                function(k + U(4), *rest), function(k + U(5), *rest), function(k + U(6), *rest), function(k + U(7), *rest),
            )  # fmt: skip

        return first_to_last

    extending.overload(eight, jit_options={**OPTIONS, "no_cfunc_wrapper": True, "forceinline": True}, strict=False)(write)
    return eight


@jit_inline
def add_row_to_4(total, places, source, row, width):
    """total[place:] += source[row:] over `width` numbers, at four places that do not overlap: the row is read once."""
    whole = width & ~U(15)
    for k in range(whole):
        add_to_4(total, places, k, load(source, row + k))
    for k in range(whole, width):
        add_to_4(total, places, k, load(source, row + k))


@jit_inline
def add_to_4(total, places, k, value):
    """total[place + k] += value."""
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
def sum_of_8(source, rows, factors, k):
    """The numbers k of eight rows, times their factors; no factors are 1."""
    a, b, c, d, e, f, g, h = rows
    if factors is None:
        first = (load(source, a + k) + load(source, b + k)) + (load(source, c + k) + load(source, d + k))
        second = (load(source, e + k) + load(source, f + k)) + (load(source, g + k) + load(source, h + k))
    else:
        p, q, r, s, t, u, v, w = factors
        first = (p * load(source, a + k) + q * load(source, b + k)) + (r * load(source, c + k) + s * load(source, d + k))
        second = (t * load(source, e + k) + u * load(source, f + k)) + (v * load(source, g + k) + w * load(source, h + k))
    return first + second


@entry
def largest(values):
    """The largest of an unsigned array [n], 0 when it is empty."""
    result = values.dtype.type(0)
    for i in range(values.size):
        result = max(result, values[i])
    return result


@jit
def same_runs(values, one, other, width):
    """Whether two runs of an array are the same, over `width` numbers; so they are where it is empty."""
    same = True
    if values.size > 0:
        for k in range(width):
            same &= values[one + k] == values[other + k]
    return same


@entry
def mark(columns, flags):
    """flags [T, n] = 1 at each number of columns [N, T], column by column."""
    for i in range(columns.shape[0]):
        for t in range(columns.shape[1]):
            flags[t, columns[i, t]] = 1


@jit
def with_bits_flipped(values, bits):
    """values ^ bits, [n] each."""
    flipped = np.empty_like(values)
    for k in range(values.size):
        flipped[k] = values[k] ^ bits[k]
    return flipped


@jit_inline
def copy_column(values, target, first, n, column):
    """target [n] = rows first to first + n of a column of values, if it has any."""
    if values.size > 0:
        for j in range(n):
            target[j] = values[first + j, column]


@jit_inline
def fetch_row(values, row):
    """Begin to fetch a row of numbers, or where it is longer than two lines its beginning: the processor fetches on by itself."""
    prefetch(values, row)
    prefetch(values, row + LINE)


# ---- order and products ----------------------------------------------------------------------------------------------


@jit
def sort_by_value(values, shift, n):
    """Where each of n values begins in the order, int64 [n + 1], and the order, uint64: a stable sort by values >> shift."""
    starts, order = np.zeros(n + U(2), np.int64), np.empty(values.size, np.uint64)
    for k in range(values.size):
        starts[(values[k] >> shift) + 2] += 1
    for value in range(2, starts.size):
        starts[value] += starts[value - 1]
    for k in range(values.size):
        slot = (values[k] >> shift) + 1
        order[starts[slot]] = k
        starts[slot] += 1
    return starts[:-1], order


@jit
def take(values, places):
    """values[places]."""
    taken = np.empty(places.size, values.dtype)
    for k in range(places.size):
        taken[k] = values[places[k]]
    return taken


@jit_inline
def transpose_in(columns, rows, first, n):
    """The first n of each of columns [m, at least n] = rows first to first + n of rows [.., m]."""
    for j in range(n):
        for i in range(rows.shape[1]):
            columns[i, j] = rows[first + j, i]


@jit
def transposed_rows(source, first, width, target):
    """target [at least width, n] = n rows of a flat source, the numbers of each under each other, from row `first` on."""
    for c in range(U(target.shape[1])):
        for k in range(width):
            target[k, c] = load(source, (first + c) * width + k)


@jit
def couples_of(begin, end, length):
    """The rows of triangles with this many rows each, one triangle after the other, in couples begin to end.

    A couple is an early and a late row, so that all couples have as many entries.
    """
    half = (length + 1) // 2
    rows, n = np.empty(2 * (end - begin), np.uint64), 0
    for couple in range(begin, end):
        first, s = couple // half * length, couple % half
        rows[n] = first + s
        n += 1
        if s != length - 1 - s:
            rows[n] = first + length - 1 - s
            n += 1
    return rows[:n]


@jit
def copy(source, target):
    """target[:n] = source [n]."""
    for k in range(source.size):
        target[k] = source[k]


@jit_any_order
def add_product(total, at, left, n, right, right_at, width):
    """total [4, width] += left [4, n] · right [n, width], each a part of a flat array; n is a multiple of 4.

    Four times four: each of 8 loads serves two or more of 16 multiplications, as fast as a BLAS on products this small.
    """
    for m in range(U(0), n, U(4)):
        l0, l1, l2, l3 = m, n + m, U(2) * n + m, U(3) * n + m
        a0, b0, c0, d0 = load(left, l0), load(left, l0 + U(1)), load(left, l0 + U(2)), load(left, l0 + U(3))
        a1, b1, c1, d1 = load(left, l1), load(left, l1 + U(1)), load(left, l1 + U(2)), load(left, l1 + U(3))
        a2, b2, c2, d2 = load(left, l2), load(left, l2 + U(1)), load(left, l2 + U(2)), load(left, l2 + U(3))
        a3, b3, c3, d3 = load(left, l3), load(left, l3 + U(1)), load(left, l3 + U(2)), load(left, l3 + U(3))
        r = right_at + m * width
        for k in range(width):
            a, b = load(right, r + k), load(right, r + width + k)
            c, d = load(right, r + U(2) * width + k), load(right, r + U(3) * width + k)
            accumulate(total, at + k, a0 * a + b0 * b + c0 * c + d0 * d)
            accumulate(total, at + width + k, a1 * a + b1 * b + c1 * c + d1 * d)
            accumulate(total, at + U(2) * width + k, a2 * a + b2 * b + c2 * c + d2 * d)
            accumulate(total, at + U(3) * width + k, a3 * a + b3 * b + c3 * c + d3 * d)


@jit_inline
def line_at(k, lines, order):
    """Where the k-th line in this order begins."""
    return lines.first + load(order, k) * lines.stride


eight_lines = in_eights(line_at)


@jit
def add_by_value(total, row, lines, width, values, n_values):
    """total[row + v · width:] += the lines that have value v, of values [n] below n_values: sorted, and eight at a time."""
    starts, order = sort_by_value(values, np.uint32(0), n_values)
    k = U(0)
    for value in range(n_values):
        end = U(starts[value + U(1)])
        while k + U(8) <= end:
            add_8_rows(total, row, lines.data, eight_lines(k, lines, order), None, width)
            k += U(8)
        while k < end:
            add_row(total, row, lines.data, line_at(k, lines, order), width, None, None)
            k += U(1)
        row += width

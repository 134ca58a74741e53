"""What the compiled loops of the `cpu` backend are made with: how they are compiled, reach memory and add up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lutetia._shared import compiled, in_parts
from lutetia._shared.compiled import ir, load_number, numba, read_scope
from lutetia.errors import require
from lutetia.lut.sums import FIXED_MAX

extending = require("numba.extending", "the cpu backend of lutetia.lut")

U, INT = np.uint64, ir.IntType(64)


OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
entry = compiled.jit(**OPTIONS)  # what Python calls
kernel = partial(in_parts.kernel, entry)  # the same, launched on several threads
jit = compiled.jit(inner=True, **OPTIONS)
# For what runs once per row of weights: a call costs as much as adding 32 of them.
jit_inline = compiled.jit(inner=True, **OPTIONS, forceinline=True)
# A sum of floats may be added in any order; everything else keeps to IEEE, which fixed sums need.
jit_any_order = compiled.jit(inner=True, **OPTIONS, forceinline=True, fastmath={"reassoc", "contract", "nsz"})


def by_none(if_none: Any, if_given: Any) -> Callable[..., Any]:
    """One of two functions, by whether the first argument is None. The other is not even compiled, nor need its types fit."""
    chosen = [getattr(each, "py_func", each) for each in (if_none, if_given)]
    inlined = [each.targetoptions.get("forceinline") for each in (if_none, if_given) if hasattr(each, "py_func")]

    def either(first: Any, *rest: Any) -> Any:
        """What the loops call."""

    def choose(first: Any, *rest: Any) -> Any:
        return chosen[not isinstance(first, numba.types.NoneType)]

    extending.overload(either, jit_options={**OPTIONS, "forceinline": all(inlined)}, strict=False)(choose)
    return either


element = by_none(lambda values, place: None, lambda values, place: values[place])
first_given = by_none(lambda one, other: other, lambda one, other: one)
times = by_none(lambda factor, value: value, lambda factor, value: factor * value)


# ---- memory ----------------------------------------------------------------------------------------------------------
# `load` and `accumulate` promise the compiler that what the one reads is never what the other writes, as `restrict` does in C.
# Without it every short inner loop begins with overlap checks: rows of 48 weights took 1.4 times as long.


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Pointer to element args[1] of array args[0]."""
    return builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])


@extending.intrinsic
def load(typing: Any, array: Any, at: Any) -> Any:
    """array[at] of a flat array; uint16 holds the bits of bfloat16, int16 those of float16. These and int8 come as float32."""
    narrow = array.dtype in (numba.types.uint16, numba.types.int16, numba.types.int8)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return load_number(builder, _pointer(context, builder, signature, args), array.dtype, scope=read_scope(builder))

    return (numba.types.float32 if narrow else array.dtype)(array, numba.types.uint64), generate


@extending.intrinsic
def accumulate(typing: Any, array: Any, at: Any, value: Any) -> Any:
    """array[at] += value of a flat array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, scopes = _pointer(context, builder, signature, args), read_scope(builder)
        before = builder.load(pointer)
        add = builder.fadd if isinstance(array.dtype, numba.types.Float) else builder.add
        stored = builder.store(add(before, args[2]), pointer)
        before.set_metadata("noalias", scopes)
        stored.set_metadata("noalias", scopes)
        return context.get_dummy_value()

    return numba.types.void(array, numba.types.uint64, array.dtype), generate


@extending.intrinsic(prefer_literal=True)
def accumulate_apart(typing: Any, array: Any, at: Any, value: Any, place: Any) -> Any:
    """array[at] += value of a flat array of floats; place 0 to 3 promises never to meet the other three."""
    own_name = f"place {place.literal_value}"

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature, args)
        module = builder.module
        domain = module.add_metadata(["lutetia"])
        nodes = {name: module.add_metadata([name, domain]) for name in ("read", *(f"place {k}" for k in range(4)))}
        own = module.add_metadata([nodes[own_name]])
        others = module.add_metadata([node for name, node in nodes.items() if name != own_name])
        before = builder.load(pointer)
        stored = builder.store(builder.fadd(before, args[2]), pointer)
        for access in (before, stored):
            access.set_metadata("alias.scope", own)
            access.set_metadata("noalias", others)
        return context.get_dummy_value()

    return numba.types.void(array, numba.types.uint64, array.dtype, place), generate


@extending.intrinsic
def prefetch(typing: Any, array: Any, at: Any) -> Any:
    """Begin to fetch the cache line of array[at]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature, args)
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, *[ir.IntType(32)] * 3])
        function = numba.core.cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        read, keep, data = (ir.IntType(32)(option) for option in (0, 3, 1))
        builder.call(function, [pointer, read, keep, data])
        return context.get_dummy_value()

    return numba.types.void(array, numba.types.uint64), generate


# ---- vectors ---------------------------------------------------------------------------------------------------------

BLOCK = 32  # numbers that `dot_blocks` takes at once


@extending.intrinsic
def dot_blocks(typing: Any, grad: Any, at: Any, weight: Any, row: Any, other: Any, third: Any, n: Any) -> Any:
    """Σ grad[at:] · (weight[row:] - weight[other:]), and the same with `third`, over n blocks; in any order, in vectors by hand.

    A loop that the compiler makes vectors of by itself begins with tests that take as long as 32 numbers.
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


@jit
def clear(values):
    """values [n] = 0. (numba takes half a second for the general form of this, and again for every kernel.)"""
    for k in range(values.size):
        values[k] = 0


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

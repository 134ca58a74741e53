"""Building blocks of compiled loops: compilation, a choice by None, and memory access."""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lutetia._shared import compiled, in_parts
from lutetia._shared.compiled import data_of, ir, load_number, numba, read_scope
from lutetia.errors import require

extending = require("numba.extending", "compiled code on a CPU", "numba")

U = np.uint64

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
entry = compiled.jit(**OPTIONS)  # what Python calls
kernel = partial(in_parts.kernel, entry)  # the same, launched on several threads
jit = compiled.jit(inner=True, **OPTIONS)
# For what runs once per row of weights: a call costs as much as adding 32 of them.
jit_inline = compiled.jit(inner=True, **OPTIONS, forceinline=True)
# A sum of floats may be added in any order; everything else keeps to IEEE, which fixed sums need.
jit_any_order = compiled.jit(inner=True, **OPTIONS, forceinline=True, fastmath={"reassoc", "contract", "nsz"})


def by_none(if_none: Any, if_given: Any) -> Callable[..., Any]:
    """One of two functions, by whether the first argument is None. The other is not compiled, so its types need not fit."""
    chosen = [getattr(each, "py_func", each) for each in (if_none, if_given)]
    inlined = [each.targetoptions.get("forceinline") for each in (if_none, if_given) if hasattr(each, "py_func")]

    def either(first: Any, *rest: Any) -> Any:
        """What the loops call."""

    def choose(first: Any, *rest: Any) -> Any:
        return chosen[not isinstance(first, numba.types.NoneType)]

    options = {**OPTIONS, "no_cfunc_wrapper": True, "forceinline": all(inlined)}
    extending.overload(either, jit_options=options, strict=False)(choose)
    return either


element = by_none(lambda values, place: None, lambda values, place: values[place])
first_given = by_none(lambda one, other: other, lambda one, other: one)
times = by_none(lambda factor, value: value, lambda factor, value: factor * value)


# ---- memory ----------------------------------------------------------------------------------------------------------
# `load` and `accumulate` promise the compiler that what the one reads is never what the other writes, as `restrict` does in C.
# Without it every short inner loop begins with overlap checks: rows of 48 weights took 1.4 times as long.


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Pointer to element args[1] of array args[0]."""
    return builder.gep(data_of(context, builder, signature.args[0], args[0]), [args[1]])


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
    """array[at] += value of a flat array of floats; `place` 0 to 3 promises not to overlap with the other three."""
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
    """Prefetch the cache line of array[at]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature, args)
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, *[ir.IntType(32)] * 3])
        function = numba.core.cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        read, keep, data = (ir.IntType(32)(option) for option in (0, 3, 1))
        builder.call(function, [pointer, read, keep, data])
        return context.get_dummy_value()

    return numba.types.void(array, numba.types.uint64), generate


@jit
def clear(values):
    """values [n] = 0. (numba takes half a second for the general form of this, and again for every kernel.)"""
    for k in range(values.size):
        values[k] = 0

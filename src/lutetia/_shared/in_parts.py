"""Compiled kernels that run on several threads: the launch is compiled with them, takes microseconds and needs no GIL.

A kernel does its work for a range, kernel(*arguments, begin, end), and returns whether something overflowed. `run_in_parts` makes
a C function of it that OpenMP runs on each of its threads: take the next part of the range, do it, until none is left.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from lutetia._shared.compiled import ir, numba
from lutetia._shared.threads import OUT_OF_MEMORY, OVERFLOW
from lutetia.errors import require

extending = require("numba.extending", "compiled code on a CPU", "numba")

INT, UNSIGNED, POINTER = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()
BODY = ir.FunctionType(ir.VoidType(), [POINTER])
GOMP_PARALLEL = ir.FunctionType(ir.VoidType(), [BODY.as_pointer(), POINTER, UNSIGNED, UNSIGNED])
LENGTH, N_PARTS, NEXT, FLAGS, ARGUMENTS = range(5)  # what the threads share


def kernel(jit: Callable[[Callable[..., Any]], Any], function: Callable[..., Any]) -> Any:
    """A kernel, compiled with `jit`; its `in_parts`, (arguments, n, n_parts, launch) -> flags, runs it on OpenMP's threads."""
    compiled_kernel, name = jit(function), f"{function.__name__}_in_parts"
    # A function of its own for each kernel, beside it for the cache: `run_in_parts` must know the kernel when it is compiled.
    code = _in_parts.__code__.replace(co_filename=function.__code__.co_filename, co_name=name, co_qualname=name)
    in_parts = FunctionType(code, {**globals(), "__name__": function.__module__, "_kernel": compiled_kernel}, name)
    in_parts.__module__ = function.__module__
    compiled_kernel.in_parts = jit(in_parts)
    return compiled_kernel


def _in_parts(arguments: Any, n: Any, n_parts: Any, launch: Any) -> Any:
    return run_in_parts(_kernel, arguments, n, n_parts, launch)  # type: ignore[name-defined]  # noqa: F821


@extending.intrinsic
def run_in_parts(typing: Any, kernel: Any, arguments: Any, n: Any, n_parts: Any, launch: Any) -> Any:
    """kernel(*arguments, begin, end) for the parts of range(n); flags say what went wrong. `launch`: GOMP_parallel's address."""
    int64 = numba.types.int64
    call = kernel.get_call_type(typing, (*arguments.types, int64, int64), {})

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, values, length, parts, address = args
        shared_type = ir.LiteralStructType([INT] * ARGUMENTS + [context.get_value_type(arguments)])
        body = _body(context, builder.module, kernel.dispatcher.get_compile_result(call), call, shared_type)
        shared = numba.core.cgutils.alloca_once(builder, shared_type)
        for place, value in enumerate([length, parts, INT(0), INT(0), values]):
            builder.store(value, _field(builder, shared, place))
        parallel = builder.inttoptr(address, GOMP_PARALLEL.as_pointer())
        builder.call(parallel, [body, builder.bitcast(shared, POINTER), builder.trunc(parts, UNSIGNED), UNSIGNED(0)])
        return builder.load(_field(builder, shared, FLAGS))

    return int64(kernel, arguments, int64, int64, int64), generate


def _body(context: Any, module: Any, compiled: Any, call: Any, shared_type: Any) -> Any:
    """void body(void *shared): the function that each thread runs."""
    context.active_code_library.add_linking_library(compiled.library)
    function = ir.Function(module, BODY, module.get_unique_name("lutetia.body"))
    function.linkage = "internal"
    enter, take, work, done = (function.append_basic_block(name) for name in ("enter", "take", "work", "done"))
    builder = ir.IRBuilder(enter)
    shared = builder.bitcast(function.args[0], shared_type.as_pointer())
    builder.branch(take)

    builder.position_at_end(take)
    part = builder.atomic_rmw("add", _field(builder, shared, NEXT), INT(1), "monotonic")
    length, n_parts = (builder.load(_field(builder, shared, place)) for place in (LENGTH, N_PARTS))
    builder.cbranch(builder.icmp_signed("<", part, n_parts), work, done)

    builder.position_at_end(work)
    ends = [builder.sdiv(builder.mul(length, builder.add(part, INT(k))), n_parts) for k in (0, 1)]
    packed = builder.load(_field(builder, shared, ARGUMENTS))
    values = [builder.extract_value(packed, k) for k in range(len(call.args) - 2)]
    status, result = context.call_internal_no_propagate(builder, compiled.fndesc, call, values + ends)
    flags = INT(0)
    if call.return_type == numba.types.boolean:
        flags = builder.select(result, INT(OVERFLOW), flags)
    flags = builder.select(status.is_error, INT(OUT_OF_MEMORY), flags)  # the one thing that kernels raise
    builder.atomic_rmw("or", _field(builder, shared, FLAGS), flags, "monotonic")
    builder.branch(take)

    builder.position_at_end(done)
    builder.ret_void()
    return function


def _field(builder: Any, shared: Any, place: int) -> Any:
    return builder.gep(shared, [ir.IntType(32)(0), ir.IntType(32)(place)], inbounds=True)

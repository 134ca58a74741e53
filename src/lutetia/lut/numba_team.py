"""A compiled kernel on many threads at once. The launch is compiled too: it takes microseconds and needs no GIL.

A kernel does its work for a range, kernel(*arguments, begin, end), and returns whether something overflowed. `run_in_parts`
makes a C function of it that OpenMP can run on each of its threads: take the next part of the range, do it, until none is left.
"""

from __future__ import annotations

from typing import Any

from lutetia.errors import require

numba = require("numba", "the cpu backend of lutetia.lut")
extending = require("numba.extending", "the cpu backend of lutetia.lut")
ir = require("llvmlite.ir", "the cpu backend of lutetia.lut", "numba")

OVERFLOW, OUT_OF_MEMORY = 1, 2
INT, UNSIGNED, POINTER = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()
BODY = ir.FunctionType(ir.VoidType(), [POINTER])
GOMP_PARALLEL = ir.FunctionType(ir.VoidType(), [BODY.as_pointer(), POINTER, UNSIGNED, UNSIGNED])
BEGIN, LENGTH, N_PARTS, NEXT, FLAGS, ARGUMENTS = range(6)  # what the threads share


@extending.intrinsic
def run_in_parts(typing: Any, kernel: Any, arguments: Any, begin: Any, end: Any, n_parts: Any, launch: Any) -> Any:
    """kernel(*arguments, ...) for all parts of the range from begin to end; flags say what went wrong.

    `launch` is the address of GOMP_parallel, or 0: then this thread does all parts.
    """
    int64 = numba.types.int64
    call = kernel.get_call_type(typing, (*arguments.types, int64, int64), {})

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        shared_type = ir.LiteralStructType([INT] * ARGUMENTS + [context.get_value_type(arguments)])
        body = _body(context, builder.module, kernel.dispatcher.get_compile_result(call), call, shared_type)
        shared = numba.core.cgutils.alloca_once(builder, shared_type)
        first = [args[2], builder.sub(args[3], args[2]), args[4], INT(0), INT(0), args[1]]
        for place, value in enumerate(first):
            builder.store(value, _field(builder, shared, place))
        data = builder.bitcast(shared, POINTER)
        with builder.if_else(builder.icmp_signed("==", args[5], INT(0))) as (alone, together):
            with alone:
                builder.call(body, [data])
            with together:
                parallel = builder.inttoptr(args[5], GOMP_PARALLEL.as_pointer())
                builder.call(parallel, [body, data, builder.trunc(args[4], UNSIGNED), UNSIGNED(0)])
        return builder.load(_field(builder, shared, FLAGS))

    return int64(kernel, arguments, int64, int64, int64, int64), generate


def _body(context: Any, module: Any, compiled: Any, call: Any, shared_type: Any) -> Any:
    """void body(void *shared): what each thread runs."""
    context.active_code_library.add_linking_library(compiled.library)
    function = ir.Function(module, BODY, module.get_unique_name("lutetia.body"))
    function.linkage = "internal"
    take, work, done = (function.append_basic_block(name) for name in ("take", "work", "done"))
    builder = ir.IRBuilder(take)
    shared = builder.bitcast(function.args[0], shared_type.as_pointer())
    builder.branch(take_next := function.append_basic_block("take_next"))

    builder.position_at_end(take_next)
    part = builder.atomic_rmw("add", _field(builder, shared, NEXT), INT(1), "monotonic")
    begin, length, n_parts = (builder.load(_field(builder, shared, place)) for place in (BEGIN, LENGTH, N_PARTS))
    builder.cbranch(builder.icmp_signed("<", part, n_parts), work, done)

    builder.position_at_end(work)
    ends = [builder.sdiv(builder.mul(length, builder.add(part, INT(k))), n_parts) for k in (0, 1)]
    packed = builder.load(_field(builder, shared, ARGUMENTS))
    values = [builder.extract_value(packed, k) for k in range(len(call.args) - 2)]
    values += [builder.add(begin, end) for end in ends]
    status, result = context.call_internal_no_propagate(builder, compiled.fndesc, call, values)
    flags = INT(0)
    if call.return_type == numba.types.boolean:
        flags = builder.select(result, INT(OVERFLOW), flags)
    flags = builder.select(status.is_error, INT(OUT_OF_MEMORY), flags)  # the one thing that kernels raise
    builder.atomic_rmw("or", _field(builder, shared, FLAGS), flags, "monotonic")
    builder.branch(take_next)

    builder.position_at_end(done)
    builder.ret_void()
    return function


def _field(builder: Any, shared: Any, place: int) -> Any:
    return builder.gep(shared, [ir.IntType(32)(0), ir.IntType(32)(place)], inbounds=True)

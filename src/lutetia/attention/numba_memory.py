"""Building blocks of the `cpu` backend's compiled loops: compilation, memory access and vector sums."""

from __future__ import annotations

from typing import Any

from lutetia._shared import compiled
from lutetia._shared.compiled import data_of, ir, load_number, numba, read_scope
from lutetia.errors import require

extending = require("numba.extending", "the cpu backend of lutetia.attention")

BLOCK = 256  # keys whose scores are held at once: memory is fastest at long runs of keys, then of values
BLOCK_D, LANES = 64, 16  # numbers of a head whose sums are held at once, and of a vector


# Sums may be added in any order; NaN and infinities keep their meaning.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}
jit = compiled.jit(**OPTIONS)
jit_inline = compiled.jit(inner=True, **OPTIONS, forceinline=True)


# ---- memory ----------------------------------------------------------------------------------------------------------
# `read` promises that what it reads is not what `write` writes, as `restrict` does in C: loops need no overlap checks.


def _pointer(builder: Any, bits: Any, address: Any, index: Any) -> tuple[Any, Any]:
    return builder.gep(builder.inttoptr(address, bits.as_pointer()), [index]), read_scope(builder)


def _float(promise: str) -> Any:
    @extending.intrinsic
    def read_float(typing: Any, address: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer, scope = _pointer(builder, ir.FloatType(), *args)
            value = builder.load(pointer)
            value.set_metadata(promise, scope)
            return value

        return numba.types.float32(numba.types.int64, numba.types.int64), generate

    return read_float


read = _float("alias.scope")  # the float32 at an address that no thread writes to now
peek = _float("noalias")  # the float32 at an address of this thread's own


@extending.intrinsic
def load(typing: Any, kind: Any, address: Any, index: Any) -> Any:
    """The element of a cache, as float32; a `kind` of type uint16 means bfloat16, one of float32 means float32."""
    half = kind == numba.types.uint16

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, scope = _pointer(builder, ir.IntType(16) if half else ir.FloatType(), *args[1:])
        return load_number(builder, pointer, kind, scope=scope)

    return numba.types.float32(kind, numba.types.int64, numba.types.int64), generate


@extending.intrinsic
def size_of(typing: Any, kind: Any) -> Any:
    """The bytes of an element of a cache."""
    size = 2 if kind == numba.types.uint16 else 4
    return numba.types.int64(kind), lambda context, builder, signature, args: ir.IntType(64)(size)


@extending.intrinsic
def write(typing: Any, address: Any, index: Any, value: Any) -> Any:
    """A float32 to an address of this thread's own."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, scope = _pointer(builder, ir.FloatType(), *args[:2])
        builder.store(args[2], pointer).set_metadata("noalias", scope)
        return context.get_dummy_value()

    return numba.types.void(numba.types.int64, numba.types.int64, numba.types.float32), generate


def _integer(bits: int) -> Any:
    @extending.intrinsic
    def read_integer(typing: Any, address: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_pointer(builder, ir.IntType(bits), *args)[0])
            return value if bits == 64 else builder.sext(value, ir.IntType(64))

        return numba.types.int64(numba.types.int64, numba.types.int64), generate

    return read_integer


read_int64, read_int32 = _integer(64), _integer(32)


@extending.intrinsic
def take_next(typing: Any, address: Any) -> Any:
    """The int64 at an address, which is then incremented atomically: each thread gets a different number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, ir.IntType(64)(1), "monotonic")

    return numba.types.int64(numba.types.int64), generate


# ---- vectors ---------------------------------------------------------------------------------------------------------

VECTOR, INT = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)


def _load_vector(builder: Any, kind: Any, address: Any, index: Any) -> Any:
    """LANES numbers from address[index] on, as float32, of memory of this kind."""
    pointer = _pointer(builder, ir.IntType(16) if kind == numba.types.uint16 else ir.FloatType(), address, index)[0]
    return load_number(builder, pointer, kind, LANES)


# Loops over keys and values, in vectors and by hand: what they add to stays in registers, so that keys and values are read one
# after the other, as memory likes it, and once for all rows of queries.


def _add_block(rows: int) -> Any:
    @extending.intrinsic
    def add_block(typing: Any, kind: Any, weights: Any, values: Any, n: Any, v: Any, acc: Any, d: Any) -> Any:
        """acc[r, :BLOCK_D] += Σ_j weights[r, j] · value j for `rows` rows: addresses of float32 [rows, BLOCK], int64 offsets [n],
        the cache, and the sums, d numbers from row to row."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _, weights, values, n, v, acc, d = args
            lanes = range(0, BLOCK_D, LANES)
            places = [[builder.add(builder.mul(d, INT(r)), INT(c)) for c in lanes] for r in range(rows)]
            sums = [
                [
                    numba.core.cgutils.alloca_once_value(builder, _load_vector(builder, numba.types.float32, acc, place))
                    for place in row
                ]
                for row in places
            ]
            with numba.core.cgutils.for_range(builder, n) as loop:
                offset = builder.load(_pointer(builder, INT, values, loop.index)[0])
                parts = [_load_vector(builder, kind, v, builder.add(offset, INT(c))) for c in lanes]
                for r in range(rows):
                    at = builder.add(loop.index, INT(r * BLOCK))
                    weight = _spread(builder, builder.load(_pointer(builder, ir.FloatType(), weights, at)[0]))
                    for total, part in zip(sums[r], parts, strict=True):
                        product = builder.fmul(weight, part, flags=("contract",))
                        builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
            for row, totals in zip(places, sums, strict=True):
                for place, total in zip(row, totals, strict=True):
                    pointer = builder.bitcast(_pointer(builder, ir.FloatType(), acc, place)[0], VECTOR.as_pointer())
                    builder.store(builder.load(total), pointer, align=4)
            return context.get_dummy_value()

        int64 = numba.types.int64
        return numba.types.void(kind, int64, int64, int64, int64, int64, int64), generate

    return add_block


def _dot_block(rows: int) -> Any:
    @extending.intrinsic
    def dot_block(typing: Any, kind: Any, q: Any, d: Any, keys: Any, n: Any, k: Any, scores: Any) -> Any:
        """scores[r, j] += q[r, :BLOCK_D] · key j for `rows` rows: addresses of the queries, d numbers from row to row, int64
        offsets [n], the cache, and float32 [rows, BLOCK]."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _, q, d, keys, n, k, scores = args
            lanes = range(0, BLOCK_D, LANES)
            queries = [
                [_load_vector(builder, numba.types.float32, q, builder.add(builder.mul(d, INT(r)), INT(c))) for c in lanes]
                for r in range(rows)
            ]
            with numba.core.cgutils.for_range(builder, n) as loop:
                offset = builder.load(_pointer(builder, INT, keys, loop.index)[0])
                totals: list[Any] = [None] * rows
                for i, c in enumerate(lanes):
                    key = _load_vector(builder, kind, k, builder.add(offset, INT(c)))
                    for r in range(rows):
                        product = builder.fmul(queries[r][i], key, flags=("contract",))
                        totals[r] = product if i == 0 else builder.fadd(totals[r], product, flags=("contract",))
                for r, total in enumerate(_add_up(builder, totals)):
                    place = _pointer(builder, ir.FloatType(), scores, builder.add(loop.index, INT(r * BLOCK)))[0]
                    builder.store(builder.fadd(builder.load(place), total), place)
            return context.get_dummy_value()

        int64 = numba.types.int64
        return numba.types.void(kind, int64, int64, int64, int64, int64, int64), generate

    return dot_block


def _spread(builder: Any, number: Any) -> Any:
    """A vector with one number in every lane."""
    undefined, first = ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
    return builder.shuffle_vector(builder.insert_element(undefined, number, ir.IntType(32)(0)), undefined, first)


def _add_up(builder: Any, vectors: list[Any]) -> list[Any]:
    """The sum over each of 1, 2 or 4 vectors: while there are several, the halves of two are added as one."""

    def picked(a: Any, b: Any, lanes: list[int]) -> Any:
        return builder.shuffle_vector(a, b, ir.VectorType(ir.IntType(32), LANES)([ir.IntType(32)(lane) for lane in lanes]))

    count, width = len(vectors), LANES  # width: lanes that belong to one sum
    while len(vectors) > 1:
        lower = [lane for lane in range(2 * LANES) if lane % width < width // 2]
        upper = [lane + width // 2 for lane in lower]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [builder.fadd(picked(a, b, lower), picked(a, b, upper)) for a, b in pairs]
        width //= 2
    (total,) = vectors
    step = width
    while step > 1:
        step //= 2
        total = builder.fadd(total, picked(total, total, [lane ^ step for lane in range(LANES)]))
    return [builder.extract_element(total, ir.IntType(32)(r * width)) for r in range(count)]


add_block, add_block_of_4 = _add_block(1), _add_block(4)
dot_block, dot_block_of_4 = _dot_block(1), _dot_block(4)


@extending.intrinsic
def address_of(typing: Any, array: Any) -> Any:
    """The address of the first element of an array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(data_of(context, builder, signature.args[0], args[0]), ir.IntType(64))

    return numba.types.int64(array), generate


@extending.intrinsic
def power_of_2(typing: Any, n: Any) -> Any:
    """2**n as float32, n an int32 from -126 to 127: its exponent bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        biased = builder.add(args[0], ir.IntType(32)(127))
        return builder.bitcast(builder.shl(biased, ir.IntType(32)(23)), ir.FloatType())

    return numba.types.float32(numba.types.int32), generate

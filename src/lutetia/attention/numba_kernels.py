"""The compiled loops of the `cpu` backend.

A `plan` is one int64 array with every size and address that the threads share: what OpenMP runs takes one pointer.
Each thread takes the next item (row, key head, split of its keys) until none is left, and reads each live key and value once.
Scores are kept in base 2, statistics and sums in float32.

numba keeps what it compiled on disk and watches only this file.
"""

# ruff: noqa: E741  (l, the sum of weights, is the design's name)

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from lutetia.errors import require

numba = require("numba", "the cpu backend of lutetia.attention")
extending = require("numba.extending", "the cpu backend of lutetia.attention")
ir = require("llvmlite.ir", "the cpu backend of lutetia.attention", "numba")

BLOCK = 256  # keys whose scores are held at once: memory is fastest at long runs of keys, then of values
BLOCK_D, LANES = 64, 16  # numbers of a head whose sums are held at once, and of a vector
LOG2_E = np.float32(1.4426950408889634)
LN2 = np.float32(0.6931471805599453)
MINUS_INF = np.float32(-np.inf)


# What stands where in a plan: numbers, strides in elements, then addresses, and the next item that nobody has taken.
# PAGE_LEN: slots of a page, or of a row that is a ring; 0 where a position is its slot. WINDOW, TABLE, SINK, V_FACTOR:
# 0 for none. V_FACTOR: float32 [H_kv], what outputs are multiplied with. ROWS: query heads of a key head × s_active.
NAMES = (
    "N_ITEMS", "ROWS", "S_ACTIVE", "D", "N_KV_HEADS", "PAGE_LEN", "WINDOW", "TABLE_B",
    "K_OUTER", "K_HEAD", "K_SLOT", "V_OUTER", "V_HEAD", "V_SLOT",
    "Q", "K", "V", "LENGTHS", "TABLE", "V_FACTOR", "SINK", "OUT", "LSE", "ITEMS", "PARTIAL", "NEXT",
)  # fmt: skip
SIZE = len(NAMES)
(
    N_ITEMS, ROWS, S_ACTIVE, D, N_KV_HEADS, PAGE_LEN, WINDOW, TABLE_B, K_OUTER, K_HEAD, K_SLOT, V_OUTER, V_HEAD, V_SLOT,
    Q, K, V, LENGTHS, TABLE, V_FACTOR, SINK, OUT, LSE, ITEMS, PARTIAL, NEXT,
) = range(SIZE)  # fmt: skip


def _can_keep() -> bool:
    """Whether numba finds a folder it may write to; without one it would refuse to compile at all."""
    try:
        numba.njit(cache=True)(_can_keep)
    except RuntimeError:
        return False
    return True


OPTIONS = {"nogil": True, "cache": _can_keep(), "error_model": "numpy"}
# Sums may be added in any order; NaN and infinities keep their meaning.
jit = numba.njit(**OPTIONS, fastmath={"reassoc", "contract", "nsz"})
jit_inline = numba.njit(**OPTIONS, fastmath={"reassoc", "contract", "nsz"}, forceinline=True)


BODY = numba.types.void(numba.types.voidptr)


# ---- memory ----------------------------------------------------------------------------------------------------------
# `read` promises that what it reads is not what `write` writes, as `restrict` does in C: loops need no overlap checks.


def _pointer(builder: Any, bits: Any, address: Any, index: Any) -> tuple[Any, Any]:
    pointer = builder.gep(builder.inttoptr(address, bits.as_pointer()), [index])
    domain = builder.module.add_metadata(["lutetia.attention"])
    scope = builder.module.add_metadata([builder.module.add_metadata(["read", domain])])
    return pointer, scope


@extending.intrinsic
def read(typing: Any, address: Any, index: Any) -> Any:
    """The float32 at an address that nobody writes to now."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, scope = _pointer(builder, ir.FloatType(), *args)
        value = builder.load(pointer)
        value.set_metadata("alias.scope", scope)
        return value

    return numba.types.float32(numba.types.int64, numba.types.int64), generate


@extending.intrinsic
def load(typing: Any, kind: Any, address: Any, index: Any) -> Any:
    """The element of a cache, as float32; a `kind` of type uint16 says that it is a bfloat16, one of float32 what it says."""
    half = kind == numba.types.uint16

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, scope = _pointer(builder, ir.IntType(16) if half else ir.FloatType(), *args[1:])
        value = builder.load(pointer)
        value.set_metadata("alias.scope", scope)
        if not half:
            return value
        bits = builder.shl(builder.zext(value, ir.IntType(32)), ir.IntType(32)(16))
        return builder.bitcast(bits, ir.FloatType())

    return numba.types.float32(kind, numba.types.int64, numba.types.int64), generate


@extending.intrinsic
def size_of(typing: Any, kind: Any) -> Any:
    """The bytes of an element of a cache."""
    size = 2 if kind == numba.types.uint16 else 4
    return numba.types.int64(kind), lambda context, builder, signature, args: ir.IntType(64)(size)


@extending.intrinsic
def peek(typing: Any, address: Any, index: Any) -> Any:
    """The float32 at an address of this thread's own."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, scope = _pointer(builder, ir.FloatType(), *args)
        value = builder.load(pointer)
        value.set_metadata("noalias", scope)
        return value

    return numba.types.float32(numba.types.int64, numba.types.int64), generate


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
    """The int64 at an address, which grows by one: each thread gets another number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, ir.IntType(64)(1), "monotonic")

    return numba.types.int64(numba.types.int64), generate


VECTOR, INT = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)


def _load_vector(builder: Any, half: bool, address: Any, index: Any) -> Any:
    """LANES numbers from address[index] on, as float32; `half`: they are bfloat16."""
    pointer = _pointer(builder, ir.IntType(16) if half else ir.FloatType(), address, index)[0]
    if not half:
        return builder.load(builder.bitcast(pointer, VECTOR.as_pointer()), align=4)
    wide = ir.VectorType(ir.IntType(32), LANES)
    bits = builder.load(builder.bitcast(pointer, ir.VectorType(ir.IntType(16), LANES).as_pointer()), align=2)
    return builder.bitcast(builder.shl(builder.zext(bits, wide), wide([ir.IntType(32)(16)] * LANES)), VECTOR)


# Loops over keys and values, in vectors and by hand: what they add to stays in registers, so that keys and values are read one
# after the other, as memory likes it, and once for all rows of queries.


def _add_block(rows: int) -> Any:
    @extending.intrinsic
    def add_block(typing: Any, kind: Any, weights: Any, values: Any, n: Any, v: Any, acc: Any, d: Any) -> Any:
        """acc[r, :BLOCK_D] += Σ_j weights[r, j] · value j for `rows` rows: addresses of float32 [rows, BLOCK], int64 offsets [n],
        the cache, and the sums, d numbers from row to row."""
        half = kind == numba.types.uint16

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _, weights, values, n, v, acc, d = args
            lanes = range(0, BLOCK_D, LANES)
            places = [[builder.add(builder.mul(d, INT(r)), INT(c)) for c in lanes] for r in range(rows)]
            sums = [
                [numba.core.cgutils.alloca_once_value(builder, _load_vector(builder, False, acc, place)) for place in row]
                for row in places
            ]
            with numba.core.cgutils.for_range(builder, n) as loop:
                offset = builder.load(_pointer(builder, INT, values, loop.index)[0])
                parts = [_load_vector(builder, half, v, builder.add(offset, INT(c))) for c in lanes]
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
        half = kind == numba.types.uint16

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _, q, d, keys, n, k, scores = args
            lanes = range(0, BLOCK_D, LANES)
            queries = [
                [_load_vector(builder, False, q, builder.add(builder.mul(d, INT(r)), INT(c))) for c in lanes] for r in range(rows)
            ]
            with numba.core.cgutils.for_range(builder, n) as loop:
                offset = builder.load(_pointer(builder, INT, keys, loop.index)[0])
                totals: list[Any] = [None] * rows
                for i, c in enumerate(lanes):
                    key = _load_vector(builder, half, k, builder.add(offset, INT(c)))
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
    """A vector that has one number everywhere."""
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
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return numba.types.int64(array), generate


@extending.intrinsic
def power_of_2(typing: Any, n: Any) -> Any:
    """2**n as float32, n an int32 from -126 to 127: its exponent bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        biased = builder.add(args[0], ir.IntType(32)(127))
        return builder.bitcast(builder.shl(biased, ir.IntType(32)(23)), ir.FloatType())

    return numba.types.float32(numba.types.int32), generate


@jit_inline
def exp2(x: Any) -> Any:
    """2**x for x <= 0, to about 1e-7; 0 below 2**-126. The compiler makes vectors of it, which it cannot of the library's."""
    held = np.float32(-126.0) if x < np.float32(-126.0) else x  # NaN stays
    whole = np.rint(held)
    f = held - whole
    p = np.float32(1.5252734e-5)
    p = p * f + np.float32(1.5403530e-4)
    p = p * f + np.float32(1.3333558e-3)
    p = p * f + np.float32(9.6181291e-3)
    p = p * f + np.float32(5.5504109e-2)
    p = p * f + np.float32(2.4022651e-1)
    p = p * f + np.float32(6.9314718e-1)
    p = p * f + np.float32(1.0)
    p *= power_of_2(np.int32(whole))
    return np.float32(0.0) if x < np.float32(-126.0) else p


# ---- one item --------------------------------------------------------------------------------------------------------


@jit_inline
def locate(plan: Any, b: Any, position: Any) -> Any:
    """Where a position lives: row or page, and slot."""
    if plan[PAGE_LEN] == 0:
        return b, position
    if plan[TABLE] == 0:  # a ring
        return b, position % plan[PAGE_LEN]
    page = read_int32(plan[TABLE], b * plan[TABLE_B] + position // plan[PAGE_LEN])
    return page, position % plan[PAGE_LEN]


@jit_inline
def scores_of(kind: Any, q: Any, keys: Any, rows: Any, d: Any, n: Any, k: Any, scores: Any) -> None:
    """scores[r, j] = q[r] · key j, four rows at a time: keys [n] are offsets from address k."""
    whole, blocks = rows - rows % 4, d - d % BLOCK_D
    for r in range(rows):
        for j in range(n):
            scores[r, j] = np.float32(0)
    for begin in range(0, blocks, BLOCK_D):
        at = k + size_of(kind) * begin
        for r in range(0, whole, 4):
            dot_block_of_4(kind, q + 4 * (r * d + begin), d, address_of(keys), n, at, address_of(scores) + 4 * r * BLOCK)
        for r in range(whole, rows):
            dot_block(kind, q + 4 * (r * d + begin), d, address_of(keys), n, at, address_of(scores) + 4 * r * BLOCK)
    if blocks == d:
        return
    for r in range(0, whole, 4):
        for j in range(n):
            at = keys[j]
            a0, a1, a2, a3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for c in range(blocks, d):
                x = load(kind, k, at + c)
                a0 += read(q, r * d + c) * x
                a1 += read(q, (r + 1) * d + c) * x
                a2 += read(q, (r + 2) * d + c) * x
                a3 += read(q, (r + 3) * d + c) * x
            scores[r, j], scores[r + 1, j] = scores[r, j] + a0, scores[r + 1, j] + a1
            scores[r + 2, j], scores[r + 3, j] = scores[r + 2, j] + a2, scores[r + 3, j] + a3
    for r in range(whole, rows):
        for j in range(n):
            k0, a0 = keys[j], np.float32(0)
            for c in range(blocks, d):
                a0 += read(q, r * d + c) * load(kind, k, k0 + c)
            scores[r, j] += a0


@jit_inline
def add_values(kind: Any, weights: Any, values: Any, rows: Any, d: Any, n: Any, v: Any, acc: Any) -> None:
    """acc[r] += Σ_j weights[r, j] · value j, four rows at a time."""
    whole, blocks = rows - rows % 4, d - d % BLOCK_D
    for begin in range(0, blocks, BLOCK_D):
        at = v + size_of(kind) * begin
        for r in range(0, whole, 4):
            own = address_of(weights) + 4 * r * BLOCK
            add_block_of_4(kind, own, address_of(values), n, at, acc + 4 * (r * d + begin), d)
        for r in range(whole, rows):
            own = address_of(weights) + 4 * r * BLOCK
            add_block(kind, own, address_of(values), n, at, acc + 4 * (r * d + begin), d)
    for r in range(rows if blocks < d else 0):
        for j in range(n):
            p, at = weights[r, j], values[j]
            for c in range(blocks, d):
                write(acc, r * d + c, peek(acc, r * d + c) + p * load(kind, v, at + c))


@jit_inline
def hide(plan: Any, scores: Any, first: Any, start: Any, n: Any) -> None:
    """-inf where a query may not look: query a stands at first + a, score j at start + j."""
    window = plan[WINDOW]
    for r in range(plan[ROWS]):
        at = first + r % plan[S_ACTIVE]
        for j in range(max(0, at + 1 - start), n):
            scores[r, j] = MINUS_INF
        if window:
            for j in range(min(n, at + 1 - window - start)):
                scores[r, j] = MINUS_INF


@jit_inline
def weigh(scores: Any, r: Any, n: Any, m: Any, l: Any) -> Any:
    """scores[r] into weights against the running maximum; returns what the sums so far are multiplied with."""
    best, b1, b2, b3 = m[r], m[r], m[r], m[r]
    four = n - n % 4
    for j in range(0, four, 4):  # four at a time: each comparison waits for the one before it
        s0, s1, s2, s3 = scores[r, j], scores[r, j + 1], scores[r, j + 2], scores[r, j + 3]
        best, b1 = (s0 if s0 > best else best), (s1 if s1 > b1 else b1)
        b2, b3 = (s2 if s2 > b2 else b2), (s3 if s3 > b3 else b3)
    for j in range(four, n):
        best = scores[r, j] if scores[r, j] > best else best
    best, b2 = max(best, b1), max(b2, b3)
    best = max(best, b2)
    safe = np.float32(0) if best == MINUS_INF else best  # -inf - -inf would be NaN
    total = np.float32(0)
    for j in range(n):
        weight = exp2(scores[r, j] - safe)
        scores[r, j] = weight
        total += weight
    alpha = exp2(m[r] - safe)
    l[r] = l[r] * alpha + total
    m[r] = best
    return alpha


@jit_inline
def attend(kind: Any, plan: Any, item: Any, scores: Any, keys: Any, values: Any, m: Any, l: Any, acc: Any) -> None:
    """The keys [begin, end) of item (b, h, begin, end, partial) into m, l [ROWS] and acc [ROWS, D]."""
    b, h = read_int64(plan[ITEMS], 5 * item), read_int64(plan[ITEMS], 5 * item + 1)
    begin, end = read_int64(plan[ITEMS], 5 * item + 2), read_int64(plan[ITEMS], 5 * item + 3)
    rows, d = plan[ROWS], plan[D]
    q = plan[Q] + 4 * (b * plan[N_KV_HEADS] + h) * rows * d
    first = read_int32(plan[LENGTHS], b) - plan[S_ACTIVE]
    for r in range(rows):
        m[r], l[r] = MINUS_INF, np.float32(0)
    for c in range(rows * d):
        write(acc, c, np.float32(0))
    for start in range(begin, end, BLOCK):
        n = min(BLOCK, end - start)
        for j in range(n):
            outer, slot = locate(plan, b, start + j)
            keys[j] = outer * plan[K_OUTER] + h * plan[K_HEAD] + slot * plan[K_SLOT]
            values[j] = outer * plan[V_OUTER] + h * plan[V_HEAD] + slot * plan[V_SLOT]
        scores_of(kind, q, keys, rows, d, n, plan[K], scores)
        hide(plan, scores, first, start, n)
        for r in range(rows):
            alpha = weigh(scores, r, n, m, l)
            if alpha != np.float32(1):
                for c in range(r * d, (r + 1) * d):
                    write(acc, c, peek(acc, c) * alpha)
        add_values(kind, scores, values, rows, d, n, plan[V], acc)


@jit_inline
def finish(plan: Any, b: Any, h: Any, m: Any, l: Any, acc: Any) -> None:
    """The sink joins, once; out = acc / l and lse [B, H_q, s_active, ..]; nothing seen gives 0 and -inf."""
    rows, d = plan[ROWS], plan[D]
    base = (b * plan[N_KV_HEADS] + h) * rows
    v_factor = read(plan[V_FACTOR], h) if plan[V_FACTOR] else np.float32(1)
    for r in range(rows):
        top, total, alpha = m[r], l[r], np.float32(1)
        if plan[SINK]:
            logit = read(plan[SINK], (h * rows + r) // plan[S_ACTIVE]) * LOG2_E
            top = max(m[r], logit)
            safe = np.float32(0) if top == MINUS_INF else top
            alpha = exp2(m[r] - safe)
            total = l[r] * alpha + exp2(logit - safe)
        some = total != np.float32(0)
        factor = alpha * v_factor / total if some else np.float32(0)
        write(plan[LSE], base + r, (top + np.float32(np.log2(total))) * LN2 if some else MINUS_INF)
        for c in range(d):
            write(plan[OUT], (base + r) * d + c, peek(acc, r * d + c) * factor)


@jit_inline
def work(kind: Any, plan: Any) -> None:
    """Items, one after the other, until none is left: what each thread runs."""
    rows, d = plan[ROWS], plan[D]
    scores, acc = np.empty((rows, BLOCK), np.float32), np.empty(rows * d, np.float32)
    keys, values = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    m, l = np.empty(rows, np.float32), np.empty(rows, np.float32)
    while True:
        item = take_next(address_of(plan) + 8 * NEXT)
        if item >= plan[N_ITEMS]:
            return
        attend(kind, plan, item, scores, keys, values, m, l, address_of(acc))
        partial = read_int64(plan[ITEMS], 5 * item + 4)
        if partial < 0:
            b, h = read_int64(plan[ITEMS], 5 * item), read_int64(plan[ITEMS], 5 * item + 1)
            finish(plan, b, h, m, l, address_of(acc))
            continue
        at = plan[PARTIAL] + 4 * partial * rows * (d + 2)
        for r in range(rows):
            write(at, r, m[r])
            write(at, rows + r, l[r])
        for c in range(rows * d):
            write(at, 2 * rows + c, acc[c])


@jit
def work_float32(plan: Any) -> None:
    """`work` on caches of float32: plan int64 [SIZE]."""
    work(np.float32(0), plan)


@jit
def work_bfloat16(plan: Any) -> None:
    """`work` on caches of bfloat16: plan int64 [SIZE]."""
    work(np.uint16(0), plan)


# Each takes seconds to compile, so only the one that is asked for is.


@cache
def body_float32() -> Any:
    """`work_float32` as a C function for the threads of OpenMP."""

    @numba.cfunc(BODY, cache=OPTIONS["cache"])
    def body(plan: Any) -> None:
        work_float32(numba.carray(plan, SIZE, np.int64))

    return body


@cache
def body_bfloat16() -> Any:
    """`work_bfloat16` as a C function for the threads of OpenMP."""

    @numba.cfunc(BODY, cache=OPTIONS["cache"])
    def body(plan: Any) -> None:
        work_bfloat16(numba.carray(plan, SIZE, np.int64))

    return body


# ---- items -----------------------------------------------------------------------------------------------------------


@jit
def make_items(lengths: Any, s_active: Any, window: Any, n_kv_heads: Any, share: Any, cores: Any) -> Any:
    """The live keys of each row [B] shared out: items int64 [n, 5] (b, h, begin, end, partial), and how many are partial.

    `share` keys an item, or with `cores` > 0 each row in so many parts. An item that has its row for itself is not partial (-1).
    """
    n = 0
    for b in range(len(lengths)):
        n += n_kv_heads * parts_of(lengths[b], s_active, window, share, cores)[2]
    items = np.empty((n, 5), np.int64)
    n, n_partial = 0, 0
    for b in range(len(lengths)):
        low, each, parts = parts_of(lengths[b], s_active, window, share, cores)
        for h in range(n_kv_heads):
            for part in range(parts):
                begin = low + part * each
                items[n] = b, h, begin, min(begin + each, lengths[b]), -1
                if parts > 1:
                    items[n, 4] = n_partial
                    n_partial += 1
                n += 1
    return items, n_partial


@jit_inline
def parts_of(length: Any, s_active: Any, window: Any, share: Any, cores: Any) -> Any:
    """The first live key, keys of a part, and parts of one row."""
    low = min(max(0, length - s_active - window + 1), length) if window else 0
    live = length - low
    each = max(1, -(-live // cores)) if cores > 0 else share
    return low, each, max(1, -(-live // each))


@jit
def combine(plan: Any, items: Any, partial: Any) -> None:
    """The parts of each row and key head, in their order, into out and lse: partial float32 [n, ROWS * (D + 2)]."""
    rows, d = plan[ROWS], plan[D]
    m, l = np.empty(rows, np.float32), np.empty(rows, np.float32)
    acc = np.empty(rows * d, np.float32)
    n = 0
    while n < len(items):
        last = n + 1
        while last < len(items) and items[last, 0] == items[n, 0] and items[last, 1] == items[n, 1]:
            last += 1
        if items[n, 4] >= 0:
            add_parts(partial, items[n, 4], items[n, 4] + last - n, rows, d, m, l, acc)
            finish(plan, items[n, 0], items[n, 1], m, l, address_of(acc))
        n = last


@jit_inline
def add_parts(partial: Any, begin: Any, end: Any, rows: Any, d: Any, m: Any, l: Any, acc: Any) -> None:
    for r in range(rows):
        best = MINUS_INF
        for i in range(begin, end):
            best = max(best, partial[i, r])
        safe = np.float32(0) if best == MINUS_INF else best
        m[r], l[r] = best, np.float32(0)
        acc[r * d : (r + 1) * d] = 0
        for i in range(begin, end):
            weight = exp2(partial[i, r] - safe)
            l[r] += weight * partial[i, rows + r]
            for c in range(d):
                acc[r * d + c] += weight * partial[i, 2 * rows + r * d + c]

"""The compiled loops of the `cpu` backend.

A `plan` is one int64 array with every size and address that the threads share, because an OpenMP body takes one pointer.
Each thread takes the next item (row, key head, split of its keys) until none is left, and reads each live key and value once.
Scores are kept in base 2, statistics and sums in float32.
"""

# ruff: noqa: E741  (l, the sum of weights, is the design's name)

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from lutetia._shared.compiled import cfunc, numba
from lutetia.attention.numba_memory import (
    BLOCK,
    BLOCK_D,
    add_block,
    add_block_of_4,
    address_of,
    dot_block,
    dot_block_of_4,
    jit,
    jit_inline,
    load,
    peek,
    power_of_2,
    read,
    read_int32,
    read_int64,
    size_of,
    take_next,
    write,
)

LOG2_E = np.float32(1.4426950408889634)
LN2 = np.float32(0.6931471805599453)
MINUS_INF = np.float32(-np.inf)
BODY = numba.types.void(numba.types.voidptr)


# The layout of a plan: numbers, strides in elements, then addresses, and the next free item.
# PAGE_LEN: slots of a page, or of a row that is a ring; 0 where a position is its slot. WINDOW, TABLE, V_FACTOR, SOFTCAP, SINK: 0
# if none, as ALIBI and TREE. SOFTCAP, ALIBI: one float32, and [H_q], in base 2 like the scores. TREE: int64 [B, s_active].
# Q_FACTOR, V_FACTOR: float32 [H_kv], what queries and outputs are multiplied with. ROWS: query heads of a key head × s_active.
NAMES = (
    "N_ITEMS", "ROWS", "S_ACTIVE", "D", "D_V", "N_KV_HEADS", "PAGE_LEN", "WINDOW", "TABLE_B",
    "K_OUTER", "K_HEAD", "K_SLOT", "V_OUTER", "V_HEAD", "V_SLOT",
    "Q", "K", "V", "LENGTHS", "TABLE", "Q_FACTOR", "V_FACTOR", "SOFTCAP", "SINK",
    "ALIBI", "TREE", "OUT", "LSE", "ITEMS", "PARTIAL", "NEXT",
)  # fmt: skip
SIZE = len(NAMES)
(
    N_ITEMS, ROWS, S_ACTIVE, D, D_V, N_KV_HEADS, PAGE_LEN, WINDOW, TABLE_B, K_OUTER, K_HEAD, K_SLOT, V_OUTER, V_HEAD, V_SLOT,
    Q, K, V, LENGTHS, TABLE, Q_FACTOR, V_FACTOR, SOFTCAP, SINK, ALIBI, TREE, OUT, LSE, ITEMS, PARTIAL, NEXT,
) = range(SIZE)  # fmt: skip


@jit_inline
def exp2(x):
    """2**x for x <= 0, to about 1e-7; 0 below 2**-126. Unlike the library's, the compiler can vectorise it."""
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
def find(plan, b, h, start, n, keys, values):
    """The offsets of the keys and values [n] of positions start, start + 1, .. in the caches."""
    k_slot, v_slot = plan[K_SLOT], plan[V_SLOT]
    k_first, v_first = h * plan[K_HEAD], h * plan[V_HEAD]
    if plan[TABLE] == 0:
        k_first, v_first = k_first + b * plan[K_OUTER], v_first + b * plan[V_OUTER]
    if plan[PAGE_LEN] == 0:  # a position is its slot
        for j in range(n):
            keys[j] = k_first + (start + j) * k_slot
            values[j] = v_first + (start + j) * v_slot
    elif plan[TABLE] == 0:  # a ring
        for j in range(n):
            slot = (start + j) % plan[PAGE_LEN]
            keys[j] = k_first + slot * k_slot
            values[j] = v_first + slot * v_slot
    else:
        for j in range(n):
            page, slot = divmod(start + j, plan[PAGE_LEN])
            page = read_int32(plan[TABLE], b * plan[TABLE_B] + page)
            keys[j] = k_first + page * plan[K_OUTER] + slot * k_slot
            values[j] = v_first + page * plan[V_OUTER] + slot * v_slot


@jit_inline
def scores_of(kind, q, keys, sizes, k, scores):
    """scores[r, j] = q[r] · key j, four rows at a time: keys [n] are offsets from address k; sizes are rows, d, n."""
    rows, d, n = sizes
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
                a0 += peek(q, r * d + c) * x
                a1 += peek(q, (r + 1) * d + c) * x
                a2 += peek(q, (r + 2) * d + c) * x
                a3 += peek(q, (r + 3) * d + c) * x
            scores[r, j], scores[r + 1, j] = scores[r, j] + a0, scores[r + 1, j] + a1
            scores[r + 2, j], scores[r + 3, j] = scores[r + 2, j] + a2, scores[r + 3, j] + a3
    for r in range(whole, rows):
        for j in range(n):
            k0, a0 = keys[j], np.float32(0)
            for c in range(blocks, d):
                a0 += peek(q, r * d + c) * load(kind, k, k0 + c)
            scores[r, j] += a0


@jit_inline
def add_values(kind, weights, values, sizes, v, acc):
    """acc[r] += Σ_j weights[r, j] · value j, four rows at a time; sizes are rows, d, n."""
    rows, d, n = sizes
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
def cap(scores, rows, n, softcap):
    """scores[r, j] to softcap · tanh(score / softcap)."""
    for r in range(rows):
        for j in range(n):
            scores[r, j] = softcap * np.tanh(scores[r, j] / softcap)


@jit_inline
def lean(plan, scores, h, first, start, n):
    """Subtract from scores[r, j] its head's slope times the distance between query and key; positions as in `hide`."""
    for r in range(plan[ROWS]):
        slope = read(plan[ALIBI], (h * plan[ROWS] + r) // plan[S_ACTIVE])
        at = first + r % plan[S_ACTIVE]
        for j in range(n):
            scores[r, j] += slope * np.float32(start + j - at)


@jit_inline
def hide(plan, scores, b, first, start, n):
    """-inf where a query may not look: query a is at position first + a, score j at start + j."""
    window = plan[WINDOW]
    if plan[TREE]:
        for r in range(plan[ROWS]):
            bits = read_int64(plan[TREE], b * plan[S_ACTIVE] + r % plan[S_ACTIVE])
            for j in range(max(0, first - start), n):
                if not (bits >> (start + j - first)) & 1:
                    scores[r, j] = MINUS_INF
        return
    for r in range(plan[ROWS]):
        at = first + r % plan[S_ACTIVE]
        for j in range(max(0, at + 1 - start), n):
            scores[r, j] = MINUS_INF
        if window:
            for j in range(min(n, at + 1 - window - start)):
                scores[r, j] = MINUS_INF


@jit_inline
def weigh(scores, r, n, m, l):
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
def attend(kind, plan, item, sums, scratch):
    """The keys [begin, end) of item (b, h, begin, end, partial) into the sums: m, l [ROWS] and the address of acc [ROWS, D_V]."""
    m, l, acc = sums
    queries, scores, keys, values = scratch
    b, h = read_int64(plan[ITEMS], 5 * item), read_int64(plan[ITEMS], 5 * item + 1)
    begin, end = read_int64(plan[ITEMS], 5 * item + 2), read_int64(plan[ITEMS], 5 * item + 3)
    rows, d, d_v = plan[ROWS], plan[D], plan[D_V]
    q, own, factor = address_of(queries), plan[Q] + 4 * (b * plan[N_KV_HEADS] + h) * rows * d, read(plan[Q_FACTOR], h)
    for c in range(rows * d):
        write(q, c, read(own, c) * factor)
    first = read_int32(plan[LENGTHS], b) - plan[S_ACTIVE]
    for r in range(rows):
        m[r], l[r] = MINUS_INF, np.float32(0)
    for c in range(rows * d_v):
        write(acc, c, np.float32(0))
    for start in range(begin, end, BLOCK):
        n = min(BLOCK, end - start)
        find(plan, b, h, start, n, keys, values)
        scores_of(kind, q, keys, (rows, d, n), plan[K], scores)
        if plan[SOFTCAP]:
            cap(scores, rows, n, read(plan[SOFTCAP], 0))
        if plan[ALIBI]:
            lean(plan, scores, h, first, start, n)
        hide(plan, scores, b, first, start, n)
        for r in range(rows):
            alpha = weigh(scores, r, n, m, l)
            if alpha != np.float32(1):
                for c in range(r * d_v, (r + 1) * d_v):
                    write(acc, c, peek(acc, c) * alpha)
        add_values(kind, scores, values, (rows, d_v, n), plan[V], acc)


@jit_inline
def finish(plan, b, h, m, l, acc):
    """Add the sink, once; out = acc / l and lse [B, H_q, s_active, ..]; a query that sees nothing gives 0 and -inf."""
    rows, d = plan[ROWS], plan[D_V]
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
def work(kind, plan):
    """Items, one after the other, until none is left: what each thread runs."""
    rows, d_v = plan[ROWS], plan[D_V]
    queries, acc = np.empty(rows * plan[D], np.float32), np.empty(rows * d_v, np.float32)
    scores = np.empty((rows, BLOCK), np.float32)
    keys, values = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    m, l = np.empty(rows, np.float32), np.empty(rows, np.float32)
    while True:
        item = take_next(address_of(plan) + 8 * NEXT)
        if item >= plan[N_ITEMS]:
            return
        attend(kind, plan, item, (m, l, address_of(acc)), (queries, scores, keys, values))
        partial = read_int64(plan[ITEMS], 5 * item + 4)
        if partial < 0:
            b, h = read_int64(plan[ITEMS], 5 * item), read_int64(plan[ITEMS], 5 * item + 1)
            finish(plan, b, h, m, l, address_of(acc))
            continue
        at = plan[PARTIAL] + 4 * partial * rows * (d_v + 2)
        for r in range(rows):
            write(at, r, m[r])
            write(at, rows + r, l[r])
        for c in range(rows * d_v):
            write(at, 2 * rows + c, acc[c])


@jit
def work_float32(plan):
    """`work` on caches of float32: plan int64 [SIZE]."""
    work(np.float32(0), plan)


@jit
def work_bfloat16(plan):
    """`work` on caches of bfloat16: plan int64 [SIZE]."""
    work(np.uint16(0), plan)


# Each takes seconds to compile, so only the requested one is compiled.


@cache
def body_float32() -> Any:
    """`work_float32` as a C function for the threads of OpenMP."""

    @cfunc(BODY)
    def body(plan: Any) -> None:
        work_float32(numba.carray(plan, SIZE, np.int64))

    return body


@cache
def body_bfloat16() -> Any:
    """`work_bfloat16` as a C function for the threads of OpenMP."""

    @cfunc(BODY)
    def body(plan: Any) -> None:
        work_bfloat16(numba.carray(plan, SIZE, np.int64))

    return body


# ---- items -----------------------------------------------------------------------------------------------------------


@jit
def make_items(lengths, starts, s_active, window, n_kv_heads, share, cores):
    """Divide the live keys of each row [B]: items int64 [n, 5] (b, h, begin, end, partial), where, and how many are partial.

    `share` keys an item, or with `cores` > 0 each row in that many parts. An item with a row to itself is not partial (-1).
    """
    n = 0
    for b in range(len(lengths)):
        n += n_kv_heads * parts_of(lengths[b], starts[b], s_active, window, share, cores)[2]
    items = np.empty((n, 5), np.int64)
    n, n_partial = 0, 0
    for b in range(len(lengths)):
        low, each, parts = parts_of(lengths[b], starts[b], s_active, window, share, cores)
        for h in range(n_kv_heads):
            for part in range(parts):
                begin = low + part * each
                items[n] = b, h, begin, min(begin + each, lengths[b]), -1
                if parts > 1:
                    items[n, 4] = n_partial
                    n_partial += 1
                n += 1
    return items, address_of(items), n_partial


@jit_inline
def parts_of(length, start, s_active, window, share, cores):
    """The first live key, keys of a part, and parts of one row whose keys count from `start` on."""
    low = min(max(start, length - s_active - window + 1 if window else 0), length)
    live = length - low
    each = max(1, -(-live // cores)) if cores > 0 else share
    return low, each, max(1, -(-live // each))


@jit
def combine(plan, items, partial):
    """Combine the parts of each row and key head, in order, into out and lse: partial float32 [n, ROWS * (D_V + 2)]."""
    rows, d = plan[ROWS], plan[D_V]
    m, l = np.empty(rows, np.float32), np.empty(rows, np.float32)
    acc = np.empty(rows * d, np.float32)
    n = 0
    while n < len(items):
        last = n + 1
        while last < len(items) and items[last, 0] == items[n, 0] and items[last, 1] == items[n, 1]:
            last += 1
        if items[n, 4] >= 0:
            add_parts(partial[items[n, 4] : items[n, 4] + last - n], rows, d, m, l, acc)
            finish(plan, items[n, 0], items[n, 1], m, l, address_of(acc))
        n = last


@jit_inline
def add_parts(parts, rows, d, m, l, acc):
    """The sum of parts [n, rows * (d + 2)], each of which has its own maximum, into m, l [rows] and acc [rows * d]."""
    for r in range(rows):
        best = MINUS_INF
        for i in range(len(parts)):
            best = max(best, parts[i, r])
        safe = np.float32(0) if best == MINUS_INF else best
        m[r], l[r] = best, np.float32(0)
        acc[r * d : (r + 1) * d] = 0
        for i in range(len(parts)):
            weight = exp2(parts[i, r] - safe)
            l[r] += weight * parts[i, rows + r]
            for c in range(d):
                acc[r * d + c] += weight * parts[i, 2 * rows + r * d + c]

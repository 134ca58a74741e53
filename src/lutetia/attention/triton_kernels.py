"""Decode attention in Triton: the live keys are cut into pieces, and the last program to finish one of an owner adds them up.

An owner is one row of the batch, one key head and one block of query rows: all query heads of the key head, times the new tokens,
are the rows of one tile, so every key is read once. Lengths are read on the device, so a captured graph stays right as they grow.
Rows of one length are cut as the host says, a program for each piece. Where rows differ, every program works out for itself the
same cut of them all into nearly equal pieces. Scores are kept in base 2.
"""

# ruff: noqa: E741  (l, the sum of weights, is the design's name)
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

LN2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)
PAGES = tl.constexpr(256)  # page numbers that a program has at hand
EVEN = tl.constexpr(0.95)  # rows whose mean length is this much of the longest are as good as equal


class KernelTensors(NamedTuple):
    """Every tensor of a launch; those that a call does not have may be anything, and are not touched."""

    q: Any
    k_cache: Any
    v_cache: Any
    seq_lens: Any
    page_table: Any
    k_new: Any
    v_new: Any
    sink: Any
    k_scale: Any
    v_scale: Any
    out: Any
    lse: Any
    partial_acc: Any
    partial_ml: Any
    arrived: Any  # a zero for each owner
    starts: Any  # int32 [B]


class Strides(NamedTuple):
    """Four of each tensor: of a cache (row or page, head, slot, d), of the others (batch, head, token, d)."""

    q: Any
    k: Any
    v: Any
    k_new: Any
    v_new: Any


class Numbers(NamedTuple):
    """What is known at the launch and compiled for no value: of a tuple that comes from the host Triton would compile each 1."""

    scale: Any
    window: Any
    capacity: Any
    split_keys: Any
    table_b: Any
    softcap: Any


class Case(NamedTuple):
    """What the kernel is compiled for."""

    H_KV: int
    D: int
    S_ACTIVE: int
    ROWS: int  # query heads of a key head × S_ACTIVE
    M_BLOCKS: int  # tiles that these rows take
    BLOCK_B: int  # rows of the batch whose lengths are compared; 0 for none
    BLOCK_D: int
    BLOCK_M: int
    BLOCK_N: int
    COMBINE_ROWS: int
    COMBINE_STAGES: int
    PLAIN: bool  # position p is slot p, and places within a tile need no 64 bits
    PAGE_LEN: int  # 0 where there are no pages
    STRETCH: int  # keys whose pages are listed at once
    RING: bool
    HAS_WINDOW: bool
    HAS_SINK: bool
    HAS_NEW: bool
    HAS_K_SCALE: bool
    HAS_V_SCALE: bool
    PRECISION: str
    PRODUCTS: Any  # the type of products
    FIXED: bool
    EARLY: bool  # launched while the kernel before may still be at work
    HAS_STARTS: bool = False
    HAS_SOFTCAP: bool = False


# Not so n_splits: of one piece the compiler then knows that nothing has to be divided or added up.
@triton.jit(do_not_specialize=["scale", "window", "capacity", "batch", "uneven_pieces", "split_keys", "table_b", "softcap"])
def decode_kernel(
    memory, strides, scale, window, capacity, batch, n_splits, uneven_pieces, split_keys, table_b, softcap, CASE: tl.constexpr
):
    """Every owner's keys in n_splits pieces, a program for each: of split_keys keys when FIXED, else of at least that many. If
    rows differ, and BLOCK_B is not 0, at most uneven_pieces nearly equal ones of all owners: program p of n does p, p + n, .."""
    numbers = Numbers(scale, window, capacity, split_keys, table_b, softcap)
    if CASE.EARLY:  # from here on the previous kernel's writes are visible
        gdc_wait()
    owner, piece, n_pieces = tl.program_id(0), tl.program_id(1), n_splits
    owners_of_row = CASE.H_KV * CASE.M_BLOCKS
    # All loads are issued before any result is used: the first keys wait for one trip to memory, not three.
    if CASE.BLOCK_B > 0:
        rows = tl.arange(0, CASE.BLOCK_B)
        lengths = tl.load(memory.seq_lens + rows, mask=rows < batch, other=0, eviction_policy="evict_last")
        starts = starts_of(rows, rows < batch, memory, CASE)
    length, first_live, q_tile = read_owner(owner, memory, strides, CASE)
    even = True
    if CASE.BLOCK_B > 0:
        _, lows, highs = keys_of(lengths, starts, numbers, CASE)
        counts = tl.where(rows < batch, highs - lows, 0)
        _, low, high = keys_of(length, first_live, numbers, CASE)
        longest = tl.maximum(tl.max(counts, 0), high - low)  # one of these is the other, but this way its load is issued now
        even = tl.sum(counts, 0).to(tl.float32) >= longest.to(tl.float32) * batch * EVEN
    if even:
        do_piece(length, first_live, q_tile, (owner, owner * n_splits, piece, n_pieces), memory, strides, numbers, CASE)
    elif CASE.BLOCK_B > 0:
        pieces = pieces_of(counts, rows < batch, share_of(counts, rows < batch, uneven_pieces // owners_of_row, split_keys))
        total = tl.sum(pieces, 0) * owners_of_row
        for which in range(piece * tl.num_programs(0) + owner, total, tl.num_programs(0) * n_splits):
            # Always so. But of what comes out of a sum the compiler knows nothing, not even that it knows nothing, and would not
            # fetch keys ahead; of what may come from elsewhere too it does.
            if which < total:
                owner, piece, n_pieces = find(which, pieces, owners_of_row, rows)
                length, first_live, q_tile = read_owner(owner, memory, strides, CASE)
            do_piece(length, first_live, q_tile, (owner, which - piece, piece, n_pieces), memory, strides, numbers, CASE)


@triton.jit
def find(which, pieces, owners_of_row, rows):
    """Piece `which` of all, row × owner × piece: its owner, its number and of how many; an owner of each row has pieces [n]."""
    ends = tl.cumsum(pieces, 0) * owners_of_row
    b = tl.sum((ends <= which).to(tl.int32), 0)
    n_pieces = tl.maximum(tl.sum(tl.where(rows == b, pieces, 0), 0), 1)
    left = tl.sum(tl.where(rows == b, ends, 0), 0) - which  # of this row's, this one among them
    done = n_pieces * owners_of_row - left
    return b * owners_of_row + done // n_pieces, done % n_pieces, n_pieces


@triton.jit
def pieces_of(counts, there, share):
    """How many pieces of at most `share` keys each row [n] makes; one if it has no keys, for something must write its result."""
    return tl.where(there, tl.maximum(tl.cdiv(counts, share), 1), 0)


@triton.jit
def share_of(counts, there, most_pieces, least):
    """The smallest share, nearly, that cuts rows of these counts [n] into at most this many pieces; no less than `least`."""
    low = tl.maximum(tl.cdiv(tl.sum(counts, 0), most_pieces), least)
    high = tl.maximum(tl.max(counts, 0), low)
    close = high // 16
    while high - low > close:
        middle = (low + high) // 2
        fits = tl.sum(pieces_of(counts, there, middle), 0) <= most_pieces
        low, high = tl.where(fits, low, middle), tl.where(fits, middle, high)
    return high


@triton.jit
def read_owner(owner, memory, strides, CASE: tl.constexpr):
    """The length of an owner's row, the first position that counts, and its queries [BLOCK_M, BLOCK_D]."""
    b, h, block = place_of(owner, CASE)
    length = tl.load(memory.seq_lens + b, eviction_policy="evict_last")  # keys that pass through the cache would push it out
    r, d = block * CASE.BLOCK_M + tl.arange(0, CASE.BLOCK_M), tl.arange(0, CASE.BLOCK_D)
    head = h * (CASE.ROWS // CASE.S_ACTIVE) + r // CASE.S_ACTIVE
    q_b, q_h, q_a, q_d = strides.q
    queries = memory.q + b * q_b + head * q_h + r % CASE.S_ACTIVE * q_a
    inside = (r < CASE.ROWS)[:, None] & (d < CASE.D)[None, :]
    return length, starts_of(b, b >= 0, memory, CASE), tl.load(queries[:, None] + d[None, :] * q_d, mask=inside, other=0.0)


@triton.jit
def starts_of(rows, there, memory, CASE: tl.constexpr):
    """The first position that counts of some rows of the batch, or of one."""
    if CASE.HAS_STARTS:
        return tl.load(memory.starts + rows, mask=there, other=0, eviction_policy="evict_last")
    else:
        return 0


@triton.jit
def place_of(owner, CASE: tl.constexpr):
    """The row of the batch, the key head and the block of query rows of an owner; the first two for offsets, in 64 bits."""
    owner_of_row = owner % (CASE.H_KV * CASE.M_BLOCKS)
    row, head = owner // (CASE.H_KV * CASE.M_BLOCKS), owner_of_row // CASE.M_BLOCKS
    return row.to(tl.int64), head.to(tl.int64), owner_of_row % CASE.M_BLOCKS


@triton.jit
def keys_of(length, start, numbers, CASE: tl.constexpr):
    """What to read of the cache for rows of these lengths, from `start` on: the lengths, held to what a row can have, and
    [low, high)."""
    if not CASE.RING:
        length = tl.minimum(length, numbers.capacity)
    length = tl.maximum(length, 0)
    low, high = length * 0, length
    if CASE.HAS_NEW:
        high = tl.maximum(length - CASE.S_ACTIVE, 0)
    if CASE.HAS_WINDOW:
        low = tl.minimum(tl.maximum(length - CASE.S_ACTIVE - numbers.window + 1, 0), high)
    if CASE.HAS_STARTS:
        low = tl.minimum(tl.maximum(low, start), high)
    return length, low, high


@triton.jit
def do_piece(length, start_of_row, q_tile, task, memory, strides, numbers, CASE: tl.constexpr):
    """Piece `piece` of the n_pieces of an owner, if it has enough keys; the last program to finish adds the pieces up."""
    owner, first_partial, piece, n_pieces = task
    k_o, k_h, k_s, k_d = strides.k
    v_o, v_h, v_s, v_d = strides.v
    b, h, block = place_of(owner, CASE)
    length, low, high = keys_of(length, start_of_row, numbers, CASE)
    share = numbers.split_keys
    if not CASE.FIXED:
        share = tl.maximum((tl.cdiv(high - low, n_pieces) + CASE.BLOCK_N - 1) // CASE.BLOCK_N * CASE.BLOCK_N, numbers.split_keys)
    if piece == 0 or piece * share < high - low:
        begin = low + piece * share
        end = tl.minimum(begin + share, high)
        first = length - CASE.S_ACTIVE  # the position of query 0
        # Row r of the tile is query head r // S_ACTIVE of this key head, new token r % S_ACTIVE.
        r = block * CASE.BLOCK_M + tl.arange(0, CASE.BLOCK_M)
        d = tl.arange(0, CASE.BLOCK_D)
        in_d = d < CASE.D
        at = first + r % CASE.S_ACTIVE  # the position of each query
        factor = numbers.scale * LOG2_E
        if CASE.HAS_K_SCALE:
            factor *= tl.load(memory.k_scale + h)
        queries, unit = in_range(q_tile, CASE)
        factor = factor * unit

        m = tl.full([CASE.BLOCK_M], float("-inf"), tl.float32)
        l = tl.full([CASE.BLOCK_M], 0.0, tl.float32)
        acc = tl.full([CASE.BLOCK_M, CASE.BLOCK_D], 0.0, tl.float32)
        keys, values = memory.k_cache + h * k_h, memory.v_cache + h * v_h
        n = tl.arange(0, CASE.BLOCK_N)
        # What is beyond the end is never read: a NaN there would survive a weight of zero.
        if CASE.PLAIN:  # one place moves on, and the others are always as far from it
            k_first, v_first = keys + (b * k_o + begin.to(tl.int64) * k_s), values + (b * v_o + begin.to(tl.int64) * v_s)
            k_places, v_places = n[:, None] * k_s + d[None, :] * k_d, n[:, None] * v_s + d[None, :] * v_d
            for start in range(begin, end, CASE.BLOCK_N):
                position = start + n
                inside = (position < end)[:, None] & in_d[None, :]
                k_tile = tl.load(k_first + k_places, mask=inside, other=0.0)
                v_tile = tl.load(v_first + v_places, mask=inside, other=0.0)
                k_first += CASE.BLOCK_N * k_s
                v_first += CASE.BLOCK_N * v_s
                seen = seen_of(position, position < end, at, numbers, CASE)
                m, l, acc = attend(queries, k_tile, v_tile, seen, factor, numbers, (m, l, acc), CASE)
        else:
            # The pages of a stretch are listed before its keys are asked for: to ask for a page and then its keys, tile by tile,
            # would be two trips to memory, one after the other.
            for stretch in range(begin, end, CASE.STRETCH):
                listed = list_pages(stretch, end, b, memory, numbers, CASE)
                for start in range(stretch, tl.minimum(stretch + CASE.STRETCH, end), CASE.BLOCK_N):
                    position = start + n
                    inside = (position < end)[:, None] & in_d[None, :]
                    where, slot = locate(position, stretch, listed, b, numbers, CASE)
                    k_row, v_row = where * k_o + slot * k_s, where * v_o + slot * v_s
                    k_tile = tl.load(keys + k_row[:, None] + d[None, :] * k_d, mask=inside, other=0.0)
                    v_tile = tl.load(values + v_row[:, None] + d[None, :] * v_d, mask=inside, other=0.0)
                    seen = seen_of(position, position < end, at, numbers, CASE)
                    m, l, acc = attend(queries, k_tile, v_tile, seen, factor, numbers, (m, l, acc), CASE)

        n_pieces = tl.minimum(tl.maximum(tl.cdiv(high - low, share), 1), n_pieces)  # a division, after the loads are issued
        if CASE.HAS_NEW:
            if piece == n_pieces - 1:
                a = tl.arange(0, 16)
                position = first + a
                live = (a < CASE.S_ACTIVE) & (position >= 0)
                inside = live[:, None] & in_d[None, :]
                kn_b, kn_h, kn_a, kn_d = strides.k_new
                vn_b, vn_h, vn_a, vn_d = strides.v_new
                new_keys = memory.k_new + b * kn_b + h * kn_h + a[:, None] * kn_a
                new_values = memory.v_new + b * vn_b + h * vn_h + a[:, None] * vn_a
                k_tile = tl.load(new_keys + d[None, :] * kn_d, mask=inside, other=0.0)
                v_tile = tl.load(new_values + d[None, :] * vn_d, mask=inside, other=0.0)
                k_tile = as_stored(k_tile, memory.k_scale + h, CASE.HAS_K_SCALE, memory.k_cache.dtype.element_ty)
                v_tile = as_stored(v_tile, memory.v_scale + h, CASE.HAS_V_SCALE, memory.v_cache.dtype.element_ty)
                newest = tl.maximum(first, 0)
                listed = list_pages(newest, length, b, memory, numbers, CASE)
                where, slot = locate(tl.maximum(position, 0), newest, listed, b, numbers, CASE)
                k_row, v_row = where * k_o + slot * k_s, where * v_o + slot * v_s
                if block == 0:
                    tl.store(keys + k_row[:, None] + d[None, :] * k_d, k_tile, mask=inside)
                    tl.store(values + v_row[:, None] + d[None, :] * v_d, v_tile, mask=inside)
                counts = live
                if CASE.HAS_STARTS:
                    counts = live & (position >= start_of_row)
                seen = seen_of(position, counts, at, numbers, CASE) & (position[None, :] <= at[:, None])
                m, l, acc = attend(queries, k_tile, v_tile, seen, factor, numbers, (m, l, acc), CASE)

        if CASE.HAS_V_SCALE:
            acc *= tl.load(memory.v_scale + h)

        if n_pieces == 1:
            finish((m, l, acc), r, d, (b, h), memory, CASE)
        else:
            # Partial results: m and l [2, rows of the block], for their sum would lose digits of large scores; acc [rows, D].
            row = tl.arange(0, CASE.BLOCK_M)
            mine = (first_partial + piece).to(tl.int64)
            tl.store(memory.partial_ml + mine * 2 * CASE.BLOCK_M + row, m)
            tl.store(memory.partial_ml + (mine * 2 + 1) * CASE.BLOCK_M + row, l)
            place = (mine * CASE.BLOCK_M + row[:, None]) * CASE.D + d[None, :]
            tl.store(memory.partial_acc + place, acc, mask=(r < CASE.ROWS)[:, None] & in_d[None, :])
            tl.debug_barrier()  # every thread has stored before one of them says so
            if tl.atomic_add(memory.arrived + owner, 1, sem="acq_rel", scope="gpu") == n_pieces - 1:
                combine(first_partial, n_pieces, (b, h, block), memory, CASE)
                tl.store(memory.arrived + owner, 0)  # as it was, for the next launch


@triton.jit
def in_range(q_tile, CASE: tl.constexpr):
    """Queries [M, D] that the type of the products can hold, and what they are to be multiplied with, [M, 1] or one number.

    Those of bfloat16 may be too large for float16: a power of two brings each row to 1 at most, and rounds nothing that counts.
    """
    if q_tile.dtype == tl.bfloat16 and tl.float16 == CASE.PRODUCTS:
        values = q_tile.to(tl.float32)
        unit = tl.exp2(tl.ceil(tl.log2(tl.maximum(tl.max(tl.abs(values), 1), 1e-30))))[:, None]
        return (values / unit).to(tl.float16), unit
    else:
        return q_tile, 1.0


@triton.jit
def seen_of(position, live, at, numbers, CASE: tl.constexpr):
    """Which of the keys at positions [n] the queries at [m] see: [m or 1, n]."""
    seen = live[None, :]
    if CASE.S_ACTIVE > 1:
        seen = seen & (position[None, :] <= at[:, None])
    if CASE.HAS_WINDOW:
        seen = seen & (position[None, :] > at[:, None] - numbers.window)
    return seen


@triton.jit
def list_pages(first, end, b, memory, numbers, CASE: tl.constexpr):
    """The pages of a row from position `first` on, before `end`: [PAGES]; 0 where there are none."""
    if CASE.PAGE_LEN > 0:
        page = first // CASE.PAGE_LEN + tl.arange(0, PAGES)
        return tl.load(memory.page_table + b * numbers.table_b + page, mask=page * CASE.PAGE_LEN < end, other=0)
    else:
        return 0


@triton.jit
def locate(position, first, listed, b, numbers, CASE: tl.constexpr):
    """Where positions [n] live, with the pages listed from position `first` on: the row of the cache, or the pages [n], and the
    slots [n]; in 64 bits, as offsets must be."""
    if CASE.PAGE_LEN > 0:
        pages = tl.gather(listed, tl.minimum(position // CASE.PAGE_LEN - first // CASE.PAGE_LEN, PAGES - 1), 0)
        return pages.to(tl.int64), (position % CASE.PAGE_LEN).to(tl.int64)
    elif CASE.RING:
        return b, (position % numbers.capacity).to(tl.int64)
    else:
        return b, position.to(tl.int64)


@triton.jit
def attend(q_tile, k_tile, v_tile, seen, factor, numbers, sums, CASE: tl.constexpr):
    """One tile of keys: q [M, D], k and v [N, D], seen [M, N]; the running m, l [M] and acc [M, D] of sums."""
    m, l, acc = sums
    k_tile, v_tile = k_tile.to(q_tile.dtype).to(CASE.PRODUCTS), v_tile.to(q_tile.dtype).to(CASE.PRODUCTS)
    scores = tl.dot(q_tile.to(CASE.PRODUCTS), tl.trans(k_tile), input_precision=CASE.PRECISION)
    if CASE.HAS_SOFTCAP:  # tanh x = 1 - 2 / (exp 2x + 1)
        twice = tl.minimum(scores * factor * (2 / numbers.softcap), 126.0)  # in base 2, like scores times factor
        scores = numbers.softcap * (1 - 2 / (tl.exp2(twice) + 1))
        factor = LOG2_E
    m_new = tl.maximum(m, tl.max(tl.where(seen, scores * factor, float("-inf")), 1))
    safe = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf - -inf would be NaN
    # One rounding, as a fused multiply and add: the difference is exact to its own size, however large the scores are.
    p = tl.exp2(tl.where(seen, scores * factor - safe[:, None], float("-inf")))
    alpha = tl.exp2(m - safe)
    l = l * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None]
    acc = tl.dot(p.to(q_tile.dtype).to(CASE.PRODUCTS), v_tile, acc, input_precision=CASE.PRECISION)
    return m_new, l, acc


@triton.jit
def as_stored(tile, scale, HAS_SCALE: tl.constexpr, DTYPE: tl.constexpr):
    """New keys or values as the cache keeps them: what is attended to is what later steps will read."""
    tile = tile.to(tl.float32)
    if HAS_SCALE:
        tile = tile / tl.load(scale)
    if DTYPE.primitive_bitwidth == 8:
        tile = tl.minimum(tl.maximum(tile, -448.0), 448.0)
    return tile.to(DTYPE)


@triton.jit
def combine(first_partial, n_pieces, place, memory, CASE: tl.constexpr):
    """The pieces of one owner are added in order, whichever finished first; place: batch row, head, block."""
    b, h, block = place
    row, d = tl.arange(0, CASE.COMBINE_ROWS), tl.arange(0, CASE.BLOCK_D)
    r = block * CASE.BLOCK_M + row
    inside = (r < CASE.ROWS)[:, None] & (d < CASE.D)[None, :]
    m = tl.full([CASE.COMBINE_ROWS], float("-inf"), tl.float32)
    l = tl.full([CASE.COMBINE_ROWS], 0.0, tl.float32)
    acc = tl.full([CASE.COMBINE_ROWS, CASE.BLOCK_D], 0.0, tl.float32)
    first = first_partial.to(tl.int64) * CASE.BLOCK_M
    ml, parts = memory.partial_ml + first * 2, memory.partial_acc + first * CASE.D
    # One at a time, the next ones on their way: all at once would be fewer steps, but many more instructions, and those come from
    # memory too when a program runs them only once.
    for _ in tl.range(0, n_pieces, num_stages=CASE.COMBINE_STAGES):
        m_i, l_i = tl.load(ml + row), tl.load(ml + CASE.BLOCK_M + row)
        part = tl.load(parts + row[:, None] * CASE.D + d[None, :], mask=inside, other=0.0)
        m_new = tl.maximum(m, m_i)
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        weight, alpha = tl.exp2(m_i - safe), tl.exp2(m - safe)
        l = l * alpha + weight * l_i
        acc = acc * alpha[:, None] + weight[:, None] * part
        m = m_new
        ml += 2 * CASE.BLOCK_M
        parts += CASE.BLOCK_M * CASE.D
    finish((m, l, acc), r, d, (b, h), memory, CASE)


@triton.jit
def finish(sums, r, d, place, memory, CASE: tl.constexpr):
    """out and lse, both contiguous [B, H_q, S_ACTIVE, ..], from m, l [M] and acc [M, D]; the sink joins, once.
    Nothing seen gives 0 and -inf."""
    m, l, acc = sums
    b, h = place
    inside, alpha = r < CASE.ROWS, tl.full(m.shape, 1.0, tl.float32)
    if CASE.HAS_SINK:
        head = h * (CASE.ROWS // CASE.S_ACTIVE) + r // CASE.S_ACTIVE
        logit = tl.load(memory.sink + head, mask=inside, other=0.0).to(tl.float32) * LOG2_E
        m_new = tl.maximum(m, logit)
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp2(m - safe)
        l = l * alpha + tl.exp2(logit - safe)
        m = m_new
    some = l != 0.0  # a NaN among the live keys must show
    one = tl.where(some, l, 1.0)
    at = b * CASE.H_KV * CASE.ROWS + h * CASE.ROWS + r
    tl.store(memory.lse + at, tl.where(some, (m + tl.log2(one)) * LN2, float("-inf")), mask=inside)
    result = (acc * tl.where(some, alpha / one, 0.0)[:, None]).to(memory.out.dtype.element_ty)
    tl.store(memory.out + at[:, None] * CASE.D + d[None, :], result, mask=inside[:, None] & (d < CASE.D)[None, :])

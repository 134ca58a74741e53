"""Tiles of decode attention in Triton: what a kernel is given, which queries and keys are where, and one tile of keys.

Scores are kept in base 2.
"""

# ruff: noqa: E741  (l, the sum of weights, is the design's name)
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

LN2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)


class KernelTensors(NamedTuple):
    """Every tensor of a launch, or its address; where a call has none, any tensor stands in, which is never accessed."""

    q: Tensor | int
    k_cache: Tensor | int
    v_cache: Tensor | int
    seq_lens: Tensor | int
    page_table: Tensor | int
    k_new: Tensor | int
    v_new: Tensor | int
    sink: Tensor | int
    k_scale: Tensor | int
    v_scale: Tensor | int
    out: Tensor | int
    lse: Tensor | int
    partial_acc: Tensor | int
    partial_ml: Tensor | int
    arrived: Tensor | int  # a zero for each owner
    starts: Tensor | int  # int32 [B]
    prior_acc: Tensor | int  # float32 [n_priors, B · H_q · S_ACTIVE, D]: what pieces of the prefix gave
    prior_ml: Tensor | int  # float32 [n_priors, 2, B · H_q · S_ACTIVE]
    alibi: Tensor | int  # float32 [H_q]
    rotary: Tensor | int  # float32 [2, n_turns, TURNED]
    tree: Tensor | int  # int64 [B, S_ACTIVE]: bit j for new token j


class Strides(NamedTuple):
    """Four of each tensor: of a cache (row or page, head, slot, d), of the others (batch, head, token, d)."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    k_new: tuple[int, ...]
    v_new: tuple[int, ...]
    k_scale: tuple[int, ...]  # three: (row or page, head, slot), of scales of each token
    v_scale: tuple[int, ...]


class TileNumbers(NamedTuple):
    """Numbers known at launch that are not specialised: in a tuple from the host, Triton would specialise every 1."""

    scale: tl.tensor
    window: tl.tensor
    capacity: tl.tensor
    split_keys: tl.tensor
    table_b: tl.tensor
    softcap: tl.tensor
    batch: tl.tensor
    prefix: tl.tensor
    n_priors: tl.tensor  # pieces of the prefix
    n_turns: tl.tensor  # positions that have rotary angles


class TileCase(NamedTuple):
    """What the kernel is compiled for."""

    H_KV: int
    D: int  # of values; of keys less EXTRA
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
    RING: bool
    HAS_WINDOW: bool
    HAS_SINK: bool
    HAS_NEW: bool
    NEW: int  # new keys that are written at once
    HAS_K_SCALE: bool
    HAS_V_SCALE: bool
    PRECISION: str
    PRODUCTS: tl.dtype  # the type of products
    FIXED: bool
    EARLY: bool  # launched while the kernel before may still be at work
    HAS_STARTS: bool = False
    HAS_SOFTCAP: bool = False
    HAS_PREFIX: bool = False
    CAUSAL: bool = False  # of several new tokens none sees a later one
    HAS_ALIBI: bool = False
    HAS_TREE: bool = False
    EXTRA: int = 0  # numbers that a key has more than a value
    BLOCK_E: int = 16
    TOKEN_SCALES: bool = False  # each token has its own, and HAS_K_SCALE and HAS_V_SCALE are not set
    SHARED: bool = False  # values are the first D numbers of the keys
    TURNED: int = 0  # pairs of numbers of a query, and of a new key, that its position turns
    NARROW: bool = False  # offsets within a cache of pages need no 64 bits


class TileRows(NamedTuple):
    """The query rows of a tile."""

    queries: tl.tensor  # [M, D]
    factor: tl.tensor  # what their scores are multiplied with: a number, or [M, 1]
    at: tl.tensor  # [M]: their positions
    first: tl.tensor  # the position of the first new token
    slope: tl.tensor  # [M] with HAS_ALIBI, in base 2
    bits: tl.tensor  # int64 [M] with HAS_TREE: the new tokens that each sees
    extra: tl.tensor  # [M, EXTRA]: the last numbers of the queries


@triton.jit
def place_of(owner, CASE: tl.constexpr):
    """The row of the batch, the key head and the block of query rows of an owner; the first two for offsets, in 64 bits."""
    owner_of_row = owner % (CASE.H_KV * CASE.M_BLOCKS)
    row, head = owner // (CASE.H_KV * CASE.M_BLOCKS), owner_of_row // CASE.M_BLOCKS
    return row.to(tl.int64), head.to(tl.int64), owner_of_row % CASE.M_BLOCKS


@triton.jit
def in_range(q_tile, extra, CASE: tl.constexpr):
    """Queries [M, D] and their extra elements [M, EXTRA], scaled into the range of the products' type, and the factors that undo
    that, [M, 1] or one number.

    bfloat16 queries may be too large for float16: dividing each row by a power of two brings it to 1 at most, without relevant
    rounding.
    """
    if q_tile.dtype == tl.bfloat16 and tl.float16 == CASE.PRODUCTS:
        values = q_tile.to(tl.float32)
        largest = tl.max(tl.abs(values), 1)
        if CASE.EXTRA > 0:
            largest = tl.maximum(largest, tl.max(tl.abs(extra.to(tl.float32)), 1))
        unit = tl.exp2(tl.ceil(tl.log2(tl.maximum(largest, 1e-30))))[:, None]
        if CASE.EXTRA > 0:
            extra = (extra.to(tl.float32) / unit).to(tl.float16)
        return (values / unit).to(tl.float16), extra, unit
    else:
        return q_tile, extra, 1.0


@triton.jit
def turn(tile, places, stride, at, memory, numbers, CASE: tl.constexpr):
    """A tile [M, D], loaded from places [M], whose elements lie `stride` apart, rotated by the angles of positions [M], where
    they are not negative."""
    d = tl.arange(0, CASE.BLOCK_D)
    lower, inside = d < CASE.TURNED, (at >= 0)[:, None] & (d < 2 * CASE.TURNED)[None, :]
    partner = tl.where(lower, d + CASE.TURNED, d - CASE.TURNED)
    other = tl.load(places[:, None] + partner[None, :] * stride, mask=inside, other=0.0).to(tl.float32)
    held = tl.minimum(at, numbers.n_turns - 1).to(tl.int64)
    angles = memory.rotary + held[:, None] * CASE.TURNED + (d % CASE.TURNED)[None, :]
    cos = tl.load(angles, mask=inside, other=1.0).to(tl.float32)
    sin = tl.load(angles + numbers.n_turns.to(tl.int64) * CASE.TURNED, mask=inside, other=0.0).to(tl.float32)
    return (tile.to(tl.float32) * cos + tl.where(lower[None, :], -other, other) * sin).to(tile.dtype)


@triton.jit
def load_extra(places, stride, live, CASE: tl.constexpr):
    """Elements D and up of queries or keys at places [n], `stride` apart: [n, EXTRA]; 0 where not live."""
    if CASE.EXTRA > 0:
        e = tl.arange(0, CASE.BLOCK_E)
        inside = live[:, None] & (e < CASE.EXTRA)[None, :]
        return tl.load(places[:, None] + (CASE.D + e)[None, :] * stride, mask=inside, other=0.0)
    else:
        return 0.0


@triton.jit
def query_rows(q_tile, places, head, task, memory, strides, numbers, CASE: tl.constexpr):
    """The Rows of queries [M, D], loaded from places [M], of query heads [M]; task: where they are [M], the position of the first
    new token, where in `tree` they have their bits [M], which of them are there [M], and the key head."""
    at, first, tree, there, h = task
    if CASE.TURNED > 0:
        q_tile = turn(q_tile, places, strides.q[3], tl.where(there, at, -1), memory, numbers, CASE)
    extra = 0.0
    if CASE.EXTRA > 0:
        extra = load_extra(places, strides.q[3], there, CASE)
    queries, extra, unit = in_range(q_tile, extra, CASE)
    factor = numbers.scale * LOG2_E * unit
    if CASE.HAS_K_SCALE:
        factor *= tl.load(memory.k_scale + h)
    slope, bits = 0.0, 0
    if CASE.HAS_ALIBI:
        slope = tl.load(memory.alibi + head, mask=there, other=0.0) * LOG2_E
    if CASE.HAS_TREE:
        bits = tl.load(memory.tree + tree, mask=there, other=0)
    return TileRows(queries, factor, at, first, slope, bits, extra)


@triton.jit
def seen_of(position, live, rows, numbers, CASE: tl.constexpr):
    """Which of the keys at positions [n] the queries see: [m or 1, n]."""
    seen = live[None, :]
    if CASE.CAUSAL:
        seen = seen & (position[None, :] <= rows.at[:, None])
    if CASE.HAS_WINDOW:
        seen = seen & (position[None, :] > rows.at[:, None] - numbers.window)
    if CASE.HAS_TREE:
        new = position - rows.first
        bit = rows.bits[:, None] >> tl.minimum(tl.maximum(new, 0), 63).to(tl.int64)[None, :]
        seen = seen & ((new < 0)[None, :] | (bit & 1 == 1))
    return seen


@triton.jit
def pages_of(position, end, b, memory, numbers, CASE: tl.constexpr):
    """The pages of positions [n] of a row that are before `end`: [n]; 0 where there are none."""
    if CASE.PAGE_LEN > 0:
        return tl.load(memory.page_table + b * numbers.table_b + position // CASE.PAGE_LEN, mask=position < end, other=0)
    else:
        return 0


@triton.jit
def locate(position, pages, b, numbers, CASE: tl.constexpr):
    """Where positions [n] live, on pages [n] if there are any: the row of the cache, or the pages [n], and the slots [n]; in 64
    bits, as offsets must be unless they are NARROW."""
    if CASE.PAGE_LEN > 0:
        if CASE.NARROW:
            return pages, position % CASE.PAGE_LEN
        else:
            return pages.to(tl.int64), (position % CASE.PAGE_LEN).to(tl.int64)
    elif CASE.RING:
        return b, (position % numbers.capacity).to(tl.int64)
    else:
        return b, position.to(tl.int64)


@triton.jit
def read_keys(stretch_of_keys, place, rows, sums, memory, strides, numbers, CASE: tl.constexpr):
    """The keys [begin, end) of a row of the batch and a key head, tile by tile: m, l [M] and acc [M, D] with them."""
    begin, end = stretch_of_keys
    b, h = place
    k_o, k_h, k_s, k_d = strides.k
    v_o, v_h, v_s, v_d = strides.v
    keys, values = memory.k_cache + h * k_h, memory.v_cache + h * v_h
    n, d = tl.arange(0, CASE.BLOCK_N), tl.arange(0, CASE.BLOCK_D)
    in_d = d < CASE.D
    # What is beyond the end is never read: a NaN there would survive a weight of zero.
    if CASE.PLAIN:  # one place moves on, and the others are always as far from it
        k_first, v_first = keys + (b * k_o + begin.to(tl.int64) * k_s), values + (b * v_o + begin.to(tl.int64) * v_s)
        k_places, v_places = n[:, None] * k_s + d[None, :] * k_d, n[:, None] * v_s + d[None, :] * v_d
        for start in range(begin, end, CASE.BLOCK_N):
            position = start + n
            inside = (position < end)[:, None] & in_d[None, :]
            k_tile = tl.load(k_first + k_places, mask=inside, other=0.0)
            extra = load_extra(k_first + n * k_s, k_d, position < end, CASE)
            v_tile = k_tile if CASE.SHARED else tl.load(v_first + v_places, mask=inside, other=0.0)
            scales = token_scales((b, position.to(tl.int64), h), position < end, memory, strides, CASE)
            k_first += CASE.BLOCK_N * k_s
            v_first += CASE.BLOCK_N * v_s
            sums = attend((k_tile, extra, v_tile), scales, position, position < end, rows, sums, numbers, CASE)
    else:
        # The pages of a tile are asked for one tile ahead: to ask for a page and then its keys would be two trips to memory, one
        # after the other.
        pages = pages_of(begin + n, end, b, memory, numbers, CASE)
        for start in range(begin, end, CASE.BLOCK_N):
            position = start + n
            inside = (position < end)[:, None] & in_d[None, :]
            next_pages = pages_of(position + CASE.BLOCK_N, end, b, memory, numbers, CASE)
            where, slot = locate(position, pages, b, numbers, CASE)
            k_row, v_row = where * k_o + slot * k_s, where * v_o + slot * v_s
            k_tile = tl.load(keys + k_row[:, None] + d[None, :] * k_d, mask=inside, other=0.0)
            extra = load_extra(keys + k_row, k_d, position < end, CASE)
            v_places = values + v_row[:, None] + d[None, :] * v_d
            v_tile = k_tile if CASE.SHARED else tl.load(v_places, mask=inside, other=0.0)
            scales = token_scales((where, slot, h), position < end, memory, strides, CASE)
            pages = next_pages
            sums = attend((k_tile, extra, v_tile), scales, position, position < end, rows, sums, numbers, CASE)
    return sums


@triton.jit
def attend(tiles, scales, position, live, rows, sums, numbers, CASE: tl.constexpr):
    """One tile of keys: k [N, D], its extra numbers [N, EXTRA] and v [N, D], their scales [N], positions [N] and whether they
    count; m, l [M] and acc [M, D] of sums go on."""
    m, l, acc = sums
    k_tile, extra, v_tile = tiles
    q_tile, factor = rows.queries, rows.factor
    seen = seen_of(position, live, rows, numbers, CASE)
    k_tile, v_tile = k_tile.to(q_tile.dtype).to(CASE.PRODUCTS), v_tile.to(q_tile.dtype).to(CASE.PRODUCTS)
    scores = tl.dot(q_tile.to(CASE.PRODUCTS), tl.trans(k_tile), input_precision=CASE.PRECISION)
    if CASE.EXTRA > 0:
        extra = extra.to(q_tile.dtype).to(CASE.PRODUCTS)
        scores = tl.dot(rows.extra.to(CASE.PRODUCTS), tl.trans(extra), scores, input_precision=CASE.PRECISION)
    if CASE.TOKEN_SCALES:
        scores = scores * scales[0][None, :]
    if CASE.HAS_SOFTCAP:  # tanh x = 1 - 2 / (exp 2x + 1)
        twice = tl.minimum(scores * factor * (2 / numbers.softcap), 126.0)  # in base 2, like scores times factor
        scores = numbers.softcap * (1 - 2 / (tl.exp2(twice) + 1))
        factor = LOG2_E
    if CASE.HAS_ALIBI:
        scores = scores * factor + rows.slope[:, None] * (position[None, :] - rows.at[:, None]).to(tl.float32)
        factor = 1.0
    m_new = tl.maximum(m, tl.max(tl.where(seen, scores * factor, float("-inf")), 1))
    safe = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf - -inf would be NaN
    # One rounding, as a fused multiply and add: the difference is exact to its own size, however large the scores are.
    p = tl.exp2(tl.where(seen, scores * factor - safe[:, None], float("-inf")))
    alpha = tl.exp2(m - safe)
    l = l * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None]
    if CASE.TOKEN_SCALES:
        p = p * scales[1][None, :]
    acc = tl.dot(p.to(q_tile.dtype).to(CASE.PRODUCTS), v_tile, acc, input_precision=CASE.PRECISION)
    return m_new, l, acc


@triton.jit
def token_scales(place, live, memory, strides, CASE: tl.constexpr):
    """The scales [n] of keys and of values; place: their rows or pages, their slots and the key head."""
    if CASE.TOKEN_SCALES:
        where, slot, h = place
        k_o, k_h, k_s = strides.k_scale
        v_o, v_h, v_s = strides.v_scale
        k_scale = tl.load(memory.k_scale + where * k_o + slot * k_s + h * k_h, mask=live, other=0.0)
        return k_scale, tl.load(memory.v_scale + where * v_o + slot * v_s + h * v_h, mask=live, other=0.0)
    else:
        return 1.0, 1.0


@triton.jit
def limit_of(DTYPE: tl.constexpr):
    """The largest number of an 8-bit type."""
    if tl.int8 == DTYPE:
        return 127.0
    elif tl.float8e5 == DTYPE:
        return 57344.0
    else:
        return 448.0


@triton.jit
def as_stored(tile, scale, DTYPE: tl.constexpr):
    """New keys or values as the cache keeps them, divided by a scale: what is attended to is what later steps will read."""
    tile = tile.to(tl.float32) / scale
    if DTYPE.primitive_bitwidth == 8:
        tile = tl.minimum(tl.maximum(tile, -limit_of(DTYPE)), limit_of(DTYPE))
    if tl.int8 == DTYPE:  # to the nearest, of two the even one
        nearest = tl.floor(tile + 0.5)
        odd = nearest - 2 * tl.floor(nearest / 2) == 1
        tile = tl.where((nearest - tile == 0.5) & odd, nearest - 1, nearest)
    return tile.to(DTYPE)


@triton.jit
def join(sums, part):
    """Merge two results: m, l [M] and acc [M, D] of each."""
    m, l, acc = sums
    m_i, l_i, acc_i = part
    m_new = tl.maximum(m, m_i)
    safe = tl.where(m_new == float("-inf"), 0.0, m_new)
    weight, alpha = tl.exp2(m_i - safe), tl.exp2(m - safe)
    return m_new, l * alpha + weight * l_i, acc * alpha[:, None] + weight[:, None] * acc_i


@triton.jit
def finish(sums, r, d, place, memory, numbers, CASE: tl.constexpr):
    """out and lse, both contiguous [B, H_q, S_ACTIVE, ..], from m, l [M] and acc [M, D]; the prefix and the sink are added, once.
    A query that sees nothing gives 0 and -inf.
    """
    b, h = place
    at = b * CASE.H_KV * CASE.ROWS + h * CASE.ROWS + r
    if CASE.HAS_PREFIX:
        n_rows = numbers.batch * CASE.H_KV * CASE.ROWS
        in_tile = (r < CASE.ROWS)[:, None] & (d < CASE.D)[None, :]
        if CASE.EARLY:  # the kernel that reads the prefix runs beside this one, up to here
            gdc_wait()
        ml, parts = memory.prior_ml + at, memory.prior_acc + at[:, None] * CASE.D + d[None, :]
        for _ in tl.range(0, numbers.n_priors, num_stages=CASE.COMBINE_STAGES):
            m_i = tl.load(ml, mask=r < CASE.ROWS, other=float("-inf"))
            l_i = tl.load(ml + n_rows, mask=r < CASE.ROWS, other=0.0)
            sums = join(sums, (m_i, l_i, tl.load(parts, mask=in_tile, other=0.0)))
            ml += 2 * n_rows
            parts += n_rows.to(tl.int64) * CASE.D
    m, l, acc = sums
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
    tl.store(memory.lse + at, tl.where(some, (m + tl.log2(one)) * LN2, float("-inf")), mask=inside)
    result = (acc * tl.where(some, alpha / one, 0.0)[:, None]).to(memory.out.dtype.element_ty)
    tl.store(memory.out + at[:, None] * CASE.D + d[None, :], result, mask=inside[:, None] & (d < CASE.D)[None, :])

"""Decode attention in Triton: the live keys are cut into pieces, and the last program to finish one of an owner adds them up.

An owner is one row of the batch, one key head and one block of query rows: all query heads of the key head, times the new tokens,
are the rows of one tile, so every key is read once. Lengths are read on the device, so a captured graph stays right as they grow,
and rows of very different lengths are cut finer than equal ones; what is too many for the programs of the grid waits in a queue.
Scores are kept in base 2.
"""

# ruff: noqa: E741  (l, the sum of weights, is the design's name)
# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)
EVEN = tl.constexpr(0.95)  # rows whose mean length is this much of the longest are as good as equal


@triton.jit(do_not_specialize=["scale", "window", "batch", "n_splits", "uneven_splits", "split_keys", "capacity", "n_kv_heads",
                               "table_b"])  # fmt: skip
def decode_kernel(
    q, k_cache, v_cache, seq_lens, page_table, k_new, v_new, sink, k_scale, v_scale,
    out, lse, partial_acc, partial_ml, arrived,
    scale, window, capacity, n_kv_heads, batch, n_splits, uneven_splits, split_keys,
    q_b, q_h, q_a, q_d, k_o, k_h, k_s, k_d, v_o, v_h, v_s, v_d, kn_b, kn_h, kn_a, kn_d, vn_b, vn_h, vn_a, vn_d, table_b,
    D: tl.constexpr, S_ACTIVE: tl.constexpr, ROWS: tl.constexpr, M_BLOCKS: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMBINED: tl.constexpr, COMBINE_ROWS: tl.constexpr,
    PAGE_LEN: tl.constexpr, RING: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SINK: tl.constexpr, HAS_NEW: tl.constexpr,
    HAS_K_SCALE: tl.constexpr, HAS_V_SCALE: tl.constexpr, PRECISION: tl.constexpr, PRODUCTS: tl.constexpr,
    FIXED: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Every owner's keys in n_splits pieces, or in uneven_splits, if that is more and the rows are not equal; owner × split,
    flattened. Pieces have split_keys keys when FIXED, otherwise at least so many. Program p begins with piece p; whoever is done
    takes the first that no program begins with and nobody has taken. The grid has a program for each of n_splits, at least, so
    equal rows need no queue."""
    owners_of_row = n_kv_heads * M_BLOCKS
    if uneven_splits > n_splits:
        rows = tl.arange(0, BLOCK_B)
        lengths = tl.load(seq_lens + rows, mask=rows < batch, other=0)
        _, lows, highs = keys_of(lengths, window, capacity, S_ACTIVE, RING, HAS_WINDOW, HAS_NEW)
        counts = tl.where(rows < batch, highs - lows, 0).to(tl.float32)
        if tl.sum(counts, 0) < tl.max(counts, 0) * batch * EVEN:
            n_splits = uneven_splits
    n_owners = batch * owners_of_row
    total = n_owners * n_splits
    which = tl.program_id(0)
    if total <= tl.num_programs(0):
        if which < total:
            do_piece(
                q, k_cache, v_cache, seq_lens, page_table, k_new, v_new, sink, k_scale, v_scale,
                out, lse, partial_acc, partial_ml, arrived, scale, window, capacity, n_kv_heads, split_keys,
                q_b, q_h, q_a, q_d, k_o, k_h, k_s, k_d, v_o, v_h, v_s, v_d, kn_b, kn_h, kn_a, kn_d, vn_b, vn_h, vn_a, vn_d,
                table_b, which // n_splits, which % n_splits, n_splits,
                D, S_ACTIVE, ROWS, M_BLOCKS, BLOCK_D, BLOCK_M, BLOCK_N, COMBINED, COMBINE_ROWS, PAGE_LEN, RING,
                HAS_WINDOW, HAS_SINK, HAS_NEW, HAS_K_SCALE, HAS_V_SCALE, PRECISION, PRODUCTS, FIXED,
            )  # fmt: skip
    else:
        while which < total:
            do_piece(
                q, k_cache, v_cache, seq_lens, page_table, k_new, v_new, sink, k_scale, v_scale,
                out, lse, partial_acc, partial_ml, arrived, scale, window, capacity, n_kv_heads, split_keys,
                q_b, q_h, q_a, q_d, k_o, k_h, k_s, k_d, v_o, v_h, v_s, v_d, kn_b, kn_h, kn_a, kn_d, vn_b, vn_h, vn_a, vn_d,
                table_b, which // n_splits, which % n_splits, n_splits,
                D, S_ACTIVE, ROWS, M_BLOCKS, BLOCK_D, BLOCK_M, BLOCK_N, COMBINED, COMBINE_ROWS, PAGE_LEN, RING,
                HAS_WINDOW, HAS_SINK, HAS_NEW, HAS_K_SCALE, HAS_V_SCALE, PRECISION, PRODUCTS, FIXED,
            )  # fmt: skip
            taken = tl.atomic_add(arrived + n_owners, 1, sem="relaxed")
            if taken == total - 1:  # each piece is followed by one question, and this was the last
                tl.store(arrived + n_owners, 0)
            which = tl.num_programs(0) + taken


@triton.jit
def keys_of(
    length, window, capacity, S_ACTIVE: tl.constexpr, RING: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_NEW: tl.constexpr
):
    """What to read of the cache for rows of these lengths: the lengths, held to what a row can have, and [low, high)."""
    if not RING:
        length = tl.minimum(length, capacity)
    length = tl.maximum(length, 0)
    low, high = length * 0, length
    if HAS_NEW:
        high = tl.maximum(length - S_ACTIVE, 0)
    if HAS_WINDOW:
        low = tl.minimum(tl.maximum(length - S_ACTIVE - window + 1, 0), high)
    return length, low, high


@triton.jit
def do_piece(
    q, k_cache, v_cache, seq_lens, page_table, k_new, v_new, sink, k_scale, v_scale,
    out, lse, partial_acc, partial_ml, arrived, scale, window, capacity, n_kv_heads, split_keys,
    q_b, q_h, q_a, q_d, k_o, k_h, k_s, k_d, v_o, v_h, v_s, v_d, kn_b, kn_h, kn_a, kn_d, vn_b, vn_h, vn_a, vn_d, table_b,
    owner, piece, n_splits,
    D: tl.constexpr, S_ACTIVE: tl.constexpr, ROWS: tl.constexpr, M_BLOCKS: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMBINED: tl.constexpr, COMBINE_ROWS: tl.constexpr,
    PAGE_LEN: tl.constexpr, RING: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SINK: tl.constexpr, HAS_NEW: tl.constexpr,
    HAS_K_SCALE: tl.constexpr, HAS_V_SCALE: tl.constexpr, PRECISION: tl.constexpr, PRODUCTS: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    """Piece `piece` of the n_splits of an owner, if its row has so many; the last to come adds them up.

    Strides: of q and the new keys (batch, head, token, d); of the caches (row or page, head, slot, d).
    """
    owners_of_row = n_kv_heads * M_BLOCKS
    b, owner_of_row = (owner // owners_of_row).to(tl.int64), owner % owners_of_row
    length, low, high = keys_of(tl.load(seq_lens + b), window, capacity, S_ACTIVE, RING, HAS_WINDOW, HAS_NEW)
    share = split_keys
    if not FIXED:
        share = tl.maximum((tl.cdiv(high - low, n_splits) + 15) // 16 * 16, split_keys)
    n_pieces = tl.minimum(tl.maximum(tl.cdiv(high - low, share), 1), n_splits)
    if piece < n_pieces:
        begin = low + piece * share
        end = tl.minimum(begin + share, high)
        first_partial = owner.to(tl.int64) * n_splits
        block = owner_of_row % M_BLOCKS
        h = (owner_of_row // M_BLOCKS).to(tl.int64)
        first = length - S_ACTIVE  # the position of query 0
        # Row r of the tile is query head r // S_ACTIVE of this key head, new token r % S_ACTIVE.
        r = block * BLOCK_M + tl.arange(0, BLOCK_M)
        d = tl.arange(0, BLOCK_D)
        in_d = d < D
        head = h * (ROWS // S_ACTIVE) + r // S_ACTIVE
        queries = q + b * q_b + head * q_h + r % S_ACTIVE * q_a
        q_tile = tl.load(queries[:, None] + d[None, :] * q_d, mask=(r < ROWS)[:, None] & in_d[None, :], other=0.0)
        at = first + r % S_ACTIVE  # the position of each query
        factor = scale * LOG2_E
        if HAS_K_SCALE:
            factor *= tl.load(k_scale + h)

        m = tl.full([BLOCK_M], float("-inf"), tl.float32)
        l = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        keys, values = k_cache + h * k_h, v_cache + h * v_h
        for start in range(begin, end, BLOCK_N):
            position = start + tl.arange(0, BLOCK_N)
            live = position < end
            where, slot = locate(position, live, b, page_table + b * table_b, capacity, PAGE_LEN, RING)
            k_row, v_row = where * k_o + slot * k_s, where * v_o + slot * v_s
            inside = live[:, None] & in_d[None, :]
            # What is beyond the end is never read: a NaN there would survive a weight of zero.
            k_tile = tl.load(keys + k_row[:, None] + d[None, :] * k_d, mask=inside, other=0.0)
            v_tile = tl.load(values + v_row[:, None] + d[None, :] * v_d, mask=inside, other=0.0)
            seen = live[None, :] & (position[None, :] <= at[:, None])
            if HAS_WINDOW:
                seen = seen & (position[None, :] > at[:, None] - window)
            m, l, acc = attend(q_tile, k_tile, v_tile, seen, factor, m, l, acc, PRECISION, PRODUCTS)

        if HAS_NEW:
            if piece == n_pieces - 1:
                a = tl.arange(0, 16)
                position = first + a
                live = (a < S_ACTIVE) & (position >= 0)
                inside = live[:, None] & in_d[None, :]
                k_tile = tl.load(k_new + b * kn_b + h * kn_h + a[:, None] * kn_a + d[None, :] * kn_d, mask=inside, other=0.0)
                v_tile = tl.load(v_new + b * vn_b + h * vn_h + a[:, None] * vn_a + d[None, :] * vn_d, mask=inside, other=0.0)
                k_tile = as_stored(k_tile, k_scale + h, HAS_K_SCALE, k_cache.dtype.element_ty)
                v_tile = as_stored(v_tile, v_scale + h, HAS_V_SCALE, v_cache.dtype.element_ty)
                where, slot = locate(position, live, b, page_table + b * table_b, capacity, PAGE_LEN, RING)
                k_row, v_row = where * k_o + slot * k_s, where * v_o + slot * v_s
                if block == 0:
                    tl.store(keys + k_row[:, None] + d[None, :] * k_d, k_tile, mask=inside)
                    tl.store(values + v_row[:, None] + d[None, :] * v_d, v_tile, mask=inside)
                seen = live[None, :] & (position[None, :] <= at[:, None])
                if HAS_WINDOW:
                    seen = seen & (position[None, :] > at[:, None] - window)
                m, l, acc = attend(q_tile, k_tile, v_tile, seen, factor, m, l, acc, PRECISION, PRODUCTS)

        if HAS_V_SCALE:
            acc *= tl.load(v_scale + h)

        if n_pieces == 1:
            finish(m, l, acc, r, d, in_d, b, h, sink, out, lse, n_kv_heads, D, S_ACTIVE, ROWS, HAS_SINK)
        else:
            # Partial results: acc [rows of the block, D]; m and l [2, rows of the block].
            row = tl.arange(0, BLOCK_M)
            mine = first_partial + piece
            tl.store(partial_ml + (mine * 2) * BLOCK_M + row, m)
            tl.store(partial_ml + (mine * 2 + 1) * BLOCK_M + row, l)
            place = (mine * BLOCK_M + row[:, None]) * D + d[None, :]
            tl.store(partial_acc + place, acc, mask=(r < ROWS)[:, None] & in_d[None, :])
            tl.debug_barrier()  # every thread has stored before one of them says so
            if tl.atomic_add(arrived + owner, 1, sem="acq_rel", scope="gpu") == n_pieces - 1:
                combine(
                    partial_acc, partial_ml, first_partial, n_pieces, block, b, h, sink, out, lse,
                    n_kv_heads, D, S_ACTIVE, ROWS, HAS_SINK, BLOCK_M, BLOCK_D, COMBINED, COMBINE_ROWS,
                )  # fmt: skip
                tl.store(arrived + owner, 0)  # as it was, for the next launch


@triton.jit
def locate(position, live, b, pages, capacity, PAGE_LEN: tl.constexpr, RING: tl.constexpr):
    """Where positions [n] live: the row of the cache, or the pages [n], and the slots [n]; in 64 bits, as offsets must be."""
    if PAGE_LEN > 0:
        return tl.load(pages + position // PAGE_LEN, mask=live, other=0).to(tl.int64), (position % PAGE_LEN).to(tl.int64)
    elif RING:
        return b, (position % capacity).to(tl.int64)
    else:
        return b, position.to(tl.int64)


@triton.jit
def attend(q_tile, k_tile, v_tile, seen, factor, m, l, acc, PRECISION: tl.constexpr, PRODUCTS: tl.constexpr):
    """One tile of keys: q [M, D], k and v [N, D], seen [M, N]; the running m, l [M] and acc [M, D]."""
    k_tile, v_tile = k_tile.to(q_tile.dtype).to(PRODUCTS), v_tile.to(q_tile.dtype).to(PRODUCTS)
    scores = tl.dot(q_tile.to(PRODUCTS), tl.trans(k_tile), input_precision=PRECISION)
    m_new = tl.maximum(m, tl.max(tl.where(seen, scores * factor, float("-inf")), 1))
    safe = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf - -inf would be NaN
    # One rounding, as a fused multiply and add: the difference is exact to its own size, however large the scores are.
    p = tl.exp2(tl.where(seen, scores * factor - safe[:, None], float("-inf")))
    alpha = tl.exp2(m - safe)
    l = l * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None]
    acc = tl.dot(p.to(q_tile.dtype).to(PRODUCTS), v_tile, acc, input_precision=PRECISION)
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
def combine(
    partial_acc, partial_ml, first_partial, n_pieces, block, b, h, sink, out, lse, n_kv_heads,
    D: tl.constexpr, S_ACTIVE: tl.constexpr, ROWS: tl.constexpr, HAS_SINK: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr, COMBINED: tl.constexpr, COMBINE_ROWS: tl.constexpr,
):  # fmt: skip
    """The pieces of one owner, in their order, whoever came first: COMBINED of them at once, of COMBINE_ROWS rows."""
    d = tl.arange(0, BLOCK_D)
    in_d = d < D
    for first_row in range(0, tl.minimum(BLOCK_M, ROWS - block * BLOCK_M), COMBINE_ROWS):
        row = first_row + tl.arange(0, COMBINE_ROWS)
        r = block * BLOCK_M + row
        m = tl.full([COMBINE_ROWS], float("-inf"), tl.float32)
        l = tl.zeros([COMBINE_ROWS], tl.float32)
        acc = tl.zeros([COMBINE_ROWS, BLOCK_D], tl.float32)
        for start in range(0, n_pieces, COMBINED):
            i = start + tl.arange(0, COMBINED)
            there = (i < n_pieces)[:, None] & (r < ROWS)[None, :]
            # .cg: written by other multiprocessors, whose stores this one's first-level cache has not seen.
            place = ((first_partial + i)[:, None] * BLOCK_M + row[None, :])[:, :, None] * D + d[None, None, :]
            part = tl.load(partial_acc + place, mask=there[:, :, None] & in_d[None, None, :], other=0.0, cache_modifier=".cg")
            ml = partial_ml + (first_partial + i)[:, None] * 2 * BLOCK_M + row[None, :]
            m_i = tl.load(ml, mask=there, other=float("-inf"), cache_modifier=".cg")
            l_i = tl.load(ml + BLOCK_M, mask=there, other=0.0, cache_modifier=".cg")
            m_new = tl.maximum(m, tl.max(m_i, 0))
            safe = tl.where(m_new == float("-inf"), 0.0, m_new)
            weight, alpha = tl.exp2(m_i - safe[None, :]), tl.exp2(m - safe)
            l = l * alpha + tl.sum(weight * l_i, 0)
            acc = acc * alpha[:, None] + tl.sum(weight[:, :, None] * part, 0)
            m = m_new
        finish(m, l, acc, r, d, in_d, b, h, sink, out, lse, n_kv_heads, D, S_ACTIVE, ROWS, HAS_SINK)


@triton.jit
def with_sink(m, l, acc, head, inside, sink, HAS_SINK: tl.constexpr):
    """The sink joins, once: acc / l, and lse; all of one shape. Nothing seen gives 0 and -inf."""
    if HAS_SINK:
        logit = tl.load(sink + head, mask=inside, other=0.0).to(tl.float32) * LOG2_E
        m_new = tl.maximum(m, logit)
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp2(m - safe)
        l = l * alpha + tl.exp2(logit - safe)
        acc = acc * alpha
        m = m_new
    some = l != 0.0  # a NaN among the live keys must show
    one = tl.where(some, l, 1.0)
    return tl.where(some, acc / one, 0.0), tl.where(some, (m + tl.log2(one)) * LN2, float("-inf"))


@triton.jit
def finish(
    m, l, acc, r, d, in_d, b, h, sink, out, lse, n_kv_heads,
    D: tl.constexpr, S_ACTIVE: tl.constexpr, ROWS: tl.constexpr, HAS_SINK: tl.constexpr,
):  # fmt: skip
    """An owner in one piece: out and lse, both contiguous [B, H_q, S_ACTIVE, ..], from m, l [M] and acc [M, D]."""
    head = h * (ROWS // S_ACTIVE) + r // S_ACTIVE
    weight, total = with_sink(m, l, tl.full(m.shape, 1.0, tl.float32), head, r < ROWS, sink, HAS_SINK)  # 1 / l
    place = b * n_kv_heads * ROWS + h * ROWS + r
    tl.store(lse + place, total, mask=r < ROWS)
    result = (acc * weight[:, None]).to(out.dtype.element_ty)
    tl.store(out + place[:, None] * D + d[None, :], result, mask=(r < ROWS)[:, None] & in_d[None, :])

"""Decode attention in Triton: the live keys are cut into pieces, and the last program to finish one of an owner adds them up.

An owner is one row of the batch, one key head and one block of query rows: all query heads of the key head, times the new tokens,
are the rows of one tile, so every key is read once. Lengths are read on the device, so a captured graph stays right as they grow.
Rows of one length are cut as the host says, a program for each piece. Where rows differ, every program works out for itself the
same cut of them all into nearly equal pieces. Scores are kept in base 2.
"""

# ruff: noqa: E741  (l, the sum of weights, is the design's name)
# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

LN2 = tl.constexpr(0.6931471805599453)
LOG2_E = tl.constexpr(1.4426950408889634)
EVEN = tl.constexpr(0.95)  # rows whose mean length is this much of the longest are as good as equal


# Not so n_splits: of one piece the compiler then knows that nothing has to be divided or added up.
@triton.jit(do_not_specialize=["scale", "window", "capacity", "batch", "uneven_pieces", "split_keys", "table_b"])
def decode_kernel(
    q, k_cache, v_cache, seq_lens, page_table, k_new, v_new, sink, k_scale, v_scale,
    out, lse, partial_acc, partial_ml, arrived,
    scale, window, capacity, batch, n_splits, uneven_pieces, split_keys,
    q_b, q_h, q_a, q_d, k_o, k_h, k_s, k_d, v_o, v_h, v_s, v_d, kn_b, kn_h, kn_a, kn_d, vn_b, vn_h, vn_a, vn_d, table_b,
    H_KV: tl.constexpr, D: tl.constexpr, S_ACTIVE: tl.constexpr, ROWS: tl.constexpr, M_BLOCKS: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMBINE_ROWS: tl.constexpr, COMBINE_STAGES: tl.constexpr,
    PLAIN: tl.constexpr, PAGE_LEN: tl.constexpr, RING: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SINK: tl.constexpr, HAS_NEW: tl.constexpr,
    HAS_K_SCALE: tl.constexpr, HAS_V_SCALE: tl.constexpr, PRECISION: tl.constexpr, PRODUCTS: tl.constexpr,
    FIXED: tl.constexpr, BLOCK_B: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Every owner's keys in n_splits pieces, a program for each: of split_keys keys when FIXED, otherwise of so many at least. If
    rows differ, and BLOCK_B is not 0, at most uneven_pieces nearly equal ones of all owners: program p of n does p, p + n, .."""
    memory = (k_cache, v_cache, page_table, k_new, v_new, sink, k_scale, v_scale, out, lse, partial_acc, partial_ml, arrived)
    strides = (k_o, k_h, k_s, k_d, v_o, v_h, v_s, v_d, kn_b, kn_h, kn_a, kn_d, vn_b, vn_h, vn_a, vn_d, table_b)
    if EARLY:  # launched while the kernel before may still be at work: what it writes is there from here on
        gdc_wait()
    owner, piece, n_pieces = tl.program_id(0), tl.program_id(1), n_splits
    owners_of_row = H_KV * M_BLOCKS
    # Everything is asked for before any answer is looked at: the first keys wait for one trip to memory, not for three.
    if BLOCK_B > 0:
        rows = tl.arange(0, BLOCK_B)
        lengths = tl.load(seq_lens + rows, mask=rows < batch, other=0, eviction_policy="evict_last")
    length, q_tile = read_owner(owner, q, seq_lens, q_b, q_h, q_a, q_d,
                                H_KV, D, S_ACTIVE, ROWS, M_BLOCKS, BLOCK_D, BLOCK_M)  # fmt: skip
    even = True
    if BLOCK_B > 0:
        _, lows, highs = keys_of(lengths, window, capacity, S_ACTIVE, RING, HAS_WINDOW, HAS_NEW)
        counts = tl.where(rows < batch, highs - lows, 0)
        _, low, high = keys_of(length, window, capacity, S_ACTIVE, RING, HAS_WINDOW, HAS_NEW)
        longest = tl.maximum(tl.max(counts, 0), high - low)  # one of these is the other; but so it is asked for now, not later
        even = tl.sum(counts, 0).to(tl.float32) >= longest.to(tl.float32) * batch * EVEN
    if even:
        do_piece(
            length, q_tile, owner, owner * n_splits, piece, n_pieces, memory, strides, scale, window, capacity, split_keys,
            H_KV, D, S_ACTIVE, ROWS, M_BLOCKS, BLOCK_D, BLOCK_M, BLOCK_N, COMBINE_ROWS, COMBINE_STAGES, PLAIN, PAGE_LEN, RING,
            HAS_WINDOW, HAS_SINK, HAS_NEW, HAS_K_SCALE, HAS_V_SCALE, PRECISION, PRODUCTS, FIXED,
        )  # fmt: skip
    elif BLOCK_B > 0:
        pieces = pieces_of(counts, rows < batch, share_of(counts, rows < batch, uneven_pieces // owners_of_row, split_keys))
        total = tl.sum(pieces, 0) * owners_of_row
        for which in range(piece * tl.num_programs(0) + owner, total, tl.num_programs(0) * n_splits):
            # Always so. But of what comes out of a sum the compiler knows nothing, not even that it knows nothing, and would not
            # fetch keys ahead; of what may come from elsewhere too it does.
            if which < total:
                owner, piece, n_pieces = find(which, pieces, owners_of_row, rows)
                length, q_tile = read_owner(owner, q, seq_lens, q_b, q_h, q_a, q_d,
                                            H_KV, D, S_ACTIVE, ROWS, M_BLOCKS, BLOCK_D, BLOCK_M)  # fmt: skip
            do_piece(
                length, q_tile, owner, which - piece, piece, n_pieces, memory, strides, scale, window, capacity, split_keys,
                H_KV, D, S_ACTIVE, ROWS, M_BLOCKS, BLOCK_D, BLOCK_M, BLOCK_N, COMBINE_ROWS, COMBINE_STAGES, PLAIN, PAGE_LEN, RING,
                HAS_WINDOW, HAS_SINK, HAS_NEW, HAS_K_SCALE, HAS_V_SCALE, PRECISION, PRODUCTS, FIXED,
            )  # fmt: skip


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
    """The smallest share, nearly, that cuts rows of these counts [n] into at most so many pieces; `least` at least."""
    low = tl.maximum(tl.cdiv(tl.sum(counts, 0), most_pieces), least)
    high = tl.maximum(tl.max(counts, 0), low)
    close = high // 16
    while high - low > close:
        middle = (low + high) // 2
        fits = tl.sum(pieces_of(counts, there, middle), 0) <= most_pieces
        low, high = tl.where(fits, low, middle), tl.where(fits, middle, high)
    return high


@triton.jit
def read_owner(
    owner, q, seq_lens, q_b, q_h, q_a, q_d, H_KV: tl.constexpr, D: tl.constexpr, S_ACTIVE: tl.constexpr, ROWS: tl.constexpr,
    M_BLOCKS: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The length of an owner's row, and its queries [BLOCK_M, BLOCK_D]."""
    b, h, block = place_of(owner, H_KV, M_BLOCKS)
    length = tl.load(seq_lens + b, eviction_policy="evict_last")  # keys that pass through the cache would push it out
    r, d = block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    queries = q + b * q_b + (h * (ROWS // S_ACTIVE) + r // S_ACTIVE) * q_h + r % S_ACTIVE * q_a
    return length, tl.load(queries[:, None] + d[None, :] * q_d, mask=(r < ROWS)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def place_of(owner, H_KV: tl.constexpr, M_BLOCKS: tl.constexpr):
    """The row of the batch, the key head and the block of query rows of an owner; the first two for offsets, in 64 bits."""
    owner_of_row = owner % (H_KV * M_BLOCKS)
    return (owner // (H_KV * M_BLOCKS)).to(tl.int64), (owner_of_row // M_BLOCKS).to(tl.int64), owner_of_row % M_BLOCKS


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
    length, q_tile, owner, first_partial, piece, n_pieces, memory, strides, scale, window, capacity, split_keys,
    H_KV: tl.constexpr, D: tl.constexpr, S_ACTIVE: tl.constexpr, ROWS: tl.constexpr, M_BLOCKS: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, COMBINE_ROWS: tl.constexpr, COMBINE_STAGES: tl.constexpr,
    PLAIN: tl.constexpr, PAGE_LEN: tl.constexpr, RING: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SINK: tl.constexpr, HAS_NEW: tl.constexpr,
    HAS_K_SCALE: tl.constexpr, HAS_V_SCALE: tl.constexpr, PRECISION: tl.constexpr, PRODUCTS: tl.constexpr, FIXED: tl.constexpr,
):  # fmt: skip
    """Piece `piece` of the n_pieces of an owner, if its keys are enough for so many; the last to come adds them up.

    Strides: of the caches (row or page, head, slot, d); of the new keys and values (batch, head, token, d).
    """
    k_cache, v_cache, page_table, k_new, v_new, sink, k_scale, v_scale, out, lse, partial_acc, partial_ml, arrived = memory
    k_o, k_h, k_s, k_d, v_o, v_h, v_s, v_d, kn_b, kn_h, kn_a, kn_d, vn_b, vn_h, vn_a, vn_d, table_b = strides
    b, h, block = place_of(owner, H_KV, M_BLOCKS)
    length, low, high = keys_of(length, window, capacity, S_ACTIVE, RING, HAS_WINDOW, HAS_NEW)
    share = split_keys
    if not FIXED:
        share = tl.maximum((tl.cdiv(high - low, n_pieces) + BLOCK_N - 1) // BLOCK_N * BLOCK_N, split_keys)
    if piece == 0 or piece * share < high - low:
        begin = low + piece * share
        end = tl.minimum(begin + share, high)
        first = length - S_ACTIVE  # the position of query 0
        # Row r of the tile is query head r // S_ACTIVE of this key head, new token r % S_ACTIVE.
        r = block * BLOCK_M + tl.arange(0, BLOCK_M)
        d = tl.arange(0, BLOCK_D)
        in_d = d < D
        at = first + r % S_ACTIVE  # the position of each query
        factor = scale * LOG2_E
        if HAS_K_SCALE:
            factor *= tl.load(k_scale + h)

        m = tl.full([BLOCK_M], float("-inf"), tl.float32)
        l = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        keys, values = k_cache + h * k_h, v_cache + h * v_h
        n = tl.arange(0, BLOCK_N)
        if PLAIN:  # one place moves on, and the others are always as far from it
            k_first, v_first = keys + (b * k_o + begin.to(tl.int64) * k_s), values + (b * v_o + begin.to(tl.int64) * v_s)
            k_places, v_places = n[:, None] * k_s + d[None, :] * k_d, n[:, None] * v_s + d[None, :] * v_d
        for start in range(begin, end, BLOCK_N):
            position = start + n
            live = position < end
            inside = live[:, None] & in_d[None, :]
            # What is beyond the end is never read: a NaN there would survive a weight of zero.
            if PLAIN:
                k_tile = tl.load(k_first + k_places, mask=inside, other=0.0)
                v_tile = tl.load(v_first + v_places, mask=inside, other=0.0)
                k_first += BLOCK_N * k_s
                v_first += BLOCK_N * v_s
            else:
                where, slot = locate(position, live, b, page_table + b * table_b, capacity, PAGE_LEN, RING)
                k_row, v_row = where * k_o + slot * k_s, where * v_o + slot * v_s
                k_tile = tl.load(keys + k_row[:, None] + d[None, :] * k_d, mask=inside, other=0.0)
                v_tile = tl.load(values + v_row[:, None] + d[None, :] * v_d, mask=inside, other=0.0)
            seen = live[None, :]
            if S_ACTIVE > 1:
                seen = seen & (position[None, :] <= at[:, None])
            if HAS_WINDOW:
                seen = seen & (position[None, :] > at[:, None] - window)
            m, l, acc = attend(q_tile, k_tile, v_tile, seen, factor, m, l, acc, PRECISION, PRODUCTS)

        n_pieces = tl.minimum(tl.maximum(tl.cdiv(high - low, share), 1), n_pieces)  # a division, after the keys are asked for
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
            finish(m, l, acc, r, d, b, h, sink, out, lse, H_KV, D, S_ACTIVE, ROWS, HAS_SINK)
        else:
            # Partial results: m and l [2, rows of the block], for their sum would lose digits of large scores; acc [rows, D].
            row = tl.arange(0, BLOCK_M)
            mine = (first_partial + piece).to(tl.int64)
            tl.store(partial_ml + mine * 2 * BLOCK_M + row, m)
            tl.store(partial_ml + (mine * 2 + 1) * BLOCK_M + row, l)
            place = (mine * BLOCK_M + row[:, None]) * D + d[None, :]
            tl.store(partial_acc + place, acc, mask=(r < ROWS)[:, None] & in_d[None, :])
            tl.debug_barrier()  # every thread has stored before one of them says so
            if tl.atomic_add(arrived + owner, 1, sem="acq_rel", scope="gpu") == n_pieces - 1:
                combine(
                    partial_acc, partial_ml, first_partial, n_pieces, block, b, h, sink, out, lse,
                    H_KV, D, S_ACTIVE, ROWS, HAS_SINK, BLOCK_M, BLOCK_D, COMBINE_ROWS, COMBINE_STAGES,
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
    partial_acc, partial_ml, first_partial, n_pieces, block, b, h, sink, out, lse,
    H_KV: tl.constexpr, D: tl.constexpr, S_ACTIVE: tl.constexpr, ROWS: tl.constexpr, HAS_SINK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, COMBINE_ROWS: tl.constexpr, COMBINE_STAGES: tl.constexpr,
):  # fmt: skip
    """The pieces of one owner are added up in their order, whoever came first."""
    row, d = tl.arange(0, COMBINE_ROWS), tl.arange(0, BLOCK_D)
    r = block * BLOCK_M + row
    inside = (r < ROWS)[:, None] & (d < D)[None, :]
    m = tl.full([COMBINE_ROWS], float("-inf"), tl.float32)
    l = tl.zeros([COMBINE_ROWS], tl.float32)
    acc = tl.zeros([COMBINE_ROWS, BLOCK_D], tl.float32)
    first = first_partial.to(tl.int64) * BLOCK_M
    ml, parts = partial_ml + first * 2, partial_acc + first * D
    # One at a time, the next ones on their way: all at once would be fewer steps, but many more instructions, and those come from
    # memory too when a program runs them only once.
    for _ in tl.range(0, n_pieces, num_stages=COMBINE_STAGES):
        m_i, l_i = tl.load(ml + row), tl.load(ml + BLOCK_M + row)
        part = tl.load(parts + row[:, None] * D + d[None, :], mask=inside, other=0.0)
        m_new = tl.maximum(m, m_i)
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        weight, alpha = tl.exp2(m_i - safe), tl.exp2(m - safe)
        l = l * alpha + weight * l_i
        acc = acc * alpha[:, None] + weight[:, None] * part
        m = m_new
        ml += 2 * BLOCK_M
        parts += BLOCK_M * D
    finish(m, l, acc, r, d, b, h, sink, out, lse, H_KV, D, S_ACTIVE, ROWS, HAS_SINK)


@triton.jit
def finish(
    m, l, acc, r, d, b, h, sink, out, lse,
    H_KV: tl.constexpr, D: tl.constexpr, S_ACTIVE: tl.constexpr, ROWS: tl.constexpr, HAS_SINK: tl.constexpr,
):  # fmt: skip
    """out and lse, both contiguous [B, H_q, S_ACTIVE, ..], from m, l [M] and acc [M, D]; the sink joins, once.
    Nothing seen gives 0 and -inf."""
    inside, alpha = r < ROWS, tl.full(m.shape, 1.0, tl.float32)
    if HAS_SINK:
        head = h * (ROWS // S_ACTIVE) + r // S_ACTIVE
        logit = tl.load(sink + head, mask=inside, other=0.0).to(tl.float32) * LOG2_E
        m_new = tl.maximum(m, logit)
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp2(m - safe)
        l = l * alpha + tl.exp2(logit - safe)
        m = m_new
    some = l != 0.0  # a NaN among the live keys must show
    one = tl.where(some, l, 1.0)
    place = b * H_KV * ROWS + h * ROWS + r
    tl.store(lse + place, tl.where(some, (m + tl.log2(one)) * LN2, float("-inf")), mask=inside)
    result = (acc * tl.where(some, alpha / one, 0.0)[:, None]).to(out.dtype.element_ty)
    tl.store(out + place[:, None] * D + d[None, :], result, mask=inside[:, None] & (d < D)[None, :])

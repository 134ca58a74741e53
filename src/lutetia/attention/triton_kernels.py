"""Decode attention in Triton: the live keys are cut into pieces, and the program that finishes an owner's last one adds them up.

An owner is one row of the batch, one key head and one block of query rows: all query heads of the key head, times the new tokens,
are the rows of one tile, so every key is read once. Lengths are read on the device, so a captured graph stays correct as they
grow. Rows of equal length are cut as the host says, one program per piece. Where lengths differ, the tiles of all owners stand in
one line, row after row, which is cut into equal shares: every program reads as many keys. Scores are kept in base 2.
"""

# ruff: noqa: E741  (l, the sum of weights, is the design's name)
# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from lutetia.attention.triton_tiles import (
    TileNumbers,
    as_stored,
    attend,
    finish,
    join,
    limit_of,
    load_extra,
    locate,
    pages_of,
    place_of,
    query_rows,
    read_keys,
    turn,
)

EVEN = tl.constexpr(0.95)  # rows whose mean length is this much of the longest are as good as equal
UNSPECIALISED = [
    "scale", "window", "capacity", "batch", "sharers", "split_keys", "table_b", "softcap", "prefix", "n_priors",
    "n_turns",
]  # fmt: skip


# Not so n_splits: of one piece the compiler then knows that nothing has to be divided or added up.
@triton.jit(do_not_specialize=UNSPECIALISED)
def decode_kernel(
    memory,
    strides,
    scale,
    window,
    capacity,
    batch,
    n_splits,
    sharers,
    split_keys,
    table_b,
    softcap,
    prefix,
    n_priors,
    n_turns,
    CASE: tl.constexpr,
):
    """Every owner's keys in n_splits pieces, a program for each: of split_keys keys when FIXED, else of at least that many. If
    rows differ, and BLOCK_B is not 0, the first `sharers` programs read the keys of all owners, each an equal share of them."""
    numbers = TileNumbers(scale, window, capacity, split_keys, table_b, softcap, batch, prefix, n_priors, n_turns)
    if CASE.EARLY and not CASE.HAS_PREFIX:  # from here on the previous kernel's writes are visible
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
        task = (owner, owner * n_splits, piece, n_pieces)
        do_piece(length, first_live, q_tile, task, None, memory, strides, numbers, CASE)
    elif CASE.BLOCK_B > 0:
        # An owner without keys has a tile, too, as something must write its result.
        tiles = tl.where(rows < batch, tl.maximum(tl.cdiv(counts, CASE.BLOCK_N), 1), 0)
        total = tl.sum(tiles, 0) * owners_of_row
        share = tl.maximum(tl.cdiv(total, sharers), tl.cdiv(split_keys, CASE.BLOCK_N))
        program = piece * tl.num_programs(0) + owner
        tile, skipped, of_owner = program * share, 0, total
        end = tl.minimum(tile + share, total)
        while tile < end:
            # Always so. But of what comes out of a sum the compiler knows nothing, not even that it knows nothing, and would not
            # fetch keys ahead; of what may come from elsewhere too it does.
            if tile < total:
                owner, skipped, of_owner = find(tile, tiles, owners_of_row, rows)
                length, first_live, q_tile = read_owner(owner, memory, strides, CASE)
            taken = tl.minimum(of_owner - skipped, end - tile)
            first, last = (
                (tile - skipped) // share,
                (tile - skipped + of_owner - 1) // share,
            )  # the programs that share this owner
            # No two pieces have the same sum of owner and program, and those of one owner follow each other.
            task = (owner, owner + first, program - first, last - first + 1)
            stretch = (skipped * CASE.BLOCK_N, taken * CASE.BLOCK_N)
            do_piece(length, first_live, q_tile, task, stretch, memory, strides, numbers, CASE)
            tile += taken


@triton.jit
def find(tile, tiles, owners_of_row, rows):
    """Whose the tile with this number is, where each owner of a row has tiles [n]: the owner, how many of its tiles come before,
    and how many it has."""
    ends = tl.cumsum(tiles, 0) * owners_of_row
    b = tl.sum((ends <= tile).to(tl.int32), 0)
    of_owner = tl.maximum(tl.sum(tl.where(rows == b, tiles, 0), 0), 1)
    before = tile - (tl.sum(tl.where(rows == b, ends, 0), 0) - of_owner * owners_of_row)  # in this row
    return b * owners_of_row + before // of_owner, before % of_owner, of_owner


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
    if CASE.HAS_PREFIX:
        low = tl.minimum(tl.maximum(low, numbers.prefix), high)
    return length, low, high


@triton.jit
def do_piece(length, start_of_row, q_tile, task, stretch, memory, strides, numbers, CASE: tl.constexpr):
    """Piece `piece` of the n_pieces of an owner; the last program to finish adds the pieces up. `stretch`: after how many keys it
    begins, and how many it has; None for equal pieces, of which the last ones may have none and are left out."""
    owner, first_partial, piece, n_pieces = task
    b, h, block = place_of(owner, CASE)
    length, low, high = keys_of(length, start_of_row, numbers, CASE)
    first = length - CASE.S_ACTIVE  # the position of query 0
    if CASE.CAUSAL and CASE.S_ACTIVE > CASE.BLOCK_M:  # keys past the last query of this block are seen by none of it
        every = block * CASE.BLOCK_M + tl.arange(0, CASE.BLOCK_M)
        last = tl.max(tl.where(every < CASE.ROWS, every % CASE.S_ACTIVE, 0), 0)
        high = tl.minimum(high, tl.maximum(first + last + 1, low))
    if stretch is None:
        share = numbers.split_keys
        if not CASE.FIXED:
            even = (tl.cdiv(high - low, n_pieces) + CASE.BLOCK_N - 1) // CASE.BLOCK_N * CASE.BLOCK_N
            share = tl.maximum(even, numbers.split_keys)
        skipped = piece * share
    else:
        skipped, share = stretch
    if stretch is not None or piece == 0 or skipped < high - low:
        begin = low + skipped
        end = tl.minimum(begin + share, high)
        # Row r of the tile is query head r // S_ACTIVE of this key head, new token r % S_ACTIVE.
        r = block * CASE.BLOCK_M + tl.arange(0, CASE.BLOCK_M)
        d = tl.arange(0, CASE.BLOCK_D)
        at = first + r % CASE.S_ACTIVE  # the position of each query
        head, token = h * (CASE.ROWS // CASE.S_ACTIVE) + r // CASE.S_ACTIVE, r % CASE.S_ACTIVE
        places = memory.q + b * strides.q[0] + head * strides.q[1] + token * strides.q[2]
        task_of_rows = (at, first, b * CASE.S_ACTIVE + token, r < CASE.ROWS, h)
        rows = query_rows(q_tile, places, head, task_of_rows, memory, strides, numbers, CASE)
        m = tl.full([CASE.BLOCK_M], float("-inf"), tl.float32)
        l = tl.full([CASE.BLOCK_M], 0.0, tl.float32)
        acc = tl.full([CASE.BLOCK_M, CASE.BLOCK_D], 0.0, tl.float32)
        v_scale = 1.0
        if CASE.HAS_V_SCALE:  # asked for now, it is there when it is used
            v_scale = tl.load(memory.v_scale + h)
        m, l, acc = read_keys((begin, end), (b, h), rows, (m, l, acc), memory, strides, numbers, CASE)

        if stretch is None:
            n_pieces = tl.minimum(tl.maximum(tl.cdiv(high - low, share), 1), n_pieces)  # a division, after the loads are issued
        if CASE.HAS_NEW:
            if piece == n_pieces - 1:
                if CASE.S_ACTIVE <= CASE.NEW:
                    m, l, acc = add_new(0, start_of_row, (b, h, block), rows, (m, l, acc), memory, strides, numbers, CASE)
                else:
                    for new in tl.range(
                        0, CASE.S_ACTIVE, CASE.NEW, num_stages=1
                    ):  # nothing to fetch ahead: what is read is written
                        sums = (m, l, acc)
                        m, l, acc = add_new(new, start_of_row, (b, h, block), rows, sums, memory, strides, numbers, CASE)

        if CASE.HAS_V_SCALE:
            acc *= v_scale

        if n_pieces == 1:
            finish((m, l, acc), r, d, (b, h), memory, numbers, CASE)
        else:
            keep((m, l, acc), first_partial + piece, r, memory, CASE)
            tl.debug_barrier()  # every thread has stored before one of them says so
            if tl.atomic_add(memory.arrived + owner, 1, sem="acq_rel", scope="gpu") == n_pieces - 1:
                combine(first_partial, n_pieces, (b, h, block), memory, numbers, CASE)
                tl.store(memory.arrived + owner, 0)  # as it was, for the next launch


@triton.jit
def keep(sums, place, r, memory, CASE: tl.constexpr):
    """Store a partial result: m and l [2, rows of the block], for their sum would lose digits of large scores; acc [rows, D]."""
    m, l, acc = sums
    row, d, mine = tl.arange(0, CASE.BLOCK_M), tl.arange(0, CASE.BLOCK_D), place.to(tl.int64)
    tl.store(memory.partial_ml + mine * 2 * CASE.BLOCK_M + row, m)
    tl.store(memory.partial_ml + (mine * 2 + 1) * CASE.BLOCK_M + row, l)
    places = (mine * CASE.BLOCK_M + row[:, None]) * CASE.D + d[None, :]
    tl.store(memory.partial_acc + places, acc, mask=(r < CASE.ROWS)[:, None] & (d < CASE.D)[None, :])


@triton.jit
def add_new(new, start_of_row, place, rows, sums, memory, strides, numbers, CASE: tl.constexpr):
    """NEW of the new keys, from number `new` on: they are attended to, and the first block of query rows writes them."""
    b, h, block = place
    k_o, k_h, k_s, k_d = strides.k
    v_o, v_h, v_s, v_d = strides.v
    a, d = new + tl.arange(0, CASE.NEW), tl.arange(0, CASE.BLOCK_D)
    position = rows.first + a
    live = (a < CASE.S_ACTIVE) & (position >= 0)
    inside = live[:, None] & (d < CASE.D)[None, :]
    keys, values = memory.k_cache + h * k_h, memory.v_cache + h * v_h
    kn_b, kn_h, kn_a, kn_d = strides.k_new
    vn_b, vn_h, vn_a, vn_d = strides.v_new
    new_keys = memory.k_new + b * kn_b + h * kn_h + a * kn_a
    new_values = memory.v_new + b * vn_b + h * vn_h + a * vn_a
    k_tile = tl.load(new_keys[:, None] + d[None, :] * kn_d, mask=inside, other=0.0)
    v_tile = tl.load(new_values[:, None] + d[None, :] * vn_d, mask=inside, other=0.0)
    if CASE.TURNED > 0:
        k_tile = turn(k_tile, new_keys, kn_d, tl.where(live, position, -1), memory, numbers, CASE)
    extra = load_extra(new_keys, kn_d, live, CASE)
    k_scale, v_scale = new_scales(k_tile, extra, v_tile, h, memory, CASE)
    dtype: tl.constexpr = memory.k_cache.dtype.element_ty
    k_tile, v_tile = as_stored(k_tile, column(k_scale, CASE), dtype), as_stored(v_tile, column(v_scale, CASE), dtype)
    if CASE.EXTRA > 0:
        extra = as_stored(extra, column(k_scale, CASE), dtype)
    at = tl.maximum(position, 0)
    where, slot = locate(at, pages_of(at, rows.first + CASE.S_ACTIVE, b, memory, numbers, CASE), b, numbers, CASE)
    k_row, v_row = where * k_o + slot * k_s, where * v_o + slot * v_s
    if block == 0:
        tl.store(keys + k_row[:, None] + d[None, :] * k_d, k_tile, mask=inside)
        if not CASE.SHARED:
            tl.store(values + v_row[:, None] + d[None, :] * v_d, v_tile, mask=inside)
        if CASE.EXTRA > 0:
            e = tl.arange(0, CASE.BLOCK_E)
            places = keys + k_row[:, None] + (CASE.D + e)[None, :] * k_d
            tl.store(places, extra, mask=live[:, None] & (e < CASE.EXTRA)[None, :])
        if CASE.TOKEN_SCALES:
            ks_o, ks_h, ks_s = strides.k_scale
            vs_o, vs_h, vs_s = strides.v_scale
            tl.store(memory.k_scale + where * ks_o + slot * ks_s + h * ks_h, k_scale, mask=live)
            tl.store(memory.v_scale + where * vs_o + slot * vs_s + h * vs_h, v_scale, mask=live)
    counts = live
    if CASE.HAS_STARTS:
        counts = live & (position >= start_of_row)
    return attend((k_tile, extra, v_tile), (k_scale, v_scale), position, counts, rows, sums, numbers, CASE)


@triton.jit
def new_scales(k_tile, extra, v_tile, h, memory, CASE: tl.constexpr):
    """What new keys and values [n, D] are divided by: a number each, or with TOKEN_SCALES [n]."""
    k_scale, v_scale = 1.0, 1.0
    if CASE.TOKEN_SCALES:
        limit = limit_of(memory.k_cache.dtype.element_ty)
        largest = tl.max(tl.abs(k_tile.to(tl.float32)), 1)
        if CASE.EXTRA > 0:
            largest = tl.maximum(largest, tl.max(tl.abs(extra.to(tl.float32)), 1))
        k_scale = tl.where(largest == 0, 1.0, largest / limit)
        if CASE.SHARED:
            v_scale = k_scale
        else:
            largest = tl.max(tl.abs(v_tile.to(tl.float32)), 1)
            v_scale = tl.where(largest == 0, 1.0, largest / limit)
    if CASE.HAS_K_SCALE:
        k_scale = tl.load(memory.k_scale + h)
    if CASE.HAS_V_SCALE:
        v_scale = tl.load(memory.v_scale + h)
    return k_scale, v_scale


@triton.jit
def column(scale, CASE: tl.constexpr):
    """Scales of n rows as [n, 1]; a single number unchanged."""
    if CASE.TOKEN_SCALES:
        return scale[:, None]
    else:
        return scale


@triton.jit
def combine(first_partial, n_pieces, place, memory, numbers, CASE: tl.constexpr):
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
        m, l, acc = join((m, l, acc), (m_i, l_i, part))
        ml += 2 * CASE.BLOCK_M
        parts += CASE.BLOCK_M * CASE.D
    finish((m, l, acc), r, d, (b, h), memory, numbers, CASE)

"""The prefix that all rows of a batch share, in Triton: each of its keys is read once for the queries of many rows.

A program takes a block of the queries that read one key head, whichever rows they belong to, and a piece of the prefix.
`triton_kernels.finish` merges its result with the rest of each row.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from lutetia.attention.triton_tiles import TileNumbers, query_rows, read_keys


@triton.jit(do_not_specialize=["scale", "batch", "split_keys", "table_b", "softcap", "prefix", "n_turns"])
def prefix_kernel(memory, strides, scale, batch, split_keys, table_b, softcap, prefix, n_turns, CASE: tl.constexpr):
    """Piece `program_id(1)` of the prefix, of split_keys keys, into prior_acc and prior_ml."""
    numbers = TileNumbers(scale, 0, prefix, split_keys, table_b, softcap, batch, prefix, 0, n_turns)
    if CASE.EARLY:  # from here on the previous kernel's writes are visible, and the next kernel may begin
        gdc_wait()
        gdc_launch_dependents()
    blocks = tl.cdiv(batch * CASE.ROWS, CASE.BLOCK_M)
    h, piece = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1)
    r, d = tl.program_id(0) % blocks * CASE.BLOCK_M + tl.arange(0, CASE.BLOCK_M), tl.arange(0, CASE.BLOCK_D)
    there, in_d = r < batch * CASE.ROWS, d < CASE.D
    b, of_row = (r // CASE.ROWS).to(tl.int64), r % CASE.ROWS
    head, token = h * (CASE.ROWS // CASE.S_ACTIVE) + of_row // CASE.S_ACTIVE, of_row % CASE.S_ACTIVE
    q_b, q_h, q_a, q_d = strides.q
    inside = there[:, None] & in_d[None, :]
    places = memory.q + b * q_b + head * q_h + token * q_a
    q_tile = tl.load(places[:, None] + d[None, :] * q_d, mask=inside, other=0.0)
    length = tl.load(memory.seq_lens + b, mask=there, other=0)
    first = length - CASE.S_ACTIVE
    task = (first + token, first, b * CASE.S_ACTIVE + token, there, h)
    rows = query_rows(q_tile, places, head, task, memory, strides, numbers, CASE)
    m = tl.full([CASE.BLOCK_M], float("-inf"), tl.float32)
    l = tl.full([CASE.BLOCK_M], 0.0, tl.float32)  # noqa: E741  (the design's name)
    acc = tl.full([CASE.BLOCK_M, CASE.BLOCK_D], 0.0, tl.float32)
    begin = piece * split_keys
    end = tl.minimum(begin + split_keys, prefix)
    m, l, acc = read_keys((begin, end), (0, h), rows, (m, l, acc), memory, strides, numbers, CASE)  # noqa: E741
    if CASE.HAS_V_SCALE:
        acc *= tl.load(memory.v_scale + h)
    n_rows = batch * CASE.H_KV * CASE.ROWS
    at = (b * CASE.H_KV + h) * CASE.ROWS + of_row
    m = tl.where(length < prefix, float("-inf"), m)  # an empty row has no prefix either
    tl.store(memory.prior_ml + piece * 2 * n_rows + at, m, mask=there)
    tl.store(memory.prior_ml + (piece * 2 + 1) * n_rows + at, l, mask=there)
    tl.store(memory.prior_acc + (piece * n_rows + at)[:, None] * CASE.D + d[None, :], acc, mask=inside)

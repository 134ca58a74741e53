# mypy: disable-error-code=no-untyped-def
"""The Triton sources of the cells algorithm: counting which cells fire, and the products of the counts.

For one j and one detector, Q is fixed and C = 2**(N_c + N_pe) cells can fire. Counted once, the sums over pairs become matrix
products, one per table and Q: the places n = b · S + j are put in order of their Q first, as `order` [N_t, N], N = B · S.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from lutetia._shared.triton_counts import bf16_product, bits_of, ones_in, product_of_counts
from lutetia.lut.kernels.triton.source.basics import uncertainty_slope


class CellCase(NamedTuple):
    """What a kernel over cells is compiled for: how many of each it takes at once."""

    N_C: int
    N_PE: int
    PRECISION: str = "float32"
    ADD: bool = False  # to what is there
    BLOCK_N: int = 0  # places
    BLOCK_C: int = 0  # cells
    BLOCK_O: int = 0  # outputs
    BLOCK_J: int = 0  # positions
    BLOCK_I: int = 0  # earlier positions
    BLOCK_K: int = 0  # the two parts of a cell
    BLOCK_P: int = 0


class Counts(NamedTuple):
    """How often each cell fires [N, N_t, C], and whether a count passes 8 bits [1]."""

    stat: Tensor
    wide: Tensor


@triton.jit
def key_bits_kernel(index_ptr, out_ptr, length, n_detectors, words, N_K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Which of 32 positions have index K, as bits: index [B, S, N_t] -> [B, N_t, words, K]; one program per (b and t, word)."""
    bt = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * 32 + tl.arange(0, 32)
    at = (bt // n_detectors * length + i) * n_detectors + bt % n_detectors
    index = tl.load(index_ptr + at, mask=i < length, other=-1)
    k = tl.program_id(2) * BLOCK_K + tl.arange(0, BLOCK_K)
    tl.store(out_ptr + (bt * words + tl.program_id(1)) * N_K + k, bits_of(index[None, :] == k[:, None]), mask=k < N_K)


@triton.jit
def position_bits_kernel(pe_ptr, out_ptr, length, n_detectors, N_PE: tl.constexpr, BLOCK: tl.constexpr):
    """Which of the 32 distances s - 1, s - 2, .. have position PE, as bits: pe [S - 1, N_t] -> [N_t, S, 2**N_pe]."""
    s, t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1).to(tl.int64)
    d = s[:, None] - 1 - tl.arange(0, 32)[None, :]
    found = tl.load(pe_ptr + d * n_detectors + t, mask=(d >= 0) & (s < length)[:, None], other=-1)
    for pe in range(1 << N_PE):
        tl.store(out_ptr + ((t * length + s) << N_PE) + pe, bits_of(found == pe), mask=s < length)


@triton.jit
def count_cells_kernel(key_ptr, position_ptr, counts, numbers, CASE: tl.constexpr):
    """How often each cell (K, PE) fires for each j, 32 positions at a time: the bits that both K and PE have are counted.

    One program per (b and tile of j, tile of cells, t). A count of more than 8 bits raises the flag `wide`.
    """
    length, n_detectors, words = numbers
    tiles = (length + CASE.BLOCK_J - 1) // CASE.BLOCK_J
    tile = tiles - 1 - tl.program_id(0) % tiles  # the longest first
    b, t = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(2).to(tl.int64)
    j = (tile * CASE.BLOCK_J + tl.arange(0, CASE.BLOCK_J))[:, None, None]
    k = (tl.program_id(1) // ((1 << CASE.N_PE) // CASE.BLOCK_P) * CASE.BLOCK_K + tl.arange(0, CASE.BLOCK_K))[None, :, None]
    pe = (tl.program_id(1) % ((1 << CASE.N_PE) // CASE.BLOCK_P) * CASE.BLOCK_P + tl.arange(0, CASE.BLOCK_P))[None, None, :]
    key_ptr += ((b * n_detectors + t) * words << CASE.N_C) + k
    position_ptr += ((t * length) << CASE.N_PE) + pe
    count = tl.full([CASE.BLOCK_J, CASE.BLOCK_K, CASE.BLOCK_P], 0, tl.int32)
    for word in range((tl.minimum((tile + 1) * CASE.BLOCK_J, length) + 30) // 32):
        s = j - word * 32
        positions = tl.load(position_ptr + (s << CASE.N_PE), mask=(s > 0) & (j < length), other=0)
        count += ones_in(tl.load(key_ptr + (word << CASE.N_C)) & positions)
    at = (((b * length + j) * n_detectors + t) << (CASE.N_C + CASE.N_PE)) + (k << CASE.N_PE) + pe
    tl.store(counts.stat + at, count.to(counts.stat.dtype.element_ty), mask=j < length)
    tl.store(counts.wide + tl.zeros_like(count), 1, mask=count > 255)


@triton.jit
def fill_cells_kernel(weight_ptr, counts, index_ptr, order_ptr, out_ptr, numbers, CASE: tl.constexpr):
    """y += stat · W[t, Q], one program per (BLOCK_N places in order of Q, tile of outputs, detector)."""
    n_places, n_detectors, n_outputs = numbers
    PRECISION: tl.constexpr = CASE.PRECISION
    N_CELLS: tl.constexpr = 1 << (CASE.N_C + CASE.N_PE)
    t = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * CASE.BLOCK_N + tl.arange(0, CASE.BLOCK_N)
    live = p < n_places
    n = tl.load(order_ptr + t * n_places + p, mask=live, other=0).to(tl.int64)
    q = tl.load(index_ptr + n * n_detectors + t, mask=live, other=1 << CASE.N_C)
    o = tl.program_id(1) * CASE.BLOCK_O + tl.arange(0, CASE.BLOCK_O)
    wide = tl.load(counts.wide)
    acc = tl.full([CASE.BLOCK_N, CASE.BLOCK_O], 0, tl.float32)
    for which in range(tl.min(q), tl.max(tl.where(live, q, 0)) + 1):
        mine = live & (q == which)
        for start in range(0, N_CELLS, CASE.BLOCK_C):
            c = start + tl.arange(0, CASE.BLOCK_C)
            at = (n * n_detectors + t)[:, None] * N_CELLS + c[None, :]
            stat = tl.load(counts.stat + at, mask=mine[:, None] & (c < N_CELLS)[None, :], other=0).to(tl.int32)
            rows = (((t << CASE.N_C) + which) * N_CELLS + c)[:, None] * n_outputs + o[None, :]
            weight = tl.load(weight_ptr + rows, mask=(c < N_CELLS)[:, None] & (o < n_outputs)[None, :], other=0.0)
            acc = product_of_counts(stat, weight.to(tl.float32), acc, wide, PRECISION)
    mask = live[:, None] & (o < n_outputs)[None, :]
    tl.atomic_add(out_ptr + n[:, None] * n_outputs + o[None, :], acc, mask=mask, sem="relaxed")


@triton.jit
def flip_kernel(index_ptr, which_ptr, out_ptr, n_numbers, n_detectors, BLOCK: tl.constexpr):
    """index, which [N, N_t] -> [N, 2, N_t]: the indices, and with bit `which` of each flipped."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n_numbers
    index = tl.load(index_ptr + at, mask=mask, other=0)
    to = at + at // n_detectors * n_detectors
    tl.store(out_ptr + to, index, mask=mask)
    tl.store(out_ptr + to + n_detectors, index ^ (1 << tl.load(which_ptr + at, mask=mask, other=0)), mask=mask)


@triton.jit
def project_cells_kernel(grad_ptr, weight_ptr, index_ptr, order_ptr, out_ptr, numbers, CASE: tl.constexpr):
    """P[n, t, c] = g[n] · W[t, index[n, t], c], one program per (BLOCK_N places in order of it, tile of cells, t).

    t runs over the detectors twice: first index is Q, then Q with the bit of its closest call flipped.
    """
    n_places, n_detectors, n_outputs = numbers
    PRECISION: tl.constexpr = CASE.PRECISION
    N_CELLS: tl.constexpr = 1 << (CASE.N_C + CASE.N_PE)
    t = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * CASE.BLOCK_N + tl.arange(0, CASE.BLOCK_N)
    live = p < n_places
    n = tl.load(order_ptr + t * n_places + p, mask=live, other=0).to(tl.int64)
    q = tl.load(index_ptr + n * (2 * n_detectors) + t, mask=live, other=1 << CASE.N_C)
    c = tl.program_id(1) * CASE.BLOCK_C + tl.arange(0, CASE.BLOCK_C)
    acc = tl.full([CASE.BLOCK_N, CASE.BLOCK_C], 0, tl.float32)
    for which in range(tl.min(q), tl.max(tl.where(live, q, 0)) + 1):
        mine = live & (q == which)
        for start in range(0, n_outputs, CASE.BLOCK_O):
            o = start + tl.arange(0, CASE.BLOCK_O)
            o_mask = o < n_outputs
            g = tl.load(grad_ptr + n[:, None] * n_outputs + o[None, :], mask=mine[:, None] & o_mask[None, :], other=0.0)
            rows = ((((t % n_detectors) << CASE.N_C) + which) * N_CELLS + c)[None, :] * n_outputs + o[:, None]
            weight = tl.load(weight_ptr + rows, mask=(c < N_CELLS)[None, :] & o_mask[:, None], other=0.0)
            if PRECISION == "bf16":
                acc = bf16_product(g.to(tl.bfloat16), weight.to(tl.bfloat16), acc)
            elif PRECISION == "tf32":
                acc = tl.dot(g.to(tl.float32), weight.to(tl.float32), acc, input_precision="tf32")
            else:
                acc = tl.dot(g.to(tl.float32), weight.to(tl.float32), acc, input_precision="tf32x3")
    at = (n * (2 * n_detectors) + t)[:, None] * N_CELLS + c[None, :]
    tl.store(out_ptr + at, acc, mask=live[:, None] & (c < N_CELLS)[None, :])


@triton.jit
def gather_cells_kernel(grad_ptr, counts, sorted_rows, out_ptr, numbers, CASE: tl.constexpr):
    """dW[t, Q] = statᵀ · g over the places of that Q, one program per (t and Q, tile of cells, tile of outputs)."""
    n_places, n_detectors, n_outputs = numbers
    PRECISION: tl.constexpr = CASE.PRECISION
    N_CELLS: tl.constexpr = 1 << (CASE.N_C + CASE.N_PE)
    tq = tl.program_id(0)
    t = (tq >> CASE.N_C).to(tl.int64)
    last = tl.load(sorted_rows.end + tq)
    first = last - tl.load(sorted_rows.count + tq)
    c = tl.program_id(1) * CASE.BLOCK_C + tl.arange(0, CASE.BLOCK_C)
    o = tl.program_id(2) * CASE.BLOCK_O + tl.arange(0, CASE.BLOCK_O)
    wide = tl.load(counts.wide)
    acc = tl.full([CASE.BLOCK_C, CASE.BLOCK_O], 0, tl.float32)
    for start in range(first, last, CASE.BLOCK_N):
        p = start + tl.arange(0, CASE.BLOCK_N)
        live = p < last
        n = tl.load(sorted_rows.order + t * n_places + p, mask=live, other=0).to(tl.int64)
        at = (n * n_detectors + t)[:, None] * N_CELLS + c[None, :]
        stat = tl.load(counts.stat + at, mask=live[:, None] & (c < N_CELLS)[None, :], other=0).to(tl.int32)
        g = tl.load(grad_ptr + n[:, None] * n_outputs + o[None, :], mask=live[:, None] & (o < n_outputs)[None, :], other=0.0)
        acc = product_of_counts(tl.trans(stat), g.to(tl.float32), acc, wide, PRECISION)
    at = (tq.to(tl.int64) * N_CELLS + c)[:, None] * n_outputs + o[None, :]
    mask = (c < N_CELLS)[:, None] & (o < n_outputs)[None, :]
    if CASE.ADD:
        acc += tl.load(out_ptr + at, mask=mask, other=0.0)
    tl.store(out_ptr + at, acc, mask=mask)


@triton.jit
def slopes_of_cells_kernel(p_ptr, rows, positions, totals, numbers, CASE: tl.constexpr):
    """The slopes of pairs, as in `slopes_of_pairs_kernel`, with every dot product looked up in P [N, 2 · N_t, C].

    One program per (b and tile of j, t). It walks the earlier positions twice: by i, for what goes to the anchors at i, and by
    distance, for what goes to the positions: so each is added up before it is written. Neighbouring lanes share a j, hence
    a row of P. The totals are a part of those of n_all detectors.
    """
    length, n_detectors, n_all, copies = numbers
    N_C: tl.constexpr = CASE.N_C
    N_PE: tl.constexpr = CASE.N_PE
    tiles = (length + CASE.BLOCK_J - 1) // CASE.BLOCK_J
    tile = tiles - 1 - tl.program_id(0) % tiles  # the longest first
    b = (tl.program_id(0) // tiles).to(tl.int64)
    j = tile * CASE.BLOCK_J + tl.arange(0, CASE.BLOCK_J)[:, None]
    t = tl.program_id(1)
    base = (b * n_detectors + t) * length
    total_ptr = totals.positions + (b * n_all + t) * length
    j_mask = j < length
    delta_q = tl.load(rows.min_delta + base + j, mask=j_mask, other=1.0)
    slope_q = uncertainty_slope(delta_q)
    main_row = ((b * length + j) * (2 * n_detectors) + t) << (N_C + N_PE)
    flipped = n_detectors << (N_C + N_PE)
    top = tl.minimum((tile + 1) * CASE.BLOCK_J, length) - 1  # the last j, and how many distances it has
    sum_q = tl.full([CASE.BLOCK_J, CASE.BLOCK_I], 0, tl.float32)
    for start in range(0, top, CASE.BLOCK_I):
        i = start + tl.arange(0, CASE.BLOCK_I)[None, :]
        i_mask = i < length
        pair = (i < j) & j_mask
        delta_k = tl.load(rows.min_delta + base + i, mask=i_mask, other=1.0)
        k = tl.load(rows.indices + base + i, mask=i_mask, other=0)
        flip_k = 1 << (tl.load(rows.min_delta_index + base + i, mask=i_mask, other=0) + N_PE)
        cell = (k << N_PE) | tl.load(positions.indices + t * (length - 1) + j - i - 1, mask=pair, other=0)
        at_q = tl.abs(delta_q) < tl.abs(delta_k)
        other_at = tl.where(at_q, flipped + cell, cell ^ flip_k)
        gain = tl.load(p_ptr + main_row + cell, mask=pair, other=0.0) - tl.load(p_ptr + main_row + other_at, mask=pair, other=0.0)
        sum_q += tl.where(at_q, gain, 0.0)
        from_k = uncertainty_slope(delta_k) * tl.sum(tl.where(at_q, 0.0, gain), axis=0)[None, :]
        tl.atomic_add(total_ptr + i, from_k, mask=i_mask, sem="relaxed")
    tl.atomic_add(total_ptr + j, slope_q * tl.sum(sum_q, axis=1)[:, None], mask=j_mask, sem="relaxed")
    if N_PE > 0:
        for start in range(0, top, CASE.BLOCK_I):
            distance = start + tl.arange(0, CASE.BLOCK_I)[None, :]
            d_mask = distance < length - 1
            i = j - distance - 1
            d = t * (length - 1) + distance
            copy = (tl.program_id(0) % copies) * n_all * (length - 1)
            delta_pe = tl.load(positions.min_delta + d, mask=d_mask, other=1.0)
            pe = tl.load(positions.indices + d, mask=d_mask, other=0)
            flip = 1 << tl.load(positions.min_delta_index + d, mask=d_mask, other=0)
            close = (i >= 0) & j_mask & (tl.abs(delta_pe) < tl.abs(delta_q))
            near = close & (tl.abs(delta_pe) < tl.abs(tl.load(rows.min_delta + base + i, mask=close, other=0.0)))
            cell = (tl.load(rows.indices + base + i, mask=near, other=0) << N_PE) | pe
            gain = tl.load(p_ptr + main_row + cell, mask=near, other=0.0)
            gain -= tl.load(p_ptr + main_row + (cell ^ flip), mask=near, other=0.0)
            total = uncertainty_slope(delta_pe) * tl.sum(gain, axis=0)[None, :]
            tl.atomic_add(totals.distances + copy + d, total, mask=d_mask, sem="relaxed")

"""Integers put in order on CUDA, in Triton: counting sorts of the columns of a matrix, and transposes.

Under TRITON_INTERPRET=1 everything runs on CPU tensors too.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lutetia._shared.launches import planned
from lutetia._shared.numbers import cdiv, next_power_of_2

FEW = 128  # values that are sorted without atomics


class Sorted(NamedTuple):
    """The rows of a matrix [N, T] by the value that each column has there: order [T, N], end and count of each value [T, values].

    All int32. `compact` [T · values] is for who sums by value: where the sums of each go, if only those that occur have a place.
    """

    order: Any
    end: Any
    count: Any
    compact: Any = None


def transposed(x: Tensor) -> Tensor:
    """x [N, T] -> [T, N]."""
    n_rows, n_columns = x.shape
    out = x.new_empty(n_columns, n_rows)
    planned(transpose_kernel, (cdiv(n_rows, 64), cdiv(n_columns, 64)))(x.contiguous(), out, n_rows, n_columns, BLOCK=64)
    return out


def transposed_each(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Tensors of one shape, [..., N, T] -> [..., T, N], in one launch."""
    *batch, n_rows, n_columns = tensors[0].shape
    out = tuple(tensor.new_empty(*batch, n_columns, n_rows) for tensor in tensors)
    if total := tensors[0].numel():
        grid = (total // (n_rows * n_columns), cdiv(n_rows, 32), cdiv(n_columns, 32))
        given = tuple(tensor.contiguous() for tensor in tensors)
        planned(transpose_each_kernel, grid)(given, out, n_rows, n_columns, N=len(out), BLOCK=32)
    return out


def sort_columns(values: Tensor, n_values: int) -> Sorted:
    """The rows of values [N, T], integers below n_values, in order of each column."""
    n_rows, n_columns = values.shape
    if n_values > FEW or not values.numel():
        return sort_by_atomics(values, n_values)
    block = max(16, min(256, 4096 // n_values))
    chunk = block * cdiv(n_rows, 64 * block)  # at most 64 of them
    chunks = cdiv(n_rows, chunk)
    counts = values.new_empty(n_columns, chunks, n_values)
    ends = (values.new_empty(n_columns, n_values) for _ in range(2))
    sorted_rows = Sorted(values.new_empty(n_columns, n_rows), *ends)
    sizes = (n_rows, n_columns, chunk)
    planned(count_chunks_kernel, (chunks, n_columns))(values, counts, *sizes, N_VALUES=n_values, BLOCK=block)
    planned(order_chunks_kernel, (chunks, n_columns))(
        values, counts, sorted_rows, sizes, N_VALUES=n_values, N_CHUNKS=next_power_of_2(chunks), BLOCK=block
    )
    return sorted_rows


def sort_by_atomics(values: Tensor, n_values: int) -> Sorted:
    """The same for any number of values; rows of one value are in no order."""
    n_rows, n_columns = values.shape
    count, rank = values.new_zeros(n_columns, n_values), torch.empty_like(values)
    order, total = values.new_empty(n_columns, n_rows), values.numel()
    if total == 0:
        return Sorted(order, count, count)
    grid, numbers = (cdiv(total, 256),), (total, n_rows, n_columns)
    planned(rank_kernel, grid)(values, count, rank, total, n_columns, N_VALUES=n_values, BLOCK=256, num_warps=4)
    sorted_rows = Sorted(order, count.cumsum(1, dtype=torch.int32), count)
    planned(place_kernel, grid)(values, rank, sorted_rows, numbers, N_VALUES=n_values, BLOCK=256, num_warps=4)
    return sorted_rows


# ---- sources ---------------------------------------------------------------------------------------------------------


@triton.jit
def transpose_kernel(x_ptr, out_ptr, n_rows, n_columns, BLOCK: tl.constexpr):
    """out [columns, rows] = x [rows, columns], tile by tile."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < n_rows)[:, None] & (column < n_columns)[None, :]
    tile = tl.load(x_ptr + row[:, None] * n_columns + column[None, :], mask=mask)
    tl.store(out_ptr + column[:, None] * n_rows + row[None, :], tl.trans(tile), mask=tl.trans(mask))


@triton.jit
def transpose_each_kernel(given, out, n_rows, n_columns, N: tl.constexpr, BLOCK: tl.constexpr):
    """The same of N tensors [B, rows, columns]; one program per (b, tile of rows, tile of columns)."""
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * n_rows * n_columns
    mask = (row < n_rows)[:, None] & (column < n_columns)[None, :]
    place = first + row[:, None] * n_columns + column[None, :]
    to, to_mask = first + column[:, None] * n_rows + row[None, :], tl.trans(mask)
    for k in tl.static_range(N):
        tl.store(out[k] + to, tl.trans(tl.load(given[k] + place, mask=mask)), mask=to_mask)


# A counting sort without atomics: where thousands of rows share a few values, those would wait for each other.


@triton.jit
def count_chunks_kernel(
    index_ptr, count_ptr, n_rows, n_columns, chunk, N_VALUES: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """How often each value occurs in each chunk of rows: values [N, T] -> count [T, chunks, N_VALUES]."""
    t = tl.program_id(1)
    first = tl.program_id(0) * chunk
    last = tl.minimum(first + chunk, n_rows)
    q = tl.arange(0, N_VALUES)
    count = tl.zeros([N_VALUES], tl.int32)
    for start in range(first, last, BLOCK):
        n = start + tl.arange(0, BLOCK)
        value = tl.load(index_ptr + n.to(tl.int64) * n_columns + t, mask=n < last, other=-1)
        count += tl.sum((value[:, None] == q[None, :]).to(tl.int32), axis=0)
    tl.store(count_ptr + (t * tl.num_programs(0) + tl.program_id(0)) * N_VALUES + q, count)


@triton.jit
def order_chunks_kernel(
    index_ptr, count_ptr, sorted_rows, numbers, N_VALUES: tl.constexpr, N_CHUNKS: tl.constexpr, BLOCK: tl.constexpr
):
    """Put the rows of each chunk where they belong: order [T, N]; and end and count of each value, [T, N_VALUES]."""
    n_rows, n_columns, chunk = numbers
    t = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * chunk
    last = tl.minimum(first + chunk, n_rows)
    q = tl.arange(0, N_VALUES)
    which = tl.arange(0, N_CHUNKS)
    at = (t * tl.num_programs(0) + which)[:, None] * N_VALUES + q[None, :]
    counts = tl.load(count_ptr + at, mask=(which < tl.num_programs(0))[:, None], other=0)
    total = tl.sum(counts, axis=0)
    end = tl.cumsum(total, axis=0)
    if tl.program_id(0) == 0:
        tl.store(sorted_rows.end + t * N_VALUES + q, end)
        tl.store(sorted_rows.count + t * N_VALUES + q, total)
    free = end - total + tl.sum(tl.where((which < tl.program_id(0))[:, None], counts, 0), axis=0)
    for start in range(first, last, BLOCK):
        n = start + tl.arange(0, BLOCK)
        value = tl.load(index_ptr + n.to(tl.int64) * n_columns + t, mask=n < last, other=-1)
        hit = (value[:, None] == q[None, :]).to(tl.int32)
        place = tl.sum(hit * (free[None, :] + tl.cumsum(hit, axis=0) - 1), axis=1)
        tl.store(sorted_rows.order + t * n_rows + place, n, mask=n < last)
        free += tl.sum(hit, axis=0)


@triton.jit
def rank_kernel(index_ptr, count_ptr, rank_ptr, total, n_columns, N_VALUES: tl.constexpr, BLOCK: tl.constexpr):
    """Count how often each value occurs in each column; rank [N, T]: how many have it before."""
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < total
    slot = (lane % n_columns) * N_VALUES + tl.load(index_ptr + lane, mask=mask, other=0)
    rank = tl.atomic_add(count_ptr + slot, tl.full([BLOCK], 1, tl.int32), mask=mask, sem="relaxed")
    tl.store(rank_ptr + lane, rank, mask=mask)


@triton.jit
def place_kernel(index_ptr, rank_ptr, sorted_rows, numbers, N_VALUES: tl.constexpr, BLOCK: tl.constexpr):
    """order[t, :] lists the rows, sorted by the value that column t has there."""
    total, n_rows, n_columns = numbers
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < total
    t = lane % n_columns
    slot = t * N_VALUES + tl.load(index_ptr + lane, mask=mask, other=0)
    start = tl.load(sorted_rows.end + slot, mask=mask, other=0) - tl.load(sorted_rows.count + slot, mask=mask, other=0)
    rank = tl.load(rank_ptr + lane, mask=mask, other=0)
    tl.store(sorted_rows.order + t * n_rows + start + rank, (lane // n_columns).to(tl.int32), mask=mask)

"""The Triton kernels of n-gram tables: addresses, and steps of the rows that were read."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lutetia.nn.ngram.hashing import Hash

MIX: Any = tl.constexpr(-7046029254386353131)  # of `hashing`, which a kernel cannot read
LOW31: Any = tl.constexpr(0x1FFFFFFFF)
LOW32: Any = tl.constexpr(0xFFFFFFFF)
BLOCK = 256  # positions of a program
ROWS = 16  # gradients of a program


@triton.jit
def in_word(token):
    lower = token | 32
    return ((lower >= 97) & (lower <= 122)) | ((token >= 48) & (token <= 57)) | (token >= 128)


@triton.jit
def shifted_token(tokens_ptr, past_ptr, row, s, i, n, REACH: tl.constexpr, ok):
    """The i-th token back from place s, plus one; 0 before the first of all."""
    at = s - i
    new = tl.load(tokens_ptr + row * n + at, mask=ok & (at >= 0), other=-1) + 1
    old = tl.load(past_ptr + row * (REACH - 1) + REACH - 1 + at, mask=ok & (at < 0) & (at > -REACH), other=0)
    return tl.where(at >= 0, new, old)


@triton.jit
def address_kernel(tokens_ptr, past_ptr, lengths_ptr, words_ptr, multipliers_ptr, out_ptr, total, n, n_rows, n_tables,
                   REACH: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """A program is SIZE places of one table."""
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE).to(tl.int64)
    table = tl.program_id(1)
    ok = place < total
    row, s = place // n, place % n
    length, word = tl.load(lengths_ptr + table), tl.load(words_ptr + table)
    sum_ = tl.zeros([SIZE], tl.int64)
    inside = ok
    token = shifted_token(tokens_ptr, past_ptr, row, s, 0, n, REACH, ok)
    for i in range(length):
        multiplier = tl.load(multipliers_ptr + table * REACH + i)
        sum_ += tl.where(inside, token * multiplier, 0)
        before = shifted_token(tokens_ptr, past_ptr, row, s, i + 1, n, REACH, ok)
        inside = inside & ((word == 0) | (in_word(token - 1) == 0) | in_word(before - 1))
        token = before
    mixed = (sum_ ^ ((sum_ >> 31) & LOW31)) * MIX
    address = ((((mixed >> 32) & LOW32) * n_rows) >> 32) + table.to(tl.int64) * n_rows
    tl.store(out_ptr + place * n_tables + table, address, mask=ok)


def addresses(tokens: Tensor, past: Tensor, hash_: Hash, lengths: Tensor, words: Tensor) -> Tensor:
    """Like `hashing.addresses`; lengths and words int32 [n_tables] on the device."""
    (batch, n), n_tables = tokens.shape, len(hash_.lengths)
    out = torch.empty(batch, n, n_tables, dtype=torch.int64, device=tokens.device)
    if out.numel():
        grid = (triton.cdiv(batch * n, BLOCK), n_tables)
        sizes = (batch * n, n, hash_.n_rows, n_tables, hash_.reach)
        address_kernel[grid](tokens.contiguous(), past.contiguous(), lengths, words, hash_.multipliers, out, *sizes, SIZE=BLOCK)
    return out


@triton.jit
def add_kernel(rows_ptr, values_ptr, sums_ptr, n, width, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Add each gradient to the sum of its row."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE).to(tl.int64)
    column = tl.arange(0, WIDTH)
    ok = (at < n)[:, None] & (column < width)[None, :]
    row = tl.load(rows_ptr + at, mask=at < n, other=0)
    value = tl.load(values_ptr + at[:, None] * width + column[None, :], mask=ok, other=0.0)
    tl.atomic_add(sums_ptr + row[:, None] * width + column[None, :], value, mask=ok, sem="relaxed")


@triton.jit
def step_kernel(rows_ptr, weight_ptr, square_ptr, count_ptr, sums_ptr, stamp_ptr, now_ptr, lr_ptr, n, width, beta, eps, decay,
                SIZE: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """Step each row once: the first of the gradients that name it does it for all."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE).to(tl.int64)
    column = tl.arange(0, WIDTH)
    ok = at < n
    row = tl.load(rows_ptr + at, mask=ok, other=0)
    now = tl.load(now_ptr)
    lr = tl.load(lr_ptr)
    before = tl.atomic_xchg(stamp_ptr + row, tl.zeros([SIZE], tl.int32) + now, mask=ok, sem="relaxed")
    mine = ok & (before != now)
    place = row[:, None] * width + column[None, :]
    all_mine = mine[:, None] & (column < width)[None, :]
    count = tl.load(count_ptr + row, mask=mine, other=0.0) + 1
    gradient = tl.load(sums_ptr + place, mask=all_mine, other=0.0)
    square = beta * tl.load(square_ptr + place, mask=all_mine, other=0.0) + (1 - beta) * gradient * gradient
    weight = tl.load(weight_ptr + place, mask=all_mine, other=0.0)
    # Small tiles are loaded by several warps each: none may load what another has stored already.
    tl.debug_barrier()
    unbiased = 1 - tl.exp2(count * tl.log2(beta))
    change = gradient / (tl.sqrt(square / unbiased[:, None]) + eps)
    tl.store(count_ptr + row, count, mask=mine)
    tl.store(sums_ptr + place, tl.zeros_like(gradient), mask=all_mine)
    tl.store(square_ptr + place, square, mask=all_mine)
    tl.store(weight_ptr + place, weight * (1 - lr * decay) - lr * change, mask=all_mine)


def step_rows(rows: Tensor, values: Tensor, memory: tuple[Tensor, ...], numbers: tuple[float, float, float]) -> None:
    """Step the rows [n] by their gradients [n, width].

    memory   weight, squares, counts, sums of gradients (zeros, and zeros again afterwards), stamps, the stamp of now, the rate
    numbers  beta, eps, weight decay
    """
    n, width = values.shape
    grid, sizes = (triton.cdiv(n, ROWS),), {"SIZE": ROWS, "WIDTH": triton.next_power_of_2(width)}
    add_kernel[grid](rows, values, memory[3], n, width, **sizes)
    step_kernel[grid](rows, *memory, n, width, *numbers, **sizes)

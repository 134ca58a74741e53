"""Counting with bits, and products of the counts on tensor cores, exact to the last bit; pieces of Triton kernels."""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import os

import triton
import triton.language as tl

# The interpreter multiplies the bits of bfloat16 as if they were integers: there they are made float32 first.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def bits_of(tensor):
    """32 truth values [n, 32] as the bits of an int32 [n]."""
    return tl.sum(tensor.to(tl.int32) << tl.arange(0, 32)[None, :], axis=1)


@triton.jit
def ones_in(bits):
    """How many bits of an int32 are set."""
    if INTERPRETED:
        bits = bits.to(tl.uint32, bitcast=True)
        bits = bits - ((bits >> 1) & 0x55555555)
        bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
        return (((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101 >> 24).to(tl.int32)
    else:
        return tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [bits], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def bf16_product(a, b, acc):
    """acc + a · b, of two bfloat16 tensors."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    else:
        return tl.dot(a, b, acc)


@triton.jit
def product_of_counts(count, other, acc, wide, PRECISION: tl.constexpr):
    """acc + count · other: counts [n, k] of 8 bits are exact in bfloat16, and three bfloat16 make up the 24 of a float32.

    wide: some counts have more. Their upper part is a product of its own.
    """
    if PRECISION == "tf32":
        return tl.dot(count.to(tl.float32), other, acc, input_precision="tf32")
    else:
        low = (count & 255).to(tl.float32).to(tl.bfloat16)
        first = other.to(tl.bfloat16)
        acc = bf16_product(low, first, acc)
        if PRECISION == "float32":
            rest = other - first.to(tl.float32)
            second = rest.to(tl.bfloat16)
            third = (rest - second.to(tl.float32)).to(tl.bfloat16)
            acc = bf16_product(low, second, acc)
            acc = bf16_product(low, third, acc)
        if wide != 0:
            high = (count - (count & 255)).to(tl.float32).to(tl.bfloat16)
            acc = bf16_product(high, first, acc)
            if PRECISION == "float32":
                acc = bf16_product(high, second, acc)
                acc = bf16_product(high, third, acc)
        return acc

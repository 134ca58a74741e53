"""Pieces of Triton kernels: sums in floating point or, with a SCALE above 0, fixed, of integers, as in the loops of `fixed`.

An addend is then an int64 of units, of which SCALE make 1.0. One that does not fit an int32 raises a flag, as does such a sum.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import triton
import triton.language as tl

FIXED_MAX = tl.constexpr(2147483647.0)
ROUND = tl.constexpr(6755399441055744.0)  # 1.5 · 2**52: adding and taking it away rounds a float64 half to even


@triton.jit
def to_fixed(value, overflow_ptr, mask, SCALE: tl.constexpr):
    """An addend as an int64 multiple of one unit; what does not fit an int32 raises the flag."""
    scaled = value.to(tl.float64) * SCALE
    fits = tl.abs(scaled) <= FIXED_MAX
    tl.store(overflow_ptr + tl.zeros_like(scaled).to(tl.int32), 1, mask=mask & (fits == 0))
    return ((tl.where(fits, scaled, 0.0) + ROUND) - ROUND).to(tl.int64)


@triton.jit
def units(value, overflow_ptr, mask, SCALE: tl.constexpr):
    """An addend as it is added: an integer in fixed sums, else itself."""
    return to_fixed(value, overflow_ptr, mask, SCALE) if SCALE > 0 else value


@triton.jit
def from_units(total, overflow_ptr, mask, SCALE: tl.constexpr, ACC: tl.constexpr):
    """A sum of `units` as a float; a fixed sum must fit an int32."""
    if SCALE > 0:
        tl.store(overflow_ptr + tl.zeros_like(total).to(tl.int32), 1, mask=mask & (tl.abs(total) > 2147483647))
        return (total.to(tl.float64) / SCALE).to(ACC)
    else:
        return total


@triton.jit
def convert_kernel(sum_ptr, out_ptr, overflow_ptr, total, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    """Integer sums back to floating point; a sum past the range of an int32 raises the flag."""
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < total
    sums = tl.load(sum_ptr + lane, mask=mask, other=0).to(tl.int64)
    tl.store(out_ptr + lane, from_units(sums, overflow_ptr, mask, SCALE, out_ptr.dtype.element_ty), mask=mask)

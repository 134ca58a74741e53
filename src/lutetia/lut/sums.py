"""How addends become a sum: in floating point, or exactly, as integers.

`float` sums add in float32 (float64 when an operand is float64). `fixed` sums round every addend to an integer multiple of
1 / scale, scale = (2**20 - 1) * int_rescaler, and add integers. Integer addition is associative, so the result is the same
bit for bit whatever the order, the number of threads, the backend.

Why the rounding is the same everywhere: an addend is a float32 (24 bits) and the scale is rounded to float32 (24 bits), so
their product is exact in float64 (48 bits), fused multiply-add or not; it is then rounded once, half to even.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import OverflowInSumError, check_choice, check_range

SUMS = ("float", "fixed")
FIXED_ONE = 2**20 - 1
FIXED_MAX = 2**31 - 1


def check_sums(sums: str, int_rescaler: float) -> None:
    """Check the two options that say how addends are summed."""
    check_choice("sums", sums, SUMS)
    check_range("int_rescaler", int_rescaler, 1e-9, 2048.0)


def fixed_scale(int_rescaler: float) -> float:
    """How many units make 1.0, as a float32 value."""
    return float(np.float32(FIXED_ONE * int_rescaler))


def sum_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype in which these operands are added: float32, or float64 when one of them is."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def to_fixed(values: Tensor, int_rescaler: float) -> Tensor:
    """Addends [...] as int64 multiples of one unit; each must fit an int32."""
    scaled = (values.double() * fixed_scale(int_rescaler)).round()
    if not bool((scaled.abs() <= FIXED_MAX).all()):  # written so that NaN fails too
        raise_overflow(int_rescaler)
    return scaled.long()


def convert_integers_to_floats(buffer: Tensor, int_rescaler: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Integer sums [...] (int32 or int64) back to floating point; a sum past the range of an int32 is an error."""
    if buffer.dtype != torch.int32 and bool((buffer.abs() > FIXED_MAX).any()):
        raise_overflow(int_rescaler)
    # A tensor, because CUDA divides by a plain number through its reciprocal, which rounds twice.
    scale = torch.full((), fixed_scale(int_rescaler), dtype=torch.float64, device=buffer.device)
    return (buffer.double() / scale).to(dtype)


def raise_overflow(int_rescaler: float) -> None:
    """Say what the range is and how to widen it."""
    limit = FIXED_MAX / fixed_scale(int_rescaler)
    raise OverflowInSumError(
        f"a fixed sum left its range of ±{limit:.6g} (or was not a number) at int_rescaler {int_rescaler:g}: "
        "use a smaller int_rescaler, or sums='float'"
    )

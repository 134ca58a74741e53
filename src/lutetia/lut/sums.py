"""How addends become a sum: in floating point, or exactly, as integers.

`float` sums add in float32 (float64 when an operand is float64). `fixed` sums round every addend to an integer multiple of
1 / scale, scale = (2**20 - 1) * rescaler, and add integers. Integer addition is associative, so the result is the same
bit for bit whatever the order, the number of threads, the backend.

Why the rounding is the same everywhere: an addend is a float32 (24 bits) and the scale is rounded to float32 (24 bits), so
their product is exact in float64 (48 bits), fused multiply-add or not; it is then rounded once, half to even.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.dtypes import FLOATS
from lutetia.errors import OverflowInSumError, check_choice, check_range

SUMS = ("float", "fixed")
FIXED_ONE = 2**20 - 1
FIXED_MAX = 2**31 - 1
STORED = (*FLOATS, torch.int8)  # the dtypes of tables: what is added, and what is only read


class Sums(NamedTuple):
    """How addends become a sum: `kind` is "float" or "fixed"; a unit of a fixed sum is 1 / ((2**20 - 1) * rescaler)."""

    kind: str = "float"
    rescaler: float = 1.0

    @property
    def exact(self) -> bool:
        """Whether the sum is made of integers."""
        return self.kind == "fixed"

    @property
    def scale(self) -> float:
        """How many units make 1.0, as a float32 value."""
        return _scale(self.rescaler)

    def check(self) -> Sums:
        """These sums, or an error that says what they should be."""
        check_choice("sums", self.kind, SUMS)
        check_range("int_rescaler", self.rescaler, 1e-9, 2048.0)
        return self


FLOAT = Sums()


@lru_cache(maxsize=64)
def _scale(rescaler: float) -> float:
    return float(np.float32(FIXED_ONE * rescaler))


def sum_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype in which these operands are added: float32, or float64 when one of them is."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def to_units(values: Tensor, sums: Sums) -> Tensor:
    """Addends [...] as int64 multiples of one unit, each of which must fit an int32; themselves where sums are float."""
    if not sums.exact:
        return values
    scaled = (values.double() * sums.scale).round()
    hold((scaled.abs() <= FIXED_MAX).all(), sums)  # written so that NaN fails too
    return scaled.long()


def from_units(buffer: Tensor, sums: Sums, dtype: torch.dtype) -> Tensor:
    """Sums of what `to_units` gave, [...], in floating point of this dtype; float sums as they are."""
    return convert_integers_to_floats(buffer, sums.rescaler, dtype) if sums.exact else buffer


def convert_integers_to_floats(buffer: Tensor, int_rescaler: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Integer sums [...] (int32 or int64) in floating point; a sum past the range of an int32 is an error."""
    if buffer.dtype != torch.int32:
        hold(((buffer <= FIXED_MAX) & (buffer >= -FIXED_MAX)).all(), Sums("fixed", int_rescaler))
    # A tensor, because CUDA divides by a plain number through its reciprocal, which rounds twice.
    scale = torch.full((), _scale(int_rescaler), dtype=torch.float64, device=buffer.device)
    return (buffer.double() / scale).to(dtype)


def hold(fits: Tensor, sums: Sums) -> None:
    """Raise unless fits [] or [1]; a captured graph cannot raise: a replay that overflows stops the stream."""
    if fits.is_cuda and torch.cuda.is_current_stream_capturing():
        torch._assert_async(fits)
    elif not bool(fits):
        raise_overflow(sums)


def raise_overflow(sums: Sums) -> NoReturn:
    """Raise an error that names the range and how to widen it."""
    raise OverflowInSumError(
        f"a fixed sum left its range of ±{FIXED_MAX / sums.scale:.6g} (or was not a number) at int_rescaler {sums.rescaler:g}: "
        "use a smaller int_rescaler, or sums='float'"
    )

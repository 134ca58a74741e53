"""Exponentials and logarithms for compiled loops over many numbers at once: calls to the C library would not be vectorised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lutetia._shared.compiled import ir, numba
from lutetia._shared.loops import extending, jit_inline

ROUNDING = 6755399441055744.0  # 1.5 · 2**52: added to a float64, it leaves a whole number in the last bits
TERMS = tuple(1 / math.factorial(k) for k in range(11, -1, -1))  # of the series of e**r, after 1/12!


@extending.intrinsic
def float_of_bits(typing: Any, bits: Any) -> Any:
    """The float32 with these bits, an int32."""
    cast = lambda context, builder, signature, args: builder.bitcast(args[0], ir.FloatType())  # noqa: E731
    return numba.types.float32(numba.types.int32), cast


@extending.intrinsic
def bits_of_float(typing: Any, value: Any) -> Any:
    """The bits of a float32, as an int32."""
    cast = lambda context, builder, signature, args: builder.bitcast(args[0], ir.IntType(32))  # noqa: E731
    return numba.types.int32(numba.types.float32), cast


def exp_negative(z: Any) -> Any:
    """e**z for z <= 0."""


@extending.overload(exp_negative, inline="always", strict=False)
def _exp_negative(z: Any) -> Any:
    if z != numba.types.float32:
        return lambda z: np.exp(z)

    def by_series(z: Any) -> Any:
        z = max(z, np.float32(-87.0))  # below, 2**n would not be a normal number
        n = np.rint(z * np.float32(1.4426950408889634))
        r = (z - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)  # ln 2 in two parts, the first exact times n
        p = np.float32(1 / 5040)
        p = p * r + np.float32(1 / 720)
        p = p * r + np.float32(1 / 120)
        p = p * r + np.float32(1 / 24)
        p = p * r + np.float32(1 / 6)
        p = p * r + np.float32(0.5)
        p = p * r + np.float32(1.0)
        p = p * r + np.float32(1.0)
        return p * float_of_bits((np.int32(n) + np.int32(127)) << np.int32(23))

    return by_series


@extending.intrinsic
def double_of_bits(typing: Any, bits: Any) -> Any:
    """The float64 with these bits, an int64."""
    cast = lambda context, builder, signature, args: builder.bitcast(args[0], ir.DoubleType())  # noqa: E731
    return numba.types.float64(numba.types.int64), cast


@extending.intrinsic
def bits_of_double(typing: Any, value: Any) -> Any:
    """The bits of a float64, as an int64."""
    cast = lambda context, builder, signature, args: builder.bitcast(args[0], ir.IntType(64))  # noqa: E731
    return numba.types.int64(numba.types.float64), cast


@jit_inline
def exp_double(z: Any) -> Any:
    """e**z for a float64 z <= 0, within 3e-16 of it; below -708 it is e**-708. Not for loops that may reorder sums."""
    z = max(z, -708.0)
    shifted = z * 1.4426950408889634 + ROUNDING  # its last bits are the exponent
    n = shifted - ROUNDING
    r = (z - n * 0.6931471803691238) - n * 1.9082149292705877e-10  # ln 2 in two parts, the first exact times n
    p = 1 / 479001600
    for term in TERMS:
        p = p * r + term
    return p * double_of_bits((bits_of_double(shifted) << 52) + (1023 << 52))


def log_positive(p: Any) -> Any:
    """log p for a normal p > 0."""


@extending.overload(log_positive, inline="always", strict=False)
def _log_positive(p: Any) -> Any:
    if p != numba.types.float32:
        return lambda p: np.log(p)

    def by_series(p: Any) -> Any:
        bits = bits_of_float(p) - np.int32(0x3F3504F3)  # of sqrt(1/2): the mantissa is brought within a factor of sqrt(2) of 1
        n = bits >> np.int32(23)
        m = float_of_bits((bits & np.int32(0x7FFFFF)) + np.int32(0x3F3504F3))
        s = (m - np.float32(1.0)) / (m + np.float32(1.0))
        q = s * s  # log m = 2 atanh s
        series = q * (np.float32(1 / 3) + q * (np.float32(1 / 5) + q * (np.float32(1 / 7) + q * np.float32(1 / 9))))
        return np.float32(n) * np.float32(0.6931471805599453) + np.float32(2.0) * (s + s * series)

    return by_series

"""Tables as whole numbers of a few bits, with scales that are powers of two.

A weight w becomes round(w · 2**fraction), clipped to its bits. The fraction is the one of least squared error: a few large
weights may be clipped where all others gain from a finer scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

FINER = 3  # how many halvings of the scale are tried beyond the one that fits the largest weight
LARGEST_FRACTION = 40
# Bits per byte of a model of width 32 on Python's sources, 2.849 in floats: tables of 8 bits cost nothing (2.848) beside an
# embedding of 16 bits and gains of 12, and 0.05 beside an embedding of 8 bits, whose values are compared and not added up.
EMBEDDING_BITS = 16
GAIN_BITS = 12  # of the gains of a norm, sign included


@dataclass(frozen=True, eq=False)
class Scaled:
    """Whole numbers and their scale: value = numbers · 2**-fraction."""

    numbers: np.ndarray
    fraction: int


def scaled(weight: np.ndarray, bits: int, most_fraction: int = LARGEST_FRACTION) -> Scaled:
    """The numbers of `bits` bits nearest to float64 weights, on a scale of at most `most_fraction`."""
    top = float(np.abs(weight).max(initial=0.0))
    largest, kind = 2 ** (bits - 1) - 1, np.int8 if bits <= 8 else np.int16
    if not top:
        return Scaled(np.zeros(weight.shape, dtype=kind), min(0, most_fraction))
    fits = math.floor(math.log2(largest / top))
    tried = [min(fits + finer, most_fraction, LARGEST_FRACTION) for finer in range(FINER + 1)]
    fraction = min(dict.fromkeys(tried), key=lambda each: _squared_error(weight, each, largest))
    return Scaled(_numbers(weight, fraction, largest).astype(kind), fraction)


def gains(weight: np.ndarray | None, bits: int = GAIN_BITS) -> np.ndarray | None:
    """The gains of a norm as whole numbers, int64 [width]; None where they are all one positive number, which changes no
    comparison. The largest becomes 2**(bits - 1) - 1. Only their ratios matter.
    """
    if weight is None or ((weight == weight[0]).all() and weight[0] > 0):
        return None
    top = float(np.abs(weight).max())
    if not top:
        return np.zeros(len(weight), dtype=np.int64)
    return np.rint(weight / top * (2 ** (bits - 1) - 1)).astype(np.int64)


def signed_bits(largest: int) -> int:
    """Bits of two's complement that hold every number from -largest to largest."""
    return int(largest).bit_length() + 1


def _numbers(weight: np.ndarray, fraction: int, largest: int) -> np.ndarray:
    return np.clip(np.rint(np.ldexp(weight, fraction)), -largest, largest)


def _squared_error(weight: np.ndarray, fraction: int, largest: int) -> float:
    return float(np.square(np.ldexp(_numbers(weight, fraction, largest), -fraction) - weight).sum())

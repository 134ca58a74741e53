"""Sums that are exact: floating-point weights as whole numbers times a power of two.

Every float64 is a whole number times a power of two, and so is a weighted sum of integers. As long as all its parts fit into
53 bits, float64 computes it without rounding in any order, and whole numbers of the same bits compute the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lutetia.errors import ArgumentError
from lutetia.precompute.front.block import Block
from lutetia.precompute.front.ops import Linear
from lutetia.precompute.ir.stream import Edge
from lutetia.precompute.tables.domains import MAX_BITS, Domain, domain_for


class ExactSum(NamedTuple):
    """scale · (bias + Σ coefficient · x) / divisor, all int64; sparse rows as in `Sum`."""

    first: np.ndarray
    places: np.ndarray
    coefficient: np.ndarray
    bias: np.ndarray
    domains: tuple[Domain, ...]  # the proven range of each output
    scale: float
    divisor: int


def lowest_power(values: np.ndarray) -> int | None:
    """The largest e for which all values are multiples of 2**e; None when all are zero."""
    values = np.unique(np.abs(values[values != 0]))
    if not len(values):
        return None
    mantissa, exponent = np.frexp(values)
    whole = (mantissa * 2.0**53).astype(np.int64)
    zeros = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
    return int((exponent - 53 + zeros).min())


def exact_sum(block: Block, edge: Edge) -> ExactSum:
    """The weighted sums at the start of a block, as whole numbers; refused where float64 itself might round."""
    sums = block.ops[0]
    assert isinstance(sums, Linear)
    if sums.in_channels is None:
        sums.in_channels = sums.out_channels = block.channels
    rows = sums.matrix()
    scale = np.array(edge.scale)
    if (np.frexp(scale)[0] != 0.5).any():
        raise ArgumentError(
            f"{sums} is too wide for a table and its inputs have the scale {scale.max():g}: only powers of two keep sums exact"
        )
    indices = [channels * block.taps + taps for channels, taps, _ in rows]
    weights = [row[2] * scale[index] for row, index in zip(rows, indices, strict=True)]
    bias = sums.bias()
    every = np.concatenate([*weights, bias])
    power = lowest_power(every) or 0
    if not len(every) or np.abs(every).max() * 2.0**-power >= 2**MAX_BITS:
        raise ArgumentError(f"the weights of {sums} span more than {MAX_BITS} bits: keep them on a grid with quantise_weights")
    coefficients = [np.rint(row * 2.0**-power).astype(np.int64) for row in weights]
    offset = np.rint(bias * 2.0**-power).astype(np.int64)
    domains = tuple(
        _range(edge.domains, index, row, int(add)) for index, row, add in zip(indices, coefficients, offset, strict=True)
    )
    start = np.cumsum([0, *map(len, indices)], dtype=np.int64)
    places, factors = (np.concatenate(parts).astype(np.int64) for parts in (indices, coefficients))
    return ExactSum(start, places, factors, offset, domains, 2.0**power, sums.divisor)


def _range(domains: Sequence[Domain], index: np.ndarray, coefficient: np.ndarray, bias: int) -> Domain:
    """Every value that bias + Σ coefficient · x may take, and the parts of it on the way, fit into this."""
    low = high = bias
    size = abs(bias)
    for place, factor in zip(index.tolist(), coefficient.tolist(), strict=True):
        ends = (factor * domains[place].low, factor * domains[place].high)
        low, high = low + min(ends), high + max(ends)
        size += max(abs(ends[0]), abs(ends[1]))
    if size >= 2**MAX_BITS:
        bits = math.ceil(math.log2(size)) + 1
        raise ArgumentError(
            f"a sum needs {bits} bits, expected at most {MAX_BITS}: keep the weights on a grid with quantise_weights"
        )
    return domain_for(low, high)

"""Shapes in a window of a signal: at how many places three of nine samples lie above the six others, by more than a constant.

The nine lie `apart` samples from each other, and begin at each place of the window where all of them fit. A sum says how far the
three are above: 2 a - b of each of them and each other, which is 3 (a1 + a2 + a3) less the sum of all nine, and is six times the
difference of their means. The kernels are those of MiniRocket (Dempster, Schmidt and Webb, 2021), and so is the share of places
as a feature. Whole numbers are added and compared: 3 a is a + a + a.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from lutetia.errors import check_int, fail

Array = np.ndarray[Any, Any]
SAMPLES, RAISED = 9, 3
KERNELS = tuple(combinations(range(SAMPLES), RAISED))  # the places of the three among the nine
WEIGHTS, PARTS = 12, 6  # the weights of a sum without their signs, and what it is divided by to be a difference of means
MOST_SHAPES = 1000
LOW, HIGH = "▁", "▇"


class SignalShape(NamedTuple):
    """The number of a signal; that of a kernel; how many samples its nine are apart; and what their sum is above."""

    signal: int
    kernel: int
    apart: int
    above: int

    @property
    def width(self) -> int:
        """From the first of its samples to the last."""
        return (SAMPLES - 1) * self.apart + 1

    def places(self, length: int) -> int:
        """Where it can begin in a window."""
        return length - self.width + 1

    def title(self, decimals: int) -> str:
        """What its input is called, in the unit of a signal of so many decimal places: one for each shape of a signal."""
        picture = "".join(HIGH if place in KERNELS[self.kernel] else LOW for place in range(SAMPLES))
        by = f"{self.above / PARTS / 10**decimals:.{decimals + 1}f}"  # a sixth is told from the next by one more place
        by = by.rstrip("0").rstrip(".")
        return f"share of {picture} over {self.width} samples by {'0' if by == '-0' else by}"


def most_apart(length: int) -> int:
    """How far apart the samples of a shape can be in a window; 0 where none fits."""
    return (length - 1) // (SAMPLES - 1)


def check_shapes(known: object, n_signals: int, length: int, bits: int) -> tuple[SignalShape, ...]:
    """Shapes as a file has them, lists of four whole numbers, once it is known that they fit such windows."""
    if not isinstance(known, list | tuple) or not 0 < len(known) <= MOST_SHAPES:
        fail("metadata.windows.shapes", known, f"1 to {MOST_SHAPES} shapes")
    most = WEIGHTS << bits - 1
    limits = (0, n_signals - 1), (0, len(KERNELS) - 1), (1, most_apart(length)), (-most, most)
    found = []
    for each in known:
        if not isinstance(each, list | tuple) or len(each) != len(limits):
            fail("metadata.windows.shapes", each, "a signal, a kernel, how far apart, and above what")
        for value, (low, high) in zip(each, limits, strict=True):
            check_int("metadata.windows.shapes", value, low, high)
        found.append(SignalShape(*each))
    if len(set(found)) < len(found):
        fail("metadata.windows.shapes", known, "shapes that differ")
    return tuple(found)


def shape_counts(samples: Array, starts: Array, shapes: Sequence[SignalShape], length: int) -> Array:
    """At how many places of each window its shapes are: samples int64 [rows, signals], windows of `length` rows that begin at
    starts int64 [n] -> int64 [n, shapes]."""
    from lutetia.models import shape_loops  # compiled: other models are used without loading numba

    asked = np.array(shapes, np.int64).reshape(-1, 4)
    limits = [samples.shape[1], len(KERNELS), most_apart(length) + 1]
    if (asked[:, :3] < (0, 0, 1)).any() or (asked[:, :3] >= limits).any():  # compiled loops read where they say
        fail("shapes", asked[:, :3].max(0).tolist(), f"signals, kernels and distances below {limits}, the last above 0")
    if len(starts) and not 0 <= starts.min() <= starts.max() <= len(samples) - length:
        fail("starts", (int(starts.min()), int(starts.max())), f"0 to {len(samples) - length}, where windows fit")
    order = np.lexsort(asked.T[[1, 2, 0]])  # those of one sum of nine follow each other
    found = np.empty((len(starts), len(shapes)), np.int64)
    signals = np.ascontiguousarray(samples.T, np.int64)
    shape_loops.count(signals, starts.astype(np.int64), length, asked[order], order, np.array(KERNELS), found)
    return found

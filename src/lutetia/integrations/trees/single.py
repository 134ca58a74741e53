"""Comparisons of 32-bit floats as cuts of 64-bit ones: every double falls on the same side, however it is rounded."""

from __future__ import annotations

import math

import numpy as np

BEYOND = 2.0**128  # the float32 that would follow the largest: what rounds to it is inf


def cut_above(threshold: float) -> float:
    """The double such that x > it exactly where float32(x) > threshold, for every double x.

    Between the largest float32 that is not above the threshold and the next one lies their middle, which rounds to the one
    whose last bit is 0.
    """
    if math.isinf(threshold) or math.isnan(threshold):
        return threshold
    with np.errstate(over="ignore", under="ignore"):
        low = np.float32(threshold)
        if float(low) > threshold:
            low = np.nextafter(low, np.float32(-np.inf))
        high = np.nextafter(low, np.float32(np.inf))
    low_end = float(low) if np.isfinite(low) else -BEYOND
    high_end = float(high) if np.isfinite(high) else BEYOND
    middle = low_end / 2 + high_end / 2
    is_even = not int(high.view(np.uint32)) & 1  # the bits of inf end in 0, as do those of BEYOND
    return math.nextafter(middle, -math.inf) if is_even else middle


def cut_from(threshold: float) -> float:
    """The same for float32(x) >= float32(threshold)."""
    with np.errstate(over="ignore", under="ignore"):
        below = np.nextafter(np.float32(threshold), np.float32(-np.inf))
    return cut_above(float(below)) if np.isfinite(below) else -math.inf

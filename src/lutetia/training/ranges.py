"""What a model keeps of the columns it was fitted to: their ranges, how fine they are, and which may be missing.

A circuit takes whole numbers in place of values, whose bits and steps follow from this.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
MOST_DECIMALS = 18
EXACT = 2**53  # whole numbers up to here are exact in float64
FIRST = 30  # rows that are tried before all others


def describe_columns(x: Array, fitted: Array) -> dict[str, Any]:
    """The metadata of columns x float64 [n, columns], NaN for what is missing; ranges are those of the rows that are `fitted`."""
    known = ~np.isnan(fitted)
    low, high = (end(fitted, 0, initial=start, where=known) for end, start in ((np.min, np.inf), (np.max, -np.inf)))
    low, high = (np.where(known.any(0), end, 0.0).tolist() for end in (low, high))
    places = enumerate(decimals_of(x))
    return {
        "input_low": low,
        "input_high": high,
        "decimals": {str(number): count for number, count in places if count is not None},
        "empty": np.flatnonzero(np.isnan(x).any(0)).tolist(),
    }


def decimals_of(x: Array) -> list[int | None]:
    """Of each column of x float64 [n, columns], NaN for what is missing: the fewest decimal places in which its values can be
    written, or as many as float32 shows where all are that; None where they have too many."""
    places = _places(x, np.float64)
    single = places < 0
    single[single] = (np.isnan(x[:, single]) | (x[:, single].astype(np.float32) == x[:, single])).all(0)
    places[single] = _places(x[:, single], np.float32)
    return [None if count < 0 else int(count) for count in places]


def _places(x: Array, kind: type[np.floating[Any]]) -> Array:
    """The decimal places of columns after which rounding changes nothing, at the precision of `kind`: int64 [columns], or -1."""
    places = np.zeros(x.shape[1], np.int64)
    largest = np.nanmax(np.abs(x), 0, initial=0)
    for rows in (x[:FIRST], x):  # most columns are known after a few
        for count in range(MOST_DECIMALS + 1):
            some = np.flatnonzero(places == count)
            own = rows[:, some]
            finer = some[~(np.isnan(own) | (np.round(own, count).astype(kind) == own.astype(kind))).all(0)]
            places[finer] = np.where((count < MOST_DECIMALS) & (largest[finer] * 10.0 ** (count + 1) < EXACT), count + 1, -1)
    return places

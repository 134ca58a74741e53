"""Intervals of predicted numbers: as wide as the errors of rows like it, and right for nine in ten new rows.

A few more tables (`spread.py`) learn how far the rows of the fit were off, as a multiple of their mean error: the spread of a
row. Rows that were not fitted then say by what number a spread is multiplied so that nine in ten of their errors stay within it:
locally weighted split conformal prediction (Lei, G'Sell, Rinaldo, Tibshirani and Wasserman, 2018). That holds for new rows
however good the spread is, if only rows come in no order; the better it is, the narrower are the intervals.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from lutetia.models import Tabular

Array = np.ndarray[Any, Any]
AT_ONCE = 1 << 14  # rows
NOTHING = 1e-6  # of the high end of an interval of counts: less is 0 but for rounding, in C and on pages, too


def error_bound(errors: Array, weight: Array | None = None) -> float | None:
    """What the absolute error of a new row stays within nine times in ten, by errors [n] of rows that were not fitted: split
    conformal prediction, which assumes only that rows come in no order. None for fewer than nine rows.

    With weights [n], the new row counts as much as the heaviest of them (Tibshirani, Foygel Barber, Candès and Ramdas, 2019)."""
    if weight is None or not len(errors):
        place = math.ceil(0.9 * (len(errors) + 1))
        return float(np.sort(errors)[place - 1]) if place <= len(errors) else None
    order, weight = np.argsort(errors, kind="stable"), weight.astype(np.float64) / weight.max()
    below = np.cumsum(weight[order])
    place = int(np.searchsorted(below, 0.9 * (below[-1] + 1) * (1 - 1e-12)))
    return float(errors[order[place]]) if place < len(errors) else None


def interval_bounds(model: Tabular, x: Array, y: Array, weight: Array | None = None) -> dict[str, float]:
    """What the metadata of a regression says of its errors, by rows x [n, *input_shape] that were not fitted, their numbers y [n]
    and weights [n]: the bound for all rows, and that for rows of spread 1; nothing of a quantile."""
    if not model.loss.has_intervals:
        return {}
    return error_bounds(model, x, np.abs(model.numbers(torch.from_numpy(x)).numpy() - y), weight)


def error_bounds(model: Tabular, x: Array, errors: Array, weight: Array | None = None) -> dict[str, float]:
    """The same by the absolute errors [n] of those rows, also of fewer tables than the model has."""
    bounds = {"error_90": error_bound(errors, weight)}
    if model.spread is not None:
        bounds["spread_90"] = error_bound(errors / row_spreads(model, x), weight)
    return {key: bound for key, bound in bounds.items() if bound is not None}


def half_widths(model: Tabular, x: Array) -> Array | None:
    """How far the interval of each row x [n, *input_shape] reaches from its prediction, float64 [n]; None where nothing is known
    of the errors."""
    known = model.metadata
    if model.spread is not None and "spread_90" in known:
        return float(known["spread_90"]) * row_spreads(model, x)
    return np.full(len(x), float(known["error_90"])) if "error_90" in known else None


def interval_ends(model: Tabular, middle: Array, reach: Array) -> tuple[Array, Array]:
    """The ends of intervals, float64 [n] each; numbers that are never negative have intervals from 0 at least."""
    low, high = middle - reach, middle + reach
    return np.where(low > NOTHING * high, low, 0.0) if model.loss.is_log else low, high


@torch.no_grad()
def row_spreads(model: Tabular, x: Array) -> Array:
    """The spread of each row, float64 [n]."""
    return torch.cat([model.spreads(part) for part in torch.from_numpy(x).split(AT_ONCE)]).double().numpy()

"""Intervals of predicted numbers: as wide as the errors of rows like it, and right for nine in ten new rows.

A few more tables learn how far the rows of the fit were off, as a multiple of their mean error: the spread of a row. Rows that
were not fitted then say by what number a spread is multiplied so that nine in ten of their errors stay within it: locally
weighted split conformal prediction (Lei, G'Sell, Rinaldo, Tibshirani and Wasserman, 2018). That holds for new rows however good
the spread is, if only rows come in no order; the better it is, the narrower are the intervals.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lutetia.models import Tabular
from lutetia.training.boosting import Boosted, Boosting, Numbers, boost

Array = np.ndarray[Any, Any]
N_TABLES, N_ANCHORS = 30, 3  # of the spread: more make no narrower intervals, on six sets of data
RATE, SMOOTHING = 0.1, 20.0
AT_ONCE = 1 << 14  # rows


def fit_spread(codes: Array, tops: Array, errors: Array, weight: Array, settings: Boosting) -> Boosted | None:
    """Tables of the spread, by absolute errors [n] of rows with codes uint8 [n_encoded, n]; None where there are no errors."""
    mean = float(np.average(errors, weights=weight))
    if not (math.isfinite(mean) and mean > 0):
        return None
    own = replace(settings, n_tables=N_TABLES, n_anchors=N_ANCHORS, rate=RATE, smoothing=SMOOTHING, patience=None)
    return boost(codes, tops, Numbers(errors / mean, weight), own)


def error_bound(errors: Array) -> float | None:
    """What the absolute error of a new row stays within nine times in ten, by errors [n] of rows that were not fitted: split
    conformal prediction, which assumes only that rows come in no order. None for fewer than nine rows."""
    place = math.ceil(0.9 * (len(errors) + 1))
    return float(np.sort(errors)[place - 1]) if place <= len(errors) else None


def interval_bounds(model: Tabular, x: Array, y: Array) -> dict[str, float]:
    """What the metadata of a regression says of its errors, by rows x [n, *input_shape] that were not fitted, and their numbers
    y [n]: the bound for all rows, and that for rows of spread 1."""
    errors = np.abs(predicted_numbers(model, x) - y)
    bounds = {"error_90": error_bound(errors)}
    if model.spread is not None:
        bounds["spread_90"] = error_bound(errors / row_spreads(model, x))
    return {key: bound for key, bound in bounds.items() if bound is not None}


def half_widths(model: Tabular, x: Array) -> Array | None:
    """How far the interval of each row x [n, *input_shape] reaches from its prediction, float64 [n]; None where nothing is known
    of the errors."""
    known = model.metadata
    if model.spread is not None and "spread_90" in known:
        return float(known["spread_90"]) * row_spreads(model, x)
    return np.full(len(x), float(known["error_90"])) if "error_90" in known else None


@torch.no_grad()
def predicted_numbers(model: Tabular, x: Array) -> Array:
    """The predictions of a regression, float64 [n]."""
    return torch.cat([model(part)[:, 0] for part in torch.from_numpy(x).split(AT_ONCE)]).double().numpy()


@torch.no_grad()
def row_spreads(model: Tabular, x: Array) -> Array:
    """The spread of each row, float64 [n]."""
    return torch.cat([model.spreads(part) for part in torch.from_numpy(x).split(AT_ONCE)]).double().numpy()

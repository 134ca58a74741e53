"""How far off predicted numbers are, row by row: a few more tables, fitted to the errors of a regression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lutetia.training.boosting import Boosted, Boosting, Validation, boost, score
from lutetia.training.goals import Numbers

Array = np.ndarray[Any, Any]
N_TABLES, N_ANCHORS = 30, 3  # of the spread: more make no narrower intervals on the sets of `lutetia bench intervals`
RATE, SMOOTHING = 0.1, 20.0


def fit_spread(fitted: Boosted, rows: Sequence[Validation], tops: Array, settings: Boosting) -> Boosted | None:
    """Tables of the spread: absolute errors of fitted numbers, as a multiple of their mean; None where there are no errors.

    `rows` are those that were fitted and those that decided when to stop.
    """
    errors = np.concatenate([_errors(fitted, part, settings.threads) for part in rows])
    weight = np.concatenate([part.goal.weight for part in rows])
    mean = float(np.average(errors, weights=weight))
    if not (math.isfinite(mean) and mean > 0):
        return None
    own = replace(settings, n_tables=N_TABLES, n_anchors=N_ANCHORS, rate=RATE, smoothing=SMOOTHING, patience=None)
    return boost(np.concatenate([part.codes for part in rows], 1), tops, Numbers(errors / mean, weight), own)


def _errors(fitted: Boosted, part: Validation, threads: int) -> Array:
    scores = np.zeros((part.codes.shape[1], 1)) + fitted.base
    score(part.codes, fitted.anchors, fitted.weight, scores, threads)
    assert isinstance(part.goal, Numbers)
    return np.abs(part.goal.y - part.goal.kind.numbers(scores[:, 0]))

"""How far off predicted numbers are, row by row: a few more tables, fitted to the errors of a regression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lutetia.training.boosting import Boosted, Boosting, Validation, boost, score
from lutetia.training.goals import Numbers
from lutetia.training.together import Together

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
    codes = np.concatenate([part.codes for part in rows], 1)
    return boost(codes, tops, Numbers(errors / mean, weight), _settings(settings))


def fit_spreads(fitted: Boosted, rows: Sequence[Validation], tops: Array, settings: Boosting) -> Boosted | None:
    """The same of several targets, whose spreads are fitted by the same tables; None where a target has no errors."""
    errors = np.concatenate([_errors_of_each(fitted, part, settings.threads) for part in rows])
    weight = np.concatenate([part.goal.weight for part in rows])
    mean = np.average(errors, 0, weight)
    if not (np.isfinite(mean) & (mean > 0)).all():
        return None
    goal = Together(tuple(Numbers(own.copy(), weight) for own in (errors / mean).T), weight)
    return boost(np.concatenate([part.codes for part in rows], 1), tops, goal, _settings(settings))


def _settings(settings: Boosting) -> Boosting:
    return replace(settings, n_tables=N_TABLES, n_anchors=N_ANCHORS, rate=RATE, smoothing=SMOOTHING, patience=None)


def _errors(fitted: Boosted, part: Validation, threads: int) -> Array:
    assert isinstance(part.goal, Numbers)
    return np.abs(part.goal.y - part.goal.kind.numbers(_scores(fitted, part, threads)[:, 0]))


def _errors_of_each(fitted: Boosted, part: Validation, threads: int) -> Array:
    """The errors of several targets, [n, targets]."""
    assert isinstance(part.goal, Together)
    found = zip(part.goal.goals, _scores(fitted, part, threads).T, strict=True)
    return np.stack([np.abs(goal.y - goal.kind.numbers(own)) for goal, own in found if isinstance(goal, Numbers)], 1)


def _scores(fitted: Boosted, part: Validation, threads: int) -> Array:
    scores = np.zeros((part.codes.shape[1], len(fitted.base))) + fitted.base
    score(part.codes, fitted.anchors, fitted.weight, scores, threads)
    return scores

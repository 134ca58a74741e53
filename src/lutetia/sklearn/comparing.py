"""`lutetia.sklearn.compare`: our estimators beside others on arrays and frames."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from lutetia.errors import check_int, in_one_line
from lutetia.models import Tabular
from lutetia.sklearn.boosted import BoostedEstimator, LUTClassifier, LUTRegressor
from lutetia.sklearn.contest import OURS, Contest, document, fit_ours, play
from lutetia.sklearn.peers import Problem, contestants
from lutetia.training import Shape, TabularRows, fold_rows, make_target

MOST_FOLDS = 100


def compare(
    X: Any, y: Any, *, task: str | None = None, folds: int = 5, sample_weight: Any = None, random_state: int = 0,
    n_jobs: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """How `LUTClassifier`, or `LUTRegressor`, does on X and y beside other methods, each with its defaults, as plain values.

    `task` is "classification" or "regression", guessed from y by default, as `lutetia train` does. Rows are drawn at random.
    There is no time limit: the command `lutetia compare` has one.
    """
    check_int("folds", folds, 2, MOST_FOLDS)
    classes = make_target(np.asarray(y).tolist(), task, "y")[1]
    shared: dict[str, Any] = {"random_state": random_state, "n_jobs": n_jobs}
    estimator: BoostedEstimator = (
        LUTClassifier(calibrate=True, enough_tables=True, **shared) if classes else LUTRegressor(**shared)
    )
    rows = estimator._rows(X, y, sample_weight)
    shape = estimator._shape(max(1, len(classes)))
    problem = Problem(shape, seed=random_state, threads=estimator._threads())
    contest = Contest(problem, rows, fold_rows(rows, bool(classes), 1 / folds, folds, "X"))
    fits, left_out = contestants(problem)
    ours = partial(fit_ours, partial(_model, estimator, shape), problem.threads)
    turns = {OURS: list(play(contest, ours))}
    for name, fit in fits.items():
        try:
            turns[name] = list(play(contest, fit))
        except Exception as error:  # what others raise has no common parent
            left_out[name] = f"it failed: {in_one_line(error)}"
    return document(contest, turns, left_out)


def _model(estimator: BoostedEstimator, shape: Shape, rows: TabularRows) -> Tabular:
    return estimator.fit_rows(rows, shape)[0]

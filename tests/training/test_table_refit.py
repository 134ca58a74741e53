"""Whether the first tables of a model are fitted again is decided on rows that neither fit has seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits

from lutetia.models import Tabular
from lutetia.training.boosting import Boosting
from lutetia.training.table_measure import measure
from lutetia.training.table_refit import HELD, SEED, refit_tables, try_refit
from lutetia.training.tabular import Shape, TabularRows, fit_tabular

SETTINGS = Boosting(n_tables=60, n_anchors=3, candidates=16, rate=0.03)


def fitted(x: np.ndarray, y: np.ndarray, settings: Boosting, n_classes: int) -> tuple[Tabular, TabularRows]:
    rows = TabularRows(x.astype(np.float64), y, np.ones(len(y), np.float32))
    model, _ = fit_tabular(rows, Shape(n_classes, (0,) * x.shape[1], (x.shape[1],)), settings)
    return model, rows


def test_weak_tables_are_fitted_again() -> None:
    x, y = (part[:600] for part in load_digits(return_X_y=True))
    settings = replace(SETTINGS, n_tables=400, n_anchors=4)
    model, rows = fitted(x, y, settings, 10)
    trial = try_refit(model, rows, 12, settings)
    assert trial is not None
    assert trial.gains
    assert trial.again > trial.cut + 0.03
    assert trial.rows == 120
    assert trial.to_dict()["kept"] == "again"


@pytest.mark.parametrize("n_classes", [1, 2])
def test_tables_that_would_learn_noise_stay_as_they_are(n_classes: int) -> None:
    """The target is a coin: each further round learns the training rows, and loses on others."""
    random = np.random.default_rng(3)
    x = random.random((400, 5))
    y = (random.random(400) < 0.3).astype(np.int64)
    settings = replace(SETTINGS, n_tables=300, n_anchors=6, rate=0.3)
    model, rows = fitted(x, y if n_classes == 2 else y.astype(np.float64), settings, n_classes)
    trial = try_refit(model, rows, 32, settings)
    assert trial is not None
    assert not trial.gains
    assert trial.to_dict() | {"again": 0, "cut": 0} == {
        "kept": "cut", "measure": "rmse" if n_classes == 1 else "accuracy", "rows": 80, "cut": 0, "again": 0,
    }  # fmt: skip


def test_the_rows_that_decide_are_in_neither_fit() -> None:
    """The same by hand; and with other targets in the rows held out, what was fitted is the same: all its answers are wrong."""
    x, y = (part[:200] for part in load_digits(return_X_y=True))
    model, rows = fitted(x, y, SETTINGS, 10)
    trial = try_refit(model, rows, 40, SETTINGS)
    order = np.random.default_rng(SEED).permutation(200)
    held, own = order[: 200 // HELD], order[200 // HELD :]
    part, part_rows = fitted(x[own], y[own], replace(SETTINGS, n_tables=40), 10)
    assert trial is not None
    assert trial.cut == measure(part, x[held], y[held])["accuracy"]
    assert trial.again == measure(refit_tables(part, part_rows, 40, 20, SETTINGS), x[held], y[held])["accuracy"]
    right = (trial.cut, trial.again)
    other = y.copy()
    other[held] = (other[held] + 1) % 10
    moved = try_refit(model, TabularRows(rows.x, other, rows.weight), 40, SETTINGS)
    assert moved is not None
    assert max(moved.cut, moved.again) <= 1 - min(right)


def test_too_few_rows_decide_nothing() -> None:
    model, rows = fitted(np.arange(4.0)[:, None], np.array([0, 1, 0, 1]), SETTINGS, 2)
    assert try_refit(model, rows, 4, SETTINGS) is None

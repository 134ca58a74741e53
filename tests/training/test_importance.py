"""Columns that a model depends on, against shuffled raw values and scikit-learn's permutation importance."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
from sklearn.inspection import permutation_importance
from sklearn.metrics import log_loss

from lutetia.sklearn import LUTClassifier, LUTRegressor
from lutetia.training.importance import MOST_ROWS, TIMES, column_importance


def samples(n: int) -> tuple[pandas.DataFrame, np.ndarray]:
    """Numbers with missing values, categories, and a column that says nothing; three classes."""
    random = np.random.default_rng(0)
    size, town, noise = random.normal(size=n), random.integers(4, size=n), random.normal(size=n)
    y = (2 * size + (town == 2) * 2 + random.normal(0, 0.5, n) > 0).astype(int) + (town == 3)
    size[::9] = np.nan
    return pandas.DataFrame({"size": size, "town": pandas.Categorical(np.array(list("abcd"))[town]), "noise": noise}), y


def test_it_is_the_loss_of_shuffled_values() -> None:
    frame, y = samples(300)
    model = LUTClassifier(n_tables=30, random_state=0).fit(frame, y)
    x = model._matrix(frame)
    found = column_importance(model.model_, x, y, seed=3)
    random = np.random.default_rng(3)
    rows = random.permutation(300)
    orders = [random.permutation(300) for _ in range(TIMES)]
    before = log_loss(y, _chances(model, x))
    for column, rise in enumerate(found):
        losses = []
        for order in orders:
            changed = x[rows].copy()
            changed[:, column] = changed[order, column]
            losses.append(log_loss(y[rows], _chances(model, changed)))
        assert rise == pytest.approx(np.mean(losses) - before, rel=1e-4, abs=1e-6)


def _chances(model: LUTClassifier, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model.model_(torch.from_numpy(x)).double().softmax(1).numpy()


def test_it_agrees_with_scikit_learn() -> None:
    frame, y = samples(MOST_ROWS + 500)
    model = LUTClassifier(n_tables=60, random_state=0).fit(frame, y)
    found = column_importance(model.model_, model._matrix(frame), y)
    expected = permutation_importance(model, frame, y, scoring="neg_log_loss", n_repeats=5, random_state=0).importances_mean
    assert found == pytest.approx(expected, rel=0.15, abs=0.02)
    assert min(found[:2]) > 10 * found[2]


def test_numbers_are_measured_by_their_rmse() -> None:
    x = np.random.default_rng(0).normal(size=(500, 3))
    y = 10 * x[:, 1]
    model = LUTRegressor(n_tables=200, pairs=0, random_state=0).fit(x, y)
    found = column_importance(model.model_, x, y)
    before = np.sqrt(np.mean((model.predict(x) - y) ** 2))
    assert found[1] == pytest.approx(np.sqrt(2) * y.std() - before, rel=0.05)  # a value in the place of an independent one
    assert max(abs(found[0]), abs(found[2])) < 0.5


def test_a_column_that_no_table_reads_is_worth_exactly_nothing() -> None:
    x = np.random.default_rng(0).normal(size=(300, 3))
    x[:, 2] = 1.0  # one value has no threshold
    y = (x[:, 0] + np.random.default_rng(1).normal(size=300) > 0).astype(int)
    model = LUTClassifier(n_tables=20, random_state=0).fit(x, y)
    assert 2 not in model.model_.tables.anchors[..., 0]
    found = [column_importance(model.model_, x[:count], y[:count])[2] for count in range(100, 300, 2)]
    assert found == [0.0] * 100  # a third of a loss three times is not always the loss

"""Shapley values of columns, against their definition: all groups of all columns, predicted by the model itself."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lutetia.errors import ArgumentError
from lutetia.models import LUTClassifier, Tabular
from lutetia.report import attribute_class, attribute_from_average, decisions
from lutetia.report.shapley import MOST_ROWS, background_rows, shapley
from lutetia.sklearn import LUTClassifier as Estimator
from lutetia.sklearn import LUTRegressor
from tools import require_module

require_module("sklearn")
require_module("numba")
Array = np.ndarray[Any, Any]
COLUMNS = 5


@pytest.fixture(scope="module")
def rows() -> Array:
    random = np.random.default_rng(3)
    x = random.normal(size=(200, COLUMNS))
    x[:, 1] = random.integers(0, 4, 200)  # categories
    x[random.random(200) < 0.2, 2] = np.nan
    return x


@pytest.fixture(scope="module")
def classifier(rows: Array) -> Estimator:
    y = 1 * (np.nan_to_num(rows[:, 2]) + rows[:, 0] * (rows[:, 1] > 1) > 0) + (rows[:, 3] > rows[:, 4])
    return Estimator(n_tables=12, n_anchors=5, pairs=0.5, categorical_features=[1], random_state=0).fit(rows, y)


def slow(model: Tabular, x: Tensor, weights: Tensor, background: Tensor) -> tuple[Tensor, float]:
    """By the definition, of one row x [columns]: every group of columns joined by every other column."""

    def score(group: tuple[int, ...]) -> float:
        mixed = background.clone()
        mixed[:, list(group)] = x[list(group)]
        with torch.no_grad():
            return float((model(mixed).double() @ weights).mean())

    scores = {group: score(group) for size in range(COLUMNS + 1) for group in combinations(range(COLUMNS), size)}
    values = torch.zeros(COLUMNS, dtype=torch.float64)
    for group in [group for group in scores if len(group) < COLUMNS]:
        orders = math.factorial(len(group)) * math.factorial(COLUMNS - 1 - len(group)) / math.factorial(COLUMNS)
        for column in set(range(COLUMNS)) - set(group):
            values[column] += orders * (scores[tuple(sorted((*group, column)))] - scores[group])
    return values, scores[()]


def test_they_are_what_their_definition_says(rows: Array, classifier: Estimator) -> None:
    model, x, background = classifier.model_, torch.from_numpy(rows[:4]), torch.from_numpy(rows[50:61])
    weights = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values, average = shapley(model, x, weights, background)
    for number in range(4):
        wanted, mean = slow(model, x[number], weights[number], background)
        torch.testing.assert_close(values[number], wanted, rtol=0, atol=1e-5)
        assert float(average[number]) == pytest.approx(mean, abs=1e-5)
    assert values.abs().amax(0).min() > 0.01  # of categories and of what is missing, too


def test_an_estimator_explains_by_how_far_a_row_is_from_the_average(rows: Array) -> None:
    y = 3 * rows[:, 0] + 10
    model = LUTRegressor(n_tables=20, n_anchors=4, random_state=0).fit(rows, y)
    found = model.explain(rows[:6], rule="shapley", background=rows)
    assert found.average is not None
    np.testing.assert_allclose(found.relevance.sum(1) + found.average, model.predict(rows[:6]), atol=1e-4)
    drawn = background_rows(torch.from_numpy(rows))
    assert len(drawn) == MOST_ROWS
    assert found.average == pytest.approx(np.full(6, model.predict(drawn.numpy()).mean()), abs=1e-4)
    assert found.to_text().startswith("on average: +")
    assert np.corrcoef(found.relevance[:, 0], rows[:6, 0])[0, 1] > 0.9  # below the average it counts against
    alone = model.explain(rows[:1], rule="shapley", background=rows[:1])
    assert np.abs(alone.relevance).max() < 1e-9  # a row does not differ from itself


def test_reports_and_single_rows_take_the_same_values(rows: Array, classifier: Estimator) -> None:
    model, x, background = classifier.model_, torch.from_numpy(rows[:2]), torch.from_numpy(rows[20:30])
    values, average = attribute_from_average(model, x, torch.tensor([1, 2]), background)
    one = attribute_class(model, x[1], 2, "shapley", background)
    torch.testing.assert_close(one.relevance, values[1])
    assert one.absorbed == pytest.approx(float(average[1]))
    decided = decisions(model, x[1:], rules=["shapley"], target=2, background=background)
    assert decided.items[0].heat["shapley"] == one.relevance.tolist()


def test_what_they_are_not_for_is_refused(rows: Array, classifier: Estimator) -> None:
    x = torch.from_numpy(rows[:1])
    with pytest.raises(ArgumentError, match="compares with other rows, expected them as background"):
        classifier.explain(rows[:1], rule="shapley")
    with pytest.raises(ArgumentError, match="background has no rows, expected one at least"):
        attribute_class(classifier.model_, x[0], 0, "shapley", x[:0])
    with pytest.raises(ArgumentError, match=r"background is float64 \[1, 2\] on cpu, expected shape \[m, 5\]"):
        attribute_class(classifier.model_, x[0], 0, "shapley", x[:, :2])
    with pytest.raises(ArgumentError, match="model a LUTClassifier, expected a model of a table of data"):
        attribute_class(LUTClassifier(input_shape=[4], n_classes=2, layers=[]), torch.zeros(4), 0, "shapley", x)
    wide = LUTRegressor(n_tables=1, n_anchors=8, pairs=1.0, random_state=0)
    many = np.random.default_rng(0).normal(size=(300, 40))
    wide.fit(many, many.sum(1))
    with pytest.raises(ArgumentError, match=r"compares 1[56] columns, expected at most 14 for exact Shapley values"):
        wide.explain(many[:1], rule="shapley", background=many)

"""Limits on which columns meet hold exactly: by the fitted tables, and by what predictions do when two columns change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lutetia.models import Tabular, data_columns, find_grams
from lutetia.training.boosting import Boosting, score
from lutetia.training.interactions import ANY, Interactions
from lutetia.training.table_refit import refit_tables, try_refit
from lutetia.training.tabular import Shape, TabularRows, fit_tabular

Array = np.ndarray[Any, Any]
SETTINGS = Boosting(n_tables=40, n_anchors=4, candidates=12, pairs=0.5, rate=0.5)
DAY = 86_400.0


def data(n: int, n_classes: int = 1, seed: int = 0) -> TabularRows:
    """Five columns that meet in threes: a date, numbers with some missing, and categories."""
    random = np.random.default_rng(seed)
    x = random.integers(0, 30, (n, 5)).astype(np.float64)
    x[:, 0] = random.integers(0, 1500, n) * DAY
    x[:, 4] = random.integers(0, 5, n)
    signal = np.sin(x[:, 0] / DAY / 58) * (x[:, 1] > 12) * (x[:, 2] - 15) / 9 + np.cos(x[:, 3] / 5) * (x[:, 4] - 2)
    signal += 0.1 * random.normal(size=n)
    x[:, 1:4][random.random((n, 3)) < 0.1] = np.nan
    y = np.digitize(signal, np.linspace(-1, 1, n_classes - 1)) if n_classes > 1 else signal
    return TabularRows(x, y, random.integers(1, 3, n).astype(np.float32))


def shape(interactions: Interactions, n_classes: int = 1, monotone: tuple[int, ...] = ()) -> Shape:
    return Shape(n_classes, (0, 0, 0, 0, 5), (5,), frozenset({0}), monotone, interactions)


def columns_met(model: Tabular) -> set[frozenset[int]]:
    """The columns of the data that each table compares, one table after another."""
    owner = {number: at for at, column in enumerate(data_columns(model.metadata, model.n_columns)) for number in column.inputs}
    sources = model.encoding.source.tolist()
    met = set()
    for anchors in model.tables.anchors.tolist():
        read = {entry for anchor in anchors for entry in anchor if entry < len(sources)}
        met.add(frozenset(owner[sources[entry]] for entry in read))
    return met


def may_meet(columns: frozenset[int], limits: Interactions, n: int) -> bool:
    """A second reading of what limits say."""
    if limits.most:
        return len(columns) <= limits.most
    listed = {column for group in limits.groups for column in group}
    return any(columns <= set(group) for group in [*limits.groups, [each for each in range(n) if each not in listed]])


LIMITS = [
    Interactions(1),
    Interactions(2),
    Interactions(3),
    Interactions(0, ((0, 1), (2, 3))),
    Interactions(0, ((0, 1), (1, 2), (1, 2, 3), (3,))),
    Interactions(0, ((1, 4),)),
]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("n_classes", [1, 2, 4])
def test_a_table_has_only_columns_that_may_meet(limits: Interactions, n_classes: int) -> None:
    rows = data(400, n_classes)
    monotone = (0, 1, 0, -1, 0) if n_classes < 3 else ()
    for signs in {(), monotone}:
        model, _ = fit_tabular(rows, shape(limits, n_classes, signs), SETTINGS)
        met = columns_met(model)
        assert all(may_meet(each, limits, 5) for each in met), met
        assert len(met) > 2
    free = columns_met(fit_tabular(rows, shape(ANY, n_classes), SETTINGS)[0])
    assert not all(may_meet(each, limits, 5) for each in free)


def scores(model: Tabular, x: Array) -> Array:
    """The sums of the tables in float64, with the rows of the tables rounded so that sums are exact: [n, outputs]."""
    weight = np.round(model.tables.weight.detach().double().numpy() * 2**20) / 2**20
    found = np.zeros((len(x), model.config.n_classes))
    score(model.encoding.codes(x), model.tables.anchors.numpy().astype(np.int64), weight, found)
    return found


def mixed_differences(model: Tabular, x: Array, one: int, other: int, seed: int) -> Array:
    """What two changes do together beyond what each does alone, [n, outputs]."""
    donors = x[np.random.default_rng(seed).permutation(len(x))]
    changed = [x.copy() for _ in range(4)]
    for number, rows in enumerate(changed):
        if number & 1:
            rows[:, one] = donors[:, one]
        if number & 2:
            rows[:, other] = donors[:, other]
    neither, first, second, both = (scores(model, rows) for rows in changed)
    return both - first - second + neither


@pytest.mark.parametrize("n_classes", [1, 3])
@pytest.mark.parametrize("limits", [LIMITS[0], LIMITS[3]])
def test_columns_that_do_not_meet_add_up_exactly(limits: Interactions, n_classes: int) -> None:
    rows = data(300, n_classes)
    model, _ = fit_tabular(rows, shape(limits, n_classes), SETTINGS)
    again = refit_tables(model, rows, 12, 30, SETTINGS)
    try_refit(model, rows, 12, SETTINGS)
    for each in (model, model.first(9), again):
        for one in range(5):
            for other in range(one):
                found = mixed_differences(each, rows.x, one, other, one + 5 * other)
                assert (found == 0).all() or may_meet(frozenset({one, other}), limits, 5)
    free, _ = fit_tabular(rows, shape(ANY, n_classes), SETTINGS)
    assert np.abs(mixed_differences(free, rows.x, 0, 1, 0)).max() > 0.01


def test_three_columns_never_act_at_once_where_two_may_meet() -> None:
    rows = data(300)
    model, _ = fit_tabular(rows, shape(Interactions(2)), SETTINGS)
    donors = rows.x[::-1]

    def changed(columns: tuple[int, ...]) -> Array:
        x = rows.x.copy()
        x[:, list(columns)] = donors[:, list(columns)]
        return scores(model, x)

    alone, pairs = sum(map(changed, [(0,), (1,), (2,)])), sum(map(changed, [(0, 1), (0, 2), (1, 2)]))
    np.testing.assert_array_equal(changed((0, 1, 2)) - pairs + alone - changed(()), np.zeros((300, 1)))
    assert np.abs(changed((0, 1)) - changed((0,)) - changed((1,)) + changed(())).max() > 0.01


def test_all_that_is_made_of_a_text_is_one_column() -> None:
    random = np.random.default_rng(0)
    words = np.array(["good fine", "bad poor", "so so", "good poor", "bad fine day"])
    texts = words[random.integers(0, 5, 200)].tolist()
    x = random.random((200, 2))
    y = np.array(["good" in text for text in texts]) * np.where(x[:, 0] > 0.5, 1.0, -1.0) + x[:, 1]
    grams = find_grams(texts, "said", 1, fewest=2)
    rows = TabularRows(x, y, np.ones(200, np.float32), texts=(grams,))
    for limits in (Interactions(1), Interactions(0, ((0, 2),)), Interactions(0, ((1, 2),))):
        model, _ = fit_tabular(rows, Shape(1, (0, 0), (2,), interactions=limits), SETTINGS)
        met = columns_met(model)
        assert all(may_meet(each, limits, 3) for each in met), met
        assert any(1 in each for each in met)  # the text stands between the numbers
    free, _ = fit_tabular(rows, Shape(1, (0, 0), (2,)), SETTINGS)
    assert not all(may_meet(each, Interactions(1), 3) for each in columns_met(free))


def test_columns_that_are_constant_are_left_alone() -> None:
    rows = data(60)
    x = np.ones_like(rows.x)
    for varying in ((), (3,)):
        x[:, list(varying)] = rows.x[:, list(varying)]
        plain = replace(rows, x=np.nan_to_num(x))
        model, _ = fit_tabular(plain, Shape(1, (0,) * 5, (5,), interactions=Interactions(1)), SETTINGS)
        assert all(len(each) <= 1 for each in columns_met(model))


def test_a_sum_of_curves_is_learned_better_as_one() -> None:
    random = np.random.default_rng(0)
    x, fresh = random.random((300, 6)), random.random((3000, 6))

    def truth(x: Array) -> Array:
        return np.sin(6 * x[:, 0]) + np.abs(x[:, 1] - 0.5) * 3 + x[:, 2] ** 2

    rows = TabularRows(x, truth(x) + random.normal(size=300), np.ones(300, np.float32))
    errors = []
    for limits in (ANY, Interactions(1)):
        settings = Boosting(n_tables=100, n_anchors=3, candidates=16)
        model, _ = fit_tabular(rows, Shape(1, (0,) * 6, (6,), interactions=limits), settings)
        errors.append(np.sqrt(np.mean((scores(model, fresh)[:, 0] - truth(fresh)) ** 2)))
    assert errors[1] < 0.9 * errors[0]

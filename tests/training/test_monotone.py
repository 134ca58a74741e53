"""Monotonic constraints hold exactly: through all ranks of a column, in floats and in whole numbers, whatever was fitted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from lutetia.models import Tabular
from lutetia.precompute import integer_model
from lutetia.training.boosting import N_CONSTANTS, Boosting
from lutetia.training.monotone import contradict, directions, make_monotone
from lutetia.training.table_refit import refit_tables, try_refit
from lutetia.training.tabular import Shape, TabularRows, fit_tabular

Array = np.ndarray[Any, Any]


def falls(rows: Array, way: Array) -> list[tuple[int, int]]:
    """The pairs of neighbouring cells that go the wrong way, found one by one."""
    found = []
    for cell in range(len(rows)):
        for place, sign in enumerate(way):
            if sign and not cell >> place & 1:
                low, high = (cell, cell | 1 << place)[:: int(sign)]
                found += [(low, high)] if rows[low] > rows[high] else []
    return found


tables = st.integers(1, 5).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(-9, 9, width=16), min_size=1 << n, max_size=1 << n),
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 30.0]), min_size=1 << n, max_size=1 << n),
        st.lists(st.sampled_from([-1, 0, 1]), min_size=n, max_size=n),
    )
)


@given(tables)
@settings(max_examples=50, deadline=None)
def test_pooled_rows_never_go_the_wrong_way(table: tuple[list[float], list[float], list[int]]) -> None:
    before, held, way = np.array(table[0])[:, None], np.array(table[1])[:, None], np.array(table[2], np.int8)
    rows = before.copy()
    make_monotone(rows, held, way)
    assert falls(rows[:, 0], way) == []
    assert before.min() <= rows.min() <= rows.max() <= before.max()
    if not falls(before[:, 0], way):
        np.testing.assert_array_equal(rows, before)
    again = rows.copy()
    make_monotone(again, held, way)
    np.testing.assert_array_equal(again, rows)
    both = np.hstack([-before, before])  # of two classes: the first goes the other way
    make_monotone(both, np.hstack([held, held]), way)
    np.testing.assert_array_equal(both, np.hstack([-rows, rows]))


@pytest.mark.parametrize("seed", range(8))
def test_pooled_rows_are_nearly_the_nearest(seed: int) -> None:
    """Beside a solver of the whole problem; the mean of all samples stays the same."""
    random = np.random.default_rng(seed)
    before, held, way = random.normal(size=8), random.uniform(0.1, 5, 8), np.array([1, -1, int(seed > 3)], np.int8)
    rows = before[:, None].copy()
    make_monotone(rows, held[:, None], way)
    pairs = [(cell, cell | 1 << place)[:: int(sign)] for cell in range(8) for place, sign in enumerate(way)
             if sign and not cell >> place & 1]  # fmt: skip
    limits = [{"type": "ineq", "fun": lambda v, low=low, high=high: v[high] - v[low]} for low, high in pairs]
    best = minimize(lambda v: (held * (v - before) ** 2).sum(), np.zeros(8), method="SLSQP", constraints=limits).fun
    own = (held * (rows[:, 0] - before) ** 2).sum()
    assert best - 1e-6 <= own <= 1.15 * best + 1e-6
    assert (held * rows[:, 0]).sum() == pytest.approx((held * before).sum())


def test_a_mean_that_is_rounded_up_breaks_no_order() -> None:
    """The mean of two neighbouring floats may come out above both, and above a cell that was in order with the first."""
    random, seen = np.random.default_rng(0), 0
    while seen < 20:
        high, held = random.uniform(1, 2), random.uniform(0.1, 9, 2)
        low = np.nextafter(high, 0)
        if (low * held[1] + high * held[0]) / (held[1] + held[0]) > high:
            rows = np.array([high, high, low, 3.0])[:, None]
            make_monotone(rows, np.array([held[0], 1.0, held[1], 1.0])[:, None], np.array([1, 1], np.int8))
            assert falls(rows[:, 0], np.array([1, 1])) == []
            seen += 1


def test_the_directions_of_anchors() -> None:
    """By raising each input code by code: where an answer changes, it changes that way."""
    signs, random = np.array([1, -1, 0, -1], np.int8), np.random.default_rng(0)
    anchors = np.array([(left, right) for left in range(4) for right in [*range(4), *range(4, 20)] if left != right])
    own = directions(anchors, signs)
    for anchor, direction in zip(anchors, own, strict=True):
        if anchor[1] < 4 and contradict(anchor[:1], anchor[1:], signs)[0]:
            continue
        changes = set()
        for codes in random.integers(1, 18, (60, 4)):
            for column in np.flatnonzero(signs):
                walked = np.repeat(codes[None], 18, 0)
                walked[:, column] = np.arange(1, 19)
                bits = walked[:, anchor[0]] > (walked[:, anchor[1]] if anchor[1] < 4 else anchor[1] - 4)
                changes |= set(np.unique(np.diff(bits.astype(int)) * signs[column])) - {0}
        assert changes <= {direction}
        assert (direction == 0) == (not changes)


# ---- whole models ----------------------------------------------------------------------------------------------------


def data(n: int, seed: int, n_classes: int) -> TabularRows:
    """Numbers that go up and down with each column, some missing: no constraint fits them."""
    random = np.random.default_rng(seed)
    x = random.integers(0, 40, (n, 4)).astype(np.float64)
    signal = np.sin(x[:, 0] / 4) + np.cos(x[:, 1] / 5) * (x[:, 2] > 20) - (x[:, 0] > x[:, 3]) + 0.3 * random.normal(size=n)
    x[random.random((n, 4)) < 0.1] = np.nan
    y = (signal > 0).astype(np.int64) if n_classes == 2 else np.exp(signal).round(2)
    return TabularRows(x, y, random.integers(1, 3, n).astype(np.float32))


def answers(model: Tabular, x: Array) -> Array:
    with torch.no_grad():
        scores = model(torch.from_numpy(x)).numpy()
    return scores[:, -1] - scores[:, 0] if scores.shape[1] == 2 else scores[:, 0]


def wrong_steps(predict: Any, rows: Array, monotone: tuple[int, ...]) -> int:
    """How often an answer goes the wrong way as one column of a row is raised through all its values."""
    values = np.arange(-1.0, 42.0, 0.5)
    wrong = 0
    for column, sign in enumerate(monotone):
        walked = np.repeat(rows, len(values), 0)
        walked[:, column] = np.tile(values, len(rows))
        steps = np.diff(predict(walked).reshape(len(rows), -1), axis=1)
        wrong += int((steps * sign < 0).sum()) if sign else 0
    return wrong


SETTINGS = Boosting(n_tables=25, n_anchors=5, candidates=12, pairs=0.5, rate=0.5)


@given(
    st.sampled_from([(1, -1, 0, 0), (1, 1, 1, 1), (-1, 0, 1, -1), (0, 0, 0, -1)]),
    st.sampled_from(["classes", "squared_error", "absolute_error", "quantile", "poisson"]),
    st.integers(0, 50),
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_answers_never_go_the_wrong_way(monotone: tuple[int, ...], goal: str, seed: int) -> None:
    n_classes = 2 if goal == "classes" else 1
    rows, shape = data(300, seed, n_classes), Shape(n_classes, (0,) * 4, (4,), monotone=monotone)
    wanted = replace(SETTINGS, seed=seed, balanced=goal == "classes", calibrate=goal == "classes")
    if goal != "classes":
        wanted = replace(wanted, loss=goal, quantile=0.8 if goal == "quantile" else None, intervals=goal != "quantile")
    model, _ = fit_tabular(rows, shape, wanted)
    assert model.config.monotone == monotone
    again = refit_tables(model, rows, 10, 40, wanted)
    try_refit(model, rows, 10, wanted)  # the trial knows the constraint, too
    at = rows.x[:25]
    for each in (model, model.first(7), again):
        assert wrong_steps(lambda x, each=each: answers(each, x), at, monotone) == 0
        for bits in (3, 6):
            whole = integer_model(each, weight_bits=bits)
            assert wrong_steps(lambda x, whole=whole: whole(whole.quantise(torch.from_numpy(x))).numpy(), at, monotone) == 0
    assert not np.array_equal(again.tables.weight.detach(), model.tables.weight.detach()[:10])


def test_without_a_constraint_they_do() -> None:
    """So that the tests above can fail: each part of the fit is needed."""
    rows, monotone = data(300, 0, 1), (1, -1, 0, 1)
    free, _ = fit_tabular(rows, Shape(1, (0,) * 4, (4,)), SETTINGS)
    assert wrong_steps(lambda x: answers(free, x), rows.x[:25], monotone) > 100
    assert free.config.monotone == ()
    bound, _ = fit_tabular(rows, Shape(1, (0,) * 4, (4,), monotone=monotone), SETTINGS)
    loose = replace(bound.config, monotone=())
    forgot = Tabular(loose)
    forgot.encoding, forgot.metadata = bound.encoding, bound.metadata
    forgot.set_tables(bound.tables.anchors, bound.tables.weight.data)
    refitted = refit_tables(forgot, rows, 10, 40, SETTINGS)
    assert wrong_steps(lambda x: answers(refitted, x), rows.x[:25], monotone) > 10


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_the_whole_numbers_of_tables_one_by_one(bits: int) -> None:
    """Brute force on what programs and circuits are made of: each table alone, all codes of each constrained input."""
    monotone = (1, -1, 0, 1)
    model, _ = fit_tabular(data(400, 3, 2), Shape(2, (0,) * 4, (4,), monotone=monotone), replace(SETTINGS, calibrate=True))
    stage = integer_model(model, weight_bits=bits).stages[-1]
    random = np.random.default_rng(0)
    checked = 0
    for number, lanes in enumerate(stage.lanes):
        assert stage.targets[number].tolist() == [1]  # of two classes only the second has sums
        for _ in range(6):
            codes = random.integers(0, 42, 4)
            for column, sign in enumerate(monotone):
                before = None
                for code in range(1, 43) if sign else ():
                    codes[column] = code
                    index = 0
                    for lane in lanes:
                        right = stage.right[lane]
                        index = 2 * index + int(codes[stage.left[lane]] > (stage.constant[lane] if right < 0 else codes[right]))
                    value = int(stage.contents[number][index ^ stage.flip[number], 0])
                    assert before is None or (value - before) * sign >= 0
                    before, checked = value, checked + 1
    assert checked > 1000


def test_missing_values_are_compared_with_none() -> None:
    """A column that raises answers, and whose missing values have the highest: the constraint does not pull these down."""
    random = np.random.default_rng(0)
    x = random.uniform(0, 10, (1000, 1))
    y = x[:, 0].copy()
    x[::4], y[::4] = np.nan, 30.0
    settings = Boosting(n_tables=100, n_anchors=3, candidates=32)
    model, _ = fit_tabular(TabularRows(x, y, np.ones(1000, np.float32)), Shape(1, (0,), (1,), monotone=(1,)), settings)
    found = model.numbers(torch.tensor([[float("nan")], [0.5], [9.5]])).numpy()
    assert found[0] == pytest.approx(30, abs=1)
    assert found[1] == pytest.approx(0.5, abs=1)
    assert found[2] == pytest.approx(9.5, abs=1)


def test_a_date_is_the_date_alone_where_it_is_constrained() -> None:
    """Its month goes up and down with it."""
    random = np.random.default_rng(0)
    days = random.integers(0, 1500, 400) * 86_400.0
    y = days / 86_400 / 300 + np.sin(days / 86_400 / 58) + 0.1 * random.normal(size=400)
    x = np.stack([days, random.random(400)], 1)
    rows = TabularRows(x, y, np.ones(400, np.float32))
    free, bound = (fit_tabular(rows, Shape(1, (0, 0), (2,), frozenset({0}), monotone), SETTINGS)[0] for monotone in ((), (1, 0)))
    assert any(free.encoding.parts)
    assert not any(bound.encoding.parts)
    walked = np.stack([np.arange(-10.0, 1510.0) * 86_400, np.full(1520, 0.4)], 1)
    assert (np.diff(answers(bound, walked)) >= 0).all()
    assert (np.diff(answers(free, walked)) < 0).any()


def test_constraints_that_are_true_help() -> None:
    random = np.random.default_rng(0)
    x, fresh = random.uniform(size=(400, 3)), random.uniform(size=(4000, 3))

    def truth(x: Array) -> Array:
        return 3 * x[:, 0] - 2 * x[:, 1] ** 2

    y = truth(x) + random.normal(size=400)
    rows, errors = TabularRows(x, y, np.ones(400, np.float32)), []
    for monotone in ((), (1, -1, 0)):
        model, _ = fit_tabular(rows, Shape(1, (0,) * 3, (3,), monotone=monotone), Boosting(n_tables=100))
        errors.append(np.sqrt(np.mean((answers(model, fresh) - truth(fresh)) ** 2)))
    assert errors[1] < 0.8 * errors[0]


def test_thresholds_are_those_of_codes() -> None:
    """`directions` takes the first constant for the one that tells missing values from others."""
    assert N_CONSTANTS == 255
    assert directions(np.array([[0, 1], [0, 2]]), np.array([1], np.int8)).tolist() == [0, 1]

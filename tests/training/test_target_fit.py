"""Several targets fitted by the same tables: each by its own goal, each until it has enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.models import Targets
from lutetia.training.boosting import Boosting, Validation, boost
from lutetia.training.goals import Classes, Numbers, Step, number_goal
from lutetia.training.tabular import Shape, TabularRows
from lutetia.training.target_fit import fit_targets, target_bounds
from lutetia.training.together import Together

Array = np.ndarray[Any, Any]
SETTINGS = Boosting(n_tables=40, n_anchors=3, candidates=24)


def rows_of(n: int = 700, seed: int = 0) -> TabularRows:
    """A number that one threshold tells, and one that takes many; with weights."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 4))
    y = np.stack([np.where(x[:, 0] > 0, 5.0, -5.0), 100 * np.sin(3 * x[:, 1]) + 40 * x[:, 2] + random.normal(size=n)], 1)
    return TabularRows(x, y, random.uniform(0.5, 2, n).astype(np.float32))


def shape(n_columns: int = 4) -> Shape:
    return Shape(1, (0,) * n_columns, (n_columns,))


def test_goals_together_are_the_goals_one_by_one() -> None:
    random = np.random.default_rng(0)
    n, weight = 300, np.ones(300, np.float32)
    goals = (
        Numbers(random.normal(size=n), weight),
        Classes(random.integers(3, size=n), 3, weight),
        Numbers(np.arange(n) / n, weight),
    )
    both = Together(goals, weight)
    scores, cells = random.normal(size=(n, 5)), random.integers(4, size=n).astype(np.uint16)
    missing, each = both.residuals(scores)
    rows, step = np.zeros((4, 5)), Step(0.1, 1.0)
    both.fill(cells, scores, (missing, each), step, rows)
    for goal, part in zip(goals, (slice(0, 1), slice(1, 4), slice(4, 5)), strict=True):
        own = np.ascontiguousarray(scores[:, part])
        alone = goal.residuals(own)
        np.testing.assert_array_equal(missing[:, part], alone[0])
        filled = np.zeros((4, goal.n_outputs))
        goal.fill(cells, own, alone, step, filled)
        np.testing.assert_array_equal(rows[:, part], filled)
        np.testing.assert_array_equal(both.start()[part], goal.start())
        np.testing.assert_array_equal(both.sums(cells, (missing, each), 4)[:, :, part], goal.sums(cells, alone, 4))
    np.testing.assert_allclose(both.loss(scores), both.losses(scores).mean())
    spread = (both.residuals(np.tile(both.start(), (n, 1)))[0] * both.scale) ** 2
    np.testing.assert_allclose([spread[:, part].mean() for part in both.parts], 1)


def test_each_target_stops_where_it_was_best() -> None:
    rows = rows_of()
    own, held = rows.at(slice(0, 500)), rows.at(slice(500, 700))
    codes = np.clip(np.searchsorted(np.linspace(-2, 2, 99), rows.x.T) + 1, 0, 255).astype(np.uint8)
    goals = [
        Together(tuple(number_goal((part.y[:, at] - 1) / 50, part.weight, SETTINGS.number_loss) for at in range(2)), part.weight)
        for part in (own, held)
    ]
    settings = replace(SETTINGS, n_tables=2000, patience=3)
    fitted = boost(codes[:, :500], np.full(4, 100), goals[0], settings, valid=Validation(codes[:, 500:], goals[1]))
    whole = boost(codes[:, :500], np.full(4, 100), goals[0], replace(settings, patience=None, n_tables=len(fitted.anchors)))
    counts = [int(np.flatnonzero(fitted.weight[:, :, at].any(1)).max()) + 1 for at in range(2)]
    assert counts[0] < counts[1] == len(fitted.anchors)
    # By hand: the validation loss of each target over its tables is lowest after the last that it keeps.
    for at, count in enumerate(counts):
        score, losses = np.full(200, fitted.base[at]), []
        for table in range(len(fitted.anchors)):
            left, right = fitted.anchors[table].T
            other = np.stack([codes[r, 500:] if r < 4 else np.full(200, r - 4) for r in right])
            cell = ((codes[left, 500:] > other) << np.arange(3)[:, None]).sum(0)
            score = score + fitted.weight[table, cell, at]
            losses.append(np.average((goals[1].goals[at].y - score) ** 2, weights=held.weight))  # type: ignore[attr-defined]
        looks = losses[9::10]
        assert 10 * (1 + int(np.argmin(looks))) == count
    np.testing.assert_array_equal(whole.weight[: counts[0]], fitted.weight[: counts[0]])  # until then nothing differs


def test_a_part_is_its_target_alone() -> None:
    rows = replace(rows_of(), weight=np.ones(700, np.float32))
    settings = replace(SETTINGS, n_tables=400, patience=3, intervals=True)
    model, _ = fit_targets(rows.at(slice(0, 400)), shape(), (1, 1), settings, valid=rows.at(slice(400, 500)))
    held = rows.at(slice(500, 700))
    x = torch.from_numpy(held.x)
    both = model(x).detach()
    errors = both.double().numpy() - held.y
    assert (np.sqrt((errors**2).mean(0)) < 0.4 * held.y.std(0)).all()
    bounds = target_bounds(model, held)
    model.metadata = {"task": "regression", "targets": [{"target": "a", **bounds[0]}, {"target": "b", **bounds[1]}]}
    for at, part in enumerate(model.all_parts):
        torch.testing.assert_close(part(x)[:, 0].detach(), both[:, at], rtol=1e-5, atol=1e-4)
        assert part.metadata["target"] == "ab"[at]
        place = int(np.ceil(0.9 * 201)) - 1
        assert bounds[at]["error_90"] == pytest.approx(np.sort(np.abs(errors[:, at]))[place], rel=1e-3)
        assert part.spread is not None
        assert part.spreads(x).std() > 0
    assert model.part(0).config.n_tables < model.part(1).config.n_tables == model.config.n_tables


def test_classes_have_temperatures_and_numbers_of_tables_of_their_own() -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(900, 3))
    y = np.stack([x[:, 0] > 0, np.digitize(x[:, 1] + random.normal(0, 0.7, 900), [-0.5, 0.5])], 1).astype(np.int64)
    rows = TabularRows(x, y, np.ones(900, np.float32))
    settings = replace(SETTINGS, n_tables=150, calibrate=True)
    sure, fitted = fit_targets(rows, shape(3), (2, 3), settings)
    temperature = np.broadcast_to(fitted.temperature, 5)
    assert temperature[0] == temperature[1] < temperature[2] == temperature[4]
    plain, _ = fit_targets(rows, shape(3), (2, 3), replace(settings, calibrate=False))
    raw, divided = (model(torch.from_numpy(x)).detach().numpy() for model in (plain, sure))
    np.testing.assert_allclose(divided, raw / temperature, atol=1e-4)
    model, _ = fit_targets(rows, shape(3), (2, 3), replace(settings, enough_tables=True))
    assert isinstance(model, Targets)
    assert model.part(1).config.n_tables < model.part(0).config.n_tables  # noise is soon enough
    scores = model(torch.from_numpy(x)).detach().numpy()
    assert (scores[:, :2].argmax(1) == y[:, 0]).mean() > 0.98
    assert (scores[:, 2:].argmax(1) == y[:, 1]).mean() > 0.55


def test_categories_are_ordered_for_each_target() -> None:
    kinds = np.tile(np.arange(6.0), 60)
    y = np.stack([np.array([0, 5, 1, 4, 2, 3])[kinds.astype(int)], np.array([3, 1, 4, 0, 5, 2])[kinds.astype(int)]], 1).astype(
        float
    )
    rows = TabularRows(kinds[:, None], y, np.ones(360, np.float32))
    model, _ = fit_targets(rows, Shape(1, (6,), (1,)), (1, 1), SETTINGS)
    orders = [ranks.tolist() for ranks in model.encoding.ranks]
    assert orders == [[1, 6, 2, 5, 3, 4], [4, 2, 5, 1, 6, 3]]


@pytest.mark.parametrize(
    ("changes", "settings", "why"),
    [
        ({"monotone": (1, 0, 0, 0)}, {}, "monotonic constraints with 2 targets"),
        ({}, {"loss": "own", "function": lambda y, p: (p - y, y)}, "a loss of your own with 2 targets"),
        ({"input_shape": (2, 2)}, {}, "images with 2 targets"),
    ],
)
def test_what_is_for_one_target_is_refused(changes: dict[str, Any], settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        fit_targets(rows_of(50), replace(shape(), **changes), (1, 1), replace(SETTINGS, **settings))

"""What tables are fitted to: losses beside scikit-learn's, rows beside a search for the lowest loss, and quantiles that hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lutetia._shared.losses import LOSSES, Loss
from lutetia.errors import ArgumentError
from lutetia.training.boosting import Boosting, boost, refit, score
from lutetia.training.goals import Numbers, Step, number_goal
from lutetia.training.quantile_loops import quantile_rows
from sklearn import metrics

QUANTILES = (0.1, 0.5, 0.83)


def loss_of(name: str) -> Loss:
    return Loss(name, 0.8 if name == "quantile" else None)


def numbers(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Counts, some of them 0, and weights, some of them 0."""
    random = np.random.default_rng(seed)
    return random.poisson(2.0, n).astype(np.float64), random.integers(0, 4, n).astype(np.float32)


def test_losses_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    y, weight = numbers(50)
    predicted = random.random(50) * 3 + 0.1
    expected = {
        "squared_error": metrics.mean_squared_error(y, predicted, sample_weight=weight),
        "absolute_error": metrics.mean_absolute_error(y, predicted, sample_weight=weight),
        "quantile": metrics.mean_pinball_loss(y, predicted, sample_weight=weight, alpha=0.8),
        "poisson": metrics.mean_poisson_deviance(y, predicted, sample_weight=weight),
    }
    parts = {
        "squared_error": metrics.r2_score(y, predicted),
        "absolute_error": metrics.d2_absolute_error_score(y, predicted),
        "quantile": metrics.d2_pinball_score(y, predicted, alpha=0.8),
        "poisson": metrics.d2_tweedie_score(y, predicted, power=1),
    }
    for name in LOSSES:
        assert loss_of(name).mean(predicted, y, weight) == pytest.approx(expected[name], rel=1e-9)
        assert loss_of(name).explained(predicted, y) == pytest.approx(parts[name], rel=1e-9)
    assert loss_of("squared_error").measure(predicted, y) == pytest.approx(metrics.root_mean_squared_error(y, predicted))


@pytest.mark.parametrize("name", LOSSES)
def test_the_start_and_the_rows_have_the_lowest_loss(name: str) -> None:
    """With rate 1 and no smoothing no other number for a row has a lower loss: found by trying the numbers nearby."""
    y, weight = numbers(200)
    goal = number_goal(y, weight, loss_of(name))
    cells = np.random.default_rng(1).integers(0, 5, len(y))
    cells[cells == 3] = 4  # row 3 has no samples
    base = goal.start()
    scores, rows = np.tile(base, (len(y), 1)), np.empty((5, 1))
    goal.fill(cells, scores, goal.residuals(scores), Step(1.0, 0.0), rows)
    assert rows[3, 0] == 0
    steps = [-1.0, -0.3, -0.02, 0.02, 0.3, 1.0]
    slack = 1e-3 if name == "poisson" else 1e-9  # of which some smoothing is never left out
    lowest = goal.loss(scores)
    assert all(goal.loss(scores + step) >= lowest - slack for step in steps)
    lowest = goal.loss(scores + rows[cells])
    for row in range(5):
        for step in steps:
            changed = rows.copy()
            changed[row] += step
            assert goal.loss(scores + changed[cells]) >= lowest - slack


@pytest.mark.parametrize("level", QUANTILES)
@pytest.mark.parametrize("n", [1, 2, 3, 10, 97])
def test_rows_are_weighted_quantiles(level: float, n: int) -> None:
    """Beside numpy's quantile of samples that are repeated by their weights; many are equal."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        y, weight = random.integers(0, 8, n) * 0.5, random.integers(0, 3, n).astype(np.float32)
        if not weight.sum():
            continue
        found = number_goal(y, weight, Loss("quantile", level)).start()[0]
        assert found == pytest.approx(np.quantile(np.repeat(y, weight.astype(int)), level, method="averaged_inverted_cdf"))


@pytest.mark.parametrize("n", [3, 700, 5000])
@pytest.mark.parametrize("kind", ["normal", "heavy", "few values", "far from 0"])
def test_each_row_is_the_quantile_of_its_own_samples(n: int, kind: str) -> None:
    """Few samples per row are compared as they are, many are counted by size before; some have no weight."""
    random = np.random.default_rng(n)
    off = {"normal": random.normal(size=n), "heavy": random.standard_cauchy(n) ** 3,
           "few values": random.integers(-2, 3, n) / 4, "far from 0": random.normal(size=n) + 1e6}[kind]  # fmt: skip
    cells, weight = random.integers(0, 8, n).astype(np.uint16), random.integers(0, 3, n).astype(np.float32)
    for level in QUANTILES:
        rows = np.full((8, 1), np.nan)
        quantile_rows(cells, off, weight, (level, 0.5, 2.0), rows)
        for row in range(8):
            own = np.repeat(off[cells == row], weight[cells == row].astype(int))
            found = np.quantile(own, level, method="averaged_inverted_cdf") if len(own) else 0.0
            assert rows[row, 0] == pytest.approx(0.5 * len(own) / (len(own) + 2) * found, rel=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_more_smoothing_means_smaller_steps_in_the_same_direction(name: str) -> None:
    y, weight = numbers(100)
    goal = number_goal(y, weight, loss_of(name))
    cells = np.random.default_rng(1).integers(0, 8, len(y))
    scores = np.tile(goal.start(), (len(y), 1))
    found = []
    for smoothing in (0.0, 1.0, 10.0):
        rows = np.empty((8, 1))
        goal.fill(cells, scores, goal.residuals(scores), Step(0.5, smoothing), rows)
        found.append(rows[:, 0])
    assert (np.sign(found[1]) == np.sign(found[0])).all()
    assert (np.abs(found[1]) <= np.abs(found[0])).all()
    assert np.abs(found[2]).sum() < np.abs(found[1]).sum() < np.abs(found[0]).sum()


@pytest.mark.parametrize("name", LOSSES)
def test_residuals_are_the_slopes_of_the_loss(name: str) -> None:
    y, weight = numbers(30)
    y = y + 0.25  # no score is exactly right
    goal = number_goal(y, weight, loss_of(name))
    scores = np.full((30, 1), 0.4)
    missing = goal.residuals(scores)[0][:, 0]
    for sample in range(30):
        near = [scores.copy() for _ in range(2)]
        near[0][sample], near[1][sample] = 0.4 - 1e-5, 0.4 + 1e-5
        slope = (goal.loss(near[0]) - goal.loss(near[1])) / 2e-5 * weight.sum()
        factor = 2.0 if name in ("squared_error", "poisson", "absolute_error") else 1.0  # as losses are written
        assert slope == pytest.approx(factor * missing[sample], abs=1e-3)


@pytest.mark.parametrize("name", ["absolute_error", "quantile", "poisson"])
def test_tables_learn_by_their_loss(name: str) -> None:
    """Tables fitted to a loss have a lower one on new rows than tables fitted to squared errors, and a second fit lowers it."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 256, (3, 3000)).astype(np.uint8)
    mean = np.exp(codes[0] / 128 - 1.0 + (codes[1] > 128))
    y = random.poisson(mean).astype(np.float64)
    loss, tops = loss_of(name), np.full(3, 255)
    settings = Boosting(n_tables=60, n_anchors=3, candidates=16)
    fit, new = slice(0, 2000), slice(2000, None)
    predicted, found = {}, {}
    for kind in (loss, Loss()):
        goal = number_goal(y[fit], np.ones(2000, np.float32), kind)
        fitted = boost(np.ascontiguousarray(codes[:, fit]), tops, goal, settings)
        scores = np.tile(fitted.base, (1000, 1))
        score(np.ascontiguousarray(codes[:, new]), fitted.anchors, fitted.weight, scores)
        predicted[kind.name] = np.maximum(kind.numbers(scores[:, 0]), 1e-3)
        found[kind.name] = loss.mean(predicted[kind.name], y[new])
        if kind == loss:
            assert fitted.losses["train"] == sorted(fitted.losses["train"], reverse=True)
            rows = fitted.weight.copy()
            rows[0] += fitted.base
            few = replace(settings, rate=0.3)
            again = refit(np.ascontiguousarray(codes[:, fit]), goal, fitted.anchors[:8], rows[:8], 40, few)
            losses = []
            for weight in (rows[:8], again):
                scores = np.zeros((2000, 1))
                score(np.ascontiguousarray(codes[:, fit]), fitted.anchors[:8], weight, scores)
                losses.append(goal.loss(scores))
            assert losses[1] < losses[0]
    assert found[name] < found["squared_error"]
    if name == "quantile":
        assert np.mean(y[new] <= predicted[name]) == pytest.approx(0.8, abs=0.05)


def test_rows_of_counts_that_are_all_zero_stay_finite() -> None:
    y = np.array([0.0, 0, 0, 5])
    goal = number_goal(y, np.ones(4, np.float32), Loss("poisson"))
    rows, scores = np.empty((2, 1)), np.tile(goal.start(), (4, 1))
    goal.fill(np.array([0, 0, 0, 1]), scores, goal.residuals(scores), Step(1.0, 0.0), rows)
    assert np.isfinite(rows).all()
    assert rows[0, 0] < -5
    goal = number_goal(np.zeros(4), np.ones(4, np.float32), Loss("poisson"))  # of which only held-out samples have a count
    scores = np.tile(goal.start(), (4, 1))
    goal.fill(np.array([0, 0, 0, 1]), scores, goal.residuals(scores), Step(1.0, 1.0), rows)
    assert np.isfinite(rows).all()
    assert np.isfinite(goal.held(goal.residuals(scores))).all()


def test_one_class_per_loss() -> None:
    assert type(number_goal(np.zeros(1), np.ones(1, np.float32), Loss())) is Numbers


@pytest.mark.parametrize(
    ("name", "quantile", "message"),
    [
        ("huber", None, "loss is 'huber'"),
        ("quantile", None, "quantile is None, expected a number between 0 and 1"),
        ("quantile", 0.0, "quantile is 0.0"),
        ("quantile", 1.0, "quantile is 1.0"),
        ("quantile", float("nan"), "quantile is nan"),
        ("quantile", True, "quantile is True"),
        ("quantile", "0.5", "quantile is '0.5'"),
        ("poisson", 0.5, 'quantile is 0.5, expected None with loss="poisson"'),
    ],
)
def test_losses_that_do_not_exist_are_refused(name: str, quantile: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Loss(name, quantile)  # type: ignore[arg-type]


def test_counts_below_zero_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r'y holds -1, expected numbers of at least 0 with loss="poisson"'):
        Loss("poisson").check_target(np.array([2.0, -1.0]))
    with pytest.raises(ArgumentError, match="y is 0 in every row"):
        Loss("poisson").check_target(np.zeros(3))
    Loss("absolute_error").check_target(np.array([-1.0]))

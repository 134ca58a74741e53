"""Probabilities that are as high as the classes are frequent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss

from lutetia.sklearn import LUTClassifier
from lutetia.training.boosting import Boosting
from lutetia.training.calibration import HIGHEST, best_temperature, enough_of, held_out, row_losses, table_looks
from lutetia.training.goals import Classes
from lutetia.training.table_run import guess_config
from lutetia.training.tabular import Shape, TabularRows, fit_tabular


def noisy(n: int, n_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples whose classes are drawn: no model can be sure of them."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 5))
    chances = np.exp(1.2 * x[:, :n_classes])
    drawn = (chances / chances.sum(1, keepdims=True)).cumsum(1) > random.random((n, 1))
    return x, drawn.argmax(1)


@pytest.mark.parametrize(("scale", "n_classes"), [(1.0, 2), (3.0, 2), (1.7, 5), (50.0, 3)])
def test_the_temperature_is_that_of_a_plain_search(scale: float, n_classes: int) -> None:
    random = np.random.default_rng(0)
    scores = random.normal(size=(400, n_classes))
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    y = (chances.cumsum(1) > random.random((400, 1))).argmax(1)
    weight = random.random(400).astype(np.float32)

    def loss(log_temperature: float) -> float:
        powers = np.exp(scores * scale / np.exp(log_temperature))
        return log_loss(y, powers / powers.sum(1, keepdims=True), sample_weight=weight, labels=range(n_classes))

    expected = np.exp(minimize_scalar(loss, bounds=(0, np.log(HIGHEST)), method="bounded", options={"xatol": 1e-9}).x)
    assert best_temperature(scores * scale, Classes(y, n_classes, weight)) == pytest.approx(max(1.0, expected), rel=1e-3)


def test_scores_are_never_raised() -> None:
    y = np.array([0, 1, 0, 1])
    assert best_temperature(np.eye(2)[y] * 0.1, Classes(y, 2, np.ones(4, np.float32))) == 1.0


@pytest.mark.parametrize("n", [1, 4, 5, 23])
def test_rows_are_in_one_part_each(n: int) -> None:
    own, held = held_out(n, 7)
    assert sorted([*own, *held]) == list(range(n))
    assert len(held) == n // 5


@pytest.mark.parametrize("balanced", [False, True])
def test_probabilities_improve_and_classes_stay(balanced: bool) -> None:
    (x, y), (held, wanted) = noisy(800, 3, 0), noisy(2000, 3, 1)
    weight = "balanced" if balanced else None
    plain, sober = (
        LUTClassifier(n_tables=400, random_state=0, class_weight=weight, calibrate=each).fit(x, y) for each in (False, True)
    )
    assert plain.temperature_ == 1.0
    assert sober.temperature_ > 1.2
    np.testing.assert_array_equal(plain.predict(held), sober.predict(held))
    before, after = (log_loss(wanted, each.predict_proba(held)) for each in (plain, sober))
    best = min(log_loss(wanted, _softmax(sober.decision_function(held) * factor)) for factor in np.linspace(0.2, 3, 60))
    assert after < before - 0.1
    assert after - best < 0.1 * (before - best)  # near the best that any temperature does


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores)
    return powers / powers.sum(1, keepdims=True)


def test_the_model_is_the_plain_one_divided() -> None:
    x, y = noisy(300, 2, 0)
    rows, shape = TabularRows(x, y, np.ones(300, np.float32)), Shape(2, (0,) * 5, (5,))
    done: list[int] = []

    def each(tables: int, losses: dict[str, float]) -> None:
        done.append(tables)

    (plain, _), (sober, fitted) = (
        fit_tabular(rows, shape, Boosting(n_tables=40, balanced=True, calibrate=wanted), each=each) for wanted in (False, True)
    )
    np.testing.assert_allclose(
        sober.tables.weight.detach() * fitted.temperature, plain.tables.weight.detach(), rtol=1e-5, atol=1e-7
    )
    assert done == [*_tens(40), *_tens(80)]


def _tens(most: int) -> Sequence[int]:
    return range(10, most + 1, 10)


@pytest.mark.parametrize("y", [[0, 1, 0], [0, 0, 0, 0, 1]])
def test_few_samples_are_left_as_they_are(y: list[int]) -> None:
    x = np.arange(len(y), dtype=np.float64)[:, None]
    model = LUTClassifier(n_tables=3, calibrate=True, random_state=0).fit(x, y)
    assert model.temperature_ == 1.0


def test_a_file_with_enough_rows_is_calibrated(tmp_path: Path) -> None:
    for n, expected in ((249, False), (250, True)):
        rows = "".join(f"{number % 17},{number % 5},{'xy'[number % 2]}\n" for number in range(n))
        (tmp_path / "a.csv").write_text(f"a,b,kind\n{rows}")
        assert guess_config(tmp_path / "a.csv", None, None)[0].fit.calibrate is expected
        assert guess_config(tmp_path / "a.csv", None, None)[0].fit.enough_tables is expected
    assert guess_config(tmp_path / "a.csv", "a", "regression")[0].fit.calibrate is False


def test_calibrate_is_true_or_false() -> None:
    with pytest.raises(ValueError, match="calibrate is 'yes', expected True or False"):
        LUTClassifier(calibrate="yes").fit([[0.0], [1.0]], [0, 1])


def test_enough_tables_are_those_that_no_more_are_better_than() -> None:
    assert table_looks(30) == [30]
    assert table_looks(100) == [40, 60, 90, 100]
    scores = np.random.default_rng(0).normal(size=(50, 3)) * 5
    y = np.arange(50) % 3
    np.testing.assert_allclose(
        row_losses(scores, y),
        [log_loss([k], _softmax(s[None]), labels=[0, 1, 2]) for s, k in zip(scores, y, strict=True)],
        rtol=1e-6,
    )
    even, rest = np.ones(4), np.array([2.0, 0, 2, 0])
    assert enough_of(np.array([rest + 0.05, [1, 1, 1, 1.0], [1.1, 1.1, 1.1, 1.1]]), even) == 1  # surely lower than the last
    assert enough_of(np.array([rest - 0.1, [1, 1, 1, 1.0]]), even) == 1  # lower by less than chance explains: all tables
    assert enough_of(np.array([rest - 0.1, [1, 1, 1, 1.0]]), np.array([0, 1.0, 0, 1])) == 0  # rows count by their weights


def test_noise_gets_few_tables_and_a_pattern_all() -> None:
    """Of the last fifth of a trial; a fit of so many tables is the beginning of the whole one."""
    random = np.random.default_rng(3)
    x = random.normal(size=(600, 4))
    classes = {"noise": random.random(600) < 0.5 + 0.2 * np.sign(x[:, 0]), "pattern": x[:, 0] * x[:, 1] * x[:, 2] > 0}
    counts = {}
    for name, y in classes.items():
        rows, shape = TabularRows(x, y.astype(np.int64), np.ones(600, np.float32)), Shape(2, (0,) * 4, (4,))
        settings, done = Boosting(n_tables=150, calibrate=True, enough_tables=True), []
        fitted = fit_tabular(rows, shape, settings, each=lambda tables, losses, done=done: done.append(tables))[1]
        counts[name] = len(fitted.anchors)
        whole = fit_tabular(rows, shape, Boosting(n_tables=150))[1]
        np.testing.assert_array_equal(fitted.anchors, whole.anchors[: counts[name]])
        assert done == [*_tens(150), *(150 + each for each in _tens(counts[name]))]
    assert counts == {"noise": 40, "pattern": 150}


def test_enough_tables_need_a_trial() -> None:
    with pytest.raises(ValueError, match="enough_tables is True and calibrate is False"):
        LUTClassifier(enough_tables=True).fit([[0.0], [1.0]], [0, 1])

"""A loss of one's own: the models of built-in losses from functions, checked results, and folders that name the function."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from cli.test_train_table import Capture, told
from lutetia._shared.losses import OWN, Loss
from lutetia.errors import ArgumentError
from lutetia.models import load
from lutetia.sklearn import LUTRegressor
from lutetia.training.own_loss import OwnNumbers, function_name, n_arguments
from tools import require_tool

Array = np.ndarray[Any, Any]
SMALL = {"n_tables": 30, "n_anchors": 3, "candidates": 16, "random_state": 0, "n_jobs": 1}


def squared(y: Array, p: Array) -> tuple[Array, Array]:
    return p - y, np.ones(len(y))


def weighted(y: Array, p: Array, sample_weight: Array) -> tuple[Array, Array]:
    return sample_weight * (p - y), sample_weight


class Squared:
    """The same as an object, whose value is known."""

    def __call__(self, y: Array, p: Array) -> tuple[Array, Array]:
        return squared(y, p)

    def value(self, y: Array, p: Array) -> Array:
        return (p - y) ** 2 / 2


def log_cosh(y: Array, p: Array, width: float = 1.0) -> tuple[Array, Array]:
    slope = np.tanh((p - y) / width)
    return slope, (1 - slope**2) / width


def counts(y: Array, p: Array) -> tuple[Array, Array]:
    """Poisson's loss by the logarithm."""
    return np.exp(p) - y, np.exp(p)


def logistic(y: Array, p: Array) -> tuple[Array, Array]:
    chance = 1 / (1 + np.exp(-p))
    return chance - y, chance * (1 - chance)


def data(n: int = 300, seed: int = 0) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    x = random.uniform(0, 3, (n, 3))
    return x, 50 + 10 * np.sin(2 * x[:, 0]) + x[:, 1] + random.normal(size=n)


@pytest.mark.parametrize("loss", [squared, Squared(), weighted, lambda y, p: (1e4 * (p - y), np.full(len(y), 1e4))])
def test_squared_errors_by_a_function(loss: Any) -> None:
    """The model of the built-in loss, whatever the scale of the function; the same number of tables is kept."""
    x, y = data()
    weight = np.random.default_rng(1).integers(1, 3, len(y)).astype(float)
    known, own = (LUTRegressor(**{**SMALL, "n_tables": 200}, loss=each).fit(x, y, weight) for each in ("squared_error", loss))
    assert own.n_tables_ == known.n_tables_ < 200
    np.testing.assert_allclose(own.predict(x), known.predict(x), rtol=1e-5)
    assert own.score(x, y) > 0.9


def test_the_change_of_a_loss_is_added_up_from_its_slopes() -> None:
    """For squared errors exactly the difference of the values; for another loss nearly."""
    x, y = data()
    told, added = (LUTRegressor(**SMALL, loss=each).fit(x, y).losses_ for each in (Squared(), squared))
    for part in ("train", "valid"):
        np.testing.assert_allclose(np.diff(added[part]), np.diff(told[part]), rtol=1e-9)
    goal = OwnNumbers(y, np.ones(len(y), np.float32), Loss(OWN, None, partial(log_cosh, width=3.0)))
    way = [50 + part * (y - 50) for part in np.linspace(0, 0.9, 10)]
    found = [goal.loss(scores[:, None]) for scores in way]
    values = [float(np.mean(3 * np.logaddexp((scores - y) / 3, (y - scores) / 3))) for scores in way]
    np.testing.assert_allclose(np.diff(found), np.diff(values), rtol=0.02)


@pytest.mark.parametrize("loss", [squared, log_cosh, counts, logistic])
def test_a_fit_starts_from_the_best_constant(loss: Any) -> None:
    random = np.random.default_rng(0)
    y = (random.random(200) < 0.2).astype(float) if loss is logistic else random.poisson(150, 200).astype(float)
    weight = random.integers(0, 3, 200).astype(np.float32)
    goal = OwnNumbers(y, weight, Loss(OWN, None, loss))
    value = {
        squared: lambda p: (p - y) ** 2 / 2,
        log_cosh: lambda p: np.logaddexp(p - y, y - p),
        counts: lambda p: np.exp(p) - y * p,
        logistic: lambda p: np.logaddexp(0, p) - y * p,
    }[loss]
    best = minimize_scalar(lambda p: (weight * value(p)).sum(), bounds=(-5, 200), options={"xatol": 1e-9}, method="bounded")
    assert float((weight * value(goal.start()[0])).sum()) <= best.fun + 1e-9 * abs(best.fun)


def test_counts_by_a_function() -> None:
    """Scores are logarithms, as they are given; the loss is as low as that of the built-in counts."""
    x, _ = data()
    y = np.random.default_rng(0).poisson(np.exp(x[:, 0])).astype(float)
    own, known = (LUTRegressor(**SMALL, loss=each).fit(x, y) for each in (counts, "poisson"))
    deviance = Loss("poisson").mean
    assert (
        deviance(np.exp(own.predict(x)), y) < 1.05 * deviance(known.predict(x), y) < 0.5 * deviance(np.full(len(y), y.mean()), y)
    )


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda y, p: p - y, "returned a ndarray, expected a pair: gradient and hessian"),
        (lambda y, p: (p - y, p, p), "returned 3 values, expected a pair"),
        (lambda y, p: (p - y, 1.0), r"the hessian of <lambda> has the shape \[\], expected \[270\]"),
        (lambda y, p: (p[:-1], p), r"the gradient of <lambda> has the shape \[269\], expected \[270\]"),
        (lambda y, p: (p * np.nan, p * 0 + 1), "the gradient of <lambda> holds nan, expected finite numbers"),
        (lambda y, p: (p - y, p * 0 - 2), "the hessian of <lambda> holds -2, expected numbers of at least 0"),
        (lambda y, p: (p - y, p * 0), "the hessian of <lambda> is 0 for every sample"),
        (lambda y, p: ("a", "b"), "the gradient of <lambda> is a str, expected numbers"),
        (lambda y: (y, y), "takes .y., expected .y_true, y_pred. or .y_true, y_pred, sample_weight."),
        (lambda y, p, w, group: (y, y), "takes .y, p, w, group., expected"),
        (type("Bad", (Squared,), {"value": lambda self, y, p: 0.0})(), r"the value of Bad has the shape \[\]"),
    ],
)
def test_what_a_function_returns_is_checked(loss: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LUTRegressor(**SMALL, loss=loss).fit(*data())


def test_a_function_cannot_change_the_data() -> None:
    def careless(y: Array, p: Array) -> tuple[Array, Array]:
        p -= y
        y[:] = 7
        return p, np.ones(len(y))

    x, y = data()
    known, own = (LUTRegressor(**SMALL, loss=each).fit(x, y) for each in (squared, careless))
    np.testing.assert_array_equal(own.predict(x), known.predict(x))


def test_other_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError, match=r"quantile is 0\.5, expected None"):
        LUTRegressor(loss=squared, quantile=0.5).fit(*data())
    with pytest.raises(ArgumentError, match="loss is 'huber', expected one of"):
        LUTRegressor(loss="huber").fit(*data())
    assert [n_arguments(each) for each in (squared, weighted, log_cosh, Squared())] == [2, 3, 2, 2]
    assert n_arguments(lambda y, p, weight=None: 0) == 3
    assert [function_name(each) for each in (partial(partial(log_cosh), width=2.0), Squared())] == ["log_cosh", "Squared"]


def test_a_folder_names_the_function_and_does_not_hold_it(tmp_path: Path, capsys: Capture) -> None:
    x, y = data()
    own = LUTRegressor(**SMALL, loss=log_cosh, intervals=True).fit(x, y)
    assert clone(own).loss is log_cosh
    own.save(tmp_path / "own")
    again = LUTRegressor.load(tmp_path / "own")
    np.testing.assert_array_equal(again.predict(x), own.predict(x))
    np.testing.assert_array_equal(again.predict_interval(x), own.predict_interval(x))
    np.testing.assert_allclose(again.explain(x[:5]).relevance.sum(1), own.predict(x[:5]), rtol=1e-5)
    model = load(tmp_path / "own")
    assert (model.config.loss, model.metadata["loss_name"], again.loss) == ("own", "log_cosh", "own")
    with pytest.raises(ValueError, match="loss is 'own', a function that no folder holds: set_params"):
        again.fit(x, y)
    again.set_params(loss=log_cosh).fit(x, y)
    np.testing.assert_array_equal(again.predict(x), own.predict(x))
    told_info = told(capsys, "info", tmp_path / "own")
    assert told_info["metadata"]["loss_name"] == "log_cosh"
    from lutetia.cli import main

    main(["info", str(tmp_path / "own")])
    assert "a number, by a loss of its own, log_cosh" in capsys.readouterr().out
    np.savetxt(tmp_path / "rows.csv", np.column_stack([x[:20], y[:20]]), delimiter=",", header="x0,x1,x2,y", comments="")
    rows = told(capsys, "predict", tmp_path / "own", tmp_path / "rows.csv")["predictions"]
    np.testing.assert_allclose([row["value"] for row in rows], own.predict(x[:20]), rtol=1e-5)
    known = told(capsys, "evaluate", tmp_path / "own", tmp_path / "rows.csv", "--label", "y")
    assert known["rmse"] == pytest.approx(np.mean((own.predict(x[:20]) - y[:20]) ** 2) ** 0.5, rel=1e-4)


def test_it_becomes_c_and_a_circuit(tmp_path: Path, capsys: Capture) -> None:
    compiler = require_tool("gcc", "cc")
    x, y = data()
    own = LUTRegressor(**SMALL, loss=squared).fit(x, y)
    own.save(tmp_path / "own")
    out = tmp_path / "c"
    told(capsys, "build", tmp_path / "own", "--target", "c", "--weight-bits", "16", "--out", out)
    command = [compiler, "-std=c99", "-DLUTETIA_NO_MAIN", "model.c", "columns.c", "rows.c", "-o", "run"]
    subprocess.run(command, cwd=out, check=True, capture_output=True)
    rows = "\n".join(["x0,x1,x2", *(",".join(map(repr, row)) for row in x[:20].tolist())]) + "\n"
    answers = subprocess.run([out / "run"], input=rows, text=True, capture_output=True, check=True).stdout.split()
    np.testing.assert_allclose(np.array(answers, float), own.predict(x[:20]), atol=0.01)
    build = own.to_circuit(x, y, n_tables=4, prove=False)
    assert "refit" not in build.report
    assert json.dumps(build.report["simulated"])


@pytest.mark.slow
@pytest.mark.parametrize("loss", [squared, weighted, Squared()], ids=function_name)
def test_checks_of_scikit_learn(loss: Any) -> None:
    check_estimator(LUTRegressor(n_tables=40, candidates=16, n_jobs=1, loss=loss))

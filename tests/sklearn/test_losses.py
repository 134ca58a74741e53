"""Regressors by other losses: beside the law behind the data, with everything that follows from the loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.metrics import mean_absolute_error, mean_pinball_loss, mean_poisson_deviance
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lutetia.models import Tabular, load
from lutetia.sklearn import LUTRegressor

LOSSES = {"absolute_error": None, "quantile": 0.9, "poisson": None}
SMALL = {"n_tables": 80, "n_anchors": 4, "candidates": 32, "random_state": 0, "n_jobs": 1}


def counts(n: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(n, 4))
    return x, random.poisson(np.exp(0.5 + x[:, 0] * 0.5 + (x[:, 1] > 0))).astype(np.float64)


def loss_of(name: str, y: np.ndarray, predicted: np.ndarray) -> float:
    if name == "quantile":
        return float(mean_pinball_loss(y, predicted, alpha=0.9))
    return float((mean_absolute_error if name == "absolute_error" else mean_poisson_deviance)(y, predicted))


def fitted(name: str, **options: object) -> tuple[LUTRegressor, np.ndarray, np.ndarray]:
    x, y = counts()
    model = LUTRegressor(loss=name, quantile=LOSSES[name], **{**SMALL, **options}).fit(x[:1000], y[:1000])
    return model, x[1000:], y[1000:]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_nearly_that_of_the_law_behind_the_data(name: str) -> None:
    x, y = counts(6000)
    law = stats.poisson(np.exp(0.5 + x[4000:, 0] * 0.5 + (x[4000:, 1] > 0)))
    best = {"absolute_error": law.median(), "quantile": law.ppf(0.9), "poisson": law.mean()}[name]
    settings = SMALL | {"random_state": 1}
    model = LUTRegressor(loss=name, quantile=LOSSES[name], **settings).fit(x[:4000], y[:4000])
    squared = LUTRegressor(**settings).fit(x[:4000], y[:4000]).predict(x[4000:])
    x, y = x[4000:], y[4000:]
    assert loss_of(name, y, model.predict(x)) < 1.1 * loss_of(name, y, best)
    assert loss_of(name, y, model.predict(x)) < loss_of(name, y, np.maximum(squared, 1e-3))
    assert model.n_tables_ == 10 * (1 + int(np.argmin(model.losses_["valid"])))  # stopped by this loss


def test_quantiles_hold_and_are_in_order() -> None:
    x, y = counts()
    low, high = (LUTRegressor(loss="quantile", quantile=q, **SMALL).fit(x[:1000], y[:1000]).predict(x[1000:]) for q in (0.2, 0.9))
    assert np.mean(y[1000:] <= high) == pytest.approx(0.9, abs=0.05)
    assert np.mean(y[1000:] < low) < 0.3
    assert (low <= high).mean() > 0.99


@pytest.mark.parametrize("name", LOSSES)
def test_a_saved_model_predicts_and_explains_the_same(name: str, tmp_path: Path) -> None:
    model, x, _ = fitted(name)
    model.save(tmp_path / "model")
    again = LUTRegressor.load(tmp_path / "model")
    assert again.get_params() == model.get_params()
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    core = load(tmp_path / "model", expected=Tabular)
    np.testing.assert_allclose(core.numbers(torch.from_numpy(x)).numpy(), model.predict(x), rtol=1e-5)
    sums = np.log(model.predict(x[:5])) if name == "poisson" else model.predict(x[:5])
    np.testing.assert_allclose(model.explain(x[:5]).relevance.sum(1), sums, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["absolute_error", "poisson"])
def test_intervals_hold_nine_in_ten(name: str) -> None:
    x, y = counts(3000)
    inside = []
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(3000)
        options = {**SMALL, "n_tables": 20, "random_state": seed}
        model = LUTRegressor(loss=name, intervals=True, **options).fit(x[order[:1000]], y[order[:1000]])
        low, high = model.predict_interval(x[order[1000:]]).T
        inside.append(np.mean((low <= y[order[1000:]]) & (y[order[1000:]] <= high)))
        assert (low <= high).all()
        assert (low >= 0).all() == (name == "poisson")
    assert 0.88 < np.mean(inside) < 0.93


def test_a_quantile_has_no_interval() -> None:
    with pytest.raises(ValueError, match='intervals is True with loss="quantile"'):
        fitted("quantile", intervals=True)
    model, x, _ = fitted("quantile")
    with pytest.raises(ValueError, match="a quantile is an end of an interval"):
        model.predict_interval(x)


@pytest.mark.parametrize("name", LOSSES)
def test_weights_count_like_repeated_samples(name: str) -> None:
    x, y = counts(300)
    weight = np.random.default_rng(1).integers(0, 4, 300)
    options = {**SMALL, "n_tables": 10, "early_stopping": False}
    weighed = LUTRegressor(loss=name, quantile=LOSSES[name], **options).fit(x, y, sample_weight=weight)
    again = np.repeat(np.arange(300), weight)
    repeated = LUTRegressor(loss=name, quantile=LOSSES[name], **options).fit(x[again], y[again])
    np.testing.assert_allclose(weighed.predict(x), repeated.predict(x), rtol=1e-5)


def test_pipelines_clones_and_searches() -> None:
    x, y = counts(200)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LUTRegressor(loss="quantile", quantile=0.5, **{**SMALL, "n_tables": 5})),
        {"lutregressor__quantile": [0.1, 0.9]},
        scoring="neg_mean_absolute_error",
        cv=2,
    ).fit(x, y)
    assert search.best_params_["lutregressor__quantile"] in (0.1, 0.9)
    model = clone(search.best_estimator_[-1]).set_params(loss="poisson", quantile=None)
    assert (model.fit(x, y).predict(x) > 0).all()


def test_a_second_fit_for_a_circuit_lowers_the_loss() -> None:
    model, x, y = fitted("poisson")
    fit = counts()
    small, trial = model._refit(fit[0][:1000], fit[1][:1000], 8)
    assert trial is not None
    assert trial.measure == "deviance"
    first = model.model_.first(8).numbers(torch.from_numpy(x)).numpy()
    assert mean_poisson_deviance(y, small.numbers(torch.from_numpy(x)).numpy()) < mean_poisson_deviance(y, first)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "huber"}, "loss is 'huber', expected one of"),
        ({"loss": "quantile"}, "quantile is None, expected a number between 0 and 1"),
        ({"loss": "quantile", "quantile": 1.0}, "quantile is 1.0"),
        ({"quantile": 0.5}, 'quantile is 0.5, expected None with loss="squared_error"'),
        ({"loss": "poisson"}, "y holds -1, expected numbers of at least 0"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, object], message: str) -> None:
    x, y = counts(60)
    y[7] = -1
    with pytest.raises(ValueError, match=message):
        LUTRegressor(**options).fit(x, y)


def test_validation_data_may_not_be_negative_either() -> None:
    x, y = counts(60)
    with pytest.raises(ValueError, match="y of eval_set holds -1"):
        LUTRegressor(loss="poisson", n_tables=3).fit(x, y, eval_set=(x, np.where(y > 2, -1.0, y)))


def test_tables_of_a_model_without_a_loss_are_those_of_squared_errors(tmp_path: Path) -> None:
    """A config that was saved before there were losses has no such keys."""
    x, y = counts(120)
    model = LUTRegressor(**{**SMALL, "n_tables": 5}).fit(x, y)
    config = model.model_.config.to_dict()
    known = {key: value for key, value in config.items() if key not in ("loss", "quantile")}
    assert Tabular(**known).loss.name == "squared_error"

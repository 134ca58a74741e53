"""Estimators of several targets, as scikit-learn's trees have them; its own checks of these are among those of test_checks.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_linnerud, make_multilabel_classification
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_score
from sklearn.tree import DecisionTreeClassifier

from lutetia.errors import ArgumentError
from lutetia.sklearn import LUTClassifier, LUTRegressor

FAST: dict[str, Any] = {"n_tables": 40, "n_anchors": 3, "candidates": 24, "random_state": 0, "n_jobs": 1}


@pytest.fixture(scope="module")
def numbers() -> tuple[pd.DataFrame, pd.DataFrame]:
    random = np.random.default_rng(0)
    x = pd.DataFrame(random.normal(size=(400, 3)), columns=list("pqr"))
    y = pd.DataFrame({"first": 3 * x.p + random.normal(0, 0.1, 400), "second": np.where(x.q > 0, 100.0, 50.0)})
    return x, y


@pytest.fixture(scope="module")
def classes() -> tuple[pd.DataFrame, pd.DataFrame]:
    random = np.random.default_rng(1)
    x = pd.DataFrame(random.normal(size=(400, 3)), columns=list("pqr"))
    return x, pd.DataFrame({"sign": np.where(x.p > 0, "plus", "minus"), "size": np.digitize(x.q, [-0.5, 0.5])})


def test_numbers(numbers: Any, tmp_path: Path) -> None:
    x, y = numbers
    model = LUTRegressor(**FAST, learning_rate=0.3, intervals=True).fit(x[:300], y[:300])
    found, interval = model.predict(x), model.predict_interval(x)
    assert model.target_names_ == ["first", "second"]
    assert (found.shape, interval.shape) == ((400, 2), (400, 2, 2))
    assert model.score(x[300:], y[300:]) == pytest.approx(r2_score(y[300:], found[300:]))
    assert r2_score(y[300:], found[300:]) > 0.9
    inside = (interval[..., 0] <= y.to_numpy()) & (y.to_numpy() <= interval[..., 1])
    assert (inside[300:].mean(0) > 0.75).all()
    alone = model.one_target("second")
    np.testing.assert_allclose(alone.predict(x), found[:, 1], rtol=1e-6)
    np.testing.assert_allclose(alone.predict_interval(x), interval[:, 1], rtol=1e-6)
    explained = model.explain(x[:5], output="second")
    np.testing.assert_allclose(explained.relevance.sum(1), found[:5, 1], rtol=1e-4)
    model.save(tmp_path / "run")
    again = LUTRegressor.load(tmp_path / "run")
    assert again.target_names_ == model.target_names_
    np.testing.assert_array_equal(again.predict(x), found)
    alone.save(tmp_path / "alone")
    np.testing.assert_array_equal(LUTRegressor.load(tmp_path / "alone").predict(x), alone.predict(x))


def test_a_fit_of_one_target_after_one_of_several(numbers: Any) -> None:
    x, y = numbers
    model = LUTRegressor(**FAST).fit(x, y)
    assert model.fit(x, y["first"]).predict(x).shape == (400,)
    assert model.target_names_ is None
    assert model.fit(x, y[["first"]].to_numpy()[:, :1].ravel()).explain(x[:1]).relevance.shape == (1, 3)


def test_classes(classes: Any, tmp_path: Path) -> None:
    x, y = classes
    model = LUTClassifier(**FAST, calibrate=True).fit(x[:300], y[:300])
    found, sure = model.predict(x), model.predict_proba(x)
    assert [own.shape for own in sure] == [(400, 2), (400, 3)]
    for at, (own, name) in enumerate(zip(sure, y.columns, strict=True)):
        np.testing.assert_allclose(own.sum(1), 1)
        np.testing.assert_array_equal(model.classes_[at][own.argmax(1)], found[:, at])
        assert (found[300:, at] == y[name][300:]).mean() > 0.9
        alone = model.one_target(name)
        np.testing.assert_allclose(alone.predict_proba(x), own, atol=1e-6)
        assert alone.score(x[300:], y[name][300:]) == (found[300:, at] == y[name][300:]).mean()
    np.testing.assert_allclose(np.exp(model.predict_log_proba(x)[1]), sure[1])
    assert not hasattr(model, "decision_function")
    assert hasattr(model.one_target("sign"), "decision_function")
    assert model.explain(x[:1], output="size", target=2).to_text().startswith("for 2:")
    model.save(tmp_path / "run")
    again = LUTClassifier.load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict(x), found)
    assert [own.dtype.kind for own in again.classes_] == ["O", "i"]


def test_labels_as_scikit_learn_has_them() -> None:
    x, y = make_multilabel_classification(300, 8, n_classes=4, random_state=0)
    model, tree = LUTClassifier(**FAST).fit(x[:200], y[:200]), DecisionTreeClassifier(random_state=0).fit(x[:200], y[:200])
    assert model.predict(x).shape == tree.predict(x).shape
    assert model.predict(x).dtype.kind == "i"
    assert [own.shape for own in model.predict_proba(x)] == [own.shape for own in tree.predict_proba(x)]
    right, of_tree = ((each.predict(x[200:]) == y[200:]).mean() for each in (model, tree))
    assert right > of_tree
    assert cross_val_score(LUTClassifier(**FAST), x, y, cv=3).mean() > 0.3  # all four labels of a row


def test_class_weights_multiply_as_in_trees(classes: Any) -> None:
    x, y = classes
    rare = (x.p > 1).astype(int)
    both = np.stack([rare, y["size"]], 1)
    plain, balanced, listed = (
        LUTClassifier(**{**FAST, "n_tables": 1}, class_weight=wanted).fit(x[["r"]], both)
        for wanted in (None, "balanced", [{0: 1, 1: 50}, None])
    )
    shares = [each.predict_proba(x[["r"]])[0][:, 1].mean() for each in (plain, balanced, listed)]
    assert shares[0] < 0.3 < 0.45 < shares[1] < 0.55 < shares[2]


@pytest.mark.parametrize(("loss", "quantile"), [("absolute_error", None), ("quantile", 0.9), ("poisson", None)])
def test_losses_of_several(loss: str, quantile: float | None) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(900, 2))
    y = np.stack([random.poisson(np.exp(x[:, 0])), 50 * random.poisson(np.exp(x[:, 1] / 2))], 1).astype(float)
    model = LUTRegressor(**{**FAST, "n_tables": 200}, loss=loss, quantile=quantile).fit(x[:600], y[:600])
    found = model.predict(x[600:])
    if loss == "quantile":
        assert (abs((y[600:] <= found).mean(0) - 0.9) < 0.07).all()
    elif loss == "poisson":
        assert np.corrcoef(found[:, 0], np.exp(x[600:, 0]))[0, 1] > 0.9
        assert found.mean(0) == pytest.approx(y[600:].mean(0), rel=0.15)
    else:
        missed, by_median = abs(y[600:] - found).mean(0), abs(y[600:] - np.median(y[:600], 0)).mean(0)
        assert missed[0] < 0.7 * by_median[0]  # of the second, chance is most
        assert missed[1] < 1.1 * by_median[1]


def test_linnerud() -> None:
    data = load_linnerud(as_frame=True)
    model = LUTRegressor(**{**FAST, "n_tables": 5}).fit(data.data, data.target)
    assert model.target_names_ == ["Weight", "Waist", "Pulse"]
    assert model.predict(data.data).shape == (20, 3)


def test_what_is_refused(numbers: Any, classes: Any) -> None:
    x, y = numbers
    model = LUTRegressor(**FAST).fit(x, y)
    for call, given in (("explain", (x,)), ("to_c", ()), ("to_circuit", ())):
        with pytest.raises(ValueError, match=rf"{call} is for one target.*'first', 'second'.*one_target\('first'\).{call}"):
            getattr(model, call)(*given)
    with pytest.raises(ArgumentError, match="output is 'third', expected one of the targets 'first', 'second'"):
        model.explain(x, output="third")
    with pytest.raises(ValueError, match="has one target alone"):
        LUTRegressor(**FAST).fit(x, y["first"]).one_target("first")
    with pytest.raises(ValueError, match="monotonic constraints with 2 targets, expected one target"):
        LUTRegressor(**FAST, monotonic_cst={"p": 1}).fit(x, y)
    with pytest.raises(ValueError, match="y has 1 targets, expected 2 as in fit"):
        LUTRegressor(**FAST).fit(x, y, eval_set=(x, y["first"]))
    with pytest.raises(ValueError, match="target 1 of y: y holds one class"):
        LUTClassifier(**FAST).fit(x, np.stack([classes[1]["size"], np.zeros(400, int)], 1))
    with pytest.raises(ValueError, match="expected 'balanced', or a list of one for each target"):
        LUTClassifier(**FAST, class_weight={0: 1.0}).fit(*classes)

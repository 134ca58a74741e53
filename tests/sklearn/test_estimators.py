"""Estimators as their users have them: frames, missing values, categories, errors, folders, explanations, circuits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_diabetes, load_digits, load_iris, load_wine
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lutetia.sklearn
from lutetia.errors import ArgumentError, DataError, MissingFeatureError
from lutetia.sklearn import GateClassifier, LUTClassifier, LUTRegressor
from tools import require_tool

FAST: dict[str, Any] = {"n_tables": 30, "candidates": 24, "random_state": 0, "n_jobs": 1}
GATES: dict[str, Any] = {"n_tables": 60, "max_epochs": 8, "n_thresholds": 7, "random_state": 0, "n_jobs": 1}


@pytest.fixture(scope="module")
def wine() -> Any:
    return load_wine(as_frame=True)


@pytest.fixture(scope="module")
def fitted(wine: Any) -> LUTClassifier:
    names = np.array(["Barolo", "Grignolino", "Barbera"])
    return LUTClassifier(**FAST).fit(wine.data, names[wine.target])


# ---- what is learned -------------------------------------------------------------------------------------------------


def test_learns_better_than_chance_on_rows_it_has_not_seen(wine: Any) -> None:
    assert cross_val_score(LUTClassifier(**FAST), wine.data, wine.target, cv=3).mean() > 0.93
    x, y = load_diabetes(return_X_y=True)
    assert cross_val_score(LUTRegressor(n_tables=60, learning_rate=0.05, n_jobs=1, random_state=0), x, y, cv=3).mean() > 0.3


def test_gates_learn(wine: Any) -> None:
    train, test, y, held = train_test_split(wine.data, wine.target, random_state=0)
    assert GateClassifier(**GATES).fit(train, y).score(test, held) > 0.85


def test_a_threshold_that_only_missing_values_cross() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 3))
    y = random.integers(2, size=200)
    x[y == 1, 1] = np.nan
    assert LUTClassifier(**FAST).fit(x, y).score(x, y) == 1.0


def test_pairs_of_columns_are_compared_by_rank() -> None:
    random = np.random.default_rng(0)
    x = np.stack([random.permutation(200), 1000.0 * random.permutation(200)], 1)
    y = (x[:, 0] > x[:, 1] / 1000).astype(int)
    only_pairs = LUTClassifier(n_tables=5, n_anchors=1, pairs=1.0, learning_rate=1.0, random_state=0, n_jobs=1).fit(x, y)
    assert only_pairs.score(x, y) == 1.0


def test_an_encoding_knows_the_training_rows_only() -> None:
    x = np.arange(100.0)[:, None]
    model = LUTClassifier(**FAST).fit(x[:50], np.arange(50) % 2).model_
    assert model.encoding.edges[torch.isfinite(model.encoding.edges)].max() < 49


def test_weights_count_as_repeated_rows_and_class_weight_moves_the_prior() -> None:
    x, y = load_iris(return_X_y=True)
    twice = np.concatenate([np.arange(150), np.arange(50)])
    weight = np.bincount(twice).astype(float)
    a = LUTClassifier(**FAST).fit(x, y, sample_weight=weight).predict_proba(x)
    b = LUTClassifier(**FAST).fit(x[twice], y[twice]).predict_proba(x)
    np.testing.assert_allclose(a, b, rtol=1e-6)
    noise = np.zeros((90, 1))
    rare = np.arange(90) % 9 == 0
    chance = LUTClassifier(**FAST, class_weight="balanced").fit(noise, rare).predict_proba(noise)[0, 1]
    assert chance == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("size", [1e39, 1e-46])
def test_weights_and_numbers_that_are_no_32_bit_floats_are_refused(size: float) -> None:
    x = np.arange(20.0)[:, None]
    for model in (LUTClassifier(**FAST), LUTRegressor(**FAST)):
        with pytest.raises(ValueError, match=r"the largest sample_weight is 1e[+-][34][69], expected 1e-30 to 1e[+]30"):
            model.fit(x, np.arange(20) % 2, sample_weight=np.full(20, size))
    if size > 1:
        with pytest.raises(ValueError, match=r"y holds a number of size 1.9e[+]40, expected numbers that fit a 32-bit float"):
            LUTRegressor(**FAST).fit(x, -x[:, 0] * size)
    weight = np.where(np.arange(20) < 10, 1.0, 1e-46)  # so little of others is nothing
    assert LUTRegressor(**FAST).fit(x, x[:, 0] > 9.5, sample_weight=weight).predict(x).tolist() == [0.0] * 20


def test_an_eval_set_ends_the_fit_early_and_keeps_the_best() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(120, 4)), random.integers(2, size=120)
    model = LUTClassifier(n_tables=300, random_state=0, n_jobs=1).fit(x[:60], y[:60], eval_set=(x[60:], y[60:]))
    assert model.n_tables_ < 300
    assert model.n_tables_ == 10 * (1 + int(np.argmin(model.losses_["valid"])))
    stopped = LUTClassifier(n_tables=300, early_stopping=True, random_state=0, n_jobs=1).fit(x, y)
    assert stopped.n_tables_ < 300


def test_a_regressor_finds_its_number_of_tables_where_samples_can_be_spared() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(900, 3))
    noise, curve = random.normal(size=900), x[:, 0] ** 2 + np.sin(3 * x[:, 1])
    counts = [LUTRegressor(random_state=0, n_jobs=1, candidates=8).fit(x, y).n_tables_ for y in (noise, curve)]
    assert counts[0] < counts[1] < 2000  # nothing to learn, and much
    few = LUTRegressor(random_state=0, n_jobs=1, candidates=8).fit(x[:99], curve[:99])
    assert (few.n_tables_, few.losses_["valid"]) == (250, [])
    all_of_them = LUTRegressor(300, early_stopping=False, random_state=0, n_jobs=1, candidates=8).fit(x[:99], curve[:99])
    assert all_of_them.n_tables_ == 300
    with pytest.raises(ValueError, match="early_stopping is 'maybe', expected True, False or \"auto\""):
        LUTRegressor(early_stopping="maybe").fit(x, noise)


def test_as_many_threads_as_one_likes_give_the_same_model() -> None:
    x, y = load_iris(return_X_y=True)
    one, two = (LUTClassifier(**{**FAST, "n_jobs": jobs, "candidates": 2000}).fit(x, y) for jobs in (1, 2))
    np.testing.assert_array_equal(one.predict_proba(x), two.predict_proba(x))


# ---- tables of data --------------------------------------------------------------------------------------------------


def mixed() -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    colour = random.choice(["red", "green", "blue", "grey"], size=300)
    size = random.normal(size=300)
    frame = pd.DataFrame({"colour": pd.Categorical(colour), "size": size})
    frame.loc[::11, "size"] = np.nan
    frame.loc[::13, "colour"] = None
    return frame, np.where(np.isin(colour, ["green", "grey"]), "yes", "no")


def test_a_lazy_frame_is_to_be_collected() -> None:
    lazy = pl.LazyFrame({"a": [1.0, 2.0] * 10})
    with pytest.raises(TypeError, match=r"X is a LazyFrame, which holds no rows yet, expected X.collect\(\)"):
        LUTClassifier(**FAST).fit(lazy, [0, 1] * 10)
    assert LUTClassifier(**FAST).fit(lazy.collect(), [0, 1] * 10).score(lazy.collect(), [0, 1] * 10) == 1.0


def test_pandas_polars_and_lists_of_columns_agree() -> None:
    frame, y = mixed()
    by_type = LUTClassifier(**FAST).fit(frame, y)
    assert by_type.score(frame, y) > 0.95
    assert list(by_type.feature_names_in_) == ["colour", "size"]
    words = frame.astype({"colour": object})
    listed = LUTClassifier(**FAST, categorical_features=["colour"]).fit(words, y)
    polar = pl.DataFrame(
        {
            "colour": pl.Series([each if isinstance(each, str) else None for each in words["colour"]], dtype=pl.Categorical),
            "size": words["size"].to_numpy(),
        }
    )
    by_polars = LUTClassifier(**FAST).fit(polar, y)
    objects = LUTClassifier(**FAST, categorical_features=[0]).fit(words.to_numpy(), y)
    np.testing.assert_array_equal(by_type.predict_proba(frame), listed.predict_proba(words))
    np.testing.assert_array_equal(listed.predict_proba(words), objects.predict_proba(words.to_numpy()))
    assert by_polars.score(polar, y) == by_type.score(frame, y)


def test_many_classes_tell_categories_apart() -> None:
    frame = pd.DataFrame({"letter": pd.Categorical(list("abcdef") * 20)})
    y = np.tile([2, 0, 1, 2, 0, 1], 20)
    assert LUTClassifier(**FAST).fit(frame, y).score(frame, y) == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.assign(colour=f["colour"].astype(object).where(f.index != 3, "pink")), "unknown categories.*pink"),
        (lambda f: f[["size", "colour"]], "feature names"),
        (lambda f: f.assign(more=1.0), "feature names"),
        (lambda f: f.drop(columns="size"), "feature names"),
        (lambda f: f.assign(size="large"), "could not convert string"),
    ],
)
def test_rows_unlike_those_of_fit_are_refused(change: Any, message: str) -> None:
    frame, y = mixed()
    model = LUTClassifier(**FAST).fit(frame, y)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        model.predict(change(frame))


def test_an_unknown_category_may_count_as_missing() -> None:
    frame, y = mixed()
    model = LUTClassifier(**FAST, handle_unknown="missing").fit(frame, y)
    strange, missing = (frame.astype({"colour": object}).assign(colour=value) for value in ("pink", None))
    np.testing.assert_array_equal(model.predict_proba(strange), model.predict_proba(missing))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([[1.0, np.nan], [2.0, np.nan]], [0, 1], "all its values are missing"),
        ([[1.0], [2.0]], [1, 1], "one class"),
        ([[1.0], [2.0]], [0.0, np.nan], "NaN"),
        ([[1.0], [2.0]], ["a", None], "NaN"),
        ([["a"], ["b"]], [0, 1], "could not convert string"),
        ([[1.0], [np.inf]], [0, 1], "infinity"),
        ([[1.0], [2.0]], [0.5, 0.25], "Unknown label type"),
        ([[1.0], [2.0]], None, "requires y"),
        ([[1.0], [2.0]], [0, 1, 1], "inconsistent"),
    ],
)
def test_training_data_that_cannot_be(x: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LUTClassifier(**FAST).fit(x, y)


def test_rows_that_are_not_checked_by_scikit_learn_are_those_it_would_take_as_they_are() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    model = LUTClassifier(**FAST).fit(x, x[:, 0] > 0)
    given = x[:5].copy()
    given[1, 2] = np.nan
    expected = model.predict_proba(given.tolist())
    for same in (given, np.asfortranarray(given), np.repeat(given, 2, 0)[::2], given.astype(np.longdouble)):
        np.testing.assert_array_equal(model.predict_proba(same), expected)
    given[0, 0] = -np.inf
    for wrong, message in ((given, "infinity"), (x[:2, :2], "3 features"), (x[0], "2D array"), (x[:0], "minimum of 1")):
        with pytest.raises(ValueError, match=message):
            model.predict(wrong)


def test_numbers_to_predict_must_be_numbers() -> None:
    for y, message in (([1.0, np.nan], "NaN"), (["a", "b"], "could not convert")):
        with pytest.raises(ValueError, match=message):
            LUTRegressor(**FAST).fit([[1.0], [2.0]], y)


@pytest.mark.parametrize(
    "wrong",
    [{"n_tables": 0}, {"n_anchors": 99}, {"pairs": 2.0}, {"max_bins": 256}, {"learning_rate": 0}, {"n_jobs": 0},
     {"handle_unknown": "ignore"}, {"categorical_features": "all"}, {"categorical_features": [7]}],
)  # fmt: skip
def test_parameters_that_cannot_be_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LUTClassifier(**{**FAST, **wrong}).fit([[1.0], [2.0]], [0, 1])


def test_without_scikit_learn_the_door_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingFeatureError, match="pip install scikit-learn"):
        lutetia.sklearn.LUTClassifier  # noqa: B018
    with pytest.raises(AttributeError, match="LUTCluster"):
        lutetia.sklearn.LUTCluster  # noqa: B018


# ---- with the rest of scikit-learn -----------------------------------------------------------------------------------


def test_clone_pipeline_grid_search_and_calibration(wine: Any) -> None:
    pipe = make_pipeline(StandardScaler(), LUTClassifier(**FAST))
    search = GridSearchCV(pipe, {"lutclassifier__n_anchors": [2, 4]}, cv=2).fit(wine.data, wine.target)
    assert search.best_score_ > 0.85
    calibrated = CalibratedClassifierCV(LUTClassifier(**FAST), cv=2).fit(wine.data, wine.target)
    np.testing.assert_allclose(calibrated.predict_proba(wine.data).sum(1), 1)
    assert clone(LUTClassifier(**FAST, class_weight={0: 2})).get_params()["class_weight"] == {0: 2}


def test_progress_is_shown_only_when_asked(wine: Any, capfd: pytest.CaptureFixture[str]) -> None:
    LUTClassifier(**FAST).fit(wine.data, wine.target)
    assert capfd.readouterr() == ("", "")
    LUTClassifier(**FAST, verbose=1).fit(wine.data, wine.target)
    assert "30/30" in capfd.readouterr().err


# ---- folders, explanations, circuits ---------------------------------------------------------------------------------


def test_the_estimator_is_its_model(fitted: LUTClassifier, wine: Any) -> None:
    with torch.no_grad():
        scores = fitted.model_(torch.tensor(wine.data.to_numpy()))
    np.testing.assert_allclose(scores.softmax(1).numpy(), fitted.predict_proba(wine.data), atol=1e-6)


def test_saved_and_loaded_it_predicts_the_same(fitted: LUTClassifier, wine: Any, tmp_path: Path) -> None:
    fitted.save(tmp_path / "wine")
    assert not list((tmp_path / "wine").glob("*.p*kl"))
    again = LUTClassifier.load(tmp_path / "wine")
    np.testing.assert_array_equal(again.predict(wine.data), fitted.predict(wine.data))
    assert again.get_params() == fitted.get_params()
    assert list(again.feature_names_in_) == list(wine.data.columns)
    with pytest.raises(DataError, match="expected a LUTRegressor"):
        LUTRegressor.load(tmp_path / "wine")


KINDS = [np.array([3, 5]), np.array([False, True]), np.array(["a", "b"], object), np.array([1.0, 2.0])]


@pytest.mark.parametrize("classes", KINDS)
def test_classes_keep_their_kind(classes: Any, tmp_path: Path) -> None:
    frame, y = mixed()
    values = classes[(y == "yes").astype(int)]
    model = LUTClassifier(**FAST).fit(frame, values)
    model.save(tmp_path / "model")
    again = LUTClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    assert again.classes_.dtype.kind == model.classes_.dtype.kind


def test_regression_and_gates_are_saved_too(wine: Any, tmp_path: Path) -> None:
    x, y = load_diabetes(return_X_y=True)
    regressor = LUTRegressor(**FAST).fit(x, y)
    regressor.save(tmp_path / "numbers")
    np.testing.assert_array_equal(LUTRegressor.load(tmp_path / "numbers").predict(x), regressor.predict(x))
    assert r2_score(y, regressor.predict(x)) > 0.5
    gates = GateClassifier(**{**GATES, "max_epochs": 1}).fit(wine.data, wine.target)
    gates.save(tmp_path / "gates")
    np.testing.assert_array_equal(GateClassifier.load(tmp_path / "gates").predict(wine.data), gates.predict(wine.data))


def test_explanations_name_columns_and_thresholds(wine: Any, fitted: LUTClassifier) -> None:
    explained = fitted.explain(wine.data[:3])
    scores = fitted.decision_function(wine.data[:3])
    for row, best in enumerate(scores.argmax(1)):
        rivals = np.delete(scores[row], best)
        chances = np.exp(rivals - rivals.max()) / np.exp(rivals - rivals.max()).sum()
        assert explained.relevance[row].sum() == pytest.approx(scores[row, best] - chances @ rivals, rel=1e-3)
    assert explained.features == list(wine.data.columns)
    first = explained.comparisons[0][0]
    assert first.feature in explained.features
    said = explained.to_text(0).splitlines()
    assert said[0] == f"for {fitted.predict(wine.data[:1])[0]}:"
    assert len(said) == 11
    assert first.feature in said[6]
    assert fitted.explain(wine.data[:1], target="Barbera").targets == [0]
    with pytest.raises(ValueError, match="Barbera"):
        fitted.explain(wine.data[:1], target="Merlot")


def test_the_effect_of_a_comparison_is_what_the_score_loses_without_it() -> None:
    x = np.array([[0.0], [1.0], [2.0], [3.0]])
    model = LUTRegressor(n_tables=1, n_anchors=1, learning_rate=1.0, smoothing=0.0, random_state=1, n_jobs=1).fit(x, [0, 0, 9, 9])
    (comparison,) = model.explain([[3.0]]).comparisons[0]
    above, below = model.predict([[3.0], [0.0]])
    assert (comparison.feature, comparison.operator) == ("x0", ">")
    assert float(comparison.other) in (0.5, 1.5, 2.5)
    assert comparison.effect == pytest.approx(above - below, rel=1e-5)


def test_a_circuit_is_simulated_and_agrees(wine: Any) -> None:
    small = LUTClassifier(n_tables=6, n_anchors=3, random_state=0, n_jobs=1).fit(wine.data, wine.target)
    network = small.model_.network(weight_bits=16)
    assert (network.classes(torch.from_numpy(wine.data.to_numpy())).numpy() == small.predict(wine.data)).mean() > 0.99
    build = small.to_circuit(wine.data[:8], prove=False, time_limit=60)
    assert build.report["simulated"]["samples"] == 8
    assert "verilog" in build.hardware


def test_the_first_tables_are_a_model_too() -> None:
    x = np.random.default_rng(0).random((400, 4))
    y = (x[:, 0] + 0.3 * x[:, 1] > 1.0).astype(int)  # one class in eight: without its base a score would name the other one
    model = LUTClassifier(n_tables=64, n_anchors=3, random_state=0, n_jobs=1).fit(x, y)
    short = LUTClassifier(n_tables=32, n_anchors=3, random_state=0, n_jobs=1).fit(x, y)
    given = torch.from_numpy(x)
    assert torch.equal(model.model_.network(12, 32).classes(given), short.model_.network(12).classes(given))
    assert (model.model_.network(12).classes(given).numpy() == model.predict(x)).mean() > 0.99
    assert model.to_circuit(x[:4], n_tables=2, prove=False, time_limit=60).graph.n_lookups == 2
    with pytest.raises(ArgumentError, match="n_tables is 65"):
        model.to_circuit(n_tables=65)


def test_tables_of_a_circuit_are_fitted_again_to_training_data() -> None:
    """With y, the first tables make up for the others; the estimator stays as it is."""
    x, y = (part[:150] for part in load_digits(return_X_y=True))
    model = LUTClassifier(n_tables=200, n_anchors=3, learning_rate=0.03, random_state=0, n_jobs=1).fit(x, y)
    before = model.predict_proba(x)
    options: dict[str, Any] = {"n_tables": 3, "prove": False, "time_limit": 60}
    builds = [model.to_circuit(x[:8], **options), model.to_circuit(x, y, **options)]
    codes = model.model_.encode(torch.from_numpy(x)).long()
    cut, again = ((build.graph(codes)[:, 0].numpy() == y).mean() for build in builds)
    assert cut + 0.05 < again
    assert [build.report["simulated"]["samples"] for build in builds] == [8, 64]
    assert np.array_equal(model.predict_proba(x), before)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.to_circuit(x, y[:5], n_tables=3)
    gates = GateClassifier(n_tables=30, max_epochs=1, n_jobs=1).fit(x, y)
    with pytest.raises(ArgumentError, match="n_tables is 3, expected None: gates are trained together"):
        gates.to_circuit(x, y, n_tables=3)


def test_a_program_in_c_gives_the_same_classes(wine: Any, tmp_path: Path) -> None:
    compiler = require_tool("gcc", "cc")
    small = LUTClassifier(n_tables=20, n_anchors=3, random_state=0, n_jobs=1).fit(wine.data, wine.target)
    for name, text in small.to_c().items():
        (tmp_path / name).write_text(text)
    subprocess.run([compiler, "-std=c99", "model.c", "-o", "run"], cwd=tmp_path, check=True)
    codes = small.model_.encode(torch.tensor(wine.data.to_numpy())).long()
    lines = "".join(" ".join(map(str, row)) + "\n" for row in codes.tolist())
    told = subprocess.run([tmp_path / "run"], input=lines, capture_output=True, text=True, check=True).stdout.split()
    assert np.mean(small.classes_[[int(each) for each in told]] == small.predict(wine.data)) > 0.98

"""Windows of signals for estimators: cutting, columns of them in a pipeline, and a run of `lutetia train` beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from lutetia.cli.predict import PredictRequest, predict
from lutetia.errors import DataError
from lutetia.sklearn import LUTClassifier, LUTRegressor, WindowFeatures, cut_windows


def waves(n: int = 60, length: int = 32) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    y = np.arange(n) % 2
    x = np.sin(np.arange(length) * np.where(y, 0.9, 0.4)[:, None] + random.random((n, 1)) * 6)
    return np.stack([x + random.normal(0, 0.1, x.shape), random.normal(0, 1, x.shape)], 1), y


def test_a_pipeline_and_what_it_says() -> None:
    x, y = waves()
    pipe = make_pipeline(WindowFeatures(signals=["ax", "ay"]).set_output(transform="pandas"), LUTClassifier(40, random_state=0))
    pipe.fit(x[:40], y[:40])
    assert pipe.score(x[40:], y[40:]) > 0.9
    columns = pipe[0].transform(x[40:42])
    assert columns.columns[0] == "ax: mean"
    assert pipe[-1].explain(columns).comparisons[0][0].feature.startswith(("ax: ", "ay: "))
    power = (x[:, 0] ** 2).mean(1) * (1 + y)
    fitted = make_pipeline(WindowFeatures(), LUTRegressor(60, random_state=0)).fit(x[:40], power[:40])
    assert fitted.score(x[40:], power[40:]) > 0.5
    assert clone(WindowFeatures(decimals=2)).decimals == 2


def saws(n: int = 60) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Series that rise slowly and fall at once, or the other way."""
    random, y = np.random.default_rng(0), np.array(["slow", "quick"] * (n // 2))
    saw = (np.arange(40) + random.integers(0, 10, (n, 1))) % 10 * 0.1
    return (np.where(y[:, None] == "slow", saw, 0.9 - saw) + random.normal(0, 0.08, saw.shape))[:, None], y


def test_shapes_are_chosen_by_labels(tmp_path: Path) -> None:
    x, y = saws()
    features = WindowFeatures(signals=["ax"]).fit(x[:40], y[:40])
    assert features.trial_ is not None
    assert features.trial_.gains
    assert len(features.windows_.shapes) == features.transform(x).shape[1] - len(features.windows_.features) > 50
    assert features.get_feature_names_out()[-1].startswith("ax: share of ")
    model = LUTClassifier(n_tables=100, n_anchors=2, pairs=0.0, random_state=0).fit(features.transform(x[:40]), y[:40])
    assert model.score(features.transform(x[40:]), y[40:]) > 0.95
    features.save(model, tmp_path / "saved")
    again = WindowFeatures.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.transform(x), features.transform(x))
    assert len(again.fit(x[:40], y[:40]).windows_.shapes) > 50
    numbers = np.where(y == "slow", 0.5, 2.25)
    assert WindowFeatures().fit(x, numbers).windows_.shapes
    assert WindowFeatures(shapes=True).fit(x, y).trial_ is None


def test_windows_without_shapes() -> None:
    x, y = saws()
    for given, labels in [({"shapes": False}, y), ({}, None)]:
        features = WindowFeatures(**given).fit(x, labels)  # type: ignore[arg-type]
        assert (features.windows_.shapes, features.trial_) == ((), None)
        assert features.transform(x).shape[1] == len(features.windows_.features)
    assert not WindowFeatures().fit(x[:, :, :8], y).windows_.shapes


def test_cut_windows_as_lutetia_train_does(tmp_path: Path) -> None:
    x, y = waves(12, 40)
    rows = x.transpose(0, 2, 1).reshape(-1, 2).round(3)
    trial, label = np.repeat(np.arange(6), 80), np.repeat(y, 40)
    cut = cut_windows(pandas.DataFrame(rows, columns=["ax", "ay"]), 16, 8, y=label, series=trial)
    assert cut.x.shape[1:] == (2, 16)
    assert cut.y is not None
    assert cut.series is not None
    for window, own, name, start in zip(cut.x, cut.y, cut.series, cut.starts, strict=True):
        np.testing.assert_array_equal(window, rows[start : start + 16].T)
        assert set(label[start : start + 16]) == {own}
        assert set(trial[start : start + 16]) == {name}
    features = WindowFeatures(signals=["ax", "ay"], decimals=3).fit(cut.x)
    model = LUTClassifier(n_tables=20, random_state=0).fit(features.transform(cut.x), cut.y)
    features.save(model, tmp_path / "saved", step=8)
    pandas.DataFrame(rows[:80], columns=["ax", "ay"]).to_csv(tmp_path / "new.csv", index=False)
    told = predict(tmp_path / "saved", PredictRequest([str(tmp_path / "new.csv")]), show=False)["predictions"]
    again = WindowFeatures.load(tmp_path / "saved")
    given = again.transform(cut_windows(rows[:80], 16, 8).x)
    chances = LUTClassifier.load(tmp_path / "saved").predict_proba(given)
    np.testing.assert_allclose([each["probabilities"] for each in told], chances, rtol=1e-5)
    model.save(tmp_path / "plain")
    plain = LUTClassifier(n_tables=5, random_state=0).fit(given[:, :5], np.arange(len(given)) % 2)
    plain.save(tmp_path / "plain")
    with pytest.raises(DataError, match="a model of rows"):
        WindowFeatures.load(tmp_path / "plain")
    with pytest.raises(ValueError, match="fitted to these columns"):
        features.save(plain, tmp_path / "no")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x: x[0], "expected windows"),
        (lambda x: x[:, :, :7], "expected 8 to"),
        (lambda x: np.where(x > 0.9, np.nan, x), "NaN or infinity"),
        (lambda x: x.astype(str), "expected numbers"),
        (lambda x: x[:0], "expected windows"),
        (lambda x: x * 1e12, "divide it by a power of ten"),
    ],
)
def test_windows_that_are_refused(change: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        WindowFeatures().fit(change(waves(4)[0]))


@pytest.mark.parametrize(
    ("given", "told"),
    [({"signals": ["a", "a"]}, "a different name"), ({"signals": ["a"]}, "a different name"), ({"decimals": -1}, "decimals is"),
     ({"decimals": [1]}, "decimals is"), ({"decimals": 1.5}, "decimals is"), ({"shapes": "yes"}, "shapes is 'yes'"),
     ({"shapes": 1}, "shapes is 1"), ({"shapes": True}, "y is None")],
)  # fmt: skip
def test_parameters_that_are_refused(given: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        WindowFeatures(**given).fit(waves(4)[0])


def test_cuts_that_are_refused() -> None:
    x = waves(1)[0][0].T
    for given, told in [
        ({"length": 7}, "length is 7"), ({"length": 8, "step": 0}, "step is 0"), ({"length": 33}, "has no window"),
        ({"length": 8, "y": [1]}, "y has the shape"), ({"length": 8, "series": list("ab" * 16)}, "has no window"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=told):
            cut_windows(x, **given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="as in fit"):
        WindowFeatures().fit(waves(4)[0]).transform(waves(4, 16)[0])
    with pytest.raises(ValueError, match="expected 9 or more"):
        WindowFeatures(shapes=True).fit(waves(4, 8)[0], [0, 1, 0, 1])

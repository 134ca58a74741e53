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
     ({"decimals": [1]}, "decimals is"), ({"decimals": 1.5}, "decimals is")],
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

"""Dates in frames of pandas and polars, and models from before there were dates."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas
import pytest

from lutetia.models import TabularConfig, load, save
from lutetia.sklearn import GateClassifier, LUTRegressor

BEGIN = datetime(2022, 1, 1)  # as frames have them


@pytest.mark.parametrize("kind", ["ns", "zone", "object", "polars", "polars date"])
def test_frames_have_dates(kind: str, tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    random = np.random.default_rng(2)
    moments = [BEGIN + timedelta(hours=int(each)) for each in random.integers(0, 5000, 120)]
    days = [each.date() for each in moments] if kind == "polars date" else moments
    own = pandas.Series(moments)
    columns = {
        "ns": own.astype("datetime64[ns]"),
        "zone": own.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"),
        "object": pandas.Series(moments, dtype=object),
    }
    frame = polars.DataFrame({"t": days}) if kind.startswith("polars") else pandas.DataFrame({"t": columns[kind]})
    hours = np.array([0 if kind == "polars date" else each.hour for each in moments])
    y = np.array([each.weekday() for each in moments]) * 10.0 + hours
    model = LUTRegressor(n_tables=20, random_state=0).fit(frame, y)
    assert model.dates_[0].times == (kind != "polars date")
    wanted = LUTRegressor(n_tables=20, random_state=0).fit(pandas.DataFrame({"t": pandas.to_datetime(days)}), y)
    np.testing.assert_array_equal(model.predict(frame), wanted.predict(pandas.DataFrame({"t": pandas.to_datetime(days)})))
    model.save(tmp_path / "m")
    again = LUTRegressor.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    assert again.dates_ == model.dates_
    for bad, message in (([1.5], "'t' holds float64, expected dates"), (["soon"], "'t', row 1: 'soon', expected a date such as")):
        with pytest.raises(ValueError, match=message):
            again.predict(pandas.DataFrame({"t": bad}))


def test_gates_have_dates_of_which_some_are_missing() -> None:
    moments = pandas.Series([BEGIN + timedelta(days=n) for n in range(70)])
    moments[3] = pandas.NaT
    frame = pandas.DataFrame({"day": moments, "other": 0.0})
    y = moments.dt.day_of_week > 4
    model = GateClassifier(n_tables=20, n_anchors=2, max_epochs=1, random_state=0).fit(frame, y)
    assert model.model_.config.parts == ("", "month", "day", "weekday", "")
    assert (model.model_.encoding.codes(model._matrix(frame))[:4, 3] == 0).all()
    assert len(model.predict(frame)) == 70
    nowhere = pandas.DataFrame({"day": [np.nan], "other": 0.0})  # numbers, as pandas makes it of a file without dates
    np.testing.assert_array_equal(model.predict_proba(nowhere), model.predict_proba(frame[3:4]))


def test_what_changed_its_type_is_refused() -> None:
    frame = pandas.DataFrame({"a": np.arange(30.0), "b": np.arange(30.0)})
    model = LUTRegressor(n_tables=3, random_state=0).fit(frame, np.arange(30.0))
    with pytest.raises(ValueError, match=r"column 'b' holds datetime64.*, expected numbers as in the training data"):
        model.predict(frame.assign(b=pandas.Timestamp("2024-02-29")))


def test_an_older_folder_has_no_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(40.0).reshape(20, 2)
    model = LUTRegressor(n_tables=3, random_state=0).fit(x, np.arange(20.0))
    fields = model.model_.config.to_dict()
    assert fields.pop("parts") == []
    monkeypatch.setattr(TabularConfig, "to_dict", lambda config: fields)
    save(model.model_, tmp_path / "m")
    assert "parts" not in (tmp_path / "m" / "config.toml").read_text()
    assert load(tmp_path / "m").config == model.model_.config

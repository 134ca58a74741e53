"""The future of a series: what windows see, which are held out, and forecasts of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from cli.test_train_table import Capture, told
from lutetia.cli import main
from lutetia.errors import ArgumentError, DataError
from lutetia.models import Forecast, Tabular, load, save
from lutetia.precompute import integer_model
from lutetia.sklearn import LUTRegressor
from lutetia.training.forecasts import CROSSING, FIT, STOPPING, TEST, _places, guess_season

Array = np.ndarray[Any, Any]
SMALL = ("--set", "fit.n_tables=60", "--set", "fit.n_anchors=3", "--set", "fit.candidates=16")
ASKED = ("--target", "load", "--set", "data.window=48", "--set", "data.ahead=6")


def series(n: int = 900, seed: int = 0) -> pandas.DataFrame:
    """A load that repeats itself after 24 rows, is higher on weekdays, and rises."""
    random, hours = np.random.default_rng(seed), pandas.date_range("2024-01-01", periods=n, freq="h")
    t = np.arange(n)
    load = 100 + 20 * np.sin(t / 24 * 2 * np.pi) + 10 * (hours.day_of_week < 5) + t / 50 + random.normal(0, 1, n)
    return pandas.DataFrame(
        {"time": hours.strftime("%Y-%m-%d %H:%M"), "load": load.round(2), "wind": random.normal(size=n).round(2)}
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forecast")
    series().to_csv(folder / "load.csv", index=False)
    assert main(["train", str(folder / "load.csv"), *ASKED, *SMALL, "--out", str(folder / "run")]) == 0
    return folder


def test_inputs_are_what_their_names_say() -> None:
    random = np.random.default_rng(0)
    values, dates = random.normal(size=(90, 2)), 3600.0 * np.arange(90)
    values[40, 0] = np.nan
    forecast = Forecast(5, 30, "b", ("a", "b"), season=12, dates="when", order="year first", parts=("weekday", "hour"))
    ends = np.array([29, 41, 89])
    x = forecast.rows(values, ends, dates)
    assert len(forecast.titles) == len(set(forecast.titles)) == x.shape[1]
    for column, title in enumerate(forecast.titles):
        name, what = title.split(": ")
        for row, end in enumerate(ends):
            own, number = (
                values[: end + 1, "ab".index(name)] if name in "ab" else None,
                [int(w) for w in what.split() if w.isdigit()],
            )
            if own is None:
                wanted = float(end % 24 if what == "hour" else 4 + end // 24)  # 1970 began on a Thursday
            elif what == "last":
                wanted = own[-1]
            elif what.startswith("rise"):
                wanted = own[-1] - own[-1 - number[0]]
            elif what.startswith("last above"):
                wanted = own[-1] - own[-number[0] :].mean()
            else:
                wanted = own[-1 - number[0]]
            np.testing.assert_allclose(x[row, column], wanted, err_msg=title)
    assert forecast.titles[forecast.bases["season"]] == "b: 7 before the last"  # 12 rows before the row to predict
    assert Forecast(24, 30, "b", ("b",), season=12).bases == {"last": 0, "season": 0}
    assert Forecast(5, 30, "b", ("a",)).bases == {}


@pytest.mark.parametrize(
    ("length", "window", "ahead", "step", "share"), [(300, 20, 7, 1, 0.2), (97, 8, 1, 3, 0.3), (60, 30, 5, 1, 0.2)]
)
def test_what_is_fitted_comes_before_what_is_tested(length: int, window: int, ahead: int, step: int, share: float) -> None:
    ends, key = _places(50, 50 + length, Forecast(ahead, window, "a", ("a",), step=step), share)
    first_test = 50 + length - round(length * share)
    seen = {
        part: (ends[key == part] - window + 1, ends[key == part], ends[key == part] + ahead) for part in (FIT, STOPPING, TEST)
    }
    assert min(first.min() for first, _, _ in seen.values()) >= 50
    assert max(target.max() for _, _, target in seen.values()) < 50 + length
    assert seen[FIT][2].max() <= seen[STOPPING][1].min()  # all that a fit has seen is known when the next forecast is made
    assert seen[STOPPING][2].max() <= seen[TEST][1].min()
    assert seen[STOPPING][2].max() < first_test
    assert (np.diff(ends) == step).all()
    crossing = ends[key == CROSSING]
    assert all((end + ahead >= first_test) == (end >= first_test - ahead) for end in crossing)


def test_no_fit_knows_what_is_tested(place: Path, tmp_path: Path) -> None:
    """With another end of the file, all tables stay what they are."""
    frame = series()
    first_test = 900 - 180
    frame.loc[first_test:, "load"] = np.random.default_rng(5).normal(100, 20, 180).round(2)
    frame.to_csv(tmp_path / "load.csv", index=False)
    assert main(["train", str(tmp_path / "load.csv"), *ASKED, *SMALL, "--out", str(tmp_path / "run")]) == 0
    one, two = (load(folder / "run") for folder in (place, tmp_path))
    assert isinstance(one, Tabular)
    assert isinstance(two, Tabular)
    assert one.config == two.config
    assert torch.equal(one.tables.anchors, two.tables.anchors)
    assert torch.equal(one.tables.weight, two.tables.weight)
    assert torch.equal(one.encoding.edges, two.encoding.edges)
    frame.loc[500, "load"] = 150  # but a row that was fitted changes them
    frame.to_csv(tmp_path / "load.csv", index=False)
    assert main(["train", str(tmp_path / "load.csv"), *ASKED, *SMALL, "--out", str(tmp_path / "again")]) == 0
    three = load(tmp_path / "again")
    assert isinstance(three, Tabular)
    assert three.config.n_tables != one.config.n_tables or not torch.equal(one.tables.weight, three.tables.weight)


def test_the_run_says_whether_the_model_is_worth_it(place: Path, capsys: Capture) -> None:
    summary, frame = json.loads((place / "run" / "summary.json").read_text()), series()
    assert summary["forecast"]["season"] == 24
    assert summary["base"]["base"] in summary["base"]["errors"]
    assert summary["base"]["errors"][summary["base"]["base"]] == min(summary["base"]["errors"].values())
    values = frame["load"].to_numpy()
    ends = np.arange(900 - 180 - 1, 900 - 6)
    naive = {"last": np.sqrt(np.mean((values[ends + 6] - values[ends]) ** 2)),
             "season": np.sqrt(np.mean((values[ends + 6] - values[ends - 18]) ** 2))}  # fmt: skip
    assert summary["test"]["naive"] == pytest.approx(naive)
    assert summary["test"]["rmse"] < min(naive.values())
    assert main(["evaluate", str(place / "run")]) == 0
    shown = capsys.readouterr().out
    assert f"{summary['test']['naive']['season']:.6g} by a season before" in shown
    # On a file: all its windows, by hand.
    found = told(capsys, "evaluate", place / "run", place / "load.csv")
    predicted = told(capsys, "predict", place / "run", place / "load.csv")["predictions"]
    got = np.array([each["value"] for each in predicted])[:-6]
    assert found["samples"] == len(got) == 900 - 48 - 6 + 1
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((got - values[48 + 6 - 1 :]) ** 2)), rel=1e-5)


def test_a_file_is_forecast_beyond_its_end(place: Path, tmp_path: Path, capsys: Capture) -> None:
    model, new = load(place / "run"), series(990).iloc[700:]
    assert isinstance(model, Tabular)
    new.to_csv(tmp_path / "new.csv", index=False)
    found = told(capsys, "predict", place / "run", tmp_path / "new.csv", "--csv", tmp_path / "out.csv", "--keep")["predictions"]
    assert len(found) == 290 - 48 + 1
    last = pandas.read_csv(tmp_path / "out.csv").iloc[-1]
    assert (last["last row"], last["row to predict"], last["time"]) == (289, 295, new["time"].iloc[-1])
    assert found[-1]["low"] < found[-1]["value"] == last["predicted load"] < found[-1]["high"]
    # The base and what the tables add to it.
    base = model.config.base
    assert base is not None
    title, value = model.metadata["features"][base], new["load"].to_numpy()
    begun = value[-1] if title == "load: last" else value[-19]
    assert abs(found[-1]["value"] - begun) < 30
    reasons = told(capsys, "explain", place / "run", tmp_path / "new.csv")
    assert reasons["forecast"].endswith("rows 242 to 289, 6 on")
    assert reasons["prediction"] == pytest.approx(found[-1]["value"])
    assert sum(reasons["relevance"]) == pytest.approx(found[-1]["value"] - begun, abs=1e-3)
    assert main(["predict", str(place / "run"), str(tmp_path / "new.csv")]) == 0
    assert "rows 242 to 289, 6 on" in capsys.readouterr().out  # the future is not among what a screen leaves out
    (tmp_path / "few.csv").write_text("time,load,wind\n2024-01-01 00:00,1,2\n2024-01-01 01:00,2,3\n")
    assert main(["predict", str(place / "run"), str(tmp_path / "few.csv")]) != 0
    assert "has no window of 48 rows: its longest recording has 2" in capsys.readouterr().err


def test_seasons_are_found_where_they_help() -> None:
    t, ends = np.arange(800.0), np.arange(100, 790)
    random = np.random.default_rng(0)
    assert guess_season(np.sin(t / 12 * 2 * np.pi) + random.normal(0, 0.1, 800), ends, 5, 60) == 12
    assert guess_season(np.cumsum(random.normal(size=800)), ends, 5, 60) == 1
    assert guess_season(np.sin(t / 52 * 2 * np.pi), ends, 5, 40) != 52  # no window sees so far back


def test_recordings_and_missing_samples(tmp_path: Path) -> None:
    frame = pandas.concat([series(300, seed).assign(place=f"p{seed}") for seed in range(3)])
    frame.loc[frame.index == 150, "wind"] = np.nan
    frame.loc[frame.index == 160, "load"] = np.nan
    frame.to_csv(tmp_path / "load.csv", index=False)
    out = str(tmp_path / "run")
    assert main(["train", str(tmp_path / "load.csv"), *ASKED, "--set", "data.series=place", *SMALL, "--out", out]) == 0
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert told["forecast"]["recordings"] == 3
    ends, key = _places(0, 300, Forecast(6, 48, "load", ("load",)), 0.2)
    # A window lacks where the value to predict, or one of two that a forecast may begin with, is missing.
    lacking = sum(160 in (end + 6, end, end - 18) for end in ends[key != CROSSING])
    assert sum(told["rows"].values()) == 3 * (int((key != CROSSING).sum()) - lacking)


def test_labels_ahead(tmp_path: Path, capsys: Capture) -> None:
    frame = series(700)
    frame["state"] = np.where(np.sin(np.arange(700) / 24 * 2 * np.pi) > 0, "day", "night")
    frame.to_csv(tmp_path / "state.csv", index=False)
    asked = ["train", str(tmp_path / "state.csv"), "--target", "state", "--set", "data.window=24", "--set", "data.ahead=6"]
    assert main([*asked, *SMALL, "--out", str(tmp_path / "run")]) == 0
    assert "accuracy" in capsys.readouterr().out
    found = told(capsys, "predict", tmp_path / "run", tmp_path / "state.csv")["predictions"]
    wanted = np.where(np.sin((np.arange(23, 700) + 6) / 24 * 2 * np.pi) > 0, "day", "night")
    assert np.mean([each["class"] == own for each, own in zip(found, wanted, strict=True)]) > 0.9
    assert told(capsys, "evaluate", tmp_path / "run", tmp_path / "state.csv")["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("data.ahead=6",), "data.ahead is set without data.window"),
        (("data.ahead=6", "data.window=48", "data.season=48"), "data.season is 48, expected less than data.window, 48"),
        (("data.ahead=6", "data.window=900"), "no window of 900 rows with a row 6 after it: its longest recording has 900 rows"),
        (("data.ahead=6", "data.window=48", "data.shapes=true"), "data.shapes is True, expected none with data.ahead"),
        (("data.ahead=6", "data.window=48", "data.split=groups"), "the latest rows are held out"),
        (("data.ahead=0", "data.window=48"), "data.ahead is 0"),
        (("data.ahead=6", "data.window=48", "data.series=place"), "data.series is 'place', which is not a column"),
    ],
)
def test_what_is_refused(settings: tuple[str, ...], why: str, place: Path, tmp_path: Path, capsys: Capture) -> None:
    given = [word for setting in settings for word in ("--set", setting)]
    assert main(["train", str(place / "load.csv"), "--target", "load", *given, "--out", str(tmp_path / "out")]) != 0
    assert why in " ".join(capsys.readouterr().err.split())


def test_exports_that_would_not_make_the_inputs_are_refused(place: Path, tmp_path: Path, capsys: Capture) -> None:
    for command in (["page"], ["build"], ["build", "--target", "c"]):
        assert main([command[0], str(place / "run"), *command[1:], "--out", str(tmp_path / "x.html")]) != 0
        assert "circuits, programs and pages do not make its inputs of samples" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="the model is a forecast"):
        integer_model(load(place / "run"))
    with pytest.raises(DataError, match="expected a LUTRegressor"):
        LUTRegressor.load(place / "run")
    assert main(["compare", str(place / "load.csv"), *ASKED]) != 0
    assert "compare does not forecast" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change", [{"ahead": 0}, {"signals": []}, {"parts": ["hour"]}, {"season": 1}, {"extra": 1}, {"order": "b"}]
)
def test_metadata_that_does_not_fit_is_refused(change: dict[str, Any], place: Path, tmp_path: Path) -> None:
    model = load(place / "run")
    model.metadata = {**model.metadata, "forecast": {**model.metadata["forecast"], **change}}
    with pytest.raises(ArgumentError, match=r"metadata\.f"):
        save(model, tmp_path / "m")

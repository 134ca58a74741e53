"""Dates from a file to a prediction: train, predict, explain, evaluate, page, build."""

from __future__ import annotations

import math
import tomllib
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from browser import OpenPage
from cli.test_train_table import Capture, error, told
from lutetia.cli import main
from lutetia.models import load
from lutetia.models.dates import PARTS
from lutetia.precompute import integer_model, model_page
from lutetia.sklearn import LUTRegressor

pytest_plugins = ["browser"]
BEGIN = datetime(2022, 1, 1)  # shops write local times


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sales that depend on the weekday, the month and the hour, with dates as in Europe; a twentieth of them is missing."""
    place = tmp_path_factory.mktemp("shop")
    random = np.random.default_rng(0)
    moments = [BEGIN + timedelta(minutes=int(each)) for each in random.integers(0, 2 * 525_600, 900)]
    units = [
        10 + 8 * (each.weekday() >= 5) + 6 * math.sin(each.month / 2) + 5 * (9 <= each.hour < 18) + random.normal(0, 0.5)
        for each in moments
    ]
    price = random.uniform(1, 9, 900).round(2)
    sold = [each.strftime("%d/%m/%Y %H:%M") for each in moments]
    frame = pandas.DataFrame({"sold": sold, "price": price, "units": np.round(np.array(units) - price, 2)})
    frame.loc[::20, "sold"], frame.loc[::20, "units"] = "", 50 - price[::20]
    frame.to_csv(place / "shop.csv", index=False)
    return place


@pytest.fixture(scope="module")
def run(shop: Path) -> Path:
    out = shop / "run"
    assert main(["train", str(shop / "shop.csv"), "--out", str(out), "--set", "fit.n_tables=60", "--json"]) == 0
    return out


def test_train_shows_how_it_read_dates_and_learns_from_them(shop: Path, run: Path, tmp_path: Path, capsys: Capture) -> None:
    data = tomllib.loads((run / "config.toml").read_text())["data"]
    assert data["dates"] == ["sold"]
    assert data["leave_out"] == []
    train = ["train", str(run / "config.toml"), "--out", str(tmp_path / "again"), "--set", "fit.n_tables=60"]
    assert main(train) == 0
    shown = capsys.readouterr().out
    assert "sold   dates with times, day first, 2022-01-0" in shown
    assert "with year, month, day, weekday, hour, 45 missing" in shown
    assert load(tmp_path / "again").metadata == load(run).metadata
    without = told(capsys, *train[:3], tmp_path / "without", *train[4:], "--set", 'data.leave_out=["sold"]')
    with_dates = told(capsys, "evaluate", run)
    assert with_dates["rmse"] < 0.5 * without["test"]["rmse"]
    assert with_dates["columns"][0]["column"] == "sold"


def test_rows_are_typed_as_in_the_file(run: Path, capsys: Capture) -> None:
    rows = ["14/01/2023 12:30,2.5", "2023-01-14T12:30,2.5", "14 Jan 2023 12:30 pm,2.5", ",2.5", "14/01/2041,2.5"]
    answers = told(capsys, "predict", run, *rows)
    values = [each["value"] for each in answers["predictions"]]
    assert values[0] == values[1] == values[2] != values[3]
    (warning,) = answers["warnings"]
    assert "sold is 2041-01-14 00:00 in 14/01/2041,2.5, trained on 2022-01-0" in warning
    wrong = error(capsys, "predict", run, "01/14/2023,2.5")
    assert "INPUT, column 'sold', line 1: '01/14/2023', expected a date with the day first, such as 29/02/2024" in wrong


def test_reasons_name_the_parts_and_relevance_the_column(shop: Path, run: Path, capsys: Capture) -> None:
    found = told(capsys, "explain", run, "15/01/2023 12:30,2.5")  # a Sunday
    assert found["features"] == ["sold", "price"]
    assert len(found["relevance"]) == 2
    assert sum(found["relevance"]) == pytest.approx(found["prediction"], abs=1e-3)
    first = next(each for each in found["comparisons"] if each["other"] != "missing")
    assert (first["feature"], first["operator"], first["other"]) == ("sold: weekday", ">", "Friday")
    assert first["effect"] > 0
    features = {each["feature"] for each in found["comparisons"]}
    assert {"sold: month", "sold: hour"} <= features
    whole = [each["other"] for each in found["comparisons"] if each["feature"] == "sold: month" and each["other"].isdigit()]
    assert whole
    assert all(1 <= int(each) <= 11 for each in whole)
    missing = told(capsys, "explain", run, ",2.5")["comparisons"]
    said = [each["feature"] for each in missing if each["other"] == "missing" and each["feature"] != "price"]
    assert said == ["sold"]  # one question, whichever part of it is asked for
    assert main(["explain", str(run), str(shop / "shop.csv"), "--row", "1"]) == 0
    assert "sold = 202" in capsys.readouterr().out
    assert main(["info", str(run)]) == 0
    assert "input      2 columns, 1 of dates\n" in capsys.readouterr().out


def test_a_run_is_an_estimator_and_a_program_takes_ranks(shop: Path, run: Path, tmp_path: Path, capsys: Capture) -> None:
    frame = pandas.read_csv(shop / "shop.csv")
    model = LUTRegressor.load(run)
    values = told(capsys, "predict", run, shop / "shop.csv")["predictions"]
    predicted = model.predict(frame[["sold", "price"]])
    # Both add 60 tables in float32, in another order: an addition rounds by 2**-24 of a sum, and none is above the largest.
    np.testing.assert_allclose(predicted, [each["value"] for each in values], rtol=0, atol=60 * 2**-24 * predicted.max())
    dates = pandas.to_datetime(frame["sold"], format="%d/%m/%Y %H:%M")
    np.testing.assert_array_equal(model.predict(frame[["price"]].assign(sold=dates)[["sold", "price"]]), predicted)
    report = told(capsys, "build", run, "--target", "c", "--out", tmp_path / "c")
    assert report["inputs"] == len(model.model_.encoding.parts) == 7
    assert model.model_.config.parts == ("", *PARTS, "")


def test_a_page_encodes_dates_as_python_does(run: Path, open_page: OpenPage) -> None:
    model = load(run)
    opened = open_page(model_page(integer_model(model), "shop"))
    assert opened.page.locator("#sliders label").all_text_contents() == ["sold", "price"]
    random = np.random.default_rng(1)
    moments = [BEGIN + timedelta(seconds=int(each)) for each in random.integers(-(10**8), 2 * 10**8, 25)]
    for moment in [*moments, datetime(9999, 12, 31, 23, 59, 59), None]:
        opened.page.locator("#input0").fill("" if moment is None else moment.isoformat())
        seconds = math.nan if moment is None else (moment - datetime(1970, 1, 1)).total_seconds()
        codes = model.encode(torch.tensor([[seconds, 0.0]], dtype=torch.float64))[0, :-1].tolist()
        assert opened.page.evaluate("lutetia.sample()")[:-1] == codes
    opened.page.locator("#input0").fill("2023-01-15T12:30:00")
    opened.page.wait_for_timeout(100)
    said = " ".join(opened.page.locator("#loud p").all_text_contents())
    assert "sold: weekday > Friday" in said
    assert "sold: month" in said
    assert opened.problems == []


def test_dates_that_may_be_two_things_are_named_on_the_screen(tmp_path: Path, capsys: Capture) -> None:
    rows = "".join(f"0{n % 9 + 1}/0{n % 7 + 1}/2024,{n % 5},{'xy'[n % 2]}\n" for n in range(40))
    (tmp_path / "a.csv").write_text(f"day,b,kind\n{rows}")
    train = ["train", str(tmp_path / "a.csv"), "--set", "fit.n_tables=2", "--out"]
    assert main([*train, str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "day  left out: dates such as '01/01/2024' may have the day or the month first" in shown
    assert "--set data.day_first=true (or false) keeps such dates" in shown
    assert main([*train, str(tmp_path / "other"), "--set", "data.day_first=false"]) == 0
    assert "day  dates, month first, 2024-01-01 to 2024-09-0" in capsys.readouterr().out
    assert main([*train, str(tmp_path / "words"), "--set", 'data.categorical=["day"]']) == 0
    assert "day  40 categories" in capsys.readouterr().out

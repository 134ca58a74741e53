"""`lutetia explain --curves`: what it prints, writes and refuses, from the rows of the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest

from lutetia.cli import main
from lutetia.sklearn import LUTClassifier
from said import error, told

Capture = pytest.CaptureFixture[str]


def table(n: int = 300) -> pandas.DataFrame:
    random = np.random.default_rng(0)
    x = pandas.DataFrame({"age": random.integers(20, 70, n), "rooms": random.integers(1, 9, n)})
    x["kind"] = np.array(["flat", "house", "loft <b>"])[random.integers(0, 3, n)]
    high = x["age"] / 10 + x["rooms"] * (x["kind"] == "house") + random.normal(size=n) > 6
    return x.assign(rent=np.where(high, "high", "low"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of curves, one of curves and pairs, and one without limits, beside their data."""
    folder = tmp_path_factory.mktemp("curves")
    table().to_csv(folder / "homes.csv", index=False)
    for name, asked in (("one", "1"), ("two", "2"), ("any", "")):
        limits = ["--set", f"fit.interactions={asked}"] if asked else []
        command = ["train", str(folder / "homes.csv"), "--out", str(folder / name), "--set", "fit.n_tables=40", *limits]
        assert main([*command, "--set", "fit.calibrate=false", "--set", "fit.enough_tables=false", "--json"]) == 0
    return folder


def test_the_curves_are_those_of_the_model(runs: Path, capsys: Capture) -> None:
    """Added up by hand from the JSON, beside what the estimator predicts for all rows of the file."""
    found = told(capsys, "explain", runs / "one", "--curves")
    assert found["outputs"] == ["the log-odds of low"]
    assert (found["whole"], found["most_columns"], found["pairs"], found["rows"]) == (True, 1, [], 240)
    curves = {curve["column"]: curve for curve in found["curves"]}
    x = table().drop(columns="rent")
    total = np.full(len(x), found["average"][0])
    for name in ("age", "rooms"):
        adds = np.array([step["adds"][0] for step in curves[name]["steps"]])
        total += adds[np.searchsorted(curves[name]["edges"], x[name])]
    towns = {step["at"]: step["adds"][0] for step in curves["kind"]["steps"]}
    total += x["kind"].map(towns)
    np.testing.assert_allclose(total, LUTClassifier.load(runs / "one").decision_function(x), atol=2e-5)


def test_it_says_what_the_curves_are(runs: Path, capsys: Capture) -> None:
    assert main(["explain", str(runs / "one"), "--curves"]) == 0
    said = capsys.readouterr().out
    assert "This is the whole model: a prediction is the average plus the value of each curve." in said
    assert "age: from " in said
    assert "the log-odds of low is " in said
    assert main(["explain", str(runs / "two"), "--curves"]) == 0
    said = capsys.readouterr().out
    assert "plus the value of each curve and of each pair." in said
    assert "rooms and kind" in said or "kind and rooms" in said
    assert main(["explain", str(runs / "any"), "--curves"]) == 0
    said = capsys.readouterr().out
    assert "This is not the whole model: its tables compare up to 3 columns at once." in said
    assert "over 128 rows of the data (partial dependence)" in said


@pytest.mark.parametrize("run", ["one", "two", "any"])
def test_a_page_and_a_picture_are_written(runs: Path, tmp_path: Path, capsys: Capture, run: str) -> None:
    html, png = tmp_path / "curves.html", tmp_path / "curves.png"
    assert main(["explain", str(runs / run), "--curves", "--html", str(html), "--png", str(png)]) == 0
    assert f"page {html}\n" in capsys.readouterr().out
    text = html.read_text()
    assert "loft &lt;b&gt;" in text
    assert "loft <b>" not in text
    assert text.count('role="img"') >= 3
    assert ("partial dependence" in text) == (run == "any")
    assert ('id="pairs"' in text) == (run == "two")
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("age.csv",), "INPUT is not for --curves"),
        (("--row", "1"), "--row is not for --curves"),
        (("--rule", "shapley"), "--rule is not for --curves"),
        (("--hf",), "--hf is not for --curves"),
        (("--html", "curves.txt"), "curves.txt"),
    ],
)
def test_what_goes_with_no_curves(runs: Path, capsys: Capture, asked: tuple[str, ...], message: str) -> None:
    assert message in error(capsys, "explain", runs / "one", "--curves", *asked)


def test_rows_that_are_not_known_are_asked_for(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    LUTClassifier.load(runs / "one").save(tmp_path / "saved")
    said = error(capsys, "explain", tmp_path / "saved", "--curves")
    assert "--curves averages over the rows that" in said
    assert "--data names their file" in said


def test_models_of_no_columns_have_none(tmp_path: Path, capsys: Capture) -> None:
    from lutetia.models import LUTClassifier as Layers
    from lutetia.models import save

    save(Layers(input_shape=(4,), n_classes=2, layers=(), seed=0), tmp_path / "layers")
    assert "--curves is for models of columns of data" in error(capsys, "explain", tmp_path / "layers", "--curves")

"""`lutetia train` on several targets, and what follows: predictions, measures, reasons, pages, programs, circuits."""

from __future__ import annotations

import csv
import json
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pandas
import pytest

from cli.test_train_table import Capture, told
from lutetia.cli import main
from lutetia.models import Targets, load
from lutetia.sklearn import LUTClassifier, LUTRegressor
from tools import require_tool

SMALL = ("--set", "fit.n_tables=20", "--set", "fit.n_anchors=3", "--set", "fit.candidates=16")
TWO = ("train", "trees.csv", "--target", "price", "--target", "weight")


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with two numbers and two classes to predict, and a run for each pair."""
    place, random = tmp_path_factory.mktemp("trees"), np.random.default_rng(0)
    size, kind = random.uniform(1, 9, 400).round(2), random.choice(["oak", "elm", "ash"], 400)
    frame = pandas.DataFrame({"size": size, "kind": kind, "price": (3 * size + 10 * (kind == "oak")).round(2)})
    frame["weight"] = [f"{own:.1f} kg" for own in size**2]
    frame["grade"], frame["wood, use"] = (
        np.where(size > 5, "A", "B"),
        np.where(kind == "oak", "hard", np.where(size > 4, "soft", "firm")),
    )
    frame.to_csv(place / "trees.csv", index=False)
    left_out = ("--set", 'data.leave_out=["grade", "wood, use"]')
    assert (
        main(["train", str(place / "trees.csv"), "--target", "price, weight", *SMALL, *left_out, "--out", str(place / "numbers")])
        == 0
    )
    left_out = ("--set", 'data.leave_out=["price", "weight"]')
    several = ("--target", "grade", "--target", "wood, use", *left_out, "--out", str(place / "classes"))
    assert main(["train", str(place / "trees.csv"), *several, *SMALL]) == 0
    return place


def test_what_train_leaves(trees: Path, capsys: Capture) -> None:
    summary = json.loads((trees / "numbers" / "summary.json").read_text())
    assert [own["target"] for own in summary["targets"]] == ["price", "weight"]
    assert summary["left_out"].keys() == {"grade", "wood, use"}
    assert tomllib.loads((trees / "numbers" / "config.toml").read_text())["data"]["target"] == ["price", "weight"]
    model = load(trees / "numbers")
    assert isinstance(model, Targets)
    assert model.metadata["targets"][1]["target_unit"] == "kg"
    assert model.metadata["features"] == ["size", "kind"]
    assert [own["classes"] for own in load(trees / "classes").metadata["targets"]] == [["A", "B"], ["firm", "hard", "soft"]]
    # A run again from its config is the same.
    assert main(["train", str(trees / "numbers" / "config.toml"), "--out", str(trees / "again")]) == 0
    shown = capsys.readouterr().out
    assert "regression of price and weight: 320 rows to fit, 80 rows to test" in shown
    again = load(trees / "again")
    np.testing.assert_array_equal(again.tables.weight.detach(), model.tables.weight.detach())


def test_predictions(trees: Path, capsys: Capture) -> None:
    frame = pandas.read_csv(trees / "trees.csv")
    found = told(capsys, "predict", trees / "numbers", trees / "trees.csv", "--csv", trees / "out.csv", "--keep")
    wanted = LUTRegressor.load(trees / "numbers").predict(frame[["size", "kind"]])
    values = np.array([[own["value"] for own in row["targets"].values()] for row in found["predictions"]])
    np.testing.assert_allclose(values, wanted, rtol=1e-6)
    written = pandas.read_csv(trees / "out.csv")
    np.testing.assert_allclose(written[["predicted price", "predicted weight"]], wanted, rtol=1e-6)
    assert (written["predicted weight low"] < written["predicted weight high"]).all()
    assert list(written)[: len(list(frame))] == list(frame)
    classifier = LUTClassifier.load(trees / "classes")
    found = told(capsys, "predict", trees / "classes", trees / "trees.csv")
    classes = np.array([[own["class"] for own in row["targets"].values()] for row in found["predictions"]])
    np.testing.assert_array_equal(classes, classifier.predict(frame[["size", "kind"]]))
    assert main(["predict", str(trees / "classes"), "8,oak"]) == 0
    assert "grade A" in (shown := capsys.readouterr().out)
    assert "; wood, use hard" in shown


def test_measures(trees: Path, capsys: Capture) -> None:
    """On a file and on the rows that were held out, which are the same for all targets."""
    frame = pandas.read_csv(trees / "trees.csv")
    summary = json.loads((trees / "numbers" / "summary.json").read_text())
    found = told(capsys, "evaluate", trees / "numbers")
    assert [own["rmse"] for own in found["targets"]] == pytest.approx(
        [own["test"]["rmse"] for own in summary["targets"]], rel=1e-5
    )
    found = told(capsys, "evaluate", trees / "numbers", trees / "trees.csv")
    errors = LUTRegressor.load(trees / "numbers").predict(frame[["size", "kind"]])
    errors -= np.stack([frame["price"], frame["weight"].str.removesuffix(" kg").astype(float)], 1)
    assert [own["rmse"] for own in found["targets"]] == pytest.approx(np.sqrt((errors**2).mean(0)).tolist(), rel=1e-4)
    assert found["targets"][0]["columns"][0]["column"] == "size"
    found = told(capsys, "evaluate", trees / "classes", trees / "trees.csv")
    right = LUTClassifier.load(trees / "classes").predict(frame[["size", "kind"]]) == frame[["grade", "wood, use"]].to_numpy()
    assert [own["accuracy"] for own in found["targets"]] == pytest.approx(right.mean(0).tolist())
    assert main(["info", str(trees / "classes")]) == 0
    assert "grade: 2 classes" in capsys.readouterr().out


def test_reasons_and_pages(trees: Path, capsys: Capture) -> None:
    reasons = told(capsys, "explain", trees / "numbers", trees / "trees.csv", "--output", "weight", "--row", "2")
    assert sum(reasons["relevance"]) == pytest.approx(reasons["prediction"], rel=1e-4)
    away = told(
        capsys, "explain", trees / "numbers", trees / "trees.csv", "--output", "weight", "--row", "2", "--rule", "shapley"
    )
    assert sum(away["relevance"]) + away["absorbed"] == pytest.approx(reasons["prediction"], rel=1e-4)
    assert main(["page", str(trees / "classes"), "--output", "wood, use", "--out", str(trees / "page.html")]) == 0
    assert "soft" in (trees / "page.html").read_text()


def test_a_program_of_a_target(trees: Path, capsys: Capture) -> None:
    """C of one target gives its predictions, read from the same file."""
    compiler = require_tool("cc")
    report = told(
        capsys, "build", trees / "numbers", "--output", "price", "--target", "c", "--weight-bits", "16", "--out", trees / "c"
    )
    sources = [str(trees / "c" / name) for name in ("model.c", "columns.c", "rows.c")]
    subprocess.run([compiler, "-std=c99", "-DLUTETIA_NO_MAIN", *sources, "-o", str(trees / "run"), "-lm"], check=True)
    with open(trees / "trees.csv") as file:
        out = subprocess.run([str(trees / "run")], stdin=file, capture_output=True, text=True, check=True).stdout
    got = np.array([float(row[0]) for row in csv.reader(out.splitlines()[1:])])
    frame = pandas.read_csv(trees / "trees.csv")
    wanted = LUTRegressor.load(trees / "numbers").predict(frame[["size", "kind"]])[:, 0]
    np.testing.assert_allclose(got, wanted, atol=10 * report["output_unit"])


def test_the_circuit_of_a_target(trees: Path, capsys: Capture) -> None:
    """It is measured on the target's own rows, and its first tables are fitted again to them."""
    report = told(
        capsys, "build", trees / "classes", "--output", "grade", "--tables", "4", "--no-prove", "--out", trees / "circuit"
    )
    assert report["classes"] == ["A", "B"]
    assert report["accuracy"]["samples"] == 80
    assert report["accuracy"]["integer_accuracy"] > 0.9
    assert "refit" in report["boosted_tables"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["explain", "numbers", "8,oak"], "explain takes one target, and the model predicts price, weight: --output price"),
        (["page", "numbers", "--output", "colour"], "--output is 'colour', expected one of the targets 'price', 'weight'"),
        (["build", "numbers"], "build takes one target"),
        (["flow", "numbers", "8,oak"], "flow is for models of one target"),
        (["quantize", "numbers"], "quantize is for models of one target"),
        (["evaluate", "numbers", "--html", "a.html"], "--html is a.html, expected none: the model has several targets"),
        (["train", "trees.csv", "--target", "price,price"], "data.target is ['price', 'price'], expected each column once"),
        (["train", "trees.csv", "--target", "price,hight"], "trees.csv has no column 'hight' to predict"),
        (["train", "trees.csv", "--target", "price,grade"], "the targets are of different kinds"),
        ([*TWO, "--set", "data.window=8"], "expected one: windows, images and arrays"),
        ([*TWO, "--set", "fit.monotone={size=1}"], "fit.monotone is for one target"),
        (["train", "trees.csv", "--set", "data.target=[]"], "data.target is"),
        (["compare", "trees.csv", "--target", "price,weight"], "compare is for one target"),
    ],
)  # fmt: skip
def test_what_is_refused(trees: Path, arguments: list[str], why: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trees)
    assert main(arguments) != 0
    assert why in " ".join(capsys.readouterr().err.split())


def test_rows_without_a_target_are_named_or_skipped(tmp_path: Path, capsys: Capture) -> None:
    rows = [f"{number},{'' if number == 3 else number * 1.5},{'' if number == 7 else number * 2.5}" for number in range(60)]
    (tmp_path / "holes.csv").write_text("\n".join(["a,b,c", *rows]) + "\n")
    asked = ["train", str(tmp_path / "holes.csv"), "--target", "b,c", *SMALL, "--out", str(tmp_path / "run")]
    assert main(asked) != 0
    assert "column 'b' has no value in line 5" in capsys.readouterr().err
    assert main([*asked, "--set", "data.skip_unusable=true"]) == 0
    assert "skipped 2 rows" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rows"] == {"train": 47, "test": 11}

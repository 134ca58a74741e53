"""From a file of data to a model in one line, and what the other commands make of it."""

from __future__ import annotations

import html
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_diabetes, load_digits, load_wine
from sklearn.metrics import log_loss

from lutetia._shared.numbers import short_number
from lutetia.cli import build, build_tables, main
from lutetia.errors import DataError
from lutetia.models import load
from lutetia.report.comparisons import Comparison
from lutetia.sklearn import LUTClassifier, LUTRegressor
from lutetia.training import target_column
from lutetia.training.table_refit import Trial
from said import error, told

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tables")
    wine = load_wine(as_frame=True)
    names = np.array(["Barolo", "Grignolino", "Barbera"])
    rooms = np.where((wine.target == 2) ^ (np.arange(178) % 7 == 3), "attic", "cellar")  # which tells something of the cultivar
    wine.data.assign(room=rooms, cultivar=names[wine.target]).to_csv(place / "wine.csv", index=False)
    load_diabetes(as_frame=True, scaled=False).frame.to_csv(place / "diabetes.csv", index=False)
    digits = load_digits()
    for number in range(150):
        inside = place / "digits" / f"digit {digits.target[number]}"
        inside.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[number] * 15).astype(np.uint8)).save(inside / f"{number}.png")
    return place


@pytest.fixture(scope="module")
def wine_run(folder: Path) -> Path:
    out = folder / "runs" / "wine"
    command = ["train", folder / "wine.csv", "--target", "cultivar", "--out", out, "--set", "fit.n_tables=20", "--json"]
    assert main([*map(str, command)]) == 0
    return out


def test_what_was_guessed_is_shown_in_columns(tmp_path: Path, capsys: Capture) -> None:
    long = "a name of a column that is longer than most"
    rows = "".join(f"{n % 7},{n % 5},note {n},{'xy'[n % 2]}\n" for n in range(40))
    (tmp_path / "a.csv").write_text(f"{long},b,note,kind\n{rows}")
    train = ["train", str(tmp_path / "a.csv"), "--out", str(tmp_path / "run"), "--set", "fit.n_tables=2"]
    assert main(train) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("classification, 2 classes of kind, the last column (--target names another): 32 rows to fit, ")
    assert lines[1:4] == [
        f"  {long}  number, 7 values",
        f"  {'b':<{len(long)}}  number, 5 values",
        f"  {'note':<{len(long)}}  left out: text with 40 different values",
    ]
    assert main([*train, "--target", "kind", "--out", str(tmp_path / "other")]) == 0
    assert "the last column" not in capsys.readouterr().out
    np.savez(tmp_path / "b.npz", X=np.random.default_rng(0).random((40, 3)), y=np.arange(40) % 2)
    assert main(["train", str(tmp_path / "b.npz"), "--out", str(tmp_path / "b"), "--set", "fit.n_tables=2"]) == 0
    assert capsys.readouterr().out.startswith("classification, 2 classes of y: 32 rows to fit, ")  # an array, not a column


def test_words_for_no_value_are_told_and_read_again(tmp_path: Path, capsys: Capture) -> None:
    cells = {5: "-", 9: "Unknown"}
    rows = "".join(f"{cells.get(n, n / 8)},{n % 5},{'xy'[n % 2]}\n" for n in range(80))
    (tmp_path / "a.csv").write_text(f"size,b,kind\n{rows}")
    assert main(["train", str(tmp_path / "a.csv"), "--out", str(tmp_path / "run"), "--set", "fit.n_tables=2"]) == 0
    screen = capsys.readouterr().out
    assert "also missing: '-', 'unknown' (data.missing in the config)" in screen
    empty, word = told(capsys, "predict", tmp_path / "run", ",3", "UNKNOWN,3")["predictions"]
    assert empty["probabilities"] == word["probabilities"]
    pandas.DataFrame({"size": ["-"], "b": [3]}).to_parquet(tmp_path / "b.parquet")
    (read,) = told(capsys, "predict", tmp_path / "run", tmp_path / "b.parquet")["predictions"]
    assert read["probabilities"] == empty["probabilities"]
    assert "'small', expected a number" in error(capsys, "predict", tmp_path / "run", "small,3")


def test_names_that_differ_in_case_only_stay_apart(tmp_path: Path, capsys: Capture) -> None:
    rows = "".join(f"{('us', 'US', 'it')[n % 3]},{n % 7},{'xy'[n % 3 == 0]}\n" for n in range(60))
    (tmp_path / "a.csv").write_text(f"word,b,kind\n{rows}")
    told(capsys, "train", tmp_path / "a.csv", "--out", tmp_path / "run", "--set", "fit.n_tables=9")
    predicted = told(capsys, "predict", tmp_path / "run", "us,1", "US,1", "IT,1", "it,1")["predictions"]
    assert [each["class"] for each in predicted] == ["y", "x", "x", "x"]
    assert predicted[2]["probabilities"] == predicted[3]["probabilities"]
    assert "'Us', expected one of" in error(capsys, "predict", tmp_path / "run", "Us,1")


def test_predictions_beside_the_columns_of_the_input(towns: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.csv"
    keep = ["--keep", "--unknown", "missing", "--csv", out]
    told(capsys, "predict", towns / "run", towns / "new.csv", *keep)
    kept, given = pandas.read_csv(out, dtype=str), pandas.read_csv(towns / "new.csv", dtype=str)
    pandas.testing.assert_frame_equal(kept[given.columns], given)
    assert list(kept.columns[4:]) == ["predicted kind", "probability", "probability of x", "probability of y"]
    predictions = told(capsys, "predict", towns / "run", towns / "new.csv", "--unknown", "missing")["predictions"]
    assert kept["predicted kind"].tolist() == [each["class"] for each in predictions]
    given.to_parquet(tmp_path / "new.parquet")
    told(capsys, "predict", towns / "run", tmp_path / "new.parquet", towns / "new.csv", *keep)
    pandas.testing.assert_frame_equal(pandas.read_csv(out, dtype=str), pandas.concat([kept, kept], ignore_index=True))
    assert "expected every INPUT to be a .csv or .parquet" in error(capsys, "predict", towns / "run", "Rome,3,TRUE", *keep)
    assert "expected --csv FILE too" in error(capsys, "predict", towns / "run", towns / "new.csv", "--keep")
    again = error(capsys, "predict", towns / "run", out, "--keep", "--unknown", "missing", "--csv", tmp_path / "b.csv")
    assert "has a column 'predicted kind' already" in again
    both = error(capsys, "predict", towns / "run", towns / "new.csv", towns / "towns.csv", *keep)
    assert f"{towns / 'towns.csv'} has other columns than the first file" in both


def test_numbers_beside_the_columns_of_the_input(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    told(capsys, "train", folder / "diabetes.csv", "--out", tmp_path / "run", "--set", "fit.n_tables=5")
    told(capsys, "predict", tmp_path / "run", folder / "diabetes.csv", "--csv", tmp_path / "out.csv", "--keep")
    kept, given = pandas.read_csv(tmp_path / "out.csv"), pandas.read_csv(folder / "diabetes.csv")
    pandas.testing.assert_frame_equal(kept[given.columns], given)
    values = [each["value"] for each in told(capsys, "predict", tmp_path / "run", folder / "diabetes.csv")["predictions"]]
    assert kept["predicted target"].tolist() == values


def test_a_column_that_was_left_out_is_kept_as_categories(tmp_path: Path, capsys: Capture) -> None:
    rows = "".join(f"note {n},{n % 7},{'xy'[n % 2]}\n" for n in range(60))
    (tmp_path / "a.csv").write_text(f"note,b,kind\n{rows}")
    train = ["train", str(tmp_path / "a.csv"), "--set", "fit.n_tables=2", "--out"]
    assert main([*train, str(tmp_path / "plain")]) == 0
    assert """--set 'data.categorical=["NAME"]' keeps a column of many values as categories""" in capsys.readouterr().out
    kept = told(capsys, *train, tmp_path / "kept", "--set", 'data.categorical=["note"]')
    assert kept["left_out"] == {}
    assert {"column": "note", "type": "60 categories"} in kept["types"]
    both = ["--set", 'data.categorical=["note"]', "--set", 'data.leave_out=["note"]']
    assert list(told(capsys, *train, tmp_path / "both", *both)["left_out"]) == ["note"]


def test_an_identifier_is_left_out_unless_it_is_asked_for(tmp_path: Path, capsys: Capture) -> None:
    rows = "".join(f"{n * 37 % 101},{n % 7},{'xy'[n % 2]}\n" for n in range(60))
    (tmp_path / "a.csv").write_text(f"CustomerID,b,kind\n{rows}")
    train = ["train", str(tmp_path / "a.csv"), "--set", "fit.n_tables=2", "--out"]
    assert main([*train, str(tmp_path / "plain")]) == 0
    screen = capsys.readouterr().out
    assert "  CustomerID  left out: an identifier, with another number in each row\n" in screen
    assert "  --set 'data.leave_out=[]' keeps identifiers and numbers of rows\n" in screen
    assert told(capsys, *train, tmp_path / "kept", "--set", "data.leave_out=[]")["left_out"] == {}


def test_classes_in_natural_order_and_models_that_have_another(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that was saved with its classes in the order of text keeps them; its data is numbered as it does."""
    monkeypatch.setattr(build, "CHECK", ())
    rows = "".join(f"{n % 12},{n % 7},type {n % 12}\n" for n in range(240))
    (tmp_path / "a.csv").write_text(f"size,b,kind\n{rows}")
    train = ["train", tmp_path / "a.csv", "--set", "fit.n_tables=40", "--out"]
    with monkeypatch.context() as older:
        older.setattr(target_column, "class_order", str)
        saved = told(capsys, *train, tmp_path / "older")
    new = told(capsys, *train, tmp_path / "new")
    assert [each["class"] for each in new["test"]["classes"]] == [f"type {n}" for n in range(12)]
    assert load(tmp_path / "older").metadata["classes"] == sorted(f"type {n}" for n in range(12))
    for summary, run in ((saved, tmp_path / "older"), (new, tmp_path / "new")):
        assert summary["test"]["accuracy"] > 0.9
        assert told(capsys, "evaluate", run)["accuracy"] == summary["test"]["accuracy"]
        built = told(capsys, "build", run, "--out", tmp_path / "circuit", "--tables", 40)
        assert built["accuracy"]["float_accuracy"] == summary["test"]["accuracy"]
        for n_tables in ([], ["--tables", 20]):
            program = told(capsys, "build", run, "--out", tmp_path / "program", "--target", "c", *n_tables)
            assert program["accuracy"]["float_accuracy"] == summary["test"]["accuracy"]
            assert program["accuracy"]["integer_accuracy"] > 0.8
        estimator, frame = LUTClassifier.load(run), pandas.read_csv(tmp_path / "a.csv")
        assert estimator.score(frame[["size", "b"]], frame["kind"]) > 0.9
        names = [estimator.classes_[number] for number in estimator._target(frame["kind"].to_numpy())]
        assert names == frame["kind"].tolist()
        assert estimator.classes_.tolist() == sorted(estimator.classes_)  # as metrics take the columns of probabilities
        assert log_loss(frame["kind"], estimator.predict_proba(frame[["size", "b"]])) < 1.0
        estimator.save(tmp_path / f"{run.name} saved")
        again = LUTClassifier.load(tmp_path / f"{run.name} saved")
        assert again.predict(frame[["size", "b"]]).tolist() == estimator.predict(frame[["size", "b"]]).tolist()
        explained = estimator.explain(frame[["size", "b"]][:1], target="type 10")
        assert load(run).metadata["classes"][explained.targets[0]] == "type 10"
    (tmp_path / "a.csv").write_text(f"size,b,kind\n{rows}3,3,type 99\n")
    assert "has the class 'type 99', which the model was not trained on" in error(capsys, "evaluate", tmp_path / "new")


def test_a_run_is_an_estimator(wine_run: Path, folder: Path, towns: Path, tmp_path: Path, capsys: Capture) -> None:
    model = LUTClassifier.load(wine_run)
    frame = pandas.read_csv(folder / "wine.csv")[model.feature_names_in_]
    predicted = told(capsys, "predict", wine_run, folder / "wine.csv")["predictions"]
    assert model.predict(frame).tolist() == [each["class"] for each in predicted]
    np.testing.assert_allclose(model.predict_proba(frame), [each["probabilities"] for each in predicted], rtol=1e-5)
    assert "proline" in model.explain(frame[:1]).to_text()
    model.save(tmp_path / "saved")
    assert LUTClassifier.load(tmp_path / "saved").predict(frame).tolist() == model.predict(frame).tolist()
    with pytest.raises(ValueError, match="unknown categories"):
        model.predict(frame.assign(room="kitchen"))
    told(capsys, "train", folder / "diabetes.csv", "--out", tmp_path / "run", "--set", "fit.n_tables=5")
    values = [each["value"] for each in told(capsys, "predict", tmp_path / "run", folder / "diabetes.csv")["predictions"]]
    numbers = LUTRegressor.load(tmp_path / "run")
    np.testing.assert_allclose(
        numbers.predict(pandas.read_csv(folder / "diabetes.csv")[numbers.feature_names_in_]), values, rtol=1e-6
    )
    with pytest.raises(DataError, match="holds LUTRegressor, expected a LUTClassifier"):
        LUTClassifier.load(tmp_path / "run")
    told(capsys, "train", folder / "digits", "--out", tmp_path / "digits", "--set", "fit.n_tables=5")
    image = next((folder / "digits" / "digit 3").iterdir())
    pixels = np.asarray(Image.open(image)).reshape(1, 64) / 255
    (seen,) = told(capsys, "predict", tmp_path / "digits", image)["predictions"]
    assert LUTClassifier.load(tmp_path / "digits").predict(pixels).tolist() == [seen["class"]]


def test_evaluate_names_the_columns_that_matter(towns: Path, folder: Path, tmp_path: Path, capsys: Capture) -> None:
    found = told(capsys, "evaluate", towns / "run", towns / "towns.csv")["columns"]
    assert found[0]["column"] == "town"  # which says the class
    assert [each["rise"] for each in found] == sorted((each["rise"] for each in found), reverse=True)
    assert main(["evaluate", str(towns / "run"), str(towns / "towns.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("columns that matter: how far the loss rises when one is shuffled")
    assert lines[at + 1] == f"  town  {found[0]['rise']:+.4g}"
    told(capsys, "train", folder / "diabetes.csv", "--out", tmp_path / "run", "--set", "fit.n_tables=5")
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert "columns that matter: how far the RMSE rises when one is shuffled" in capsys.readouterr().out
    told(capsys, "train", folder / "digits", "--out", tmp_path / "digits", "--set", "fit.n_tables=5")
    assert "columns" not in told(capsys, "evaluate", tmp_path / "digits")  # pixels have no names


def test_long_lists_of_categories_are_shortened(tmp_path: Path, capsys: Capture) -> None:
    rows = "".join(f"town {n % 40},{'xy'[(n % 40) // 20]}\n" for n in range(400))
    (tmp_path / "a.csv").write_text(f"town,kind\n{rows}")
    assert main(["train", str(tmp_path / "a.csv"), "--out", str(tmp_path / "run"), "--set", "fit.n_tables=9"]) == 0
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "run"), str(tmp_path / "a.csv")]) == 0
    because = [line for line in capsys.readouterr().out.splitlines() if " because town " in line]
    assert because
    assert all(line.count("town ") <= 6 for line in because)
    assert any(line.endswith(" others]") for line in because)


def test_a_row_is_typed_as_it_stands_in_the_file(tmp_path: Path, capsys: Capture) -> None:
    rows = [f'{n % 7}.5,"{("ham, smoked", "egg")[n % 2]}",{("low", "high")[n % 3 % 2]}' for n in range(40)]
    (tmp_path / "menu.csv").write_text("\n".join(["size,dish,price", *rows, ""]))
    run = str(tmp_path / "run")
    train = ["train", str(tmp_path / "menu.csv"), "--out", run, "--set", "fit.n_tables=2", "--json"]
    assert main(train) == 0
    capsys.readouterr()
    assert main(["predict", run, str(tmp_path / "menu.csv"), *(row.rpartition(",")[0] for row in rows), "--json"]) == 0
    predictions = [each["probabilities"] for each in json.loads(capsys.readouterr().out)["predictions"]]
    assert predictions[:40] == predictions[40:]
    assert main(["explain", run, ", egg"]) == 0  # the first value is missing
    assert "size = missing" in capsys.readouterr().out
    for row, message in (
        (
            "1,0",
            "INPUT, column 'dish', line 1: '0', expected one of the categories egg, ham, smoked"
            " (--unknown missing takes others for missing)",
        ),
        ("1,egg,low", "INPUT has 3 values, expected 2: size, dish"),
    ):
        assert main(["predict", run, row]) == 1
        assert capsys.readouterr().err == f"error: {message}\n"


def test_a_csv_is_trained_explained_and_built_with_its_names(
    wine_run: Path, folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    summary = json.loads((wine_run / "summary.json").read_text())
    assert summary["task"] == "classification"
    assert summary["test"]["accuracy"] > 0.85
    assert {"column": "room", "type": "2 categories"} in summary["types"]
    capsys.readouterr()
    evaluated = told(capsys, "evaluate", wine_run)
    assert evaluated["accuracy"] == summary["test"]["accuracy"]
    predicted = told(capsys, "predict", wine_run, folder / "wine.csv")
    assert predicted["classes"] == ["Barbera", "Barolo", "Grignolino"]
    assert len(predicted["predictions"]) == 178
    explained = told(capsys, "explain", wine_run, folder / "wine.csv", "--row", 3)
    assert explained["prediction_name"] == predicted["predictions"][3]["class"]
    assert explained["features"][-1] == "room"
    assert sum(explained["relevance"]) == pytest.approx(explained["explained"], rel=1e-3)
    assert told(capsys, "info", wine_run)["can_be_built"]
    built = told(capsys, "build", wine_run, "--out", tmp_path / "circuit", "--no-prove", "--time-limit", "60")
    assert built["classes"] == ["Barbera", "Barolo", "Grignolino"]
    assert built["accuracy"]["integer_accuracy"] > 0.85
    assert built["simulated"]["samples"] > 0


def test_explain_shows_values_and_comparisons(wine_run: Path, folder: Path, tmp_path: Path, capsys: Capture) -> None:
    row = (folder / "wine.csv").read_text().splitlines()[1].split(",")
    given = ["explain", str(wine_run), str(folder / "wine.csv"), "--row", "0"]
    assert main([*given, "--target", "Barbera", "--png", str(tmp_path / "why.png")]) == 0
    said = capsys.readouterr().out
    assert f"alcohol = {float(row[0]):.4g} " in said
    assert "room = cellar " in said
    assert " below its rivals (rule decisive)" in said  # and no word of constants, which got next to nothing
    assert said.endswith(f"picture {tmp_path / 'why.png'}\n")
    shown = [line for line in said.splitlines() if " because " in line]
    compared = told(capsys, *given, "--target", "Barbera")["comparisons"]
    assert len(shown) == 5
    assert shown == [f"{each['effect']:+.3g} because {Comparison(**each).text}" for each in compared[:5]]
    rooms = [each for each in compared if each["feature"] == "room" and each["other"].endswith("]")]
    assert rooms
    for each in rooms:  # "room in [..]", or not
        assert ("cellar" in each["other"].strip("[]").split(", ")) == (each["operator"] == "<=")
    values = pandas.read_csv(folder / "wine.csv").iloc[0]
    thresholds = [each for each in compared if each["feature"] != "room" and each["other"].replace(".", "").isdecimal()]
    assert len(thresholds) > 10
    for each in thresholds:
        assert (values[each["feature"]] > float(each["other"])) == (each["operator"] == ">"), each


def test_what_train_takes_predict_and_evaluate_take(wine_run: Path, folder: Path, tmp_path: Path, capsys: Capture) -> None:
    frame = pandas.read_csv(folder / "wine.csv")
    expected = told(capsys, "evaluate", wine_run, folder / "wine.csv")
    assert main(["evaluate", str(wine_run), str(folder / "wine.csv")]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(f", 178 samples of {folder / 'wine.csv'}")
    frame.to_csv(tmp_path / "wine.tsv", sep="\t", index=False)
    frame.to_csv(tmp_path / "wine.csv.gz", index=False)
    pytest.importorskip("pyarrow")
    frame.to_parquet(tmp_path / "wine.parquet")
    for name in ("wine.tsv", "wine.csv.gz", "wine.parquet"):
        assert told(capsys, "evaluate", wine_run, tmp_path / name) == expected, name
        assert len(told(capsys, "predict", wine_run, tmp_path / name)["predictions"]) == 178, name
    frame.drop(columns="hue").to_parquet(tmp_path / "less.parquet")
    assert "has no column 'hue', which the model was trained on" in error(capsys, "predict", wine_run, tmp_path / "less.parquet")


def test_the_config_beside_the_result_is_the_next_step(wine_run: Path, capsys: Capture, tmp_path: Path) -> None:
    file = wine_run / "config.toml"
    tables = tomllib.loads(file.read_text())
    assert tables["data"]["target"] == "cultivar"
    assert tables["fit"]["n_tables"] == 20
    (tmp_path / "edited.toml").write_text(file.read_text().replace("n_tables = 20", "n_tables = 5"))
    assert "does not exist" in error(capsys, "train", tmp_path / "edited.toml")  # paths are relative to the config
    moved = wine_run / "edited.toml"
    moved.write_text((tmp_path / "edited.toml").read_text())
    assert told(capsys, "train", moved, "--out", tmp_path / "again")["tables"] == 5
    moved.unlink()
    assert load(tmp_path / "again").config.n_tables == 5


def test_missing_cells_and_unknown_categories_of_rows(wine_run: Path, folder: Path, tmp_path: Path, capsys: Capture) -> None:
    header, first, *_ = (folder / "wine.csv").read_text().splitlines()
    cells = first.split(",")
    cells[0], cells[-2] = "", "cellar"
    (tmp_path / "one.csv").write_text(f"{header}\n{','.join(cells)}\n")
    assert told(capsys, "predict", wine_run, tmp_path / "one.csv")["predictions"][0]["class"] == "Barolo"
    cells[-2] = "kitchen"
    (tmp_path / "one.csv").write_text(f"{header}\n{','.join(cells)}\n")
    assert "'kitchen', expected one of the categories attic, cellar" in error(capsys, "predict", wine_run, tmp_path / "one.csv")


def test_a_regression_from_end_to_end(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "run"
    summary = told(capsys, "train", folder / "diabetes.csv", "--target", "target", "--out", out, "--set", "fit.n_tables=30")
    assert summary["task"] == "regression"
    assert summary["test"]["r2"] > 0.2
    assert "patience = 5\n" in (out / "config.toml").read_text()  # the rows that say when to stop are no test rows
    assert told(capsys, "evaluate", out)["rmse"] == pytest.approx(summary["test"]["rmse"])
    predicted = told(capsys, "predict", out, folder / "diabetes.csv")
    explained = told(capsys, "explain", out, folder / "diabetes.csv")
    assert predicted["target"] == explained["target_name"] == "target"
    assert explained["prediction"] == pytest.approx(predicted["predictions"][0]["value"])
    assert sum(explained["relevance"]) == pytest.approx(explained["prediction"], rel=1e-3)
    assert told(capsys, "explain", out, folder / "diabetes.csv", "--html", tmp_path / "why.html") == explained
    page = (tmp_path / "why.html").read_text()
    assert f"<h1>target {short_number(explained['prediction'], 6)}</h1>" in page
    most = max(range(10), key=lambda each: abs(explained["relevance"][each]))
    value = re.escape(short_number(explained["relevance"][most], 3, sign=True))
    shown = f"{explained['features'][most]} = [^<]*</td><td[^>]*>{value}<"
    assert re.search(shown, page)
    apart = told(capsys, "explain", out, folder / "diabetes.csv", "--rule", "shapley")
    assert sum(apart["relevance"]) + apart["absorbed"] == pytest.approx(explained["prediction"], rel=1e-3)
    assert apart["absorbed"] == pytest.approx(152, rel=0.1)  # the mean target
    assert "no other rule compares" in error(capsys, "explain", out, folder / "diabetes.csv", "--data", folder)
    first = explained["comparisons"][0]
    assert f"{first['feature']} {html.escape(first['operator'])} {first['other']}" in page
    built = told(capsys, "build", out, "--out", tmp_path / "circuit", "--no-prove", "--time-limit", "60")
    assert built["simulated"]["samples"] > 0
    measured = built["accuracy"]
    assert measured["float_rmse"] == pytest.approx(summary["test"]["rmse"], rel=1e-4)
    assert measured["float_rmse"] != measured["integer_rmse"] == pytest.approx(measured["float_rmse"], rel=0.05)
    x = torch.tensor([[float(cell) for cell in (folder / "diabetes.csv").read_text().splitlines()[1].split(",")[:-1]]])
    whole = int(load(out).network(8)(x.double())[0, 0])
    assert whole * built["output_unit"] == pytest.approx(explained["prediction"], rel=0.02)
    program = told(capsys, "build", out, "--out", tmp_path / "program", "--target", "c")
    assert program["output_unit"] == built["output_unit"]
    assert "RMSE of the circuit" in (tmp_path / "circuit" / "summary.html").read_text()


def test_a_model_too_large_for_a_quick_circuit_is_cut(
    wine_run: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "LUTS", replace(build_tables.LUTS, most=500))
    monkeypatch.setattr(build, "CHECK", ())
    cut = told(capsys, "build", wine_run, "--out", tmp_path / "cut")
    used = cut["boosted_tables"]
    assert used["all"] == 20
    assert 1 < used["used"] < 20
    assert cut["estimate"]["luts"] <= 500
    assert cut["accuracy"]["float_accuracy"] > 0.85  # that of the whole model
    assert main(["build", str(wine_run), "--out", str(tmp_path / "cut")]) == 0
    tried = used["refit"]
    worth = {key: f"accuracy {tried[key]:.1%}" for key in ("again", "cut")}
    again = f"fitted again ({worth['again']} with a second fit, {worth['cut']} without, on 28 held-out training rows)"
    assert f"the first {used['used']} of 20 tables, {again}; --tables sets how many" in capsys.readouterr().out
    whole = told(capsys, "build", wine_run, "--out", tmp_path / "whole", "--tables", 20)
    assert whole["boosted_tables"] == {"all": 20, "used": 20}
    assert "--tables is 21, and the model has 20" in error(capsys, "build", wine_run, "--tables", 21)
    assert "--tables is 0, expected 1 or more" in error(capsys, "build", wine_run, "--tables", 0)


def test_tables_that_are_kept_are_fitted_again(
    folder: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of 200 tables with a small rate know little of digits; without the data they stay as they are."""
    monkeypatch.setattr(build, "CHECK", ())
    run = tmp_path / "run"
    settings = [f"--set=fit.{each}" for each in ("n_tables=200", "n_anchors=3", "rate=0.03")]
    settings += [f"--set=data.{each}" for each in ("test=0", "shift=0", "patches=false")]
    told(capsys, "train", folder / "digits", "--out", run, *settings)
    built = told(capsys, "build", run, "--out", tmp_path / "circuit", "--tables", 3)
    cut, kept = built["boosted_tables"]["cut"], built["accuracy"]
    assert cut["float_accuracy"] == kept["float_accuracy"]  # that of the whole model
    assert cut["integer_accuracy"] + 0.05 < kept["integer_accuracy"] < kept["float_accuracy"]
    program = told(capsys, "build", run, "--out", tmp_path / "program", "--tables", 3, "--target", "c")
    assert program["accuracy"]["float_accuracy"] == kept["float_accuracy"]
    assert program["accuracy"]["integer_accuracy"] == pytest.approx(kept["integer_accuracy"], abs=0.03)  # 8 bits instead of 6
    assert built["boosted_tables"]["refit"]["kept"] == "again"
    alone = told(capsys, "build", run / "checkpoints" / "best", "--out", tmp_path / "alone", "--tables", 3, "--data", tmp_path)
    assert "cut" not in alone["boosted_tables"]
    plain = told(capsys, "build", run, "--out", tmp_path / "plain", "--tables", 3, "--no-refit")
    assert plain["accuracy"]["integer_accuracy"] == cut["integer_accuracy"]
    monkeypatch.setattr(Trial, "gains", False)
    kept = told(capsys, "build", run, "--out", tmp_path / "plain", "--tables", 3)
    assert kept["accuracy"] == plain["accuracy"]
    assert kept["boosted_tables"]["refit"]["kept"] == "cut"
    forced = told(capsys, "build", run, "--out", tmp_path / "plain", "--tables", 3, "--refit")
    assert forced["accuracy"] == built["accuracy"]
    assert "refit" not in forced["boosted_tables"]


def test_smaller_circuits_are_offered(folder: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is offered is what --tables then builds."""
    monkeypatch.setattr(build, "CHECK", ())
    run = tmp_path / "run"
    told(
        capsys, "train", folder / "digits", "--out", run, "--set=fit.n_tables=40", "--set=fit.n_anchors=3", "--set=data.test=0.3"
    )
    fewer = told(capsys, "build", run, "--out", tmp_path / "whole")["boosted_tables"]["fewer"]
    assert [each["tables"] for each in fewer] == [20, 10]
    built = told(capsys, "build", run, "--out", tmp_path / "half", "--tables", 20)
    assert built["accuracy"]["integer_accuracy"] == fewer[0]["integer_accuracy"]
    assert "fewer" not in built["boosted_tables"]
    assert main(["build", str(run), "--out", str(tmp_path / "whole")]) == 0
    offered = f"20 tables: {fewer[0]['integer_accuracy']:.1%}, about {fewer[0]['luts']:,} LUTs; 10 tables: "
    assert offered in capsys.readouterr().out


def test_a_folder_of_images_by_class(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "run"
    summary = told(capsys, "train", folder / "digits", "--out", out, "--set", "fit.n_tables=40", "--set", "data.test=0.3")
    assert summary["test"]["accuracy"] > 0.6
    image = next((folder / "digits" / "digit 3").iterdir())
    explained = told(capsys, "explain", out, image)
    assert explained["classes"][3] == "digit 3"
    assert np.shape(explained["relevance"]) == (8, 8)
    predicted = told(capsys, "predict", out, folder / "digits")["predictions"]
    assert len(predicted) == 150
    assert sum(each["class"] in each["input"] for each in predicted) > 100
    evaluated = told(capsys, "evaluate", out, folder / "digits")
    assert evaluated["samples"] == 150
    assert evaluated["accuracy"] > summary["test"]["accuracy"]
    (tmp_path / "other" / "digit 3").mkdir(parents=True)
    Image.new("L", (5, 4)).save(tmp_path / "other" / "digit 3" / "a.png")
    assert "holds samples of 4 × 5, expected 8 × 8 for this model" in error(capsys, "evaluate", out, tmp_path / "other")


def test_photos_of_several_sizes_in_colour(tmp_path: Path, capsys: Capture) -> None:
    """Red and green of equal brightness, which are alike in grey; predict and evaluate read images as train did."""
    random = np.random.default_rng(0)
    for number in range(60):
        name, colour = (("red", (200, 60, 60)), ("green", (60, 131, 60)))[number % 2]
        (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
        size = (*random.integers(6, 14, size=2), 3)
        pixels = np.clip(colour + random.normal(0, 25, size), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    run = tmp_path / "run"
    assert main(["train", str(tmp_path / "photos"), "--out", str(run), "--set", "fit.n_tables=20"]) == 0
    where = "data.size, data.colour, data.shift and data.patches in the config"
    assert f" pixels, in colour, each also fitted shifted by 1 pixel ({where})" in capsys.readouterr().out
    assert tomllib.loads((run / "config.toml").read_text())["data"]["colour"] is True
    assert told(capsys, "evaluate", run)["accuracy"] == 1.0
    assert told(capsys, "evaluate", run, tmp_path / "photos")["samples"] == 60
    predicted = told(capsys, "predict", run, tmp_path / "photos")["predictions"]
    assert [each["class"] for each in predicted] == [Path(each["input"]).parent.name for each in predicted]
    explained = told(capsys, "explain", run, predicted[0]["input"])
    assert np.shape(explained["relevance"]) == tuple(load(run).config.input_shape)
    Image.new("RGB", (9000, 9000)).save(tmp_path / "large.png")
    assert "more than 100 times as many" in error(capsys, "predict", run, tmp_path / "large.png")


def test_columns_without_names_are_found_again(tmp_path: Path, capsys: Capture) -> None:
    """The class stands first, a column that numbers the rows is left out; rows without both are in the order of the rest."""
    lines = [f"{'ab'[n % 2]},{n},{n % 7},{n % 2}" for n in range(60)]
    for name, header in (("bare", ""), ("half", "kind,,,x\n")):
        (tmp_path / f"{name}.csv").write_text(header + "\n".join(lines))
        told(capsys, "train", tmp_path / f"{name}.csv", "--target", 0, "--out", tmp_path / name, "--set=fit.n_tables=5")
        predicted = told(capsys, "predict", tmp_path / name, tmp_path / f"{name}.csv")["predictions"]
        assert [each["class"] for each in predicted] == ["ab"[n % 2] for n in range(60)]
    (tmp_path / "few.csv").write_text("3,0\n3,1\n")
    predicted = told(capsys, "predict", tmp_path / "bare", tmp_path / "few.csv")["predictions"]
    assert [each["class"] for each in predicted] == ["a", "b"]
    summary = json.loads((tmp_path / "bare" / "summary.json").read_text())
    assert summary["left_out"] == {"column 1": "it numbers the rows"}
    assert summary["test"]["its_share"] >= 0.5


def test_a_saved_estimator_is_a_model_for_the_commands(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    wine = load_wine(as_frame=True)
    fitted = LUTClassifier(n_tables=10, random_state=0, n_jobs=1).fit(wine.data, wine.target)
    fitted.save(tmp_path / "saved")
    predicted = told(capsys, "predict", tmp_path / "saved", folder / "wine.csv")
    assert [int(each["class"]) for each in predicted["predictions"]] == fitted.predict(wine.data).tolist()


def test_what_cannot_be_is_said_before_anything_is_written(folder: Path, wine_run: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "run"
    assert "no column 'grape'" in error(capsys, "train", folder / "wine.csv", "--target", "grape", "--out", out)
    assert "expected one of 'classification'" in error(capsys, "train", folder / "wine.csv", "--task", "clustering", "--out", out)
    assert "fit.n_tables" in error(capsys, "train", folder / "wine.csv", "--out", out, "--set", "fit.n_tables=0")
    assert "already holds a run" in error(capsys, "train", folder / "wine.csv", "--out", wine_run)
    assert "--set: there is no" in error(capsys, "train", folder / "wine.csv", "--out", out, "--set", "model.kind=lut")
    for option in (["--device", "cuda"], ["--data", folder], ["--resume"]):
        assert f"{option[0]} " in error(capsys, "train", folder / "wine.csv", "--out", out, *option)
    assert not out.exists()


def test_files_that_lack_rows_or_columns_of_the_model(wine_run: Path, folder: Path, tmp_path: Path, capsys: Capture) -> None:
    frame, file = pandas.read_csv(folder / "wine.csv"), tmp_path / "new.csv"
    frame[:0].to_csv(file, index=False)
    for command in ("predict", "explain"):
        assert f"{file} has 0 rows of values" in error(capsys, command, wine_run, file)
    assert "no rows below them" in error(capsys, "evaluate", wine_run, file)
    frame.rename(columns={"alcohol": "Alcohol"}).to_csv(file, index=False)
    assert "no column 'alcohol', which the model was trained on: is it 'Alcohol'?" in error(capsys, "predict", wine_run, file)
    answers = frame.assign(other=1).rename(columns={"cultivar": "grape"})
    pytest.importorskip("pyarrow")
    answers.to_csv(file, index=False)
    answers.to_parquet(tmp_path / "new.parquet")
    for path in (file, tmp_path / "new.parquet"):
        lacking = "has no column 'cultivar', which the model predicts: --target names the column of answers"
        assert lacking in error(capsys, "evaluate", wine_run, path)
        expected = told(capsys, "evaluate", wine_run, folder / "wine.csv")["accuracy"]
        assert told(capsys, "evaluate", wine_run, path, "--target", "grape")["accuracy"] == expected


def test_info_shows_the_settings_that_say_something(wine_run: Path, capsys: Capture) -> None:
    assert main(["info", str(wine_run)]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("config")]
    assert line == "config     n_tables 20, n_anchors 6, seed 0"

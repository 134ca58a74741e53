"""`lutetia import`: trees of another library become a run that every command takes."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from setting import LEAVES, SPECIES

from lutetia import models
from lutetia.cli import main
from tools import require_module

Capture = pytest.CaptureFixture[str]
CLASSES = ("--classes", ",".join(SPECIES))


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Flowers, and trees that know them."""
    for name in ("flowers.csv", "trees.json"):
        shutil.copy(trained / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: Capture, *arguments: object, code: int = 0) -> dict[str, Any]:
    assert main([*map(str, arguments), "--json"]) == code
    return dict(json.loads(capsys.readouterr().out))


def by_hand(row: list[float]) -> np.ndarray[Any, Any]:
    """The probabilities of the trees of the setting."""
    scores = np.array([0.5 + (low if row[column] < 4 else high) for column, low, high in LEAVES])
    return np.exp(scores) / np.exp(scores).sum()


def test_trees_become_a_run_for_all_commands(folder: Path, capsys: Capture) -> None:
    made = told(capsys, "import", "trees.json", "--data", "flowers.csv", "--target", "species", *CLASSES)
    assert (made["library"], made["trees"], made["leaves"], made["out"]) == ("XGBoost", 3, 6, "runs/trees")
    assert len(made["without_missing"]) == 4
    known = models.load("runs/trees").metadata
    assert (known["classes"], known["target"], known["features"][0]) == (SPECIES, "species", "sepal length")
    assert known["empty"] == []
    found = told(capsys, "predict", "runs/trees", "4,3.99,1,1", "flowers.csv")["predictions"]
    np.testing.assert_allclose(found[0]["probabilities"], by_hand([4.0, 3.99, 1.0, 1.0]), atol=1e-6)
    rows = [line.split(",")[:4] for line in (folder / "flowers.csv").read_text().splitlines()[1:]]
    wanted = [by_hand([float(cell) for cell in row]) for row in rows]
    np.testing.assert_allclose([each["probabilities"] for each in found[1:]], wanted, atol=1e-6)
    right = np.mean([SPECIES[int(each.argmax())] == line.rsplit(",")[-1] for each, line in zip(
        wanted, (folder / "flowers.csv").read_text().splitlines()[1:], strict=True)])  # fmt: skip
    assert told(capsys, "evaluate", "runs/trees", "flowers.csv")["accuracy"] == pytest.approx(right)
    explained = told(capsys, "explain", "runs/trees", "flowers.csv", "--rule", "shapley", "--data", "flowers.csv")
    assert explained["relevance"][3] == 0  # no tree asks for the last column
    assert sum(explained["relevance"]) == pytest.approx(explained["explained"] - explained["absorbed"], abs=1e-5)
    assert told(capsys, "page", "runs/trees", "--out", "trees.html")["kind"] == "classifier"
    built = told(capsys, "build", "runs/trees", "--target", "c", "--data", "flowers.csv", "--out", "out")
    assert built["accuracy"]["split"] == "flowers.csv"
    assert built["accuracy"]["samples"] == len(rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trees.json", "--missing", "some"], "--missing is 'some': did you mean"),
        (["trees.json", "--classes", "a,b"], "class_names holds 2 names, expected 3"),
        (["trees.json", "--data", "flowers.csv", "--target", "specis"], "no column 'specis': did you mean species?"),
        (["flowers.csv"], "is no JSON"),
        (["nothing.txt"], "nothing.txt does not exist, expected a model of trees"),
    ],
)
def test_bad_requests_write_nothing(folder: Path, capsys: Capture, arguments: list[str], said: str) -> None:
    assert main(["import", *arguments]) in (1, 2)
    assert said in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_another_model_is_not_replaced(folder: Path, capsys: Capture) -> None:
    assert main(["import", "trees.json"]) == 0
    assert "for classes (0, 1, 2)" in capsys.readouterr().out
    assert main(["import", "trees.json"]) == 1
    assert "--out is runs/trees, which holds another model" in capsys.readouterr().err
    assert main(["build", "runs/trees", "--target", "c"]) == 0
    assert "not measured (runs/trees does not say what it was trained on)" in capsys.readouterr().out
    assert main(["explain", "runs/trees", "4,4,4,4", "--rule", "shapley"]) == 1
    assert "--data names their file" in capsys.readouterr().err


def test_a_forest_tells_its_probabilities_in_every_command(folder: Path, capsys: Capture) -> None:
    sklearn = require_module("sklearn.ensemble")
    from lutetia.integrations.trees import from_trees

    lines = [line.split(",") for line in (folder / "flowers.csv").read_text().splitlines()]
    x, y = np.array([line[:4] for line in lines[1:]], float), np.array([line[4] for line in lines[1:]])
    forest = sklearn.RandomForestClassifier(7, max_depth=2, random_state=0).fit(x, y)
    from_trees(forest, lines[0][:4], missing="none").save("forest")
    wanted = forest.predict_proba(x)
    found = told(capsys, "predict", "forest", "flowers.csv")["predictions"]
    np.testing.assert_allclose([each["probabilities"] for each in found], wanted, atol=1e-6)
    measured = told(capsys, "evaluate", "forest", "flowers.csv", "--target", "4")
    right = wanted[np.arange(len(y)), np.searchsorted(forest.classes_, y)]
    assert measured["loss"] == pytest.approx(-np.log(np.maximum(right, 2**-52)).mean(), rel=1e-5)
    explained = told(capsys, "explain", "forest", "flowers.csv", "--row", "3", "--html", "why.html")
    assert explained["probability"] == pytest.approx(wanted[3].max(), abs=1e-6)
    assert '"shares":true' in (folder / "why.html").read_text().replace(" ", "")
    assert main(["info", "forest"]) == 0
    assert "whose probabilities the tables add up" in capsys.readouterr().out
    assert main(["build", "forest", "--target", "c"]) == 0


def test_data_names_the_classes(folder: Path, capsys: Capture) -> None:
    rows = {"low": "1,1,1,0", "mid": "9,9,1,0", "high": "9,1,9,0"}
    assert [int(by_hand([float(cell) for cell in row.split(",")]).argmax()) for row in rows.values()] == [0, 1, 2]
    lines = [f"{row},{name}" for name, row in rows.items() for _ in range(3)]
    head = "a,b,c,d,size"
    (folder / "own.csv").write_text("\n".join([head, *lines, "1,1,1,0,mid", "1,1,1,0,"]))
    command = ("import", "trees.json", "--data", "own.csv")
    made = told(capsys, *command, "--target", "size")
    assert (made["outputs"], made["classes_from"]) == (["low", "mid", "high"], "own.csv")
    assert told(capsys, "predict", "runs/trees", "9,9,1,0")["predictions"][0]["class"] == "mid"
    assert main([*command, "--target", "size", "--out", "said"]) == 0
    assert "classes   named by own.csv: each by the label that most of its rows have there" in capsys.readouterr().out
    for name, changed in (("shared", [*lines, *["9,1,9,0,mid"] * 4]), ("more", [*lines, "1,1,1,0,tiny"]), ("fewer", lines[:6])):
        (folder / "own.csv").write_text("\n".join([head, *changed]))
        made = told(capsys, *command, "--target", "size", "--out", name)
        assert (made["outputs"], made["classes_from"]) == (["0", "1", "2"], None)
    made = told(capsys, *command, "--target", "size", "--out", "own", *CLASSES)
    assert (made["outputs"], made["classes_from"]) == (SPECIES, None)


def test_rows_to_compare_with_need_a_column_of_answers(folder: Path, capsys: Capture) -> None:
    lines = (folder / "flowers.csv").read_text().splitlines()
    (folder / "inputs.csv").write_text("".join(line.rpartition(",")[0] + "\n" for line in lines))
    assert main(["import", "trees.json"]) == 0
    assert main(["explain", "runs/trees", "4,4,4,4", "--rule", "shapley", "--data", "inputs.csv"]) == 1
    assert "has 4 columns, expected the 4 that the model reads and one of answers" in capsys.readouterr().err


def test_words_of_a_file_are_categories_of_the_model(folder: Path, capsys: Capture) -> None:
    trees = Path(__file__).parents[1] / "integrations" / "trees"
    known = json.loads((trees / "answers.json").read_text())["lightgbm_words.txt"]
    with (folder / "words.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["size", "colour", "code"], *known["rows"]])
    assert main(["import", str(trees / "lightgbm_words.txt"), "--out", "words"]) == 0
    capsys.readouterr()
    found = told(capsys, "predict", "words", "words.csv")
    np.testing.assert_allclose([each["probabilities"] for each in found["predictions"]], known["answers"], atol=2e-6)
    assert found["warnings"] == ["6 rows have a value of colour that the model has not seen, such as 'violet': taken for missing"]
    asked = told(capsys, "explain", "words", "words.csv", "--row", "0")["comparisons"]
    assert ("colour", "in", "[red, blue]") in [(each["feature"], each["operator"], each["other"]) for each in asked]

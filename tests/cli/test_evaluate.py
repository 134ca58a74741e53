"""`lutetia evaluate` and `lutetia info`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from setting import FLOWERS, SPECIES

from lutetia import models
from lutetia.cli import main
from lutetia.cli.class_lines import class_lines, write_class_page

Capture = pytest.CaptureFixture[str]


def told(capsys: Capture, *arguments: object) -> dict[str, Any]:
    assert main([*map(str, arguments), "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return dict(json.loads(said.out))


@pytest.mark.parametrize(("run", "split"), [("iris", "valid"), ("iris", "test"), ("digits", "test"), ("stdlib", "valid")])
def test_it_measures_what_training_measured(
    run: str, split: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)  # the run remembers where its data is
    summary = json.loads((trained / "runs" / run / "summary.json").read_text())
    found = told(capsys, "evaluate", trained / "runs" / run, "--split", split)
    assert {key: found[key] for key in summary[split]} == summary[split]
    assert found["split"] == split


def test_test_is_the_default_and_classes_add_up(trained: Path, capsys: Capture) -> None:
    found = told(capsys, "evaluate", trained / "runs/iris")
    assert (found["split"], found["samples"]) == ("test", 10)
    assert [each["class"] for each in found["classes"]] == SPECIES
    assert sum(each["samples"] for each in found["classes"]) == 10
    assert sum(each["right"] for each in found["classes"]) == round(10 * found["accuracy"])
    assert main(["evaluate", str(trained / "runs/iris")]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(
        f"accuracy {100 * found['accuracy']:.2f}%, loss {found['loss']:.4f}, 10 samples of the test split\n"
    )
    assert said.err == f"next: lutetia info {trained / 'runs/iris'}\n"


def test_another_file_has_the_classes_of_the_model(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    rows = (trained / "flowers.csv").read_text().splitlines()
    only = [row for row in rows[1:] if row.endswith(SPECIES[2])]
    (tmp_path / "other.csv").write_text("\n".join(["species;" + ";".join(FLOWERS), *(_turned(row) for row in only)]))
    found = told(capsys, "evaluate", trained / "runs/iris", tmp_path / "other.csv")
    assert [each["samples"] for each in found["classes"]] == [0, 0, len(only)]
    whole = told(capsys, "evaluate", trained / "runs/iris", trained / "flowers.csv", "--label", "species")
    assert whole["classes"][2] == found["classes"][2]
    assert told(capsys, "evaluate", trained / "runs/iris", trained / "flowers.csv", "--label", "4") == whole
    text = told(capsys, "evaluate", trained / "runs/stdlib", trained / "text.txt")
    assert text["bytes"] > 700


def _turned(row: str) -> str:
    *values, name = row.split(",")
    return ";".join([name, *values])


def test_data_that_has_moved(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained / "runs/iris", run, symlinks=True)
    for file in run.glob("checkpoints/step-*/state.json"):  # as if written elsewhere: the manifest must follow
        other = file.read_text().replace(str(trained), str(tmp_path / "gone"))
        file.write_text(other)
        assert main(["evaluate", str(run)]) == 1
        assert "damaged" in capsys.readouterr().err
    model = models.load(trained / "runs/iris")
    model.save_pretrained(tmp_path / "alone")
    assert main(["evaluate", str(tmp_path / "alone")]) == 1
    assert "does not say what it was trained on" in capsys.readouterr().err
    assert told(capsys, "evaluate", trained / "runs/iris", "--data", trained / "examples")["samples"] == 10
    assert main(["evaluate", str(trained / "runs/iris"), "--data", str(tmp_path)]) == 1
    assert "--data names another folder for the data of the run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["runs/iris", "--split", "tset"], 2, "there is no split 'tset': did you mean test?"),
        (["runs/stdlib", "--split", "test"], 2, "the data has no test split, expected --split to be one of train, valid"),
        (["runs/iris", "digit.png"], 1, "ends in .png, expected a .csv or .npz file"),
        (["runs/iris", "flowers.csv", "--label", "kind"], 1, "has no column 'kind'"),
        (["runs/iris", "flowers.csv", "--label", "sepal width"], 1, "expected one of setosa, versicolor, virginica"),
        (["runs/iris", "none.csv"], 1, "none.csv does not exist"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], code: int, sentence: str, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(trained)
    assert main(["evaluate", *arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_info_says_what_a_checkpoint_is(trained: Path, capsys: Capture) -> None:
    found = told(capsys, "info", trained / "runs/iris")
    assert (found["kind"], found["class"], found["step"]) == ("classifier", "LUTClassifier", 20)
    assert (found["weights"], found["types"], found["reads"]) == (6 * 4 * 3, ["float32"], ["hard"])
    assert (found["can_be_built"], found["why_not"]) == (True, "")
    assert found["metadata"]["classes"] == SPECIES
    assert found["config"]["input_shape"] == [4]
    assert {"config.toml", "model.safetensors", "metadata.json"} <= set(found["files"])
    assert all(len(each["sha256"]) == 64 and each["bytes"] > 0 for each in found["files"].values())
    assert main(["info", str(trained / "runs/iris")]) == 0
    said = capsys.readouterr()
    for text in (
        "setosa, versicolor, virginica",
        "sepal length",
        "can be built",
        "all checksums agree",
        "72 weights",
        "20 steps",
        "4 numbers",
    ):
        assert text in said.out
    assert said.err == f"next: lutetia build {trained / 'runs/iris'}\n"


def test_info_says_why_a_model_cannot_be_built(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    text = told(capsys, "info", trained / "runs/stdlib")
    assert not text["can_be_built"]
    assert "--set model.unembedding=lut" in text["why_not"]
    model = models.LUTClassifier(input_shape=(4,), n_classes=2, layers=[models.LUTLayer(4, 3, 2, read="confidence2")])
    model.save_pretrained(tmp_path / "soft")
    found = told(capsys, "info", tmp_path / "soft")
    assert found["reads"] == ["confidence2"]
    assert not found["can_be_built"]
    assert "confidence2" in found["why_not"]


def test_info_names_the_targets_of_a_language_model_of_tables(tmp_path: Path, capsys: Capture) -> None:
    tables = {"attention": "lut", "feed_forward": "lut", "unembedding": "lut", "read": "hard"}
    sizes = {"context": 8, "width": 8, "n_layers": 1, "n_heads": 1, "n_detectors": 2, "ff_detectors": 2}
    models.LUTTransformer(**sizes, unembedding_detectors=2, **tables, seed=0).save_pretrained(tmp_path / "text")
    assert told(capsys, "info", tmp_path / "text")["build_targets"] == ["c", "verilog"]
    assert main(["info", str(tmp_path / "text")]) == 0
    said = capsys.readouterr()
    assert "can be built for --target c, verilog" in said.out
    named = said.err.split()[2:]
    assert main([*named, "--out", str(tmp_path / "c")]) == 0
    assert (tmp_path / "c/model.c").exists()


def test_classes_have_recall_precision_and_what_they_are_confused_with(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    run, page = trained / "runs/iris", tmp_path / "classes.html"
    found = told(capsys, "evaluate", run, trained / "flowers.csv", "--label", "species", "--html", page)
    assert main(["evaluate", str(run), str(trained / "flowers.csv"), "--label", "species", "--html", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for each, line in zip(found["classes"], lines[1:], strict=False):
        assert line.startswith(each["class"])
        assert f"{each['right']} of {each['samples']} correct, " in line
        precision = f"precision {each['right'] / each['predicted']:.2%}" if each["predicted"] else "never predicted"
        assert line.endswith(precision)
    assert f"balanced accuracy {found['balanced_accuracy']:.2%}, the mean of the classes" in lines
    assert lines[-1] == f"page {page}"
    written = page.read_text()
    assert f"{sum(each['right'] for each in found['classes'])} of {found['samples']} correct" in written
    assert all(name in written for name in SPECIES)
    assert main(["evaluate", str(trained / "runs/stdlib"), "--html", str(page)]) == 2
    assert "this model has no classes" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--html", str(page.with_suffix(".txt"))]) == 2


def test_large_counts_are_written_as_people_do() -> None:
    classes = [{"class": name, "samples": 4000, "right": 2500, "predicted": 4000} for name in ("a", "b")]
    confused = [{"class": "a", "as": "b", "samples": 1500}]
    first, *_, last = class_lines({"classes": classes, "confused": confused, "balanced_accuracy": 0.625})
    assert first == "a   62.50%  2,500 of 4,000 correct, precision 62.50%"
    assert last == "confused most: a read as b (1,500 times)"


def test_names_of_classes_are_escaped_and_many_classes_shortened(tmp_path: Path) -> None:
    names = ["<b>bold</b>", *(f"class {number}" for number in range(60))]
    classes = [{"class": name, "samples": 4, "right": 1 + at % 3, "predicted": 4} for at, name in enumerate(names)]
    confused = [{"class": names[0], "as": names[-1], "samples": 2}, {"class": names[5], "as": names[0], "samples": 1}]
    report = {"classes": classes, "confused": confused, "balanced_accuracy": 0.5}
    lines = class_lines(report)
    assert len(lines) == 10 + 3
    assert all("1 of 4 correct" in line for line in lines[:10])  # the lowest recall
    assert lines[10] == "and 51 classes with higher recall (--json has all)"
    assert lines[-1] == "confused most: <b>bold</b> read as class 59 (2 times), class 4 read as <b>bold</b> (once)"
    write_class_page(tmp_path / "page.html", "Title", "said", report)
    page = (tmp_path / "page.html").read_text()
    assert "The 40 of 61 classes that were confused most." in page
    assert "<b>bold" not in page
    assert "class 59" in page

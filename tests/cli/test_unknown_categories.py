"""Categories that a model of a table of data has not seen, and the commands that are named next."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pandas
import pytest

from cli.test_train_table import Capture, error, told
from lutetia.cli import build, main
from lutetia.sklearn import LUTClassifier


def test_unknown_categories_are_an_error_or_missing(towns: Path, capsys: Capture) -> None:
    message = error(capsys, "predict", towns / "run", towns / "new.csv")
    assert "'Bonn', expected one of the categories Oslo, Rome (--unknown missing takes others for missing)" in message
    result = told(capsys, "predict", towns / "run", towns / "new.csv", "--unknown", "missing")
    assert result["warnings"] == ["1 row has a value of town that the model has not seen, such as 'Bonn': taken for missing"]
    (expected,) = told(capsys, "predict", towns / "run", ",3,TRUE")["predictions"]
    assert result["predictions"][0]["probabilities"] == expected["probabilities"]
    (expected,) = told(capsys, "predict", towns / "run", "Oslo,5,TRUE")["predictions"]  # in any case
    assert result["predictions"][2]["probabilities"] == expected["probabilities"]
    assert "--unknown is 'mising': did you mean missing" in error(
        capsys, "predict", towns / "run", "a,1,b", "--unknown", "mising"
    )


def follow(capsys: Capture) -> list[str]:
    """Runs the command that was named next, and returns it."""
    *_, line = (line for line in capsys.readouterr().err.splitlines() if line.startswith("next: lutetia "))
    words = shlex.split(line)[2:]
    assert main(words) == 0, words
    return words


def test_the_next_commands_take_unknown_categories_as_predict_did(
    towns: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, new = str(towns / "run"), str(towns / "new.csv")
    assert main(["predict", run, new, "--unknown", "missing"]) == 0
    assert follow(capsys) == ["explain", run, "--unknown", "missing", new]
    assert follow(capsys) == ["page", run]
    assert main(["flow", run, new, "--unknown", "missing"]) == 0
    assert follow(capsys) == ["explain", run, "--unknown", "missing", new]
    capsys.readouterr()
    told_so = "1 row has a value of town that the model has not seen, such as 'Bonn': taken for missing"
    explained = told(capsys, "explain", run, new, "--unknown", "missing")
    assert explained["warnings"] == [told_so]
    assert explained["relevance"] == told(capsys, "explain", run, ",3,TRUE")["relevance"]
    assert told(capsys, "explain", run, new, "--unknown", "missing", "--row", 2)["warnings"] == []
    assert "(--unknown missing takes others for missing)" in error(capsys, "explain", run, new)
    assert main(["evaluate-explanations", run, new, "--unknown", "missing", "--rule", "decisive", "--steps", "2"]) == 0
    assert follow(capsys) == ["explain", run, "--unknown", "missing", new]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_evaluate_takes_unknown_categories_for_missing(suffix: str, towns: Path, tmp_path: Path, capsys: Capture) -> None:
    frame = pandas.read_csv(towns / "new.csv", dtype=str).assign(kind=["x", "y", "y"])
    path, empty = tmp_path / f"new.{suffix}", tmp_path / f"empty.{suffix}"
    for each, file in ((frame, path), (frame.replace("Bonn", None), empty)):
        each.to_csv(file, index=False) if suffix == "csv" else each.to_parquet(file)
    measured = told(capsys, "evaluate", towns / "run", path, "--unknown", "missing")
    told_so = "1 row has a value of town that the model has not seen, such as 'Bonn': taken for missing"
    assert measured.pop("warnings") == [told_so]
    assert measured == told(capsys, "evaluate", towns / "run", empty)
    assert "'Bonn', expected one of the categories Oslo, Rome (--unknown missing" in error(
        capsys, "evaluate", towns / "run", path
    )
    for command in ("evaluate", "explain", "flow", "evaluate-explanations"):
        message = error(capsys, command, towns / "run", path, "--unknown", "mising")
        assert "--unknown is 'mising': did you mean missing" in message
    frame.assign(kind="z").to_csv(tmp_path / "other.csv", index=False)  # a class is no category
    assert "'z', expected one of the categories x, y\n" in error(
        capsys, "evaluate", towns / "run", tmp_path / "other.csv", "--unknown", "missing"
    )


def test_without_test_rows_the_next_command_measures_the_training_rows(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "CHECK", ())
    (tmp_path / "a.csv").write_text("size,kind\n1,x\n2,y\n3,x\n")
    run = str(tmp_path / "run")
    assert main(["train", str(tmp_path / "a.csv"), "--out", run, "--set", "fit.n_tables=2"]) == 0
    assert follow(capsys) == ["evaluate", run, "--split", "train"]
    assert "3 samples of the train split" in capsys.readouterr().out
    assert main(["build", run, "--out", str(tmp_path / "circuit")]) == 0
    assert follow(capsys) == ["evaluate", run, "--split", "train"]
    (tmp_path / "a.csv").write_text("size,kind\n" + "1,x\n2,y\n" * 10)
    assert main(["train", str(tmp_path / "a.csv"), "--out", f"{run}s", "--set", "fit.n_tables=2"]) == 0
    assert follow(capsys) == ["evaluate", f"{run}s"]


def test_a_model_without_data_is_not_to_be_evaluated_next(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "CHECK", ())
    LUTClassifier(n_tables=2).fit(np.arange(20.0)[:, None], ["x", "y"] * 10).save(tmp_path / "saved")
    assert main(["build", str(tmp_path / "saved"), "--out", str(tmp_path / "circuit")]) == 0
    assert follow(capsys) == ["info", str(tmp_path / "saved")]


def test_a_config_says_what_unknown_categories_are(towns: Path, tmp_path: Path, capsys: Capture) -> None:
    settings = ["--set", "fit.n_tables=2", "--set", 'data.unknown="missing"']
    told(capsys, "train", towns / "towns.csv", "--out", tmp_path / "run", *settings)
    assert len(told(capsys, "predict", tmp_path / "run", towns / "new.csv")["predictions"]) == 3
    strict = error(capsys, "predict", tmp_path / "run", towns / "new.csv", "--unknown", "error")
    assert "'Bonn', expected one of" in strict
    told(capsys, "explain", tmp_path / "run", towns / "new.csv")


def test_an_estimator_says_what_unknown_categories_are(tmp_path: Path, capsys: Capture) -> None:
    frame = pandas.DataFrame({"town": pandas.Categorical(["Rome", "Oslo"] * 10), "size": range(20)})
    LUTClassifier(n_tables=2, handle_unknown="missing").fit(frame, ["x", "y"] * 10).save(tmp_path / "lenient")
    LUTClassifier(n_tables=2).fit(frame, ["x", "y"] * 10).save(tmp_path / "strict")
    lenient, empty = told(capsys, "predict", tmp_path / "lenient", "Bonn,3", ",3")["predictions"]
    assert lenient["probabilities"] == empty["probabilities"]
    assert "'Bonn', expected one of" in error(capsys, "predict", tmp_path / "strict", "Bonn,3")

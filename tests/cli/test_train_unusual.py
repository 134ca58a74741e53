"""`lutetia train --task unusual`, and what follows: predict, reasons, measures, pages, programs, circuits, windows of signals."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from browser import OpenPage
from cli.test_train_table import Capture, told
from lutetia.cli import main
from lutetia.models import load
from lutetia.precompute import integer_model
from lutetia.report import Comparison
from lutetia.sklearn import LUTOutlierDetector
from tools import require_tool

pytest_plugins = ["browser"]
SMALL = ("--set", "fit.n_tables=200", "--set", "fit.n_anchors=7")


def pumps(n: int, seed: int) -> pandas.DataFrame:
    """Loads in percent, heat that follows them, some cells missing, how pumps are run, notes, and the rows' numbers."""
    random = np.random.default_rng(seed)
    load = random.uniform(0, 10, n)
    frame = pandas.DataFrame({"id": range(1000, 1000 + n), "load": load.round(2), "heat": (20 + 5 * load).round(1)})
    frame["heat"] += random.normal(size=n).round(1)
    frame["mode"] = random.choice(["idle", "run"], n)
    told = "pump checked by Ann Bob in the rain sun found oil leak none seal new worn loud quiet all well"
    frame["note"] = [" ".join(random.choice(told.split(), 12)) for _ in range(n)]
    frame.loc[random.random(n) < 0.05, "load"] = np.nan
    return frame


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pumps that run as usual, and new ones of which every tenth is hot, and a run."""
    folder = tmp_path_factory.mktemp("pumps")
    pumps(600, 0).to_csv(folder / "pumps.csv", index=False)
    new = pumps(200, 1).assign(fault="no")
    new.loc[::10, "heat"] += 60
    new.loc[::10, "fault"] = "yes"
    new.to_csv(folder / "new.csv", index=False)
    assert main(["train", str(folder / "pumps.csv"), "--task", "unusual", *SMALL, "--out", str(folder / "run")]) == 0
    return folder


def test_train_shows_columns_and_what_is_flagged(place: Path, capsys: Capture) -> None:
    again = place / "again"
    assert main(["train", str(place / "run" / "config.toml"), "--out", str(again)]) == 0
    shown = capsys.readouterr().out
    assert "unusual rows: 480 rows to fit, 120 rows to test" in shown
    assert "left out: it numbers the rows" in shown
    config = tomllib.loads((place / "run" / "config.toml").read_text())
    assert (config["data"]["task"], config["data"]["unknown"]) == ("unusual", "missing")
    assert "target" not in config["data"]
    assert "loss" not in config["fit"]
    assert config["fit"]["flagged"] == 0.01
    first, second = (json.loads((run / "summary.json").read_text()) for run in (place / "run", again))
    assert first["test"] == second["test"]
    assert first["left_out"]["note"] == "text with 600 different values"
    assert first["test"]["flagged"] < 0.05
    assert first["test"]["wanted"] == 0.01
    assert f"test  {first['test']['flagged']:.2%} of the rows flagged as unusual, 1.00% wanted" in shown


def test_predict_says_how_rare_rows_are(place: Path, capsys: Capture) -> None:
    out = place / "predicted.csv"
    assert main(["predict", str(place / "run"), str(place / "new.csv"), "--csv", str(out), "--keep"]) == 0
    shown = capsys.readouterr().out.splitlines()
    frame = pandas.read_csv(out)
    detector = LUTOutlierDetector.load(place / "run")
    columns = ["load", "heat", "mode"]
    np.testing.assert_allclose(-detector.decision_function(frame[columns]), frame["score"], atol=1e-4)
    np.testing.assert_allclose(detector.rarity(frame[columns]), frame["rarity"], atol=1e-3)
    assert ((frame["unusual"] == "yes") == (frame["score"] > 0)).all()
    assert (frame.loc[::10, "unusual"] == "yes").mean() > 0.9
    flagged = (frame["unusual"] == "yes").sum()
    assert f"{flagged} of 200 unusual" in shown
    assert "unusual, more unusual than" in shown[0]
    rows = told(capsys, "predict", place / "run", "5,45,run", "5,45,never")["predictions"]
    assert rows[0]["unusual"] is False
    assert rows[1]["score"] > rows[0]["score"]  # its mode is not known, so it counts as missing


def test_explain_names_what_made_a_row_unusual(place: Path, capsys: Capture) -> None:
    found = told(capsys, "explain", place / "run", place / "new.csv", "--row", "10")
    assert found["target_name"] == "unusual"
    assert found["score"] > 0
    assert 0.9 < found["rarity"] <= 1
    shares = dict(zip(found["features"], found["relevance"], strict=True))
    assert shares["heat"] == max(shares.values()) > 0
    assert all(each["effect"] > 0 for each in found["comparisons"])
    assert main(["explain", str(place / "run"), str(place / "new.csv"), "--row", "10"]) == 0
    assert "unusual, more unusual than" in capsys.readouterr().out
    main(["info", str(place / "run")])
    assert "which rows are unusual: 1.00% of rows like the 480" in capsys.readouterr().out


def test_evaluate_measures_as_scikit_learn_does(place: Path, capsys: Capture) -> None:
    rows = told(capsys, "predict", place / "run", place / "new.csv")["predictions"]
    y, scores = pandas.read_csv(place / "new.csv")["fault"] == "yes", [row["score"] for row in rows]
    found = told(capsys, "evaluate", place / "run", place / "new.csv", "--target", "fault")
    assert found["average_precision"] == pytest.approx(average_precision_score(y, scores))
    assert found["roc_auc"] == pytest.approx(roc_auc_score(y, scores))
    assert found["roc_auc"] > 0.95
    assert found["unusual"] == 20
    assert "columns" not in found
    plain = told(capsys, "evaluate", place / "run", place / "new.csv")
    assert "roc_auc" not in plain
    assert plain["flagged_rows"] == sum(row["unusual"] for row in rows)
    assert told(capsys, "evaluate", place / "run")["samples"] == 120
    assert main(["evaluate", str(place / "run"), str(place / "new.csv"), "--target", "note"]) != 0
    assert "expected whether the row is unusual: usual, normal, no, false, 0 or unusual," in capsys.readouterr().err


REFUSED = [
    (("--target", "mode"), "data.target is 'mode', expected none"),
    (("--set", "fit.flagged=0"), "fit.flagged is 0, expected more"),
    (("--set", "fit.flagged=0.7"), "fit.flagged"),
    (("--set", "fit.balanced=true"), "fit.balanced is True, expected none"),
    (("--set", "fit.loss=poisson"), "fit.loss"),
    (("--set", "data.weight=load"), "data.weight is 'load', expected none"),
    (("--set", "data.ahead=3", "--set", "data.window=20"), "data.ahead is 3, expected none"),
    (("--set", 'data.text=["note"]'), "data.text is ['note'], expected none"),
    (("--set", 'fit.monotone={"load"=1}'), "fit.monotone"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_settings_that_do_not_fit(place: Path, capsys: Capture, words: tuple[str, ...], said: str) -> None:
    out = place / "refused"
    assert main(["train", str(place / "pumps.csv"), "--task", "unusual", *words, "--out", str(out)]) != 0
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_other_tasks_flag_nothing(place: Path, capsys: Capture) -> None:
    assert (
        main(["train", str(place / "pumps.csv"), "--target", "mode", "--set", "fit.flagged=0.1", "--out", str(place / "no")]) != 0
    )
    assert 'fit.flagged is 0.1, expected data.task = "unusual" too' in capsys.readouterr().err
    assert main(["compare", str(place / "pumps.csv"), "--task", "unusual"]) != 0
    assert "predicts nothing that methods could be compared by" in capsys.readouterr().err


def test_few_rows_and_arrays_are_refused(place: Path, capsys: Capture) -> None:
    few = place / "few.csv"
    few.write_text("a,b\n" + "1,2\n2,4\n3,1\n" * 3)
    assert main(["train", str(few), "--task", "unusual", "--out", str(place / "no")]) != 0
    assert "holds 9 rows, expected 10 or more to find unusual ones" in capsys.readouterr().err
    np.savez(place / "x.npz", x=np.zeros((20, 2)), y=np.zeros(20))
    assert main(["train", str(place / "x.npz"), "--task", "unusual", "--out", str(place / "no")]) != 0
    assert "holds arrays or images, expected a .csv or .parquet file" in capsys.readouterr().err


def test_program_flags_the_rows_that_predict_flags(place: Path, capsys: Capture) -> None:
    compiler = require_tool("gcc", "cc")
    run, out = place / "run", place / "program"
    report = told(capsys, "build", run, "--target", "c", "--weight-bits", "16", "--out", out)
    assert report["accuracy"]["unusual"] is True
    assert report["flash_table_bytes"] < 200 * 128 * 2 * 1.6  # tables of one output: nothing is added for the usual class
    command = [compiler, "-std=c99", "-DLUTETIA_NO_MAIN", "model.c", "columns.c", "rows.c", "-o", "run"]
    subprocess.run(command, cwd=out, check=True, capture_output=True)
    data = (place / "new.csv").read_text()
    answers = subprocess.run([out / "run"], input=data, text=True, capture_output=True, check=True).stdout.split()
    rows = told(capsys, "predict", run, place / "new.csv")["predictions"]
    clear = [number for number, row in enumerate(rows) if abs(row["score"]) > 0.05]
    assert len(clear) > 190
    assert [answers[number] for number in clear] == [("usual", "unusual")[rows[number]["unusual"]] for number in clear]


def test_circuit_keeps_the_limit_of_its_tables(place: Path, capsys: Capture) -> None:
    require_tool("iverilog")
    run, out = place / "run", place / "circuit"
    assert main(["build", str(run), "--tables", "20", "--no-prove", "--reading", "auto", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    report = json.loads((out / "report.json").read_text())
    assert not {"refit", "cut"} & set(report["boosted_tables"])  # by rows of one class it would flag nothing
    assert report["accuracy"]["integer_accuracy"] > 0.95
    assert f"circuit {1 - report['accuracy']['integer_accuracy']:.1%}, on 120 test samples" in shown
    assert "flagged by the circuit" in (out / "summary.html").read_text()
    assert main(["build", str(run), "--tables", "20", "--no-prove", "--drop-unseen", "--out", str(out)]) != 0
    assert "which are those that tell unusual rows" in capsys.readouterr().err


def test_page_answers(place: Path, open_page: OpenPage, capsys: Capture) -> None:
    out = place / "pump.html"
    assert main(["page", str(place / "run"), "--out", str(out)]) == 0
    capsys.readouterr()
    opened = open_page(out.read_text("utf-8"))
    model = integer_model(load(place / "run"))
    random = np.random.default_rng(0)
    tops = model.model.encoding.tops()
    for codes in random.integers(0, tops + 1, (40, len(tops))).tolist():
        answer = opened.page.evaluate("x => window.lutetia.classify(Int32Array.from(x))", codes)
        assert answer == int(model(torch.tensor([codes]))[0])
    assert opened.page.locator("#answer").text_content() in ("usual", "unusual")
    assert "score" in (opened.page.locator("#scores").text_content() or "")
    assert main(["predict", str(place / "run"), str(place / "new.csv"), "--csv", str(place / "kept.csv"), "--keep"]) == 0
    capsys.readouterr()
    data = (place / "new.csv").read_bytes()
    opened.page.locator("#table").set_input_files(place / "new.csv")
    opened.page.locator("#row").fill("10")
    opened.page.locator("#row").press("Tab")
    reasons = opened.page.evaluate("lutetia.reasons()")
    wanted = told(capsys, "explain", place / "run", place / "new.csv", "--row", "10")["comparisons"]
    assert [text for text, _ in reasons[:3]] == [Comparison(**each).text.replace("<=", "≤") for each in wanted[:3]]
    assert all(effect > 0 for _, effect in reasons)
    page = opened.page.evaluate("bytes => window.lutetia.predict(Uint8Array.from(bytes))", list(data)).splitlines()
    for found, wanted in zip(page, (place / "kept.csv").read_text().splitlines(), strict=True):
        *cells, score = found.split(",")
        *kept, number, _ = wanted.split(",")  # and how rare the row is
        assert cells == kept
        assert score == number or float(score) == pytest.approx(float(number), rel=1e-4, abs=1e-4)


def test_windows_of_signals(place: Path, capsys: Capture) -> None:
    """A motor that hums, and the same with knocks."""
    random = np.random.default_rng(0)
    hum = [[f"{math.sin(t / 3) + 0.05 * random.normal():.3f}", "no"] for t in range(4000)]
    knocks = [[f"{math.sin(t / 3) + (t % 7 == 0) + 0.05 * random.normal():.3f}", "yes"] for t in range(400)]
    for name, rows in (("hum.csv", [row[:1] for row in hum]), ("both.csv", hum[:400] + knocks)):
        with (place / name).open("w", newline="") as file:
            csv.writer(file).writerows([["current", "knocks"][: len(rows[0])], *rows])
    run = place / "motor"
    words = ("--set", "data.window=40", "--set", "fit.flagged=0.05")
    assert main(["train", str(place / "hum.csv"), "--task", "unusual", *words, *SMALL, "--out", str(run)]) == 0
    assert "unusual rows: " in (shown := capsys.readouterr().out)
    assert "windows of 40 rows" in shown
    assert "None" not in shown
    found = told(capsys, "evaluate", run, place / "both.csv", "--target", "knocks")
    assert found["roc_auc"] > 0.95
    assert found["recall"] > 0.9
    rows = told(capsys, "predict", run, place / "both.csv")["predictions"]
    assert sum(row["unusual"] for row in rows[:19]) < 5 < sum(row["unusual"] for row in rows[20:])
    told(capsys, "explain", run, place / "both.csv", "--row", "25")
    assert (
        main(
            [
                "train",
                str(place / "hum.csv"),
                "--task",
                "unusual",
                *words,
                "--set",
                "data.shapes=auto",
                "--out",
                str(place / "no"),
            ]
        )
        != 0
    )
    assert "shapes are chosen by what is to be predicted" in capsys.readouterr().err
    compiler, out = require_tool("gcc", "cc"), place / "motor-c"
    told(capsys, "build", run, "--target", "c", "--weight-bits", "16", "--out", out)
    names = ["model.c", "signals.c", "recording.c"]
    subprocess.run([compiler, "-std=c99", "-DLUTETIA_NO_MAIN", *names, "-o", "run"], cwd=out, check=True, capture_output=True)
    data = (place / "both.csv").read_text()
    answers = subprocess.run([out / "run"], input=data, text=True, capture_output=True, check=True).stdout
    expected = [("usual", "unusual")[row["unusual"]] for row in rows]
    assert [line.split(",")[-1].split()[-1] for line in answers.splitlines()][-len(expected) :] == expected

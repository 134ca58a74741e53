"""Windows of recordings on the command line, from a CSV file to reasons."""

from __future__ import annotations

import csv
import json
import math
import random
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lutetia.cli import app


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of still and shaken boards, a new one, and a run."""
    folder, draw = tmp_path_factory.mktemp("windows"), random.Random(0)
    rows = []
    for trial in range(8):
        for t in range(240):
            shaken = t // 60 % 2
            x = shaken * math.sin(t + trial) + draw.gauss(0, 0.05)
            rows.append([f"{0.01 * t:.2f}", trial, f"{x:.3f}", f"{1 + draw.gauss(0, 0.05):.3f}", ["still", "shaken"][shaken]])
    for name, own in (("board.csv", rows[: 7 * 240]), ("new.csv", rows[7 * 240 :])):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows([["time", "trial", "ax", "[b]", "state"], *own])
    words = ("--set", "data.window=20", "--set", "data.series=trial", "--set", "fit.n_tables=20", "--set", "fit.calibrate=false")
    done = run("train", folder / "board.csv", "--target", "state", *words, "--out", folder / "run")
    assert done.exit_code == 0, done.output
    (folder / "said").write_text(done.output)
    return folder


def test_train_says_what_windows_are_and_what_is_held_out(place: Path) -> None:
    said = (place / "said").read_text()
    assert "windows of 20 rows, one every 10, from 7 recordings" in said
    assert "left out: 21 windows in which state changes or has no value" in said
    assert "held out by trial: no window to test overlaps one to fit" in said
    assert "[b]" in said
    trial = r"in a trial the loss was 0\.\d{4} with shapes, 0\.\d{4} without, on"
    assert re.search(rf"shapes are counted.* \(data\.shapes\): {trial}", said)
    told = json.loads((place / "run" / "summary.json").read_text())
    assert told["windows"] == {"length": 20, "step": 10, "series": "trial", "windows": 140, "recordings": 7, "changing": 21,
                               "lacking": 0, "short": 0}  # fmt: skip
    assert (told["held_out"], told["held_out_by"]) == ("groups", "trial")
    assert told["test"]["accuracy"] > 0.95


def test_predict_names_windows_by_their_rows(place: Path) -> None:
    told = json.loads(run("predict", place / "run", place / "new.csv", "--json").output)["predictions"]
    assert [each["input"].rpartition(" rows ")[2] for each in told[:2]] == ["0 to 19", "10 to 29"]
    right = [
        each["class"] == ["still", "shaken"][row // 60 % 2]
        for row, each in zip(range(0, 221, 10), told, strict=True)
        if row % 60 <= 40
    ]
    assert sum(right) > 0.9 * len(right)
    assert run("predict", place / "run", place / "new.csv", "--csv", place / "out.csv", "--keep").exit_code == 0
    header, first = list(csv.reader((place / "out.csv").open()))[:2]
    assert header[:4] == ["trial", "first row", "last row", "predicted state"]
    assert first[:4] == ["7", "0", "19", "still"]


def test_explain_names_signals_and_what_was_asked_of_them(place: Path) -> None:
    done = run("explain", place / "run", place / "new.csv", "--row", "7", "--html", place / "why.html")
    assert done.exit_code == 0, done.output
    assert "new.csv rows 70 to 89" in done.output
    assert "because ax: " in done.output
    told = json.loads(run("explain", place / "run", place / "new.csv", "--row", "7", "--json").output)
    assert told["features"] == ["ax", "[b]"]
    assert len(told["relevance"]) == 2
    assert sum(told["relevance"]) + (told["absorbed"] or 0) == pytest.approx(told["explained"], rel=1e-3)
    assert "--row counts" in run("explain", place / "run", place / "new.csv", "--row", "99").output


def test_evaluate_leaves_out_windows_in_which_the_label_changes(place: Path) -> None:
    told = json.loads(run("evaluate", place / "run", "--json").output)
    assert told["samples"] == json.loads((place / "run" / "summary.json").read_text())["rows"]["test"]
    assert {each["column"] for each in told["columns"]} == {"ax", "[b]"}
    told = json.loads(run("evaluate", place / "run", place / "new.csv", "--json").output)
    assert (told["samples"], told["warnings"]) == (20, ["3 windows are left out, in which state changes or has no value"])


def test_reasons_show_the_shapes_that_were_asked_for(place: Path) -> None:
    words = ("data.window=20", "data.series=trial", "fit.n_tables=20", "data.shapes=true", "fit.calibrate=false")
    settings = [part for word in words for part in ("--set", word)]
    done = run("train", place / "board.csv", "--target", "state", *settings, "--out", place / "shapes")
    assert done.exit_code == 0, done.output
    assert re.search(r"\d+ shapes are counted in each window \(data\.shapes\)\n", done.output)
    asking = ("explain", place / "shapes", place / "new.csv", "--row", "7")
    told = run(*asking, "--html", place / "shapes.html")
    assert told.exit_code == 0, told.output
    asked = [line for line in told.output.splitlines() if "share of" in line]
    shown = re.compile(r"because (ax|\[b\]): share of [▁▇]{9} over (9|17) samples by -?[\d.]+ (<=|>) 0\.?\d*$")
    assert asked
    assert all(shown.search(line) for line in asked)
    assert json.loads(run(*asking, "--json").output)["features"] == ["ax", "[b]"]
    refused = run("train", place / "board.csv", "--target", "state", "--set", "data.shapes=true", "--out", place / "no")
    assert "expected false without data.window" in refused.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("predict", "run", "1,2"), "expected a recording"),
        (("page", "run", "--out", "run"), "--out"),
        (("build", "run", "--target", "lut4"), "expected verilog, ecp5, ice40 or c"),
        (("train", "board.csv", "--set", "data.window=5"), "data.window is 5"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], told: str, place: Path) -> None:
    done = run(*(place / word if word in ("run", "board.csv") else word for word in words))
    assert done.exit_code != 0
    assert told in done.output


def test_a_page_begins_with_rows_that_were_held_out_where_they_can_be_read(place: Path) -> None:
    done = run("page", place / "run", "--out", place / "page.html")
    assert done.exit_code == 0, done.output
    assert "example  Rows of board.csv that were held out, which the page holds" in done.output
    told = json.loads(run("page", place / "run", "--out", place / "page.html", "--json").output)
    assert (told["example"], told["no_example"], told["kind"]) == ("Rows of board.csv that were held out", "", "classifier")
    assert re.search(r'"trial \d: rows [\d,]+ to', (place / "page.html").read_text())
    (place / "board.csv").rename(place / "away.csv")
    try:
        done = run("page", place / "run", "--out", place / "page.html")
        told = json.loads(run("page", place / "run", "--out", place / "page.html", "--json").output)
    finally:
        (place / "away.csv").rename(place / "board.csv")
    assert done.exit_code == 0
    assert "begins with waves that are made up: its data cannot be opened" in done.output
    assert told["example"] is None
    assert "board.csv" in told["no_example"]


def test_a_recording_without_a_signal_is_refused(place: Path) -> None:
    rows = [line.split(",") for line in (place / "new.csv").read_text().splitlines()]
    (place / "less.csv").write_text("\n".join(",".join(row[:3]) for row in rows))
    assert "has no column '[b]', a signal of the model" in run("predict", place / "run", place / "less.csv").output
    (place / "hole.csv").write_text("\n".join(",".join(row) for row in [*rows[:9], ["0", "7", "", "1", "still"], *rows[10:]]))
    assert "line 10, column 'ax' is empty" in run("predict", place / "run", place / "hole.csv").output
    (place / "short.csv").write_text("\n".join(",".join(row) for row in rows[:12]))
    assert "its longest recording has 11" in run("predict", place / "run", place / "short.csv").output

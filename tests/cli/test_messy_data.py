"""Data as people have it: identifiers that repeat, copied rows, dashes for nothing, a damaged photo, a spreadsheet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lutetia.cli import main
from said import error, told

Capture = pytest.CaptureFixture[str]
SMALL = ("--set", "fit.n_tables=4", "--set", "fit.n_anchors=2", "--set", "fit.candidates=4")


@pytest.fixture(scope="module")
def customers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 customers and 30 copies of some of them; calls are whole numbers or a dash."""
    random = np.random.default_rng(0)
    rows = [[f"K-{900 + 7 * n}", f"{random.normal():.4f}", "–" if n % 4 == 0 else n % 5, "stays"] for n in range(200)]
    for row in rows:
        row[3] = "leaves" if float(row[1]) > 0 else "stays"
    rows += [rows[n] for n in random.permutation(200)[:30]]
    path = tmp_path_factory.mktemp("messy") / "customers.csv"
    path.write_text("".join(";".join(map(str, row)) + "\n" for row in [["number", "score", "calls", "status"], *rows]))
    return path


def test_what_is_wrong_with_a_file_is_told(customers: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["train", str(customers), *SMALL, "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "  number  left out: text with 200 different values\n" in shown
    assert "calls   6 categories, because '–' is not a number" in shown
    assert """--set 'data.missing=["WORD"]' reads such a word as missing""" in shown
    lines = customers.read_text().splitlines()[1:]
    order = np.random.Generator(np.random.PCG64(0)).permutation(230)  # as rows are drawn to be tested
    fitted = {lines[row] for row in order[:-46]}
    copies = sum(lines[row] in fitted for row in order[-46:])
    assert copies > 5
    assert f"{copies} of 46 rows to test are copies of rows to fit, " in shown
    assert main(["train", str(customers), *SMALL, "--set", 'data.missing=["–"]', "--out", str(tmp_path / "again")]) == 0
    assert "  calls   number, 5 values, 58 missing\n" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["classes", "categories of [red]mood"])
def test_names_that_differ_in_capitals_are_told(kind: str, tmp_path: Path, capsys: Capture) -> None:
    names = ["Yes", "no", "yes", "maybe"]
    others = ["u", "v"] if kind == "classes" else names
    labels = names if kind == "classes" else ["p", "q"]
    rows = (f"{n % 7},{others[n % len(others)]},{labels[n % len(labels)]}\n" for n in range(60))
    (tmp_path / "asked.csv").write_text("a,[red]mood,y\n" + "".join(rows))
    assert main(["train", str(tmp_path / "asked.csv"), *SMALL, "--out", str(tmp_path / "run")]) == 0
    told = f"  'Yes' and 'yes' differ in capitals alone, and are two {kind}: change the file if they mean the same\n"
    assert told in capsys.readouterr().out


def test_rows_that_are_alike_by_nature_are_no_copies(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "dice.csv").write_text("a,b,c\n" + "".join(f"{n % 6},{n % 4},{'xy'[n % 2]}\n" for n in range(100)))
    assert main(["train", str(tmp_path / "dice.csv"), *SMALL, "--out", str(tmp_path / "run")]) == 0
    assert "copies" not in capsys.readouterr().out


@pytest.mark.parametrize(("name", "hint"), [("table.xlsx", "save the table as CSV"), ("table.json", "a folder of images")])
def test_files_of_other_programs(name: str, hint: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04{}")
    said = error(capsys, "train", tmp_path / name)
    assert f"{name} ends in {Path(name).suffix}, expected a config (.toml), a text (.txt, .txt.gz, .md) or data: a .csv" in said
    assert hint in said


def test_a_text_is_said_to_be_one(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "table.txt").write_text("a\tb\n" * 400)
    settings = ("train.steps=1", "model.width=16", "model.n_layers=1", "train.eval_batches=1", "train.batch_size=2")
    given = [word for setting in settings for word in ("--set", setting)]
    assert main(["train", str(tmp_path / "table.txt"), *given, "--out", str(tmp_path / "run")]) == 0
    said = "a language model of the bytes of table.txt; the name of a table of data ends in .csv or .tsv\n"
    assert capsys.readouterr().err.startswith(said)


def test_rows_that_are_not_there(customers: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["train", str(customers), *SMALL, "--out", str(tmp_path / "run")]) == 0
    for row in ("-1", "230"):
        said = error(capsys, "explain", tmp_path / "run", customers, "--row", row)
        assert f"--row is {row}, expected 0 to 229: {customers} has 230 rows of values" in said


def test_damaged_photos_are_skipped_where_the_fit_skipped_some(tmp_path: Path, capsys: Capture) -> None:
    """And told; a run that skipped none says what is wrong."""
    for name, colour in (("dark", 30), ("light", 220)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (9, 8), (colour + number,) * 3).save(tmp_path / "photos" / name / f"{number}.png")
    damaged = tmp_path / "photos" / "light" / 'torn\'s "one".png'
    damaged.write_bytes((tmp_path / "photos" / "light" / "1.png").read_bytes()[:40])
    options = (*SMALL, "--set", "data.skip_unusable=true")
    assert main(["train", str(tmp_path / "photos"), *options, "--out", str(tmp_path / "run")]) == 0
    assert "13 images to fit, 3 images to test" in capsys.readouterr().out
    found = told(capsys, "evaluate", tmp_path / "run", tmp_path / "photos")
    assert found["samples"] == 16
    assert found["warnings"] == [f"skipped 1 damaged image, as in the fit: {damaged}"]
    damaged.unlink()
    assert main(["train", str(tmp_path / "photos"), *SMALL, "--out", str(tmp_path / "whole")]) == 0
    damaged.write_bytes(b"\x89PNG")
    assert f"{damaged} is not an image that can be read" in error(capsys, "evaluate", tmp_path / "whole", tmp_path / "photos")

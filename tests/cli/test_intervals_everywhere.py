"""A regression carried elsewhere: pages, C and circuits have the intervals of `lutetia predict`, and C reads its files."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from browser import OpenPage
from cli.test_train_table import Capture, told
from lutetia._shared.numbers import short_number
from lutetia.cli import main
from lutetia.models import Tabular, load
from lutetia.training import half_widths
from tools import require_tool

pytest_plugins = ["browser"]
TARGET = 'load "max", kN'
WAYS = ("%d %b %Y %H:%M", "%A, %d-%B-%Y", "%d/%m/%Y %I:%M:%S %p", "%Y-%m-%dT%H:%M:%S.250+05:30", "%B %d, %Y", "%d.%m.%Y %H:%MZ")
UNKNOWN = "7 cells hold a category that the model has not seen: taken for missing\n"
FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover"]


def pumps(path: Path, n: int, seed: int) -> Path:
    """Dates written in many ways, leap days among them, units, categories, words for no value, and noise that grows with wear."""
    random = np.random.default_rng(seed)
    rows = [["fitted", "temp", "wear", "colour", TARGET]]
    for row in range(n):
        moment = datetime(2019, 2, 20) + timedelta(minutes=int(random.integers(0, 3_000_000)))
        moment = datetime(2020 + 4 * (row % 2), 2, 29, row % 24) if row % 9 == 0 else moment
        temp, wear, colour = random.normal(20, 6), random.uniform(0, 3000), random.choice(["red", "dark, blue", "grün"])
        load = 90 + 12 * (moment.month > 6) + 2 * temp + 9 * (colour == "red") + wear / 400 * random.normal()
        when = moment.strftime(WAYS[row % len(WAYS)]) if row % 7 else ["", "NaT", "n/a"][row % 3]
        warm = f"{temp:.1f} °C" if row % 5 else ["offline", "?"][row % 2]
        rows.append([when, warm, f"{wear:,.1f}", colour, f"{load:.2f}"])
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pumps")
    pumps(folder / "known.csv", 500, 0)
    fit = (
        "--set",
        "fit.n_tables=25",
        "--set",
        "fit.intervals=true",
        "--set",
        'data.missing=["offline"]',
        "--set",
        "data.unknown=missing",
    )
    assert main(["train", str(folder / "known.csv"), "--out", str(folder / "run"), *fit, "--json"]) == 0
    return folder


def numbers(text: str) -> tuple[list[str], np.ndarray]:
    """The names and the numbers of a CSV file."""
    names, *rows = csv.reader(text.splitlines())
    return names, np.array([[float(cell) for cell in row[-3:]] for row in rows])


def program(folder: Path) -> Path:
    sources = [str(folder / name) for name in ("model.c", "columns.c", "rows.c")]
    subprocess.run([require_tool("gcc", "cc"), *FLAGS, "-DLUTETIA_NO_MAIN", *sources, "-o", str(folder / "run")], check=True)
    return folder / "run"


@pytest.mark.parametrize("bits", [8, 16])
def test_c_says_what_predict_says(bits: int, place: Path, tmp_path: Path, capsys: Capture) -> None:
    model, run = load(place / "run"), str(place / "run")
    assert isinstance(model, Tabular)
    assert model.spread is not None
    assert "spread_90" in model.metadata
    new = pumps(tmp_path / "new.csv", 300, 1)
    text = (
        new.read_text("utf-8")
        .replace("red", "violet", 7)
        .replace("red", "RED")
        .replace("offline", "OffLine")
        .replace("\n", "\r\n \r\n,,,,\r\n", 3)
    )
    new.write_text("\ufeff" + text + "\n\n", "utf-8", newline="")
    assert main(["predict", run, str(new), "--csv", str(tmp_path / "predicted.csv")]) == 0
    capsys.readouterr()
    report = told(capsys, "build", run, "--target", "c", "--weight-bits", bits, "--out", tmp_path / "c")
    done = subprocess.run([program(tmp_path / "c")], input=new.read_bytes(), capture_output=True)
    assert (done.returncode, done.stderr.decode()) == (0, UNKNOWN)
    wanted_names, wanted = numbers((tmp_path / "predicted.csv").read_text("utf-8"))
    names, found = numbers(done.stdout.decode())
    assert names == wanted_names[1:] == [TARGET, f"{TARGET} low", f"{TARGET} high"]
    unit, reach = report["output_unit"], (wanted[:, 2] - wanted[:, 1]) / 2
    assert reach.max() > 1.5 * reach.min()
    np.testing.assert_allclose((found[:, 2] - found[:, 1]) / 2, reach, atol=(0.51 if bits == 8 else 4) * unit)
    np.testing.assert_allclose(found[:, 0] * 2, found[:, 1] + found[:, 2], rtol=1e-7)
    np.testing.assert_allclose(found, wanted, atol=0.02 * reach.mean() if bits == 8 else 1e-4 * reach.mean())
    assert report["interval"]["by_row"] is True
    assert report["interval"]["inside"] == pytest.approx(0.9, abs=0.03)


def test_a_page_says_what_predict_says(place: Path, tmp_path: Path, open_page: OpenPage, capsys: Capture) -> None:
    model, run = load(place / "run"), place / "run"
    assert isinstance(model, Tabular)
    assert main(["page", str(run), "--out", str(tmp_path / "p.html")]) == 0
    capsys.readouterr()
    opened = open_page((tmp_path / "p.html").read_text("utf-8"))
    page, source = opened.page, model.encoding.source.tolist()
    edges = {name: model.encoding.edges[source.index(at)].tolist() for at, name in ((1, "temp"), (2, "wear"))}
    assert page.locator("h3", has_text="Answer").text_content() == f"Answer: {TARGET}"
    seen = set()
    for number, (day, temp, wear, colour) in enumerate(
        [
            ("2024-02-29T12:30:00", 40, 3, "red"),
            ("", 0, 90, "missing"),
            ("2021-08-01T00:00:00", 7, 120, "grün"),
            ("2019-12-31T23:59:59", 90, 50, "dark, blue"),
        ]
    ):
        page.locator(f"#input{source.index(0)}").fill(day)
        page.locator(f"#input{source.index(1)}").fill(str(temp))
        page.locator(f"#input{source.index(2)}").fill(str(wear))
        page.locator(f"#input{source.index(3)}").select_option(colour)
        cells = [repr(edges[name][code - 1]) if code else "" for name, code in (("temp", temp), ("wear", wear))]
        row = f'{day},{cells[0]},{cells[1]},"{"" if colour == "missing" else colour}"'
        (wanted,) = told(capsys, "predict", run, row)["predictions"]
        assert page.locator("#answer").text_content() == short_number(wanted["value"], 6), number
        told_interval = f"{short_number(wanted['low'], 6)} to {short_number(wanted['high'], 6)} in 9 of 10 cases"
        assert page.locator("#interval").text_content() == told_interval
        seen.add(round(wanted["high"] - wanted["low"], 3))
    assert len(seen) > 2
    assert page.locator(f"#input{source.index(1)} + .value").text_content() == "°C"
    script = resources.files("lutetia.precompute.integer").joinpath("page", "told.js").read_text("utf-8")
    (short,) = re.findall(r"^function shortNumber.*?^}", script, re.MULTILINE | re.DOTALL)
    values = [0, 1e-5, -0.000123456, 999999.7, 1234567.8, -98765432, 2.5e15, 0.1 + 0.2, 12345.678]
    assert page.evaluate(f"(values) => {{ {short} return values.map(shortNumber); }}", values) == [
        short_number(each, 6) for each in values
    ]
    assert opened.problems == []


def test_fewer_tables_are_measured_anew(place: Path, tmp_path: Path, capsys: Capture) -> None:
    model, run = load(place / "run"), place / "run"
    few = told(capsys, "build", run, "--tables", 4, "--no-prove", "--no-refit", "--out", tmp_path / "few")
    interval, unit = few["interval"], few["output_unit"]
    assert 1.2 * model.metadata["error_90"] < interval["half_width"] <= interval["whole"] * unit
    assert (interval["whole"] - 1) * unit < interval["half_width"]
    for language in ("verilog", "vhdl"):
        assert json.loads((tmp_path / "few" / language / "manifest.json").read_text())["interval"] == interval
    assert f"±{interval['whole']:,} of out_data" in (tmp_path / "few" / "summary.html").read_text("utf-8")
    c = told(capsys, "build", run, "--target", "c", "--tables", 4, "--no-refit", "--out", tmp_path / "c")["interval"]
    assert c["half_width"] > half_widths(model, np.zeros((1, 4)))[0]
    assert c["inside"] == pytest.approx(0.9, abs=0.03)
    all_tables = told(capsys, "build", run, "--target", "verilog", "--out", tmp_path / "v")["interval"]
    assert all_tables["half_width"] == model.metadata["error_90"]
    gone = (place / "known.csv").rename(place / "gone.csv")
    try:  # without its data nothing is known of fewer tables, or of coarse ones
        for option in (("--tables", 4), ("--weight-bits", 3)):
            assert told(capsys, "build", run, "--target", "c", *option, "--out", tmp_path / "d")["interval"] is None
        assert "lutetia_half_width" not in (tmp_path / "d" / "model.h").read_text()
        assert told(capsys, "build", run, "--target", "c", "--out", tmp_path / "e")["interval"] == {"by_row": True}
    finally:
        gone.rename(place / "known.csv")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_each_line_once(
    terminal: bool, place: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
    assert main(["build", str(place / "run"), "--tables", "2", "--no-prove", "--out", str(tmp_path / "b")]) == 0
    shown = capsys.readouterr()
    lines = [" ".join(line.split()) for line in (shown.out + shown.err).splitlines()]
    repeated = {line.split()[0] for line in lines if lines.count(line) > 1}
    assert repeated == (set() if terminal else {"RMSE", "used", "inputs", "output", "interval"})
    for name in ("RMSE", "used", "output", "interval", "tables", "delay", "lut6", "summary"):
        assert any(line.startswith(f"{name} ") for line in lines)
    assert ("RMSE" in shown.out) is not terminal

"""`lutetia build --input-bits N` on a table of data: a circuit that takes readings as they are, and the ports it has."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas
import pytest

from lutetia._shared.numbers import short_number
from lutetia.cli import main
from lutetia.cli.build_page import _interface
from said import error, told

Capture = pytest.CaptureFixture[str]
BUILD = ("--no-prove", "--time-limit", "60")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("values")
    random = np.random.default_rng(0)
    frame = pandas.DataFrame({"<i>mic</i>": random.integers(0, 4096, 300), "tilt": random.integers(-99, 99, 300)})
    frame["mode"] = np.array(["on", "off"])[random.integers(0, 2, 300)]
    frame["state"] = np.where(frame["tilt"] > frame["<i>mic</i>"] / 40 - 50, "<b>fault</b>", "fine")
    frame.to_csv(folder / "sensor.csv", index=False)
    settings = [f"--set=fit.{name}" for name in ("n_tables=4", "n_anchors=3", "pairs=0")]
    assert main(["train", str(folder / "sensor.csv"), "--target", "state", "--out", str(folder / "run"), *settings]) == 0
    return folder / "run"


def test_the_summary_says_where_each_reading_goes_and_what_the_answers_mean(run: Path, tmp_path: Path, capsys: Capture) -> None:
    capsys.readouterr()
    built = told(capsys, "build", run, "--input-bits", 12, "--out", tmp_path / "out", *BUILD)
    assert built["ports"] == [
        {"name": "<i>mic</i>", "bits": [11, 0], "low": 0, "high": 4095, "signed": False, "categories": []},
        {"name": "tilt", "bits": [23, 12], "low": -2048, "high": 2047, "signed": True, "categories": []},
        {"name": "mode", "bits": [24, 24], "low": 0, "high": 1, "signed": False, "categories": ["off", "on"]},
    ]
    assert built["input"]["map"] == "values"
    assert built["accuracy"]["agreement"] > 0.9
    page = (tmp_path / "out" / "summary.html").read_text(encoding="utf-8")
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", page)
    assert cells[cells.index("bits of in_data") + 1 :][:4] == ["holds", "&lt;i&gt;mic&lt;/i&gt;", "11:0", "0 to 4,095"]
    assert cells[cells.index("tilt") + 1 :][:2] == ["23:12", "-2,048 to 2,047 (two’s complement)"]
    assert cells[cells.index("mode") + 1 :][:2] == ["24:24", "0: off, 1: on"]
    assert cells[cells.index("out_data") + 1 :][:5] == ["class", "0", "&lt;b&gt;fault&lt;/b&gt;", "1", "fine"]
    assert "module net" in (tmp_path / "out" / "verilog" / "net.v").read_text(encoding="utf-8")


def test_a_wrapper_for_axi(run: Path, tmp_path: Path, capsys: Capture) -> None:
    report = told(capsys, "build", run, "--axi", "--tables", "1", "--out", tmp_path / "made", *BUILD)
    text = (tmp_path / "made" / report["axi"]).read_text()
    (top,) = re.findall(r"^module (\w+)", text, re.MULTILINE)
    assert (tmp_path / "made" / "verilog" / f"{top.removesuffix('_axis')}.v").is_file()
    assert f"{top.removesuffix('_axis')} core (" in text
    assert "m_axis_tlast" in text
    for target in ("c", "verilog"):
        assert f"--axi wraps a circuit, and --target is {target}" in error(capsys, "build", run, "--axi", "--target", target)


def test_codes_have_ports_too(run: Path, tmp_path: Path, capsys: Capture) -> None:
    capsys.readouterr()
    built = told(capsys, "build", run, "--out", tmp_path / "out", *BUILD)
    assert [port["name"] for port in built["ports"]] == ["<i>mic</i>, code", "tilt, code", "mode, code"]
    assert [port["bits"] for port in built["ports"]] == [[7, 0], [15, 8], [23, 16]]


def test_the_summary_says_what_the_number_of_a_regression_is(run: Path, tmp_path: Path, capsys: Capture) -> None:
    settings = [f"--set=fit.{name}" for name in ("n_tables=2", "n_anchors=2")]
    assert main(["train", str(run.parent / "sensor.csv"), "--target", "tilt", "--out", str(tmp_path / "run"), *settings]) == 0
    capsys.readouterr()
    built = told(capsys, "build", tmp_path / "run", "--out", tmp_path / "out", *BUILD)
    port, unit = built["output_port"], built["output_unit"]
    assert (port["name"], port["signed"]) == ("tilt", True)
    assert -99 <= port["low"] * unit < 0 < port["high"] * unit <= 99
    page = (tmp_path / "out" / "summary.html").read_text(encoding="utf-8")
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", page)
    told_of = cells[cells.index("bits of out_data") + 2 :][:3]
    assert told_of[0] == f"tilt = out_data × {short_number(unit, 6)}"
    assert told_of[1:] == [f"{port['bits'][0]}:0", f"{port['low']:,} to {port['high']:,} (two’s complement)"]
    assert "tilt for each 1 of out_data" in page


def test_what_does_not_fit_is_refused_before_anything_is_written(run: Path, tmp_path: Path, capsys: Capture) -> None:
    given = ("build", run, "--out", tmp_path / "out", "--input-bits")
    assert error(capsys, *given, 11).endswith("to 2047, what 11 bits hold: this column needs 12\n")
    assert "columns.c takes values as they are" in error(capsys, *given, 12, "--target", "c")
    assert not (tmp_path / "out").exists()


def test_inputs_without_names_are_told_together() -> None:
    given = {"channels": 64, "bits": 512}
    (told_of,) = _interface({"ports": [], "graph": [given], "input_bits": 8, "classes": ["0", "1"]})
    assert told_of.rows == [("64 inputs, 8 bits each, the first in the lowest bits", "511:0", "0 to 255 each")]

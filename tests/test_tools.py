"""A missing tool skips a test by name, the run ends with the reasons, and CI does not forgive one."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

import warm
from tools import is_missing_tool, require_module, require_tool

HERE = Path(__file__).parent
SUITE = """
import os
import pytest
import torch
from tools import require_module, require_tool

def test_one():
    require_tool("no-such-tool")

def test_two():
    require_tool("no-such-tool", "nor-this")

def test_three():
    pytest.skip("it rains")

def test_seeded():
    assert torch.initial_seed() == 0
    assert torch.cuda.is_available() or os.environ["TRITON_INTERPRET"] == "1"
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name in ("conftest.py", "tools.py", "warm.py", "interpreter.py"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "test_suite.py").write_text(SUITE)
    return tmp_path


def run(suite: Path, ci: str, *options: str) -> tuple[int, list[str]]:
    command = ["-m", "pytest", "-q", "--rootdir", str(suite), str(suite), *options]
    done = warm.run(command, cwd=suite, env={**os.environ, "CI": ci})
    return done.returncode, done.stdout.splitlines()


def test_the_run_ends_with_what_was_skipped(suite: Path) -> None:
    code, lines = run(suite, ci="")
    assert code == 0
    assert lines[-3:-1] == ["skipped because it rains (1 test)", "skipped because missing tool: no-such-tool (2 tests)"]
    assert lines[-1].startswith("1 passed, 3 skipped")


def test_ci_fails_when_a_tool_is_missing(suite: Path) -> None:
    code, lines = run(suite, ci="true")
    assert code == 1
    assert "CI allows no missing tool: the run fails" in lines


TOOL_SUITE = """
import shutil
import pytest
from tools import require_module, require_tool

runs = []

@pytest.fixture(scope="session")
def program():
    return require_tool("ghdl-of-this-test")

def test_plain():
    assert shutil.which("ghdl-of-this-test") is None
    runs.append("plain")
    assert runs == ["plain"]

def test_needs_a_program():
    print("needed:", require_tool("ghdl-of-this-test"))

@pytest.mark.parametrize("number", [1, 2])
def test_needs_it_by_a_fixture(program, number):
    print("given:", number, program)

@pytest.mark.tools
def test_looks_for_a_program():
    found = shutil.which("ghdl-of-this-test")
    print("seen:", found, shutil.which("sh") is not None)
    runs.append(found)
    if found:
        assert runs[-2] is None

def test_is_hidden_again():
    assert shutil.which("ghdl-of-this-test") is None
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_hidden_tools_and_then_both_ways(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    if workers:
        require_module("xdist")
    (suite / "test_suite.py").write_text(TOOL_SUITE)
    (suite / "pytest.ini").write_text("[pytest]\nmarkers = tools: x\n")
    program = tmp_path / "programs" / "ghdl-of-this-test"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    others = tmp_path / "others"  # not all that this machine has: each would be linked to in each of the runs
    others.mkdir()
    (others / "sh").symlink_to(require_tool("sh"))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{others}")
    spare = tmp_path / "spare"
    spare.mkdir()
    monkeypatch.setenv("TMPDIR", str(spare))
    if not workers:  # they hide the tools for the first half of "both", too
        code, lines = run(suite, "true", "--tools", "hidden", "-rP")
        assert code == 0  # hidden on purpose, so CI does not mind
        assert "seen: None True" in lines
        assert lines[-1].startswith("3 passed, 3 skipped")
    code, lines = run(suite, "true", "--tools", "both", "-rP", *workers)
    assert code == 0
    assert {f"seen: {program} True", f"needed: {program}", f"given: 1 {program}", f"given: 2 {program}"} <= {*lines}
    assert lines[-1].startswith("6 passed")
    assert not list(spare.glob("lutetia-*"))  # the folder of links is gone
    program.unlink()
    code, lines = run(suite, "true", "--tools", "both", *workers)
    assert code == 1
    assert lines[-1].startswith("3 passed, 3 skipped")


def test_hiding_programs_does_not_excuse_a_missing_module(suite: Path) -> None:
    (suite / "test_suite.py").write_text("from tools import require_module\nrequire_module('no_such_module')\n")
    code, lines = run(suite, "true", "--tools", "hidden")
    assert code == 1
    assert "CI allows no missing tool: the run fails" in lines


@pytest.mark.parametrize(
    ("reason", "missing"),
    [("missing tool: x", True), ("could not import 'hypothesis'", True), ("optional tool: x", False), ("it rains", False)],
)
def test_ci_forgives_other_reasons(reason: str, missing: bool) -> None:
    assert is_missing_tool(reason) == missing


def test_what_is_there_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "second-name"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert require_tool("first-name", "second-name") == str(tool)
    assert require_module("json") is sys.modules["json"]


def test_what_is_missing_is_named() -> None:
    with pytest.raises(pytest.skip.Exception, match="missing tool: Python module no_such_module"):
        require_module("no_such_module")

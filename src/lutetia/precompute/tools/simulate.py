"""`simulate`: samples through a simulator, each answer compared with the interpreter's.

The built-in simulator needs nothing but yosys from PyPI. Icarus, where it is installed, is the default: it is independent of
yosys and follows undefined values. Verilator, cocotb and GHDL run on request.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from lutetia import flow
from lutetia.errors import MissingFeatureError, check_choice
from lutetia.precompute.front.samples import from_binary, from_hex, random_input, to_hex, values_of
from lutetia.precompute.hdl.testbench import CYCLES, Bench, bench, files
from lutetia.precompute.tools.builtin_simulator import simulate_builtin
from lutetia.precompute.tools.cycles import FRAMES, Cycles, counted
from lutetia.precompute.tools.find import HOW, find_tool, missing, require_program, run_program, time_limit
from lutetia.precompute.tools.hardware import EquivalenceError

if TYPE_CHECKING:
    from lutetia.precompute.tools.hardware import Hardware

# The program behind each simulator, and what to call it in a report.
PROGRAMS = {"icarus": "iverilog", "builtin": "yosys", "verilator": "verilator", "cocotb": "cocotb", "ghdl": "ghdl"}
SIMULATORS = {
    "icarus": "Icarus Verilog",
    "builtin": "the built-in simulator (yosys reads the Verilog)",
    "verilator": "Verilator",
    "cocotb": "cocotb with Icarus Verilog",
    "ghdl": "GHDL",
}
WITH_CYCLES = ("icarus", "builtin", "verilator")  # whose test bench counts them
TOOLS = {"verilog": ("icarus", "builtin", "verilator", "cocotb"), "vhdl": ("ghdl",)}


@dataclass(frozen=True)
class Job:
    """One simulation: what runs, on which samples, in which folder."""

    hardware: Hardware
    bench: Bench
    folder: Path
    seed: int
    stalls: bool

    @property
    def top(self) -> str:
        """The test bench."""
        return f"{self.hardware.name}_testbench"


def simulator(hardware: Hardware, tool: str | None = None) -> str:
    """The simulator that `simulate` takes; MissingFeatureError, saying how to get it, where it is not installed."""
    allowed = TOOLS[hardware.language]
    if tool is None:
        tool = next((each for each in allowed if find_tool(PROGRAMS[each])), None)
        if tool is None:
            ways = " or ".join(HOW[PROGRAMS[each]] for each in allowed[:2])
            raise MissingFeatureError(f"simulate needs {ways}")
    check_choice("tool", tool, allowed)
    if find_tool(PROGRAMS[tool]) is None:
        needed = "iverilog" if tool == "cocotb" and find_tool("iverilog") is None else PROGRAMS[tool]
        raise missing(needed, f"simulate(tool={tool!r})")
    return tool


def simulate(hardware: Hardware, x: Tensor, *, tool: str | None, stalls: bool, seed: int, limit: float | None = None) -> Tensor:
    """Run samples through a simulator: x [batch, channels, *shape] -> int64, what came out."""
    tool = simulator(hardware, tool)
    with (
        flow.step("simulate", part="precompute", inputs={"x": x}, tool=tool) as step,
        tempfile.TemporaryDirectory() as place,
        time_limit(limit),
    ):
        y = _run(Job(hardware, bench(hardware, x), Path(place), seed, stalls), tool)
        step.outputs(y=y)
    return y


def measure_cycles(hardware: Hardware, *, tool: str | None, limit: float | None = None) -> Cycles:
    """The cycles of a few random frames without pauses; their answers are checked too."""
    tool = simulator(hardware, tool)
    check_choice("tool", tool, WITH_CYCLES)
    endless = None in hardware.graph.input_edge.shape
    x = random_input(hardware.graph, 1 if endless else FRAMES, seed=0)
    with tempfile.TemporaryDirectory() as place, time_limit(limit):
        job = Job(hardware, bench(hardware, x), Path(place), 0, False)
        _run(job, tool)
        offered, *answered = (int(line) for line in (job.folder / CYCLES).read_text().split())
    return counted(offered, answered, None if endless else FRAMES)


def _run(job: Job, tool: str) -> Tensor:
    """Write the files, simulate, and compare the answers."""
    for name, text in (job.hardware.files | files(job.hardware, job.bench, seed=job.seed, stalls=job.stalls)).items():
        (job.folder / name).write_text(text)
    RUN[tool](job)
    return _answers(job.hardware, job.bench, job.folder)


def _builtin(job: Job) -> None:
    played = simulate_builtin(job.hardware, job.bench, job.folder, seed=job.seed, stalls=job.stalls)
    (job.folder / "outputs.mem").write_text("".join(f"{line}\n" for line in to_hex(played.answers)))
    (job.folder / CYCLES).write_text("".join(f"{cycle}\n" for cycle in played.times))
    same = played.right and np.array_equal(played.answers, job.bench.expected)
    (job.folder / "result.txt").write_text("PASS" if same else "FAIL")


def _icarus(job: Job) -> None:
    sources = [*job.hardware.sources, f"{job.top}.v"]
    (job.folder / "sources.txt").write_text("\n".join(sources) + "\n")
    command = require_program("iverilog", "simulate")
    run_program([*command, "-g2005-sv", "-s", job.top, "-o", "simulation.vvp", "-c", "sources.txt"], job.folder)
    run_program(["vvp", "-n", "simulation.vvp"], job.folder, check=False)


def _verilator(job: Job) -> None:
    quick = [each for name in ("FAST", "SLOW", "GLOBAL") for each in ("-MAKEFLAGS", f"OPT_{name}=-O0")]
    quiet = ["-Wno-fatal", "-Wno-lint", "-Wno-style"]
    options = ["--binary", *quiet, *quick, "--top-module", job.top, "--Mdir", "build", "-o", "simulation"]
    run_program([*require_program("verilator", "simulate"), *options, *job.hardware.sources, f"{job.top}.v"], job.folder)
    run_program([str(job.folder / "build" / "simulation")], job.folder, check=False)


def _cocotb(job: Job) -> None:
    from lutetia.precompute.hdl.cocotb import write

    command = require_program("cocotb", "simulate")
    write(job.hardware, job.folder)
    run_program([*command, "run.py"], job.folder)


def _ghdl(job: Job) -> None:
    command = require_program("ghdl", "simulate")
    run_program([*command, "-a", "--std=08", *job.hardware.sources, f"{job.top}.vhd"], job.folder)
    run_program([*command, "-e", "--std=08", job.top], job.folder)
    run_program([*command, "-r", "--std=08", job.top, "--ieee-asserts=disable"], job.folder, check=False)


RUN: dict[str, Callable[[Job], None]] = {
    "icarus": _icarus, "builtin": _builtin, "verilator": _verilator, "cocotb": _cocotb, "ghdl": _ghdl,
}  # fmt: skip


def _answers(hardware: Hardware, made: Bench, folder: Path) -> Tensor:
    """What the simulator wrote; refused when an answer is missing or wrong."""
    edge = hardware.graph.output_edge
    written = folder / "outputs.mem"
    lines = written.read_text().split() if written.is_file() else []
    try:
        bits = from_hex(lines, edge.width) if hardware.language == "verilog" else from_binary(lines)
    except ValueError:
        bits = None
        wrong = next(at for at, line in enumerate(lines) if set(line.lower()) & set("xzuwl-h"))
        _differ(made, wrong, lines[wrong])
    assert bits is not None
    bits = bits.reshape(-1, edge.width)
    count = min(len(bits), len(made.expected))
    differs = np.flatnonzero((bits[:count] != made.expected[:count]).any(1))
    if len(differs):
        at = int(differs[0])
        one = values_of(edge, bits[at : at + 1], 1, ())[0].tolist()
        _differ(made, at, str(one), values_of(edge, made.expected[at : at + 1], 1, ())[0].tolist())
    if count < len(made.expected):
        raise EquivalenceError(f"the simulation ended after {count} of {len(made.expected)} answers", {"answers": count})
    result = (folder / "result.txt").read_text().strip() if (folder / "result.txt").is_file() else "nothing"
    if result != "PASS":
        raise EquivalenceError(f"the test bench says {result}, though all answers are right: more came, or samples were refused")
    return values_of(edge, bits, made.batch, made.shape)


def _differ(made: Bench, at: int, found: str, expected: list[int] | None = None) -> None:
    per_frame = max(len(made.expected) // made.batch, 1)
    shown = "" if expected is None else f", expected {expected}"
    raise EquivalenceError(
        f"sample {at % per_frame} of frame {at // per_frame} comes out of the simulator as {found}{shown}",
        {"frame": at // per_frame, "sample": at % per_frame, "found": found, "expected": expected},
    )

"""`simulate`: samples through Icarus, Verilator, cocotb or GHDL, and every answer beside that of the interpreter."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from lutetia import flow
from lutetia.errors import check_choice
from lutetia.precompute.hardware import EquivalenceError
from lutetia.precompute.samples import from_binary, from_hex, values_of
from lutetia.precompute.testbench import Bench, bench, files
from lutetia.precompute.tools import find, missing, require_program, run

if TYPE_CHECKING:
    from lutetia.precompute.hardware import Hardware

PROGRAMS = {"icarus": "iverilog", "verilator": "verilator", "cocotb": "cocotb", "ghdl": "ghdl"}
TOOLS = {"verilog": ("icarus", "verilator", "cocotb"), "vhdl": ("ghdl",)}


def simulate(hardware: Hardware, x: Tensor, *, tool: str | None, stalls: bool, seed: int) -> Tensor:
    """Run samples through a simulator: x [batch, channels, *shape] -> int64, what came out."""
    allowed = TOOLS[hardware.language]
    if tool is None:
        tool = next((each for each in allowed if find(PROGRAMS[each])), allowed[0])
    check_choice("tool", tool, allowed)
    if find(PROGRAMS[tool]) is None:
        needed = "iverilog" if tool == "cocotb" and find("iverilog") is None else PROGRAMS[tool]
        raise missing(needed, f"simulate(tool={tool!r})")
    with flow.step("simulate", part="precompute", inputs={"x": x}, tool=tool) as step, tempfile.TemporaryDirectory() as place:
        made = bench(hardware, x)
        folder = Path(place)
        for name, text in (hardware.files | files(hardware, made, seed=seed, stalls=stalls)).items():
            (folder / name).write_text(text)
        RUN[tool](hardware, folder)
        y = _answers(hardware, made, folder)
        step.outputs(y=y)
    return y


def _icarus(hardware: Hardware, folder: Path) -> None:
    sources = [*hardware.sources, f"{hardware.name}_testbench.v"]
    (folder / "sources.txt").write_text("\n".join(sources) + "\n")
    command = require_program("iverilog", "simulate")
    run([*command, "-g2005-sv", "-s", f"{hardware.name}_testbench", "-o", "simulation.vvp", "-c", "sources.txt"], folder)
    run(["vvp", "-n", "simulation.vvp"], folder, check=False)


def _verilator(hardware: Hardware, folder: Path) -> None:
    sources = [*hardware.sources, f"{hardware.name}_testbench.v"]
    command = require_program("verilator", "simulate")
    top = f"{hardware.name}_testbench"
    quick = [
        "-MAKEFLAGS",
        "OPT_FAST=-O0",
        "-MAKEFLAGS",
        "OPT_SLOW=-O0",
        "-MAKEFLAGS",
        "OPT_GLOBAL=-O0",
    ]
    options = [
        "--binary",
        "-Wno-fatal",
        "-Wno-lint",
        "-Wno-style",
        *quick,
        "--top-module",
        top,
        "--Mdir",
        "build",
        "-o",
        "simulation",
    ]
    run([*command, *options, *sources], folder)
    run([str(folder / "build" / "simulation")], folder, check=False)


def _cocotb(hardware: Hardware, folder: Path) -> None:
    from lutetia.precompute.cocotb_bench import write

    command = require_program("cocotb", "simulate")
    write(hardware, folder)
    run([*command, "run.py"], folder)


def _ghdl(hardware: Hardware, folder: Path) -> None:
    command = require_program("ghdl", "simulate")
    top = f"{hardware.name}_testbench"
    run([*command, "-a", "--std=08", *hardware.sources, f"{top}.vhd"], folder)
    run([*command, "-e", "--std=08", top], folder)
    run([*command, "-r", "--std=08", top, "--ieee-asserts=disable"], folder, check=False)


RUN: dict[str, Callable[[Hardware, Path], None]] = {
    "icarus": _icarus, "verilator": _verilator, "cocotb": _cocotb, "ghdl": _ghdl,
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

"""The test bench for cocotb: two small Python files that run in their own Python process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lutetia.precompute.hdl.testbench import EXPECTED, STIMULUS

if TYPE_CHECKING:
    from lutetia.precompute.tools.hardware import Hardware


def write(hardware: Hardware, folder: Path) -> None:
    """Write the test and its runner next to the sources and the samples; they read their settings from the bench."""
    bench = (folder / f"{hardware.name}_testbench.v").read_text()
    head = next(line for line in bench.splitlines() if "localparam SENT" in line)
    numbers = dict(part.split(" = ") for part in head.strip().removeprefix("localparam ").rstrip(";").split(", "))
    settings: dict[str, Any] = {key.lower(): int(value) for key, value in numbers.items()}
    settings |= {"width": hardware.graph.output_edge.width, "top": hardware.name, "sources": list(hardware.sources)}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "bench_cocotb.py").write_text(TEST.format(stimulus=STIMULUS, expected=EXPECTED))
    (folder / "run.py").write_text(RUNNER)


RUNNER = """import json
import pathlib

from cocotb_tools.runner import get_runner

settings = json.loads(pathlib.Path("settings.json").read_text())
here = pathlib.Path.cwd()
runner = get_runner("icarus")
sources = [here / name for name in settings["sources"]]
runner.build(sources=sources, hdl_toplevel=settings["top"], build_args=["-g2005-sv"], always=True, timescale=("1ns", "1ps"))
runner.test(hdl_toplevel=settings["top"], test_module="bench_cocotb", test_dir=here)
"""

TEST = """import json
import pathlib
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

settings = json.loads(pathlib.Path("settings.json").read_text())
stimulus = [int(line, 16) for line in pathlib.Path("{stimulus}").read_text().split()]
expected = [int(line, 16) for line in pathlib.Path("{expected}").read_text().split()]


@cocotb.test()
async def stream(dut):
    pauses = random.Random(settings["sent"])
    Clock(dut.clk, 10, unit="ns").start()
    digits = (settings["width"] + 3) // 4
    outputs = []
    for run in range(settings["runs"]):
        await reset(dut)
        await one_run(dut, run, outputs, pauses)
    lines = [f"{{word:0{{digits}}x}}" for word in outputs]
    pathlib.Path("outputs.mem").write_text("\\n".join(lines) + "\\n")
    pathlib.Path("result.txt").write_text("PASS" if outputs == expected else "FAIL")


async def reset(dut):
    dut.rst.value, dut.in_valid.value, dut.out_ready.value, dut.in_data.value = 1, 0, 0, 0
    for _ in range(3):
        await FallingEdge(dut.clk)
    dut.rst.value = 0


async def one_run(dut, run, outputs, pauses):
    # Signals are set at falling edges, so what is seen there is what the next rising edge takes.
    sent, idle = run * settings["sent"], 0
    last, wanted = sent + settings["sent"], len(outputs) + settings["received"]
    valid = 0
    while (sent < last or len(outputs) < wanted) and idle < settings["patience"]:
        stalls = settings["stalls"]
        if not valid and sent < last and (not stalls or pauses.random() < 0.6):
            valid = 1
            dut.in_data.value = stimulus[sent]
        dut.in_valid.value = valid
        dut.out_ready.value = int(not stalls or pauses.random() < 0.6)
        await cocotb.triggers.Timer(1, unit="ns")
        taken = valid and int(dut.in_ready.value)
        given = int(dut.out_valid.value) and int(dut.out_ready.value)
        if given and len(outputs) < wanted:
            outputs.append(int(dut.out_data.value))
        idle = 0 if taken or given else idle + 1
        await FallingEdge(dut.clk)
        if taken:
            sent, valid = sent + 1, 0
"""

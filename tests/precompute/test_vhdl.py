"""The VHDL, through GHDL, beside the interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from streams import hardware_case
from torch import nn

from lutetia.nn import LUT
from lutetia.precompute import Int, Quantise, Stream, UInt, lut_network, trace
from lutetia.precompute.tools.hardware import EquivalenceError
from tools import require_tool

BATCH = 5


@pytest.mark.parametrize("first", range(0, 15, BATCH))
def test_ghdl_agrees_with_the_interpreter(first: int) -> None:
    require_tool("ghdl")
    for seed in range(first, first + BATCH):
        net, x = hardware_case(seed)
        assert torch.equal(net.emit("vhdl").simulate(x, seed=seed), net(x)), seed


def test_a_lut_network_and_minimised_tables() -> None:
    require_tool("ghdl")
    layer = LUT(9, 2, 3, 7, seed=0)
    nn.init.normal_(layer.weight)
    net = lut_network(layer, bits=3, weight_bits=3).graph
    x = torch.randint(0, 8, (30, 9))
    for each in (net, net.minimise(6)):
        assert torch.equal(each.emit("vhdl").simulate(x), net(x))


def test_wide_tables() -> None:
    require_tool("ghdl")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(7, 1), Quantise(Int(3), 0.5))
    net = trace(model, input=Stream(7, UInt(2))).precompute(max_bits=14)
    x = torch.randint(0, 4, (50, 7))
    assert torch.equal(net.emit("vhdl").simulate(x), net(x))


def test_a_wrong_row_is_caught() -> None:
    require_tool("ghdl")
    layer = LUT(4, 2, 3, 2, seed=0)
    nn.init.normal_(layer.weight)
    hardware = lut_network(layer, bits=2, argmax=False).graph.emit("vhdl")
    name = next(name for name in hardware.files if "table" in name)
    at = hardware.files[name].index('x"') + 2
    text = hardware.files[name]
    hardware.files[name] = text[:at] + f"{int(text[at], 16) ^ 15:x}" + text[at + 1 :]
    with pytest.raises(EquivalenceError):
        hardware.simulate(torch.randint(0, 4, (60, 4)))


def test_the_folder_is_there(tmp_path: Path) -> None:
    net, _ = hardware_case(5)
    net.emit("vhdl").save(tmp_path / "made")
    names = {each.name for each in (tmp_path / "made").iterdir()}
    assert {"net.vhd", "net_testbench.vhd", "manifest.json", "stimulus.mem", "expected.mem"} <= names

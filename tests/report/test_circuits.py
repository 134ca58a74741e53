"""Circuits and waveforms for the report, against the graph itself."""

from __future__ import annotations

import re

import pytest
import stories
import torch

from lutetia import report
from lutetia.errors import ArgumentError
from lutetia.precompute import LUTNetwork, Stream, UInt, lut_network, trace
from lutetia.report import drawing


@pytest.fixture(scope="module")
def net() -> LUTNetwork:
    return lut_network(stories.classifier(), bits=3, weight_bits=5)


def test_the_circuit_has_the_graph_s_nodes_and_costs(net: LUTNetwork) -> None:
    made = report.circuit(net.graph, facts={"more": "yes"})
    costs = net.graph.cost()
    assert [part.kind for part in made.parts] == [node.kind for node in net.graph.nodes]
    assert [tuple(part.sources) for part in made.parts] == [node.sources for node in net.graph.nodes]
    assert made.facts["tables"] == f"{net.graph.n_tables:,}"
    assert made.facts["latency"] == f"{costs.latency} cycles"
    assert made.facts["more"] == "yes"
    assert made.costs is not None
    assert sum(int(row[7]) for row in made.costs.rows) == costs.luts
    assert made.waveform is None


def test_the_waveform_is_the_interpreter_s_in_time(net: LUTNetwork) -> None:
    x = torch.randint(8, (3, 35), generator=torch.Generator().manual_seed(0))
    wave = report.waveform(net.graph, x)
    latency = net.graph.cost().latency
    by_name = {signal.name: signal for signal in wave.signals}
    last = f"{net.graph.output} {net.graph.nodes[net.graph.output].kind}"
    answers = [(span[0], span[2]) for span in by_name[last].spans]
    assert answers == [(latency + frame, str(int(y))) for frame, y in enumerate(net.graph(x)[:, 0])]
    assert by_name["out_valid"].spans[1] == (latency, latency + 3, "1")
    assert len(by_name["clk"].spans) == 2 * wave.cycles
    word = by_name["0 input"].spans[0][2].rstrip("…")
    packed = sum(int(value) << (3 * at) for at, value in enumerate(x[0]))
    assert f"{packed:027x}".startswith(word)


def test_a_waveform_refuses_what_it_cannot_draw(net: LUTNetwork) -> None:
    with pytest.raises(ArgumentError, match="x is float32"):
        report.waveform(net.graph, torch.rand(2, 3))
    conv = torch.nn.Sequential(torch.nn.Conv1d(1, 1, 2))
    with torch.no_grad():
        conv[0].weight.fill_(1)
        conv[0].bias.fill_(0)
    graph = trace(conv, input=Stream(channels=1, dtype=UInt(2), length=4)).precompute()
    with pytest.raises(ArgumentError, match="expected one whose frames are a single sample"):
        report.waveform(graph, torch.zeros(1, 1, 4))


def test_the_graph_is_drawn_downwards_without_overlap() -> None:
    parts = [
        report.Part("input", "", (), 4, 8),
        report.Part("table", "a", (0,), 2, 4),
        report.Part("table", "b", (0,), 2, 4),
        report.Part("register", "", (1,), 2, 4),
        report.Part("sum", "<x>", (3, 2), 1, 5, "of both"),
    ]
    picture = drawing.graph(parts)
    boxes = [tuple(map(float, found)) for found in re.findall(r'<rect x="([\d.]+)" y="([\d.]+)"', picture)]
    assert len(boxes) == len(parts)
    for at, part in enumerate(parts):
        assert all(boxes[source][1] + drawing.NODE_H < boxes[at][1] for source in part.sources)
    rows: dict[float, list[float]] = {}
    for x, y in boxes:
        rows.setdefault(y, []).append(x)
    assert all(b - a >= drawing.NODE_W for xs in rows.values() for a, b in zip(sorted(xs), sorted(xs)[1:], strict=False))
    assert "&lt;x&gt;" in picture
    assert picture.count('class="bus"') == 5


def test_a_part_named_like_its_kind_is_named_once() -> None:
    drawn = drawing.graph([report.Part("argmax", "argmax", (), 1, 4), report.Part("sum", "layer 0", (0,), 1, 4)])
    assert re.sub("<[^>]*>", "", drawn).count("argmax") == 2  # in its box, and in the text that a pointer shows
    assert "layer 0" in drawn


def test_the_machine_is_told_without_names() -> None:
    found = report.machine()
    assert found["torch"] == torch.__version__
    import platform

    assert all(platform.node() not in value for value in found.values() if len(platform.node()) > 3)

"""A stream graph as a Mermaid flowchart: names are text there, whatever they hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lutetia.models import LUTClassifier
from lutetia.precompute import Graph, lut_network


@pytest.mark.parametrize(
    "name", ['x"] --> evil["', "a<script>alert(1)</script>", "`b` #quot; %%{init: {}}%%", "c\nclick n0 href", "d]"]
)
def test_a_name_is_only_a_label(name: str) -> None:
    model = LUTClassifier(input_shape=(6,), n_classes=2, readout="lut", readout_detectors=3, readout_anchors=2, seed=0).eval()
    graph = lut_network(model, bits=2, weight_bits=3).graph
    plain = graph.mermaid()
    named = Graph([replace(node, name=name) for node in graph.nodes], graph.output).mermaid()
    assert len(named.splitlines()) == len(plain.splitlines())
    labels = [line.split('["', 1)[1] for line in named.splitlines() if '["' in line]
    assert len(labels) == len(graph.nodes)
    for label in labels:
        assert label.endswith('"]')
        assert not set(label[:-2].replace("<br>", "").replace("&", "")) & set('"<>[]{}`\n%')

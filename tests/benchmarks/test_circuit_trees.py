"""Boosted trees as circuits give the classes of the trees."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from tools import optional_module

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


def test_pieces_of_the_benchmark_are_merged(trees: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(trees.__file__ or "").parent))
    circuits = importlib.import_module("circuits")
    split = circuits.Split("magic", *(np.zeros((1, 1), dtype=np.int64),) * 4)
    digits = circuits.Split("digits", *(np.zeros((1, 1), dtype=np.int64),) * 4)
    rows: list[dict[str, object]] = []
    for own, method, size, measured in (
        (split, circuits.OURS, "small", [(80.0, 100), (82.0, 110)]),
        (split, circuits.TREES, "small", [(70.0, 50)]),
        (digits, circuits.OURS, "small", [(90.0, 10)]),
        (split, circuits.OURS, "small", [(84.0, 90)]),  # measured again
    ):
        rows = circuits.merged(rows, circuits.row(own, method, size, measured))
    assert [(row["set"], row["method"], row["accuracy"], row["LUT6"]) for row in rows] == [
        ("digits", circuits.OURS, 90.0, 10.0),
        ("magic", circuits.OURS, 84.0, 90.0),
        ("magic", circuits.TREES, 70.0, 50.0),
    ]
    assert {row["method"] for row in circuits.saved_mnist()} == {circuits.OURS, circuits.LOGIX}

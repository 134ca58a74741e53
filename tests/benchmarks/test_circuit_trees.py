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

"""Anchors that are chosen: against a search by hand, and for what they are worth."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.lut import check_anchors
from lutetia.nn import choose_anchors
from lutetia.nn.choose import Chooser


def gain(cells: np.ndarray, target: np.ndarray, weight: np.ndarray) -> float:
    """Σ over cells and columns of (Σ target)² / (Σ weight + 1), by dictionaries."""
    sums: dict[int, tuple[np.ndarray, float]] = {}
    for cell, value, own in zip(cells.tolist(), target, weight.tolist(), strict=True):
        total, held = sums.get(cell, (np.zeros(target.shape[1]), 0.0))
        sums[cell] = (total + value, held + own)
    return sum(float((total**2).sum()) / (held + 1) for total, held in sums.values())


@pytest.mark.parametrize("k", [1, 3])
def test_each_anchor_is_the_best_of_its_candidates_given_those_before(k: int) -> None:
    random = np.random.default_rng(0)
    x, target, weight = random.normal(size=(5, 50)), random.normal(size=(37, k)), random.random(37).astype(np.float32)
    candidates = np.array([[a, b] for a in (0, 1, 3, 4) for b in (0, 1, 3, 4) if a != b])  # input 2 is not compared
    constants, rows = np.array([0.3, -0.2]), random.permutation(50)[:37]
    candidates = np.concatenate([candidates, [[a, 5 + t] for a in (0, 1, 3, 4) for t in range(2)]])
    chosen = Chooser(x, constants, lambda: candidates).choose(3, rows, target, weight)
    both = np.concatenate([x, np.repeat(constants[:, None], 50, 1)])[:, rows]
    cells = np.zeros(37, np.int64)
    for anchor in chosen:
        gains = [gain(2 * cells + (both[a] > both[b]), target, weight) for a, b in candidates]
        assert gain(2 * cells + (both[anchor[0]] > both[anchor[1]]), target, weight) == pytest.approx(max(gains))
        cells = 2 * cells + (both[anchor[0]] > both[anchor[1]])


@pytest.mark.parametrize("kind", ["pairs", "thresholds", "mixed"])
def test_anchors_fit_a_layer_and_find_the_input_that_matters(kind: str) -> None:
    x = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 2] > x[:, 4]).long() if kind == "pairs" else (x[:, 3] > 0.1).long()
    thresholds = None if kind == "pairs" else torch.tensor([-1.0, 0.1, 1.0])
    anchors = choose_anchors(x, y, 5, 2, kind=kind, thresholds=thresholds, candidates=128)
    assert anchors.dtype == torch.int32
    check_anchors(anchors, 6, 0 if thresholds is None else 3)
    firsts = {tuple(sorted(each)) if kind == "pairs" else tuple(each) for each in anchors[:, 0].tolist()}
    assert firsts == ({(2, 4)} if kind == "pairs" else {(3, 7)})


def test_same_seed_same_anchors() -> None:
    x, y = torch.randn(100, 5), torch.randn(100)
    assert torch.equal(choose_anchors(x, y, 3, 2, seed=4), choose_anchors(x, y, 3, 2, seed=4))


def test_what_cannot_be_chosen_from_is_refused() -> None:
    x = torch.randn(10, 3)
    for options, message in (
        ({"kind": "thresholds"}, "thresholds"),
        ({"kind": "other"}, "kind"),
        ({"candidates": 0}, "candidates"),
    ):
        with pytest.raises(ArgumentError, match=message):
            choose_anchors(x, torch.zeros(10), 2, 2, **options)
    with pytest.raises(ArgumentError, match="target"):
        choose_anchors(x, torch.zeros(9), 2, 2)

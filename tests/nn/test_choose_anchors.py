"""Anchors that are chosen: against a search by hand, and for what they are worth."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.lut import check_anchors
from lutetia.nn import choose_anchors
from lutetia.nn.choose import Chooser


def gain(cells: np.ndarray, target: np.ndarray) -> float:
    """Σ over cells of (Σ target)² / (count + 1), by dictionaries."""
    sums: dict[int, tuple[float, int]] = {}
    for cell, value in zip(cells.tolist(), target.tolist(), strict=True):
        total, count = sums.get(cell, (0.0, 0))
        sums[cell] = (total + value, count + 1)
    return sum(total**2 / (count + 1) for total, count in sums.values())


def test_each_anchor_is_the_best_of_its_candidates_given_those_before() -> None:
    random = np.random.default_rng(0)
    x, target = random.normal(size=(4, 50)), random.normal(size=(50, 1))
    candidates = np.array([[a, b] for a in range(4) for b in range(4) if a != b])
    constants = np.array([0.3, -0.2])
    candidates = np.concatenate([candidates, [[a, 4 + t] for a in range(4) for t in range(2)]])
    chooser = Chooser(x, constants, lambda: candidates)
    chosen = chooser.choose(3, np.arange(50), target, np.ones(50))
    both = np.concatenate([x, np.repeat(constants[:, None], 50, 1)])
    cells = np.zeros(50, np.int64)
    for anchor in chosen:
        gains = [gain(2 * cells + (both[a] > both[b]), target[:, 0]) for a, b in candidates]
        assert gain(2 * cells + (both[anchor[0]] > both[anchor[1]]), target[:, 0]) == pytest.approx(max(gains))
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

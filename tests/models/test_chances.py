"""Probabilities from what tables add up to: the softmax of scores, or shares of all."""

from __future__ import annotations

import math

import pytest
import torch

from lutetia.models import Tabular, adds_chances, best_class, chances, log_chances


def test_scores_become_their_softmax() -> None:
    model = Tabular(n_classes=3, n_tables=1, seed=0)
    scores = torch.tensor([[0.0, math.log(2), math.log(5)], [700.0, 0.0, -700.0]])
    assert not adds_chances(model)
    assert chances(model, scores)[0].tolist() == pytest.approx([1 / 8, 2 / 8, 5 / 8])
    torch.testing.assert_close(log_chances(model, scores), scores.double().log_softmax(1), rtol=0, atol=0)


def test_shares_are_divided_by_their_sum() -> None:
    model = Tabular(n_classes=3, n_tables=1, seed=0, sums="probabilities")
    found = chances(model, torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0]]))
    assert found.tolist() == [[0.25, 0.75, 0.0], [1 / 3] * 3]
    assert log_chances(model, torch.tensor([1.0, 3.0, 0.0]))[:2].exp().tolist() == pytest.approx([0.25, 0.75])
    assert -40 < float(log_chances(model, torch.tensor([1.0, 3.0, 0.0]))[2]) < -30


def test_shares_that_rounding_parts_are_equal_and_the_first_wins() -> None:
    model = Tabular(n_classes=3, n_tables=1, seed=0, sums="probabilities")
    unit = 2.0**-24
    sums = torch.tensor([[0.4, 0.4 + 2 * unit, 0.2], [0.4, 0.4 + 9 * unit, 0.2], [0.25, 0.25, 0.5]])
    found = chances(model, sums)
    assert found[0, 0] == found[0, 1]
    assert found.sum(1).tolist() == pytest.approx([1, 1, 1], abs=1e-15)
    assert best_class(model, sums).tolist() == [0, 1, 2]
    assert found[2].tolist() == [0.25, 0.25, 0.5]
    scores = Tabular(n_classes=3, n_tables=1, seed=0)
    assert best_class(scores, sums).tolist() == [1, 1, 2]

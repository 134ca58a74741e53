"""Probabilities from what tables add up to: the softmax of scores, or shares of all."""

from __future__ import annotations

import math

import pytest
import torch

from lutetia.models import Tabular, adds_chances, chances, log_chances


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

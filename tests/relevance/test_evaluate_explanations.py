"""Deletion and insertion: the right explanation wins, by every shape of input; the adapter for Quantus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia import relevance
from lutetia.errors import ArgumentError
from lutetia.relevance import Rules, presets
from relevance.residual import data
from tools import optional_module


class Corner(nn.Module):
    """Images [B, 3, 4, 4] -> 2 classes, by four pixels alone."""

    def forward(self, x: Tensor) -> Tensor:
        score = x[:, :, :2, :2].sum((1, 2, 3)) * 4
        return torch.stack([score, -score], 1)


def right(x: Tensor, decisions: Tensor) -> Tensor:
    """What took part in the decision, with its sign."""
    inside = torch.zeros_like(x)
    inside[:, :, :2, :2] = x[:, :, :2, :2]
    return inside * (1 - 2 * decisions.double()).view(-1, 1, 1, 1)


def test_the_right_explanation_wins(tmp_path: Path) -> None:
    x = data(24, 3, 4, 4)
    rules = {"right": right, "wrong": lambda x, d: -right(x, d), "epsilon": presets.epsilon()}
    result = relevance.evaluate(Corner().double(), x, rules, baseline=0.0, steps=8)
    assert result["right"].deletion.shape == (24, 9)
    areas = {name: result[name].areas() for name in rules}
    assert areas["right"]["difference"] > 0.3 > -0.3 > areas["wrong"]["difference"]
    assert areas["epsilon"] == pytest.approx(areas["right"], abs=1e-6)
    assert result.best in ("right", "epsilon")
    # Both ends are known: nothing deleted is the decision itself, everything deleted knows nothing.
    with torch.no_grad():
        chances = Corner().double()(x).softmax(-1).amax(-1)
    torch.testing.assert_close(result["right"].deletion[:, 0], chances)
    torch.testing.assert_close(result["right"].insertion[:, -1], chances)
    torch.testing.assert_close(result["right"].deletion[:, -1], torch.full((24,), 0.5).double())
    result.picture(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert result.as_dict()["inputs"] == 24


def test_the_area_by_hand() -> None:
    """Two features, w = (3, 1), x = (1, 1): without the first the logit is 1, without both 0."""
    model = nn.Linear(2, 2, bias=False).double()
    model.weight.data = torch.tensor([[3.0, 1.0], [0.0, 0.0]]).double()
    result = relevance.evaluate(model, torch.ones(1, 2).double(), {"epsilon": Rules()}, baseline=0.0, steps=2)
    p = torch.sigmoid(torch.tensor([4.0, 1.0, 0.0])).double()
    torch.testing.assert_close(result["epsilon"].deletion[0], p, rtol=0, atol=1e-6)
    assert result["epsilon"].areas()["deletion"] == pytest.approx(float((p[0] + 2 * p[1] + p[2]) / 4), abs=1e-6)


def test_tokens_and_sequences() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

        def forward(self, input_ids: Tensor) -> Tensor:
            return self.head(self.table(input_ids).cumsum(1))

    tokens = torch.randint(1, 9, (5, 6))
    result = relevance.evaluate(Bag(), {"input_ids": tokens}, steps=3)
    assert set(result.curves) == {"epsilon", "attnlrp", "gamma", "zplus", "alphabeta", "dynamic", "random order"}
    result = relevance.evaluate(
        nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), torch.randn(4, 6, 2), {"epsilon": Rules()}, steps=3
    )
    assert result["epsilon"].insertion.shape == (4, 4)


def test_what_cannot_be_measured() -> None:
    model = nn.Linear(2, 2)
    for inputs, rules, more in (
        (torch.ones(2), None, {}),
        ({}, None, {}),
        (torch.ones(3, 2), {}, {}),
        (torch.ones(3, 2), {"x": 3}, {}),
        (torch.ones(3, 2), None, {"steps": 0}),
        (torch.ones(3, 2), None, {"baseline": torch.ones(5)}),
        (torch.ones(3, 2), {"x": lambda x, d: x[:, :1]}, {}),
    ):
        with pytest.raises(ArgumentError):
            relevance.evaluate(model, inputs, rules, **more)  # type: ignore[arg-type]


def test_the_adapter_for_quantus() -> None:
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(48, 3, bias=False)).eval(), torch.randn(4, 3, 4, 4)
    targets = torch.tensor([0, 2, 1, 1])
    explain = relevance.for_quantus(presets.epsilon())
    found = explain(model, x.numpy(), targets.numpy(), device="cpu")
    torch.testing.assert_close(torch.tensor(found), relevance.attribute(model, x, targets, presets.epsilon())[x])
    quantus = optional_module("quantus")
    with torch.no_grad():  # whole numbers: Quantus compares sums bit for bit
        model[1].weight.copy_(torch.randint(-3, 4, (3, 48)))
    x = torch.randint(-3, 4, x.shape).float()
    explain = relevance.for_quantus(presets.epsilon(0.0))

    def spoilt(*args: Any, **options: Any) -> Any:
        return explain(*args, **options) + 1

    for function, complete in ((explain, True), (spoilt, False)):
        metric = quantus.Completeness(perturb_baseline=0.0, disable_warnings=True, abs=False, normalise=False)
        scores = metric(model, x.numpy(), targets.numpy(), None, explain_func=function, device="cpu")
        assert [bool(score) for score in scores] == [complete] * 4

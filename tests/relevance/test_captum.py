"""captum finds the same relevance in small nets of modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia import relevance
from lutetia.relevance import Epsilon, Gamma, Rules, ZPlus

attr = pytest.importorskip("captum.attr")
lrp_rules = pytest.importorskip("captum.attr._utils.lrp_rules")
EPS = 1e-9  # captum's own


def mlp(bias: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9, bias), nn.ReLU(), nn.Linear(9, 7, bias), nn.ReLU(), nn.Linear(7, 3, bias)).double()


class Cnn(nn.Module):
    """With the flattening outside of modules: captum has no rule for it."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 4, 3, bias=bias), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 2, bias=bias), nn.ReLU()
        )
        self.head = nn.Linear(45, 3, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))


def cnn(bias: bool) -> nn.Module:
    return Cnn(bias).double()


NETS = {"MLP": (mlp, (4, 6)), "CNN": (cnn, (4, 2, 10, 10))}


def theirs(model: nn.Module, x: Tensor, target: Tensor, make: Any) -> Tensor:
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.rule = make()  # type: ignore[assignment]
    return attr.LRP(model).attribute(x.clone().requires_grad_(), target=target).detach()


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", ["epsilon", "gamma", "zplus"])
def test_lrp(net: str, name: str) -> None:
    make, shape = NETS[net]
    # captum's γ and α1β0 leave biases as they are and know inputs ≥ 0 only: there they are ours.
    model, x = make(name == "epsilon"), torch.rand(shape, dtype=torch.float64)
    target = model(x).argmax(1)
    ours, rule = {
        "epsilon": (Epsilon(EPS), lrp_rules.EpsilonRule),
        "gamma": (Gamma(0.25, EPS), lrp_rules.GammaRule),
        "zplus": (ZPlus(EPS), lrp_rules.Alpha1_Beta0_Rule),
    }[name]
    found = relevance.attribute(model, x, target, Rules(ours))[x]
    expected = theirs(model, x, target, rule)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)

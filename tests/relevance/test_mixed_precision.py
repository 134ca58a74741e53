"""Models that mix float32 with narrower floats: under autocast, and by operations that take both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia import relevance

NARROW = torch.bfloat16
STEP = 2.0**-8  # what rounding to bfloat16 changes at most, as a fraction


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.norm(self.first(x)))))


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    pools = nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), Residual(), pools[0], Residual(), pools[1], nn.Flatten(), nn.Linear(4, 5)).eval()


def transformer() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (6, 16)), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(96, 3)).eval()


MODELS = {"convolutions": (convolutions, (3, 10, 10)), "transformer": (transformer, (96,))}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("planned", [False, True])
def test_under_autocast_relevance_is_that_of_the_model_in_float32(name: str, planned: bool) -> None:
    make, shape = MODELS[name]
    model, x = make(), torch.randn(2, *shape)
    exact = relevance.attribute(model, x, target=1)[x]
    with torch.autocast("cpu", NARROW):
        r = relevance.compile(model, x)(x, target=1) if planned else relevance.attribute(model, x, target=1)
        assert torch.is_autocast_enabled("cpu")
    assert r.output.dtype == NARROW
    assert r[x].dtype == torch.float32
    assert float((r[x] - exact).norm() / exact.norm()) < 24 * STEP
    kept = float(r[x].double().sum() + r.report.absorbed)
    assert kept == pytest.approx(float(r.seed.double().sum()), abs=8 * STEP * float(r[x].abs().sum()))


def test_an_output_computed_under_autocast_is_explained_inside_it_and_outside() -> None:
    model, x = convolutions(), torch.randn(2, 3, 10, 10, requires_grad=True)
    with torch.autocast("cpu", NARROW):
        output = model(x)
        inside = relevance.explain(output, 1)[x]
    torch.testing.assert_close(relevance.explain(output, 1)[x], inside, rtol=0, atol=0)


def test_recomputed_blocks_run_under_the_autocast_that_they_had() -> None:
    model, x = transformer(), torch.randn(2, 96)
    with torch.autocast("cpu", NARROW):
        kept = relevance.attribute(model, x, target=1)[x]
        again = relevance.attribute(model, x, target=1, recompute=True)[x]
    torch.testing.assert_close(again, kept, rtol=0, atol=float(kept.abs().max()) * STEP)


MIXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cat": lambda h, p: torch.cat([h, p.expand_as(h)], -1),
    "sum": lambda h, p: h.unflatten(-1, (4, 2)).sum(-1, dtype=torch.float32),
    "mean": lambda h, p: h.unflatten(-1, (4, 2)).mean(-1, dtype=torch.float32),
    "stack": lambda h, p: torch.stack([h, p.expand_as(h)], -1),
    "layer norm": lambda h, p: F.layer_norm(h, (8,), p),
    "add": lambda h, p: h + p,
    "where": lambda h, p: torch.where(h > 0, h, p),
}


@pytest.mark.parametrize("name", MIXED)
def test_operations_that_take_two_dtypes(name: str) -> None:
    """The float32 result of the same numbers, to the rounding of bfloat16."""
    torch.manual_seed(1)
    x, weight, p = torch.randn(3, 6), torch.randn(8, 6).to(NARROW), torch.rand(8) + 0.5
    found = {}
    for dtype in (NARROW, torch.float32):
        leaf, parameter = x.clone().requires_grad_(), nn.Parameter(weight.to(dtype))
        hidden = F.linear(leaf.to(NARROW).to(dtype), parameter)
        output = MIXED[name](hidden, nn.Parameter(p)).float()
        found[dtype] = relevance.explain(output, torch.ones_like(output), wrt=leaf)[leaf]
    difference = (found[NARROW] - found[torch.float32]).norm() / found[torch.float32].norm()
    assert float(difference) < 24 * STEP

"""Functions that round: what was rounded gets the relevance, whatever the gradient says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lutetia import relevance
from lutetia.relevance import presets

STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "sign": torch.sign,
    "round": torch.round,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "2 to the x": lambda x: 2.0**x,
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_pass_what_their_value_deserves(name: str) -> None:
    step = STEPS[name]
    a, b = (3 * torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    a.requires_grad_()
    b.requires_grad_()
    output = step(a) + b
    seed = torch.arange(20.0, dtype=torch.float64).view(4, 5) - 7
    r = relevance.explain(output, seed, wrt=[a, b], rules=presets.epsilon(0.0))
    share = (step(a) / (step(a) + b)).detach()
    torch.testing.assert_close(r[a], seed * share)
    torch.testing.assert_close(r[b], seed * (1 - share))


def test_a_fixed_point_sum_by_hand() -> None:
    quantised = pytest.importorskip("transformers.models.ibert.quant_modules")
    x, y = (torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed), requires_grad=True) for seed in (0, 1))
    scales = [torch.tensor([scale]) for scale in (0.01, 0.05, 0.02)]

    class Sum(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            whole: Tensor = quantised.FixedPointMul.apply(x, scales[0], 8, scales[1], y, scales[2])
            return whole * scales[1]

    seed = torch.ones(2, 3, 4)
    r = relevance.attribute(Sum(), (x, y), seed, presets.epsilon(0.0))
    torch.testing.assert_close(r[x], (x / (x + y)).detach())
    torch.testing.assert_close(r[y], (y / (x + y)).detach())


def test_i_bert_is_explained() -> None:
    """Its modules bind `Function.apply` before they are watched; its quantised weights are known by their values alone."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    model = transformers.IBertModel(transformers.IBertConfig(**sizes, quant_mode=True)).eval()
    ids = torch.randint(3, 50, (2, 6))
    r = relevance.attribute(model, {"input_ids": ids}, target=("last_hidden_state", 3, 4))
    assert r.report.unseen == r.report.unknown == []
    assert torch.isfinite(r[ids]).all()
    assert 0 < float(r[ids].abs().sum()) < 100 * float(r.seed.abs().sum())

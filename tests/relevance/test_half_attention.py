"""Relevance through fused attention in half dtypes is as good as through the eager computation in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia import relevance
from lutetia.relevance import presets


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_shares_are_not_rounded_on_the_way(dtype: torch.dtype, causal: bool) -> None:
    q, k, v = (torch.randn(2, 3, 16, 32, dtype=dtype, requires_grad=True) for _ in range(3))
    R = torch.rand(2, 3, 16, 32)

    def relevances(output: Tensor, *leaves: Tensor) -> list[Tensor]:
        r = relevance.explain(output, R.to(output.dtype), wrt=list(leaves), rules=presets.epsilon(1e-1))
        return [r[leaf] for leaf in leaves]

    found = relevances(F.scaled_dot_product_attention(q, k, v, is_causal=causal), q, k, v)
    q, k, v = (tensor.detach().double().requires_grad_() for tensor in (q, k, v))
    scores = q @ k.mT / 32**0.5
    if causal:
        scores = scores.masked_fill(torch.ones(16, 16, dtype=torch.bool).triu(1), -torch.inf)
    for mine, wanted in zip(found, relevances(scores.softmax(-1) @ v, q, k, v), strict=True):
        assert mine.dtype == dtype
        assert (mine.double() - wanted).norm() < 0.01 * wanted.norm()

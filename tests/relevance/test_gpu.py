"""Relevance on CUDA equals relevance on the CPU, with every attention kernel and in every dtype they have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lutetia import relevance
from lutetia.relevance import presets

pytestmark = pytest.mark.gpu


def test_a_transformer_layer() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True, norm_first=True).double()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    # CUDA has no fused attention of float64: it scales queries and keys before their product, and a stabiliser of any size would
    # weigh differently there.
    on_cpu = relevance.attribute(layer, x, target=3, rules=presets.epsilon(1e-12))[x]
    there = x.cuda()
    found = relevance.attribute(layer.cuda(), there, target=3, rules=presets.epsilon(1e-12))[there]
    torch.testing.assert_close(found.cpu(), on_cpu, rtol=1e-8, atol=1e-8 * float(on_cpu.abs().max()))


def test_a_convolutional_net_and_its_plan() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    ).eval().double()  # fmt: skip
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    on_cpu = relevance.attribute(model, x, rules=presets.gamma())[x]
    there = x.cuda()
    plan = relevance.compile(model.cuda(), there[:1], presets.gamma())
    torch.testing.assert_close(plan(there)[there].cpu(), on_cpu, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("bias", [False, True])
def test_lrp_0_in_float32_gives_the_whole_output(bias: bool) -> None:
    """Without an ε relevance travels in float64; convolutions and pools have float64 kernels there, too."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=bias), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, bias=bias), nn.ReLU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 4, bias=bias),
    ).eval().cuda()  # fmt: skip
    x = torch.randn(16, 3, 8, 8, device="cuda")
    r = relevance.attribute(model, x, rules=presets.epsilon(0.0, bias="redistribute" if bias else "absorb"))
    wanted = r.seed.double().sum(1)
    assert (r[x].dtype, r.exact(x).dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(r.exact(x).flatten(1).sum(1), wanted, rtol=1e-8, atol=0)
    torch.testing.assert_close(r[x].double().flatten(1).sum(1), wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_kernels(backend: Any, causal: bool) -> None:
    q, k, v = (torch.randn(2, 3, 16, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    R = torch.rand(2, 3, 16, 32, device="cuda", dtype=torch.bfloat16)

    def relevances(output: Tensor, *leaves: Tensor) -> list[Tensor]:
        r = relevance.explain(output, R.to(output.dtype), wrt=list(leaves), rules=presets.epsilon(1e-1))
        return [r[leaf] for leaf in leaves]

    with sdpa_kernel(backend):
        found = relevances(F.scaled_dot_product_attention(q, k, v, is_causal=causal), q, k, v)
    q, k, v = (tensor.detach().double().requires_grad_() for tensor in (q, k, v))
    scores = q @ k.mT / 32**0.5
    if causal:
        scores = scores.masked_fill(torch.ones(16, 16, dtype=torch.bool, device="cuda").triu(1), -torch.inf)
    for mine, wanted in zip(found, relevances(scores.softmax(-1) @ v, q, k, v), strict=True):
        assert (mine.double() - wanted).norm() < 0.01 * wanted.norm()

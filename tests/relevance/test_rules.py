"""Every rule against numbers derived by hand, on nets of two and three layers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia import relevance
from lutetia.relevance import AlphaBeta, Epsilon, Flat, Gamma, Identity, Rules, WSquare, ZBox, Zero, ZPlus, presets
from relevance.residual import net, tensor

# Two layers: z₁ = (1·2 + 2·1, 1·(-1) + 2·1 + 1) = (4, 2), a₁ = (4, 2), y = 4 - 2 = 2.
TWO = (([[2.0, 1.0], [-1.0, 1.0]], [0.0, 1.0]), ([[1.0, -1.0]], None))
X = tensor(1.0, 2.0)

# By hand, all with ε = 0 and R = y = 2. Above: shares of a₁ in y are 4 and -2 of 2, so R₁ = (4, -2) for rules that look at signs.
HAND: dict[str, tuple[Any, list[float]]] = {
    # R₁ = (4, -2). Below: x₁ gets 4·2/4 + (-2)·(-1)/2 = 3, x₂ gets 4·2/4 + (-2)·2/2 = 0; the bias took -2·1/2 = -1.
    "zero": (Zero(), [3.0, 0.0]),
    # ε = 2. Above: z + ε = 4, R₁ = (4·2/4, -2·2/4) = (2, -1). Below: 4 + 2 = 6 and 2 + 2 = 4:
    # x₁ gets 2·2/6 + (-1)·(-1)/4, x₂ gets 2·2/6 + (-1)·2/4.
    "epsilon": (Epsilon(2.0), [2 / 3 + 1 / 4, 2 / 3 - 1 / 2]),
    # γ = 1. Above z = 2 > 0: w + w⁺ = (2, -1), parts (8, -2) of 6: R₁ = (8/3, -2/3). Below, both z > 0:
    # unit 1 has (4, 2): parts (4, 4) of 8; unit 2 has (-1, 2) and bias 2: parts (-1, 4, 2) of 5.
    "gamma": (Gamma(1.0, 0.0), [8 / 3 * 4 / 8 - 2 / 3 * -1 / 5, 8 / 3 * 4 / 8 - 2 / 3 * 4 / 5]),
    # α = 1, β = 0. Above only unit 1 is positive: R₁ = (2, 0). Below: parts (2, 2) of 4.
    "zplus": (ZPlus(0.0), [1.0, 1.0]),
    # α = 2, β = 1. Above: R₁ = (2·2·4/4, -1·2·(-2)/(-2)) = (4, -2). Below, unit 1 has no negative part:
    # 2·4·(2, 2)/4 = (4, 4), and 0/0 counts for nothing. Unit 2: positive parts x₂: 2, bias 1; negative x₁: -1:
    # x₁ gets -1·(-2)·(-1)/(-1) = 2, x₂ gets 2·(-2)·2/3 = -8/3.
    "alphabeta": (AlphaBeta(2.0, 1.0, 1e-30), [4.0 + 2.0, 4.0 - 8 / 3]),
    # w²: above (1, 1) of 2: R₁ = (1, 1). Below: (4, 1) of 5, and (1, 1) of 2 + bias 1 = 3.
    "wsquare": (WSquare(0.0), [4 / 5 + 1 / 3, 1 / 5 + 1 / 3]),
    # flat: R₁ = (1, 1), and half of each to each.
    "flat": (Flat(0.0), [1.0, 1.0]),
}


@pytest.mark.parametrize("name", HAND)
def test_two_layers_by_hand(name: str) -> None:
    choice, expected = HAND[name]
    r = relevance.attribute(net(*TWO), X[None], rules=Rules(linear=choice))
    torch.testing.assert_close(r[r.keys()[0]][0], tensor(*expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", HAND)
def test_a_convolution_is_a_linear_layer_at_every_place(name: str) -> None:
    """With 1 × 1 kernels the hand-derived numbers appear at every pixel."""
    choice, expected = HAND[name]
    layers = [nn.Conv2d(len(weight[0]), len(weight), 1, bias=bias is not None).double() for weight, bias in TWO]
    for layer, (weight, bias) in zip(layers, TWO, strict=True):
        layer.weight.data = torch.tensor(weight, dtype=torch.float64)[:, :, None, None]
        if bias is not None:
            layer.bias.data = torch.tensor(bias, dtype=torch.float64)
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1])
    x = X[None, :, None, None].expand(1, 2, 2, 3).clone()
    r = relevance.attribute(model, x, target=torch.full((1, 1, 2, 3), 2.0, dtype=torch.float64), rules=Rules(linear=choice))
    torch.testing.assert_close(r[x], tensor(*expected)[None, :, None, None].expand_as(x), rtol=1e-12, atol=1e-12)


def test_zbox_by_hand() -> None:
    """Box [-1, 3], w = (2, -1), x = (1, 2): parts x·w - lo·w⁺ - hi·w⁻ = (2 + 2, -2 + 3) = (4, 1) of 5, y = 0 + 3 = 3."""
    model = net(([[2.0, -1.0]], [3.0]))
    r = relevance.attribute(model, X[None], rules=Rules().first(ZBox(-1.0, 3.0, eps=0.0)))
    torch.testing.assert_close(r[r.keys()[0]][0], tensor(12 / 5, 3 / 5))


def test_three_layers_by_hand() -> None:
    """a = x₁ + x₂ = 3, b = 2x₁ - x₂ → ReLU(0.5) = 0.5, y = 2·(a + 4·b) = 10; all of it linear: x₁·∂ + x₂·∂."""
    model = net(([[1.0, 1.0], [2.0, -1.0]], None), ([[1.0, 4.0]], None), ([[2.0]], None))
    x = tensor([1.0, 1.5])
    r = relevance.attribute(model, x, rules=Rules(linear=Zero()))
    torch.testing.assert_close(r[x][0], tensor(18.0, -9.0))  # (2 + 16)·1, (2 - 8)·1.5
    plus = relevance.attribute(model, x, rules=Rules(linear=ZPlus(0.0)))
    # R = (2·2.5, 2·2) at (a, b): y = 9, of which a has 5 and b 4; a: 2/5 and 3/5; b: all to x₁.
    torch.testing.assert_close(plus[x][0], tensor(9 * (5 / 9) * (1 / 2.5) + 9 * (4 / 9), 9 * (5 / 9) * (1.5 / 2.5)))


def test_three_layers_with_gamma_mix_signs() -> None:
    """An input below zero: γ favours what has the sign of z, on both sides."""
    model = net(([[1.0, -2.0]], None), ([[1.0]], None), ([[3.0]], None))
    x = tensor([2.0, -1.0])  # z = 2 + 2 = 4, y = 12
    r = relevance.attribute(model, x, rules=Rules(linear=Gamma(0.5, 0.0)))
    # w + γw⁺ = 1.5 for x₁ > 0, w + γw⁻ = -3 for x₂ < 0: parts 3 and 3.
    torch.testing.assert_close(r[x][0], tensor(6.0, 6.0))


def test_sums_by_hand() -> None:
    a, b = tensor(3.0, 1.0).requires_grad_(), tensor(1.0, -2.0).requires_grad_()
    r = relevance.explain(a + b, tensor(8.0, 1.0), rules=presets.epsilon(0.0))
    torch.testing.assert_close(r[a], tensor(6.0, -1.0))
    torch.testing.assert_close(r[b], tensor(2.0, 2.0))
    r = relevance.explain(a - b, tensor(8.0, 3.0), rules=presets.dynamic(0.0))
    torch.testing.assert_close(r[a], tensor(6.0, 1.0))
    torch.testing.assert_close(r[b], tensor(2.0, 2.0))
    x = tensor(1.0, 2.0, 5.0).requires_grad_()
    torch.testing.assert_close(relevance.explain(x.mean(), rules=presets.epsilon(0.0))[x], tensor(1 / 3, 2 / 3, 5 / 3))


def test_dynamic_by_hand() -> None:
    """|x||w| + |b|: above, parts (4, 2) of 6: R₁ = 2·(4, 2)/6; below (2, 2) of 4, and (1, 2) and bias 1 of 4."""
    r = relevance.attribute(net(*TWO), X[None], rules=presets.dynamic(0.0))
    torch.testing.assert_close(r[r.keys()[0]][0], tensor(4 / 3 / 2 + 2 / 3 / 4, 4 / 3 / 2 + 2 / 3 / 2))


def test_products_by_hand() -> None:
    a, b = tensor(3.0, 1.0).requires_grad_(), tensor(1.0, -2.0).requires_grad_()
    r = relevance.explain(a * b, tensor(8.0, 1.0))
    torch.testing.assert_close(r[a], tensor(4.0, 0.5))
    torch.testing.assert_close(r[b], tensor(4.0, 0.5))
    scaled = relevance.explain(a * nn.Parameter(b.detach()), tensor(8.0, 1.0))
    torch.testing.assert_close(scaled[a], tensor(8.0, 1.0))
    divided = relevance.explain(a / b, tensor(8.0, 1.0), wrt=[a, b])
    torch.testing.assert_close(divided[a], tensor(8.0, 1.0))
    torch.testing.assert_close(divided[b], tensor(0.0, 0.0))


def test_matrix_product_of_two_activations_by_hand() -> None:
    """(1, 2)·(3, 4) = 11: each factor gets half, in the parts 3 and 8 of 11."""
    a, b = tensor([1.0, 2.0]).requires_grad_(), tensor([3.0], [4.0]).requires_grad_()
    r = relevance.explain(a @ b, tensor([22.0]), rules=Rules(product=relevance.Uniform(0.0)))
    torch.testing.assert_close(r[a], tensor([3.0, 8.0]))
    torch.testing.assert_close(r[b], tensor([3.0], [8.0]))


def test_softmax_by_hand() -> None:
    """softmax(0, log 3) = (1/4, 3/4); x·(R - s·ΣR) with R = (1, 3) is log 3 · (3 - 3/4·4) = 0, with R = (4, 0) log 3 · (-3)."""
    x = tensor(0.0, math.log(3)).requires_grad_()
    torch.testing.assert_close(relevance.explain(torch.softmax(x, -1), tensor(1.0, 3.0))[x], tensor(0.0, 0.0), atol=1e-12, rtol=0)
    torch.testing.assert_close(relevance.explain(torch.softmax(x, -1), tensor(4.0, 0.0))[x], tensor(0.0, -3 * math.log(3)))
    passed = relevance.explain(torch.softmax(x, -1), tensor(4.0, 0.0), rules=Rules(softmax=Identity()))
    torch.testing.assert_close(passed[x], tensor(4.0, 0.0))


def test_a_masked_softmax_is_finite() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(3, 4, dtype=torch.bool).tril()
    for fill in (-math.inf, torch.finfo(torch.float64).min):
        r = relevance.explain(torch.softmax(x.masked_fill(~mask, fill), -1), torch.randn(3, 4, dtype=torch.float64))
        assert r[x].isfinite().all()
        assert (r[x][~mask] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_row_that_is_masked_throughout_gets_nothing(dtype: torch.dtype) -> None:
    """The least number of a dtype as the mask: the softmax is uniform there, and not 0."""
    x = torch.randn(3, 4, dtype=dtype, requires_grad=True)
    mask = torch.zeros(3, 4, dtype=dtype)
    mask[1] = torch.finfo(dtype).min
    seed = torch.full((3, 4), 5.0, dtype=dtype)
    seed[:, 1] = -7
    with relevance.watch(nn.Identity()):
        y = torch.softmax(x + mask, -1)
    r = relevance.explain(y, seed)[x]
    assert torch.isfinite(r).all()
    assert not r[1].any()
    assert r[0].any()


def test_norms_by_hand() -> None:
    """x = (1, 3): μ = 2, σ = 1, y = γ·(∓1) + β. With μ and σ fixed, x's part is γ·x: R·γx/y."""
    x = tensor([1.0, 3.0]).requires_grad_()
    gamma, beta = tensor(2.0, 1.0), tensor(4.0, 1.0)
    y = F.layer_norm(x, (2,), gamma, beta, eps=0.0)  # (2, 2)
    r = relevance.explain(y, tensor([1.0, 4.0]), rules=presets.epsilon(0.0))
    torch.testing.assert_close(r[x], tensor([1.0, 6.0]))
    passed = relevance.explain(y, tensor([1.0, 4.0]), rules=relevance.Rules(norm=relevance.Identity()))
    torch.testing.assert_close(passed[x], tensor([1.0, 4.0]))
    # With σ alone fixed: R/y·γ = (1, 2), less its mean (-1/2, 1/2), times x; it sums to what biases do not take, 5 - 2 - 2.
    centred = relevance.explain(y, tensor([1.0, 4.0]), rules=presets.attnlrp(0.0))
    torch.testing.assert_close(centred[x], tensor([-0.5, 1.5]))
    written_out = (x - x.mean(-1, keepdim=True)) * torch.rsqrt((x - x.mean(-1, keepdim=True)).pow(2).mean(-1, keepdim=True))
    by_parts = relevance.explain(
        written_out * nn.Parameter(gamma) + nn.Parameter(beta), tensor([1.0, 4.0]), rules=presets.epsilon(0.0)
    )
    torch.testing.assert_close(by_parts[x], centred[x])
    spread = relevance.explain(y, tensor([1.0, 4.0]), rules=presets.epsilon(0.0, bias="redistribute"))
    torch.testing.assert_close(spread[x], tensor([1.0, 4.0]))
    for norm in (lambda: F.rms_norm(x, (2,), gamma), lambda: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * gamma):
        torch.testing.assert_close(relevance.explain(norm(), tensor([1.0, 4.0]))[x], tensor([1.0, 4.0]))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_by_hand(training: bool) -> None:
    norm = nn.BatchNorm1d(1, eps=1e-15).double().train(training)
    norm.weight.data, norm.bias.data = tensor(2.0), tensor(1.0)
    norm.running_mean, norm.running_var = tensor(1.0), tensor(4.0)
    x = tensor([2.0], [6.0]).requires_grad_()
    mean, deviation = (4.0, 2.0) if training else (1.0, 2.0)
    y = (x.detach() - mean) / deviation * 2 + 1
    r = relevance.explain(norm(x), tensor([3.0], [5.0]), rules=presets.epsilon(0.0))
    torch.testing.assert_close(r[x], tensor([3.0], [5.0]) * x.detach() / deviation * 2 / y)


def test_group_norm_treats_statistics_as_constants() -> None:
    x = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    norm = nn.GroupNorm(2, 6).double()
    norm.weight.data, norm.bias.data = torch.randn(6).double(), torch.randn(6).double()
    R = torch.randn(2, 6, 3, dtype=torch.float64)
    y = norm(x)
    groups = x.detach().reshape(2, 2, -1)
    deviation = (groups.var(-1, unbiased=False) + 1e-5).sqrt().repeat_interleave(3, 1)[..., None]
    expected = R * x.detach() / deviation * norm.weight.detach()[:, None] / y.detach()
    torch.testing.assert_close(relevance.explain(y, R, rules=presets.epsilon(0.0))[x], expected)


def test_embedding_by_hand() -> None:
    """Tokens get the sum over the embedding dimension; the table its rows, when it is asked for."""
    table = nn.Embedding(4, 2).double()
    tokens = torch.tensor([[1, 3, 1]])
    weights = tensor([1.0, 2.0])
    output = (table(tokens) * weights).sum(-1).sum(-1)
    r = relevance.explain(output, output.detach(), wrt=[tokens, table.weight], rules=presets.epsilon(0.0))
    each = (table.weight.detach() * weights).sum(-1)
    torch.testing.assert_close(r[tokens], each[tokens])
    assert r[tokens].shape == tokens.shape
    expected = torch.zeros(4, 2, dtype=torch.float64)
    expected[1], expected[3] = 2 * table.weight.detach()[1] * weights, table.weight.detach()[3] * weights
    torch.testing.assert_close(r[table.weight], expected)


def test_weights_get_relevance_when_asked() -> None:
    """y = w₁x₁ + w₂x₂ + b: each message w·x is the weight's as much as the input's."""
    model = net(*TWO)
    x = X[None]
    r = relevance.attribute(model, x, rules=Rules(linear=Zero()), wrt=[model[0].weight, model[0].bias, model[2].weight])
    # R₁ = (4, -2); unit 1 has messages (2, 2) of 4, unit 2 (-1, 2) and bias 1 of 2.
    torch.testing.assert_close(r[model[0].weight], tensor([2.0, 2.0], [1.0, -2.0]))
    torch.testing.assert_close(r[model[0].bias], tensor(0.0, -1.0))
    torch.testing.assert_close(r[model[2].weight], tensor([4.0, -2.0]))
    torch.testing.assert_close(r[x], tensor([3.0, 0.0]))


def test_bias_policies_by_hand() -> None:
    """y = 2x + 1 at x = 1: absorbed, x gets 3·2/3 = 2 and the bias 1; redistributed, x gets all 3."""
    x = tensor([1.0])
    absorbed = relevance.attribute(net(([[2.0]], [1.0])), x, rules=presets.epsilon(0.0))
    torch.testing.assert_close(absorbed[x], tensor([2.0]))
    assert absorbed.report.absorbed == pytest.approx(1.0)
    spread = relevance.attribute(net(([[2.0]], [1.0])), x, rules=presets.epsilon(0.0, bias="redistribute"))
    torch.testing.assert_close(spread[x], tensor([3.0]))
    assert spread.report.absorbed == pytest.approx(0.0)


def test_what_goes_to_a_joined_constant_is_absorbed() -> None:
    """(1 + 2) + (1 + 1): the two ones are a constant, which gets 2 of the 5 and is no input."""

    class Joined(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, torch.ones_like(x)], 1).sum(1, keepdim=True)

    x = tensor([1.0, 2.0])
    r = relevance.attribute(Joined(), x, rules=presets.epsilon(0.0))
    torch.testing.assert_close(r[x], x)
    assert r.report.absorbed == pytest.approx(2.0)
    assert {row.name: row.absorbed for row in r.report if not row.ends} == {
        "SumBackward1": 0.0,
        "CatBackward0": pytest.approx(2.0),
    }

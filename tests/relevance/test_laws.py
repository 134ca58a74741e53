"""Laws that every rule keeps: conservation, equal answers for equal graphs, and shares of constants that are seen."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lutetia import relevance
from lutetia.errors import ArgumentError
from lutetia.relevance import AlphaBeta, Epsilon, Flat, Gamma, Rules, WSquare, ZPlus, presets
from lutetia.relevance.rules import attention
from relevance.residual import data, net, tensor


class Block(nn.Module):
    """A transformer block with everything in it."""

    def __init__(self, sdpa: bool, bias: bool = True) -> None:
        super().__init__()
        self.sdpa = sdpa
        self.norm = nn.LayerNorm(6)
        self.qkv = nn.Linear(6, 18, bias=bias)
        self.out = nn.Linear(6, 6, bias=bias)
        self.up, self.down = nn.Linear(6, 11, bias=bias), nn.Linear(11, 6, bias=bias)
        self.mask = torch.ones(5, 5, dtype=torch.bool).tril()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        else:
            scores = (q @ k.transpose(-1, -2)) / math.sqrt(3)
            y = torch.softmax(scores.masked_fill(~self.mask, -math.inf), -1) @ v
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


def pair(**changes: Any) -> tuple[Block, Block]:
    one, other = Block(sdpa=False), Block(**{"sdpa": False, **changes})
    other.load_state_dict(one.state_dict())
    return one.double(), other.double()


RULES = {
    "epsilon": presets.epsilon(1e-3),
    "attnlrp": presets.attnlrp(1e-3),
    "gamma": presets.gamma(eps=1e-3),
    "zplus": presets.zplus(1e-3),
    "dynamic": presets.dynamic(1e-3),
}


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * float(b.abs().max()))


@pytest.mark.parametrize("name", RULES)
def test_sdpa_is_eager(name: str) -> None:
    eager, fused = pair(sdpa=True)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    one = relevance.attribute(eager, x, rules=RULES[name])
    other = relevance.attribute(fused, x, rules=RULES[name])
    assert any("Flash" in row.name for row in other.report)
    close(other[x], one[x])


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("shape", [(3, 3, 5, 5), (6, 3, 5, 5), (2, 1, 7, 4), (1, 1, 1, 3)], ids=str)
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_every_sdpa_mask_is_eager(
    mask: str, shape: tuple[int, int, int, int], in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where several heads share a key, and a block of two queries is taken at a time."""
    if in_blocks:
        monkeypatch.setattr(attention, "FEWEST", 2)
        monkeypatch.setitem(attention.LARGEST, "cpu", 1)
    heads, shared, queries, keys = shape
    q, k, v = (
        torch.randn(2, count, rows, 4, dtype=torch.float64, requires_grad=True)
        for count, rows in ((heads, queries), (shared, keys), (shared, keys))
    )
    bias = torch.randn(queries, keys, dtype=torch.float64)
    seen = (bias > -0.5).index_fill(1, torch.tensor(0), True)  # each query sees a key
    options: dict[str, Any] = {
        "none": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": seen},
        "float": {"attn_mask": bias},
    }[mask]
    R = torch.randn(2, heads, queries, 4, dtype=torch.float64)
    scores = q @ k.repeat_interleave(heads // shared, 1).mT / 2
    if mask == "causal":
        scores = scores.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(), -math.inf)
    elif mask == "bool":
        scores = scores.masked_fill(~seen, -math.inf)
    elif mask == "float":
        scores = scores + nn.Parameter(bias)  # a parameter has a node, so that its share is known
    values = v.repeat_interleave(heads // shared, 1)
    eager = relevance.explain(torch.softmax(scores, -1) @ values, R, rules=RULES["epsilon"])
    shares = {"enable_gqa": True} if heads != shared else {}
    fused = relevance.explain(F.scaled_dot_product_attention(q, k, v, **options, **shares), R, rules=RULES["epsilon"])
    assert "FlashAttention" in next(iter(fused.report)).name
    for leaf in (q, k, v):
        close(fused[leaf], eager[leaf])


@pytest.mark.parametrize("name", RULES)
def test_a_batch_is_its_rows(name: str) -> None:
    block, _ = pair()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    together = relevance.attribute(block, x, rules=RULES[name])
    for row in range(3):
        one = x[row : row + 1].clone()
        close(relevance.attribute(block, one, rules=RULES[name])[one][0], together[x][row])


@pytest.mark.parametrize("name", RULES)
def test_frozen_is_unfrozen(name: str) -> None:
    model, frozen = pair()
    frozen.requires_grad_(False)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    close(relevance.attribute(frozen, x, rules=RULES[name])[x], relevance.attribute(model, x, rules=RULES[name])[x])
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_frozen_is_unfrozen_from_the_graph_alone() -> None:
    """`explain` never saw the frozen biases; the outputs that others kept tell them."""
    model = net(([[2.0, 1.0], [-1.0, 1.0]], [0.5, 1.0]), ([[1.0, -1.0], [2.0, 0.5]], [0.3, -0.2]), ([[1.0, 3.0]], [1.0]))
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    expected = relevance.explain(model(x), rules=presets.epsilon())[x]
    model.requires_grad_(False)
    r = relevance.explain(model(x), rules=presets.epsilon())
    close(r[x], expected)
    assert r.report.unseen == []


class Biased(nn.Module):
    """Attention with a constant bias on its scores, as ALiBi has it: fused, written out, or with the bias as a parameter."""

    def __init__(self, how: str, bias: Tensor) -> None:
        super().__init__()
        self.how = how
        self.bias = nn.Parameter(bias) if how == "parameter" else nn.Buffer(bias)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.how == "fused":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
        return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + self.bias, -1) @ v


def test_the_share_of_a_constant_is_seen() -> None:
    inputs = tuple(data(2, 2, 5, 4) for _ in range(3))
    bias, target = data(5, 5), data(2, 2, 5, 4)
    bias[0, 1:3] = 0
    found = {
        how: relevance.attribute(Biased(how, bias), inputs, target, RULES["epsilon"]) for how in ("plain", "fused", "parameter")
    }
    for x in inputs:
        close(found["fused"][x], found["plain"][x])
    assert found["plain"].report.unseen == []
    with sdpa_kernel(SDPBackend.MATH):  # scales q and k before their product, so that the ε is another one
        parts = relevance.attribute(Biased("fused", bias), inputs, target, RULES["epsilon"])
    torch.testing.assert_close(parts[inputs[0]], found["plain"][inputs[0]], rtol=0.05, atol=0.05)
    assert parts.report.unseen == []
    # Nothing is divided by anything where the constant is 0, so that the parameter's share differs by the ε alone.
    torch.testing.assert_close(found["parameter"][inputs[0]], found["plain"][inputs[0]], rtol=0.05, atol=0.05)


class Shifted(nn.Module):
    """2 - x + 3: the numbers have shares, too."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(2.0 - x, 3.0, alpha=2.0).clone()


def test_the_share_of_a_number_is_seen() -> None:
    """y = 8 - x at x = 2: of 2 - x + 6 = 6, 2 - x = 0 takes nothing. At x = 1 it is 1 of 7, of which -x takes -1."""
    x = tensor(1.0)
    r = relevance.attribute(Shifted(), x, rules=presets.epsilon(0.0))
    torch.testing.assert_close(r[x], tensor(-1.0))
    assert r.report.absorbed == pytest.approx(8.0)
    spread = relevance.attribute(Shifted(), x, rules=presets.epsilon(0.0, bias="redistribute"))
    torch.testing.assert_close(spread[x], tensor(7.0))


class Positions(nn.Module):
    """Attention whose mask is made of learned positions and, inside torch's function, of constant padding."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.places = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 5)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        mask = self.places(x).repeat_interleave(2, 0)
        return self.attention(x, x, x, key_padding_mask=padding, attn_mask=mask)[0]


def test_a_constant_inside_torchs_attention_is_seen() -> None:
    padding = torch.tensor([[False, False, False, True, True], [False] * 5])
    x = data(2, 5, 8)
    r = relevance.attribute(Positions().double(), (x, padding), data(2, 5, 8))
    assert r.report.unseen == []
    assert bool(r[x].isfinite().all())
    assert torch.nn.functional.has_torch_function is torch.overrides.has_torch_function  # as it was


def test_an_unseen_constant_is_reported() -> None:
    x = data(3).requires_grad_()
    r = relevance.explain((x + 1.0).tanh(), data(3))
    assert len(r.report.unseen) == 1
    assert "AddBackward0" in r.report.unseen[0]
    kept = relevance.explain((x + 1.0).sin(), torch.ones(3, dtype=torch.float64), rules=presets.epsilon(0.0))
    assert kept.report.unseen == []  # the sine kept its input, which tells what the constant was
    torch.testing.assert_close(kept[x], x.detach() / (x.detach() + 1))


def test_sums_with_factors_are_no_constants() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.add(x, x.sin(), alpha=2.0)

    x = data(3)
    r = relevance.attribute(Model(), x, data(3).fill_(1), presets.epsilon(0.0))
    torch.testing.assert_close(r[x], torch.ones(3, dtype=torch.float64))


def test_views_and_clones_change_nothing() -> None:
    block, _ = pair()
    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    plain = relevance.explain(block(x), torch.ones(2, 5, 6, dtype=torch.float64))[x]
    y = block(x.clone().transpose(0, 1).contiguous().transpose(0, 1).reshape(10, 6).view(2, 5, 6)).unsqueeze(0).flip(1).flip(1)[0]
    close(relevance.explain(y, torch.ones(2, 5, 6, dtype=torch.float64))[x], plain)


@pytest.mark.parametrize("choice", [Epsilon(1e-3), Gamma(0.3), AlphaBeta(), ZPlus(), WSquare(), Flat(), relevance.Absolute()])
def test_a_convolution_is_an_unfolded_product(choice: Any) -> None:
    weight, bias = torch.randn(4, 3, 2, 2, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    w, b = nn.Parameter(weight), nn.Parameter(bias)
    R = torch.randn(2, 4, 3, 4, dtype=torch.float64)
    conv = relevance.explain(F.conv2d(x, w, b), R, rules=Rules(linear=choice))[x]
    columns = F.unfold(x, 2).transpose(1, 2).contiguous()
    product = F.linear(columns, nn.Parameter(weight.flatten(1)), b).transpose(1, 2).unflatten(2, (3, 4))
    close(relevance.explain(product, R, rules=Rules(linear=choice))[x], conv)


def test_a_folded_batch_norm_is_an_unfolded_one() -> None:
    conv, norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
    norm.running_mean, norm.running_var = torch.randn(4), torch.rand(4) + 0.5
    norm.weight.data, norm.bias.data = torch.randn(4), torch.randn(4)
    model = nn.Sequential(conv, norm).double().eval()
    folded = torch.nn.utils.fusion.fuse_conv_bn_eval(conv, norm)
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    target = torch.randn(2, 4, 3, 4, dtype=torch.float64)
    rules = presets.epsilon(1e-12)
    close(relevance.attribute(model, x, target, rules)[x], relevance.attribute(folded, x, target, rules)[x])


@pytest.mark.parametrize("name", RULES)
def test_relevance_is_conserved(name: str) -> None:
    """Without biases and masks nothing is absorbed but what normalisations keep, node by node: in + absorbed = out."""
    model = nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False)
    )
    x = torch.randn(4, 6, dtype=torch.float64)
    eps = {"epsilon": presets.epsilon, "attnlrp": presets.attnlrp, "zplus": presets.zplus, "dynamic": presets.dynamic}
    rules = eps[name](1e-12) if name in eps else presets.gamma(eps=1e-12)
    r = relevance.attribute(model.double(), x, rules=rules)
    torch.testing.assert_close(r[x].sum(1), r.seed.sum(1), rtol=1e-8, atol=1e-8)
    assert r.report.absorbed == pytest.approx(0.0, abs=1e-8)


class Residual(nn.Module):
    """Convolutions, pools, a skipping sum, a norm, a product of two activations and a mean, with or without biases."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, bias=bias)
        self.inner = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, bias=bias), nn.ReLU(), nn.Conv2d(6, 6, 1, bias=bias))
        self.norm = nn.RMSNorm(6)
        self.gate, self.up = nn.Linear(6, 9, bias=bias), nn.Linear(6, 9, bias=bias)
        self.head = nn.Linear(9, 4, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.max_pool2d(x + self.inner(x), 2)
        x = self.norm(x.flatten(2).mT)
        return self.head((torch.tanh(self.gate(x)) * self.up(x)).mean(1))


@pytest.mark.parametrize("bias", [False, True])
def test_lrp_0_gives_the_inputs_the_whole_output(bias: bool) -> None:
    """Without biases, or with biases that give their share to the rest: the sum is the output to 1e-6, nothing is unseen."""
    torch.manual_seed(5)
    model = Residual(bias).double()
    x = torch.randn(3, 3, 9, 11, dtype=torch.float64)
    r = relevance.attribute(model, x, rules=presets.epsilon(0.0, bias="redistribute" if bias else "absorb"))
    torch.testing.assert_close(r[x].flatten(1).sum(1), r.seed.sum(1), rtol=1e-6, atol=0)
    assert r.report.unseen == []
    assert all(abs(share) < 1e-6 for share in r.report.absorbed_by_module.values())


def test_lrp_0_gives_the_whole_output_in_float32() -> None:
    """Sums to divide by are taken in float64: in float32 they cancel, and rows lose up to 8·10⁻⁶ of their output."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128, bias=False), nn.ReLU())]
    model, x = nn.Sequential(*layers, nn.Linear(128, 10, bias=False)), torch.randn(256, 128)
    r = relevance.attribute(model, x, rules=presets.epsilon(0.0))
    assert r[x].dtype == torch.float32
    torch.testing.assert_close(r[x].double().sum(1), r.seed.double().sum(1), rtol=1e-6, atol=0)


def test_a_mean_in_float32_is_divided_by_exactly() -> None:
    """The sum of 500 shares differs from the output by what rounding 500 numbers costs, not by what rounding their mean costs."""
    x = torch.randn(200, 500, generator=torch.Generator().manual_seed(0)).requires_grad_()
    r = relevance.explain(x.mean(1, keepdim=True), torch.ones(200, 1), rules=presets.epsilon(0.0))
    lost = (r[x].double().sum(1) - 1).abs() / r[x].double().abs().sum(1)
    assert float(lost.max()) < 1e-8


def test_where_only_a_bias_contributes_its_share_is_divided_equally() -> None:
    """y = w·0 + b, a sum and a mean of zeros: nothing contributes in proportion, and nothing may be lost or divided by 0."""
    x = torch.zeros(1, 4, dtype=torch.float64)
    rules = presets.epsilon(0.0, bias="redistribute")
    given = relevance.attribute(net(([[1.0, 2.0, -3.0, 0.5]], [8.0])), x, rules=rules)[x]
    torch.testing.assert_close(given, torch.full_like(x, 2.0))

    class Zeros(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x + 2 * x).mean(1, keepdim=True)

    given = relevance.attribute(Zeros(), x, torch.full((1, 1), 8.0, dtype=torch.float64), rules)[x]
    torch.testing.assert_close(given, torch.full_like(x, 2.0))
    conv = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1), nn.ReLU(), nn.Conv1d(1, 1, 3, padding=1)).double()
    signal = torch.tensor([[[0.0, 0.0, 0.0, 1.0, 2.0]]], dtype=torch.float64)
    r = relevance.attribute(conv, signal, torch.ones(1, 1, 5, dtype=torch.float64), rules)
    assert float(r[signal].sum()) == pytest.approx(5.0)


def test_absorbed_shares_by_module() -> None:
    """Each bias takes what its layer does not pass on; all together make what is missing at the input."""
    torch.manual_seed(5)
    model = Residual(bias=True).double()
    x = torch.randn(3, 3, 9, 11, dtype=torch.float64)
    r = relevance.attribute(model, x, rules=presets.epsilon(0.0), wrt=["stem", "head"])
    shares = r.report.absorbed_by_module
    assert shares["stem"] == pytest.approx(float(r["stem"].sum() - r[x].sum()))
    assert {name for name, share in shares.items() if abs(share) > 1e-9} == {
        "stem", "inner.0", "inner.2", "gate", "up", "head"
    }  # fmt: skip
    assert sum(shares.values()) == pytest.approx(float(r.seed.sum() - r[x].sum()))
    assert list(map(abs, shares.values())) == sorted(map(abs, shares.values()), reverse=True)


def test_a_model_made_in_inference_mode_is_refused_as_it_was() -> None:
    frozen = torch.nn.Linear(3, 3).requires_grad_(False)
    with torch.inference_mode():
        made = torch.nn.Linear(3, 2)
    model = torch.nn.Sequential(frozen, made)
    with pytest.raises(ArgumentError, match=r"1\.weight was made in inference mode, expected"):
        relevance.attribute(model, torch.randn(2, 3))
    assert not any(parameter.requires_grad for parameter in frozen.parameters())

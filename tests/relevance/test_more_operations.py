"""Operations that are not linear, against the same written out in parts, and custom functions taken for linear maps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia import relevance
from lutetia.relevance import UnknownOperation, presets
from relevance.residual import data

RULES = presets.epsilon(1e-12)
LABELS = torch.tensor([0, 5, 2, 2])
LOWER = torch.eye(4, dtype=torch.float64) * 2


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """[..., 6] as three pairs, each turned by an angle."""
    a, b = x.unflatten(-1, (3, 2)).unbind(-1)
    return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).flatten(-2)


def turned_by_complex_numbers(x: Tensor, angle: Tensor) -> Tensor:
    z = torch.view_as_complex(x.unflatten(-1, (3, 2)).contiguous())
    return torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def fourier(x: Tensor) -> Tensor:
    """The real part of the discrete Fourier transform over both dimensions, by matrices of cosines and sines."""
    (c, s), (d, t) = (
        (torch.cos(phase), torch.sin(phase))
        for phase in (2 * torch.pi * torch.outer(torch.arange(n), torch.arange(n)).double() / n for n in x.shape)
    )
    return c @ (x @ d) - s @ (x @ t)


def mixed_in_place(x: Tensor) -> Tensor:
    y = x * 1.0
    y[:, 1:3] *= x[:, 3:5]
    y[:, 4:] /= x[:, :2]
    return y


def mixed(x: Tensor) -> Tensor:
    return torch.cat([x[:, :1], x[:, 1:3] * x[:, 3:5], x[:, 3:4], x[:, 4:] / x[:, :2]], 1)


LOG_3 = math.log(3.0)
WEIGHT = torch.randn(3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
ANGLE = torch.linspace(0.1, 2, 3, dtype=torch.float64)
PARTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "logsumexp": (lambda x: x.logsumexp(1), lambda x: x.exp().sum(1).log()),
    "logsumexp, kept dimension": (lambda x: x.logsumexp((0, 1), True), lambda x: x.exp().sum((0, 1), True).log()),
    "norm": (lambda x: x.norm(dim=1), lambda x: x.pow(2).sum(1).sqrt()),
    "norm of order 3": (lambda x: torch.linalg.vector_norm(x, 3), lambda x: x.abs().pow(3).sum().pow(1 / 3)),
    "mse_loss": (lambda x: F.mse_loss(x, 2 * x.flip(0)), lambda x: (x - 2 * x.flip(0)).pow(2).mean()),
    "mse_loss, elements": (lambda x: F.mse_loss(x, x[:1].expand(4, 6) * 2, reduction="none"), lambda x: (x - 2 * x[:1]).pow(2)),
    "cross entropy": (lambda x: F.cross_entropy(x, LABELS), lambda x: -x.log_softmax(1)[torch.arange(4), LABELS].mean()),
    "norm of order 3, as pairwise_distance takes it": (
        lambda x: F.pairwise_distance(x, 2 * x.flip(0), 3, eps=0),
        lambda x: (x - 2 * x.flip(0)).abs().pow(3).sum(1).pow(1 / 3),
    ),
    "dist": (lambda x: torch.dist(x, 2 * x.flip(0)), lambda x: (x - 2 * x.flip(0)).norm()),
    "cdist": (lambda x: torch.cdist(x, 2 * x[1:]), lambda x: (x[:, None] - 2 * x[None, 1:]).norm(dim=2)),
    "cumprod": (lambda x: x.cumprod(1), lambda x: torch.stack([x[:, : k + 1].prod(1) for k in range(6)], 1)),
    "bilinear": (
        lambda x: F.bilinear(x, 2 * x.flip(0), WEIGHT),
        lambda x: torch.einsum("bi,oij,bj->bo", x, WEIGHT, 2 * x.flip(0)),
    ),
    "addr": (lambda x: torch.addr(x, x[:, 0], x[0]), lambda x: x + x[:, :1] * x[0]),
    "addcdiv": (lambda x: torch.addcdiv(x, x.roll(1), x.exp()), lambda x: x + x.roll(1) / x.exp()),
    "cross": (
        lambda x: torch.linalg.cross(x[:, :3], x[:, 3:]),
        lambda x: x[:, [1, 2, 0]] * x[:, [5, 3, 4]] - x[:, [2, 0, 1]] * x[:, [4, 5, 3]],
    ),
    "logaddexp": (lambda x: torch.logaddexp(x, 2 * x[:1]), lambda x: (x.exp() + (2 * x[:1]).exp()).log()),
    "hypot": (lambda x: torch.hypot(x, x.flip(0)), lambda x: (x.pow(2) + x.flip(0).pow(2)).sqrt()),
    "xlogy": (lambda x: torch.xlogy(x, x.flip(0).exp()), lambda x: x * x.flip(0).exp().log()),
    "xlogy of numbers": (lambda x: torch.xlogy(2, x.exp()) + torch.xlogy(x, 3.0), lambda x: 2 * x.exp().log() + x * LOG_3),
    "var_mean": (lambda x: sum(torch.var_mean(x, 1)), lambda x: x.var(1) + x.mean(1)),
    "std_mean": (lambda x: torch.std_mean(x, (0, 1), correction=0)[0] + x, lambda x: x.std((0, 1), correction=0) + x),
    "atan2": (lambda x: torch.atan2(x, x.flip(0).exp()), lambda x: (x / x.flip(0).exp()).atan()),
    "power": (lambda x: x.exp().pow(x), lambda x: (x.exp().log() * x.detach()).exp()),
    "logit": (lambda x: torch.logit(x.sigmoid()), lambda x: x.tanh().atanh()),
    "entr": (lambda x: torch.special.entr(x.exp()) + x, lambda x: (-x.exp()).mul(x.detach()) + x),
    "turned": (lambda x: turned_by_complex_numbers(x, ANGLE), lambda x: turned(x, ANGLE)),
    "fft": (lambda x: torch.fft.fft2(x).real, fourier),
    "arithmetic in place": (mixed_in_place, mixed),
    "modulus": (lambda x: torch.view_as_complex(x.view(4, 3, 2)).abs(), lambda x: x.view(4, 3, 2).pow(2).sum(-1).sqrt()),
    "solved by itself": (
        lambda x: torch.linalg.solve_triangular(x[:, :4].tril() + LOWER, x[:, 4:], upper=False),
        lambda x: torch.linalg.inv(x[:, :4].detach().tril() + LOWER) @ x[:, 4:],
    ),
    "sampled where it says": (
        lambda x: F.grid_sample(x.view(1, 2, 3, 4), x.tanh().view(1, 3, 4, 2), align_corners=False),
        lambda x: F.grid_sample(x.view(1, 2, 3, 4), x.detach().tanh().view(1, 3, 4, 2), align_corners=False),
    ),
}  # fmt: skip


SCALES = torch.tensor([0.0, -900.0, 700.0, -3.0], dtype=torch.float64)[:, None]


def test_each_sum_is_weighed_by_itself() -> None:
    """Rows of very different sizes: the weights of the smaller ones must not vanish beside the largest."""
    base = data(4, 6)
    x = (base + SCALES).requires_grad_()
    r = relevance.explain(x.logsumexp(1), torch.ones(4, dtype=torch.float64), rules=RULES)
    torch.testing.assert_close(r[x], torch.softmax(x.detach(), 1))
    x = (base * 10 ** (SCALES / 4)).requires_grad_()
    r = relevance.explain(x.norm(dim=1), torch.ones(4, dtype=torch.float64), rules=RULES)
    torch.testing.assert_close(r[x], F.normalize(base, dim=1).square())


@pytest.mark.parametrize("name", PARTS)
def test_whole_and_parts_agree(name: str) -> None:
    whole, parts = PARTS[name]
    start = data(4, 6)
    found = []
    for f in (whole, parts):
        x = start.clone().requires_grad_()
        y = f(x)
        z = torch.stack([y, 2 * y.roll(1, -1) if y.dim() else y]).sum(0)  # its value is asked for
        seed = torch.randn(z.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(2))
        found.append((y.detach(), relevance.explain(z, seed, rules=RULES)[x]))
    torch.testing.assert_close(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-6, atol=1e-8)


CONSERVING: dict[str, Callable[[Tensor], Tensor]] = {
    "deviation": lambda x: x.std(1),
    "variance": lambda x: x.var((0, 1), keepdim=True, correction=0),
    "norm of nothing": lambda x: (x * 0).norm(dim=0),
    "scatter_reduce, prod": lambda x: x.scatter_reduce(0, torch.tensor([[0, 0, 1, 1, 2, 2]]), x[1:2] * 2, "prod"),
    "inverse by solving": lambda x: torch.linalg.solve_triangular(
        x[:, :4].tril() + LOWER, torch.eye(4).double(), upper=False
    ).masked_select(torch.ones(4, 4).tril().bool()),
    "polar": lambda x: torch.view_as_real(torch.polar(x, x.flip(0))),
    "sampled from a constant": lambda x: F.grid_sample(torch.ones(1, 2, 3, 3).double(), x.view(1, 3, 4, 2), align_corners=True),
    "binary cross entropy": lambda x: F.binary_cross_entropy_with_logits(x, torch.full((4, 6), 0.3).double()),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, 2 * x.roll(1)),
    "complex product": lambda x: torch.view_as_real(torch.complex(x, x.flip(0)) * torch.complex(x.roll(1), 2 * x)),
}


@pytest.mark.parametrize("name", CONSERVING)
def test_nothing_is_lost(name: str) -> None:
    x = data(4, 6).requires_grad_()
    y = CONSERVING[name](x)
    seed = torch.randn_like(y.detach())
    r = relevance.explain(y, seed, rules=presets.epsilon(1e-14, bias="redistribute"))
    assert float(r[x].sum()) == pytest.approx(float(seed.sum()), abs=1e-6)
    assert bool(r[x].isfinite().all())


def test_constants_written_in_place_are_seen() -> None:
    """Their values are part of sums above: `watch` notes the writes."""

    class Model(nn.Module):
        def __init__(self, in_place: bool) -> None:
            super().__init__()
            self.in_place, self.line = in_place, nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            if not self.in_place:
                rest = torch.cat([x[:, :2], x[:, 2:4] + 2.5, torch.zeros(4, 1).double() - 1, x[:, 5:]], 1)
                return self.line(x) + rest * 1.5
            y = torch.full((4, 6), 7.0, dtype=x.dtype)
            y[:] = x
            y[:, 2:4] += 2.5
            y[:, 4] = -1.0
            y[:, 1:].mul_(3).neg_().div_(-2)
            y[:, 0] *= 1.5
            return self.line(x) + y

    written, joined = Model(True).double(), Model(False).double()
    joined.load_state_dict(written.state_dict())
    x = data(4, 6)
    a, b = (relevance.attribute(model, x, 3, RULES) for model in (written, joined))
    torch.testing.assert_close(a.output, b.output)
    torch.testing.assert_close(a.seed, b.seed)
    # The share of the constant 2.5 in a slice is not told apart: there the base takes it.
    torch.testing.assert_close(a[x][:, [0, 1, 4, 5]], b[x][:, [0, 1, 4, 5]])


class Halved(torch.autograd.Function):
    """x/2 @ w + 1, with no rule of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, note: str) -> Tensor:
        ctx.save_for_backward(x, w)
        return x / 2 @ w + 1

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        x, w = ctx.saved_tensors
        return grads[0] @ w.mT / 2, x.mT @ grads[0] / 2, None


class SetUpApart(torch.autograd.Function):
    """The same, with `setup_context`."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, note: str) -> Tensor:
        return x / 2 @ w + 1

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    backward = Halved.backward


class Custom(nn.Module):
    def __init__(self, custom: bool, apply: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.weight, self.custom = nn.Parameter(torch.linspace(-1, 1, 18).double().view(6, 3)), custom
        self.apply_custom = apply

    def forward(self, x: Tensor) -> Tensor:
        apply = self.apply_custom or Halved.apply
        y = apply(x, self.weight, "a note") if self.custom else x / 2 @ self.weight + 1.0
        return y.relu() + 0.1 * y


def test_custom_functions_as_linear_maps() -> None:
    x = data(4, 6)
    with pytest.raises(UnknownOperation, match="HalvedBackward"):
        relevance.attribute(Custom(True), x)
    assert not relevance.attribute(Custom(True), x, strict=False)[x].any()
    a = relevance.attribute(Custom(True), x, 1, RULES, unknown="linear")
    b = relevance.attribute(Custom(False), x, 1, RULES)
    torch.testing.assert_close(a[x], b[x])
    assert len(a.report.unknown) == 1
    assert "HalvedBackward" in a.report.unknown[0]
    assert torch.autograd.Function.apply.__qualname__ == "Function.apply"
    with pytest.raises(ValueError, match="unknown"):
        relevance.attribute(Custom(True), x, unknown="guess")


@pytest.mark.parametrize("apply", [Halved.apply, SetUpApart.apply], ids=["bound", "bound, set up apart"])
def test_custom_functions_that_were_bound_before(apply: Callable[..., Tensor]) -> None:
    x = data(4, 6)
    a = relevance.attribute(Custom(True, apply), x, 1, RULES, unknown="linear")
    torch.testing.assert_close(a[x], relevance.attribute(Custom(False), x, 1, RULES)[x])
    assert "__getattribute__" not in vars(type(torch.autograd.Function))  # put back


def test_a_product_without_a_rule_gives_halves() -> None:
    x, y = data(4, 6).requires_grad_(), data(4, 6).requires_grad_()
    r = relevance.explain(torch.hypot(x, y), torch.ones(4, 6).double(), rules=RULES, unknown="linear")
    torch.testing.assert_close(r[x], (x**2 / (x**2 + y**2)).detach())


SEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "threshold": lambda x: F.threshold(x, 0.1, 0.7),
    "threshold in place": lambda x: F.threshold(1 * x, 0.1, 0.7, inplace=True),
    "fake quantisation": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.3, 0, -3, 3),
    "modulus": lambda x: x % 0.7 + 1,
    "fraction": lambda x: (3 * x).frac() + 1,
    "fmod": lambda x: torch.fmod(x, 0.7) + 2,
}


@pytest.mark.parametrize("name", SEEN)
def test_values_that_autograd_does_not_keep_are_seen(name: str) -> None:
    """Relevance passes the function, and the sum above shares by what it gave."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = SEEN[name](x)
            return y + 2 * y.exp().flip(0)

    x = torch.rand(3, 4) + 0.01
    y, seed = SEEN[name](x), torch.randn(3, 4)
    s = seed / (y + 2 * y.exp().flip(0))
    wanted = s * y + (s * 2 * y.exp().flip(0)).flip(0)
    if name in ("modulus", "fraction", "fmod"):  # whose constant has a share, too
        number = 2 if name == "fmod" else 1
        wanted = wanted * (y - number) / y
    r = relevance.attribute(Model(), x, seed, presets.epsilon(1e-9))
    torch.testing.assert_close(r[x], wanted, rtol=1e-4, atol=1e-4)


def test_a_value_that_was_overwritten_is_missed() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.fmod(x, 0.7)
            z = y + 2 * x
            y.zero_()
            return z

    with pytest.raises(UnknownOperation, match="FmodBackward0"):
        relevance.attribute(Model(), torch.rand(2, 3))

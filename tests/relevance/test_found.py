"""Mistakes that a survey of architectures brought to light, each in as few lines as show it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lutetia import relevance
from lutetia.errors import ArgumentError
from lutetia.relevance import Absolute, Rules, presets
from relevance.residual import data

RULES = presets.epsilon(1e-12)


class Model(nn.Module):
    """A function of a module and its input, with two parameters."""

    def __init__(self, call: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.call, self.w, self.v = call, nn.Parameter(torch.randn(12, 6).double()), nn.Parameter(torch.randn(4, 3).double())

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def agree(one: Callable[[Model, Tensor], Tensor], other: Callable[[Model, Tensor], Tensor], x: Tensor) -> None:
    a, b = (relevance.attribute(Model(call), x, 1, RULES) for call in (one, other))
    torch.testing.assert_close(a.output, b.output)
    torch.testing.assert_close(a[x], b[x])
    assert not a.report.unseen
    assert a[x].isfinite().all()


def test_pieces_of_a_split_weight() -> None:
    """Of a weight that is split, each layer takes its own piece; the first has another shape."""
    agree(
        lambda m, x: x @ m.w.split([2, 6, 4])[1].t() + x,
        lambda m, x: x @ m.w[2:8].t() + x,
        data(5, 6),
    )
    agree(lambda m, x: (x + m.w.unbind(0)[3]) * 2, lambda m, x: (x + m.w[3]) * 2, data(5, 6))


def test_masked_scores_that_are_shifted() -> None:
    """-∞ minus a maximum: what is masked has no relevance."""
    mask = torch.tensor([0, -torch.inf, 0, 0, -torch.inf, 0]).double()

    def shifted(m: Model, x: Tensor) -> Tensor:
        scores = torch.cat([x + mask, x[:, :1]], 1)
        return (scores - scores.amax(1, keepdim=True)).softmax(1) @ m.w[:7]

    agree(shifted, lambda m, x: shifted(m, x) * 1, data(5, 6))


@pytest.mark.parametrize("kind", ["float", "bool", "causal"])
def test_masks_of_attention(kind: str) -> None:
    """The mask of attention is not a constant of a sum in its queries; where attention runs in parts, it is seen."""
    seen = torch.ones(4, 4).bool().tril()
    mask = {"float": torch.randn(4, 4).double(), "bool": seen, "causal": None}[kind]
    added = torch.zeros(4, 4).double().masked_fill(~seen, -torch.inf) if mask is None or mask.dtype == torch.bool else mask

    def heads(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = x.view(1, 1, 4, 3)
        return q + 2 * q.flip(2), q * 1.5, q.flip(-1)

    def fused(m: Model, x: Tensor) -> Tensor:
        q, k, v = heads(x)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=kind == "causal")[0, 0]

    def eager(m: Model, x: Tensor) -> Tensor:
        q, k, v = heads(x)
        return ((q @ k.mT / 3**0.5 + added).softmax(-1) @ v)[0, 0]

    agree(fused, eager, data(4, 3))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        agree(fused, eager, data(4, 3))


def test_a_convolution_without_a_bias_has_no_unknown_share() -> None:
    def call(m: Model, x: Tensor) -> Tensor:
        return F.conv1d(x[None], m.v[:, None], None, padding=1, groups=4)[0]

    agree(call, lambda m, x: call(m, x) * 1, data(4, 6))


def test_constants_among_joined_tensors_are_seen() -> None:
    zeros = torch.full((5, 2), 0.5).double()
    agree(
        lambda m, x: torch.cat([zeros, x, zeros], 1) + torch.cat([x, x], 1)[:, :10],
        lambda m, x: F.pad(x, (2, 2), value=0.0) + F.pad(torch.zeros_like(x), (2, 2), value=0.5) + torch.cat([x, x], 1)[:, :10],
        data(5, 6),
    )


def test_a_model_that_changes_its_input_in_place() -> None:
    x = data(5, 6)
    before = x.clone()
    agree(lambda m, x: x.mul_(2) @ m.w.t(), lambda m, x: (2 * x) @ m.w.t(), x)
    assert torch.equal(x, before)


def test_a_clamp_between_tensors() -> None:
    """A bound without a node is part of the function, as a number is; one with a node gets what it decides."""
    x, low = data(5, 6), torch.linspace(-1, 0.2, 6).double()
    agree(
        lambda m, x: x.clamp(low.mean().item(), 0.3) @ m.w.t(),
        lambda m, x: x.clamp(low.mean(), torch.tensor(0.3)) @ m.w.t(),
        x,
    )
    leaf, bound = x.clone().requires_grad_(), low.clone().requires_grad_()
    R = data(5, 6)
    r = relevance.explain((2 * leaf).clamp(1 * bound, None), R, [leaf, bound], RULES)
    reached = 2 * x < low
    torch.testing.assert_close(r[leaf], torch.where(reached, 0.0, R))
    torch.testing.assert_close(r[bound], torch.where(reached, R, 0.0).sum(0))


@pytest.mark.parametrize("how", ["+=", "index_add_", "index_put_", "scatter_add"])
def test_constants_that_are_written_into(how: str) -> None:
    """What stood in a tensor without a node has its share, although autograd keeps neither the tensor nor its place."""
    places = torch.tensor([2, 0, 3, 2, 1])

    def in_place(m: Model, x: Tensor) -> Tensor:
        base = torch.linspace(1, 2, 24).double().view(4, 6)
        if how == "+=":
            base += x[:4]
        elif how == "index_add_":
            base.index_add_(0, places, x)
        elif how == "index_put_":
            base[places[1:]] = x[1:]
        else:
            base = base.scatter_add(0, places[:, None].expand(5, 6), x)
        return (base.sum(0) + base[1]) @ m.w.t()

    def by_parts(m: Model, x: Tensor) -> Tensor:
        base = torch.linspace(1, 2, 24).double().view(4, 6)
        if how == "+=":
            base = base + x[:4]
        elif how == "index_put_":
            base = x[torch.tensor([1, 4, 3, 2])]  # every row is overwritten
        else:
            base = base + F.one_hot(places, 4).double().t() @ x
        return (base.sum(0) + base[1]) @ m.w.t()

    agree(in_place, by_parts, data(5, 6))


def test_a_loss_with_smoothed_labels() -> None:
    """It fills the rows that it ignores with zeros, inside one function."""
    labels = torch.tensor([0, 5, 2, -100, 1])

    def by_parts(m: Model, x: Tensor) -> Tensor:
        logs, kept = (x @ m.w[:6].t()).log_softmax(1), labels >= 0
        chosen = -logs[kept][torch.arange(4), labels[kept]].sum() / 4
        return 0.8 * chosen + (0.2 / 6) * (-logs.sum(1)).masked_fill(~kept, 0.0).sum() / 4

    def loss(m: Model, x: Tensor) -> Tensor:
        return F.cross_entropy(x @ m.w[:6].t(), labels, label_smoothing=0.2)

    x = data(5, 6)
    a, b = (relevance.attribute(Model(call), x, rules=RULES, target=lambda y: y[None]) for call in (loss, by_parts))
    torch.testing.assert_close(a[x], b[x])
    assert not a.report.unseen


def test_values_that_were_overwritten() -> None:
    """As by RWKV's cache: autograd refuses its backward pass, and the error says what to do."""

    def overwriting(m: Model, x: Tensor) -> Tensor:
        y = x * 2
        z = y * y.flip(0)
        y[0] = 0
        return z

    with pytest.raises(ArgumentError, match=r"overwrote a value that autograd had saved.*use_cache=False"):
        relevance.attribute(Model(overwriting), data(5, 6))


class _MaskedSoftmax(torch.autograd.Function):
    """As SEW-D writes it, under the same name."""

    @staticmethod
    def forward(ctx, x, mask, dim):  # type: ignore[no-untyped-def]
        ctx.dim = dim
        y = x.masked_fill(~mask, torch.finfo(x.dtype).min).softmax(dim).masked_fill(~mask, 0)
        ctx.save_for_backward(y)
        return y


XSoftmax = type("XSoftmax", (_MaskedSoftmax,), {})


def test_a_masked_softmax_of_its_own() -> None:
    mask = data(5, 6) > -0.5
    agree(
        lambda m, x: XSoftmax.apply(x * 2, mask, -1) @ m.w.t(),
        lambda m, x: (x * 2).masked_fill(~mask, -torch.inf).softmax(-1) @ m.w.t(),
        data(5, 6),
    )


def test_many_slices_of_one_tensor_add_up_in_place() -> None:
    """A scan over n steps holds a few tensors of the input's size, not n."""
    steps, x = 400, torch.randn(1, 400, 500)

    def scan(m: Model, x: Tensor) -> Tensor:
        h = x[:, 0]
        for t in range(1, steps):
            h = 0.5 * h + x[:, t]
        return h

    tracked = _Largest()
    with tracked:
        r = relevance.attribute(Model(scan), x, rules=presets.epsilon(1e-9))
    weights = 0.5 ** torch.arange(steps - 1, -1, -1.0)[:, None]
    place = int(r.output.argmax())
    torch.testing.assert_close(r[x][0, :, place], (weights * x[0])[:, place])
    assert tracked.whole < 40, f"{tracked.whole} tensors of the size of the input were made"


class _Largest(TorchDispatchMode):
    """Counts results as large as the input of the scan."""

    whole = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.shape == (1, 400, 500) and func.__name__.split(".")[0] not in ("detach", "view"):
            _Largest.whole += not func.__name__.split(".")[0].endswith("_")
        return out


def test_adding_the_number_0_takes_nothing() -> None:
    x, seed = torch.tensor([[1e-7, 2.0]], dtype=torch.float64), torch.tensor([[5.0, 7.0]], dtype=torch.float64)
    r = relevance.attribute(Model(lambda m, x: (x + 0) * 3.0), x, target=seed)
    assert r[x].tolist() == seed.tolist()


def test_a_constant_that_nobody_saw_takes_its_share_of_a_known_sum() -> None:
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    z = x + torch.tensor([3.0, 2.0], dtype=torch.float64)
    r = relevance.explain(z * z, target=torch.tensor([[8.0, 8.0]], dtype=torch.float64), wrt=[x])
    torch.testing.assert_close(r[x], torch.tensor([[2.0, 4.0]], dtype=torch.float64), rtol=1e-5, atol=0)


def test_absolute_shares_of_nothing_are_nothing() -> None:
    x, seed = torch.tensor([[0.0, -1.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    r = relevance.attribute(Model(lambda m, x: x + torch.tanh(x)), x, target=seed, rules=Rules(sum=Absolute()))
    torch.testing.assert_close(r[x], torch.tensor([[0.0, 1.0]], dtype=torch.float64), rtol=1e-5, atol=0)

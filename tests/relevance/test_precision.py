"""Without an ε relevance travels in float64, whatever dtype the graph has, and is rounded once, at the end."""

from __future__ import annotations

import pytest
import torch
from test_laws import Residual
from test_operations import OPS, ZERO
from torch import Tensor, nn

from lutetia import relevance
from lutetia.relevance import presets
from lutetia.relevance.precision import rounded

NARROW = (  # their own backward, in their own dtype, is part of the rule
    "index_put", "index_put accumulating", "circular pad", "written in place", "chain of writes in place", "added in place",
    "scatter_reduce, mean", "scatter_reduce, sum", "scatter_reduce, amax", "nll_loss, every pixel", "packed sequences",
)  # fmt: skip


def in_single(name: str) -> bool:
    """Whether an operation takes float32: some of the table have matrices in float64."""
    f, shape = OPS[name]
    try:
        f(torch.randn(shape))
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("name", [name for name in OPS if in_single(name)])
def test_an_operation_in_float32_loses_nothing(name: str) -> None:
    """The same operation on the same numbers in float64 is the oracle: of sums alone, and under another sum."""
    f, shape = OPS[name]
    for under in (lambda y: y, lambda y: torch.sub(y, y.flip(0) if y.dim() else y, alpha=0.5) + 0.25 * y):
        torch.manual_seed(3)
        x = torch.randn(shape).requires_grad_()
        same = x.detach().double().requires_grad_()
        torch.manual_seed(4)
        output = under(f(x))
        torch.manual_seed(4)
        expected = under(f(same))
        seed = output.detach() * torch.randn_like(output.detach())
        r = relevance.explain(output, seed, rules=ZERO)
        wanted = relevance.explain(expected, seed.to(expected.dtype), rules=ZERO)[same]
        assert (r[x].dtype, r.exact(x).dtype) == (torch.float32, torch.float64)
        size = float(wanted.abs().sum())
        assert float(r.exact(x).sum()) == pytest.approx(float(wanted.sum()), abs=(1e-6 if name in NARROW else 1e-13) * size)
        torch.testing.assert_close(r.exact(x), wanted, rtol=1e-4, atol=1e-6 * size)


@pytest.mark.parametrize("bias", ["absorb", "redistribute"])
def test_lrp_0_in_float32_gives_the_whole_output(bias: str) -> None:
    """The shares are up to 15,000 times the output; carried in float32 the sums would be off by up to 10⁻⁴ of it."""
    rules = presets.epsilon(0.0, bias=bias)
    for seed in range(2):
        torch.manual_seed(seed)
        model, x = Residual(bias == "redistribute"), torch.randn(16, 3, 9, 11)
        r = relevance.attribute(model, x, rules=rules)
        wanted = r.seed.double().sum(1)
        torch.testing.assert_close(r.exact(x).flatten(1).sum(1), wanted, rtol=1e-10, atol=0)
        assert r[x].dtype == torch.float32
        torch.testing.assert_close(r[x].double().flatten(1).sum(1), wanted, rtol=1e-6, atol=0)
        assert r.report.absorbed == pytest.approx(0.0, abs=1e-10)


def test_with_an_epsilon_relevance_keeps_the_dtype_of_the_values() -> None:
    x = torch.randn(4, 3, 9, 11)
    r = relevance.attribute(Residual(False), x)
    assert r.exact(x) is r[x]
    assert r[x].dtype == torch.float32
    some = relevance.attribute(Residual(False), x, rules=relevance.Rules().named("head", relevance.Zero()))
    assert some.exact(x) is some[x]


def test_rounding_keeps_sums_and_takes_a_neighbour() -> None:
    """Shares that cancel, in rows that add up to 1: the nearest numbers would add up to something else."""
    exact = 10 ** torch.randn(6, 40, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1e2
    exact *= torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(25)
    exact[:, 0, 0] -= exact.sum((1, 2)) - 1.0
    exact[0] = 0.0
    made, near = rounded(exact, torch.float32), exact.float()
    assert (made.dtype, made.shape) == (torch.float32, exact.shape)
    towards = torch.nextafter(made, torch.where(exact > made, torch.inf, -torch.inf).float())
    assert bool(((made == exact) | ((exact > made) == (towards > exact)) | (towards == exact)).all())  # nothing lies between
    assert float((made.double().sum((1, 2)) - exact.sum((1, 2))).abs().max()) <= 1e-8
    assert float((near.double().sum((1, 2)) - exact.sum((1, 2))).abs().max()) > 1e-5
    assert torch.equal(rounded(made.double(), torch.float32), made)  # what fits already stays
    assert float(rounded(exact.flatten(), torch.float32).double().sum() - exact.sum()) == pytest.approx(0.0, abs=5e-8)  # one row
    half = rounded(exact, torch.bfloat16).double().sum((1, 2)) - exact.sum((1, 2))
    assert float(half.abs().max()) < 0.01 * float((exact.bfloat16().double().sum((1, 2)) - exact.sum((1, 2))).abs().max())


class Stack(nn.Module):
    """Blocks without biases, each a sum, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.AvgPool1d(2), nn.Linear(4, 6, bias=False)) for _ in range(3)
        )
        self.head = nn.Linear(6, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def test_plans_and_recomputed_blocks_carry_float64_too() -> None:
    torch.manual_seed(0)
    model, x, other = Stack(), torch.randn(5, 6), torch.randn(7, 6)
    r = relevance.attribute(model, other, rules=ZERO, layers=True)
    plan = relevance.compile(model, x, ZERO)
    replayed, recomputed = plan(other), relevance.attribute(model, other, rules=ZERO, recompute=True)
    assert plan.replayed == 1
    for each in (r, replayed, recomputed):
        assert (each[other].dtype, each.exact(other).dtype) == (torch.float32, torch.float64)
        torch.testing.assert_close(each.exact(other).sum(1), r.seed.double().sum(1), rtol=1e-12, atol=0)
        torch.testing.assert_close(each.exact(other), r.exact(other), rtol=1e-9, atol=1e-12)
    assert {name: layer.dtype for name, layer in r.layers.items()} == {f"layers.{n}": torch.float32 for n in range(3)}


def test_rules_of_others_get_their_own_dtype() -> None:
    """A function chosen for a node sees float32, as its autograd node does, and what it gives goes on in float64."""
    seen = []

    def halve(node: relevance.Node, R: Tensor) -> Tensor:
        seen.append((R.dtype, node.fn._saved_result.dtype))
        return 0.5 * R

    x = torch.randn(3, 6)
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 2, bias=False))
    r = relevance.attribute(model, x, rules=ZERO.on("TanhBackward0", halve))
    assert seen == [(torch.float32, torch.float32)]
    assert r.exact(x).dtype == torch.float64
    torch.testing.assert_close(r.exact(x).sum(1), 0.5 * r.seed.double().sum(1), rtol=1e-6, atol=0)


def test_an_lstm_whose_state_begins_with_the_input_loses_nothing() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.lstm = nn.Linear(3, 4), nn.LSTM(3, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            state = self.start(x[:, 0]).expand(1, -1, -1)
            return self.lstm(x, (state, state))[0][:, -1]

    torch.manual_seed(0)
    x = torch.randn(4, 5, 3)
    zero = relevance.Zero()
    rules = relevance.Rules(zero, zero, relevance.Uniform(0.0), bias="redistribute", recurrent=relevance.Absolute(0.0))
    r = relevance.attribute(Recurrent(), x, rules=rules)
    torch.testing.assert_close(r.exact(x).sum((1, 2)), r.seed.double().sum(1), rtol=1e-10, atol=0)

"""Values that `watch` keeps so that no rule computes them again: outputs of linear layers, operands of small sums, constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia import relevance
from lutetia.relevance.rules.linear import Addmm


class Overwriting(nn.Module):
    """What a linear layer and a sum gave, or were given, is written over before the graph is read; x [B, 4] -> [B, 3]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        a.mul_(2)
        b = 3 * x.sum(1, keepdim=True)
        c = a + b
        b.mul_(2)
        return self.last(c * b.tanh())


def test_what_was_overwritten_is_not_used() -> None:
    model, x = Overwriting().double(), torch.randn(2, 4, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    searched = relevance.explain(model(leaf), 1, wrt=[leaf])
    torch.testing.assert_close(relevance.attribute(model, x, 1)[x], searched[leaf])


def test_a_linear_layer_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    x = torch.randn(2, 6, 4)
    calls: list[Any] = []
    original = Addmm.product

    def product(*args: Any) -> Tensor:
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(Addmm, "product", product)
    r = relevance.attribute(model, x, (2, 1))
    assert not calls
    leaf = x.clone().requires_grad_()
    unseen = relevance.explain(model(leaf), (2, 1), wrt=[leaf])
    assert calls
    torch.testing.assert_close(r[x], unseen[leaf])


class Steps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """x [B, C] -> the same."""
        for step in range(5):
            x = torch.tanh(x) - torch.sub(x, 0.1 * x, alpha=0.5 * step)
        return x


def test_small_sums_need_no_promise() -> None:
    x = torch.randn(2, 3, dtype=torch.float64)
    r = relevance.attribute(Steps(), x, 1)
    assert not r.report.promises
    leaf = x.clone().requires_grad_()
    searched = relevance.explain(Steps()(leaf), 1, wrt=[leaf])
    assert searched.report.promises["promise"] > 0
    torch.testing.assert_close(r[x], searched[leaf])


# ---- TorchScript -------------------------------------------------------------------------------------------------------


def gated(a: Tensor, b: Tensor) -> Tensor:
    both = a + b
    return torch.tanh(both[:, :2]) * torch.sigmoid(both[:, 2:]) + 0.5


class Scripted(nn.Module):
    """Constants in a function, in a sum, a join, a frozen bias and a convolution; x [B, 3] -> [B, 2]."""

    def __init__(self, function: Callable[..., Tensor] | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.first, self.last, self.across = nn.Linear(3, 4), nn.Linear(4, 2), nn.Conv1d(1, 2, 3, padding=1)
        for name in ("last.bias", "across.bias"):
            self.get_parameter(name).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x) + 1.5)
        h = torch.cat([h, torch.ones(h.shape[0], 1, dtype=x.dtype)], 1)[:, 1:]
        h = h + self.across(h.unsqueeze(1)).sum(1)
        return self.last(h) - 0.25


class Calling(Scripted):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        assert self.function is not None
        return self.function(h, torch.full_like(h, 0.3))


def test_scripted_functions_are_seen() -> None:
    x = torch.randn(2, 3, dtype=torch.float64)
    plain = relevance.attribute(Calling(gated).double(), x, 1)
    scripted = Calling(torch.jit.script(gated)).double()
    for _ in range(3):  # TorchScript fuses what it has run twice
        scripted(x.clone().requires_grad_())
    r = relevance.attribute(scripted, x, 1)
    assert plain.report.unseen == r.report.unseen == []
    torch.testing.assert_close(r[x], plain[x])
    assert type(torch.jit.ScriptFunction.__call__) is not type(gated)  # torch is left as it was


@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, torch.randn(2, 3).double())])
def test_scripted_and_traced_modules_are_seen(make: Callable[[nn.Module], Any]) -> None:
    x = torch.randn(2, 3, dtype=torch.float64)
    model = Scripted(None).double()
    del model.function
    plain, r = relevance.attribute(model, x, 1), relevance.attribute(make(model), x, 1)
    assert plain.report.unseen == r.report.unseen == []
    torch.testing.assert_close(r[x], plain[x])
    assert r.report.absorbed == pytest.approx(plain.report.absorbed)


def test_a_fused_module_says_what_to_do() -> None:
    model: Any = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    for _ in range(3):
        model(torch.randn(2, 3, requires_grad=True))
    with pytest.raises(relevance.UnknownOperation, match="load it again"):
        relevance.attribute(model, torch.randn(2, 3), 1)

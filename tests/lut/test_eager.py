"""Eager calls go past torch's dispatcher where nobody looks, and compute no gradient that nobody asks for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from lutetia import flow
from lutetia._shared.direct import is_direct
from lutetia.nn import LUT, LUTAttention


def steps_of(call: Callable[[], object]) -> list[str]:
    """The kernels that a call runs."""
    with flow.record() as graph:
        call()
    return [step.name for step in graph.steps]


def layers() -> dict[str, tuple[torch.nn.Module, Tensor]]:
    torch.manual_seed(0)
    return {
        "hard": (LUT(5, 3, 4, 2, seed=0), torch.randn(6, 5)),
        "confidence2": (LUT(5, 3, 4, 2, seed=0, read="confidence2"), torch.randn(6, 5)),
        "attention": (LUTAttention(5, 3, 4, 2, positional_dim=2, max_length=7, seed=0), torch.randn(2, 6, 5)),
    }


@pytest.mark.parametrize("name", ["hard", "confidence2", "attention"])
def test_a_weight_that_nobody_asks_for_has_no_gradient(name: str) -> None:
    layer, x = layers()[name]
    x.requires_grad_()
    y = layer(x)
    weights = "gather_weight"
    only_x = steps_of(lambda: torch.autograd.grad(y.sum(), x, retain_graph=True))
    assert only_x
    assert not [step for step in only_x if step.startswith(weights)]
    for call in (
        lambda: torch.autograd.grad(y.sum(), layer.weight, retain_graph=True),
        lambda: torch.autograd.grad(y.sum(), (x, layer.weight), retain_graph=True),
        lambda: y.sum().backward(retain_graph=True),
    ):
        assert [step for step in steps_of(call) if step.startswith(weights)], call
    both = torch.autograd.grad(y.sum(), (x, layer.weight), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], both[0])


class Watching(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))  # type: ignore[operator]


def test_whoever_watches_sees_the_op() -> None:
    layer, x = layers()["hard"]
    assert is_direct(x, layer.weight)
    with torch.no_grad(), Watching() as mode:
        layer(x)
    assert "lutetia.lut_eval.default" in mode.seen
    with torch.profiler.profile() as profile:
        layer(x)
    assert any("lutetia::lut" in event.key for event in profile.key_averages())
    traced = make_fx(layer)(x)
    assert any("lutetia" in str(node.target) for node in traced.graph.nodes)


def test_tensors_that_are_not_plain_take_the_op() -> None:
    layer, x = layers()["hard"]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert not is_direct(x)
        fake = mode.from_tensor(x)
    assert not is_direct(fake)
    assert not is_direct(x.to_sparse())
    assert not is_direct(x.to("meta"))
    assert layer(x).shape == (6, 3)

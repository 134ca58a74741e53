"""LUT layers in the CUDA graphs that `torch.compile(mode="reduce-overhead")` captures, called for the first time in one.

The compiler warms up and captures with the memory of a pool of its own, and stops where something else is kept there.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lutetia.lut import growth, lut, lut_attention
from lutetia.nn import LUT, LUTAttention

pytestmark = pytest.mark.gpu


def layer_of(kind: str) -> tuple[LUT | LUTAttention, Tensor]:
    """A layer, and x."""
    if kind.startswith("attention"):
        return LUTAttention(19, 24, 7, 3, 2, 16, seed=0).cuda(), torch.randn(5, 16, 19, device="cuda")
    synapses = growth.random(7, 5, 24, 0.4, seed=0, shared="shared" in kind) if "sparse" in kind else None
    return LUT(19, 24, 7, 5, synapses=synapses, seed=0).cuda(), torch.randn(33, 19, device="cuda")


def function_of(layer: LUT | LUTAttention) -> Callable[[Tensor], Tensor]:
    """The layer as a function of tensors, which the compiler copies before each replay."""
    weight, anchors = layer.weight.detach().requires_grad_(), layer.anchors.clone()
    if not isinstance(layer, LUTAttention):
        return lambda x: lut(x, weight, anchors)
    positions = layer.positions.detach().requires_grad_()
    return lambda x: lut_attention(x, weight, anchors, positions)


@pytest.mark.parametrize("kind", ["full", "sparse", "sparse, shared", "attention", "full, a function", "attention, a function"])
def test_reduce_overhead(kind: str) -> None:
    torch.compiler.reset()
    counts = torch._dynamo.utils.counters["inductor"]
    counts.clear()
    layer, x = layer_of(kind)
    compiled = torch.compile(function_of(layer) if "function" in kind else layer, mode="reduce-overhead", fullgraph=True)
    found = []
    for sign in (1, -1, 1, -1):  # warmed up, captured, replayed, replayed
        with torch.no_grad():
            y = compiled(sign * x).clone()
        given = (sign * x).requires_grad_()
        trained = compiled(given)
        (dx,) = torch.autograd.grad(trained.square().sum(), given)
        found.append((y, trained.detach().clone(), dx.clone()))
        del trained, dx
    assert not counts["cudagraph_skips"]
    for sign, got in zip((1, -1, 1, -1), found, strict=True):
        given = (sign * x).requires_grad_()
        y = layer(given)
        (dx,) = torch.autograd.grad(y.square().sum(), given)
        torch.testing.assert_close(got, (y.detach(), y.detach(), dx), rtol=1e-4, atol=1e-4)

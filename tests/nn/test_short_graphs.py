"""The short way of plain layers into a compiled graph: the same results, and what it does not look at goes the long way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lutetia.errors import ArgumentError
from lutetia.lut import SynapseMeta, api, lut, lut_attention
from lutetia.nn import LUT, LUTAttention
from lutetia.nn import lut as lut_module
from lutetia.nn import lut_attention as attention_module


def made(kind: str) -> tuple[LUT | LUTAttention, Callable[[Tensor], Tensor], Tensor]:
    """A layer, what calls it, and x."""
    torch.compiler.reset()
    if "attention" in kind:
        layer: LUT | LUTAttention = LUTAttention(6, 4, 3, 2, 1, 8, seed=0)
        x, call = torch.randn(2, 5, 6), lambda x: lut_attention(x, layer.weight, layer.anchors, layer.positions)
    else:
        layer, x = LUT(6, 4, 3, 2, seed=0), torch.randn(5, 6)
        call = lambda x: lut(x, layer.weight, layer.anchors)  # noqa: E731
    return layer, call if "function" in kind else layer, x


def compiled(call: Callable[[Tensor], Tensor], fullgraph: bool = True) -> Callable[[Tensor], Tensor]:
    return torch.compile(call, backend="aot_eager", fullgraph=fullgraph)


@pytest.mark.parametrize("kind", ["lut", "lut, a function", "attention", "attention, a function"])
def test_the_same_results_the_short_way(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, call, x = made(kind)
    given = x.requires_grad_(), *layer.parameters()
    wanted = [call(x), *torch.autograd.grad(call(x).square().sum(), given)]
    for module, name in ((lut_module, "run"), (attention_module, "run_attention"), (api, "run"), (api, "run_attention")):
        monkeypatch.setattr(module, name, None)  # the long way
    run = compiled(call)
    torch.testing.assert_close([run(x), *torch.autograd.grad(run(x).square().sum(), given)], wanted)
    with torch.no_grad():
        torch.testing.assert_close(run(x), wanted[0])
    if isinstance(layer, LUT) and not isinstance(layer, LUTAttention):
        torch.testing.assert_close(run(x[None, :4].unflatten(1, (2, 2)))[0].flatten(0, 1), wanted[0][:4])


@pytest.mark.parametrize("kind", ["lut", "attention"])
def test_what_changes_is_seen(kind: str) -> None:
    layer, _, x = made(kind)
    run = compiled(layer)

    def gradient() -> Tensor:
        return torch.autograd.grad(run(x).sum(), layer.weight)[0]

    before = gradient()
    layer.meta = SynapseMeta(lr_scale=0.5)
    torch.testing.assert_close(gradient(), before / 2)
    layer.meta = SynapseMeta(max_weight=3.0)
    torch.testing.assert_close(gradient(), before)
    y = run(x).detach()
    layer.double()
    torch.testing.assert_close(run(x.double()), y.double())


@pytest.mark.parametrize("kind", ["lut", "attention"])
def test_what_does_not_fit_is_refused_by_name(kind: str) -> None:
    layer, _, x = made(kind)
    run = compiled(layer, fullgraph=False)
    wider = torch.cat([x, x], -1)
    with pytest.raises(ArgumentError, match="x"):
        run(wider)
    layer.weight = torch.nn.Parameter(layer.weight.detach()[:, :-1])
    with pytest.raises(ArgumentError, match="weight"):
        run(x)
    if kind == "attention":
        with pytest.raises(ArgumentError, match="1 to 8 positions"):
            compiled(made(kind)[0], fullgraph=False)(torch.randn(1, 9, 6))

"""Small layers called again and again: what was prepared by the first call gives the same as the way through all checks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

pytest.importorskip("triton")

from lutetia import flow
from lutetia._shared import prepared
from lutetia.errors import ArgumentError, LutetiaError
from lutetia.lut import SynapseMeta, growth, lut, lut_attention, use_backend
from lutetia.lut.autograd import ops, quick
from lutetia.lut.autograd.saved import Formula
from lutetia.lut.kernels.triton import pairs
from lutetia.nn import LUT, LUTAttention
from lutetia.relevance import explain

gpu = pytest.mark.gpu
DEVICES = ["cpu", pytest.param("cuda", marks=gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """On a CPU under Triton's interpreter, as if that were a GPU."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if request.param == "cpu":
        monkeypatch.setattr(quick, "backend_of", lambda tensor: "triton")
        monkeypatch.setattr(prepared, "current_device", lambda: -1)
    prepared.known.clear()
    with use_backend("triton"):
        yield request.param
    prepared.known.clear()


def layer_of(kind: str, device: str) -> LUT:
    options: dict[str, Any] = {"meta": SynapseMeta(lr_scale=0.5)} if kind == "scaled" else {}
    if kind in ("shared", "general"):
        options = {"synapses": growth.random(3, 2, 12, 0.5, shared=kind == "shared", seed=0)}
    return LUT(7, 72 if kind == "wide" else 12, 3, 2, seed=0, device=device, **options)


def step(layer: LUT, x: Tensor, grad: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.backward(grad)
    assert x.grad is not None
    assert layer.weight.grad is not None
    with torch.no_grad():
        return [y.detach(), x.grad, layer.weight.grad.clone(), layer(x)]


@pytest.mark.parametrize("kind", ["full", "wide", "scaled", "shared", "general"])
def test_the_same_results(device: str, kind: str) -> None:
    layer = layer_of(kind, device)
    x, grad = torch.randn(5, 7, device=device), torch.randn(5, layer.n_outputs, device=device)
    first = step(layer, x, grad)
    assert bool(prepared.known) == (kind != "general")
    for _ in range(2):  # planned, then launched by address
        for mine, want in zip(step(layer, x, grad), first, strict=True):
            torch.testing.assert_close(mine, want)
    with torch.no_grad():
        layer.weight.mul_(2)
        torch.testing.assert_close(layer(x), 2 * first[0])


@pytest.mark.parametrize("kind", ["full", "wide", "shared"])
def test_ops_of_compiled_graphs_are_served_too(device: str, kind: str) -> None:
    layer = layer_of(kind, device)
    x, grad = torch.randn(5, 7, device=device), torch.randn(5, layer.n_outputs, device=device)
    first = step(layer, x, grad)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        for mine, want in zip(step(compiled, x, grad), first, strict=True):
            torch.testing.assert_close(mine, want)


@pytest.mark.parametrize("shape", [(7,), (1, 7), (2, 3, 7), (1, 1, 1, 7)])
def test_rows_of_any_shape_are_served(device: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_of("full", device), torch.randn(shape, device=device)
    grad = torch.randn(*shape[:-1], layer.n_outputs, device=device)
    first = step(layer, x, grad)
    monkeypatch.setattr("lutetia.nn.lut.run", None)  # the way of a call that nothing was prepared for
    for mine, want in zip(step(layer, x, grad), first, strict=True):
        torch.testing.assert_close(mine, want)


def served(layer: LUT, x: Tensor, anchors: Tensor | None = None) -> bool:
    mark = layer.meta if layer._header is None else layer.synapse_start
    return quick.quick_for(x, layer.weight, layer.anchors if anchors is None else anchors, mark) is not None


def test_what_is_not_served(device: str) -> None:
    layer = layer_of("full", device)
    x = torch.randn(5, 7, device=device)
    layer(x)
    assert served(layer, x)
    assert not served(layer, x[:4])
    assert not served(layer, x.double())
    assert not served(layer, torch.randn(7, 5, device=device).t())
    assert not served(layer, torch.randn(36, device=device)[1:].view(5, 7))  # not aligned to 16 bytes
    assert not served(layer, x, layer.anchors.clone())
    with flow.record() as recorded:
        assert not served(layer, x)
        layer(x)
    assert recorded.steps
    with use_backend("reference"):
        assert not served(layer, x)
    layer.anchors[0, 0] = torch.tensor([1, 2], dtype=torch.int32)
    assert not served(layer, x)


@pytest.mark.parametrize("kind", ["full", "shared", "general"])
def test_evaluation_on_the_cpu(kind: str) -> None:
    layer, x = layer_of(kind, "cpu"), torch.randn(1, 7)
    with torch.no_grad(), use_backend("reference"):
        want = layer(x)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(layer(x), want)
        assert served(layer, x)
        layer.weight.mul_(2)
        torch.testing.assert_close(layer(x), 2 * want)
        layer.weight.data = layer.weight.data / 2
        torch.testing.assert_close(layer(x), want)
    torch.compiler.reset()  # the layers of these tests share one limit of compilations
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        compiled(x)
        patch.setattr(ops, "ready", None)  # the way of a call that nothing was prepared for
        torch.testing.assert_close(compiled(x), want)
    y = layer(x)
    assert y.requires_grad
    layer.anchors[0, 0, 0] = 99
    with torch.no_grad(), pytest.raises(ArgumentError, match="99"):
        layer(x)


@pytest.mark.parametrize("kind", ["full", "scaled", "shared", "general"])
@pytest.mark.parametrize("learns", ["both", "x", "weight"])
def test_training_on_the_cpu(kind: str, learns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, grad = layer_of(kind, "cpu"), torch.randn(5, 7), torch.randn(5, 12)
    layer.weight.requires_grad_(learns != "x")

    def run(grad: Tensor) -> list[Tensor | None]:
        layer.weight.grad, given = None, x.clone().requires_grad_(learns != "weight")
        y = layer(given)
        y.backward(grad)
        return [y.detach(), given.grad, layer.weight.grad]

    one = torch.ones((), requires_grad=True).expand(5, 12)
    with use_backend("reference"):
        wanted = [run(grad), run(one)]
    slow = [run(grad), run(one)]
    monkeypatch.setattr("lutetia.nn.lut.run", None)  # the way of a call that nothing was prepared for
    monkeypatch.setattr(Formula, "backward", None)
    for given, first, want in zip((grad, one), slow, wanted, strict=True):
        for mine, same, other in zip(run(given), first, want, strict=True):
            assert (mine is None) == (same is None) == (other is None)
            if mine is not None:
                torch.testing.assert_close(mine, same, rtol=0, atol=0)
                torch.testing.assert_close(mine, other)


def test_what_training_on_the_cpu_checks() -> None:
    layer, x, grad = layer_of("full", "cpu"), torch.randn(5, 7, requires_grad=True), torch.randn(5, 12)
    layer(x)
    y = layer(x)
    (want,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    weight = layer.weight.detach().clone()
    layer.weight.data = 2 * weight  # lies elsewhere
    torch.testing.assert_close(torch.autograd.grad(y, x, grad, retain_graph=True)[0], 2 * want)
    layer.weight.data = weight
    layer(x)

    def with_stored(index: int, change: Callable[[Tensor], Tensor]) -> Tensor:
        """y, where what is stored at this place comes back changed: indices, min_delta or its index."""
        places = count()
        with saved_tensors_hooks(lambda kept: change(kept) if next(places) == index else kept, lambda kept: kept):
            return layer(x)

    strided = with_stored(2, lambda kept: kept.mT.contiguous().mT)
    torch.testing.assert_close(torch.autograd.grad(strided, x, grad)[0], want)
    for index, message in ((0, "indices are from 99"), (2, "min_delta_index are from 99")):
        with pytest.raises(ArgumentError, match=message):
            torch.autograd.grad(with_stored(index, lambda kept: kept + 99), x, grad)
    y = layer(x)
    layer.anchors.data[0, 0, 0] = 99
    with pytest.raises(ArgumentError, match="99"):
        y.backward(grad)
    with pytest.raises(ArgumentError, match="99"):
        layer(x)


def test_changed_anchors_are_checked_again(device: str) -> None:
    layer = layer_of("full", device)
    x = torch.randn(5, 7, device=device)
    layer(x)
    layer.anchors[0, 0, 0] = 99
    with pytest.raises(ArgumentError, match="99"):
        layer(x)


def test_a_capture_prepares_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be given copies that belong to a graph, as torch.compile does with tensors that are no parameters."""
    monkeypatch.setattr(quick, "is_captured", lambda tensor: True)
    layer, sequences = layer_of("full", device), attention_of(device)
    with torch.no_grad():
        layer(torch.randn(5, 7, device=device))
        sequences(torch.randn(3, 4, 7, device=device))
    assert not prepared.known


def test_another_weight_at_the_same_place(device: str) -> None:
    layer = layer_of("full", device)
    x = torch.randn(5, 7, device=device)
    y = layer(x).detach()
    layer.weight = torch.nn.Parameter(2 * layer.weight.detach())
    torch.testing.assert_close(layer(x), 2 * y)
    layer.weight.data = layer.weight.data / 4
    torch.testing.assert_close(layer(x), y / 2)
    assert len(prepared.known) == 1


def test_gradients_that_are_asked_for(device: str) -> None:
    layer = layer_of("full", device)
    x = torch.randn(5, 7, device=device, requires_grad=True)
    layer(x)
    y = layer(x)
    dx, dw = torch.autograd.grad(y.sum(), (x, layer.weight), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x, retain_graph=True)[0], dx)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), layer.weight, retain_graph=True)[0], dw)
    (again,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(LutetiaError, match="twice"):
        again.sum().backward()
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        y.sum().backward()
    layer(x.detach())  # only the weight learns: it may change before the backward pass
    y = layer(x.detach())
    with torch.no_grad():
        layer.weight.add_(1)
    y.sum().backward()


def test_relevance_reads_the_node(device: str) -> None:
    layer = layer_of("full", device)
    x = torch.randn(5, 7, device=device)
    first, again = (explain(layer(x.requires_grad_()), 0, wrt=[x])[x] for _ in range(2))
    torch.testing.assert_close(first, again)


def test_bad_input_after_good(device: str) -> None:
    layer = layer_of("full", device)
    x = torch.randn(5, 7, device=device)
    layer(x)
    with pytest.raises(ArgumentError, match="x is"):
        lut([1.0], layer.weight, layer.anchors)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="synapses"):
        lut(x, layer.weight, layer.anchors, synapses=3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="gradient"):
        lut(x, layer.weight, layer.anchors, gradient="none")


def attention_of(device: str) -> LUTAttention:
    return LUTAttention(7, 12, 2, 2, 3, 9, seed=0, device=device)


@pytest.mark.parametrize("kind", ["short", "long"])
def test_sequences_are_evaluated_alike(device: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = attention_of(device), torch.randn(3, 4, 7, device=device)
    wanted = layer(x).detach()
    monkeypatch.setattr(pairs, "kind", lambda length: kind)
    with torch.no_grad():
        first = layer(x)
        torch.testing.assert_close(first, wanted)
        assert len(prepared.known) == 1
        again, other = layer(x), layer(-x)
        torch.testing.assert_close(again, first)  # programs add to y in any order
        layer.positions.neg_()  # learned meanwhile, in place
        layer.weight.mul_(2)
        turned = layer(x)
        layer.positions.data = layer.positions.data.clone()  # moved
        moved = layer(x)
        prepared.known.clear()
        torch.testing.assert_close(turned, layer(x))
        torch.testing.assert_close(moved, turned)
        assert not torch.equal(turned, 2 * first)
        assert not torch.equal(other, first)


def test_compiled_sequences_are_served_too(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = attention_of(device), torch.randn(3, 4, 7, device=device)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        wanted = compiled(x)
        monkeypatch.setattr(ops, "_forward", None)  # the way of a call that nothing was prepared for
        for _ in range(2):  # planned, then launched by address
            torch.testing.assert_close(compiled(x), wanted)
        torch.testing.assert_close(layer(x), wanted)


def test_sequences_that_a_quick_call_does_not_serve(device: str) -> None:
    layer, x = attention_of(device), torch.randn(3, 4, 7, device=device)
    with torch.no_grad():
        wanted = layer(x)
        strided = x.transpose(0, 1).contiguous().transpose(0, 1)
        cut = torch.tensor([4, 2, 0], device=device)
        assert torch.equal(layer(strided), wanted)
        assert not layer(x, cut)[1, 2:].any()
        with pytest.raises(ArgumentError, match="positions"):
            lut_attention(x, layer.weight, layer.anchors, None)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    layer.algorithm = "cells"
    with torch.no_grad():
        torch.testing.assert_close(layer(x), wanted)

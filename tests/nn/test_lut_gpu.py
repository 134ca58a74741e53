"""`lutetia.nn.LUT` on a CUDA device: the same numbers as on the CPU, no waiting for the device, capture in a graph."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.lut import growth, use_backend
from lutetia.nn import LUT, LUTAttention

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
WIRINGS = ("fc", "general", "shared")


def make(wiring: str, gradient: str = "dense", dtype: torch.dtype = torch.float64) -> LUT:
    synapses = None if wiring == "fc" else growth.random(13, 5, 37, 0.4, seed=0, shared=wiring == "shared")
    layer = LUT(19, 37, 13, 5, synapses=synapses, gradient=gradient, seed=0, dtype=dtype)
    layer.external_lr = 0.1
    torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
    return layer


def train_once(layer: LUT, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    """y, dx, and dW or the weights that took a step."""
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(grad)
    learned = layer.weight.detach() if layer.weight.grad is None else layer.weight.grad.to_dense()
    assert x.grad is not None
    return [y.detach(), x.grad, learned]


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("gradient", ["dense", "sparse", "in_place"])
def test_the_same_numbers_as_the_reference(wiring: str, gradient: str) -> None:
    layer = make(wiring, gradient)
    x, grad = torch.randn(101, 19, dtype=torch.float64), torch.randn(101, 37, dtype=torch.float64)
    there = copy.deepcopy(layer).to(DEVICE)
    with use_backend("reference"):
        want = train_once(layer, x, grad)
    got = train_once(there, x.to(DEVICE), grad.to(DEVICE))
    torch.testing.assert_close([tensor.cpu() for tensor in got], want, rtol=1e-9, atol=1e-9)


@pytest.fixture
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("gradient", ["dense", "in_place"])
def test_a_step_does_not_wait_for_the_device(wiring: str, gradient: str, request: pytest.FixtureRequest) -> None:
    layer = make(wiring, gradient, torch.float32).to(DEVICE)
    x, grad = torch.randn(64, 19, device=DEVICE), torch.randn(64, 37, device=DEVICE)

    def step() -> None:
        train_once(layer, x, grad)
        with torch.no_grad():
            layer(x)

    step()  # anchors and synapses are checked, kernels are compiled
    request.getfixturevalue("no_waiting")
    step()


@pytest.mark.parametrize("wiring", WIRINGS)
def test_capture_in_a_graph(wiring: str) -> None:
    layer = make(wiring, dtype=torch.float32).to(DEVICE)
    x = torch.randn(64, 19, device=DEVICE, requires_grad=True)

    def step() -> torch.Tensor:
        x.grad = layer.weight.grad = None
        y = layer(x)
        y.square().sum().backward()
        return y

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    captured = (y, x.grad, layer.weight.grad)
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    replayed = [tensor.detach().clone() for tensor in captured]  # type: ignore[union-attr]
    want = step()
    torch.testing.assert_close(replayed, [want.detach(), x.grad, layer.weight.grad], rtol=1e-4, atol=1e-4)


def test_tensors_on_two_devices() -> None:
    layer = make("fc").to(DEVICE)
    with pytest.raises(ArgumentError, match="on cuda:0, expected a tensor on cpu"):
        layer(torch.randn(2, 19, dtype=torch.float64))
    with use_backend("cpu"), pytest.raises(ArgumentError, match="the cpu backend was chosen for a tensor on cuda"):
        layer(torch.randn(2, 19, dtype=torch.float64, device=DEVICE))


@pytest.mark.parametrize("wiring", WIRINGS)
def test_it_compiles(wiring: str) -> None:
    layer = make(wiring, dtype=torch.float32).to(DEVICE)
    x, grad = torch.randn(33, 19, device=DEVICE), torch.randn(33, 37, device=DEVICE)
    want = train_once(layer, x, grad)
    layer.weight.grad = None
    torch._dynamo.reset()
    layer.compile(fullgraph=True)
    torch.testing.assert_close(train_once(layer, x, grad), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wiring", WIRINGS)
def test_what_changed_uncounted_is_not_read(wiring: str) -> None:
    """Kernels read a copy of what was checked; what is counted is checked and copied anew."""
    layer, x = make(wiring, dtype=torch.float32).to(DEVICE), torch.randn(7, 19, device=DEVICE)
    before = layer(x).detach()
    kept = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    for _, buffer in layer.named_buffers():
        buffer.data.fill_(2**30)
    torch.testing.assert_close(layer(x).detach(), before)  # synapses are added up in any order
    layer(x.clone().requires_grad_()).sum().backward()
    layer.anchors.fill_(2**30)
    with pytest.raises(ArgumentError, match="anchor 0 of detector 0"):
        layer(x)
    for name, buffer in layer.named_buffers():
        buffer.copy_(kept[name])
    torch.testing.assert_close(layer(x).detach(), before)  # synapses are added up in any order


def test_a_captured_graph_follows_anchors_that_were_checked_anew() -> None:
    layer, x = make("fc", dtype=torch.float32).to(DEVICE).eval(), torch.randn(7, 19, device=DEVICE)
    with torch.no_grad():
        layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        layer.anchors.copy_(layer.anchors.flip(0))
        wanted = layer(x).clone()
        graph.replay()
    torch.testing.assert_close(y, wanted)


@pytest.mark.parametrize("positional_dim", [0, 2])
def test_indices_of_a_cache_that_changed_uncounted_stay_in_their_table(positional_dim: int) -> None:
    layer = LUTAttention(8, 4, 5, 2, positional_dim, 16, seed=0).to(DEVICE)
    cache = layer.new_cache(2)
    for _ in range(9):
        y = layer(torch.randn(2, 1, 8, device=DEVICE), cache=cache)
        cache.indices.data.fill_(32767)
    y += layer(torch.randn(2, 3, 8, device=DEVICE), cache=cache)[:, :1]
    assert bool(y.isfinite().all())

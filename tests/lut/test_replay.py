"""The ops called again and again: from the fourth call on their launches are replayed, and give what the reference gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from lutetia import flow
from lutetia._shared import replay
from lutetia._shared.ops import IMPLEMENTATIONS
from lutetia.errors import ArgumentError
from lutetia.lut import Synapses, growth, lut, lut_attention, random_anchors, use_backend
from lutetia.lut.autograd import ops, quick

gpu = pytest.mark.gpu
CALLS, SHAPE = 4, (2, 3)
N_T, N_C, N_PE, N_IN, N_OUT = 3, 2, 2, 7, 8


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """On a CPU under Triton's interpreter, as if that were a GPU; nothing is prepared, so that all calls are those of ops."""
    monkeypatch.setattr(replay, "on_cpu", True)
    monkeypatch.setattr(quick, "backend_of", lambda tensor: "")
    for kinds in every_kind().values():
        kinds.clear()
    yield request.param
    for kinds in every_kind().values():
        kinds.clear()


def every_kind() -> dict[str, Any]:
    """The calls that each op has seen, by name."""
    seen = {name: run.kinds for name, run in IMPLEMENTATIONS.items() if hasattr(run, "kinds")}
    return {**seen, "evaluate": ops.evaluate.kinds}  # type: ignore[attr-defined]


def replays() -> set[str]:
    """The ops with calls that are replayed."""
    return {name for name, kinds in every_kind().items() if any(kind.steps is not None for kind in kinds.values())}


class Layer:
    """The tensors of a layer, and y of a call."""

    def __init__(self, kind: str, sequence: bool, dtype: torch.dtype, device: str) -> None:
        n_rows, self.sequence, self.options = 2 ** (2 * N_C + N_PE if sequence else N_C), sequence, {}
        self.anchors = random_anchors(N_IN, N_T, N_C, seed=0).to(device)
        size: tuple[int, ...] = (N_T, n_rows, N_OUT)
        if kind in ("shared", "general"):
            synapses: Synapses = growth.random(
                N_T, 2 * N_C + N_PE if sequence else N_C, N_OUT, 0.5, shared=kind == "shared", seed=0
            )
            self.options["synapses"], size = synapses.to(device), (synapses.n_weights,)
        elif sequence:
            self.options["algorithm"] = kind
        elif kind not in ("full", "thresholds"):
            self.options["read"] = kind
        self.thresholds = None
        if kind == "thresholds":
            self.anchors[0, 0, 1], self.thresholds = N_IN, torch.tensor([0.1], device=device, dtype=dtype)
        self.weight = torch.randn(size, device=device, dtype=dtype, requires_grad=True)
        self.positions = torch.randn(2, N_T, N_PE, device=device, dtype=dtype, requires_grad=True)

    def __call__(self, x: Tensor) -> Tensor:
        if self.sequence:
            return lut_attention(x, self.weight, self.anchors, self.positions, **self.options)
        return lut(x, self.weight, self.anchors, self.thresholds, **self.options)

    def results(self, x: Tensor, grad: Tensor, backend: str) -> list[Tensor]:
        """y, its gradients of x, the weight and the positions, and y of an evaluation."""
        learned = [x, self.weight, *([self.positions] if self.sequence else [])]
        with use_backend(backend):
            y = self(x)
            gradients = torch.autograd.grad(y, learned, grad)
            with torch.no_grad():
                return [y.detach(), *gradients, self(x)]


ONE_STEP = ["full", "thresholds", "shared", "general", "confidence2"]
SEQUENCES = ["pairs", "cells", "shared", "general"]
CASES = [
    *((kind, False, torch.float32) for kind in ONE_STEP),
    *((kind, True, torch.float32) for kind in SEQUENCES),
    *((kind, kind == "pairs", torch.float64) for kind in ("full", "pairs")),
]


@pytest.mark.parametrize(("kind", "sequence", "dtype"), CASES)
def test_every_call_is_that_of_the_reference(device: str, kind: str, sequence: bool, dtype: torch.dtype) -> None:
    layer = Layer(kind, sequence, dtype, device)
    shape = SHAPE if sequence else (3,)
    for _ in range(CALLS):
        x = torch.randn(*shape, N_IN, device=device, dtype=dtype, requires_grad=True)
        grad = torch.randn(*shape, N_OUT, device=device, dtype=dtype)
        for mine, want in zip(layer.results(x, grad, "triton"), layer.results(x, grad, "reference"), strict=True):
            torch.testing.assert_close(mine, want, rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 1e-12)
    # On a CPU an evaluation calls no op.
    wanted = {"lut", "lut_gradients", *(["lut_eval"] if device == "cuda" else [])}
    if sequence:  # where it is sparse, pairs are listed anew in each call
        wanted = {"lut_attention", "lut_attention_gradients", "evaluate"}
        wanted = set() if "synapses" in layer.options else wanted
    elif kind == "confidence2":
        wanted = {"read_detectors", "read_detectors_gradients", "weigh_rows", "weigh_rows_gradients", "read_eval"}
    assert replays() >= wanted
    assert bool(wanted) == bool(replays())


@pytest.mark.parametrize("sequence", [False, True])
def test_fixed_sums_look_for_an_overflow_in_every_call(device: str, sequence: bool) -> None:
    layer = Layer("pairs" if sequence else "full", sequence, torch.float32, device)
    layer.options["sums"] = "fixed"
    shape = SHAPE if sequence else (3,)
    for _ in range(CALLS):
        x, grad = torch.randn(*shape, N_IN, device=device, requires_grad=True), torch.randn(*shape, N_OUT, device=device)
        for mine, want in zip(layer.results(x, grad, "triton"), layer.results(x, grad, "reference"), strict=True):
            assert torch.equal(mine, want)
    assert not replays()


@pytest.mark.parametrize(
    "call", [Layer.__call__, lambda layer, x: layer.results(x, torch.ones(*SHAPE, N_OUT, device=x.device), "triton")]
)
def test_changed_anchors_are_checked_again(device: str, call: Callable[[Layer, Tensor], Any]) -> None:
    layer = Layer("pairs", True, torch.float32, device)
    x = torch.randn(*SHAPE, N_IN, device=device, requires_grad=True)
    with use_backend("triton"):
        for _ in range(CALLS):
            call(layer, x)
        layer.anchors[0, 0, 0] = 99
        with pytest.raises(ArgumentError, match="99"):
            call(layer, x)


def test_weights_and_positions_may_move_and_change(device: str) -> None:
    layer = Layer("cells", True, torch.float32, device)
    x, grad = torch.randn(*SHAPE, N_IN, device=device, requires_grad=True), torch.randn(*SHAPE, N_OUT, device=device)
    for _ in range(CALLS):
        layer.results(x, grad, "triton")
    assert replays()
    with torch.no_grad():
        layer.weight.mul_(2)
        layer.positions.data = -layer.positions.data
    for mine, want in zip(layer.results(x, grad, "triton"), layer.results(x, grad, "reference"), strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-5, atol=1e-5)


def test_a_compiled_graph_replays_too(device: str) -> None:
    layer = Layer("pairs", True, torch.float32, device)
    torch.compiler.reset()
    with use_backend("triton"):
        compiled = torch.compile(layer.__call__, backend="aot_eager", fullgraph=True)
        for _ in range(CALLS):
            x, grad = torch.randn(*SHAPE, N_IN, device=device, requires_grad=True), torch.randn(*SHAPE, N_OUT, device=device)
            y = compiled(x)
            got = [y.detach(), *torch.autograd.grad(y, [x, layer.weight, layer.positions], grad)]
            for mine, want in zip(got, layer.results(x, grad, "reference"), strict=False):
                torch.testing.assert_close(mine, want, rtol=1e-5, atol=1e-5)
    assert replays() >= {"lut_attention", "lut_attention_gradients"}


def test_a_recorder_and_the_debugger_see_every_call(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer("pairs", True, torch.float32, device)
    x = torch.randn(*SHAPE, N_IN, device=device)
    with use_backend("triton"), torch.no_grad():
        for _ in range(CALLS):
            layer(x)
        with flow.record() as run:
            layer(x)
        assert [step.name for step in run.steps] == ["check_detectors_eval", "check_positions_eval", "fill_outputs_seq_fc"]
        monkeypatch.setattr("lutetia.debug", True)
        with pytest.raises(ArgumentError, match="NaN"):
            layer(x * torch.nan)


@gpu
def test_a_capture_replays_what_was_recorded_before() -> None:
    layer = Layer("cells", True, torch.float32, "cuda")
    x, grad = torch.randn(*SHAPE, N_IN, device="cuda", requires_grad=True), torch.randn(*SHAPE, N_OUT, device="cuda")
    for _ in range(CALLS):
        want = layer.results(x, grad, "triton")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = layer.results(x, grad, "triton")
    graph.replay()
    for mine, wanted in zip(got, want, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)

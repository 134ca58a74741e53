"""Ops in the code that torch's compiler writes: called past the dispatcher where sizes are known, and never with stale steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from torch._inductor.utils import run_and_get_code

from lutetia import flow
from lutetia._shared import graph_calls, replay
from lutetia._shared.graph_calls import Call
from lutetia._shared.ops import IMPLEMENTATIONS
from lutetia.errors import ArgumentError
from lutetia.lut import lut, random_anchors, use_backend
from lutetia.nn import LUT

PLAIN = (None, None, None, '{"backend": "triton"}')
CALLS = 5  # from the fourth on an op is replayed, and its place in a graph knows the steps


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replay calls of CPU tensors, too, whose kernels run under Triton's interpreter."""
    monkeypatch.setattr(replay, "on_cpu", True)
    run: Any = IMPLEMENTATIONS["lut_eval"]
    run.kinds.clear()
    yield
    run.kinds.clear()


class Place:
    """A place in a graph, and what its op should give."""

    def __init__(self, seed: int = 0) -> None:
        self.anchors = random_anchors(7, 3, 2, seed=seed)
        self.weight = torch.randn(3, 4, 5)

    def check(self, call: Call, x: Tensor) -> None:
        with use_backend("reference"):
            torch.testing.assert_close(call(x, self.weight, self.anchors, *PLAIN), lut(x, self.weight, self.anchors))

    def settled(self) -> Call:
        call = Call("lut_eval")
        for _ in range(CALLS):
            self.check(call, torch.randn(4, 7))
        assert len(call.settled) == 1
        return call


def test_steps_are_taken_past_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    call = place.settled()
    monkeypatch.setattr(call.run, "run", lambda *arguments: pytest.fail("the op was called"))
    place.check(call, torch.randn(4, 7))


def test_constants_that_changed_are_looked_at_again() -> None:
    place = Place()
    call = place.settled()
    place.anchors.copy_(random_anchors(7, 3, 2, seed=5))
    place.check(call, torch.randn(4, 7))
    place.anchors[0, 0, 0] = 99
    with pytest.raises(ArgumentError, match="99"):
        call(torch.randn(4, 7), place.weight, place.anchors, *PLAIN)


def test_equal_code_of_several_layers_is_one_place() -> None:
    first, other = Place(), Place(seed=1)
    call = first.settled()
    for _ in range(CALLS):
        for each in (first, other):
            each.check(call, torch.randn(4, 7))
    assert len(call.settled) == 2


def test_memory_that_lies_otherwise_is_no_stale_step() -> None:
    place = Place()
    call = place.settled()
    steps = call.settled[id(place.anchors)].steps
    call.settled[id(place.anchors)] = call.settled[id(place.anchors)]._replace(steps=lambda *rest: pytest.fail("taken"))
    place.check(call, torch.randn(29)[1:].view(4, 7))
    call.settled[id(place.anchors)] = call.settled[id(place.anchors)]._replace(steps=steps)
    place.check(call, torch.randn(4, 7))


def test_what_watches_sees_the_op() -> None:
    place = Place()
    call = place.settled()
    with flow.record() as run:
        place.check(call, torch.randn(4, 7))
    assert any("detect" in step.name for step in run.steps)


def test_without_memory_the_op_decides_again() -> None:
    place = Place()
    call = place.settled()

    def full(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("full")

    call.settled[id(place.anchors)] = call.settled[id(place.anchors)]._replace(steps=full)
    place.check(call, torch.randn(4, 7))
    assert not call.settled


def code_of(dynamic: bool) -> str:
    torch.compiler.reset()
    layer, x = LUT(7, 5, 3, 2, seed=0), torch.randn(6, 7, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic)

    def step() -> tuple[Tensor, ...]:
        if dynamic:
            compiled(torch.randn(9, 7, requires_grad=True)).sum().backward()
        return torch.autograd.grad(compiled(x).sum(), [x, layer.weight])

    with torch._inductor.config.patch(force_disable_caches=True):  # which hold the code of other versions of ours
        got, codes = run_and_get_code(step)
    torch.testing.assert_close(got, torch.autograd.grad(layer(x).sum(), [x, layer.weight]))
    return "".join(codes)


def test_code_of_one_size_calls_past_the_dispatcher() -> None:
    code = code_of(dynamic=False)
    assert "LutetiaCall('lut_alone')" in code
    assert "LutetiaCall('lut_gradients')" in code
    assert ".default(" not in code


def test_code_of_several_sizes_calls_ops() -> None:
    """And is compiled once for all of them."""
    code = code_of(dynamic=True)
    assert code.count("def call(") == 2  # forward and backward
    assert "torch.ops.lutetia.lut_alone.default(" in code
    assert "LutetiaCall" not in code


def test_a_compiler_without_the_table_is_not_taught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_calls, "offered", ["lut_eval"])
    monkeypatch.delitem(sys.modules, graph_calls.TABLE, raising=False)
    graph_calls.teach()
    assert graph_calls.offered == ["lut_eval"]

"""Functions that torch.compile leaves alone, without loading it."""

from __future__ import annotations

import pytest
import torch

import warm
from lutetia._uncompiled import constant_result, uncompiled

LOADED = """
import sys
import torch
import lutetia.models, lutetia.nn, lutetia.lut, lutetia.report, lutetia.relevance, lutetia.attention
layer = {"kind": "lut", "n_outputs": 4, "n_detectors": 2, "n_anchors": 2}
model = lutetia.models.LUTClassifier(input_shape=(4,), n_classes=2, layers=(layer,))
model(torch.rand(3, 4)).sum().backward()
sparse = lutetia.nn.LUT(4, 4, 2, 2, gradient="sparse")
sparse(torch.rand(3, 4)).sum().backward()
heavy = ("torch._dynamo", "torch._inductor", "sympy", "matplotlib", "sklearn", "triton")
print(" ".join(name for name in heavy if name in sys.modules))
"""


def test_the_compiler_is_not_loaded_by_what_does_not_compile() -> None:
    done = warm.run(["-c", LOADED], warm.Plain)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


@uncompiled("because of this test")
def alone(x: torch.Tensor) -> torch.Tensor:
    return inner(x)


def inner(x: torch.Tensor) -> torch.Tensor:
    seen.append(torch.compiler.is_compiling())
    return x + 1


seen: list[bool] = []


class Layer(torch.nn.Module):
    @uncompiled("it talks to others")
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return alone(x) * 2


@pytest.mark.parametrize("function", [alone, Layer()])
def test_a_graph_breaks_around_it(function: object) -> None:
    seen.clear()
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return graph.forward

    def outer(x: torch.Tensor) -> torch.Tensor:
        return function(x * 3) - 5  # type: ignore[operator]

    torch._dynamo.reset()
    compiled = torch.compile(outer, backend=keep)
    for x in (torch.ones(2), torch.zeros(2)):
        assert torch.equal(compiled(x), outer(x))
    assert len(seen) == 4
    assert not any(seen)
    assert len(graphs) == 2  # before and after; what is marked, and what it calls, is in neither
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"because of this test|it talks to others"):
        torch.compile(outer, fullgraph=True)(torch.ones(3))


def test_a_constant_is_taken_as_one() -> None:
    @constant_result
    def size() -> int:
        return int("12")

    compiled = torch.compile(lambda x: x + size(), backend="eager", fullgraph=True)
    assert compiled(torch.zeros(1)).item() == 12

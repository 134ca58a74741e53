"""The walk against the slow engine: random graphs, recurrent and attention modules, in any order of operands and stacks."""

from __future__ import annotations

import random
from typing import Any

import pytest
import slow_engine
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import lutetia.relevance.api as api
from lutetia import relevance
from lutetia.relevance.engine import Walk
from lutetia.relevance.graph import Node

EPS = 1e-2


class Shuffled(Walk):
    """Takes from its stacks in any order."""

    def _pop(self, stack: list[Any]) -> Any:
        return stack.pop(random.randrange(len(stack)))


class RandomGraph:
    """A random graph of tensors [3, 4]: diamonds, multi-edges, nodes with several outputs, shared modules."""

    def __init__(self, seed: int, size: int) -> None:
        self.rng = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.shared = [nn.Linear(4, 4, bias=bool(i)).double() for i in range(2)]
        for parameter in (p for module in self.shared for p in module.parameters()):
            parameter.data = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
        self.bias = nn.Parameter(torch.randn(4, dtype=torch.float64, generator=generator))
        self.x = torch.randn(3, 4, dtype=torch.float64, generator=generator, requires_grad=True)
        self.y = torch.randn(3, 4, dtype=torch.float64, generator=generator, requires_grad=True)
        self.size = size

    def build(self) -> Tensor:
        made = [self.x, self.y]
        for _ in range(self.size):
            made.append(self.step(made))
        loose = made[-3:]
        return self.plus(self.plus(loose[0], loose[1]), loose[2])

    def plus(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b if self.rng.random() < 0.5 else b + a

    def step(self, made: list[Tensor]) -> Tensor:
        near = made[-4:] if self.rng.random() < 0.7 else made
        a, b = self.rng.choice(near), self.rng.choice(made)
        kind = self.rng.randrange(20)
        if kind < 4:
            return self.plus(a, b)
        if kind == 4:
            return a - 0.5 * b
        if kind == 5:
            return a * torch.tanh(b)
        if kind == 6:
            return self.plus(a, a)
        if kind == 7:
            return torch.tanh(a) * torch.tanh(a)
        if kind in (8, 9):
            return torch.tanh(self.rng.choice(self.shared)(a))
        if kind == 10:
            return a.relu() + self.bias
        if kind == 11:
            left, right = torch.cat([a, b], -1).split([3, 5], -1)
            return right[:, 1:] + torch.cat([left, right[:, :1]], -1)
        if kind == 12:
            rows = a.unbind(0)
            return torch.stack([rows[2], self.plus(rows[0], rows[1]), rows[2]], 0)
        if kind == 13:
            return self.plus(a, b.mean(-1, keepdim=True))
        if kind == 14:
            return a.t().reshape(3, 4).flip(1).roll(1, 0)
        if kind == 15:
            return torch.softmax(a, -1) @ torch.cat([b, b[:1]], 0)
        if kind == 16:
            return F.layer_norm(a, (4,), self.bias)
        if kind == 17:
            return a.view(3, 2, 2).transpose(1, 2).reshape(3, 4) + b.cumsum(-1)
        if kind == 18:
            return self.plus(a.max(0).values, b)
        pieces = a.split(2, 1)
        return torch.cat([self.plus(pieces[1], pieces[0]), self.plus(pieces[0], b[:, :2])], 1)


def same(found: Tensor, expected: Tensor) -> None:
    scale = expected.abs().max().clamp(min=1e-300)
    torch.testing.assert_close(found / scale, expected / scale, rtol=0, atol=1e-8)


def compare(build: Any, leaves: list[Tensor]) -> relevance.Result:
    with slow_engine.Recorder() as recorder:
        output = build()
    seed = torch.randn(output.shape, dtype=output.dtype)
    expected = slow_engine.relevance(recorder, output, seed, EPS, watched=False)
    reached = [leaf for leaf in leaves if leaf in expected]
    r = relevance.explain(output, seed, wrt=reached, rules=relevance.presets.epsilon(EPS))
    for leaf in reached:
        same(r[leaf], expected[leaf])
    return r


@pytest.mark.parametrize("block", range(10))
def test_random_graphs(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "Walk", Shuffled)
    kinds: set[str] = set()
    for seed in range(30 * block, 30 * block + 30):
        graph = RandomGraph(seed, 3 + seed % 20)
        kinds |= set(compare(graph.build, [graph.x, graph.y]).report.promises)
    assert kinds == {"promise", "pre-promise", "aggregate"}


def test_the_order_of_the_stacks_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = RandomGraph(7, 40)
    output = graph.build()
    straight = relevance.explain(output, rules=relevance.presets.epsilon(EPS))
    monkeypatch.setattr(api, "Walk", Shuffled)
    for _ in range(10):
        shuffled = relevance.explain(output, rules=relevance.presets.epsilon(EPS))
        same(shuffled[graph.x], straight[graph.x])


def modules() -> dict[str, tuple[nn.Module, Any]]:
    return {
        "GRU": (nn.GRU(4, 5, 2, bidirectional=True), lambda m, x: m(x)[0]),
        "LSTM": (nn.LSTM(4, 5, 2), lambda m, x: m(x)[0]),
        "LSTM, last state": (nn.LSTM(4, 5), lambda m, x: m(x)[1][1]),
        "RNN": (nn.RNN(4, 5), lambda m, x: m(x)[0]),
        "MultiheadAttention": (nn.MultiheadAttention(4, 2, batch_first=True), lambda m, x: m(x, x, x)[0]),
        "TransformerEncoderLayer": (nn.TransformerEncoderLayer(4, 2, 7, 0.0, batch_first=True), lambda m, x: m(x)),
        "TransformerEncoderLayer, norm first": (
            nn.TransformerEncoderLayer(4, 2, 7, 0.0, "gelu", batch_first=True, norm_first=True),
            lambda m, x: m(x),
        ),
    }


@pytest.mark.parametrize("name", modules())
def test_modules_of_torch(name: str) -> None:
    module, call = modules()[name]
    module = module.double()
    x = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH):  # the slow engine knows the parts of attention only
        r = compare(lambda: call(module, x), [x])
    for row in r.report.nodes:
        assert row.relevance_out == pytest.approx(row.relevance_in + row.absorbed)


def test_a_node_of_many_outputs_is_asked_for_them_once() -> None:
    """Autograd lists all outputs of a node at every question: asked at each step, a sequence would cost its length squared."""

    class Counted:
        def __init__(self, fn: Any) -> None:
            self.fn, self.questions = fn, 0

        def __getattr__(self, name: str) -> Any:
            self.questions += name == "_input_metadata"
            return getattr(self.fn, name)

    fn = Counted(torch.randn(7, 3, requires_grad=True).unbind(0)[0].grad_fn)
    node = Node(fn)
    assert [tuple(node.shape(nr)) for nr in range(7)] == [(3,)] * 7
    assert fn.questions == 1

"""Walks over large graphs and odd ones, planned and not, and that nothing about the model changes."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from lutetia import relevance
from lutetia.relevance import Rules, names, presets, seen
from lutetia.relevance.promise import Promises
from relevance.residual import Residual, data


@pytest.fixture
def model() -> Residual:
    return Residual().double()


# ---- size ------------------------------------------------------------------------------------------------------------


def test_a_chain_of_ten_thousand() -> None:
    x = data(3).requires_grad_()
    y = x
    for step in range(5000):
        y = y + 1e-4 * y if step % 2 else y.flip(0)
    r = relevance.explain(y, y.detach(), rules=presets.epsilon(0))
    assert len(r.report) > 7500
    torch.testing.assert_close(r[x], y.detach() if y.detach()[0] / x.detach()[0] > 0 else y.detach().flip(0), rtol=1e-6, atol=0)


def test_a_chain_of_promises_all_open_at_once() -> None:
    """Sums of sums: nobody keeps anything, so that each promise waits for the next, down to the leaf."""
    x = data(3).requires_grad_()
    y = x
    for _ in range(3000):
        y = y + y.flip(0) * 1e-4
    r = relevance.explain(y, y.detach(), rules=presets.epsilon(0))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(r[x], gradient * x.detach(), rtol=1e-6, atol=1e-9)


def test_two_thousand_consumers() -> None:
    x = data(3).requires_grad_()
    y = x * 1.5
    total = torch.stack([y + (0.01 * i) * y for i in range(2000)]).sum(0)
    r = relevance.explain(total, total.detach(), rules=presets.epsilon(0))
    torch.testing.assert_close(r[x], total.detach())


# ---- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rules", [presets.epsilon(), presets.attnlrp(gamma=0.1), presets.dynamic()], ids=["epsilon", "attnlrp", "dynamic"]
)
def test_a_plan_finds_what_a_walk_finds(rules: Rules) -> None:
    model = nn.TransformerEncoderLayer(6, 2, 9, 0.0, batch_first=True).double()
    plan = relevance.compile(model, data(2, 5, 6), rules, wrt=["linear1", model.linear2.weight])
    for shape in ((2, 5, 6), (3, 9, 6), (4, 2, 6)):
        x = data(*shape)
        planned = plan(x, target=2)
        walked = relevance.attribute(model, x, target=2, rules=rules, wrt=["linear1", model.linear2.weight])
        for key, other in ((x, x), ("linear1", "linear1"), (model.linear2.weight, model.linear2.weight)):
            torch.testing.assert_close(planned[key], walked[other])
        assert planned.report.absorbed == pytest.approx(walked.report.absorbed)
    assert (plan.planned, plan.replayed) == (1, 3)


def test_a_changed_graph_is_planned_anew() -> None:
    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) + x if x.sum() > 0 else self.b(self.a(x).relu())

    model = Fork().double()
    up, down = data(2, 4).abs(), -data(2, 4).abs()
    plan = relevance.compile(model, up)
    for x in (up, down, down, up):
        torch.testing.assert_close(plan(x)[x], relevance.attribute(model, x)[x])
    assert (plan.planned, plan.replayed) == (3, 2)


def test_a_plan_made_on_a_small_input_fits_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "SMALL", 20)

    class Turned(nn.Module):
        """Two products, added: a small sum keeps them, a large one does not."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(data(4)), nn.Parameter(data(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.a + x.roll(1, -1) * self.b

    model = Turned().double()
    plan = relevance.compile(model, data(3, 4))
    for rows in (7, 3, 7):
        x, target = data(rows, 4), data(rows, 4)
        torch.testing.assert_close(plan(x, target)[x], relevance.attribute(model, x, target)[x])
    assert (plan.planned, plan.replayed) == (2, 2)  # the plan of a large input fits a small one


def test_a_plan_of_a_walk_that_failed_is_not_replayed() -> None:
    """It would have nothing to replay, and give relevance of 0."""

    class Fork(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x if x.sum() > 0 else torch.linalg.matrix_exp(x)

    plan = relevance.compile(Fork(), torch.eye(3))
    for _ in range(2):
        with pytest.raises(relevance.UnknownOperation):
            plan(-torch.eye(3))


def test_a_plan_asks_nothing_of_nodes_whose_graph_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.13 those of custom functions cannot answer."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    plan = relevance.compile(model, torch.randn(2, 4))
    monkeypatch.setattr(names.Modules, "around", None)
    assert {row.module for row in plan(torch.randn(2, 4)).report} == {"", "0", "1", "2"}
    assert plan.replayed == 1


def test_a_plan_holds_no_activations() -> None:
    class Probe:
        """Lives as long as the node that it is kept at."""

    held: list[weakref.ref[Probe]] = []

    class Keeping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y, probe = x.exp(), Probe()
            y.grad_fn.metadata["probe"] = probe
            held.append(weakref.ref(probe))
            return 2 * y

    plan = relevance.compile(nn.Sequential(nn.Linear(4, 3), Keeping()), torch.randn(2, 4))
    plan(torch.randn(2, 4))
    assert plan.replayed == 1
    assert [each() for each in held] == [None, None]


def test_a_plan_of_a_wide_walk_fits_other_sizes() -> None:
    """Without an ε a walk is in float64, whatever the model is in."""
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    plan = relevance.compile(model, torch.randn(2, 4), presets.epsilon(0.0))
    for rows in (5, 1):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(plan(x, 1)[x].sum(1), model(x)[:, 1])
    assert (plan.planned, plan.replayed) == (1, 2)


def test_a_plan_of_one_output_is_none_of_another() -> None:
    """Both come out of the same node."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(6, 8)

        def forward(self, x: Tensor) -> Any:
            return self.line(x).chunk(2, 1)

    model, x = Halves().double(), data(2, 6)
    plan = relevance.compile(model, x)
    for target in (("0", 2), ("1", 2), ("1", 1)):
        torch.testing.assert_close(plan(x, target)[x], relevance.attribute(model, x, target)[x])
    assert (plan.planned, plan.replayed) == (2, 2)


def test_random_graphs_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    from test_engine import EPS, RandomGraph, same

    class Model(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.graph = RandomGraph(seed, 3 + seed % 20)

        def forward(self, x: Tensor) -> Tensor:
            self.graph.rng = random.Random(3)
            self.graph.x = x
            return self.graph.build()

    rules = presets.epsilon(EPS)
    for seed in range(40):
        model = Model(seed)
        plan = relevance.compile(model, data(3, 4), rules)
        x = data(3, 4)
        target = data(3, 4)
        same(plan(x, target)[x], relevance.attribute(model, x, target, rules)[x])
        assert plan.planned == 1


# ---- nothing changes -------------------------------------------------------------------------------------------------


def test_a_later_backward_works(model: Residual) -> None:
    x = data(2, 5).requires_grad_()
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()] + [x.grad.clone()]
    model.zero_grad()
    x.grad = None
    output = model(x)
    calls: list[Tensor] = []
    output.register_hook(calls.append)
    relevance.explain(output, wrt=[x, model.head.weight])
    relevance.explain(output, wrt=[x, model.head.weight])
    assert calls == []
    assert all(parameter.grad is None for parameter in model.parameters())
    output.sum().backward()
    for found, wanted in zip([p.grad for p in model.parameters()] + [x.grad], expected, strict=True):
        assert torch.equal(found, wanted)


def test_a_used_graph_is_refused(model: Residual) -> None:
    x = data(2, 5).requires_grad_()
    output = model(x)
    output.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        relevance.explain(output)


def test_attribute_leaves_everything_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 3))
    model[0].weight.requires_grad_(False)
    model[4].train(False)
    model[0].register_forward_hook(lambda *args: None)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = [len(module._forward_hooks) for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    training = [module.training for module in model.modules()]
    x = torch.randn(4, 5)
    state = torch.get_rng_state()
    relevance.attribute(model, x, wrt=["1", model[4].weight])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert [module.training for module in model.modules()] == training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not x.requires_grad
    assert x.grad is None
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


def test_a_model_that_fails_is_put_back() -> None:
    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("broken")

    model = Broken(3, 3).requires_grad_(False)
    with pytest.raises(ValueError, match="broken"):
        relevance.attribute(model, torch.zeros(1, 3))
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not nn.modules.module._global_forward_hooks


# ---- other graphs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 9, 0.0, batch_first=True)
    x = torch.randn(2, 5, 8)
    expected = relevance.attribute(model.double(), x.double(), target=1, rules=presets.attnlrp(1e-2))
    r = relevance.attribute(model.to(dtype), x.to(dtype), target=1, rules=presets.attnlrp(1e-2))
    found = r[r.keys()[0]]
    assert found.dtype == dtype
    assert found.isfinite().all()
    if dtype == torch.float32:
        wanted = expected[expected.keys()[0]]
        assert (found.double() - wanted).norm() < 1e-3 * wanted.norm()


def test_recomputed_graphs(model: Residual) -> None:
    x = data(2, 5).requires_grad_()
    plain = relevance.explain(model.head(model.layers[0](x)))[x]
    kept = relevance.explain(model.head(recompute(model.layers[0], x, use_reentrant=False)))
    torch.testing.assert_close(kept[x], plain)
    with pytest.raises(relevance.UnknownOperation, match="use_reentrant=False"):
        relevance.explain(model.head(recompute(model.layers[0], x, use_reentrant=True)))


def test_parts_without_gradients() -> None:
    """What runs under no_grad is a constant: it leaves no node, and takes no relevance."""
    layer = nn.Linear(4, 4).double()
    x = data(2, 4).requires_grad_()
    with torch.no_grad():
        gate = torch.sigmoid(layer(x))
    r = relevance.explain(x * gate, torch.ones(2, 4, dtype=torch.float64))
    torch.testing.assert_close(r[x], torch.ones(2, 4, dtype=torch.float64))


def test_a_deadlock_names_what_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """When arguments get lost on their way up, the promises that wait for them are told, and why."""
    monkeypatch.setattr(Promises, "argue", lambda self, branch, value, at: None)
    x = data(3).requires_grad_()
    with pytest.raises(relevance.Deadlock, match=r"promise of AddBackward0 \(node 0\) has no argument for input 0"):
        relevance.explain(x.tanh() + x.exp())


def test_lstm_in_float32_has_a_rule() -> None:
    module = nn.LSTM(4, 5)
    x = torch.randn(3, 2, 4)
    single = relevance.attribute(module, x, rules=presets.epsilon(1e-2))
    double = relevance.attribute(module.double(), x.double(), rules=presets.epsilon(1e-2))
    found, expected = single[single.keys()[0]].double(), double[double.keys()[0]]
    assert (found - expected).norm() < 1e-3 * expected.norm()


def test_images() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)
    )
    x = torch.randn(2, 3, 9, 9)
    model(x)
    r = relevance.attribute(model, x, rules=presets.zplus().first(relevance.ZBox(-3.0, 3.0)))
    assert r[x].shape == x.shape
    assert F.relu(-r[x]).max() < 1e-4  # z⁺ and z-box hand on no negative relevance


class Thing:
    """Something whose end can be seen."""


class Holding(torch.autograd.Function):
    """Doubles its input, and keeps a thing in the graph."""

    things: ClassVar[list[Any]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.thing = Thing()
        Holding.things.append(weakref.ref(ctx.thing))
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * grads[0]


def test_a_walked_graph_is_let_go_at_once() -> None:
    """Without a collector: a loop over many inputs must not pile their activations up."""
    rules = Rules().on("HoldingBackward", lambda node, R: R)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model.register_forward_hook(lambda module, inputs, output: Holding.apply(output))
    x = torch.randn(2, 3)
    given: list[weakref.ref[Tensor]] = []
    gc.collect()
    gc.disable()
    try:
        results = [relevance.attribute(model, x, rules=rules) for _ in range(3)]
        assert [thing() for thing in Holding.things] == [None] * 3
        for _ in range(2):
            one = torch.randn(2, 3)
            relevance.attribute(model, (one,), rules=rules)
            given.append(weakref.ref(one))
            del one
        assert [each() for each in given] == [None] * 2
        y = model(x.requires_grad_())
        relevance.explain(y, rules=rules)
        assert Holding.things[-1]() is not None  # the graph is the user's
        del y
        assert Holding.things[-1]() is None
    finally:
        gc.enable()
    assert results[0].output.grad_fn is None
    assert gc.isenabled()

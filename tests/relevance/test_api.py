"""The surface: targets, wrt, names, reports, custom rules, plans, errors, and that nothing about the model changes."""

from __future__ import annotations

import gc
import random
import weakref
from collections import OrderedDict
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from lutetia import flow, relevance
from lutetia.errors import ArgumentError
from lutetia.relevance import Epsilon, Gamma, Identity, Rules, Zero, presets
from lutetia.relevance.engine import Walk
from lutetia.relevance.promise import Promises


class Residual(nn.Module):
    """Three residual blocks of one shared layer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 5)) for _ in range(3))
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


@pytest.fixture
def model() -> Residual:
    return Residual().double()


def data(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# ---- targets ---------------------------------------------------------------------------------------------------------


def test_the_default_target_is_each_rows_largest(model: Residual) -> None:
    x = data(6, 5)
    r = relevance.attribute(model, x)
    best = r.output.argmax(1)
    assert torch.equal(r[x], relevance.attribute(model, x, target=best)[x])
    assert torch.equal(r.seed, torch.zeros(6, 4).double().scatter(1, best[:, None], r.output.detach().gather(1, best[:, None])))


def test_an_index_starts_with_the_outputs_own_value(model: Residual) -> None:
    x = data(6, 5)
    r = relevance.attribute(model, x, target=-1)
    seed = torch.zeros(6, 4, dtype=torch.float64)
    seed[:, 3] = model(x).detach()[:, 3]
    torch.testing.assert_close(r.seed, seed)
    assert torch.equal(relevance.attribute(model, x, target=seed)[x], r[x])
    many = relevance.attribute(model, x, target=torch.tensor([0, 1, 2, 3, 0, 1]))
    for row, index in enumerate([0, 1, 2, 3, 0, 1]):
        torch.testing.assert_close(many[x][row], relevance.attribute(model, x, target=index)[x][row])


def test_relevance_is_linear_in_the_seed(model: Residual) -> None:
    x, one, other = data(3, 5), data(3, 4), data(3, 4)
    both = relevance.attribute(model, x, target=2 * one + other)[x]
    torch.testing.assert_close(
        both, 2 * relevance.attribute(model, x, target=one)[x] + relevance.attribute(model, x, target=other)[x]
    )


def test_a_single_number_and_more_dimensions() -> None:
    x = data(3).requires_grad_()
    torch.testing.assert_close(relevance.explain((2 * x).sum(), rules=presets.epsilon(0))[x], 2 * x.detach())
    y = data(2, 3, 4).requires_grad_()
    r = relevance.explain(1.0 * y, torch.tensor([1, 3]))
    assert r.seed.count_nonzero() == 6
    torch.testing.assert_close(r.seed[1, :, 3], y.detach()[1, :, 3])


@pytest.mark.parametrize(
    "target", [7, -5, True, "3", 1.5, torch.tensor([0, 1]), torch.tensor([0.5, 1.0]), torch.tensor([True] * 6)], ids=str
)
def test_wrong_targets(model: Residual, target: Any) -> None:
    with pytest.raises(ArgumentError, match="target"):
        relevance.attribute(model, data(6, 5), target=target)


# ---- what relevance is asked for -------------------------------------------------------------------------------------


def test_leaves_non_leaves_names_and_parameters(model: Residual) -> None:
    x = data(2, 5).requires_grad_()
    middle = model.layers[0](x)
    output = model.head(middle + x)
    r = relevance.explain(output, wrt=[x, middle, model.head.weight])
    assert [r[key].shape for key in r.keys()] == [x.shape, middle.shape, model.head.weight.shape]  # noqa: SIM118
    with relevance.watch(model):
        output = model(x)
    r = relevance.explain(output, wrt=["layers.1", "layers.1.0", x])
    assert r["layers.1"].shape == (2, 5)
    assert r["layers.1.0"].shape == (2, 7)
    # What enters the second linear layer of the block is what leaves the first.
    assert r["layers.1.0"].sum() == pytest.approx(
        float(relevance.attribute(model, x.detach(), wrt=["layers.1.1"])["layers.1.1"].sum())
    )


def test_what_a_block_gets_is_split_between_its_branches(model: Residual) -> None:
    """At x + f(x): what arrives at f's output and at x is what stood at the sum."""
    x = data(2, 5)
    model.head.bias.data.zero_()
    r = relevance.attribute(model, x, wrt=["layers.2", "layers.1"], rules=presets.epsilon(0.0))
    last, before = r["layers.2"], r["layers.1"]
    with relevance.watch(model):
        leaf = x.clone().requires_grad_()
        output = model(leaf)
    w = model.head.weight.detach()
    hidden = x
    for layer in model.layers[:2]:
        hidden = hidden + layer(hidden)
    total = hidden + model.layers[2](hidden)
    stands = total * (r.seed / output.detach().where(output.detach() != 0, torch.ones(())) @ w)
    torch.testing.assert_close(last, (stands * model.layers[2](hidden) / total).detach())
    assert before.shape == (2, 5)


def test_checkpoints_are_kept_by_name() -> None:
    x = data(3, 4).requires_grad_()
    y = relevance.checkpoint(torch.relu(2 * x), "after relu")
    z = relevance.checkpoint(y.t(), "turned")
    r = relevance.explain((z + z.flip(0)).sum(0), data(3))
    assert r["after relu"].shape == (3, 4)
    torch.testing.assert_close(r["after relu"], r["turned"].t())
    torch.testing.assert_close(r["after relu"], r[x])
    assert set(r.keys()) >= {"after relu", "turned"}


def test_a_checkpoint_is_the_identity() -> None:
    x = data(3, 4).requires_grad_()
    y = relevance.checkpoint(x, "here")
    assert torch.equal(y, x)
    (2 * y).sum().backward()
    assert torch.equal(x.grad, torch.full((3, 4), 2.0).double())
    assert relevance.checkpoint(x.detach(), "nothing to walk") is not None


def test_mappings_tuples_tokens_and_unused_inputs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, ids: Tensor, scale: Tensor, mask: Tensor, unused: Tensor | None = None) -> dict[str, Tensor]:
            return OrderedDict(loss=torch.zeros(()), logits=self.head((self.table(ids) * mask[..., None] * scale).mean(1)))

    model, ids, scale, mask = Model(), torch.randint(0, 9, (2, 5)), torch.rand(2, 1, 1), torch.ones(2, 5, dtype=torch.long)
    unused = torch.randn(3)
    r = relevance.attribute(model, {"ids": ids, "scale": scale, "mask": mask, "unused": unused}, target=1)
    assert r[ids].shape == ids.shape
    assert r[scale].shape == scale.shape
    assert (r[unused] == 0).all()
    assert mask not in r
    with pytest.raises(KeyError, match="no relevance was asked for"):
        r[mask]
    again = relevance.attribute(model, (ids, scale, mask), target=1)
    assert torch.equal(again[ids], r[ids])


def test_wrong_arguments(model: Residual) -> None:
    x = data(2, 5).requires_grad_()
    output = model(x)
    for wrong in (output.detach(), "output", output.argmax(1), 3):
        with pytest.raises(ArgumentError, match="output"):
            relevance.explain(wrong)
    with pytest.raises(ArgumentError, match="does not depend"):
        relevance.explain(output, wrt=[data(2).requires_grad_()])
    with pytest.raises(ArgumentError, match="does not require grad"):
        relevance.explain(output, wrt=[data(2)])
    with pytest.raises(ArgumentError, match="no embedding"):
        relevance.explain(output, wrt=[torch.tensor([1, 2])])
    with pytest.raises(ArgumentError, match=r"wrt names 'layers.9'.*watch"):
        relevance.explain(output, wrt=["layers.9"])
    with pytest.raises(ArgumentError, match="wrt"):
        relevance.explain(output, wrt=[3])
    with pytest.raises(ArgumentError, match="rules"):
        relevance.explain(output, rules=Epsilon())
    with pytest.raises(ArgumentError, match="nothing to explain"):
        relevance.explain(model(x.detach()))
    with pytest.raises(ArgumentError, match=r"nn\.Module"):
        relevance.attribute(lambda x: x, x)
    with pytest.raises(ArgumentError, match="inputs"):
        relevance.attribute(model, 3)


# ---- rules by type, name and place -----------------------------------------------------------------------------------


def test_rules_by_node_module_and_first_layer(model: Residual) -> None:
    x = data(2, 5)
    rules = Rules().on("AddmmBackward0", Gamma(0.5)).named("head", Zero()).first(relevance.Flat())
    r = relevance.attribute(model, x, rules=rules)
    used = {(row.module, row.index): row.rule for row in r.report if "Addmm" in row.name}
    in_order = [rule for _, rule in sorted(used.items(), key=lambda item: item[0][1])]
    assert in_order[0] == "Addmm, Epsilon(eps=0.0)"
    assert "Flat" in in_order[-1]
    assert all("Gamma(gamma=0.5" in rule for rule in in_order[1:-1])
    assert len(in_order) == 7


def test_rules_are_values(model: Residual) -> None:
    base = presets.epsilon()
    changed = base.named("layers.*", Gamma())
    assert base.names == ()
    assert changed != base
    x = data(2, 5)
    r = relevance.attribute(model, x, rules=changed)
    assert {row.rule for row in r.report if row.module.startswith("layers") and "Addmm" in row.name} == {
        "Addmm, Gamma(gamma=0.25, eps=1e-06)"
    }
    assert {row.rule for row in r.report if row.module.startswith("layers") and "Relu" in row.name} == {"Activation, Identity()"}


def test_a_function_is_a_rule() -> None:
    x = data(2, 5).requires_grad_()
    doubled = relevance.explain(x.tanh(), data(2, 5).fill_(1), rules=Rules().on("TanhBackward0", lambda node, R: 2 * R))
    assert torch.equal(doubled[x], torch.full((2, 5), 2.0).double())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rules(linear=Identity()),
        lambda: Rules(sum=Gamma()),
        lambda: Rules(bias="keep"),
        lambda: Rules().on("", Epsilon()),
        lambda: Rules().on("X", 3),
        lambda: Rules().named(3, Epsilon()),
        lambda: Epsilon(-1),
        lambda: relevance.AlphaBeta(2, 2),
        lambda: Gamma(float("nan")),
        lambda: presets.epsilon("small"),
        lambda: relevance.rule(3),
        lambda: relevance.checkpoint(3, "x"),
        lambda: relevance.checkpoint(torch.zeros(3), ""),
    ],
)
def test_wrong_rules(make: Any) -> None:
    with pytest.raises(ArgumentError):
        make()


def test_a_rule_that_does_not_suit_is_refused() -> None:
    x = data(2, 5).requires_grad_()
    with pytest.raises(ArgumentError, match=r"AddBackward0.*'sum'"):
        relevance.explain(x + x.tanh(), rules=Rules().on("AddBackward0", Gamma()))


class Cube(torch.autograd.Function):
    """x³ + y, which keeps nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, note: str, y: Tensor) -> Tensor:
        ctx.note = note
        return x**3 + y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError


def test_an_unknown_operation_is_named() -> None:
    x = data(3).requires_grad_()
    y = 2 * Cube.apply(x, "n", x)
    with pytest.raises(relevance.UnknownOperation, match=r"CubeBackward \(node 1\).*relevance.rule\('CubeBackward'\)"):
        relevance.explain(y)
    loose = relevance.explain(y, strict=False)
    assert (loose[x] == 0).all()
    assert loose.report.unknown == ["CubeBackward (node 1)"]
    with pytest.raises(relevance.UnknownOperation, match="output is needed"):
        relevance.explain(y + x)


def test_a_custom_rule_gets_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    from lutetia.relevance import registry

    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))

    @relevance.rule("CubeBackward", needs=(0, 1), value=lambda node, x, y: x**3 + y)
    def cube(node: Any, R: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, None, Tensor]:
        assert node.fn.note == "n"
        s = R / (x**3 + y)
        return s * x**3, None, s * y

    a, b = data(3).requires_grad_(), data(3).requires_grad_()
    x, y = a + 2 * b, a * 3
    output = Cube.apply(x, "n", y) + x
    R = data(3)
    r = relevance.explain(output, R, rules=presets.epsilon(0))
    with torch.no_grad():
        s = R / output
        expected = s * (a * (x**2 + 1)) + s * y
    torch.testing.assert_close(r[a], expected)


def test_a_wrong_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from lutetia.relevance import registry

    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))
    relevance.rule("CubeBackward")(lambda node, R: (R, R, R, R))
    x = data(3).requires_grad_()
    with pytest.raises(ArgumentError, match=r"CubeBackward.*2 relevances"):
        relevance.explain(Cube.apply(x, "n", x))


# ---- the report and the story ----------------------------------------------------------------------------------------


def test_the_report(model: Residual) -> None:
    x = data(2, 5)
    r = relevance.attribute(model, x)
    report = r.report
    assert report.promises["promise"] >= 3
    assert report.modes["NTM"] > 0
    assert report.modes["PTM"] > 0
    first = report.nodes[0]
    assert (first.name, first.module) == ("AddmmBackward0", "head")
    assert first.relevance_out == pytest.approx(float(r.seed.sum()))
    for row in report:
        assert row.relevance_out == pytest.approx(row.relevance_in + row.absorbed)
    arrived = sum(row.relevance_out for row in report if row.ends)
    assert arrived == pytest.approx(float(r[x].sum()))
    assert float(r.seed.sum()) == pytest.approx(arrived + report.absorbed)
    assert report.rules["Addmm, Epsilon(eps=1e-06)"] == 7
    text = str(report)
    assert "AddmmBackward0" in text
    assert "layers.2.0" in text
    assert "promises" in repr(report)


def test_the_story_is_told(model: Residual) -> None:
    x = data(2, 5).requires_grad_()
    a = torch.tanh(x)
    output = a + 0.1 * (a.sin() + x) + (x.exp() + x.cos()).flip(0)
    with flow.record() as recorded:
        relevance.explain(output, data(2, 5))
    names = [step.name for step in recorded.part("relevance")]
    for part in ("relevance walk", "promise made at AddBackward0", "pre-promise made", "NTM → PTM", "completed", "stalled"):
        assert any(part in name for name in names), part
    drawn = recorded.mermaid()
    assert "promise made at AddBackward0" in drawn
    assert "promise completed at AddBackward0" in drawn


def test_nothing_is_told_when_nobody_listens(model: Residual, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "_tell", lambda *args: pytest.fail("told"))
    relevance.attribute(model, data(2, 5))


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
    gc.collect()
    gc.disable()
    try:
        results = [relevance.attribute(model, x, rules=rules) for _ in range(3)]
        assert [thing() for thing in Holding.things] == [None] * 3
        y = model(x.requires_grad_())
        relevance.explain(y, rules=rules)
        assert Holding.things[3]() is not None  # the graph is the user's
        del y
        assert Holding.things[3]() is None
    finally:
        gc.enable()
    assert results[0].output.grad_fn is None
    assert gc.isenabled()

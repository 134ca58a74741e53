"""The surface: targets, what relevance is asked for, rules, the report, errors."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia import flow, relevance
from lutetia.errors import ArgumentError
from lutetia.relevance import Epsilon, Gamma, Identity, Rules, Zero, presets
from lutetia.relevance.engine import Walk
from relevance.residual import Residual, data


@pytest.fixture
def model() -> Residual:
    return Residual().double()


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
    with pytest.raises(KeyError, match="relevance was not requested for"):
        r[mask]
    with pytest.raises(
        KeyError, match=r"not requested for this tensor, a tensor \[.*by identity, and a copy is another tensor; known"
    ):
        r[scale.clone()]
    with pytest.raises(KeyError, match=r"not requested for this tensor, a tensor \[7\]: tensors are looked up by identity"):
        r[torch.zeros(7)]
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
    with pytest.raises(relevance.UnknownOperation, match=r"output is needed.*value=lambda node"):
        relevance.explain(y + x)


class Scaled(torch.autograd.Function):
    """x times a weight for each column."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        return grads[0] * weight, grads[0] * x


def test_what_the_error_of_an_unknown_operation_says_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways out: the option, and the line to paste."""
    from lutetia.relevance import registry

    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))
    x, weight, matrix = data(2, 3).requires_grad_(), nn.Parameter(data(3)), nn.Parameter(data(3, 3))
    y = Scaled.apply(x @ matrix, weight)
    with pytest.raises(relevance.UnknownOperation, match=r"unknown=.linear.") as caught:
        relevance.explain(y, y.detach())
    shared = relevance.explain(y, y.detach(), unknown="linear")[x]
    line = str(caught.value).partition("passes everything on is ")[2]
    assert line == "relevance.rule('ScaledBackward')(lambda node, R: (R, None))"
    assert eval(line, {"relevance": relevance}) is not None
    torch.testing.assert_close(relevance.explain(y, y.detach())[x], shared, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*deprecated", "ignore:.*autograd kernel")
@pytest.mark.parametrize("options", [{}, {"unknown": "linear"}])
def test_quantised_layers_are_refused_with_what_to_do(options: dict[str, Any]) -> None:
    """Treated as linear maps they would give their inputs nothing, without a word: torch has no gradient for them."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    with pytest.raises(relevance.UnknownOperation, match=r"explain the float model, as it was before quantising$") as caught:
        relevance.attribute(quantised, torch.ones(1, 4), **options)
    assert "unknown=" not in str(caught.value)


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


def test_a_complex_input_gets_the_relevance_of_both_its_parts() -> None:
    x = torch.randn(4, 8, dtype=torch.complex128)
    line = nn.Linear(16, 3, bias=False, dtype=torch.float64)

    class Spectrum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return line(torch.cat([torch.fft.fft(x).real, x.imag], 1))

    found = relevance.attribute(Spectrum(), x, target=1)[x]
    given = x.clone().requires_grad_()
    Spectrum()(given)[:, 1].sum().backward()
    assert given.grad is not None
    wanted = torch.complex(given.grad.real * x.real, given.grad.imag * x.imag)  # a linear map: gradient × input
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.real.sum(1) + found.imag.sum(1), Spectrum()(x)[:, 1].detach(), rtol=1e-4, atol=1e-4)

"""Methods that replace groups of values, and those that read slopes of several inputs: slow definitions, closed forms, captum."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia import relevance
from lutetia.errors import ArgumentError
from lutetia.relevance import methods
from tools import optional_module

A, B = (
    torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(at))
    for at, shape in enumerate([(4,), (2, 2)])
)
GROUPS = torch.tensor([0, 7, 7, 1]), torch.tensor([[1, 2], [2, 2]])  # 1 is in both; four groups


class Two(nn.Module):
    """Two inputs of floats, and a number; nothing about it is linear or smooth."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.out = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 3)
        self.double()

    def forward(self, a: Tensor, b: Tensor, power: float = 1.0) -> Tensor:
        return self.out(torch.relu(self.a(a)) * torch.tanh(self.b(b.flatten(1))) ** power)


def slow_shapley(score: Any, groups: int, together: Any) -> Tensor:
    """By the definition: what a group adds when it joins, averaged over all orders. `together`: the inputs with some groups."""
    orders = list(permutations(range(groups)))
    values = [torch.zeros(3, dtype=torch.float64) for _ in range(groups)]
    for order in orders:
        for at, group in enumerate(order):
            values[group] += (score(*together(order[: at + 1])) - score(*together(order[:at]))) / len(orders)
    return torch.stack(values)


def some_of_two(blank_a: float, blank_b: float) -> Any:
    names = [0, 1, 2, 7]

    def together(there: Any) -> tuple[Tensor, Tensor]:
        numbers = [names[each] for each in there]
        keep_a, keep_b = (torch.isin(group, torch.tensor(numbers, dtype=torch.long)) for group in GROUPS)
        return torch.where(keep_a, A, blank_a), torch.where(keep_b, B, blank_b)

    return together


def of_groups(found: tuple[Tensor, Tensor]) -> Tensor:
    """The value of each of the four groups, [4, B]; all its values must say the same."""
    for part, group in zip(found, GROUPS, strict=True):
        for number in group.unique():
            assert (part[:, group == number] == part[:, group == number][:, :1]).all()
    assert torch.equal(found[0][:, 3], found[1][:, 0, 0])
    return torch.stack([found[0][:, 0], found[0][:, 3], found[1][:, 0, 1], found[0][:, 1]])


def test_shapley_values_by_their_definition() -> None:
    model = Two()
    slow = slow_shapley(lambda a, b: model(a, b)[:, 1].detach(), 4, some_of_two(0.5, -1.0))
    exact = methods.shapley(model, (A, B), 1, groups=GROUPS, baseline=(0.5, -1.0), at_once=3)
    torch.testing.assert_close(of_groups(exact), slow)
    kernel = methods.kernel_shap(model, (A, B), 1, groups=GROUPS, baseline=(0.5, -1.0))
    torch.testing.assert_close(of_groups(kernel), slow)


def test_as_captum_has_them() -> None:
    captum = optional_module("captum.attr")
    model = Two()
    settings: dict[str, Any] = {
        "baselines": (0.5, -1.0),
        "target": 1,
        "feature_mask": tuple(each[None].clamp(max=3) for each in GROUPS),
    }
    ours: dict[str, Any] = {"target": 1, "baseline": (0.5, -1.0), "groups": GROUPS}
    theirs = captum.FeatureAblation(model).attribute((A, B), **settings)
    torch.testing.assert_close(methods.ablation(model, (A, B), **ours, at_once=3), theirs, check_dtype=False)
    theirs = captum.ShapleyValues(model).attribute((A, B), **settings)
    torch.testing.assert_close(methods.shapley(model, (A, B), **ours), theirs, check_dtype=False)
    leaves = A.clone().requires_grad_(), B.clone().requires_grad_()
    theirs = captum.IntegratedGradients(model).attribute(leaves, (0.5, -1.0), target=1, n_steps=20)
    found = methods.integrated(model, (A, B), 1, baseline=(0.5, -1.0), steps=20)
    torch.testing.assert_close(found, tuple(each.detach() for each in theirs), rtol=1e-5, atol=1e-6)  # its steps are float32


def test_what_is_drawn_comes_near_to_all() -> None:
    torch.manual_seed(2)
    model, x = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2)).double(), torch.randn(3, 10, dtype=torch.float64)
    every = methods.shapley(model, x, 0, samples=103)  # 2¹⁰ subsets are less than 103 · 10 runs
    slow = methods.shapley(model, x, 0, samples=100, seed=3, at_once=5)  # and more than 100 · 10
    fast = methods.shapley(model, x, 0, samples=100, seed=3, at_once=500)
    kernel = methods.kernel_shap(model, x, 0, samples=1000)  # drawn from 1,022, some twice
    near = 0.05 * float(every.abs().max())
    gained = (model(x) - model(0 * x))[:, 0].detach()
    for found in (every, slow, kernel):
        torch.testing.assert_close(found.sum(1), gained)
        torch.testing.assert_close(found, every, rtol=0, atol=near)
    torch.testing.assert_close(slow, fast)
    assert not torch.allclose(slow, every)
    torch.testing.assert_close(methods.kernel_shap(model, x, 0, samples=1022), every)
    one = methods.shapley(model, x, 0, samples=1, seed=1)
    assert not torch.allclose(one, methods.shapley(model, x, 0, samples=1, seed=2))
    torch.testing.assert_close(one.sum(1), gained)


def test_kernel_shap_of_a_linear_function_needs_few_subsets() -> None:
    weight = torch.linspace(-1, 2, 40, dtype=torch.float64)
    x = torch.randn(2, 40, dtype=torch.float64)
    found = methods.kernel_shap(lambda y: y @ weight, x, baseline=0.25, samples=120)
    torch.testing.assert_close(found, (x - 0.25) * weight)
    one = methods.kernel_shap(lambda y: y.sum(1), x, groups=torch.tensor(3))
    torch.testing.assert_close(one, x.sum(1, keepdim=True).expand_as(x))
    few = methods.kernel_shap(lambda y: y @ weight, x, samples=7)  # which leave a choice
    torch.testing.assert_close(few.sum(1), x @ weight)


def test_lime_as_captum_has_it() -> None:
    captum, models = optional_module("captum.attr"), optional_module("captum._utils.models.linear_model")
    model, x = Two(), (A[:1], B[:1])
    drawn = torch.rand(60, 4, generator=torch.Generator().manual_seed(5)) < 0.5
    drawn[0] = True
    steps = iter(drawn)
    theirs = captum.Lime(
        model,
        models.SkLearnRidge(alpha=0.7),
        lambda _, __, there, **___: torch.exp(-((1 - there.double().mean().sqrt()) ** 2) / (2 * 0.4**2)),
        lambda *_, **__: next(steps)[None].long(),
    ).attribute(
        x, (0.5, -1.0), target=1, feature_mask=(torch.tensor([[0, 3, 3, 1]]), torch.tensor([[[1, 2], [2, 2]]])), n_samples=60
    )
    ours = methods.lime(model, x, 1, groups=GROUPS, baseline=(0.5, -1.0), samples=60, width=0.4, penalty=0.7, seed=5)
    torch.testing.assert_close(ours, theirs, check_dtype=False, rtol=1e-4, atol=1e-5)  # captum computes in float32


def test_lime_of_a_linear_function() -> None:
    weight = torch.linspace(-1, 2, 6, dtype=torch.float64)
    x = torch.randn(2, 6, dtype=torch.float64)
    found = methods.lime(lambda y: 3 + y @ weight, x, penalty=0.0, samples=50, at_once=7)
    torch.testing.assert_close(found, x * weight)
    shrunk = methods.lime(lambda y: 3 + y @ weight, x, penalty=1e6, samples=50)
    assert (shrunk.abs() < 1e-3).all()


def test_expected_gradients() -> None:
    captum = optional_module("captum.attr")
    model, grounds = Two(), (0.5 * A.flip(0), B - 1)
    many = methods.expected(model, (A, B), 1, background=grounds, samples=3000, at_once=500)
    torch.manual_seed(0)
    leaves = A.clone().requires_grad_(), B.clone().requires_grad_()
    theirs = captum.GradientShap(model).attribute(leaves, grounds, n_samples=3000, stdevs=0.0, target=1)
    torch.testing.assert_close(many, tuple(each.detach() for each in theirs), rtol=0, atol=0.03)
    paths = [methods.integrated(model, (A, B), 1, baseline=(grounds[0][at], grounds[1][at]), steps=300) for at in range(3)]
    mean = tuple(torch.stack(each).mean(0) for each in zip(*paths, strict=True))
    torch.testing.assert_close(many, mean, rtol=0, atol=0.01)
    few = methods.expected(model, (A, B), 1, background=grounds, samples=5, at_once=2)
    torch.testing.assert_close(few, methods.expected(model, (A, B), 1, background=grounds, samples=5, at_once=5))
    assert not torch.equal(few[0], methods.expected(model, (A, B), 1, background=grounds, samples=5, seed=1)[0])


def test_expected_gradients_of_a_linear_function_take_every_row_as_often() -> None:
    weight, ground = torch.tensor([1.0, -2.0, 3.0]), torch.randn(4, 3)
    found = methods.expected(lambda y: y @ weight, A[:, :3].float(), background=ground, samples=8)
    torch.testing.assert_close(found, (A[:, :3].float() - ground.mean(0)) * weight)


# ---- what goes in, and what comes out --------------------------------------------------------------------------------


class Reader(nn.Module):
    """Tokens, a mask, and two outputs with names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table, self.out = nn.Embedding(20, 5), nn.Linear(5, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        state = (self.table(input_ids).tanh() * attention_mask[..., None]).sum(1)
        return {"state": state, "logits": self.out(state)}


TOKENS = {"input_ids": torch.tensor([[3, 4, 5, 6], [7, 7, 8, 0]]), "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])}


def test_tokens_are_replaced_where_they_have_a_baseline() -> None:
    model = Reader()
    found = methods.shapley(model, TOKENS, 2, baseline={"input_ids": 9})
    assert list(found) == ["input_ids"]
    assert found["input_ids"].dtype == torch.float32
    added = model.table.weight.tanh() @ model.out.weight[2]  # of a sum, each token has its own part
    expected = (added[TOKENS["input_ids"]] - added[9]) * TOKENS["attention_mask"]
    torch.testing.assert_close(found["input_ids"], expected.detach())
    alone = methods.ablation(lambda ids: model(ids, torch.ones_like(ids)), TOKENS["input_ids"], 2, baseline=9)
    torch.testing.assert_close(alone, (added[TOKENS["input_ids"]] - added[9]).detach())


def test_targets_are_those_of_attribute() -> None:
    model = Reader()
    run: Any = lambda target: methods.ablation(model, TOKENS, target, baseline={"input_ids": 9})["input_ids"]  # noqa: E731
    torch.testing.assert_close(run("state"), run(("state", None)))
    torch.testing.assert_close(run(("state", 3)), run(lambda output: output["state"][:, 3]))
    torch.testing.assert_close(run({"state": 3, "logits": [1, 0]}), run(("state", 3)) + run(torch.tensor([1, 0])))
    torch.testing.assert_close(run(relevance.Contrast(1, 0)), run(lambda output: output["logits"][:, 1] - output["logits"][:, 0]))


def test_only_what_has_a_baseline_is_explained() -> None:
    model = Two()
    one = methods.ablation(model, (A, B, 2.0), 1, baseline=(0.5, None, None))
    assert one[1:] == (None, None)
    torch.testing.assert_close(one[0], methods.ablation(lambda a: model(a, B.repeat(len(a) // 3, 1, 1), 2.0), A, 1, baseline=0.5))
    both = methods.gradient(model, {"a": A, "b": B}, 1)
    assert [each.shape for each in both.values()] == [A.shape, B.shape]
    torch.testing.assert_close(both["a"], methods.gradient(model, (A, B), 1)[0])


def test_grad_cam_as_captum_has_it() -> None:
    captum = optional_module("captum.attr")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 5)
    )
    model.double()
    x = torch.randn(3, 2, 14, 12, dtype=torch.float64)
    for layer, found in (("3", methods.grad_cam(model, x, 2, layer="3")), ("4", methods.grad_cam(model, x, 2))):
        theirs = captum.LayerGradCam(model, model[int(layer)]).attribute(x, target=2, relu_attributions=True)
        theirs = captum.LayerAttribution.interpolate(theirs, x.shape[2:], "bilinear")
        torch.testing.assert_close(found.sum(1, keepdim=True), theirs.detach())
        torch.testing.assert_close(found[:, 0], found[:, 1])
    assert torch.equal(methods.grad_cam(model, x, 2, layer=model[3]), methods.grad_cam(model, x, 2, layer="3"))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


class Steps(nn.Module):
    """A residual net with pools, an in-place function, and a function that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.pool, self.next = nn.Conv2d(2, 4, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.bend, self.rectify, self.out = nn.BatchNorm2d(4), nn.Softplus(), nn.ReLU(inplace=True), nn.Linear(36, 3)
        self.norm.running_mean.normal_()

    def forward(self, x: Tensor) -> Tensor:
        x = self.bend(self.pool(self.first(x)))
        x = x + self.rectify(self.norm(self.next(x)))
        return self.out(self.bend(x).flatten(1).sigmoid())


def test_deeplift_as_captum_has_it() -> None:
    """A pool beside a function is left out: there captum's contributions do not add up."""
    captum = optional_module("captum.attr")
    torch.manual_seed(1)
    begin = nn.Conv2d(2, 4, 3, padding=1), nn.ELU(), nn.Conv2d(4, 4, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(4, 6, 2)
    parts = *begin, nn.ReLU(), nn.Flatten(), nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, 3)
    model, x, blank = nn.Sequential(*parts).double(), torch.randn(5, 2, 6, 6).double(), torch.randn(5, 2, 6, 6).double()
    theirs = captum.DeepLift(model).attribute(x.clone().requires_grad_(), blank, target=1)
    torch.testing.assert_close(methods.deeplift(model, x, 1, baseline=blank), theirs.detach())


def test_deeplift_adds_up() -> None:
    model, x, blank = Steps().double().eval(), torch.randn(5, 2, 6, 6).double(), torch.randn(2, 6, 6).double()
    found = methods.deeplift(model, x, 1, baseline=blank)
    torch.testing.assert_close(found.sum((1, 2, 3)), (model(x) - model(blank[None]))[:, 1].detach())
    torch.testing.assert_close(
        methods.deeplift(model, x, 1, baseline=x + 1e-7) / -1e-7, methods.gradient(model, x, 1) / x, rtol=1e-3, atol=1e-5
    )
    assert not methods.deeplift(model, x, 1, baseline=x).any()


def test_deeplift_of_two_functions() -> None:
    a, b = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, 3.0]])
    found = methods.deeplift(
        lambda a, b: a.exp() - 2 * torch.relu(b), (a, b), torch.ones(1, 2), baseline=(0.0, torch.tensor([-1.0, 1.0]))
    )
    torch.testing.assert_close(found, (a.exp() - 1, -2 * (b - torch.tensor([0.0, 1.0]))))


def test_they_are_methods_to_evaluate() -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(6, 4)
    rules = {
        "shapley": lambda x, decisions: methods.shapley(model, x, decisions),
        "kernel": lambda x, decisions: methods.kernel_shap(model, x, decisions),
        "lime": lambda x, decisions: methods.lime(model, x, decisions),
        "ablation": lambda x, decisions: methods.ablation(model, x, decisions),
        "expected": lambda x, decisions: methods.expected(model, x, decisions, background=x),
    }
    found = relevance.evaluate(model, x, rules, steps=4, baseline=0.0)
    assert set(found.curves) == set(rules)
    with torch.inference_mode():
        assert all(method(x, torch.zeros(6, dtype=torch.long)).shape == x.shape for method in rules.values())


def test_what_is_refused() -> None:
    model, line, x = Two(), nn.Linear(4, 3), torch.randn(2, 4)
    for given, reason in (
        (lambda: methods.ablation(line, "x"), "inputs is 'x', expected a tensor, a tuple"),
        (lambda: methods.ablation(model, (A, B[:2]), 0), r"1 is .*expected a tensor \[B, ...\] with 3"),
        (lambda: methods.ablation(model, (A, B), 0, baseline=(0.0,)), "baseline is .*expected one for each of the inputs 0, 1"),
        (lambda: methods.ablation(model, {"a": A, "b": B}, 0, baseline={"c": 0}), "expected one for each of the inputs a, b"),
        (lambda: methods.integrated(Reader(), TOKENS, baseline={"input_ids": 0}), "input_ids is .*expected a tensor of floats"),
        (lambda: methods.ablation(Reader(), TOKENS, 0), "expected a floating-point tensor .*or a baseline for each input"),
        (lambda: methods.ablation(line, x, groups=torch.zeros(4)), "groups is .*expected a tensor of integers"),
        (lambda: methods.ablation(line, x, groups=torch.zeros(3, dtype=torch.long)), r"groups is .*a row of x \[4\]"),
        (lambda: methods.shapley(line, x, samples=0), "samples is 0"),
        (lambda: methods.kernel_shap(line, x, samples=1), "samples is 1"),
        (lambda: methods.lime(line, x, width=0), "width is 0"),
        (lambda: methods.lime(line, x, penalty=-1), "penalty is -1"),
        (lambda: methods.ablation(line, x, at_once=0), "at_once is 0"),
        (lambda: methods.expected(line, x, background=x[:, :3]), r"background is .*expected a tensor of rows like those of x"),
        (lambda: methods.expected(model, (A, B), background=(A, B[:2])), "background is .*expected as many rows"),
        (lambda: methods.ablation(line, x, lambda y: y.sum()), "the target function returned is .*one row for each of the 2"),
        (lambda: methods.ablation(line, x, "scores"), "target names the output 'scores'"),
        (
            lambda: methods.deeplift(lambda y: y.softmax(1), x, 0, baseline=x.flip(1)),
            "the contributions of row . miss .*for every model",
        ),
        (lambda: methods.kernel_shap(line, x, baseline=float("inf")), "scores that are not finite"),
        (lambda: methods.lime(line, x, baseline=float("nan")), "scores that are not finite"),
        (lambda: methods.lime(line, x, penalty=float("inf")), "penalty is inf"),
        (lambda: methods.shapley(line, x, seed=-1), "seed is -1"),
        (lambda: methods.smooth(line, x, seed=0.5), "seed is 0.5"),  # type: ignore[arg-type]
        (lambda: methods.expected(line, x, background=x, seed=None), "seed is None"),  # type: ignore[arg-type]
        (lambda: methods.expected(line, x, background=x.to_sparse()), "background is "),
        (lambda: methods.ablation(line, x.to_sparse()), "x is .*floating-point"),
        (lambda: methods.gradient(line, torch.tensor(1.0)), r"x is .*\[B, ...\]"),
        (lambda: methods.gradient(line, x, torch.ones(2, 3).to_sparse()), "target is .*a seed of the output's shape"),
        (lambda: methods.gradient(line, x, 2**63), "target is 9223372036854775808, expected indices below 3"),
        (lambda: methods.occlusion(line, x, window=1j), "window is "),  # type: ignore[arg-type]
        (lambda: methods.deeplift(line, x.long(), 0), "x is .*floating-point"),
        (lambda: methods.grad_cam(lambda y: y, x), "model is .*expected an nn.Module"),
        (lambda: methods.grad_cam(line, x), r"x is .*expected a floating-point tensor \[B, C, ...\]"),
        (lambda: methods.grad_cam(nn.Conv1d(2, 2, 1), torch.randn(1, 2, 3), layer="conv"), "layer is 'conv', which is no module"),
        (lambda: methods.grad_cam(nn.Conv1d(2, 2, 1), torch.randn(1, 2, 3), layer=line), "layer is 'Linear'"),
        (lambda: methods.grad_cam(nn.Flatten(), torch.randn(1, 2, 3), 0), "no module gives channels and places"),
    ):
        with pytest.raises(ArgumentError, match=reason):
            given()

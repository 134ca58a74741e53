"""Gradient × input, integrated gradients, SmoothGrad and occlusion: closed forms, and captum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia import relevance
from lutetia.errors import ArgumentError
from lutetia.relevance import methods
from tools import optional_module


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 5)).double()


def images() -> Tensor:
    return torch.randn(3, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


TARGETS = {
    "the largest": (None, None),
    "one of each": (torch.tensor([0, 3, 1]), lambda y: y.gather(1, torch.tensor([[0], [3], [1]]))[:, 0]),
    "a contrast": (relevance.Contrast(2, 4), lambda y: y[:, 2] - y[:, 4]),
    "weights": (torch.linspace(-1, 1, 15).reshape(3, 5).double(), None),
}


def score(model: nn.Module, x: Tensor, name: str) -> Any:
    """The score of each row, or of K copies of all rows."""
    target, function = TARGETS[name]
    if name == "the largest":
        best = model(x).argmax(1)
        return lambda rows: model(rows).gather(1, best.repeat(len(rows) // len(x))[:, None])[:, 0]
    if name == "weights":
        return lambda rows: (model(rows) * target.repeat(len(rows) // len(x), 1)).sum(1)
    if name == "one of each":
        return lambda rows: model(rows).gather(1, target.repeat(len(rows) // len(x))[:, None])[:, 0]
    return lambda rows: function(model(rows))


@pytest.mark.parametrize("name", TARGETS)
def test_as_captum_has_them(name: str) -> None:
    captum = optional_module("captum.attr")
    model, x = net(), images()
    target, of = TARGETS[name][0], score(net(), x, name)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(methods.gradient(model, x, target), captum.InputXGradient(of).attribute(leaf).detach())
    blank = 0.3 * torch.ones_like(x)
    theirs = captum.IntegratedGradients(of).attribute(x, blank, n_steps=12)
    ours = methods.integrated(model, x, target, baseline=0.3, steps=12, at_once=5)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)  # captum's steps are in float32
    box = (2, 3, 3)
    theirs = captum.Occlusion(of).attribute(x, box, box, blank)
    ours = methods.occlusion(model, x, target, window=box, baseline=blank[0], at_once=3)
    torch.testing.assert_close(ours.float(), theirs)  # captum's answer is in float32


def test_integrated_gradients_add_up() -> None:
    model, x = net(), images()
    given = methods.integrated(model, x, 2, baseline=x.mean(0), steps=40)
    fallen = (model(x) - model(x.mean(0, keepdim=True)))[:, 2]
    torch.testing.assert_close(given.sum((1, 2, 3)), fallen, rtol=1e-9, atol=1e-9)


def test_integrated_gradients_of_a_square() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64)
    given = methods.integrated(lambda y: (y**2).sum(1), x, baseline=1.0, steps=1)  # one point is exact for a parabola
    torch.testing.assert_close(given, x**2 - 1)


def test_a_smooth_gradient_is_that_of_the_smoothed_function() -> None:
    x = torch.tensor([[0.5, -1.0], [2.0, 0.0]], dtype=torch.float64)

    def cube(y: Tensor) -> Tensor:
        return (y**3).sum(1)

    given = methods.smooth(cube, x, noise=0.2, samples=40_000, at_once=10_000)
    deviation = 0.2 * torch.tensor([[1.5], [2.0]], dtype=torch.float64)  # of the range of each row
    torch.testing.assert_close(given, 3 * (x**2 + deviation**2), rtol=0.02, atol=0.01)  # E 3 (x + σ n)² = 3 (x² + σ²)
    torch.testing.assert_close(methods.smooth(cube, x, noise=0.0, samples=3), 3 * x**2)
    few = methods.smooth(cube, x, samples=5, at_once=2)
    torch.testing.assert_close(few, methods.smooth(cube, x, samples=5, at_once=5))
    assert not torch.equal(few, methods.smooth(cube, x, samples=5, seed=1))


def test_occlusion_of_a_linear_function() -> None:
    weight = torch.arange(10.0, dtype=torch.float64).reshape(5, 2)
    x = torch.randn(3, 5, 2, dtype=torch.float64)
    given = methods.occlusion(lambda y: (y * weight).sum((1, 2)), x, window=(2, 2), baseline=1.0)
    each = (x - 1) * weight
    boxes = torch.stack([each[:, at : at + 2].sum((1, 2)) for at in (0, 2, 4)], 1)  # the last is half as long
    torch.testing.assert_close(given, boxes.repeat_interleave(2, 1)[:, :5, None].expand(-1, -1, 2))


def test_they_are_methods_to_evaluate() -> None:
    model, x = nn.Linear(4, 3), torch.randn(6, 4)
    mine = {"integrated": lambda x, decisions: methods.integrated(model, x, decisions, steps=3)}
    assert relevance.evaluate(model, x, mine, steps=2).best == "integrated"
    with torch.inference_mode():
        assert methods.gradient(model, x).shape == x.shape
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_is_refused() -> None:
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    for given, reason in (
        (lambda: methods.gradient(model, x.long()), "x is .*expected a floating-point tensor"),
        (lambda: methods.gradient(model, x[0]), r"x is .*\[B, ...\]"),
        (lambda: methods.gradient(3, x), "model is 3"),  # type: ignore[arg-type]
        (lambda: methods.gradient(model, x, 5), "target is 5, expected indices below 3"),
        (lambda: methods.gradient(lambda y: y.sum(), x), "the model's output is .*expected one row for each of the 2 rows"),
        (lambda: methods.integrated(model, x, steps=0), "steps is 0"),
        (lambda: methods.integrated(model, x, baseline=torch.zeros(3)), "baseline is .*broadcasts to x"),
        (lambda: methods.integrated(model, x, baseline="zero"), "baseline is 'zero'"),  # type: ignore[arg-type]
        (lambda: methods.smooth(model, x, noise=-1), "noise is -1"),
        (lambda: methods.smooth(model, x, samples=0), "samples is 0"),
        (lambda: methods.occlusion(model, x, window=0), "window is 0"),
        (lambda: methods.occlusion(model, x, window=(1, 2)), r"window is .*expected a size, or 1 of them"),
    ):
        with pytest.raises(ArgumentError, match=reason):
            given()

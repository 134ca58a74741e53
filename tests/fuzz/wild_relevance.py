"""Random calls of the other methods of `lutetia.relevance`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from wild import Made, Wild

from lutetia.relevance import Contrast, methods


class _Model(nn.Module):
    """It takes what it is given, so that a case fails for the sake of Lutetia alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bend, self.out = nn.Conv1d(2, 3, 1), nn.Tanh(), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = nn.functional.pad(x.float().reshape(len(x), -1), (0, 4))[:, :4]
        return self.out(self.bend(self.conv(flat.reshape(len(x), 2, 2))).flatten(1))


def _case(wild: Wild) -> dict[str, Any]:
    targets = (None, 1, Contrast(0, 2), torch.tensor([0, 2, 1]), [0, 1, 2], torch.rand(3, 3))
    return {"model": _Model(), "inputs": torch.randn(3, 2, 2), "target": wild.one(*targets)}


def _grouping(wild: Wild) -> dict[str, Any]:
    groups = wild.one(None, torch.tensor([0, 1]), torch.tensor([[0, 1], [5, 5]]))
    return {"groups": groups, "baseline": wild.one(0.0, torch.zeros(2, 2)), "at_once": wild.one(1, 64)}


def _method(name: str, **more: Any) -> Made:
    def made(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
        given = {key: value(wild) if callable(value) else value for key, value in more.items()}
        return _checked(getattr(methods, name)), {**_case(wild), **given}

    return made


def _grouped(name: str, **more: Any) -> Made:
    def made(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
        return _checked(getattr(methods, name)), {**_case(wild), **_grouping(wild), **more}

    return made


def _checked(method: Callable[..., object]) -> Callable[..., object]:
    """A method, called as it is; samples stay few, for a user may ask for many."""

    def call(model: Any, inputs: Any, target: Any, **given: Any) -> object:
        for name in ("samples", "steps"):
            if isinstance(given.get(name), int) and given[name] > 200:
                given[name] = 200
        return method(model, inputs, target, **given)

    return call


CALLS: dict[str, Made] = {
    "ablation": _grouped("ablation"),
    "deeplift": _method("deeplift", baseline=0.5),
    "expected": _method("expected", background=lambda wild: torch.randn(4, 2, 2), samples=5, seed=1, at_once=2),
    "grad_cam": _method("grad_cam", layer=lambda wild: wild.one(None, "0", "1")),
    "gradient": _method("gradient"),
    "integrated": _method("integrated", baseline=0.5, steps=3, at_once=2),
    "kernel_shap": _grouped("kernel_shap", samples=20, seed=1),
    "lime": _grouped("lime", samples=20, seed=1, width=0.25, penalty=1.0),
    "occlusion": _method("occlusion", window=lambda wild: wild.one(1, (2, 1)), baseline=0.0, at_once=3),
    "shapley": _grouped("shapley", samples=3, seed=1),
    "smooth": _method("smooth", noise=0.1, samples=3, seed=1, at_once=2),
}

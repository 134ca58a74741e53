"""Several numbers explained in one walk: each as if it was explained alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia import relevance
from lutetia.errors import ArgumentError
from lutetia.nn import LUT
from lutetia.relevance import stacked

PLACES = torch.tensor([0, 2, 1])


class Scan(nn.Module):
    """h = a·h + u, step by step, which reads one slice of its input after the other; u [B, T, C] -> h [B, C]."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4)

    def forward(self, u: Tensor) -> Tensor:
        a, h = torch.sigmoid(self.gate(u)), torch.zeros_like(u[:, 0])
        for step in range(u.shape[1]):
            h = a[:, step] * h + u[:, step]
        return h


class Recurrent(nn.Module):
    """u [B, T, C] -> the last state of a GRU, [B, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(4, 4, batch_first=True)

    def forward(self, u: Tensor) -> Tensor:
        return self.inner(u)[0][:, -1]


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation="gelu")
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(24, 4)).eval()


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 4)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)), (2, 6)),
    "convolutions": (convolutions, (2, 2, 4, 4)),
    "encoder": (encoder, (2, 3, 8)),
    "scan": (Scan, (2, 5, 4)),
    "recurrent": (Recurrent, (2, 5, 4)),
    "tables": (lambda: nn.Sequential(LUT(6, 5, 3, n_anchors=3), nn.Linear(5, 4)), (2, 6)),
}
PRESETS = {
    "attnlrp": relevance.presets.attnlrp(),
    "gamma": relevance.presets.gamma(),
    "no stabiliser": relevance.presets.epsilon(eps=0.0),  # whose rules look for sums of zero
    "dynamic": relevance.presets.dynamic(),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(1)
    make, shape = MODELS[name]
    model = make()
    dtype = torch.float32 if name == "tables" else torch.float64
    return model.to(dtype), torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", MODELS)
def test_each_number_as_if_it_was_explained_alone(name: str, preset: str) -> None:
    model, x = made(name)
    options: list[dict[str, Any]] = [{}]
    if name == "encoder":
        options += [{"layers": True, "heads": True}, {"layers": True, "heads": True, "recompute": True}]
    for more in options:
        each = relevance.attribute_each(model, x, lambda y: y[1, PLACES], PRESETS[preset], **more)
        for place, found in zip(PLACES.tolist(), each, strict=True):
            alone = relevance.attribute(model, x, lambda y, place=place: y[1, place], PRESETS[preset], **more)
            torch.testing.assert_close(found[x], alone[x], rtol=1e-6, atol=1e-7)
            assert found.report.absorbed == pytest.approx(alone.report.absorbed, rel=1e-4, abs=1e-5)


def test_the_report_and_the_parts_of_each() -> None:
    """Against walks over the very same graph, each with one seed."""
    model, x = made("encoder")
    rules, more = relevance.presets.attnlrp(), {"layers": True, "heads": True}
    each = relevance.attribute_each(model, x, lambda y: y[:, :3], rules, **more)
    scores = each[0].output
    assert scores.shape == (2, 3)
    assert len(each) == 6
    for number, found in enumerate(each):
        seed = torch.zeros(2, 4, dtype=x.dtype)
        seed[number // 3, number % 3] = scores[number // 3, number % 3]
        alone = relevance.attribute(model, x, seed, rules, **more)
        assert float(found.seed.sum()) == pytest.approx(float(seed.sum()))
        assert found.report.absorbed == pytest.approx(alone.report.absorbed)
        absorbed = {name: share for name, share in found.report.absorbed_by_module.items() if name}  # but for the target's slice
        assert absorbed == pytest.approx(alone.report.absorbed_by_module)
        assert found.report.ended_by_module == pytest.approx(alone.report.ended_by_module)
        for name, part in [*alone.layers.items(), *alone.heads.items()]:
            torch.testing.assert_close({**found.layers, **found.heads}[name], part, rtol=1e-8, atol=1e-9)


def test_most_rules_take_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[str] = []
    one_by_one = stacked._one_by_one
    monkeypatch.setattr(stacked, "_one_by_one", lambda node, *rest: (slow.append(node.name), one_by_one(node, *rest))[1])
    for name in ("perceptron", "convolutions", "encoder", "scan"):
        model, x = made(name)
        relevance.attribute_each(model, x, lambda y: y[0], relevance.presets.attnlrp())
    assert slow == []
    relevance.attribute_each(*made("perceptron"), lambda y: y[0], relevance.presets.epsilon(eps=0.0))
    assert slow


def test_one_run_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made("perceptron")
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    relevance.attribute_each(model, x, lambda y: y[0])
    assert len(calls) == 1


def test_what_is_refused() -> None:
    model, x = made("perceptron")
    with pytest.raises(ArgumentError, match="target is 3, expected a function of the output"):
        relevance.attribute_each(model, x, 3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="returned 0 numbers', expected 1 to 10,000"):
        relevance.attribute_each(model, x, lambda y: y[:0])
    with pytest.raises(relevance.UnknownOperation, match="no rule"):
        relevance.attribute_each(model, x, lambda y: torch.special.i0e(y)[0])

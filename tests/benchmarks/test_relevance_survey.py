"""The survey of models: what counts as run, and how rows of some models go into a saved result."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture(scope="module")
def modules() -> tuple[ModuleType, ModuleType]:
    sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
    try:
        return importlib.import_module("relevance_survey"), importlib.import_module("results")
    finally:
        sys.path.pop(0)


class Faded(nn.Module):
    """Scores so small that ε keeps all of their relevance."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.layer(1e-10 * x)
        return x


def headless() -> nn.Module:
    """Its head starts at zero, so that every input has the bias as its answer; its batch norm is untouched."""
    head = nn.Linear(5, 3)
    nn.init.zeros_(head.weight)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), head)


class Constant(nn.Module):
    """A softmax over one class: 1, whatever the input is."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1, keepdim=True).softmax(1)


class Blind(nn.Module):
    """Nothing is left of its input: the output is 0."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.0 * x


def built(make: Any) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    return make().eval(), {"x": torch.randn(6, 4)}


@pytest.mark.parametrize(
    ("make", "outcome", "fades", "why"),
    [
        (lambda: nn.Linear(4, 3), "ran", False, ""),
        (Faded, "absorbed", True, "most by layer"),
        (headless, "absorbed", False, "most by 2"),
        (Constant, "absorbed", False, ""),
        (Blind, "output 0", False, None),
    ],
)
def test_what_counts_as_run(modules: Any, make: Any, outcome: str, fades: bool, why: str | None) -> None:
    """With the weights that a model has: what fades below ε reaches the input with an ε of 1e-30."""
    row = modules[0].survey_one("net", lambda: built(make))
    assert (row["outcome"], bool(row.get("faint")), row.get("why")) == (outcome, fades, why)


def test_relevance_that_is_nowhere_does_not_count(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules[0].relevance.Report, "absorbed", 0.0)
    row = modules[0].survey_one("net", lambda: built(headless))
    assert (row["outcome"], row["why"]) == ("stopped", "relevance was lost")
    assert modules[0].too_few([row], 0.99, "models")


def test_a_model_as_if_trained_has_no_zero_weights_and_knows_its_inputs(modules: Any) -> None:
    model, inputs = built(headless)
    modules[0].draw_zeros(model)
    modules[0].set_statistics(model, lambda: model(inputs["x"]))
    assert model[2].weight.any()
    hidden = model[0](inputs["x"])
    torch.testing.assert_close(model[1].running_mean, hidden.mean(0))
    assert not model[1].training


def test_rows_of_some_models_go_into_the_saved_result(modules: Any, tmp_path: Path) -> None:
    survey, results = modules
    rows = [{"model": name, "outcome": "ran", "nodes": 1} for name in ("a", "b", "c")]
    saved = results.result("A claim.", "survey", {"models": 3, "seconds": 5}, survey.tables_of(rows))
    saved["sources"]["run"]["commit"] = "earlier"
    results.save(tmp_path / "survey.json", saved)
    again = [{"model": "b", "outcome": "stopped", "why": "it did"}, {"model": "d", "outcome": "ran"}]
    found = results.result("A claim.", "survey", {"models": 2, "seconds": 9}, survey.tables_of(again))
    both = survey.with_others(found, tmp_path / "survey.json")
    results.check(both, "both")
    models = {row["model"]: row for row in results.rows_of(both, "models")}
    assert list(models) == ["a", "b", "c", "d"]
    assert models["b"]["outcome"] == "stopped"
    assert [both["sources"][models[name]["source"]]["commit"] == "earlier" for name in models] == [True, False, True, False]
    assert {row["outcome"]: row["models"] for row in results.rows_of(both, "outcomes")} == {"ran": 3, "stopped": 1}
    assert both["settings"]["models"] == 4

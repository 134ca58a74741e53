"""The rule that `explain`, the report and the demo show first names best what a model of tables used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lutetia import models, training
from lutetia.report.attribution import DEFAULT_RULE, RULES, SHAPLEY, attribute_class

WINDOWS = {"kind": "projection2d", "out_shape": [4, 6, 6], "receptive_field": 4, "projection": 3, "grid": 5}
STACK = [
    {**WINDOWS, "detectors_per_position": 4, "n_anchors": 4},
    {"kind": "lut", "n_outputs": 10, "n_detectors": 96, "n_anchors": 5, "table_dropout": 0.1},
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Tensor, Tensor]:
    """A stack of tables that reads digits, digits that it has not seen [n, 8, 8], and the mean of each pixel [8, 8]."""
    folder = tmp_path_factory.mktemp("stack") / "run"
    model = {"kind": "classifier", "input_shape": [8, 8], "n_classes": 10, "layers": STACK, "readout": "none", "seed": 0}
    table = {
        "model": model,
        "data": {"kind": "digits", "shuffle": True, "test": 0.2},
        "optimizer": {"tables": {"kind": "adamw", "lr": 0.02}, "rest": {"kind": "adamw", "lr": 0.02}},
        "train": {"batch_size": 64, "steps": 120, "seed": 0},
    }
    config = training.make_config(table, "stack")
    training.train(config, folder)
    splits: Any = training.open_data(config.data, Path()).splits
    return models.load(folder).eval(), torch.as_tensor(splits["test"].x[-24:]), torch.as_tensor(splits["train"].x).mean(0)


@torch.no_grad()
def area(model: Any, x: Tensor, relevance: Tensor, mean: Tensor) -> float:
    """The mean probability of what was decided while the pixels become ordinary, the most relevant first; small is good."""
    decided = int(model(x[None]).argmax())
    now = x.flatten().clone()
    steps = [now.clone()]
    for place in relevance.flatten().argsort(descending=True).tolist():
        now[place] = mean.flatten()[place]
        steps.append(now.clone())
    return float(model(torch.stack(steps).view(-1, 8, 8)).softmax(-1)[:, decided].mean())


def test_it_is_the_most_faithful(trained: tuple[Any, Tensor, Tensor]) -> None:
    model, digits, mean = trained
    areas = {}
    for rule in RULES.keys() - {SHAPLEY}:  # of tables of data
        found = []
        for x in digits:
            with torch.no_grad():
                target = int(model(x[None]).argmax())
            found.append(area(model, x, attribute_class(model, x, target, rule).relevance, mean))
        areas[rule] = sum(found) / len(found)
    others = {rule: value for rule, value in areas.items() if rule != DEFAULT_RULE}
    assert areas[DEFAULT_RULE] < min(others.values()), areas
    assert areas[DEFAULT_RULE] < 0.7 * areas["epsilon"], areas

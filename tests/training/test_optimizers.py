"""Optimisers: which parameter goes where, and clipping with sparse gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lutetia.errors import ArgumentError
from lutetia.nn import LUT, LUTAttention, table_parameters
from lutetia.training.config import Optimizer, OptimizersConfig
from lutetia.training.optimizers import clip_gradients, make_optimizers
from lutetia.training.task import build_model
from small import transformer_config


def model_of(**more: Any) -> nn.Module:
    return build_model(transformer_config(model=more).model)


def test_every_parameter_has_one_optimiser() -> None:
    model = model_of(read="confidence2", norm="layer")
    made = make_optimizers(model, OptimizersConfig(Optimizer("lion", lr=0.1), Optimizer("adamw", lr=0.2, weight_decay=0.3)))
    groups = [(name, group) for name, optimizer in made.by_name.items() for group in optimizer.param_groups]
    where = {id(p): (name, group["weight_decay"]) for name, group in groups for p in group["params"]}
    assert len(where) == len(list(model.parameters())) == sum(len(group["params"]) for _, group in groups)
    tables = {id(p) for p in table_parameters(model)}
    assert tables
    for name, parameter in model.named_parameters():
        if id(parameter) in tables:
            assert where[id(parameter)] == ("tables", 0.0)
        else:
            decays = parameter.dim() >= 2 and not name.endswith("positions")
            assert where[id(parameter)] == ("rest", 0.3 if decays else 0.0), name
    still = [name for name, p in model.named_parameters() if where[id(p)] == ("rest", 0.0)]
    assert any("positions" in name for name in still)
    assert any("norm" in name for name in still)


def test_rates_follow_the_factor_in_place_too() -> None:
    model = model_of(gradient="in_place")
    made = make_optimizers(model, OptimizersConfig(Optimizer("sgd", lr=0.5), Optimizer("sgd", lr=0.25)))
    assert set(made.by_name) == {"rest"}
    made.set_rates(0.5)
    assert {layer.external_lr for layer in model.modules() if isinstance(layer, LUT)} == {0.25}
    assert {group["lr"] for group in made.by_name["rest"].param_groups} == {0.125}
    assert len(made.parameters()) + len(table_parameters(model)) == len(list(model.parameters()))


def test_a_dense_twin_has_no_tables() -> None:
    model = model_of(dense=True)
    assert set(make_optimizers(model, OptimizersConfig()).by_name) == {"rest"}


@pytest.mark.parametrize(
    ("gradient", "tables", "rest", "message"),
    [
        ("sparse", "adamw", "adamw", 'optimizer.tables.kind is \'adamw\', expected "sparse_adam" or "sgd"'),
        ("sparse", "lion", "adamw", "optimizer.tables.kind is 'lion'"),
        ("dense", "sparse_adam", "adamw", 'expected gradient = "sparse" in [model]'),
        ("sparse", "sparse_adam", "sparse_adam", 'optimizer.rest.kind is "sparse_adam"'),
    ],
)
def test_what_cannot_step_is_refused(gradient: str, tables: str, rest: str, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make_optimizers(model_of(gradient=gradient), OptimizersConfig(Optimizer(tables), Optimizer(rest)))
    assert message in str(caught.value)


def test_clipping_sees_sparse_and_dense_gradients_alike() -> None:
    found = {}
    for gradient in ("dense", "sparse"):
        layers = (
            LUT(6, 5, 4, 3, gradient=gradient, seed=0),
            nn.Linear(5, 2),
            LUTAttention(2, 3, 2, 2, 1, 4, gradient=gradient, seed=1),
        )
        with torch.no_grad():
            layers[1].weight.copy_(torch.arange(10.0).view(2, 5))
            layers[1].bias.zero_()
        model = nn.Sequential(*layers)
        x = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
        for limit in (1e9, 0.5):
            model.zero_grad()
            (3 * model(x)).square().sum().backward()
            model[0].weight.grad = model[0].weight.grad + 1e3 * model[0].weight.grad
            norm = clip_gradients(model.parameters(), limit)
            gradients = [p.grad.to_dense() for p in model.parameters()]
            assert model[0].weight.grad.is_sparse == (gradient == "sparse")
            found[gradient, limit] = (norm, gradients)
            length = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
            torch.testing.assert_close(length, norm if limit > norm else torch.tensor(limit), rtol=1e-4, atol=0)
    for limit in (1e9, 0.5):
        torch.testing.assert_close(found["sparse", limit], found["dense", limit])
    assert found["dense", 0.5][0] > 0.5


def test_clipping_nothing() -> None:
    assert clip_gradients([nn.Parameter(torch.ones(2))], 1.0) == 0

"""Random calls of what `lutetia.nn` makes public besides its layers: see `calls_nn` for those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from wild import Made, Wild, small

from lutetia.lut import growth
from lutetia.nn import (
    LUT,
    NgramTables,
    RowAdam,
    cell_total_variation,
    choose_anchors,
    clamp_after_step,
    int8_tables,
    ngram_tables,
    table_parameters,
)


def _choose_anchors(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(**arguments: Any) -> object:
        return choose_anchors(**arguments) if small({**arguments, "rows": 0, "seed": 0}) else None

    targets = (torch.randint(0, 3, (9,)), torch.randn(9), torch.randn(9, 2))
    return use, {
        "x": torch.randn(9, 4),
        "target": wild.one(*targets),
        "n_detectors": 2,
        "n_anchors": 3,
        "kind": wild.one("pairs", "thresholds", "mixed"),
        "thresholds": torch.tensor([0.0, 0.5]),
        "candidates": 4,
        "rows": wild.one(5, 4096),
        "seed": 0,
    }


def _layer(wild: Wild) -> LUT:
    synapses = wild.one(None, growth.random(3, 2, 4, 0.5, shared=wild.one(True, False), seed=1))
    return LUT(5, 4, 3, 2, synapses=synapses, seed=0)


def _total_variation(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return cell_total_variation, {"layer": wild.one(torch.randn(3, 4, 2, requires_grad=True), _layer(wild))}


def _clamp(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(optimizer: Any, model: Any) -> None:
        clamp_after_step(optimizer, model)
        layer(torch.randn(2, 5)).sum().backward()
        optimizer.step()

    layer = _layer(wild)
    return use, {"optimizer": torch.optim.SGD(layer.parameters(), 0.1), "model": layer}


def _parameters(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return table_parameters, {"model": wild.one(_layer(wild), nn.Linear(2, 2), nn.Sequential(_layer(wild)))}


def _ngram(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(tokens: Any, past: Any, lengths: Any, **options: Any) -> None:
        if not small({**options, "seed": 0}):
            return
        layer = NgramTables(**options)
        layer(tokens, past).sum().backward()
        layer.recent(tokens, past, lengths)
        layer.token_shares(torch.randn(2, 3, layer.n_outputs), tokens)

    return use, {
        "orders": wild.one((1, 2), [2], (2, 3)),
        "word": False,
        "n_rows": 7,
        "width": 3,
        "dropout": wild.one(0.0, 0.5),
        "order_dropout": wild.one(0.0, 0.5),
        "gradient": wild.one("sparse", "dense"),
        "seed": 0,
        "tokens": torch.randint(0, 256, (2, 3)),
        "past": None,
        "lengths": wild.one(None, torch.tensor([1, 3])),
    }


def _ngram_tables(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return ngram_tables, {"model": wild.one(NgramTables((2,), n_rows=3, width=2), nn.Linear(2, 2))}


def _row_adam(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(sparse: Any, **options: Any) -> None:
        optimizer = RowAdam(**options)
        gradient = torch.sparse_coo_tensor(torch.randint(0, 5, (1, 3)), torch.randn(3, 2), (5, 2))
        weight.grad = gradient if sparse is True else gradient.to_dense()
        optimizer.step()
        optimizer.step()

    weight = nn.Parameter(torch.randn(5, 2))
    return use, {"params": [weight], "sparse": True, "lr": 0.1, "beta": 0.9, "eps": 1e-8, "weight_decay": 0.1}


def _int8(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(model: Any) -> None:
        quantised = int8_tables(model)
        if quantised is layer:
            quantised(torch.randn(2, 5))

    layer = _layer(wild)
    return use, {"model": wild.one(layer, nn.Sequential(layer), NgramTables((2,), n_rows=3, width=2), nn.Linear(2, 2))}


CALLS: dict[str, Made] = {
    "NgramTables": _ngram,
    "RowAdam": _row_adam,
    "cell_total_variation": _total_variation,
    "choose_anchors": _choose_anchors,
    "clamp_after_step": _clamp,
    "int8_tables": _int8,
    "ngram_tables": _ngram_tables,
    "table_parameters": _parameters,
}

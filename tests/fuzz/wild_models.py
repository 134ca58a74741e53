"""Random calls of what `lutetia.models` makes public."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from wild import Made, Wild, small

from lutetia import models

FIELDS: dict[str, Any] = {
    "vocab": 12,
    "context": 6,
    "width": 4,
    "n_layers": 1,
    "attention": "lut",
    "n_heads": 1,
    "n_kv_heads": None,
    "n_detectors": 2,
    "n_anchors": 2,
    "positional_dim": 1,
    "shared_positions": False,
    "algorithm": "auto",
    "rope_base": 100.0,
    "feed_forward": "lut",
    "ff_detectors": 2,
    "ff_anchors": 2,
    "ff_heads": 1,
    "ff_head_width": 2,
    "ff_multiple": 1,
    "read": "hard",
    "table_dropout": 0.0,
    "norm": "rms",
    "unembedding": "linear",
    "gradient": "dense",
    "sums": "float",
    "int_rescaler": 1.0,
    "initial_noise": 0.1,
    "seed": 0,
}


def _transformer(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(**fields: Any) -> None:
        if small({key: value for key, value in fields.items() if key not in ("seed", "rope_base")}):
            model = wild.one(models.LUTTransformer, models.DenseTransformer)(**fields)
            model(torch.zeros(1, 2, dtype=torch.int64))
            model.generate(torch.zeros(2, dtype=torch.int64), 2)
        else:
            models.TransformerConfig(**fields)

    fields = FIELDS | {
        "attention": wild.one("lut", "softmax"),
        "feed_forward": wild.one("lut", "projected", "dense"),
        "unembedding": wild.one("linear", "lut"),
    }
    return use, fields


MODELS: list[models.LUTTransformer] = []


def language_models() -> list[models.LUTTransformer]:
    if not MODELS:
        MODELS.extend(models.LUTTransformer(**(FIELDS | {"attention": kind})) for kind in ("lut", "softmax"))
    return MODELS


def _forward(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(tokens: Any, lengths: Any, batch: Any, more: Any) -> None:
        model(tokens, lengths)
        cache = model.new_cache(batch)
        model(tokens, lengths, cache)
        model(more, None, cache)

    model = wild.one(*language_models())
    lengths = wild.one(None, torch.tensor([1, 3]))
    return use, {"tokens": torch.randint(0, 12, (2, 3)), "lengths": lengths, "batch": 2, "more": torch.randint(0, 12, (2, 1))}


def _generate(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    prompt = wild.one(b"\1\2", torch.tensor([1, 2]), [b"\1", b"\2\3"], [torch.tensor([1])])
    options: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.5,
        "stop": b"\1",
        "seed": 1,
        "generator": None,
        "stream": wild.one(True, False),
    }
    chosen = {name: options[name] for name in wild.draw.sample(list(options), wild.draw.randrange(4))}
    model = wild.one(*language_models())

    def use(prompts: Any, max_new_tokens: Any, **more: Any) -> object:
        if isinstance(max_new_tokens, int) and max_new_tokens > 100:
            max_new_tokens = 9  # as long as one likes
        return model.generate(prompts, max_new_tokens, **more)

    return use, {"prompts": prompt, "max_new_tokens": 3, **chosen}


def _classifier(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    layers: list[dict[str, Any]] = [
        {
            "kind": "projection2d",
            "out_shape": [3, 3],
            "receptive_field": 2,
            "projection": 2,
            "n_anchors": 2,
            "grid": 2,
            "keep": 0.5,
        },
        {"kind": "projected", "n_outputs": 4, "heads": 2, "head_width": 3, "n_detectors": 2, "n_anchors": 2},
        {"kind": "lut", "n_outputs": 3, "n_detectors": 2, "n_anchors": 2, "read": "confidence2"},
    ]
    layer = wild.one(*layers)
    if wild.draw.random() < 0.5:
        key = wild.one(*layer)
        layer[key] = wild.other(layer[key])

    def use(x: Any, **fields: Any) -> None:
        if small({key: value for key, value in fields.items() if key != "seed"}):
            wild.one(models.LUTClassifier, models.DenseClassifier)(**fields)(x)
        else:
            models.ClassifierConfig(**fields)

    return use, {
        "x": torch.randn(2, 4, 4),
        "input_shape": (4, 4),
        "n_classes": 3,
        "layers": [layer],
        "norm": wild.one("none", "rms", "layer"),
        "readout": wild.one("linear", "lut"),
        "readout_detectors": 2,
        "readout_anchors": 2,
        "readout_read": "hard",
        "gradient": "dense",
        "sums": "float",
        "int_rescaler": 1.0,
        "initial_noise": 0.1,
        "seed": 0,
    }


def _votes(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(x: Any, **fields: Any) -> None:
        if small({key: value for key, value in fields.items() if key != "seed"}):
            model = models.VotesClassifier(**fields)
            model(x)
            model.graph()
        else:
            models.VotesConfig(**fields)

    return use, {
        "x": torch.rand(2, 2, 2),
        "input_shape": (2, 2),
        "n_classes": 2,
        "n_tables": 4,
        "k": 2,
        "bits": 3,
        "thresholds": (3, 4),
        "temperature": 1.0,
        "low": 0.0,
        "high": 1.0,
        "seed": 0,
    }


def _votes_module(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(x: Any, **fields: Any) -> None:
        if small({key: value for key, value in fields.items() if key != "seed"}):
            models.Votes(**fields)(x)

    return use, {
        "x": torch.randint(0, 8, (2, 4)),
        "n_inputs": 4,
        "n_classes": 2,
        "n_tables": 4,
        "k": 2,
        "bits": 3,
        "thresholds": (3, 4),
        "shape": wild.one(None, (2, 2)),
        "temperature": 1.0,
        "seed": 0,
    }


def _files(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    function = wild.one(models.load, models.verify, models.read_config, models.in_run)
    return function, {"path": wild.one("none", "/dev/null", "/dev/zero", ".", "", "a" * 300)}


CALLS: dict[str, Made] = {
    "transformer": _transformer,
    "forward": _forward,
    "generate": _generate,
    "classifier": _classifier,
    "votes": _votes,
    "Votes": _votes_module,
    "files": _files,
}

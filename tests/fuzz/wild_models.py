"""Random calls of what `lutetia.models` makes public."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
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
    "unembedding_detectors": 2,
    "unembedding_anchors": 2,
    "dropout": 0.0,
    "ngrams": (),
    "ngram_word": False,
    "ngram_rows": 5,
    "ngram_width": 2,
    "ngram_dropout": 0.0,
    "ngram_order_dropout": 0.0,
    "gradient": "dense",
    "sums": "float",
    "int_rescaler": 1.0,
    "initial_noise": 0.1,
    "seed": 0,
}


def _transformer(kind: type[models.LUTTransformer], wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(**fields: Any) -> None:
        if small({key: value for key, value in fields.items() if key not in ("seed", "rope_base")}):
            model = kind(**fields)
            model(torch.zeros(1, 2, dtype=torch.int64))
            model.generate(torch.zeros(2, dtype=torch.int64), 2)
        else:
            models.TransformerConfig(**fields)

    fields = FIELDS | {
        "attention": wild.one("lut", "softmax"),
        "feed_forward": wild.one("lut", "projected", "dense"),
        "unembedding": wild.one("linear", "lut"),
        "ngrams": wild.one((), (), (2,), (2, 3)),
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


def _classifier(kind: type[models.LUTClassifier], wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
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
            kind(**fields)(x)
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


VOTES: dict[str, Any] = {"n_classes": 2, "n_tables": 4, "k": 2, "bits": 3, "thresholds": (3, 4), "temperature": 1.0, "seed": 0}
GATES: dict[str, Any] = {"hidden": (3,), "skip": False, "learn_thresholds": True, "threshold_bits": 2, "spread": 0.01}


def _voting(kind: type[models.VotesClassifier], wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    """A classifier whose tables vote."""

    def use(x: Any, **fields: Any) -> None:
        if small({key: value for key, value in fields.items() if key != "seed"}):
            model = kind(**fields)
            model(x)
            model.graph()
        else:
            kind.config_class(**fields)

    fields = {**VOTES, **(GATES if kind is models.GateNetwork else {})}
    return use, {"x": torch.rand(2, 2, 2), "input_shape": (2, 2), "low": 0.0, "high": 1.0, **fields}


def _votes_module(kind: type[models.Votes], wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(x: Any, **fields: Any) -> None:
        if small({key: value for key, value in fields.items() if key != "seed"}):
            kind(**fields)(x)

    fields = {**VOTES, **(GATES if kind is models.Gates else {})}
    return use, {"x": torch.randint(0, 8, (2, 4)), "n_inputs": 4, "shape": wild.one(None, (2, 2)), **fields}


def _tabular(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(x: Any, **fields: Any) -> None:
        if small({key: value for key, value in fields.items() if key not in ("seed", "gate_codes")}):
            models.Tabular(**fields)(x)
        else:
            models.TabularConfig(**fields)

    gates = wild.one(True, False)
    number = not gates and wild.one(True, False)
    return use, {
        "x": torch.randn(2, 3),
        "input_shape": (3,),
        "n_classes": 1 if number else 2,
        "loss": "quantile" if number else "squared_error",
        "quantile": 0.5 if number else None,
        "core": "gates" if gates else "tables",
        "n_tables": 4,
        "n_anchors": 2,
        "n_encoded": 3,
        "n_edges": 2,
        "n_categories": 2,
        "patch_detectors": wild.one(0, 2),
        "patch_pairs": 2,
        "patch_counts": 0,
        "gate_codes": (1, 2) if gates else (),
        "gate_hidden": wild.one((), (3,)) if gates else (),
        "temperature": 1.0,
        "seed": 0,
    }


def _targets(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(x: Any, **fields: Any) -> None:
        if small({key: value for key, value in fields.items() if key != "seed"}):
            model = models.Targets(**fields)
            model(x)
            model.all_parts[-1](x)
        else:
            models.TargetsConfig(**fields)

    number = wild.one(True, False)
    sizes = {"n_tables": 4, "n_anchors": 2, "n_encoded": 3, "n_edges": 2, "n_categories": 2, "seed": 0}
    spread = {"spread_tables": wild.one(0, 2), "spread_anchors": 1} if number else {}
    outputs = (1, 1) if number else (2, 3)
    return use, {"x": torch.randn(2, 3), "input_shape": (3,), "outputs": outputs, **sizes, **spread}


def _file(function: Callable[..., object], wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return function, {"path": wild.one("none", "/dev/null", "/dev/zero", ".", "", "a" * 300)}


def _save(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(model: Any, path: Any, **options: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:  # and not where the tests run
            models.save(model, os.path.join(folder, path) if isinstance(path, str) else path, **options)

    options = {
        "config": wild.one(None, {"train": {"steps": 1}}),
        "files": wild.one(None, {"notes.txt": b"words"}, {"more.safetensors": {"a": torch.zeros(2)}}),
        "overwrite": wild.one(True, False),
    }
    return use, {"model": wild.one(*language_models()), "path": "model", **options}


def _cache(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(index: Any, batch: Any) -> None:
        cache = model.new_cache(batch)
        model(torch.zeros(2, 2, dtype=torch.int64), cache=cache)
        cache.reorder(index)
        model(torch.zeros(len(cache.lengths), 1, dtype=torch.int64), cache=cache)
        cache.reset()
        repr(cache)

    model = wild.one(*language_models())
    return use, {"index": torch.randint(0, 2, (wild.one(1, 2, 3),)), "batch": 2}


def _layer(kind: type[Any], fields: dict[str, Any], wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return lambda **given: kind(**given), dict(fields)


SIZES: dict[str, Any] = {"n_detectors": 2, "n_anchors": 2}
CALLS: dict[str, Made] = {
    "LUTTransformer": partial(_transformer, models.LUTTransformer),
    "DenseTransformer": partial(_transformer, models.DenseTransformer),
    "LUTTransformer.forward": _forward,
    "LUTTransformer.generate": _generate,
    "ModelCache": _cache,
    "LUTClassifier": partial(_classifier, models.LUTClassifier),
    "DenseClassifier": partial(_classifier, models.DenseClassifier),
    "VotesClassifier": partial(_voting, models.VotesClassifier),
    "Votes": partial(_votes_module, models.Votes),
    "GateNetwork": partial(_voting, models.GateNetwork),
    "Gates": partial(_votes_module, models.Gates),
    "Tabular": _tabular,
    "Targets": _targets,
    "LUTLayer": partial(_layer, models.LUTLayer, {"n_outputs": 3, "read": "hard", **SIZES}),
    "ProjectedLayer": partial(_layer, models.ProjectedLayer, {"n_outputs": 3, "heads": 2, "head_width": 3, **SIZES}),
    "Projection2dLayer": partial(
        _layer, models.Projection2dLayer, {"out_shape": (3, 3), "receptive_field": 2, "projection": 2, "n_anchors": 2, "grid": 2}
    ),
    "save": _save,
    **{
        function.__name__: partial(_file, function)
        for function in (models.load, models.verify, models.read_config, models.in_run)
    },
}

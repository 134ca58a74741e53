"""Small configs and data that the tests of training share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lutetia.training import Config, make_config

LAYER = {"kind": "lut", "n_outputs": 6, "n_detectors": 5, "n_anchors": 3}


def write_samples(folder: Path, n: int = 50, features: int = 7, classes: int = 3) -> None:
    """Samples whose class is the place of the largest of the first few features."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(n, features)).astype(np.float32)
    np.savez(folder / "samples.npz", x=x, y=x[:, :classes].argmax(1))


def write_text(folder: Path, n: int = 2000) -> None:
    words = [b"the ", b"cat ", b"sat ", b"on ", b"a ", b"mat\n"]
    draw = np.random.default_rng(1)
    (folder / "text.txt").write_bytes(b"".join(words[i] for i in draw.integers(len(words), size=n))[:n])


def merged(tables: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    result = dict(tables)
    for key, value in more.items():
        result[key] = merged(result.get(key, {}), value) if isinstance(value, dict) else value
    return result


def classifier_tables(**more: Any) -> dict[str, Any]:
    tables = {
        "model": {"kind": "classifier", "input_shape": [7], "n_classes": 3, "layers": [dict(LAYER)], "initial_noise": 0.1},
        "data": {"kind": "npz", "path": "samples.npz", "valid": 0.2, "test": 5},
        "optimizer": {"tables": {"lr": 0.05}, "rest": {"lr": 0.02, "weight_decay": 0.01}},
        "schedule": {"warmup": 0.2},
        "train": {"batch_size": 8, "steps": 12, "eval_every": 4, "log_every": 3},
        "checkpoint": {"every": 5},
    }
    return merged(tables, more)


def classifier_config(**more: Any) -> Config:
    return make_config(classifier_tables(**more))


def transformer_tables(**more: Any) -> dict[str, Any]:
    model = {"kind": "transformer", "context": 8, "width": 8, "n_layers": 1, "n_heads": 1, "n_detectors": 3, "n_anchors": 2}
    tables = {
        "model": {**model, "positional_dim": 2, "ff_detectors": 4, "ff_anchors": 3},
        "data": {"kind": "bytes", "path": "text.txt", "valid": 0.1, "test": 0.1},
        "train": {"batch_size": 4, "steps": 6, "eval_every": 3, "log_every": 2},
        "checkpoint": {"every": 2},
    }
    return merged(tables, more)


def transformer_config(**more: Any) -> Config:
    return make_config(transformer_tables(**more))

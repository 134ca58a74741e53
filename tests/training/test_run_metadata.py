"""A run writes what it knows of its data into every checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lutetia import models, training
from small import write_text

MODEL: dict[str, Any] = {
    "kind": "classifier",
    "input_shape": [2],
    "n_classes": 2,
    "layers": [{"kind": "lut", "n_outputs": 4, "n_detectors": 2, "n_anchors": 2}],
}
TRAIN = {"steps": 2, "batch_size": 2}


def train(tmp_path: Path, model: dict[str, Any], data: dict[str, Any]) -> Any:
    config = training.make_config({"model": model, "data": data, "train": TRAIN})
    training.train(config, tmp_path / "run", device="cpu", data=tmp_path)
    return models.load(tmp_path / "run")


def test_names_and_ranges_of_a_csv(tmp_path: Path) -> None:
    rows = ["radius,area,diagnosis", "1,-2,malignant", "3,4,benign", "2,0.5,benign", "100,100,malignant"]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    model = train(tmp_path, MODEL | {"n_classes": 3}, {"kind": "csv", "path": "a.csv", "test": 1})
    assert model.metadata == {
        "task": "classification",
        "classes": ["benign", "malignant", "unused class 2"],
        "features": ["radius", "area"],
        "input_low": [1.0, -2.0],  # of the training split alone
        "input_high": [3.0, 4.0],
    }


def test_images_of_bytes_have_one_range_as_the_model_sees_them(tmp_path: Path) -> None:
    x = np.array([[[51, 255], [102, 204]], [[255, 51], [153, 51]]], np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=[0, 1])
    model = train(tmp_path, MODEL | {"input_shape": [2, 2]}, {"kind": "npz", "path": "a.npz"})
    assert model.metadata == {"task": "classification", "input_low": 0.2, "input_high": 1.0}


def test_a_language_model(tmp_path: Path) -> None:
    write_text(tmp_path, 100)
    sizes = {"context": 4, "width": 4, "n_layers": 1, "n_heads": 1, "n_detectors": 2, "ff_detectors": 2, "ff_anchors": 2}
    model = train(tmp_path, {"kind": "transformer", **sizes}, {"kind": "bytes", "path": "text.txt"})
    assert model.metadata == {"task": "language"}

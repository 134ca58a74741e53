"""A folder as a user has it after a morning's work: data, configs and runs, all small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from lutetia import toml, training

FLOWERS = ["sepal length", "sepal width", "petal length", "petal width"]
SPECIES = ["setosa", "versicolor", "virginica"]
TABLES = {"kind": "lut", "n_detectors": 6, "n_anchors": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "iris": {
        "model": {
            "kind": "classifier",
            "input_shape": [4],
            "n_classes": 3,
            "readout": "none",
            "layers": [{**TABLES, "n_outputs": 3}],
        },
        "data": {"kind": "csv", "path": "../flowers.csv", "valid": 0.2, "test": 0.2},
        "train": {"steps": 20, "batch_size": 8},
    },
    "digits": {
        "model": {"kind": "classifier", "input_shape": [4, 4], "readout": "none", "layers": [{**TABLES, "n_outputs": 10}]},
        "data": {"kind": "npz", "path": "../digits.npz", "test": 0.2},
        "train": {"steps": 4, "batch_size": 8},
    },
    "stdlib": {
        "model": {
            "kind": "transformer",
            "context": 16,
            "width": 8,
            "n_layers": 1,
            "n_heads": 1,
            "n_detectors": 2,
            "ff_detectors": 2,
        },
        "data": {"kind": "bytes", "path": "../text.txt", "valid": 0.2},
        "train": {"steps": 3, "batch_size": 2},
    },
}


TREE = {"left_children": [1, -1, -1], "right_children": [2, -1, -1], "default_left": [0, 0, 0]}
LEAVES = [(0, 0.5, -0.5), (1, -0.25, 0.75), (2, 0.125, 1.0)]  # of each class: the column that is compared with 4, and two leaves
TREES = {  # as XGBoost writes them
    "learner": {
        "feature_names": [],
        "gradient_booster": {
            "name": "gbtree",
            "model": {
                "tree_info": [0, 1, 2],
                "trees": [
                    {**TREE, "split_indices": [column, 0, 0], "split_conditions": [4.0, low, high]}
                    for column, low, high in LEAVES
                ],
            },
        },
        "learner_model_param": {"base_score": "5E-1", "num_class": "3", "num_feature": "4"},
        "objective": {"name": "multi:softprob"},
    }
}


def write_setting(folder: Path) -> Path:
    """Write all of it into a folder."""
    write_files(folder)
    for name in CONFIGS:
        training.train(folder / "examples" / f"{name}.toml", folder / "runs" / name, device="cpu")
    return folder


def write_files(folder: Path) -> None:
    """The data and the configs."""
    from PIL import Image

    draw = np.random.default_rng(0)
    rows = [",".join([*FLOWERS, "species"])]
    for _ in range(50):
        values = draw.uniform(0, 8, 4).round(2)
        rows.append(",".join([*map(str, values), SPECIES[int(values[:3].argmax())]]))
    (folder / "flowers.csv").write_text("\n".join(rows) + "\n")
    images = draw.integers(256, size=(60, 4, 4)).astype(np.uint8)
    np.savez(folder / "digits.npz", x=images, y=images.reshape(60, -1)[:, :10].argmax(1))
    Image.fromarray(images[0]).save(folder / "digit.png")
    (folder / "trees.json").write_text(json.dumps(TREES))
    (folder / "text.txt").write_text("def f(x):\n    return x + 1\n" * 30)
    (folder / "examples").mkdir()
    for name, tables in CONFIGS.items():
        (folder / "examples" / f"{name}.toml").write_text(toml.dumps(tables))

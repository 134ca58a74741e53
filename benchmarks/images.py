"""What `lutetia train` makes of images, beside gradient boosting, a forest and an SVM with their default settings.

Ours is fitted as `lutetia train FILE.npz` fits it, but to all images of the training split; "unshifted" is the same without
shifted images and with 500 tables, so that it sees what the others see: pixels from 0 to 1, as they are. Two threads each.
Seconds are those of the clock, for the fit and for all predictions. MNIST is added by --data FOLDER with its four files (.gz).
Claimed: an accuracy of at least the best boosting method's on each set.

    lutetia bench images [--quick] [--json] [--save] [-- --data FOLDER --sets "digits;shapes" --methods "Lutetia;LightGBM"]
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait in a loop take the time of others
import numpy as np
import torch

from images_data import ImageSet, load_sets
from lutetia import models
from lutetia.errors import require
from lutetia.training import guess_config, train_table
from results import Row, finish, options_of, peer, progress, result, table

NEEDS = ("lightgbm",)
THREADS = 2
OURS, PLAIN = "Lutetia", "Lutetia, unshifted"
BOOSTING = ("HistGradientBoosting", "LightGBM")
METHODS = (OURS, PLAIN, *BOOSTING, "RandomForest", "SVM")
BATCH = 1024
QUICK = 200  # images
Array = np.ndarray[Any, Any]
Predict = Callable[[Array], Array]


def fit_ours(images: ImageSet, shifted: bool) -> Predict:
    """The model of a run of `lutetia train`, without the rows that it would hold out to test."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "images.npz"
        np.savez(path, x=images.x, y=images.y)
        config, _ = guess_config(path, None, "classification")
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, test=0.0))
        if not shifted:
            plain = dataclasses.replace(config.fit, n_tables=500)
            config = dataclasses.replace(config, data=dataclasses.replace(config.data, shift=0), fit=plain)
        summary = train_table(config, Path(), Path(place) / "run")
        model: Any = models.load(summary["checkpoint"])

    def predict(x: Array) -> Array:
        names = np.array([int(name) for name in model.metadata["classes"]])
        with torch.no_grad():
            return np.concatenate([names[model(part).argmax(1).numpy()] for part in torch.from_numpy(x).split(BATCH)])

    return predict


def fit_peer(images: ImageSet, estimator: Any) -> Predict:
    """An estimator of columns, fitted to pixels from 0 to 1."""
    fitted = estimator.fit(_columns(images.x), images.y)
    return lambda x: fitted.predict(_columns(x))


def _columns(x: Array) -> Array:
    return x.reshape(len(x), -1) / 255


def methods() -> dict[str, Callable[[ImageSet], Predict]]:
    """How each method is fitted."""
    from sklearn import ensemble, svm

    lightgbm: Any = require("lightgbm", "the benchmark", "lightgbm")
    fixed: dict[str, Any] = {"random_state": 0}
    return {
        OURS: lambda images: fit_ours(images, True),
        PLAIN: lambda images: fit_ours(images, False),
        "HistGradientBoosting": lambda images: fit_peer(images, ensemble.HistGradientBoostingClassifier(**fixed)),
        "LightGBM": lambda images: fit_peer(images, lightgbm.LGBMClassifier(verbose=-1, n_jobs=THREADS, **fixed)),
        "RandomForest": lambda images: fit_peer(images, ensemble.RandomForestClassifier(n_jobs=THREADS, **fixed)),
        "SVM": lambda images: fit_peer(images, svm.SVC()),
    }


def measure(images: ImageSet, name: str, fit: Callable[[ImageSet], Predict]) -> Row:
    """The accuracy of a method in %, and its seconds."""
    progress(f"{images.name}: {name}")
    begun = time.perf_counter()
    predict = fit(images)
    fitted = time.perf_counter()
    wrong = predict(images.test_x) != images.test_y
    sizes = {"images": len(images.y), "tested": len(images.test_y), "pixels": " × ".join(map(str, images.x.shape[1:]))}
    times = {"fit": fitted - begun, "predict": time.perf_counter() - fitted}
    return {"set": images.name, **sizes, "method": name, "accuracy": float(100 * (1 - wrong.mean())), **times}


def missed_claims(rows: list[Row]) -> list[str]:
    """The sets on which a boosting method is better than ours."""
    missed = []
    for name in dict.fromkeys(row["set"] for row in rows):
        own = {row["method"]: row["accuracy"] for row in rows if row["set"] == name}
        others = [own[each] for each in BOOSTING if each in own]
        if OURS in own and others and own[OURS] < max(others):
            missed.append(f"{name}: accuracy {own[OURS]:.2f}%, the best boosting method has {max(others):.2f}%")
    return missed


def main(argv: list[str] | None = None) -> int:
    """Fit everything; 1 when a claim does not hold."""
    parser = options_of(__doc__)
    parser.add_argument("--data", type=Path, help="the folder of MNIST's four files, which adds two sets")
    parser.add_argument("--sets", help="these sets, with semicolons between them")
    parser.add_argument("--methods", help="these methods, with semicolons between them")
    options = parser.parse_args(argv)
    torch.set_num_threads(THREADS)
    fits = methods()
    chosen = [name for name in METHODS if options.methods is None or name in options.methods.split(";")]
    rows: list[Row] = []
    for images in load_sets(options.data):
        if options.sets is not None and images.name not in options.sets.split(";"):
            continue
        if options.quick:
            images = ImageSet(images.name, *(part[:QUICK] for part in images[1:]))
        rows += [measure(images, name, fits[name]) for name in chosen]
    columns = {
        "set": None,
        "images": None,
        "tested": None,
        "pixels": None,
        "method": None,
        "accuracy": "%",
        "fit": "s",
        "predict": "s",
    }
    peers = [
        peer(name, package)
        for name, package in zip(METHODS[2:], ("scikit-learn", "lightgbm", "scikit-learn", "scikit-learn"), strict=True)
    ]
    packages = ("scikit-learn", "lightgbm")
    settings = {"threads": THREADS}
    found = result(
        __doc__, "images", settings, [table("sets", columns, rows)], peers=peers, packages=packages, missed=missed_claims(rows)
    )
    return finish(found, options)


if __name__ == "__main__":
    sys.exit(main())

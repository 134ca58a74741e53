"""What `lutetia train` makes of images, beside gradient boosting, a forest, an SVM, and a small convolutional network.

Ours is fitted as `lutetia train FILE.npz` fits it, but to all images of the training split: with shifted images, and with counts
of patterns where its own trial says so. "Pixels" is the same without patterns, "unshifted" also without shifted images and with
500 tables, so that it sees what the others see: pixels from 0 to 1, as they are. LightGBM and the SVM also get histograms of
oriented gradients (HOG), and the network is trained for as much processor time as ours. Default settings, two threads each.
Seconds are those of the processor, for the fit and for all predictions. --data FOLDER adds MNIST, its four files (.gz).
Claimed: an accuracy of at least the best boosting method's on each set, also of those on HOG.

    lutetia bench images [--quick] [--json] [--save] [-- --data FOLDER --sets "digits;shapes" --methods "Lutetia;LightGBM"]
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait in a loop take the time of others
import numpy as np
import torch

from images_data import ImageSet, load_sets
from images_peers import fit_network, hog
from lutetia import models
from lutetia.errors import require
from lutetia.training import guess_config, train_table
from results import Row, finish, options_of, peer, progress, result, table

NEEDS = ("lightgbm",)
THREADS = 2
OURS, PIXELS, PLAIN = "Lutetia", "Lutetia, pixels", "Lutetia, unshifted"
BOOSTING = ("HistGradientBoosting", "LightGBM", "LightGBM on HOG")
NETWORK = "CNN"
METHODS = (OURS, PIXELS, PLAIN, *BOOSTING, "RandomForest", "SVM", "SVM on HOG", NETWORK)
PACKAGES = {"LightGBM": "lightgbm", "LightGBM on HOG": "lightgbm", NETWORK: "torch"}
BATCH = 1024
QUICK = 200  # images
Array = np.ndarray[Any, Any]
Predict = Callable[[Array], Array]


def fit_ours(images: ImageSet, name: str) -> Predict:
    """The model of a run of `lutetia train`, without the rows that it would hold out to test."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "images.npz"
        np.savez(path, x=images.x, y=images.y)
        config, _ = guess_config(path, None, "classification")
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, test=0.0))
        if name != OURS and config.data.patches is not None:
            config = dataclasses.replace(config, data=dataclasses.replace(config.data, patches=False))
        if name == PLAIN:
            plain = dataclasses.replace(config.fit, n_tables=500)
            config = dataclasses.replace(config, data=dataclasses.replace(config.data, shift=0), fit=plain)
        summary = train_table(config, Path(), Path(place) / "run")
        model: Any = models.load(summary["checkpoint"])

    def predict(x: Array) -> Array:
        names = np.array([int(name) for name in model.metadata["classes"]])
        with torch.no_grad():
            return np.concatenate([names[model(part).argmax(1).numpy()] for part in torch.from_numpy(x).split(BATCH)])

    return predict


def fit_peer(images: ImageSet, estimator: Any, columns: Callable[[Array], Array]) -> Predict:
    """An estimator of columns that are made of images."""
    fitted = estimator.fit(columns(images.x), images.y)
    return lambda x: fitted.predict(columns(x))


def pixels(x: Array) -> Array:
    """Pixels from 0 to 1, as columns."""
    return x.reshape(len(x), -1) / 255


def methods() -> dict[str, Callable[[ImageSet], Predict]]:
    """How each method is fitted; the network needs to be told for how long."""
    from sklearn import ensemble, svm

    lightgbm: Any = require("lightgbm", "the benchmark", "lightgbm")
    fixed: dict[str, Any] = {"random_state": 0}
    trees = ensemble.HistGradientBoostingClassifier, ensemble.RandomForestClassifier
    leaves: dict[str, Any] = {"verbose": -1, "n_jobs": THREADS, **fixed}
    ours = {name: partial(fit_ours, name=name) for name in (OURS, PIXELS, PLAIN)}
    return {
        **ours,
        "HistGradientBoosting": lambda images: fit_peer(images, trees[0](**fixed), pixels),
        "LightGBM": lambda images: fit_peer(images, lightgbm.LGBMClassifier(**leaves), pixels),
        "LightGBM on HOG": lambda images: fit_peer(images, lightgbm.LGBMClassifier(**leaves), hog),
        "RandomForest": lambda images: fit_peer(images, trees[1](n_jobs=THREADS, **fixed), pixels),
        "SVM": lambda images: fit_peer(images, svm.SVC(), pixels),
        "SVM on HOG": lambda images: fit_peer(images, svm.SVC(), hog),
    }


def measure(images: ImageSet, name: str, fit: Callable[[ImageSet], Predict]) -> Row:
    """The accuracy of a method in %, and its seconds."""
    progress(f"{images.name}: {name}")
    begun = time.process_time()
    predict = fit(images)
    fitted = time.process_time()
    wrong = predict(images.test_x) != images.test_y
    sizes = {"images": len(images.y), "tested": len(images.test_y), "pixels": " × ".join(map(str, images.x.shape[1:]))}
    times = {"fit": fitted - begun, "predict": time.process_time() - fitted}
    return {"set": images.name, **sizes, "method": name, "accuracy": float(100 * (1 - wrong.mean())), **times}


def measure_all(images: ImageSet, chosen: list[str], fits: dict[str, Callable[[ImageSet], Predict]]) -> list[Row]:
    """The chosen methods on a set; the network comes after ours, whose time it gets."""
    rows = [measure(images, name, fits[name]) for name in chosen if name != NETWORK]
    seconds = next((row["fit"] for row in rows if row["method"] == OURS), None)
    if NETWORK in chosen and seconds is not None:
        rows.append(measure(images, NETWORK, lambda given: fit_network(given.x, given.y, float(seconds))))
    return rows


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
            images = ImageSet(images.name, *(part[:: max(1, len(part) // QUICK)] for part in images[1:]))
        rows += measure_all(images, chosen, fits)
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
    peers = [peer(name, PACKAGES.get(name, "scikit-learn")) for name in METHODS[3:]]
    packages = ("scikit-learn", "lightgbm")
    settings = {"threads": THREADS}
    found = result(
        __doc__, "images", settings, [table("sets", columns, rows)], peers=peers, packages=packages, missed=missed_claims(rows)
    )
    return finish(found, options)


if __name__ == "__main__":
    sys.exit(main())

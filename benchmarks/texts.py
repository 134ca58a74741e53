"""Texts classified by lookup tables, beside linear models and gradient boosting on TF-IDF, each with its defaults.

Ours is fitted as `lutetia train FILE.csv` fits a column of text and a label. Logistic regression (LR) and a linear SVM see TF-IDF
of words, and of words and pairs of them; LightGBM TF-IDF of words; HistGradientBoosting, which takes no sparse columns, counts of
the 200 most frequent words. Default settings, one thread; three folds, the means of accuracy and log loss, and seconds of
processor time of a fit, and of predictions, words included. An SVM gives no probabilities. --data FOLDER adds its CSV files, each
with columns `text` and `label`. Claimed: a mean log loss below that of all others, and a mean accuracy of at least theirs.

    lutetia bench texts [--quick] [--json] [--save] [-- --data FOLDER --folds 3]
"""

from __future__ import annotations

import csv
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np

from lutetia.errors import require
from results import Row, finish, options_of, peer, progress, result, table
from texts_data import MOST_ROWS, TextSet, load_texts

NEEDS = ("lightgbm",)
OURS = "Lutetia"
DENSE = 200  # words for HistGradientBoosting
QUICK = 300  # texts
Array = np.ndarray[Any, Any]
Fitted = Callable[[list[str]], tuple[Array, Array | None]]  # texts -> predicted labels, probabilities


def fit_ours(texts: list[str], labels: Array) -> tuple[Fitted, Array]:
    """The model of `lutetia train`, without rows held out to test; and its classes."""
    from dataclasses import replace

    from lutetia.sklearn import LUTClassifier
    from lutetia.training import guess_config, train_table

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "texts.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *zip(texts, labels, strict=True)])
        config, _ = guess_config(path, "label", "classification")
        config = replace(config, data=replace(config.data, test=0.0, text=["text"]))
        train_table(config, Path(), Path(place) / "run")
        model = LUTClassifier.load(Path(place) / "run")
    model.n_jobs = 1

    def predict(given: list[str]) -> tuple[Array, Array | None]:
        chances = model.predict_proba(np.array([[" ".join(text.split())] for text in given], dtype=object))
        return model.classes_[chances.argmax(1)], chances

    return predict, model.classes_


def fit_peer(vectors: Any, estimator: Any, texts: list[str], labels: Array, is_dense: bool = False) -> tuple[Fitted, Array]:
    """A peer on the words that scikit-learn's vectors are made of."""

    def columns(given: list[str], fit: bool = False) -> Any:
        found = vectors.fit_transform(given) if fit else vectors.transform(given)
        return found.toarray() if is_dense else found

    estimator.fit(columns(texts, True), labels)

    def predict(given: list[str]) -> tuple[Array, Array | None]:
        own = columns(given)
        return estimator.predict(own), estimator.predict_proba(own) if hasattr(estimator, "predict_proba") else None

    return predict, estimator.classes_


def methods() -> dict[str, Callable[[list[str], Array], tuple[Fitted, Array]]]:
    """How each method is fitted to texts and labels."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    boosting = require("lightgbm", "the benchmark", "lightgbm")
    pairs = {"ngram_range": (1, 2)}
    return {
        OURS: fit_ours,
        "LR": lambda x, y: fit_peer(TfidfVectorizer(), LogisticRegression(), x, y),
        "LR, pairs": lambda x, y: fit_peer(TfidfVectorizer(**pairs), LogisticRegression(), x, y),
        "SVM": lambda x, y: fit_peer(TfidfVectorizer(), LinearSVC(), x, y),
        "SVM, pairs": lambda x, y: fit_peer(TfidfVectorizer(**pairs), LinearSVC(), x, y),
        "LightGBM": lambda x, y: fit_peer(TfidfVectorizer(), boosting.LGBMClassifier(verbose=-1, n_jobs=1), x, y),
        "HistGradientBoosting": lambda x, y: fit_peer(
            CountVectorizer(max_features=DENSE), HistGradientBoostingClassifier(), x, y, True
        ),
    }


def log_loss(labels: Array, classes: Array, chances: Array) -> float:
    """The mean of what the probability of the true class lacks; nothing counts more than 1e-15."""
    own = chances[np.arange(len(labels)), np.searchsorted(classes, labels)]
    return float(-np.log(np.maximum(own, 1e-15)).mean())


def measure(data: TextSet, folds: int) -> list[Row]:
    """A row for each method: the means over folds, and the error of the accuracy's."""
    from threadpoolctl import threadpool_limits

    labels, fold = np.array(data.labels), np.arange(len(data.labels)) % folds
    found: dict[str, list[list[float]]] = {name: [] for name in methods()}
    for number in range(folds):  # the methods take turns
        own, held = ([text for text, at in zip(data.texts, fold, strict=True) if (at == number) == is_held] for is_held in (0, 1))
        for name, fit in methods().items():
            with warnings.catch_warnings(), threadpool_limits(1):
                warnings.simplefilter("ignore")  # names of columns
                begun = time.process_time()
                predict, classes = fit(own, labels[fold != number])
                fitted = time.process_time()
                predicted, chances = predict(held)
                ended = time.process_time()
            truth = labels[fold == number]
            loss = float("nan") if chances is None else log_loss(truth, classes, chances)
            found[name].append([100 * float((predicted == truth).mean()), loss, fitted - begun, ended - fitted])
    rows: list[Row] = []
    for name, each in found.items():
        mean, error = np.mean(each, 0), np.std(each, 0) / folds**0.5
        loss = None if np.isnan(mean[1]) else float(mean[1])
        rows.append({"set": data.name, "method": name, "accuracy": float(mean[0]), "error": float(error[0]), "log loss": loss,
                     "fit": float(mean[2]), "predict": float(mean[3])})  # fmt: skip
    return rows


def means(rows: list[Row]) -> list[Row]:
    """For each method the means over sets."""
    found = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        told: Row = {key: float(np.mean([row[key] for row in own])) for key in ("accuracy", "fit", "predict")}
        losses = [row["log loss"] for row in own]
        found.append({"method": method, **told, "log loss": None if None in losses else float(np.mean(losses))})
    return found


def main(argv: list[str] | None = None) -> int:
    """Every method on every set; 1 when ours is behind on average."""
    parser = options_of(__doc__)
    parser.add_argument("--data", type=Path, help="a folder of CSV files with columns text and label")
    parser.add_argument("--folds", type=int, default=3, help="folds of each set (default 3)")
    options = parser.parse_args(argv)
    sets = [each.some(QUICK) for each in load_texts(None)] if options.quick else load_texts(options.data)
    rows: list[Row] = []
    for data in sets:
        progress(data.name)
        rows += measure(data, 2 if options.quick else options.folds)
    summary = {row["method"]: row for row in means(rows)}
    ours, missed = summary[OURS], []
    others = [row for name, row in summary.items() if name != OURS]
    best = max(others, key=lambda row: row["accuracy"])
    if best["accuracy"] > ours["accuracy"]:
        missed.append(f"mean accuracy {best['accuracy'] - ours['accuracy']:.2f} points below that of {best['method']}")
    sure = min((row for row in others if row["log loss"] is not None), key=lambda row: row["log loss"])
    if sure["log loss"] < ours["log loss"]:
        missed.append(f"mean log loss {ours['log loss']:.3f}, {sure['method']} {sure['log loss']:.3f}")
    columns = {"accuracy": "%", "log loss": None, "fit": "s", "predict": "s"}
    sizes = [{"set": data.name, "texts": len(data.texts), "classes": len(set(data.labels)),
              "words": float(np.mean([len(text.split()) for text in data.texts]))} for data in sets]  # fmt: skip
    tables = [
        table("means", {"method": None, **columns}, list(summary.values())),
        table("sizes", dict.fromkeys(("set", "texts", "classes", "words")), sizes),
        table("methods", {"set": None, "method": None, "error": "%", **columns}, rows),
    ]
    packages = {"LR": "scikit-learn", "SVM": "scikit-learn", "LightGBM": "lightgbm", "HistGradientBoosting": "scikit-learn"}
    peers = [peer(name, packages[name.split(",")[0]]) for name in summary if name != OURS]
    settings = {"folds": options.folds, "most texts of a set": MOST_ROWS}
    told = [] if options.quick else missed
    return finish(
        result(__doc__, "texts", settings, tables, peers=peers, packages=("scikit-learn", "lightgbm"), missed=told), options
    )


if __name__ == "__main__":
    sys.exit(main())

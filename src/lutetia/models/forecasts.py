"""Forecasts of a series: what a model sees of the rows before a moment, to tell a value some rows after it.

For a signal whose sample at row t, the last that is known, is x[t], and lags k that grow:

    last                       x[t]
    rise over k samples        x[t] - x[t - k]
    last above the mean of k   x[t] - the mean of x[t - k + 1] to x[t]
    k before the last          x[t - k], of the signal to predict, a season before the row to predict

A column of dates adds its month, day, weekday and hour at row t. Tables add up constants, so numbers are learned as what is added
to one of these inputs, the base: the last value, or that of a season before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lutetia.errors import check_int, fail
from lutetia.models.dates import ORDERS, PARTS, part_of

Array = np.ndarray[Any, Any]
SHORTEST, LONGEST, MOST_SIGNALS = 2, 1 << 14, 1000  # rows of a window, signals
LAGS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
SEASONS_BEFORE = 3  # whose values at the season's moment to predict are seen
KINDS = ("last", "rise", "mean", "before", "date")


class Seen(NamedTuple):
    """An input: one of `KINDS`, the number of its signal, its lag or the number of a part of the date, and what it is called."""

    kind: str
    signal: int
    lag: int
    title: str


@dataclass(frozen=True)
class Forecast:
    """What is predicted, `ahead` rows after windows of `window` rows of some signals, one every `step`: the column `target`,
    which repeats itself after `season` rows, or does not (1). `series` names recordings; `dates` is a column of dates in this
    `order`, of which some `parts` are seen."""

    ahead: int
    window: int
    target: str
    signals: tuple[str, ...]
    season: int = 1
    step: int = 1
    series: str | None = None
    dates: str | None = None
    order: str | None = None
    parts: tuple[str, ...] = ()

    @property
    def seasonal(self) -> int:
        """How many rows before the last one a value is a season, or some, before the row to predict."""
        return self.season * -(-self.ahead // self.season) - self.ahead

    @cached_property
    def inputs(self) -> list[Seen]:
        """The inputs, signal by signal."""
        before = [self.seasonal + self.season * number for number in range(SEASONS_BEFORE)] if self.season > 1 else []
        lags = sorted({k for k in (*LAGS, self.season, *before) if 0 < k < self.window})
        spans = sorted({k for k in (*LAGS[2:], self.season, self.window) if 1 < k <= self.window})
        seen = []
        for at, name in enumerate(self.signals):
            seen.append(Seen("last", at, 0, f"{name}: last"))
            seen += [Seen("rise", at, k, f"{name}: rise over {k} sample{'s' * (k > 1)}") for k in lags]
            seen += [Seen("mean", at, k, f"{name}: last above the mean of {k} samples") for k in spans]
            if name == self.target:
                seen += [Seen("before", at, k, f"{name}: {k} before the last") for k in before if 0 < k < self.window]
        return seen + [Seen("date", -1, at, f"{self.dates}: {part}") for at, part in enumerate(self.parts)]

    @property
    def titles(self) -> list[str]:
        """The names of the inputs."""
        return [each.title for each in self.inputs]

    @property
    def bases(self) -> dict[str, int]:
        """The inputs that a forecast may begin with, by what they are: the last value, and that of a season before."""
        if self.target not in self.signals:
            return {}
        own = self.signals.index(self.target)
        seen = {(each.kind, each.signal, each.lag): number for number, each in enumerate(self.inputs)}
        found = {"last": seen["last", own, 0]}
        if self.season > 1 and self.seasonal < self.window:
            season = seen.get(("before", own, self.seasonal)) if self.seasonal else found["last"]
            found |= {} if season is None else {"season": season}
        return found

    def rows(self, values: Array, ends: Array, dates: Array | None = None) -> Array:
        """The inputs of the windows that end with some rows, float64 [n, inputs], by values float64 [rows, signals], NaN where a
        sample is missing, and the seconds of the dates, float64 [rows]."""
        found = np.empty((len(ends), len(self.inputs)))
        for number, (kind, signal, lag, _) in enumerate(self.inputs):
            if kind == "date":
                assert dates is not None
                found[:, number] = part_of(dates[ends], self.parts[lag])
                continue
            x = values[:, signal]
            if kind == "mean":
                begins = ends - lag + 1
                found[:, number] = x[ends] - sliding_window_view(x, lag)[begins].mean(1)
            else:
                found[:, number] = x[ends] - x[ends - lag] if kind == "rise" else x[ends - lag]
        return found

    def to_dict(self) -> dict[str, Any]:
        """As metadata holds it."""
        return {key: value for key, value in asdict(self).items() if value is not None and value != ()}


def forecast_of(metadata: Mapping[str, Any]) -> Forecast | None:
    """What a model forecasts; None of one that does not."""
    known = metadata.get("forecast")
    if known is None:
        return None
    return Forecast(**{**known, "signals": tuple(known["signals"]), "parts": tuple(known.get("parts", ()))})


def check_forecast(known: object, features: Sequence[str], n_inputs: int | None) -> None:
    """Refuse what a file says of a forecast where it does not fit the inputs of its model, or is no such thing."""
    needed = {"ahead", "window", "target", "signals", "season", "step"}
    if not isinstance(known, Mapping) or not needed <= set(known) <= {*needed, "series", "dates", "order", "parts"}:
        fail("metadata.forecast", known, ", ".join(sorted(needed)))
    for key, low in (("ahead", 1), ("window", SHORTEST), ("season", 1), ("step", 1)):
        check_int(f"metadata.forecast.{key}", known[key], low, LONGEST)
    names, parts = known["signals"], known.get("parts", ())
    if not isinstance(names, list | tuple) or not 0 < len(names) <= MOST_SIGNALS or not all(map(_is_name, names)):
        fail("metadata.forecast.signals", names, f"1 to {MOST_SIGNALS} names")
    if len(set(names)) < len(names):
        fail("metadata.forecast.signals", names, "a name of its own for each signal")
    for key in ("target", "series", "dates"):
        if key in known and not _is_name(known[key]):
            fail(f"metadata.forecast.{key}", known[key], "the name of a column")
    if not isinstance(parts, list | tuple) or not all(part in PARTS for part in parts) or bool(parts) != ("dates" in known):
        fail("metadata.forecast.parts", parts, f"parts of a date, some of {', '.join(PARTS)}, where there are dates")
    if ("dates" in known) != ("order" in known) or known.get("order", ORDERS[0]) not in ORDERS:
        fail("metadata.forecast.order", known.get("order"), f"one of {', '.join(map(repr, ORDERS))}, where there are dates")
    forecast = forecast_of({"forecast": known})
    assert forecast is not None
    if list(features) != forecast.titles or len(features) != n_inputs:
        fail("metadata.features", list(features)[:3], f"the {len(forecast.titles)} inputs of metadata.forecast")


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip()) and len(name) <= 900

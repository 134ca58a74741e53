"""The future of a series: rows are samples in time, and what is predicted lies `data.ahead` rows after a window of them.

The latest windows are held out. Every row that a fitted window has seen, its target included, is before the moment at which the
first forecast to test is made; so it is between the windows that are fitted and those that decide when to stop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lutetia._shared.numbers import short_number
from lutetia.errors import DataError, did_you_mean
from lutetia.models import UNUSUAL, Forecast, Tabular
from lutetia.models import varying_parts as parts_that_vary
from lutetia.training.columns import is_missing, row_name, text_of, without_words
from lutetia.training.date_columns import dated, find_dates
from lutetia.training.splits import Split
from lutetia.training.table_files import LearningTable, TableFile, find_target
from lutetia.training.target_column import make_target
from lutetia.training.windows import find_signals, guessed_task, recording_begins, signal_values, target_numbers

if TYPE_CHECKING:
    from lutetia.training.boosting import Boosting
    from lutetia.training.table_run import TableSettings
    from lutetia.training.tabular import Shape, TabularRows

Array = np.ndarray[Any, Any]
SEASONS = (4, 5, 6, 7, 10, 12, 13, 24, 26, 48, 52, 60, 96, 120, 144, 168, 288, 336, 365, 672, 1008)  # that are looked for
BETTER = 0.95  # of the error of the last value, which that of a season must stay below
ALIKE = 1.05  # of the least error, up to which a shorter season is preferred: two seasons are one, too
MOST_WINDOWS = 20_000  # of a file, by default
STOP = 0.1  # of the rows to fit, that decide when to stop
TRIED, FEWEST_TRIED = 200, 50  # tables of a trial, and windows on both sides of it
FIT, STOPPING, TEST, CROSSING = 0, 1, 2, -1


@dataclass(frozen=True, eq=False)
class ForecastRead:
    """The windows of a table: what is forecast, how many recordings there are, and the ends of each signal."""

    forecast: Forecast
    recordings: int
    lacking: int
    crossing: int
    ends: list[tuple[float, float]]

    @property
    def types(self) -> list[tuple[str, str]]:
        """Each signal and its ends, and the dates."""
        told = [
            (name, f"signal, {short_number(low)} to {short_number(high)}")
            for name, (low, high) in zip(self.forecast.signals, self.ends, strict=True)
        ]
        dates = self.forecast.dates
        return told if dates is None else [*told, (dates, f"dates, with {', '.join(self.forecast.parts)}")]

    @property
    def told(self) -> dict[str, Any]:
        """For a summary."""
        counts = {"recordings": self.recordings, "lacking": self.lacking, "crossing": self.crossing}
        return {**self.forecast.to_dict(), **counts}


def forecast_table(file: TableFile, wanted: TableSettings) -> LearningTable:
    """The windows of a file, and what is to be predicted after each."""
    name, window, ahead = _check(file, wanted)
    task = wanted.task or guessed_task(file, name)
    begins = recording_begins(file, wanted.series)
    besides = [each for each in (name, wanted.series) if each is not None]
    found, left_out = find_signals(file, wanted, besides, begins)
    names = [name, *found] if task == "regression" else list(found)
    if not names:
        raise DataError(f"{file.path} has no signal, a column of numbers that goes up and down, expected one")
    values = signal_values(file, names, wanted.missing)
    ends_of = [*begins[1:].tolist(), len(values)]
    step = wanted.step or max(1, -(-len(values) // MOST_WINDOWS))
    if task == "regression":
        wishes = target_numbers(file, name)
        labels: Sequence[Any] = wishes.tolist()
        lacks = np.isnan(wishes)
    else:
        cells = file.columns[name]
        labels = [None if is_missing(cell) else text_of(cell) for cell in cells]
        lacks = np.array([label is None for label in labels])
    forecast = Forecast(ahead, window, name, tuple(names), 1, step, wanted.series)
    dates = _dates(file, wanted, left_out)
    seconds = None
    if dates is not None:
        column, order, seconds, parts = dates
        forecast = replace(forecast, dates=column, order=order, parts=parts)
        left_out.pop(column)
    parts_of_rows = [_places(begin, end, forecast, wanted.test) for begin, end in zip(begins.tolist(), ends_of, strict=True)]
    ends, key = (np.concatenate(each) for each in zip(*parts_of_rows, strict=True))
    if not len(ends):
        longest = max(end - begin for begin, end in zip(begins.tolist(), ends_of, strict=True))
        told = f"its longest recording has {longest:,} rows"
        raise DataError(f"{file.path} has no window of {window:,} rows with a row {ahead:,} after it: {told}")
    if task == "regression":
        season = wanted.season or guess_season(values[:, 0], ends[(key == FIT) | (key == STOPPING)], ahead, window)
        forecast = replace(forecast, season=season)
    known = ~lacks[ends + ahead] & (key != CROSSING)
    if forecast.bases:
        known &= np.isfinite(forecast.rows(values, ends, seconds)[:, list(forecast.bases.values())]).all(1)
    read = ForecastRead(
        forecast, len(begins), int((lacks[ends + ahead] | ~known)[key != CROSSING].sum()), int((key == CROSSING).sum()),
        list(zip(np.nanmin(values, 0).tolist(), np.nanmax(values, 0).tolist(), strict=True)),
    )  # fmt: skip
    ends, key = ends[known], key[known]
    if not (key == FIT).any():
        raise DataError(f"{file.path} has too few rows for windows of {window:,} and {ahead:,} ahead: no window is left to fit")
    y, classes = make_target([labels[row] for row in ends + ahead], task, f"{file.path}, column {name!r}")
    x = forecast.rows(values, ends, seconds)
    return LearningTable(
        x, y, forecast.titles, classes, {}, left_out, x.shape[1:], split=Split("latest", key), forecast=read
    )  # fmt: skip


def _check(file: TableFile, wanted: TableSettings) -> tuple[str, int, int]:
    """The target, the window and how far ahead it is predicted; or what is wrong with them."""
    for key in ("categorical", "text", "query", "weight", "shapes", "split_by"):
        if given := getattr(wanted, key):
            raise DataError(f"data.{key} is {given!r}, expected none with data.ahead: forecasts see signals, and dates")
    if wanted.split == "groups":
        raise DataError('data.split is "groups", expected "latest" with data.ahead: the latest rows are held out')
    if isinstance(wanted.target, list):
        raise DataError(f"data.target is {wanted.target}, expected one column with data.ahead")
    if wanted.task == "ranking":
        raise DataError(f"{file.path}: a ranking orders rows, and data.ahead forecasts: --task classification or regression")
    if wanted.series is not None and wanted.series not in file.columns:
        hint = did_you_mean(wanted.series, file.columns)
        raise DataError(f"data.series is {wanted.series!r}, which is not a column of {file.path}: {hint}")
    if wanted.window is None or wanted.ahead is None:
        raise DataError("data.ahead is set without data.window, expected the rows that a forecast looks back at")
    if wanted.task == UNUSUAL:
        raise DataError(
            f"data.ahead is {wanted.ahead}, expected none to find unusual rows: windows of rows that are there are looked at"
        )
    name = series_target(file, wanted.target)
    if name == wanted.series:
        raise DataError(f"data.series is {name!r}, the column to predict, expected another one")
    if wanted.season is not None and wanted.season >= wanted.window:
        raise DataError(f"data.season is {wanted.season:,}, expected less than data.window, {wanted.window:,}")
    return name, wanted.window, wanted.ahead


def series_target(file: TableFile, target: str | None) -> str:
    """The column to forecast, which may be the only one."""
    if len(file.columns) == 1 and target in (None, *file.columns):
        return next(iter(file.columns))
    return find_target(file, target)


def _places(begin: int, end: int, forecast: Forecast, share: float) -> tuple[Array, Array]:
    """The last rows of the windows of a recording, whose targets are in it, and which part each belongs to, int64 [n] each."""
    ends = np.arange(begin + forecast.window - 1, end - forecast.ahead, forecast.step)
    targets = ends + forecast.ahead
    first_test = end - round((end - begin) * share)
    first_stop = begin + round((first_test - begin) * (1 - STOP))
    key = np.full(len(ends), CROSSING)
    key[targets < first_stop] = FIT
    key[(ends >= first_stop - 1) & (targets < first_test)] = STOPPING
    if share:
        key[ends >= first_test - 1] = TEST
    return ends, key


def guess_season(values: Array, ends: Array, ahead: int, window: int) -> int:
    """The season whose value before is nearest to what comes, by the mean absolute error of some windows; 1 where no season is
    clearly nearer than the last value."""
    actual = values[ends + ahead]
    errors = {1: _mean_error(actual, values[ends])}
    for season in SEASONS:
        back = season * -(-ahead // season) - ahead
        if season < window and back < window:
            errors[season] = _mean_error(actual, values[ends - back])
    least = min(errors.values())
    best = min(season for season, error in errors.items() if error <= ALIKE * least)
    return best if errors[best] < BETTER * errors[1] else 1


def _mean_error(actual: Array, guess: Array) -> float:
    missed = np.abs(actual - guess)
    return float(np.nanmean(missed)) if np.isfinite(missed).any() else math.inf


def _dates(file: TableFile, wanted: TableSettings, left_out: dict[str, str]) -> tuple[str, str, Array, tuple[str, ...]] | None:
    """The column of dates, its order, its seconds and the parts that vary; None where there is none. A year that comes is not in
    the data, so it is not looked at."""
    if wanted.dates == []:
        return None
    columns = {name: without_words(file.columns[name], wanted.missing) for name in left_out if name not in wanted.leave_out}
    found = find_dates(columns, wanted.dates, wanted.day_first, file.lines)
    for name, order in found.orders.items():
        seconds = dated(columns[name], order, f"{file.path}, column {name!r}", file.lines)
        if len(empty := np.flatnonzero(np.isnan(seconds))):
            place = row_name(int(empty[0]), file.lines)
            raise DataError(f"{file.path}, {place}, column {name!r} has no date, expected one in each row; or leave it out")
        parts = tuple(part for part in parts_that_vary(seconds) if part != "year")
        if parts:
            return name, order, seconds, parts
    return None


# ---- other files -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ForecastRows:
    """The windows of a file: the last row of each, int64 [n], and their inputs float64 [n, inputs]."""

    ends: Array
    inputs: Array


def forecast_rows(file: TableFile, forecast: Forecast, missing: Sequence[str] = (), behind: int = 0) -> ForecastRows:
    """The windows of a file, the last of which ends `behind` rows before the end of a recording, whatever comes after it."""
    values = signal_values(file, list(forecast.signals), missing)
    begins = recording_begins(file, forecast.series if forecast.series in file.columns else None)
    seconds = None
    if forecast.dates is not None:
        if forecast.dates not in file.columns:
            raise DataError(f"{file.path} has no column {forecast.dates!r}, the dates that the model sees")
        cells, where = without_words(file.columns[forecast.dates], missing), f"{file.path}, column {forecast.dates!r}"
        seconds = dated(cells, str(forecast.order), where, file.lines)
    parts = []
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(values)], strict=True):
        last, first = end - 1 - behind, begin + forecast.window - 1
        parts.append(np.arange(last, first - 1, -forecast.step)[::-1])
    ends = np.concatenate(parts)
    if not len(ends):
        longest = int(np.diff([*begins, len(values)]).max())
        need = f"{forecast.window:,} rows" + (f" with a row {behind:,} after it" if behind else "")
        raise DataError(f"{file.path} has no window of {need}: its longest recording has {longest:,}")
    x = forecast.rows(values, ends, seconds)
    if (bases := list(forecast.bases.values())) and np.isnan(x[:, bases]).any():
        row = int(ends[np.isnan(x[:, bases]).any(1)][0])
        place = f"{file.path}, the window that ends with {row_name(row, file.lines)}"
        raise DataError(f"{place}: {forecast.target!r} is empty where the forecast begins, expected a number")
    return ForecastRows(ends, x)


def forecast_labels(file: TableFile, forecast: Forecast, rows: ForecastRows, is_number: bool) -> list[Any]:
    """What came `ahead` rows after each window; None where it is not known."""
    places = (rows.ends + forecast.ahead).tolist()
    if is_number:
        numbers = target_numbers(file, forecast.target)
        return [None if math.isnan(numbers[row]) else float(numbers[row]) for row in places]
    cells = file.columns[forecast.target]
    return [None if is_missing(cells[row]) else text_of(cells[row]) for row in places]


# ---- the fit ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BaseTrial:
    """How far off forecasts were that begin with each base, by their root mean squared error on `rows` windows held out of a
    trial, and the one with the least."""

    base: str
    rows: int
    errors: dict[str, float]


def choose_base(rows: TabularRows, shape: Shape, settings: Boosting, forecast: Forecast) -> tuple[int | None, BaseTrial | None]:
    """The input that forecasts begin with, by a trial where there are two; None of classes."""
    from lutetia.training.tabular import fit_tabular  # loads what fits, which those who predict do not need

    bases = forecast.bases
    if shape.n_classes > 1 or not bases:
        return None, None
    own, held = rows.held_out(settings.seed)
    if len(set(bases.values())) < 2 or min(len(own.y), len(held.y)) < FEWEST_TRIED:
        return bases.get("season", bases["last"]), None
    once = replace(settings, n_tables=min(TRIED, settings.n_tables), patience=None, intervals=False)
    errors = {}
    for name, base in bases.items():
        model, _ = fit_tabular(own, replace(shape, base=base), once)
        errors[name] = float(np.sqrt(np.mean((_numbers(model, held.x) - held.y) ** 2)))
    best = min(errors, key=lambda name: errors[name])
    return bases[best], BaseTrial(best, len(held.y), errors)


def _numbers(model: Tabular, x: Array) -> Array:
    return model.numbers(torch.from_numpy(x)).numpy()


def naive_errors(forecast: Forecast, x: Array, y: Array) -> dict[str, float]:
    """The root mean squared errors of forecasts that need no model: the last value, and that of a season before."""
    return {name: float(np.sqrt(np.mean((x[:, base] - y) ** 2))) for name, base in forecast.bases.items()}

"""Forecasts on the command line: what `lutetia train` says of them, and the windows of other files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia._shared.numbers import short_number
from lutetia.cli.show import one_line
from lutetia.cli.windows import table_file
from lutetia.errors import DataError
from lutetia.models import Forecast, Tabular, forecast_of
from lutetia.training import class_numbers, forecast_labels, forecast_rows

if TYPE_CHECKING:  # a config loads what fits
    from lutetia.training import LearningTable

Array = np.ndarray[Any, Any]
BASES = {"last": "the last value", "season": "a season before"}


def forecast_lines(table: LearningTable, tested: bool) -> list[str]:
    """What windows a forecast looks back at, what was left out, and how rows to test are kept from those to fit."""
    read = table.forecast
    assert read is not None
    own, of = read.forecast, f"{read.recordings:,} recordings" if read.forecast.series is not None else "one recording"
    rows = f"{own.ahead:,} row{'s' * (own.ahead > 1)} ahead of windows of {own.window:,} rows, one every {own.step:,}, from {of}"
    lines = [f"{rows}: {len(own.titles)} inputs (data.ahead, data.window, data.step)"]
    if not table.classes:
        found = (
            f"repeats itself after {own.season:,} rows"
            if own.season > 1
            else "is at no season clearly nearer than the last value"
        )
        lines.append(f"  {one_line(own.target)} {found} (data.season)")
    if read.lacking:
        lines.append(f"  left out: {read.lacking:,} window{'s' * (read.lacking > 1)} in which a value is missing")
    if tested:
        crossing = f": {read.crossing:,} windows across the borders are left out" if read.crossing else ""
        lines.append(f"  all rows that are fitted come before the first forecast to test{crossing}")
    return lines


def base_line(told: Mapping[str, Any] | None) -> str | None:
    """What a trial said of what forecasts begin with."""
    if told is None:
        return None
    errors = ", ".join(f"{short_number(error, 6)} from {BASES[name]}" for name, error in told["errors"].items())
    return f"forecasts begin with {BASES[told['base']]}: in a trial on {told['rows']:,} windows the RMSE was {errors}"


def naive_text(measured: Mapping[str, Any]) -> str:
    """What forecasts without a model would have missed by: "; RMSE without a model: 8.1 by the last value"."""
    errors = [f"{short_number(error, 6)} by {BASES[name]}" for name, error in measured.get("naive", {}).items()]
    return f"; without a model {', '.join(errors)}" if errors else ""


def read_forecast(model: Tabular, path: Path) -> tuple[Array, list[str], dict[str, Sequence[Any]]]:
    """The windows of a file as a model takes them, the last of which ends with the file; what each is called, and what is known
    of it."""
    forecast, file = _opened(model, path)
    rows = forecast_rows(file, forecast, model.metadata.get("missing", []))
    ends = rows.ends.tolist()
    told: dict[str, Sequence[Any]] = {}
    if forecast.series is not None and forecast.series in file.columns:
        told[forecast.series] = [file.columns[forecast.series][end] for end in ends]
    if forecast.dates is not None:
        told[forecast.dates] = [file.columns[forecast.dates][end] for end in ends]
    told |= {"last row": ends, "row to predict": [end + forecast.ahead for end in ends]}
    names = [f"{path} rows {end - forecast.window + 1} to {end}, {forecast.ahead} on" for end in ends]
    return rows.inputs, names, told


def labelled_forecasts(model: Tabular, path: Path) -> tuple[Array, Array]:
    """The windows of a file [n, inputs] after which it is known what came, and that, float64 [n]."""
    forecast, file = _opened(model, path)
    rows = forecast_rows(file, forecast, model.metadata.get("missing", []), forecast.ahead)
    if forecast.target not in file.columns:
        raise DataError(f"{path} has no column {forecast.target!r}, which the model predicts")
    classes = model.metadata.get("classes")
    labels = forecast_labels(file, forecast, rows, classes is None)
    known = [number for number, own in enumerate(labels) if own is not None]
    if not known:
        raise DataError(f"{path}: {forecast.target!r} has no value after any window, expected some")
    y = class_numbers([labels[number] for number in known], classes, f"{path}, column {forecast.target!r}")
    return rows.inputs[known], y


def _opened(model: Tabular, path: Path) -> tuple[Forecast, Any]:
    forecast = forecast_of(model.metadata)
    assert forecast is not None
    return forecast, table_file(path, f"the model looks back at {forecast.window:,} rows of a file")

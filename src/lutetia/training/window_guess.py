"""The config that is guessed for windows of a recording."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lutetia.errors import DataError
from lutetia.models import UNUSUAL, most_apart
from lutetia.training.columns import missing_words
from lutetia.training.config import override
from lutetia.training.forecasts import forecast_table, series_target
from lutetia.training.table_files import TableFile, find_target, task_of
from lutetia.training.table_run import TableConfig, guess_fit, make_table_config
from lutetia.training.windows import window_table

N_TABLES, N_ANCHORS = 1500, 2  # of classes


def guess_windows(path: Path, file: TableFile, target: str | None, task: str | None, settings: list[str]) -> TableConfig:
    """The config of windows of a file: its target, its task, its signals and how fine they are, and how it is best fitted.
    `settings` are those of --set, data.window among them."""
    tables: dict[str, Any] = {"data": {"path": str(path)}}
    keys = [override(tables, setting) for setting in settings]
    given = make_table_config(tables, str(path), keys).data
    wished = given.target if target is None else target
    if isinstance(wished, list):
        raise DataError(f"data.target is {wished}, expected one column with data.window")
    is_unusual = UNUSUAL in (task, given.task)
    name = wished if is_unusual else find_target(file, wished)
    others = [cells for column, cells in file.columns.items() if column not in (name, given.series, given.split_by)]
    words = given.missing or sorted({word for cells in others for word in missing_words(cells)})
    wanted = replace(given, target=name, task=task or given.task, missing=words)
    table = window_table(file, wanted)
    assert table.windows is not None
    windows = table.windows.windows
    wanted = replace(
        wanted,
        task=task_of(table),
        step=windows.step,
        signals={signal.name: signal.decimals for signal in windows.signals},
        shapes=given.shapes if given.shapes is not None or is_unusual or not most_apart(windows.length) else "auto",
    )
    fit = guess_fit(wanted, table)
    if table.classes and not is_unusual:  # with shapes 87.4% were right, and 85.6% by 500 tables of 64 rows, which are larger
        fit = replace(fit, n_tables=N_TABLES, n_anchors=N_ANCHORS)
    # Two features compared by rank are no reason that reads well, and C needs all edges of both: 94.2% were right either way.
    return TableConfig(wanted, replace(fit, pairs=0.0))


def guess_forecast(path: Path, file: TableFile, target: str | None, task: str | None, settings: list[str]) -> TableConfig:
    """The config of a forecast of a file: its target, its task and its season. `settings` are those of --set."""
    tables: dict[str, Any] = {"data": {"path": str(path)}}
    keys = [override(tables, setting) for setting in settings]
    given = make_table_config(tables, str(path), keys).data
    if given.window is None:
        raise DataError("data.ahead is set without data.window, expected the rows that a forecast looks back at")
    wished = given.target if target is None else target
    if isinstance(wished, list):
        raise DataError(f"data.target is {wished}, expected one column with data.ahead")
    name = series_target(file, wished)
    others = [cells for column, cells in file.columns.items() if column not in (name, given.series)]
    words = given.missing or sorted({word for cells in others for word in missing_words(cells)})
    wanted = replace(given, target=name, task=task or given.task, missing=words, split="latest")
    table = forecast_table(file, wanted)
    assert table.forecast is not None
    forecast = table.forecast.forecast
    season = None if table.classes else forecast.season
    wanted = replace(wanted, task=task_of(table), step=forecast.step, season=season)
    return TableConfig(wanted, guess_fit(wanted, table))

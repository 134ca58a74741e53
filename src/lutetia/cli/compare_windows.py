"""Windows of signals in `lutetia compare`: our model may count shapes, which it chooses in the windows to fit of each fold; other
methods get what is made of each signal."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lutetia.sklearn import Contest, Fitted, fit_ours
from lutetia.training import (
    LearningTable,
    TableConfig,
    TabularRows,
    counting,
    fit_rows,
    labelled,
    shapes_for,
    table_shape,
)

Array = np.ndarray[Any, Any]
GIVEN = (
    "windows: what is made of each signal; Lutetia may count shapes besides, which a trial decides in each fold; that is timed "
    "with its fit, and what is made of the windows to test is not"
)


def numbered(contest: Contest) -> Contest:
    """A contest whose rows are the numbers of windows."""
    return replace(contest, rows=replace(contest.rows, x=np.arange(len(contest.rows.y), dtype=np.float64)[:, None]))


def fit_theirs(fit: Any, x: Array, rows: TabularRows) -> Fitted:
    """Another method, which takes the inputs x of the windows."""
    fitted = fit(_with(x, rows))
    return Fitted(lambda others: fitted.predict(_with(x, others)), fitted.size)


def fit_windows(config: TableConfig, table: LearningTable, threads: int, rows: TabularRows) -> Fitted:
    """Our model, which chooses its shapes in the rows to fit."""
    assert table.windows is not None
    shapes, _ = shapes_for(config, labelled(table, table.windows, np.sort(_numbers(rows)))) if config.data.shapes else ((), None)
    own = counting(table, shapes) if shapes else table
    return fit_theirs(partial(fit_ours, partial(_model, config, own), threads), own.x, rows)


def _model(config: TableConfig, table: LearningTable, rows: TabularRows) -> Any:
    return fit_rows(config, rows, table_shape(config, table))[0]


def _with(x: Array, rows: TabularRows) -> TabularRows:
    return replace(rows, x=x[_numbers(rows)])


def _numbers(rows: TabularRows) -> Array:
    """The numbers of windows, as `numbered` gave them."""
    return rows.x[:, 0].astype(np.int64)

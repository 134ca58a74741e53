"""Settings of a run on a table of data that do not fit its table: errors before anything is fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lutetia._shared.losses import Loss
from lutetia._shared.rankings import check_relevance
from lutetia.errors import ArgumentError, DataError, did_you_mean
from lutetia.models import SHAPE_SAMPLES, most_apart
from lutetia.training.patches import can_have_patches
from lutetia.training.table_files import LearningTable, task_of
from lutetia.training.table_fit import names_of

LEAST_ROWS = 10  # of which unusual ones are found
if TYPE_CHECKING:
    from lutetia.training.table_run import TableConfig


def check_fit(config: TableConfig, table: LearningTable) -> None:
    """Refuse settings that do not fit a table."""
    _check_unusual(config, table)
    if config.fit.balanced and not table.classes:
        raise DataError(f"fit.balanced is true, and a {task_of(table)} has no classes, expected false")
    _check_loss(config, table)
    if config.data.shift and len(table.input_shape) < 2:
        raise DataError(f"data.shift is {config.data.shift}, expected 0: {config.data.path} holds no images")
    if config.data.patches and not can_have_patches(table.input_shape):
        told = f"{config.data.path} holds no images, or too small ones"
        raise DataError(f"data.patches is {config.data.patches!r}, expected false: {told}")
    if config.data.shapes and table.windows is None:
        raise DataError(
            f"data.shapes is {config.data.shapes!r}, expected false without data.window: shapes are counted in windows"
        )
    if config.data.shapes is True and not most_apart(config.data.window or 0):
        raise DataError(
            f"data.shapes is true with data.window={config.data.window}, expected windows of {SHAPE_SAMPLES} rows or more"
        )
    _check_monotone(config, table)
    _check_interactions(config, table)


def _check_unusual(config: TableConfig, table: LearningTable) -> None:
    """Refuse settings of other tasks for unusual rows, and those of unusual rows for other tasks."""
    fit = config.fit
    if not table.is_unusual:
        if fit.flagged is not None:
            raise DataError(f'fit.flagged is {fit.flagged:g}, expected data.task = "unusual" too')
        return
    if len(table.y) < LEAST_ROWS:
        raise DataError(f"{config.data.path} holds {len(table.y)} rows, expected {LEAST_ROWS} or more to find unusual ones")
    if fit.flagged == 0:
        raise DataError("fit.flagged is 0, expected more: the part of rows like these that is flagged")
    others = ("balanced", "calibrate", "enough_tables", "interactions", "intervals", "monotone", "patience", "quantile")
    given = [name for name in others if getattr(fit, name)]
    if fit.loss != Loss().name:
        given.append("loss")
    if given:
        raise DataError(f"fit.{given[0]} is {getattr(fit, given[0])!r}, expected none: nothing is predicted of unusual rows")
    if config.data.shapes:
        raise DataError(f"data.shapes is {config.data.shapes!r}, expected false: shapes are chosen by what is to be predicted")


def _check_monotone(config: TableConfig, table: LearningTable) -> None:
    """Refuse constraints of columns that are no inputs, or that have no order."""
    wanted = config.fit.monotone
    for name, sign in wanted.items():
        if isinstance(sign, bool) or not isinstance(sign, int) or sign not in (-1, 0, 1):
            raise DataError(f"fit.monotone: {name!r} is {sign!r}, expected -1, 0 or 1")
        if name not in table.features:
            left = table.left_out.get(name)
            why = did_you_mean(name, table.features) if left is None else f"it is left out, {left}"
            raise DataError(f"fit.monotone has {name!r}, which is not an input of {config.data.path}: {why}")
        if table.features.index(name) in table.categories:
            raise DataError(f"fit.monotone has {name!r}, which holds categories, expected a column of numbers or dates")
    if any(wanted.values()) and len(table.classes) > 2:
        raise DataError(f"fit.monotone is for numbers and two classes, and {config.data.path} has {len(table.classes)} classes")


def _check_interactions(config: TableConfig, table: LearningTable) -> None:
    """Refuse limits that are no limits, or of columns that are no inputs."""
    wanted = config.fit.interactions
    if wanted is None:
        return
    if len(table.input_shape) > 1 or table.windows is not None:
        held = "images" if table.windows is None else "windows of signals"
        raise DataError(f"fit.interactions is for columns of data, and {config.data.path} holds {held}: leave it out")
    groups = wanted if isinstance(wanted, list) else []
    if not all(isinstance(group, list) and group and all(isinstance(name, str) for name in group) for group in groups) or (
        not groups and wanted not in (1, 2)
    ):
        expected = "1, 2, or a list of lists of columns that may meet"
        raise DataError(f"fit.interactions is {wanted!r}, expected {expected}")
    names = names_of(table)
    for name in (name for group in groups for name in group):
        if name not in names:
            left = table.left_out.get(name)
            why = did_you_mean(name, names) if left is None else f"it is left out, {left}"
            raise DataError(f"fit.interactions has {name!r}, which is not an input of {config.data.path}: {why}")


def _check_loss(config: TableConfig, table: LearningTable) -> None:
    """Refuse a loss that does not fit the numbers to predict, or classes, or the order of rows."""
    if table.query is not None:
        if config.fit.loss != Loss().name or config.fit.quantile is not None or config.fit.intervals:
            raise DataError("fit.loss, fit.quantile and fit.intervals are for numbers, and a ranking orders rows: leave them out")
        if len(np.unique(table.query)) == len(table.query):
            raise DataError(f"{config.data.path}: {config.data.query!r} differs in all rows, expected rows that share a query")
        try:
            check_relevance(table.y, f"{config.data.path}: {config.data.target!r}")
        except ArgumentError as error:
            raise DataError(str(error)) from error
        return
    try:
        loss = Loss(config.fit.loss, config.fit.quantile)
        if not table.classes:
            target = "the target" if config.data.target is None else repr(config.data.target)
            loss.check_target(table.y, f"{config.data.path}: {target}")
    except ArgumentError as error:
        raise DataError(str(error).replace("loss=", "fit.loss=").replace("quantile is", "fit.quantile is")) from error
    if table.classes and loss != Loss():
        raise DataError(f'fit.loss is "{loss.name}", which is for numbers, and {config.data.path} has classes to predict')
    if config.fit.intervals and not loss.has_intervals:
        raise DataError('fit.intervals is true with fit.loss="quantile", expected false: a quantile is an end, not a middle')

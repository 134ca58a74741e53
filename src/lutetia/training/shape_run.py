"""Shapes in the windows of a run of `lutetia train`: whether they are counted, and in which windows they were chosen."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia.models import SignalShape
from lutetia.training.boosting import Each
from lutetia.training.data import Data, Samples
from lutetia.training.signal_shapes import LabelledWindows, ShapeTrial, choose_shapes, try_shapes
from lutetia.training.table_files import LearningTable
from lutetia.training.table_parts import part_table
from lutetia.training.windows import WindowsRead

if TYPE_CHECKING:
    from lutetia.training.table_run import TableConfig

Array = np.ndarray[Any, Any]
Opened = tuple[LearningTable, Data]


def with_shapes(config: TableConfig, opened: Opened, each: Each | None = None) -> tuple[Opened, ShapeTrial | None]:
    """A table of windows with the shapes that its rows to fit choose, where the config wants them or a trial says that they help;
    and that trial."""
    table, data = opened
    read = table.windows
    if read is None or not config.data.shapes:
        return opened, None
    shapes, trial = shapes_for(config, _fitted(config, table, read), each)
    if not shapes:
        return opened, trial
    table = counting(table, shapes)
    names = data.names._replace(features=table.features)
    return (table, replace(data, splits=part_table(table, config.data.test, Path(config.data.path)), names=names)), trial


def shapes_for(
    config: TableConfig, own: LabelledWindows, each: Each | None = None
) -> tuple[tuple[SignalShape, ...], ShapeTrial | None]:
    """The shapes that windows to fit choose, none where the config or a trial is against it; and that trial."""
    wanted, trial = config.data.shapes, None
    if wanted == "auto":
        watch = None if each is None else lambda done, losses: each(0, losses)  # a trial is no progress of the fit
        trial = try_shapes(own, config.boosting(), watch)
    wanted = wanted is True or (trial is not None and trial.gains)
    return choose_shapes(own, config.fit.seed) if wanted else (), trial


def counting(table: LearningTable, shapes: tuple[SignalShape, ...]) -> LearningTable:
    """A table of windows that counts some shapes, too."""
    read = table.windows
    assert read is not None
    windows = replace(read.windows, shapes=shapes)
    x = windows.inputs(read.samples, read.starts)
    return replace(table, x=x, features=windows.titles, input_shape=x.shape[1:], windows=replace(read, windows=windows))


def _fitted(config: TableConfig, table: LearningTable, read: WindowsRead) -> LabelledWindows:
    """The windows to fit."""
    numbered = replace(table, x=np.arange(len(table.y))[:, None], input_shape=(1,))
    part = part_table(numbered, config.data.test, Path(config.data.path))["train"]
    assert isinstance(part, Samples)
    return labelled(table, read, np.sort(part.x[:, 0]))


def labelled(table: LearningTable, read: WindowsRead, rows: Array) -> LabelledWindows:
    """Some of the windows of a table, by their numbers."""
    n_classes = max(1, len(table.classes))
    return LabelledWindows(read.windows, read.samples, read.starts[rows], table.y[rows], n_classes, table.split.at(rows))


def shapes_told(read: WindowsRead, trial: ShapeTrial | None) -> dict[str, Any]:
    """How many shapes are counted, and what a trial said of them; nothing where nothing was tried or counted."""
    told, counted = None if trial is None else asdict(trial), len(read.windows.shapes)
    return {"shapes": {"counts": counted, "trial": told}} if counted or told else {}

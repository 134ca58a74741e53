"""Shapes in the windows of a run of `lutetia train`: whether they are counted, and in which windows they were chosen."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia.training.boosting import Each
from lutetia.training.data import Data, Samples
from lutetia.training.signal_shapes import LabelledWindows, ShapeTrial, choose_shapes, try_shapes
from lutetia.training.table_files import LearningTable
from lutetia.training.table_parts import part_table
from lutetia.training.windows import WindowsRead

if TYPE_CHECKING:
    from lutetia.training.table_run import TableConfig

Opened = tuple[LearningTable, Data]


def with_shapes(config: TableConfig, opened: Opened, each: Each | None = None) -> tuple[Opened, ShapeTrial | None]:
    """A table of windows with the shapes that its rows to fit choose, where the config wants them or a trial says that they help;
    and that trial."""
    (table, data), wanted = opened, config.data.shapes
    read, trial = table.windows, None
    if read is None or not wanted:
        return opened, None
    own = _fitted(config, table, read)
    if wanted == "auto":
        watch = None if each is None else lambda done, losses: each(0, losses)  # a trial is no progress of the fit
        trial = try_shapes(own, config.boosting(), watch)
    shapes = choose_shapes(own, config.fit.seed) if wanted is True or (trial is not None and trial.gains) else ()
    if not shapes:
        return opened, trial
    windows = replace(read.windows, shapes=shapes)
    x = windows.inputs(read.samples, read.starts)
    table = replace(table, x=x, features=windows.titles, input_shape=x.shape[1:], windows=replace(read, windows=windows))
    names = data.names._replace(features=table.features)
    return (table, replace(data, splits=part_table(table, config.data.test, Path(config.data.path)), names=names)), trial


def _fitted(config: TableConfig, table: LearningTable, read: WindowsRead) -> LabelledWindows:
    """The windows to fit."""
    numbered = replace(table, x=np.arange(len(table.y))[:, None], input_shape=(1,))
    part = part_table(numbered, config.data.test, Path(config.data.path))["train"]
    assert isinstance(part, Samples)
    rows = np.sort(part.x[:, 0])
    n_classes = max(1, len(table.classes))
    return LabelledWindows(read.windows, read.samples, read.starts[rows], table.y[rows], n_classes, table.split.at(rows))


def shapes_told(read: WindowsRead, trial: ShapeTrial | None) -> dict[str, Any]:
    """How many shapes are counted, and what a trial said of them; nothing where nothing was tried or counted."""
    told, counted = None if trial is None else asdict(trial), len(read.windows.shapes)
    return {"shapes": {"counts": counted, "trial": told}} if counted or told else {}

"""How a model of a table of data is fitted to some of its rows, as a config says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lutetia.models import Tabular
from lutetia.training.boosting import Boosted, Each
from lutetia.training.patches import PatchTrial, try_patches
from lutetia.training.table_files import LearningTable
from lutetia.training.table_parts import hold_out
from lutetia.training.tabular import Shape, TabularRows, fit_tabular

if TYPE_CHECKING:
    from lutetia.training.table_run import TableConfig


def table_shape(config: TableConfig, table: LearningTable) -> Shape:
    """The shape of a table, with the constraints of the config."""
    signs = config.fit.monotone
    return Shape(
        max(1, len(table.classes)),
        tuple(len(table.categories.get(number, ())) for number in range(table.x.shape[1])),
        table.input_shape,
        frozenset(table.dates),
        tuple(signs.get(name, 0) for name in table.features) if any(signs.values()) else (),
    )


def fit_rows(
    config: TableConfig, rows: TabularRows, shape: Shape, each: Each | None = None
) -> tuple[Tabular, Boosted, PatchTrial | None]:
    """The model fitted to rows, how its fit went, and what a trial said of patterns in images, if there was one."""
    settings = config.boosting()
    watch = None if each is None else lambda done, losses: each(0, losses)  # a trial is no progress of the fit
    trial = try_patches(rows, shape, settings, watch) if config.data.patches == "auto" else None
    settings = replace(settings, patches=settings.patches or (trial is not None and trial.gains))
    own, held = (rows, None) if config.fit.patience is None else hold_out(rows, config.data.path)
    model, fitted = fit_tabular(own, shape, settings, valid=held, each=each)
    return model, fitted, trial

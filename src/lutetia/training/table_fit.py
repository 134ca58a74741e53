"""How a model of a table of data is fitted to some of its rows, as a config says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia.models import UNUSUAL, Tabular
from lutetia.training.boosting import Boosted, Each
from lutetia.training.interactions import Interactions
from lutetia.training.patches import PatchTrial, try_patches
from lutetia.training.table_files import LearningTable
from lutetia.training.table_parts import hold_out
from lutetia.training.tabular import Shape, TabularRows, fit_tabular
from lutetia.training.unusual import SHARE, fit_unusual

if TYPE_CHECKING:
    from lutetia.training.table_run import FitSettings, TableConfig

SUITED = {1: {"n_tables": 2000, "n_anchors": 2, "candidates": 8}, 2: {"n_tables": 2000, "n_anchors": 3}}


def table_shape(config: TableConfig, table: LearningTable) -> Shape:
    """The shape of a table, with the constraints of the config."""
    signs = config.fit.monotone
    return Shape(
        max(1, len(table.classes)),
        tuple(len(table.categories.get(number, ())) for number in range(table.x.shape[1])),
        table.input_shape,
        frozenset(table.dates),
        tuple(signs.get(name, 0) for name in table.features) if any(signs.values()) else (),
        interactions_of(config.fit.interactions, names_of(table)),
    )


def names_of(table: LearningTable) -> list[str]:
    """The names of all inputs, texts among them."""
    names = list(table.features)
    for own in table.texts:
        names.insert(own.place, own.name)
    return names


def interactions_of(wanted: int | list[Any] | None, names: Sequence[str]) -> Interactions:
    """What `fit.interactions` says of the columns with these names."""
    if isinstance(wanted, list):
        return Interactions(0, tuple(tuple(sorted(map(names.index, group))) for group in wanted))
    return Interactions(wanted or 0)


def suit_limits(fit: FitSettings, given: Collection[str]) -> FitSettings:
    """The settings that are best where one column, or two, may meet in a table; without those that are `given`, by their keys."""
    known = SUITED.get(fit.interactions, {}) if isinstance(fit.interactions, int) else {}
    suited: dict[str, Any] = {name: value for name, value in known.items() if f"fit.{name}" not in given}
    return replace(fit, **suited)


def fit_rows(
    config: TableConfig, rows: TabularRows, shape: Shape, each: Each | None = None
) -> tuple[Tabular, Boosted, PatchTrial | None]:
    """The model fitted to rows, how its fit went, and what a trial said of patterns in images, if there was one."""
    settings = config.boosting()
    if config.data.task == UNUSUAL:
        share = SHARE if config.fit.flagged is None else config.fit.flagged
        model = fit_unusual(rows.x, shape, settings, share, each=each)
        layer = model.tables
        return model, Boosted(layer.anchors.numpy(), layer.weight.detach().numpy(), np.zeros(shape.n_classes)), None
    watch = None if each is None else lambda done, losses: each(0, losses)  # a trial is no progress of the fit
    trial = try_patches(rows, shape, settings, watch) if config.data.patches == "auto" else None
    settings = replace(settings, patches=settings.patches or (trial is not None and trial.gains))
    own, held = (rows, None) if config.fit.patience is None else hold_out(rows, config.data.path)
    model, fitted = fit_tabular(own, shape, settings, valid=held, each=each)
    return model, fitted, trial

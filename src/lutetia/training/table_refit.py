"""The first tables of a model as a model: their rows unchanged, or fitted again, whichever is better on held-out rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lutetia._shared.losses import ERRORS
from lutetia.models import Tabular
from lutetia.training.boosting import Boosting, refit
from lutetia.training.interactions import Interactions
from lutetia.training.table_measure import measure
from lutetia.training.tabular import BASE_TABLES, Shape, TabularRows, fit_tabular, learning_codes

HELD = 5  # one row in five is held out
SEED = 0  # of the rows held out: the same choice each time


@dataclass(frozen=True)
class Trial:
    """How good tables are on `rows` held-out rows, `cut`, and fitted `again`: by accuracy, balanced_accuracy, or
    the measure of a loss of numbers."""

    rows: int
    cut: float
    again: float
    measure: str

    @property
    def gains(self) -> bool:
        """Whether the second fit is at least as good."""
        return self.again <= self.cut if self.measure in ERRORS else self.again >= self.cut

    def to_dict(self) -> dict[str, Any]:
        """For a report."""
        return {
            "kept": "again" if self.gains else "cut",
            "rows": self.rows,
            "measure": self.measure,
            "cut": self.cut,
            "again": self.again,
        }


def refit_tables(model: Tabular, rows: TabularRows, n_tables: int, rounds: int, settings: Boosting) -> Tabular:
    """The first `n_tables` of a model as a model whose rows are fitted again to some rows of data, in `rounds`."""
    if settings.balanced and not model.is_regression:
        rows = rows.balanced(model.config.n_classes)
    flat = replace(rows, x=rows.x.reshape(len(rows.y), -1))
    shape = _shape(model)
    codes, goal = learning_codes(model.encoding, flat, shape, settings)
    kept = model.first(n_tables)
    anchors, weight = kept.tables.anchors.numpy().astype(np.int64), kept.tables.weight.detach().numpy()
    weight = refit(codes, goal, anchors, weight, rounds, settings, shape.signs(model.encoding))
    kept.set_tables(kept.tables.anchors, torch.from_numpy(weight.astype(np.float32)))
    return kept


def try_refit(model: Tabular, rows: TabularRows, n_tables: int, settings: Boosting) -> Trial | None:
    """Fit this many tables to four fifths of the training rows, as the model was fitted, then refit them, and compare on the last
    fifth. The model itself cannot be used: it has seen all rows. None if there are too few rows.
    """
    rows = rows.counted()
    count = len(rows.y) // HELD
    order = np.roll(np.random.default_rng(SEED).permutation(len(rows.y)), -count)
    own, held = rows.split.parts(order, count)
    if not len(held) or (not model.is_regression and len(np.unique(rows.y[own])) < 2):
        return None
    some = replace(rows, x=rows.x.reshape(len(order), -1)).at(own)
    once = replace(settings, n_tables=max(n_tables, BASE_TABLES), patience=None, calibrate=False, intervals=False)
    once = replace(once, patches=model.patches is not None)
    fresh, _ = fit_tabular(some, _shape(model), once)
    again = refit_tables(fresh, some, n_tables, model.config.n_tables - n_tables, settings)
    key = model.loss.key if model.is_regression else "balanced_accuracy" if settings.balanced else "accuracy"
    x, query = rows.x.reshape(-1, *model.config.input_shape)[held], None if rows.query is None else rows.query[held]
    cut, refitted = (measure(each, x, rows.y[held], rows.weight[held], query)[key] for each in (fresh.first(n_tables), again))
    return Trial(len(held), cut, refitted, key)


def _shape(model: Tabular) -> Shape:
    known = model.metadata.get("categories", {})
    counts = tuple(len(known.get(str(column), ())) for column in range(model.n_columns))
    dates = frozenset(map(int, model.metadata.get("dates", {})))
    config = model.config
    interactions = Interactions(config.most_columns, config.column_groups)
    return Shape(config.n_classes, counts, tuple(config.input_shape), dates, config.monotone, interactions)

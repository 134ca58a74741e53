"""Small models that count patterns in images, and images for them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from lutetia.models import Tabular
from lutetia.training import patches
from lutetia.training.boosting import Boosting
from lutetia.training.tabular import Shape, TabularRows, fit_tabular

Array = np.ndarray[Any, Any]
SHAPES = {"colour": (3, 9, 11), "grey": (10, 8), "number": (3, 9, 8), "missing": (8, 12)}


@cache
def fit(kind: str) -> tuple[Tabular, Array]:
    """A model of few tables, and images: levels [n, (3,) height, width]. "number" is a regression, "missing" lacks a class."""
    random = np.random.default_rng(0)
    shape = SHAPES[kind]
    x = random.integers(0, 256, (120, *shape))
    x[:60] //= 3
    y = np.arange(120) % 3 + (np.arange(120) < 60)
    y = np.where(y == 2, 3, y) if kind == "missing" else y
    numbers = x.reshape(120, -1).mean(1) + 40 * y if kind == "number" else y
    rows = TabularRows(x.reshape(120, -1) / 255, numbers, np.ones(120, np.float32))
    settings = Boosting(n_tables=20, pairs=0.5, patches=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patches, "N_DETECTORS", 12)
        patch.setattr(patches, "N_COUNTS", 12 * patches.COUNTS_EACH)
        model, _ = fit_tabular(rows, Shape(1 if kind == "number" else 4, (0,) * x[0].size, shape), settings)
    return model, x


def at_thresholds(model: Tabular, n: int) -> Array:
    """Images [n, pixels] of few levels, whose differences are thresholds of detectors, and one more and one less than these."""
    assert model.patches is not None
    random, own = np.random.default_rng(1), model.patches.threshold.numpy()
    steps = [np.array([0, t, t + 1, max(t - 1, 0), 255]).clip(0, 255) for t in random.choice(own, n)]
    return np.stack([random.choice(each, model.n_columns) for each in steps])

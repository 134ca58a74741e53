"""Shapley values of the columns of a table of data: how each moved a score away from the average of other rows.

The score of a group of columns is that of rows in which these columns are those of the explained row, and all others those of a
row of the background, averaged over the background. The Shapley value of a column is what it adds, averaged over all orders in
which columns can join (Shapley, 1953; for models, Lundberg and Lee, 2017, https://arxiv.org/abs/1705.07874). A model of tables is
a sum, and a table compares few columns, so the average over all orders is computed exactly: each table on its own, by all groups
of the columns that it compares.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.threads import over
from lutetia.errors import ArgumentError, check_tensor
from lutetia.models import Tabular

Array = np.ndarray[Any, Any]
MOST_ROWS = 128  # of a background
MOST_COMPARED = 14  # columns of a table, of which there are 2 to that power groups


def background_rows(x: Tensor) -> Tensor:
    """Rows of x [n, columns] to compare with: all, or some drawn at random, the same each time."""
    if len(x) <= MOST_ROWS:
        return x
    chosen = np.random.default_rng(0).choice(len(x), MOST_ROWS, replace=False)
    return x[torch.from_numpy(np.sort(chosen))]


def shapley(model: Tabular, x: Tensor, weights: Tensor, background: Tensor) -> tuple[Tensor, Tensor]:
    """x [n, columns], weights of the outputs for each row [n, outputs], background [m, columns] -> Shapley values of the columns
    [n, columns] and the average score of the background [n], float64. They add up to the score: sum(weights · model(x))."""
    if model.config.core != "tables" or len(model.config.input_shape) != 1:
        raise ArgumentError(f"model is a {type(model).__name__} of {model.config.core}, expected tables of columns of data")
    check_tensor("x", x, ["n", model.n_columns])
    check_tensor("background", background, ["m", model.n_columns])
    if not len(background):
        raise ArgumentError("background has no rows, expected one at least to compare with")
    from lutetia.report import shapley_loops  # loads numba

    source = model.encoding.source.numpy()
    anchors = model.tables.anchors.numpy().astype(np.int64)
    columns, places, n_compared = _compared(anchors, source)
    rows, others = (_with_constants(model, each) for each in (x, background))
    weight = model.tables.weight.detach().double().numpy()  # [T, 2**A, outputs]
    factors = _factors(columns.shape[1])
    work = int((2.0**n_compared).sum()) * len(others) * anchors.shape[1]
    values, base = np.zeros((len(x), model.n_columns)), np.zeros(len(x))
    for row, (codes, own) in enumerate(zip(rows, weights.double().numpy(), strict=True)):
        gains = weight @ own
        shares, average = np.zeros(columns.shape), np.zeros(len(anchors))
        arguments = (codes, others), (anchors, places, n_compared, gains), factors, (shares, average)
        over(len(anchors), work, shapley_loops.share_tables, *arguments)
        np.add.at(values[row], columns, shares)  # places that a table does not use have no share
        base[row] = average.sum()
    return torch.from_numpy(values), torch.from_numpy(base)


def _with_constants(model: Tabular, x: Tensor) -> Array:
    """The codes of rows, and the constants that follow them in an anchor: x [n, columns] -> uint8 [n, n_encoded + constants]."""
    codes = model.encoding.codes(x.double().numpy()).T
    assert model.tables.thresholds is not None
    constants = model.tables.thresholds.numpy().astype(np.uint8)
    return np.concatenate([codes, np.broadcast_to(constants, (len(x), len(constants)))], 1)


def _compared(anchors: Array, source: Array) -> tuple[Array, Array, Array]:
    """Of each table the columns that it compares, int64 [T, most], 0 beyond them; where among these each side of its anchors
    stands, int64 [T, A, 2], 0 for a constant, which is the same in all rows; and how many columns they are, int64 [T]."""
    is_constant = anchors >= len(source)
    read = np.where(is_constant, -1, source[np.where(is_constant, 0, anchors)])  # [T, A, 2]
    found = [np.unique(own[own >= 0]) for own in read]
    n_compared = np.array([len(own) for own in found], np.int64)
    if n_compared.max(initial=0) > MOST_COMPARED:
        raise ArgumentError(
            f"a table of the model compares {n_compared.max()} columns, expected at most {MOST_COMPARED} for exact Shapley values"
        )
    columns = np.zeros((len(anchors), max(1, n_compared.max(initial=1))), np.int64)
    places = np.zeros(anchors.shape, np.int64)
    for table, own in enumerate(found):
        columns[table, : len(own)] = own
        places[table] = np.where(read[table] >= 0, np.searchsorted(own, read[table]), 0)
    return columns, places, n_compared


def _factors(most: int) -> Array:
    """The share of all orders of n columns in which a column comes after s certain others: float64 [n, s]."""
    factors = np.zeros((most + 1, most))
    for n in range(1, most + 1):
        for s in range(n):
            factors[n, s] = 1 / (n * math.comb(n - 1, s))
    return factors

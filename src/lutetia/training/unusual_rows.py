"""What models of unusual rows are fitted to: the columns as codes, and rows that are made up, to be told from the real ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lutetia.models import DATE_PARTS, TOP_CODE, Encoding, date_part

Array = np.ndarray[Any, Any]
MOST_QUANTILES = 127  # edges between values, or their quantiles
EVEN = TOP_CODE - 1 - MOST_QUANTILES  # edges in even steps, over the ends of the column, too
PARTS = DATE_PARTS[1:]  # of a date: a new row is always of a later year than all others
MARGIN = 0.25  # of the width of a column, beyond its ends
REPLACED_FROM_ROWS = 0.5  # of replaced cells: taken from other rows, the others drawn between the ends


class Column(NamedTuple):
    """A column: how many categories it has, 0 for numbers, and whether it holds dates, in seconds."""

    n_categories: int
    is_date: bool


def unusual_encoding(x: Array, columns: Sequence[Column]) -> Encoding:
    """The encoding of rows x float64 [n, columns].

    Half of a column's edges lie at its quantiles, the others in even steps from below its least to above its greatest value, as
    tables can ask for no others. The rarer a category is, the lower is its code, down to 0 for what is missing. Of a date there
    are the month, the day, the weekday and the hour: new rows are always later than all others.
    """
    inputs: list[tuple[int, Array, Array, str]] = []
    for number, (column, values) in enumerate(zip(columns, x.T, strict=True)):
        known = values[np.isfinite(values)]
        if column.n_categories:
            inputs.append((number, np.zeros(0), _ranks(known, column.n_categories), ""))
        elif column.is_date:
            for part in PARTS:
                own = np.unique(date_part(known, part))
                inputs.append((number, own[:-1] / 2 + own[1:] / 2, np.zeros(0, np.uint8), part))
        else:
            inputs.append((number, _edges(known), np.zeros(0, np.uint8), ""))
    source, edges, ranks, parts = zip(*inputs, strict=True)
    encoding = Encoding(len(source), max(map(len, edges)), max(map(len, ranks)), parts)
    encoding.source.copy_(torch.tensor(source))
    for number, (own_edges, own_ranks) in enumerate(zip(edges, ranks, strict=True)):
        encoding.edges[number, : len(own_edges)] = torch.from_numpy(own_edges)
        encoding.ranks[number, : len(own_ranks)] = torch.from_numpy(own_ranks)
    return encoding


def _edges(values: Array) -> Array:
    """The edges of a column of numbers, float64 [edges]."""
    distinct = np.unique(values)
    if not len(distinct):
        return np.zeros(0)
    if len(distinct) > MOST_QUANTILES + 1:
        middle = np.quantile(values, np.arange(1, MOST_QUANTILES + 1) / (MOST_QUANTILES + 1))
    else:
        middle = distinct[:-1] / 2 + distinct[1:] / 2
    even = np.linspace(*_ends(distinct[0], distinct[-1]), EVEN)
    found = np.unique(np.concatenate([middle, even]))
    return found[np.isfinite(found)]


def _ends(low: float, high: float) -> tuple[float, float]:
    """A little below the least value of a column, and a little above the greatest."""
    wide = MARGIN * high - MARGIN * low or MARGIN * max(abs(low), 1.0)
    return max(low - wide, -np.finfo(float).max / 4), min(high + wide, np.finfo(float).max / 4)


def _ranks(values: Array, count: int) -> Array:
    """The codes of categories, uint8 [count]: the rarest first, those without a row before them."""
    held = np.bincount(values.astype(np.int64), minlength=count)
    rank = np.empty(count, np.int64)
    rank[np.lexsort((np.arange(count), held))] = np.arange(count)
    return (1 + rank * min(1.0, (TOP_CODE - 1) / max(1, count - 1))).astype(np.uint8)


def made_up(x: Array, columns: Sequence[Column], n: int, random: np.random.Generator) -> Array:
    """Rows made up of rows x float64 [m, columns]: float64 [n, columns].

    Each is one of them of which some cells are replaced, one at least: half by those of other rows, which breaks what the columns
    have to do with each other, half by numbers between the ends of the column, or any category, which are also where no row is.
    """
    m, n_columns = x.shape
    replaced = random.random((n, n_columns)) < random.random((n, 1))
    replaced[np.arange(n), random.integers(n_columns, size=n)] = True
    rows = x[random.integers(m, size=n)]
    for number, (column, values) in enumerate(zip(columns, x.T, strict=True)):
        others = values[random.integers(m, size=n)]
        drawn = _drawn(values[np.isfinite(values)], column.n_categories, n, random)
        drawn[np.isnan(others)] = np.nan  # as often missing as among the rows
        cells = np.where(random.random(n) < REPLACED_FROM_ROWS, others, drawn)
        rows[:, number] = np.where(replaced[:, number], cells, rows[:, number])
    return rows


def _drawn(known: Array, n_categories: int, n: int, random: np.random.Generator) -> Array:
    """Cells of a column drawn evenly, float64 [n]."""
    if not len(known):
        return np.full(n, np.nan)
    if n_categories:
        return random.integers(n_categories, size=n).astype(np.float64)
    low, high = _ends(float(known.min()), float(known.max()))
    part = random.random(n)
    return low * (1 - part) + high * part

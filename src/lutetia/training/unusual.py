"""Models that say how unusual a row is, fitted to rows without any labels.

Two kinds of tables take turns. A table that *counts* compares columns with numbers drawn at random; its rows say how few samples
answer alike. A table that *tells* is one of a boosted classifier that tells the samples from rows that are made up of them. What
is unlike all samples is rare for the first, and looks made up to the second.

How high a score must be to be flagged is learned by fits to some of the samples, from the scores of the others. It is learned for
any number of the first tables, and taken off their rows one by one: the first tables are a model with a limit of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lutetia._shared.threads import spread
from lutetia.models import UNUSUAL_CLASSES, Encoding, Tabular, unusual_levels
from lutetia.training.boosting import Boosting, boost
from lutetia.training.goal_loops import read_cells
from lutetia.training.goals import Classes
from lutetia.training.tabular import Shape, make_model
from lutetia.training.unusual_rows import Column, made_up, unusual_encoding

Array = np.ndarray[Any, Any]
N_TABLES, N_ANCHORS, CANDIDATES = 800, 8, 4
AS_MANY = 2048  # samples: of more, each counts less, as a cell of many samples says little
ENDS = 0.1  # of the comparisons of tables that count: whether a number is beyond those of all samples
SUSPECTS = 0.1  # of the samples, those that are rarest by the counts: they are no examples of what is real
MADE_UP, MOST_MADE_UP, LEAST_MADE_UP = 10, 200_000, 2000  # for each sample, and of all
FOLDS, ENOUGH_HELD = 5, 2000  # parts of the samples, of which as many are held out in turn as give so many scores
ROUNDING = 1e-4  # of a score that varies by about 1: hundreds of numbers of 32 bits in another order differ by less
SHARE = 0.01  # of usual rows, flagged by default
Each = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True, eq=False)
class UnusualRows:
    """Rows x float64 [n, columns], NaN for what is missing, and what their columns hold."""

    x: Array
    columns: tuple[Column, ...]

    def at(self, rows: Array) -> UnusualRows:
        """Some of the rows."""
        return replace(self, x=self.x[rows])


@dataclass(frozen=True, eq=False)
class _Fitted:
    """Fitted tables: anchors int64 [T, A, 2] and what their rows add to the score, float64 [T, 2**A]."""

    encoding: Encoding
    anchors: Array
    weight: Array


def columns_of(shape: Shape) -> tuple[Column, ...]:
    """The columns of a table of data."""
    return tuple(Column(count, number in shape.dates) for number, count in enumerate(shape.n_categories))


def unusual_settings(n_tables: int = N_TABLES, n_anchors: int = N_ANCHORS, seed: int = 0, threads: int = 1) -> Boosting:
    """How the tables of a model of unusual rows are fitted. They compare no two columns: that found no more, and such a reason
    reads badly."""
    return Boosting(n_tables, n_anchors, candidates=CANDIDATES, pairs=0.0, seed=seed, threads=threads)


def fit_unusual(
    x: Array,
    shape: Shape,
    settings: Boosting,
    share: float = SHARE,
    *,
    of_fitted: bool = False,
    each: Each | None = None,
) -> Tabular:
    """A model of how unusual rows are, fitted to rows x float64 [n, columns], two or more.

    Of rows like these it flags the part `share`: of those that a fit did not see, or with `of_fitted` of these themselves.
    """
    rows = UnusualRows(x, columns_of(shape))
    held = [] if of_fitted else _held_out(len(x), settings.seed)
    fits = []
    for number, part in enumerate(held):
        own = np.setdiff1d(np.arange(len(x)), part)
        fits.append((_fit(rows.at(own), settings), x[part]))
        if each is not None:
            each((number + 1) * settings.n_tables, {})
    fitted = _fit(rows, settings)
    limits, scores = _limits(fits or [(fitted, x)], share, settings)
    weight = fitted.weight - np.diff(limits, prepend=0.0)[:, None]
    if each is not None:
        each((len(held) + 1) * settings.n_tables, {})
    sizes = {"n_tables": len(weight), "n_anchors": weight.shape[1].bit_length() - 1}
    model = make_model(fitted.encoding, replace(shape, n_classes=len(UNUSUAL_CLASSES), monotone=()), **sizes)
    outputs = np.stack([np.zeros_like(weight), weight], 2).astype(np.float32)
    model.set_tables(torch.from_numpy(fitted.anchors).to(torch.int32), torch.from_numpy(outputs))
    model.metadata = {"unusual": unusual_levels(scores - limits[-1], share)}
    return model.eval()


def n_fits(n_rows: int) -> int:
    """How many times tables are fitted: once, and to what is left of each part that is held out."""
    return 1 + min(FOLDS, n_rows, math.ceil(FOLDS * ENOUGH_HELD / n_rows))


def _held_out(n: int, seed: int) -> list[Array]:
    """The rows that are held out of one fit after another."""
    order = np.random.default_rng(seed).permutation(n)
    return [np.sort(part) for part in np.array_split(order, min(FOLDS, n))[: n_fits(n) - 1]]


def _fit(rows: UnusualRows, settings: Boosting) -> _Fitted:
    """The tables of both kinds, in turns; each kind counts alike."""
    random = np.random.default_rng(settings.seed)
    encoding = unusual_encoding(rows.x, rows.columns)
    codes = encoding.codes(rows.x, settings.threads)
    n_telling = settings.n_tables // 2
    counting = _counting(codes, settings.n_tables - n_telling, settings, random)
    rare = _scores(codes, *counting, settings.threads)
    kinds = [_evened(codes, *counting, settings.threads)]
    if n_telling:
        real = np.argsort(rare, kind="stable")[: max(1, math.ceil((1 - SUSPECTS) * len(rare)))]
        telling = _telling(rows.at(np.sort(real)), encoding, replace(settings, n_tables=n_telling), random)
        kinds.append(_evened(codes, *telling, settings.threads))
    order = np.argsort(np.concatenate([np.arange(len(anchors)) for anchors, _ in kinds]), kind="stable")
    anchors, weight = (np.concatenate(parts)[order] for parts in zip(*kinds, strict=True))
    return _Fitted(encoding, anchors, weight)


def _evened(codes: Array, anchors: Array, weight: Array, threads: int) -> tuple[Array, Array]:
    """Tables that each give 0 to the samples on average, and whose scores of them vary by 1."""
    means = [own[cells].mean() for own, cells in zip(weight, _cells(codes, anchors, threads), strict=True)]
    varying = float(_scores(codes, anchors, weight, threads).std())
    return anchors, (weight - np.array(means)[:, None]) / (varying or 1.0)


def _counting(codes: Array, n_tables: int, settings: Boosting, random: np.random.Generator) -> tuple[Array, Array]:
    """Tables with comparisons drawn at random, whose rows say how few samples read them."""
    n_inputs, n = codes.shape
    low, high = np.maximum(codes.min(1).astype(np.int64) - 1, 0), np.minimum(codes.max(1).astype(np.int64), 254)
    shape = n_tables, settings.n_anchors
    left = random.integers(n_inputs, size=shape)
    right = random.integers(low[left], high[left] + 1)
    ends = np.where(random.random(shape) < 0.5, low[left], high[left])  # below or above all samples
    right = n_inputs + np.where(random.random(shape) < ENDS, ends, right)
    anchors, weight = np.stack([left, right], 2), np.empty((n_tables, 1 << settings.n_anchors))
    for table, cells in enumerate(_cells(codes, anchors, settings.threads)):
        weight[table] = 1 / (1 + np.bincount(cells, minlength=weight.shape[1]) * min(1.0, AS_MANY / n))
    return anchors, weight


def _telling(rows: UnusualRows, encoding: Encoding, settings: Boosting, random: np.random.Generator) -> tuple[Array, Array]:
    """Tables that tell rows from those made up of them; what speaks for these is above 0."""
    n = len(rows.x)
    count = max(LEAST_MADE_UP, min(MADE_UP * n, MOST_MADE_UP))
    both = np.concatenate([rows.x, made_up(rows.x, rows.columns, count, random)])
    y = np.repeat(np.arange(2), [n, count])
    weight = np.repeat([1.0, n / count], [n, count]).astype(np.float32)
    codes = encoding.codes(both, settings.threads)
    tops = np.where(codes.max(1) > codes.min(1), encoding.tops(), 0)
    fitted = boost(codes, tops, Classes(y, 2, weight, settings.threads), settings)
    return fitted.anchors, fitted.weight[:, :, 1] - fitted.weight[:, :, 0]


def _cells(codes: Array, anchors: Array, threads: int) -> Any:
    """The row of each table that samples read, uint16 [n], one table after another."""
    cells = np.empty(codes.shape[1], np.uint16)
    for own in anchors:
        spread(threads, len(cells), read_cells, codes, own, cells)
        yield cells


def _scores(codes: Array, anchors: Array, weight: Array, threads: int) -> Array:
    """What tables add up to, float64 [n]."""
    total = np.zeros(codes.shape[1])
    for own, cells in zip(weight, _cells(codes, anchors, threads), strict=True):
        total += own[cells]
    return total


def _limits(fits: Sequence[tuple[_Fitted, Array]], share: float, settings: Boosting) -> tuple[Array, Array]:
    """The scores above which the part `share` of rows lies, for each number of first tables, float64 [T]; and the scores of all
    tables, float64 [rows]. Each fit comes with rows x of its own."""
    codes = [fitted.encoding.codes(x, settings.threads) for fitted, x in fits]
    cells = [_cells(own, fitted.anchors, settings.threads) for own, (fitted, _) in zip(codes, fits, strict=True)]
    scores = [np.zeros(len(x)) for _, x in fits]
    limits = np.empty(settings.n_tables)
    for table in range(settings.n_tables):
        for own, each, (fitted, _) in zip(scores, cells, fits, strict=True):
            own += fitted.weight[table][next(each)]
        limits[table] = _limit(np.concatenate(scores), share)
    return limits, np.concatenate(scores)


def _limit(scores: Array, share: float) -> float:
    """The middle between the scores of rows [n] that are flagged, the part `share` of them, and the others; above all where that
    is less than one row. Scores that differ by rounding alone are flagged together or not at all."""
    count = int(share * len(scores) + 1e-9)
    if not count:
        high, low = float(scores.max()), float(scores.min())
        return high + (high - low) / max(1, len(scores) - 1)
    places = len(scores) - count - 1, len(scores) - count
    usual, flagged = np.partition(scores, places)[list(places)].tolist()
    return usual / 2 + flagged / 2 if flagged - usual > 2 * ROUNDING else flagged + ROUNDING

"""`Tabular` models from columns: the encoding is learned, then the tables are fitted to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.losses import Loss
from lutetia._shared.rankings import queries_of
from lutetia.errors import fail
from lutetia.models import (
    TOP_CODE,
    Columns,
    Encoding,
    Grams,
    Patches,
    Tabular,
    TextColumn,
    column_owners,
    fit_encoding,
    text_columns,
)
from lutetia.training.boosting import N_CONSTANTS, Boosted, Boosting, Each, Validation, boost, score
from lutetia.training.calibration import best_temperature, enough_of, held_out, row_losses, table_looks
from lutetia.training.goals import SQUARED, Classes, Goal, number_goal
from lutetia.training.interactions import ANY, Interactions, Limits
from lutetia.training.own_loss import OwnNumbers
from lutetia.training.patches import choose_patches
from lutetia.training.ranking import Rankings
from lutetia.training.shifts import moved, moves
from lutetia.training.splits import RANDOM, Split
from lutetia.training.spread import fit_spread
from lutetia.training.texts import fit_texts, text_kinds, text_metadata, with_texts, without_unasked

Array = np.ndarray[Any, Any]
BASE_TABLES = 32  # share what all rows have in common: this many tables or more are a model without the later ones


@dataclass(frozen=True, eq=False)
class TabularRows:
    """Samples: x float64 [n, columns], y int64 [n] classes or float64 [n] numbers, of several targets [n, targets], and the
    weight of each, float32 [n]. Some are held out of a fit as `split` says. Rows that are ordered within queries have the number
    of their `query`, int64 [n]. Those of text are not in x but in `texts`."""

    x: Array
    y: Array
    weight: Array
    split: Split = RANDOM
    query: Array | None = None
    texts: tuple[Grams, ...] = ()

    def at(self, rows: Array | slice) -> TabularRows:
        """Some of the samples."""
        query = None if self.query is None else self.query[rows]
        texts = tuple(each.at(rows) for each in self.texts)
        return TabularRows(self.x[rows], self.y[rows], self.weight[rows], self.split.at(rows), query, texts)

    def counted(self) -> TabularRows:
        """The samples without those of weight 0, which must not be held out in place of others; a query keeps all its rows if one
        of them counts."""
        counts = self.weight > 0
        if self.query is not None:
            counts = np.isin(self.query, self.query[counts])
        return self if counts.all() else self.at(np.flatnonzero(counts))

    def held_out(self, seed: int) -> tuple[TabularRows, TabularRows]:
        """The samples of a trial fit and the fifth held out of it."""
        rows = self.counted()
        own, held = held_out(len(rows.y), seed, rows.split)
        return rows.at(own), rows.at(held)

    def goal(self, n_classes: int, times: int = 1, loss: Loss = SQUARED, threads: int = 1) -> Goal:
        """What tables are fitted to, all samples `times` times; one class stands for a regression, by its loss."""
        y, weight = np.tile(self.y, times), np.tile(self.weight, times)
        if loss.is_ranking:
            if self.query is None:
                fail("query", self.query, "the query of each row, to rank rows by")
            return Rankings(self.y.astype(np.float64), self.weight, loss, threads=threads, queries=queries_of(self.query))
        if loss.is_own:
            if loss.function is None:
                fail("function", loss.function, "the function that is the loss")
            return OwnNumbers(y.astype(np.float64), weight, loss, threads=threads)
        if n_classes == 1:
            return number_goal(y.astype(np.float64), weight, loss, threads)
        return Classes(y.astype(np.int64), n_classes, weight, threads)

    def balanced(self, n_classes: int) -> TabularRows:
        """The same samples, with weights that make classes count alike."""
        factors = balanced_factors(self, n_classes)
        return replace(self, weight=(self.weight * factors[self.y]).astype(np.float32))


def balanced_factors(rows: TabularRows, n_classes: int) -> Array:
    """The factor of each class that makes classes count alike, [n_classes]; samples count by their weights."""
    held = np.bincount(rows.y, rows.weight, n_classes)
    return held.sum() / (n_classes * np.maximum(held, 1e-12))


@dataclass(frozen=True)
class Shape:
    """The shape of a table of data: the number of categories of each column, 0 for numbers; n_classes 1 for a regression.

    `dates` are the columns of dates, whose numbers are seconds. `monotone` says of each column whether answers may only rise with
    it (1), only fall (-1), or either (0); empty without any such constraint. Of two classes the answer is the second.
    `interactions` says which columns of the data, texts among them, may meet in a table.
    """

    n_classes: int
    n_categories: tuple[int, ...]
    input_shape: tuple[int, ...]
    dates: frozenset[int] = frozenset()
    monotone: tuple[int, ...] = ()
    interactions: Interactions = ANY
    base: int | None = None  # the column that numbers are added to, where they are learned so

    def with_inputs(self, n_inputs: int) -> Shape:
        """The same with this many inputs: those after the columns are made of texts, and are numbers."""
        counts, monotone = ((*own, *(0,) * n_inputs)[:n_inputs] for own in (self.n_categories, self.monotone))
        return replace(self, n_categories=counts, monotone=monotone if any(monotone) else (), input_shape=(n_inputs,))

    def signs(self, encoding: Encoding) -> Array | None:
        """What `monotone` says of each encoded input, int8 [n_encoded]; None without a constraint."""
        return np.array(self.monotone, np.int8)[encoding.source.numpy()] if any(self.monotone) else None

    def limits(self, encoding: Encoding, texts: Sequence[TextColumn]) -> Limits:
        """What tables keep to, by encoded inputs."""
        owners = column_owners(texts, len(self.n_categories))[encoding.source.numpy()] if self.interactions else None
        return Limits(self.signs(encoding), owners, self.interactions)


def encode_rows(rows: TabularRows, shape: Shape, most_codes: int = TOP_CODE, patches: Patches | None = None) -> Encoding:
    """The encoding learned from rows, and from what is counted in them."""
    target = np.eye(shape.n_classes)[rows.y] if shape.n_classes > 1 and any(shape.n_categories) else rows.y[:, None]
    constrained = {column for column, sign in enumerate(shape.monotone) if sign}  # a month does not rise with the date
    columns = Columns(rows.x, target.astype(np.float64), rows.weight, list(shape.n_categories), shape.dates - constrained)
    return fit_encoding(columns, most_codes, patches)


def learning_codes(encoding: Encoding, rows: TabularRows, shape: Shape, settings: Boosting) -> tuple[Array, Goal]:
    """The codes uint8 [n_encoded, n] of rows to fit, images at all places in reach of a shift, and what they are fitted to."""
    places, n = moves(settings.shift), len(rows.y)
    codes = np.empty((len(encoding.source), len(places) * n), np.uint8)
    for number, place in enumerate(places):
        codes[:, number * n : (number + 1) * n] = encoding.codes(moved(rows.x, shape.input_shape, place), settings.threads)
    return codes, rows.goal(shape.n_classes, len(places), settings.number_loss, settings.threads)


def fit_tabular(
    rows: TabularRows,
    shape: Shape,
    settings: Boosting,
    *,
    most_codes: int = TOP_CODE,
    valid: TabularRows | None = None,
    each: Each | None = None,
) -> tuple[Tabular, Boosted]:
    """Fit a model of tables to rows; returns it with the losses during the fit."""
    if settings.balanced and shape.n_classes > 1:
        rows, valid = rows.balanced(shape.n_classes), None if valid is None else valid.balanced(shape.n_classes)
    given, given_shape = rows, shape
    if shape.base is not None:
        rows, valid = _above(rows, shape.base), None if valid is None else _above(valid, shape.base)
    texts: list[TextColumn] = []
    if rows.texts:
        texts, made = fit_texts(rows, shape, settings.seed)
        rows = replace(rows, x=np.concatenate([rows.x, made], 1), texts=())
        shape, valid = shape.with_inputs(rows.x.shape[1]), None if valid is None else with_texts(valid, texts)
    scale, offset = units_of(rows, settings.number_loss) if shape.n_classes == 1 else (1.0, 0.0)
    own = replace(rows, y=(rows.y - offset) / scale) if shape.n_classes == 1 else rows
    patches = choose_patches(own, shape, settings.seed, settings.threads) if settings.patches else None
    encoding = encode_rows(own, shape, most_codes, patches)
    codes, goal = learning_codes(encoding, own, shape, settings)
    held = None
    if valid is not None:
        target = replace(valid, y=(valid.y - offset) / scale) if shape.n_classes == 1 else valid
        held = Validation(encoding.codes(valid.x, settings.threads), target.goal(shape.n_classes, 1, settings.number_loss))
    tops = np.where(codes.max(1, initial=0) > codes.min(1, initial=TOP_CODE), encoding.tops(), 0)  # of inputs that vary
    drawn = replace(settings, kinds=() if patches is None else (len(shape.n_categories),))
    if texts:
        kinds = text_kinds(encoding, texts)
        drawn = replace(drawn, kinds=kinds, words=kinds[-1])
    limits = shape.limits(encoding, texts)
    is_tried = settings.calibrate and shape.n_classes > 1
    if is_tried and settings.enough_tables:
        n_tables, temperature = _trial(given, given_shape, settings, most_codes, each)
        report = None if each is None else lambda done, losses: each(settings.n_tables + done, losses)
        fitted = boost(codes, tops, goal, replace(drawn, n_tables=n_tables), limits=limits, valid=held, each=report)
        fitted.temperature = temperature
    else:
        fitted = boost(codes, tops, goal, drawn, limits=limits, valid=held, each=each)
        if is_tried:
            begun = len(fitted.anchors)
            report = None if each is None else lambda done, losses: each(begun + done, losses)
            fitted.temperature = _trial(given, given_shape, replace(settings, n_tables=begun), most_codes, report)[1]
    off = None
    if settings.intervals and shape.n_classes == 1:
        parts = [Validation(codes, goal), *(() if held is None else (held,))]
        off = fit_spread(fitted, parts, tops, drawn if texts else settings)
    all_fitted = [fitted, *(() if off is None else (off,))]
    encoding = _with_asked_counts(encoding, all_fitted)
    known: dict[str, Any] = {}
    if texts:
        encoding, texts, kept = _with_asked_words(encoding, all_fitted, texts)
        shape, known = shape.with_inputs(len(kept)), text_metadata(texts, rows.x[:, kept])
    fields = {} if off is None else {"spread_tables": len(off.anchors), "spread_anchors": off.anchors.shape[1]}
    fields |= {"loss": settings.loss, "quantile": settings.quantile} if shape.n_classes == 1 else {}
    model = make_model(encoding, shape, n_tables=len(fitted.anchors), n_anchors=settings.n_anchors, **fields)
    base = fitted.base * scale + offset if shape.n_classes == 1 else fitted.base
    model.set_tables(*rows_of(fitted, scale, base))
    if off is not None:
        model.set_tables(*rows_of(off, 1.0, off.base), model.spread)
    model.metadata = known
    return model.eval(), fitted


def _above(rows: TabularRows, base: int) -> TabularRows:
    """The rows whose numbers are what is added to a column."""
    return replace(rows, y=rows.y - rows.x[:, base])


def _with_asked_counts(encoding: Encoding, fitted: list[Boosted]) -> Encoding:
    """An encoding without the counts of patterns that no table asks for; the anchors of the tables are renumbered."""
    if encoding.patches is None:
        return encoding
    n_pixels = len(encoding.source) - encoding.patches.n_counts
    asked = _asked(encoding, fitted, n_pixels)
    if not asked[n_pixels:].any():
        asked[n_pixels] = True  # a model of patches has one count at least
    return _kept(encoding, fitted, asked, encoding.patches.keep(np.flatnonzero(asked[n_pixels:])))


def _with_asked_words(
    encoding: Encoding, fitted: list[Boosted], texts: list[TextColumn]
) -> tuple[Encoding, list[TextColumn], Array]:
    """The same without the words that no table asks for; with the texts without them, and the numbers of the inputs kept."""
    source, first = encoding.source.numpy(), min(each.asked for each in texts)
    asked = _asked(encoding, fitted, int(np.searchsorted(source, first)))
    inputs = np.unique(source[asked])
    return _kept(encoding, fitted, asked), without_unasked(texts, inputs), inputs


def _asked(encoding: Encoding, fitted: list[Boosted], first: int) -> Array:
    """Which encoded inputs tables ask for, bool [n_encoded], and all before the `first` that may be left out."""
    asked = np.arange(len(encoding.source)) < first
    for each in fitted:
        asked[each.anchors[each.anchors < len(asked)]] = True
    return asked


def _kept(encoding: Encoding, fitted: list[Boosted], asked: Array, patches: Patches | None = None) -> Encoding:
    """Some encoded inputs, those of columns that have none left taken out; the anchors of the tables are renumbered."""
    numbers = np.concatenate([np.cumsum(asked) - 1, asked.sum() + np.arange(N_CONSTANTS)])
    for each in fitted:
        each.anchors = numbers[each.anchors]
    kept, parts = torch.from_numpy(asked), np.array(encoding.parts)[asked].tolist()
    made = Encoding(int(asked.sum()), encoding.edges.shape[1], encoding.ranks.shape[1], parts, patches)
    made.source.copy_(torch.unique(encoding.source[kept], return_inverse=True)[1])
    made.edges, made.ranks = encoding.edges[kept], encoding.ranks[kept]
    return made


def rows_of(fitted: Boosted, scale: float | Array, base: Array) -> tuple[Tensor, Tensor]:
    """Anchors and rows of fitted tables, the first of which share what all samples have in common."""
    weight = fitted.weight * scale
    weight[:BASE_TABLES] += base / len(weight[:BASE_TABLES])
    weight /= fitted.temperature
    return torch.from_numpy(fitted.anchors).to(torch.int32), torch.from_numpy(weight.astype(np.float32))


def _trial(rows: TabularRows, shape: Shape, settings: Boosting, most_codes: int, each: Each | None) -> tuple[int, float]:
    """What a fit to four fifths of the rows says by the last fifth: how many tables are enough, where that is asked for, and what
    the scores of so many are divided by."""
    own, held = rows.held_out(settings.seed)
    if not len(held.y) or len(np.unique(own.y)) < 2:
        return settings.n_tables, 1.0
    # The weights of the rows are balanced already. Half the candidates take 0.46 of the time of the fit instead of 0.82, and
    # the temperatures of nine sets give nearly the same loss. Anchors of the fit itself would not: they know the held-out rows.
    fewer = max(1, settings.candidates // 2)
    plain = replace(settings, patience=None, balanced=False, calibrate=False, candidates=fewer)
    trial, _ = fit_tabular(own, shape, plain, most_codes=most_codes, each=each)
    anchors, weight = trial.tables.anchors.numpy().astype(np.int64), trial.tables.weight.detach().double().numpy()
    codes = trial.encoding.codes(with_texts(held, text_columns(trial.metadata)).x, settings.threads)
    goal, scores = held.goal(shape.n_classes), np.zeros((len(held.y), shape.n_classes))
    looks = table_looks(len(anchors)) if settings.enough_tables else [len(anchors)]
    losses, temperatures = [], []
    for begin, end in zip([0, *looks], looks, strict=False):
        score(codes, anchors[begin:end], weight[begin:end], scores, settings.threads)
        temperatures.append(best_temperature(scores, goal))
        losses.append(row_losses(scores / temperatures[-1], held.y))
    place = enough_of(np.array(losses), held.weight)
    return looks[place], temperatures[place]


def make_model(encoding: Encoding, shape: Shape, *, seed: int = 0, **fields: Any) -> Tabular:
    """A model with this encoding; `fields` of its config besides those of the shape."""
    sizes: dict[str, Any] = {
        "n_encoded": len(encoding.source),
        "n_edges": encoding.edges.shape[1],
        "n_categories": encoding.ranks.shape[1],
        "parts": encoding.parts if any(encoding.parts) else (),
    }
    sizes |= {"monotone": shape.monotone} if any(shape.monotone) else {}
    if shape.interactions:
        sizes |= {"most_columns": shape.interactions.most, "column_groups": shape.interactions.groups}
    sizes |= {} if shape.base is None else {"base": shape.base}
    if (patches := encoding.patches) is not None:
        sizes |= {"patch_detectors": len(patches.pairs), "patch_pairs": patches.pairs.shape[1], "patch_counts": patches.n_counts}
    model = Tabular(input_shape=shape.input_shape, n_classes=shape.n_classes, seed=seed, **sizes, **fields)
    model.encoding = encoding
    return model


def units_of(rows: TabularRows, loss: Loss) -> tuple[float, float]:
    """The spread and the mean of the numbers to predict, in which tables are fitted; 1 and 0 for logarithms and scores, and for
    functions, which know numbers in their own unit."""
    if loss.is_log or loss.is_ranking or loss.is_own:
        return 1.0, 0.0
    mean = float(np.average(rows.y, weights=rows.weight))
    spread = float(np.sqrt(np.average((rows.y - mean) ** 2, weights=rows.weight)))
    return (spread if np.isfinite(spread) and spread > 0 else 1.0), mean

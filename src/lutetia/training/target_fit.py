"""`Targets` models from columns: one encoding and one layer of tables, fitted to several targets at once.

Each target stops by itself: from then on tables hold nothing for it. On nine sets of data that is as accurate as a fit for each
target, with half as many tables: see docs/notes/targets.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lutetia.errors import ArgumentError
from lutetia.models import TOP_CODE, Columns, Targets, fit_encoding
from lutetia.training.boosting import Boosted, Boosting, Each, Validation, boost, first_of_each, score
from lutetia.training.calibration import best_temperature, enough_of, row_losses, table_looks
from lutetia.training.intervals import interval_bounds
from lutetia.training.spread import fit_spreads
from lutetia.training.tabular import Shape, TabularRows, rows_of, units_of
from lutetia.training.together import Together, part_slices

Array = np.ndarray[Any, Any]
MOST_ORDERS = 8  # of the categories of a column: by this many targets, or classes of theirs


class _Units(NamedTuple):
    """The spreads and the means of the numbers to predict, [targets] each; 1 and 0 for classes."""

    scale: Array
    offset: Array


def one_target(rows: TabularRows, number: int) -> TabularRows:
    """The rows with one of their targets."""
    return replace(rows, y=rows.y[:, number])


def fit_targets(
    rows: TabularRows,
    shape: Shape,
    outputs: tuple[int, ...],
    settings: Boosting,
    *,
    most_codes: int = TOP_CODE,
    valid: TabularRows | None = None,
    each: Each | None = None,
) -> tuple[Targets, Boosted]:
    """Fit a model of several targets to rows, whose y [n, targets] are numbers, or classes of `outputs` each; returns it with the
    losses during the fit. Of `shape`, only the columns are looked at."""
    _check(rows, shape, settings)
    units = _units(rows, outputs, settings)
    target = _scaled(rows, units).y if max(outputs) == 1 else _one_hot(rows.y, outputs)
    orders = range(min(MOST_ORDERS, target.shape[1])) if max(outputs) == 1 else _last_classes(outputs)
    known = Columns(rows.x, target, rows.weight, list(shape.n_categories), shape.dates, list(orders))
    encoding = fit_encoding(known, most_codes, None)
    codes = encoding.codes(rows.x, settings.threads)
    goal = _goal(rows, outputs, units, settings)
    held = None
    if valid is not None:
        held = Validation(encoding.codes(valid.x, settings.threads), _goal(valid, outputs, units, settings))
    tops = np.where(codes.max(1, initial=0) > codes.min(1, initial=TOP_CODE), encoding.tops(), 0)  # of inputs that vary
    fitted = boost(codes, tops, goal, settings, valid=held, each=each)
    temperature = np.ones(len(outputs))
    if settings.calibrate and max(outputs) > 1:
        begun = len(fitted.anchors)
        report = None if each is None else lambda done, losses: each(begun + done, losses)
        counts, temperature = _trial(rows, shape, outputs, replace(settings, n_tables=begun), most_codes, report)
        if settings.enough_tables:
            kept = first_of_each(fitted.weight, goal, counts)
            fitted.anchors, fitted.weight = fitted.anchors[:kept], fitted.weight[:kept]
    fitted.temperature = np.repeat(temperature, outputs)
    off = None
    if settings.intervals and max(outputs) == 1:
        off = fit_spreads(fitted, [Validation(codes, goal), *(() if held is None else (held,))], tops, settings)
    sizes: dict[str, Any] = {
        "n_encoded": len(encoding.source),
        "n_edges": encoding.edges.shape[1],
        "n_categories": encoding.ranks.shape[1],
    }
    sizes |= {"n_tables": len(fitted.anchors), "n_anchors": settings.n_anchors}
    sizes |= {} if off is None else {"spread_tables": len(off.anchors), "spread_anchors": off.anchors.shape[1]}
    losses: dict[str, Any] = {"loss": settings.loss, "quantile": settings.quantile} if max(outputs) == 1 else {}
    dated = encoding.parts if any(encoding.parts) else ()
    model = Targets(outputs=outputs, input_shape=shape.input_shape, parts=dated, seed=0, **sizes, **losses)
    model.encoding = encoding
    scale, offset = (np.repeat(each, outputs) for each in units)
    model.set_tables(*rows_of(fitted, scale, fitted.base * scale + offset))
    if off is not None:
        model.set_tables(*rows_of(off, 1.0, off.base), model.spread)
    return model.eval(), fitted


def target_bounds(model: Targets, rows: TabularRows) -> list[dict[str, float]]:
    """What the metadata of each target says of its errors, by rows that were not fitted."""
    return [
        interval_bounds(part, rows.x, rows.y[:, number], rows.weight) if part.is_regression else {}
        for number, part in enumerate(model.all_parts)
    ]


def _check(rows: TabularRows, shape: Shape, settings: Boosting) -> None:
    """Refuse what models of several targets have not."""
    given = {
        "columns of text": bool(rows.texts),
        "monotonic constraints": any(shape.monotone),
        "limits on columns that meet": bool(shape.interactions),
        "images": len(shape.input_shape) > 1,
        "a loss of your own": settings.number_loss.is_own,
        "rankings": settings.number_loss.is_ranking,
    }
    if wrong := [name for name, is_there in given.items() if is_there]:
        raise ArgumentError(f"{wrong[0]} with {rows.y.shape[1]} targets, expected one target: fit a model for each")


def _units(rows: TabularRows, outputs: tuple[int, ...], settings: Boosting) -> _Units:
    if max(outputs) > 1:
        return _Units(np.ones(len(outputs)), np.zeros(len(outputs)))
    found = [units_of(one_target(rows, number), settings.number_loss) for number in range(len(outputs))]
    return _Units(*map(np.array, zip(*found, strict=True)))


def _scaled(rows: TabularRows, units: _Units) -> TabularRows:
    return replace(rows, y=(rows.y - units.offset) / units.scale)


def _goal(rows: TabularRows, outputs: tuple[int, ...], units: _Units, settings: Boosting) -> Together:
    rows = _scaled(rows, units) if max(outputs) == 1 else rows
    goals = []
    for number, count in enumerate(outputs):
        own = one_target(rows, number)
        own = own.balanced(count) if settings.balanced and count > 1 else own
        goals.append(own.goal(count, 1, settings.number_loss, settings.threads))
    return Together(tuple(goals), rows.weight)


def _one_hot(y: Array, outputs: tuple[int, ...]) -> Array:
    return np.concatenate([np.eye(count)[y[:, number]] for number, count in enumerate(outputs)], 1)


def _last_classes(outputs: tuple[int, ...]) -> list[int]:
    """The last class of each target: of two it says all, of more it is one of those that order categories."""
    return [part.stop - 1 for part in part_slices(outputs)][:MOST_ORDERS]


def _trial(
    rows: TabularRows, shape: Shape, outputs: tuple[int, ...], settings: Boosting, most_codes: int, each: Each | None
) -> tuple[Array, Array]:
    """What a fit to four fifths of the rows says of each target by the last fifth: how many tables are enough, and what the
    scores of so many are divided by, [targets] each."""
    counts, temperatures = np.full(len(outputs), settings.n_tables), np.ones(len(outputs))
    own, held = rows.held_out(settings.seed)
    if not len(held.y) or any(len(np.unique(own.y[:, number])) < 2 for number in range(len(outputs))):
        return counts, temperatures
    plain = replace(settings, patience=None, calibrate=False, candidates=max(1, settings.candidates // 2))
    trial, _ = fit_targets(own, shape, outputs, plain, most_codes=most_codes, each=each)
    anchors, weight = trial.tables.anchors.numpy().astype(np.int64), trial.tables.weight.detach().double().numpy()
    codes, scores = trial.encoding.codes(held.x, settings.threads), np.zeros((len(held.y), sum(outputs)))
    looks = table_looks(len(anchors)) if settings.enough_tables else [len(anchors)]
    goal = _goal(held, outputs, _units(rows, outputs, settings), settings)
    losses: list[list[Array]] = [[] for _ in outputs]
    found: list[list[float]] = [[] for _ in outputs]
    for begin, end in zip([0, *looks], looks, strict=False):
        score(codes, anchors[begin:end], weight[begin:end], scores, settings.threads)
        for number, part in enumerate(goal.parts):
            given = np.ascontiguousarray(scores[:, part])
            found[number].append(best_temperature(given, goal.goals[number]))
            losses[number].append(row_losses(given / found[number][-1], held.y[:, number]))
    for number in range(len(outputs)):
        place = enough_of(np.array(losses[number]), goal.goals[number].weight)
        counts[number], temperatures[number] = looks[place], found[number][place]
    return counts, temperatures

"""What each column of a table of data does to a score: a curve of exact steps for each, and a map for each two that meet.

A table that compares one column adds a function of it. Of a table that compares others, too, the curve is the mean over other
rows (Friedman's partial dependence, 2001). Where no table compares more than two columns, the score of any row is the average,
plus the curves at its values, plus the maps: nothing is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from lutetia._shared.markup import Html
from lutetia._shared.numbers import short_number
from lutetia.errors import ArgumentError, check_tensor
from lutetia.models import Tabular, column_owners, date_text, has_times, text_columns
from lutetia.report.shapley import background_rows

Array = np.ndarray[Any, Any]
MISSING = "missing"
BINS = 40  # of the rows that are drawn below a curve
MOST_NAMED = 5  # curves in a sentence
ENDS = (0.005, 0.995)  # of the rows, between which numbers are drawn


@dataclass(frozen=True, eq=False)
class Curve:
    """What a column adds to each output: `values` float64 [steps, outputs] of the steps that `labels` name, 0 on average over the
    rows, of which `share` [steps] are at each step.

    Steps of numbers lie between `edges` [steps - 1], without the first step where that `is_missing`; others have none. `ends` is
    the range that is drawn, and `rows` how many rows lie in each of its equal parts.
    """

    name: str
    values: Array
    labels: list[str]
    share: Array
    is_missing: bool
    edges: Array | None = None
    ends: tuple[float, float] = (0.0, 0.0)
    rows: Sequence[int] = ()
    end_labels: tuple[str, str] = ("", "")

    @property
    def importance(self) -> float:
        """How far the column moves an output, on average over the rows."""
        return float((self.share @ np.abs(self.values)).mean())

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        steps = zip(self.labels, self.share.tolist(), self.values.tolist(), strict=True)
        told = [{"at": label, "share": share, "adds": adds} for label, share, adds in steps]
        edges = None if self.edges is None else self.edges.tolist()
        return {"column": self.name, "importance": self.importance, "edges": edges, "steps": told}


@dataclass(frozen=True, eq=False)
class Map:
    """What two columns add together, beyond their curves: `values` float64 [steps, other steps, outputs]."""

    names: tuple[str, str]
    labels: tuple[list[str], list[str]]
    values: Array
    importance: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        told = {"columns": list(self.names), "importance": self.importance, "at": list(self.labels)}
        return told | {"adds": self.values.tolist()}


@dataclass(frozen=True, eq=False)
class Curves:
    """All curves and maps, the largest first. `outputs` says what they add to, `average` [outputs] is what they begin with.

    A table compares `most_columns` at most, which may be more `most_curves`: each part of a date, and all that is made of a text,
    has a curve of its own. With more than two, the curves of `averaged` columns are means over `n_others` rows, not the whole.
    """

    curves: list[Curve]
    maps: list[Map]
    outputs: list[str]
    average: Array
    most_columns: int
    most_curves: int
    n_rows: int
    n_others: int
    unit: str = ""
    averaged: frozenset[str] = frozenset()

    @property
    def is_whole(self) -> bool:
        """Whether curves and maps are all of the model."""
        return self.most_curves <= 2

    def __repr__(self) -> str:
        return f"<Curves of {len(self.curves)} columns and {len(self.maps)} pairs: to_text() for the largest>"

    def said(self) -> str:
        """What the curves are, in a sentence or two."""
        if self.most_curves <= 1:
            return "This is the whole model: a prediction is the average plus the value of each curve."
        if self.is_whole:
            return "This is the whole model: a prediction is the average, plus the value of each curve and of each pair."
        if self.most_columns <= 1:
            own, left = sorted(self.averaged)[:MOST_NAMED], len(self.averaged) - MOST_NAMED
            names = ", ".join([*own, *([f"{left} more"] if left > 0 else [])])
            return (
                "This is the whole model, but for what is made of one date or one text, which tables compare together. Curves "
                f"of {names} are averages over {self.n_others:,} rows of the data (partial dependence)."
            )
        return (
            f"This is not the whole model: its tables compare up to {self.most_columns} columns at once. A curve is the average "
            f"over {self.n_others:,} rows of the data (partial dependence); in a single row a column may do something else."
        )

    def to_text(self, most: int = 20) -> str:
        """The largest curves and pairs, a line each: how far it moves the output on average, and between which ends."""
        lines = [f"{short_number(each.importance, 3)} {each.name}: {_range(each)}" for each in self.curves[:most]]
        pairs = [f"{short_number(each.importance, 3)} {' and '.join(each.names)}" for each in self.maps[:most]]
        return "\n".join([*lines, *pairs])

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "outputs": self.outputs,
            "average": self.average.tolist(),
            "whole": self.is_whole,
            "most_columns": self.most_columns,
            "rows": self.n_rows,
            "averaged_rows": self.n_others,
            "curves": [each.to_dict() for each in self.curves],
            "pairs": [each.to_dict() for each in self.maps],
        }

    def to_html(self) -> Html:
        """The curves as a piece of HTML; `lutetia.relevance.pictures.page(piece, path="curves.html")` makes a page of it."""
        from lutetia.report.curve_pictures import piece

        return piece(self)

    def _repr_html_(self) -> str:
        return self.to_html()


def _range(curve: Curve) -> str:
    """Between which steps a curve goes: "from -2 at <= 30 to +3 at > 70", of each output."""
    told = []
    for own in curve.values.T:
        ends = (f"{short_number(own[at], 3, sign=True)} at {curve.labels[at]}" for at in (own.argmin(), own.argmax()))
        told.append("from {} to {}".format(*ends))
    return "; ".join(told[:1] if len(told) == 1 else told[:3])


# ---- from a model ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Group:
    """Encoded inputs that are one curve: their codes at each step, uint8 [inputs, steps], and the step of each row, [n].

    The first step is what is missing. Others are the `categories`, or lie between the texts of `cuts`.
    """

    name: str
    column: int
    inputs: Array
    codes: Array
    place: Array
    cuts: Sequence[str] = ()
    categories: Sequence[str] | None = None
    is_number: bool = False

    def label(self, begin: int, end: int) -> str:
        """A range of steps as people read it."""
        if begin == 0:
            return MISSING
        if self.categories is not None:
            return self.categories[begin - 1]
        low = None if begin == 1 else self.cuts[begin - 2]
        high = None if end - 2 >= len(self.cuts) else self.cuts[end - 2]
        if low is None:
            return "any value" if high is None else f"up to {high}"
        return f"above {low}" if high is None else f"{low} to {high}"

    def merged(self, values: Array) -> list[tuple[int, int]]:
        """Ranges of steps: neighbours between cuts that have equal values [steps, ..] are one, and what is missing in no row is
        left out."""
        first, last = 0 if (self.place == 0).any() else 1, len(values)
        own = self.categories is not None
        begins = [at for at in range(first, last) if at <= 1 or own or (values[at] != values[at - 1]).any()]
        return list(zip(begins, [*begins[1:], last], strict=True))


@dataclass(frozen=True, eq=False)
class _Tables:
    """Tables as arrays: anchors int64 [T, A, 2], and what each row adds to each output, float64 [T, 2**A, outputs]."""

    anchors: Array
    weight: Array

    def at(self, chosen: Array) -> _Tables:
        return _Tables(self.anchors[chosen], self.weight[chosen])

    def sums(self, codes: Array) -> Array:
        """codes uint8 [F, n] -> the sums of the rows that tables choose, float64 [n, outputs]."""
        total = np.zeros((codes.shape[1], self.weight.shape[2]))
        for anchors, rows in zip(self.anchors.tolist(), self.weight, strict=True):
            cell = np.zeros(codes.shape[1], np.int64)
            for place, (left, right) in enumerate(anchors):
                other = codes[right] if right < len(codes) else right - len(codes)
                cell |= (codes[left] > other).astype(np.int64) << place
            total += rows[cell]
        return total


def find_curves(model: Tabular, x: Tensor) -> Curves:
    """The curves of a model of tables of columns, over rows x [n, columns], such as those that were fitted."""
    if model.config.core != "tables" or len(model.config.input_shape) != 1:
        raise ArgumentError(f"model is a {type(model).__name__} of {model.config.core}, expected tables of columns of data")
    check_tensor("x", x, ["n", model.n_columns])
    if not len(x):
        raise ArgumentError("x has no rows, expected one at least")
    rows, others = x.double().numpy(), background_rows(x.double()).numpy()
    codes, other_codes = model.encoding.codes(rows), model.encoding.codes(others)
    outputs, unit, mix = _outputs(model)
    anchors = model.tables.anchors.numpy().astype(np.int64)
    tables = _Tables(anchors, model.tables.weight.detach().double().numpy() @ mix)
    groups = _groups(model, rows, codes)
    reads = _reads(anchors, groups, len(codes))
    n_read = reads.sum(1)
    found, curves, averaged = np.zeros((len(rows), len(outputs))), [], []
    for number, group in enumerate(groups):
        own = np.flatnonzero(reads[:, number])
        if not len(own):
            continue
        alone = (n_read[own] == 1).all()
        averaged += [] if alone else [group.name]
        values = _main(tables.at(own), group, other_codes[:, :1] if alone else other_codes)
        share = np.bincount(group.place, minlength=len(values)) / len(rows)
        values -= share @ values
        found += values[group.place]
        curves.append(_curve(model, group, values, share, rows[:, group.column]))
    maps, n_most, n_columns = [], int(n_read.max(initial=0)), _most_columns(model, groups, reads)
    if n_most == 2:
        for one, other in np.unique([np.flatnonzero(each) for each in reads[n_read == 2]], axis=0).tolist():
            own = np.flatnonzero(reads[:, one] & reads[:, other] & (n_read == 2))
            values = _map(tables.at(own), groups[one], groups[other], other_codes)
            added = values[groups[one].place, groups[other].place]
            found += added
            maps.append(_named_map(groups[one], groups[other], values, float(np.abs(added).mean())))
    average = (tables.sums(codes[:, :1]) - found[:1])[0] if n_most <= 2 else tables.sums(codes[:, : 1 << 14]).mean(0)
    curves.sort(key=lambda each: -each.importance)
    maps.sort(key=lambda each: -each.importance)
    return Curves(
        curves, maps, outputs, average, n_columns, n_most, len(rows), len(others) if averaged else 1, unit, frozenset(averaged)
    )


def _outputs(model: Tabular) -> tuple[list[str], str, Array]:
    """What curves add to, its unit, and the factors [scores, outputs] that make it of the scores of the model."""
    title, n = model.title or "the prediction", model.config.n_classes
    if model.is_regression:
        named = f"the logarithm of {title}" if model.loss.is_log else title
        return [named], "" if model.loss.is_log else str(model.metadata.get("target_unit") or ""), np.ones((1, 1))
    classes = [str(each) for each in model.metadata.get("classes") or range(n)]
    if model.adds_chances:
        return [f"the probability of {each}" for each in classes], "", np.eye(n)
    if n == 2:  # the difference of two scores is the logarithm of the ratio of their probabilities
        return [f"the log-odds of {classes[1]}"], "", np.array([[-1.0], [1.0]])
    return [f"the score of {each}" for each in classes], "", np.eye(n) - 1 / n  # of which probabilities do not know the mean


def _groups(model: Tabular, rows: Array, codes: Array) -> list[_Group]:
    """The curves of the columns: one each, but of a date one for each of its parts."""
    names = list(model.metadata.get("features") or [f"x{number}" for number in range(model.n_columns)])
    source, ranks, tops = model.encoding.source.numpy(), model.encoding.ranks.numpy(), model.encoding.tops()
    categories, groups = model.metadata.get("categories", {}), []
    for column in np.unique(source).tolist():
        inputs = np.flatnonzero(source == column)
        if ranks[inputs].any():
            labels = [str(each) for each in categories.get(str(column)) or range(ranks.shape[1])]
            own = np.concatenate([np.zeros((len(inputs), 1), np.uint8), ranks[inputs, : len(labels)]], 1)
            values = rows[:, column]
            is_known = (codes[inputs] > 0).any(0) & (values < len(labels))
            place = np.where(is_known, np.nan_to_num(values) + 1, 0).astype(np.int64)
            groups.append(_Group(names[column], column, inputs, own, place, categories=labels))
            continue
        for number in inputs.tolist():
            own, place = np.arange(tops[number] + 1, dtype=np.uint8)[None], codes[number].astype(np.int64)
            cuts = [model.threshold_text(number, code) for code in range(1, int(tops[number]))]
            name, is_number = model.input_name(number, names), not model.encoding.parts[number]
            groups.append(_Group(name, column, np.array([number]), own, place, cuts, None, is_number))
    return groups


def _reads(anchors: Array, groups: Sequence[_Group], n_inputs: int) -> Array:
    """Which groups each table reads, bool [T, groups]."""
    group_of = np.full(n_inputs, len(groups))
    for number, group in enumerate(groups):
        group_of[group.inputs] = number
    read = np.append(group_of, len(groups))[np.minimum(anchors, n_inputs)]  # a constant is no group
    reads = np.zeros((len(anchors), len(groups) + 1), bool)
    np.put_along_axis(reads, read.reshape(len(anchors), -1), True, 1)
    return reads[:, :-1]


def _most_columns(model: Tabular, groups: Sequence[_Group], reads: Array) -> int:
    """How many columns of the data a table compares at most."""
    owners = column_owners(text_columns(model.metadata), model.n_columns)[[group.column for group in groups]]
    return int(np.stack([reads[:, owners == each].any(1) for each in np.unique(owners)]).sum(0).max(initial=0))


def _main(tables: _Tables, group: _Group, others: Array) -> Array:
    """The mean of tables over other rows, codes uint8 [F, m], at each step of a group: float64 [steps, outputs]."""
    n_steps, n_others = group.codes.shape[1], others.shape[1]
    codes = np.repeat(others, n_steps, 1)
    codes[group.inputs] = np.tile(group.codes, n_others)
    return tables.sums(codes).reshape(n_others, n_steps, -1).mean(0)


def _map(tables: _Tables, one: _Group, other: _Group, others: Array) -> Array:
    """What tables of two groups add beyond the mean over the other rows of either: float64 [steps, other steps, outputs]."""
    sizes = one.codes.shape[1], other.codes.shape[1]
    codes = np.zeros((len(others), math.prod(sizes)), np.uint8)
    codes[one.inputs] = np.repeat(one.codes, sizes[1], 1)
    codes[other.inputs] = np.tile(other.codes, sizes[0])
    values = tables.sums(codes).reshape(*sizes, -1)
    return values - _main(tables, one, others)[:, None] - _main(tables, other, others)[None] + tables.sums(others).mean(0)


def _curve(model: Tabular, group: _Group, values: Array, share: Array, column: Array) -> Curve:
    """A curve whose steps are as few as they can be."""
    kept = group.merged(values)
    shares = np.array([share[begin:end].sum() for begin, end in kept])
    drawn: dict[str, Any] = {}
    if group.is_number:
        edges = model.encoding.edges[group.inputs[0]].numpy()
        cuts = np.array([edges[end - 2] for begin, end in kept[:-1] if begin > 0])
        known = column[np.isfinite(column)]
        low, high = np.quantile(known, ENDS, method="nearest").tolist() if len(known) else (0.0, 0.0)
        counted = np.histogram(known, BINS, (low, high))[0].tolist() if low < high else []
        drawn = {"edges": cuts, "ends": (low, high), "rows": counted}
        drawn["end_labels"] = _value(model, group, low), _value(model, group, high)
    labels = [group.label(*each) for each in kept]
    return Curve(group.name, values[[begin for begin, _ in kept]], labels, shares, kept[0][0] == 0, **drawn)


def _value(model: Tabular, group: _Group, value: float) -> str:
    """A value of a column as people read it."""
    if str(group.column) in model.metadata.get("dates", {}):
        return date_text(value, has_times(model.metadata, group.column))
    return short_number(value, 4)


def _named_map(one: _Group, other: _Group, values: Array, importance: float) -> Map:
    """A map whose steps are as few as they can be."""
    down, across = one.merged(values), other.merged(values.swapaxes(0, 1))
    kept = values[[begin for begin, _ in down]][:, [begin for begin, _ in across]]
    labels = [one.label(*each) for each in down], [other.label(*each) for each in across]
    return Map((one.name, other.name), labels, kept, importance)

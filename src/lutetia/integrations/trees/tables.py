"""An ensemble of trees as a `models.Tabular`: an encoding with exactly the cuts of the trees, and tables of groups of leaves."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lutetia._shared.losses import RANKING
from lutetia.errors import ArgumentError, check_choice
from lutetia.integrations.trees.ensemble import CLASSES, FIRST_CATEGORY, Ensemble, as_codes
from lutetia.integrations.trees.packing import Axes, Between, Chosen, Group, group
from lutetia.models import TOP_CODE, Encoding, Tabular

Array = np.ndarray[Any, Any]
MOST_CUTS = TOP_CODE - 1  # of one encoded input: codes are bytes, and 0 is what is missing
MOST_NUMBERS = 1 << 27  # in all rows of all tables: 512 MiB
SHARED = 32  # tables among which the base is divided, as fits of our own divide it
MOST_ENCODED = 1 << 14
MISSING = ("seen", "exact", "none")
LEAST = -sys.float_info.max  # a cut below all other numbers


class Imported(NamedTuple):
    """A model of tables, and how many there are of how many comparisons, made of how many trees and leaves."""

    model: Tabular
    n_trees: int
    n_leaves: int
    comparisons: list[int]  # of each table


def to_tabular(
    ensemble: Ensemble,
    names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    n_anchors: int | None = None,
    missing: str = "seen",
) -> Imported:
    """The model of tables that adds up to what the trees add up to, row for row.

    With missing="exact" a missing value goes where the library sends it, which takes a comparison more in many tables. With
    "seen" columns that had no missing values in the training data, where the library says so, and with "none" all columns, are
    taken to have none: what is missing there goes with the least values.
    """
    check_choice("missing", missing, MISSING)
    axes = Axes(ensemble, {"seen": ensemble.whole, "none": range(ensemble.n_columns), "exact": ()}[missing])
    groups, n_anchors = group(ensemble, axes, n_anchors)
    n_tables, n_outputs = max(1, len(groups)), ensemble.n_classes
    if n_tables * 2**n_anchors * n_outputs > MOST_NUMBERS:
        raise ArgumentError(
            f"the trees would become {n_tables:,} tables of {2**n_anchors:,} rows and {n_outputs:,} outputs, expected at most "
            f"{MOST_NUMBERS:,} numbers in all: fit fewer trees, or less deep ones"
        )
    encoding, places = encode(ensemble, axes, {bit for each in groups for bit in each.bits})
    loss = ensemble.loss
    config: dict[str, Any] = {"loss": loss.name, "quantile": loss.quantile} if n_outputs == 1 else {"sums": ensemble.sums}
    model = Tabular(
        input_shape=(ensemble.n_columns,), n_classes=n_outputs, n_tables=n_tables, n_anchors=n_anchors, seed=0,
        n_encoded=len(encoding.source), n_edges=encoding.edges.shape[1], n_categories=encoding.ranks.shape[1], **config,
    )  # fmt: skip
    model.encoding = encoding
    anchors = np.zeros((n_tables, n_anchors, 2), np.int32)
    anchors[..., 1] = len(encoding.source)
    weight = np.zeros((n_tables, 2**n_anchors, n_outputs), np.float32)
    first = n_outputs - len(ensemble.base)  # of two classes the first has no score
    base = ensemble.base / min(n_tables, SHARED)
    for number in range(n_tables):
        rows = np.zeros((2**n_anchors, len(ensemble.base)))
        if number < len(groups):
            own = groups[number]
            for place, bit in enumerate(own.bits):
                anchors[number, place] = places[bit]
            # Comparisons that are left over repeat the first one, and change nothing.
            anchors[number, len(own.bits) :] = anchors[number, 0]
            made = rows_of(own, axes, len(ensemble.base))
            rows[:] = np.tile(made, (len(rows) // len(made), 1))
        weight[number, :, first:] = rows + (base if number < SHARED else 0.0)
    if not np.isfinite(weight).all():
        raise ArgumentError("leaves of the trees add up to more than a 32-bit float holds, expected smaller values")
    model.set_tables(torch.from_numpy(anchors), torch.from_numpy(weight))
    model.metadata = describe(ensemble, names, classes)
    leaves = sum(len(each.leaves) for each in groups)
    return Imported(model.eval(), len(ensemble.trees), leaves, [len(each.bits) for each in groups])


class _Input(NamedTuple):
    """An encoded input: its column, and the cuts of numbers, or of categories the numbers of some as bits, which have the code 2,
    and all others 1."""

    column: int
    cuts: Sequence[float] = ()
    members: int | None = None


def encode(ensemble: Ensemble, axes: Axes, asked: Collection[int]) -> tuple[Encoding, dict[int, tuple[int, int]]]:
    """The encoding whose codes fall on the sides of all cuts, and of each bit that is asked for its anchor.

    A column of more than 254 cuts becomes several inputs, each with the cuts that follow those of the one before. An interval
    compares two more inputs, of one cut each: the first is above the second where the value lies between the two. Each set of
    categories is an input.
    """
    inputs: list[_Input] = []
    codes: dict[int, tuple[int, int]] = {}  # of a bit the encoded input, and the code that it is above
    for column, cuts, first, is_chosen in zip(axes.columns, axes.cuts, axes.first, axes.is_chosen, strict=False):
        start = len(inputs)
        if is_chosen:
            codes[first] = start, 1
            inputs += [_Input(column, [LEAST])] if first in asked else []
            continue
        codes[first] = start, 0
        inputs += [_Input(column, cuts[at : at + MOST_CUTS]) for at in range(0, max(1, len(cuts)), MOST_CUTS)]
        codes |= {first + 1 + at: (start + at // MOST_CUTS, 1 + at % MOST_CUTS) for at in range(len(cuts))}
    pairs: dict[int, tuple[int, int]] = {}
    single: dict[tuple[int, int], int] = {}  # by axis and code the input of that cut alone
    for bit in sorted(asked):
        own = axes.of(bit)
        if isinstance(own, Chosen):
            codes[bit] = len(inputs), 1
            inputs.append(_Input(axes.columns[own.axis], members=own.members))
        elif isinstance(own, Between):
            for code in (own.low, own.high):
                if (own.axis, code) not in single:
                    single[own.axis, code] = len(inputs)
                    cuts = axes.cuts[own.axis][code - 1 : code] if code else [LEAST]
                    inputs.append(_Input(axes.columns[own.axis], cuts))
            pairs[bit] = single[own.axis, own.low], single[own.axis, own.high]
    rest = sorted(set(range(ensemble.n_columns)) - {each.column for each in inputs})
    inputs += [_Input(column, members=0 if ensemble.categories.get(column) else None) for column in rest]
    if len(inputs) > MOST_ENCODED:
        raise ArgumentError(f"the trees ask for {len(inputs):,} lists of cuts and sets, expected at most {MOST_ENCODED:,}")
    places = {bit: (encoded, len(inputs) + code) for bit, (encoded, code) in codes.items()}
    return _encoding(inputs, ensemble.categories), places | pairs


def _encoding(inputs: Sequence[_Input], categories: Mapping[int, Sequence[Any]]) -> Encoding:
    """An encoding of inputs, and the values of columns of categories."""
    asked = {each.column for each in inputs if each.members is not None}
    numbers = {column: as_codes(categories[column]) or list(range(len(categories[column]))) for column in asked}
    width = max((1 + max(each) for each in numbers.values()), default=0)
    if width * len(inputs) > MOST_NUMBERS:
        raise ArgumentError(
            f"the trees ask for {len(inputs):,} lists of cuts and sets, of categories up to number {width - 1:,}, expected at "
            f"most {MOST_NUMBERS:,} numbers in all: number the categories from 0"
        )
    encoding = Encoding(len(inputs), max((len(each.cuts) for each in inputs), default=0), width)
    for number, (column, cuts, members) in enumerate(inputs):
        encoding.source[number] = column
        encoding.edges[number, : len(cuts)] = torch.tensor(cuts, dtype=torch.float64)
        if members is not None:
            codes = [1 + (members >> at & 1) for at in range(len(numbers[column]))]
            encoding.ranks[number, numbers[column]] = torch.tensor(codes, dtype=torch.uint8)
    return encoding


def rows_of(own: Group, axes: Axes, n_outputs: int) -> Array:
    """The rows of a table, float64 [2**bits, outputs]: in each the values of the leaves that its comparisons lead to.

    Comparisons of one column cannot all be answered alone: above 5 is above 3. In rows that no value comes to, the least cut
    that a value is said not to be above decides."""
    n_bits = len(own.bits)
    answers = (np.arange(2**n_bits)[:, None] >> np.arange(n_bits)) & 1  # [rows, bits]
    place_of = {bit: place for place, bit in enumerate(own.bits)}
    above: dict[int, list[tuple[int, int]]] = {}  # by axis the place and the code of each comparison with a cut
    for place, bit in enumerate(own.bits):
        if not isinstance(of := axes.of(bit), Between | Chosen):
            above.setdefault(of[0], []).append((place, of[1]))
    regions = {axis: np.cumprod(answers[:, [place for place, _ in cuts]], 1).sum(1) for axis, cuts in above.items()}
    codes = {axis: [0, *(code + 1 for _, code in cuts)] for axis, cuts in above.items()}  # one of each region
    rows = np.zeros((2**n_bits, n_outputs))
    for leaf, bits in own.leaves:
        reached = np.ones(2**n_bits, bool)
        sets = axes.sets(bits)
        for axis, allowed in leaf.codes.items():
            if axes.is_chosen[axis]:
                own_sets = [(place_of[bit], of.members) for bit, of in sets if of.axis == axis]
                goes = _answered(answers, own_sets, allowed)
                known = place_of.get(axes.first[axis]) if (allowed ^ allowed >> 1) & 1 else None
                reached &= goes if known is None else np.where(answers[:, known], goes, bool(allowed & 1))
                continue
            interval = axes.interval(axis, allowed, bits)
            if interval is not None:
                bit, inside, outside = interval
                goes = np.where(answers[:, place_of[bit]], allowed >> inside & 1, allowed >> outside & 1)
                known = place_of.get(axes.first[axis]) if (allowed ^ allowed >> outside) & 1 else None
                reached &= (goes if known is None else np.where(answers[:, known], goes, allowed & 1)).astype(bool)
            elif axis in regions:  # all codes of any other axis lead to the leaf
                reached &= np.array([bool(allowed >> code & 1) for code in codes[axis]])[regions[axis]]
        if leaf.output is None:
            rows[reached] += leaf.value
        else:
            rows[reached, leaf.output] += leaf.value[0]
    return rows


def _answered(answers: Array, sets: Sequence[tuple[int, int]], allowed: int) -> Array:
    """The rows in which sets, by the place of their bits, hold what is allowed, but for what is missing: all that is allowed is
    in a set, or all is outside."""
    goes = np.full(len(answers), allowed > 1)  # else only what is missing
    for place, members in sets:
        goes &= answers[:, place] == bool(allowed >> FIRST_CATEGORY & members)
    return goes


def describe(ensemble: Ensemble, names: Sequence[str] | None, classes: Sequence[str] | None) -> dict[str, Any]:
    """What is known of the data: the task, the names of columns and classes, ranges."""
    known: dict[str, Any] = {"task": "ranking" if ensemble.loss.name == RANKING else ensemble.task}
    names = ensemble.names if names is None else list(names)
    names = [f"x{number}" for number in range(ensemble.n_columns)] if names is None else names
    if len(names) != ensemble.n_columns:
        raise ArgumentError(f"feature_names holds {len(names)} names, expected {ensemble.n_columns}, one for each column")
    known["features"] = [str(name) for name in names]
    words = {str(column): values for column, values in ensemble.categories.items() if as_codes(values) is None}
    if words:
        known |= {"categories": words, "unknown": ensemble.unknown}
    if ensemble.task == CLASSES:
        own = ensemble.classes if classes is None else list(classes)
        own = list(range(ensemble.n_classes)) if own is None else own
        if len(own) != ensemble.n_classes:
            raise ArgumentError(f"class_names holds {len(own)} names, expected {ensemble.n_classes}, one for each class")
        known["classes"] = [str(name) for name in own]
    elif classes is not None:
        raise ArgumentError("class_names is given, expected None: the model predicts a number")
    if ensemble.spans is not None and all(abs(end) <= sys.float_info.max for span in ensemble.spans for end in span):
        known["input_low"], known["input_high"] = (list(ends) for ends in zip(*ensemble.spans, strict=True))
    return known

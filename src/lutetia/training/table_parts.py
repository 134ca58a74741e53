"""The parts of a table of data: rows to fit, to test on, and to decide when to stop, as `data.split` says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lutetia.errors import DataError
from lutetia.training.data import Samples
from lutetia.training.formats import Array
from lutetia.training.splits import Split
from lutetia.training.table_files import LearningTable
from lutetia.training.tabular import TabularRows

HELD = 10  # one row in ten decides when to stop, where fit.patience is set
SEED = 0  # which rows are held out must not depend on the seed of the fit
FEW = {
    "latest": "all rows are of one time",
    "groups": "expected more groups than one, and no class that only one of them has",
}


def part_rows(tables: Sequence[LearningTable], share: float, path: Path) -> tuple[Array, Array]:
    """The numbers of the rows to fit and of those to test on, about this share of all: the same for tables that differ in their
    targets alone. `path` names the file in messages."""
    order, split = _shuffled(len(tables[0].y)), tables[0].split
    train, test = split.parts(order, int(len(order) * share))
    for table in tables:
        if table.classes:
            train, test = _with_all_classes(table.y, split, train, test)
    return train, test


def part_table(table: LearningTable, share: float, path: Path, rows: tuple[Array, Array] | None = None) -> dict[str, Samples]:
    """The rows in the splits "train" and "test", as `part_rows` parts them, or as `rows` are parted already."""
    count = int(len(table.y) * share)
    train, test = part_rows([table], share, path) if rows is None else rows
    if count and not len(test) and table.split.kind != "random":
        raise DataError(f'{path}: no rows are left to test on with data.split = "{table.split.kind}": {FEW[table.split.kind]}')
    if table.classes and not table.is_unusual and table.split.kind == "latest" and len(np.unique(table.y[train])) < 2:
        name = table.classes[table.y[train][0]]
        raise DataError(f"{path}: the {len(train):,} rows before the latest hold one class, {name!r}, expected two")
    x, weight, splits = table.x.reshape(len(table.y), *table.input_shape), table.weight, {}
    for name, part in (("train", train), ("test", test)):
        own = None if weight is None else weight[part]
        if own is not None and len(part) and not own.sum() > 0:
            use = "fit" if name == "train" else name
            raise DataError(f"{path}: data.weight is 0 in all {len(part):,} rows to {use}, expected more in some")
        query = None if table.query is None else table.query[part]
        texts = tuple(each.at(part) for each in table.texts)
        splits[name] = Samples(x[part], table.y[part], own, table.split.at(part), query, texts)
    return {name: part for name, part in splits.items() if len(part)}


def fold_rows(rows: TabularRows, has_classes: bool, share: float, folds: int, path: str) -> list[tuple[Array, Array]]:
    """So many times the numbers of the rows to fit and to test on, the first as `part_table` has them. No row is tested on twice.
    Of the latest rows, the share is cut into one window per fold, each predicted by what is fitted to all rows before it."""
    is_latest = rows.split.kind == "latest"
    order = _shuffled(len(rows.y))
    most = int(len(order) * min(share / folds if is_latest else share, 1 / folds))
    left, found = order, []
    for number in range(folds):
        split, every = rows.split.at(left), np.arange(len(left))
        own, held = split.parts(every, min(most, len(left) // (folds - number)))
        # The last group, which is not held out of itself.
        if split.kind == "groups" and split.key is not None and len(np.unique(split.key)) == 1:
            own, held = every[:0], every
        if not len(held) or (is_latest and not len(own)):
            what = {"random": "rows", "latest": "times of rows", "groups": "groups or queries"}[rows.split.kind]
            hint = f"--folds {number} at most" if number > 1 else "more of them"
            raise DataError(f"{path} holds too few {what} for {folds} folds, expected {hint}")
        test, left = left[held], left[own]
        train = left if is_latest else order[~np.isin(order, test)]
        found.append(_with_all_classes(rows.y, rows.split, train, test) if has_classes else (train, test))
    for train, test in found:
        for part, use in ((train, "fit"), (test, "test")):
            if not rows.weight[part].sum() > 0:
                raise DataError(f"{path}: the weights of all {len(part):,} rows to {use} in a fold are 0, expected more in some")
        if has_classes and len(np.unique(rows.y[train])) < 2:
            raise DataError(f"{path}: the {len(train):,} rows to fit in a fold hold one class, expected two")
    return found


def _shuffled(n: int) -> Array:
    """All rows in an order of their own, always the same: the last are held out first."""
    return np.random.Generator(np.random.PCG64(SEED)).permutation(n)


def _with_all_classes(y: Array, split: Split, train: Array, test: Array) -> tuple[Array, Array]:
    """The rows to fit and those to test on; a class with only test rows gives its first one to the fit, or that one's group. Of
    the latest rows none is given: a class that comes later cannot be known before."""
    key = split.key
    while split.kind != "latest" and len(lacking := np.setdiff1d(y[test], y[train])):
        lent = test[y[test] == lacking[0]][:1]
        lent = lent if key is None else test[key[test] == key[lent[0]]]
        train, test = np.concatenate([train, lent]), test[~np.isin(test, lent)]
    return train, test


def learning_rows(samples: Samples) -> TabularRows:
    """The rows of a split as they are fitted: x [n, columns]."""
    weight = np.ones(len(samples.y), np.float32) if samples.weight is None else samples.weight
    x = samples.x.reshape(len(samples.y), math.prod(samples.x.shape[1:]))  # which may be no column beside texts
    return TabularRows(x, samples.y, weight, samples.split, samples.query, samples.texts)


def hold_out(rows: TabularRows, path: str) -> tuple[TabularRows, TabularRows]:
    """The rows to fit, and those that decide when to stop: the last tenth, since the rows are already shuffled, unless they are
    parted by something."""
    rows = rows.counted()
    own, held = rows.split.parts(np.arange(len(rows.y)), len(rows.y) // HELD)
    if not len(held):
        few = {"random": "", "latest": " of more than one time", "groups": " of more than one group"}[rows.split.kind]
        raise DataError(f"{path}: fit.patience is set and there are {len(rows.y)} rows to fit, expected {HELD}{few}")
    return rows.at(own), rows.at(held)

"""The parts of a table of data: rows to fit, to test on, and to decide when to stop, as `data.split` says."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from lutetia.errors import DataError
from lutetia.training.data import Samples
from lutetia.training.formats import Array
from lutetia.training.table_files import LearningTable
from lutetia.training.tabular import TabularRows

HELD = 10  # one row in ten decides when to stop, where fit.patience is set
SEED = 0  # which rows are held out must not depend on the seed of the fit
FEW = {
    "latest": "all rows are of one time",
    "groups": "expected more groups than one, and no class that only one of them has",
}


def part_table(table: LearningTable, share: float, path: Path) -> dict[str, Samples]:
    """The rows in the splits "train" and "test", which has about this share of them; `path` names the file in messages."""
    order = np.random.Generator(np.random.PCG64(SEED)).permutation(len(table.y))
    count = int(len(order) * share)
    train, test = _with_all_classes(table, *table.split.parts(order, count))
    if count and not len(test) and table.split.kind != "random":
        raise DataError(f'{path}: no rows are left to test on with data.split = "{table.split.kind}": {FEW[table.split.kind]}')
    if table.classes and table.split.kind == "latest" and len(np.unique(table.y[train])) < 2:
        name = table.classes[table.y[train][0]]
        raise DataError(f"{path}: the {len(train):,} rows before the latest hold one class, {name!r}, expected two")
    x, weight, splits = table.x.reshape(len(table.y), *table.input_shape), table.weight, {}
    for name, rows in (("train", train), ("test", test)):
        own = None if weight is None else weight[rows]
        if own is not None and len(rows) and not own.sum() > 0:
            use = "fit" if name == "train" else name
            raise DataError(f"{path}: data.weight is 0 in all {len(rows):,} rows to {use}, expected more in some")
        query = None if table.query is None else table.query[rows]
        texts = tuple(each.at(rows) for each in table.texts)
        splits[name] = Samples(x[rows], table.y[rows], own, table.split.at(rows), query, texts)
    return {name: part for name, part in splits.items() if len(part)}


def _with_all_classes(table: LearningTable, train: Array, test: Array) -> tuple[Array, Array]:
    """The rows to fit and those to test on; a class with only test rows gives its first one to the fit, or that one's group. Of
    the latest rows none is given: a class that comes later cannot be known before."""
    key, kind = table.split.key, table.split.kind
    while table.classes and kind != "latest" and len(lacking := np.setdiff1d(table.y[test], table.y[train])):
        lent = test[table.y[test] == lacking[0]][:1]
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

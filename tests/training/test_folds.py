"""Folds of a table of data: the first is what `lutetia train` tests on, and no row is tested on twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lutetia.errors import DataError
from lutetia.training import LearningTable, Split, TabularRows, fold_rows
from lutetia.training.table_parts import part_table

DAYS, GROUPS = np.repeat(np.arange(50), 2), np.arange(100) * 7 % 13


@pytest.mark.parametrize("split", [Split(), Split("groups", GROUPS), Split("latest", DAYS)], ids=lambda split: split.kind)
def test_the_first_fold_is_that_of_train_and_rows_are_tested_once(split: Split) -> None:
    x, y = np.arange(100.0)[:, None], np.arange(100) % 3
    table = LearningTable(x, y, ["a"], ["p", "q", "r"], {}, {}, (1,), split=split)
    rows = TabularRows(x, y, np.ones(100, np.float32), split)
    folds = fold_rows(rows, True, 0.2, 5, "the file")
    parts = part_table(table, 0.2, Path())
    tested = np.concatenate([test for _, test in folds])
    assert len(np.unique(tested)) == len(tested)
    for train, test in folds:
        assert not np.intersect1d(train, test).size
        if split.kind == "groups":
            assert not np.intersect1d(GROUPS[train], GROUPS[test]).size
        if split.kind == "latest":
            assert DAYS[train].max() < DAYS[test].min()
    if split.kind == "latest":  # the windows are its rows, each fitted to all before it
        np.testing.assert_array_equal(np.sort(tested), np.sort(parts["test"].x[:, 0]))
        assert sorted(folds[0][0]) == [*range(96)]
    else:
        np.testing.assert_array_equal(folds[0][0], parts["train"].x[:, 0])
        np.testing.assert_array_equal(folds[0][1], parts["test"].x[:, 0])
        assert len(tested) == 100 or split.kind == "groups"


def test_what_cannot_be_parted_is_refused() -> None:
    x, y, weight = np.arange(20.0)[:, None], np.arange(20) % 2, np.ones(20, np.float32)
    with pytest.raises(DataError, match=r"the file holds too few groups or queries for 5 folds, expected --folds 3 at most"):
        fold_rows(TabularRows(x, y, weight, Split("groups", np.arange(20) % 3)), True, 0.2, 5, "the file")
    with pytest.raises(DataError, match=r"the file holds too few times of rows for 5 folds, expected more of them"):
        fold_rows(TabularRows(x, y, weight, Split("latest", np.zeros(20))), True, 0.2, 5, "the file")
    third = fold_rows(TabularRows(x, y, weight), True, 0.2, 5, "the file")[2][1]
    light = np.where(np.isin(np.arange(20), third), 0, weight)
    with pytest.raises(DataError, match="the weights of all 4 rows to test in a fold are 0"):
        fold_rows(TabularRows(x, y, light), True, 0.2, 5, "the file")
    with pytest.raises(DataError, match="the 15 rows to fit in a fold hold one class, expected two"):
        fold_rows(TabularRows(x, np.arange(20) // 15, weight, Split("latest", np.arange(20))), True, 0.5, 2, "the file")

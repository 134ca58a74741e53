"""Columns that say something about rows: when each was, to which group it belongs, how much it counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lutetia.errors import DataError, did_you_mean
from lutetia.training.columns import is_missing, numbered, row_name, text_of
from lutetia.training.date_columns import DatesFound, dated
from lutetia.training.formats import Array
from lutetia.training.splits import RANDOM, Split
from lutetia.training.units import find_unit, without_unit

GROUPS = "its rows are held out together, as data.split_by says"
WEIGHS = "it says how much rows count, as data.weight says"
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class RowColumns:
    """The columns that say by what rows are parted, and how much each counts; `split` is one of `SPLITS`."""

    split: str = "random"
    by: str | None = None
    weight: str | None = None

    @property
    def names(self) -> dict[str, str]:
        """The settings that name columns, and the columns."""
        given = {"data.split_by": self.by, "data.weight": self.weight}
        return {setting: name for setting, name in given.items() if name is not None}

    @property
    def no_inputs(self) -> dict[str, str]:
        """The columns that nothing is learned from, and why: a group that is held out is never among those that are fitted."""
        groups = {self.by: GROUPS} if self.by is not None and self.split == "groups" else {}
        return groups if self.weight is None else groups | {self.weight: WEIGHS}

    def check(self, columns: Mapping[str, Sequence[Any]], target: str | None, path: object) -> None:
        """Refuse columns that the file does not have, or that cannot be meant."""
        if self.split == "random" and self.by is not None:
            raise DataError(f'data.split_by is {self.by!r} and data.split is "random", expected "latest" or "groups"')
        if self.split == "groups" and self.by is None:
            raise DataError('data.split is "groups", expected data.split_by to name the column of the groups')
        for setting, name in self.names.items():
            if name not in columns:
                raise DataError(f"{setting} is {name!r}, which is not a column of {path}: {did_you_mean(name, columns)}")
            if name == target:
                raise DataError(f"{setting} is {name!r}, the column to predict, expected another one")


NONE = RowColumns()


@dataclass(frozen=True)
class RowReader:
    """Reads such columns of a file: `columns` with None for what is missing, the dates among them, and where rows come from."""

    columns: Mapping[str, Sequence[Any]]
    dates: DatesFound
    path: object
    lines: Sequence[int] | None

    def split(self, wanted: RowColumns, n_rows: int) -> Split:
        """How rows are parted."""
        if wanted.split == "random":
            return RANDOM
        if wanted.by is None:
            return Split(wanted.split, np.arange(n_rows))
        values = self.columns[wanted.by]
        if wanted.split == "groups":
            self._refuse(wanted.by, np.array([is_missing(value) for value in values], bool))
            return Split(wanted.split, np.unique([text_of(value) for value in values], return_inverse=True)[1])
        if wanted.by in self.dates.unused:
            raise DataError(f"data.split_by is {wanted.by!r}: {self.dates.unused[wanted.by]}")
        order = self.dates.orders.get(wanted.by)
        key = (
            self._numbers(wanted.by, "a number or a date")
            if order is None
            else dated(values, order, self._where(wanted.by), self.lines)
        )
        self._refuse(wanted.by, np.isnan(key))
        return Split(wanted.split, key)

    def weight(self, column: str) -> Array:
        """How much rows count, float32 [n], 1 on average: only their ratios matter."""
        weight = self._numbers(column)
        self._refuse(column, np.isnan(weight))
        wrong = np.flatnonzero((weight < 0) | (weight > LARGEST))
        if len(wrong):
            row, value = row_name(int(wrong[0]), self.lines), weight[wrong[0]]
            raise DataError(f"{self._where(column)}, {row}: {value:.6g}, expected a weight of at least 0")
        if not weight.sum() > 0:
            raise DataError(f"{self._where(column)} is 0 in every row, expected a weight above 0 in some")
        return (weight / weight.mean()).astype(np.float32)

    def _where(self, column: str) -> str:
        return f"{self.path}, column {column!r}"

    def _numbers(self, column: str, expected: str = "a number") -> Array:
        values = self.columns[column]
        return numbered(without_unit(values, find_unit(values)), None, self._where(column), self.lines, expected=expected)

    def _refuse(self, column: str, empty: Array) -> None:
        """Refuse a column without a value in some row."""
        if empty.any():
            row, hint = row_name(int(empty.argmax()), self.lines), "remove such rows, or skip them: --set data.skip_unusable=true"
            raise DataError(f"{self._where(column)} has no value in {row}, expected one in each row; {hint}")


def read_weights(values: Sequence[Any], column: str, path: object) -> Array:
    """How much the rows of a file count, by a column of it: float32 [n], 1 on average."""
    return RowReader({column: values}, DatesFound({}, {}), path, None).weight(column)

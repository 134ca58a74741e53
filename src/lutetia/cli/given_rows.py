"""Rows with answers in a file that is not the data of a run: as inputs of a model of columns, and what it is to predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lutetia._shared.numbers import whole_number
from lutetia.cli.inputs import column_titles, columns_by_name, feature_columns, image_settings, named_rows, tabular_rows
from lutetia.errors import DataError
from lutetia.models import Tabular, finds_unusual
from lutetia.training import (
    UNNAMED_COLUMN,
    class_numbers,
    colours_first,
    find_target,
    is_table,
    label_column,
    labels_of,
    read_cells,
    read_table_file,
    unusual_numbers,
    without_unit,
)

Array = np.ndarray[Any, Any]


class GivenRows(NamedTuple):
    """Rows [n, *input_shape] and targets [n], the columns of the file by name, and the images that were skipped."""

    x: Array
    y: Array
    columns: Mapping[str, Sequence[Any]]
    skipped: Sequence[str]


def given_rows(model: Tabular, path: Path, label: str | None, skip: bool | None = None) -> GivenRows:
    """The rows of a file; `label` names the column of answers, by default the one that the model predicts, or the last."""
    if is_table(path) and ".csv" not in path.suffixes:
        return _table_rows(model, path, label, skip)
    known = name_or_number(label)
    if known is None and finds_unusual(model.metadata):
        cells = read_cells(path)
        return _without_answers(model, tabular_rows(model, cells, feature_columns(model, cells)), columns_by_name(cells))
    cells, target = read_cells(path, known), model.metadata.get("target")
    if known is None and cells.header is not None:
        known = _own_target(target, cells.header, cells.path)
    column = label_column(cells, known)
    features = [each for each in feature_columns(model, cells) if each != column]
    if len(features) < (needed := len(column_titles(model)) or model.n_columns):
        raise DataError(f"{cells.path} has {cells.width} columns, expected the {needed} that the model reads and one of answers")
    x = tabular_rows(model, cells, features).reshape(-1, *model.config.input_shape)
    where = f"{cells.path}, {cells.column_name(column)}"
    return GivenRows(x, _targets(model, labels_of(cells, column), where, cells.lines), columns_by_name(cells), ())


def _table_rows(model: Tabular, path: Path, label: str | None, skip: bool | None) -> GivenRows:
    """The rows of a folder of images by class, of arrays, or of columns with names."""
    file, shape = read_table_file(path, image_settings(model), skip), tuple(model.config.input_shape)
    if file.x is not None:
        x = colours_first(file.x, shape)
        if x.shape[1:] != shape:
            sizes = (" × ".join(map(str, each)) for each in (x.shape[1:], shape))
            raise DataError("{} holds samples of {}, expected {} for this model".format(path, *sizes))
        return GivenRows(x, _targets(model, file.target or [], str(path)), {}, file.skipped)
    if label is None and finds_unusual(model.metadata):
        return _without_answers(model, named_rows(model, file), file.columns)
    if label is None:
        label = _own_target(model.metadata.get("target"), list(file.columns), path)
    target = find_target(file, label)
    own = _targets(model, file.columns[target], f"{path}, column {target!r}")
    return GivenRows(named_rows(model, file), own, file.columns, ())


def _without_answers(model: Tabular, x: Array, columns: Mapping[str, Sequence[Any]]) -> GivenRows:
    """Rows of which nothing says that they are unusual."""
    return GivenRows(x.reshape(-1, *model.config.input_shape), np.zeros(len(x), np.int64), columns, ())


def _own_target(target: str | None, names: Sequence[str], path: Path) -> str | None:
    """The column of answers by the name that it had in training; None where it had none."""
    if target is None or target.startswith(UNNAMED_COLUMN):
        return None
    if target not in names:
        raise DataError(f"{path} has no column {target!r}, which the model predicts: --target names the column of answers")
    return target


def _targets(model: Tabular, values: Sequence[Any], where: str, lines: Sequence[int] | None = None) -> Array:
    """The numbers of classes, or the numbers to predict, float64 [n]."""
    if finds_unusual(model.metadata):
        return unusual_numbers(values, where, lines)
    return class_numbers(without_unit(values, model.metadata.get("target_unit")), model.metadata.get("classes"), where, lines)


def name_or_number(label: str | int | None) -> str | int | None:
    number = whole_number(label) if isinstance(label, str) else None
    return label if number is None else number

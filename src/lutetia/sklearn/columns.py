"""Tables of data as numbers: pandas and polars frames, arrays and lists, with categories as their numbers, dates as seconds and
NaN for missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import Any

import numpy as np

from lutetia.errors import DataError
from lutetia.training import DateColumn, date_numbers, have_times, looks_like_text

Array = np.ndarray[Any, Any]
Categories = dict[int, list[Any]]  # by column, the values that its numbers stand for


def is_frame(x: Any) -> bool:
    """Whether this is a table with named columns, of pandas or polars."""
    return hasattr(x, "columns") and hasattr(x, "dtypes") and hasattr(x, "shape") and hasattr(x, "__getitem__")


def check_names(x: Any) -> None:
    """Refuse a frame with two columns of one name: neither fit nor an explanation could tell them apart."""
    twice = next((name for name, count in Counter(x.columns).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"X has two columns named {twice!r}, expected every name once: rename one, or leave it out")


def column_of(x: Any, number: int) -> Array:
    """One column of a frame or an array of objects, as an array: categories as their values, None or NaN where missing."""
    if is_frame(x):
        column = x.iloc[:, number] if hasattr(x, "iloc") else x[:, number]
        values = np.asarray(column.to_numpy())
        return values.astype(object) if str(column.dtype).lower().startswith(("categ", "enum")) else values
    return np.asarray(x, dtype=object)[:, number]


def find_categories(x: Any, wanted: Any, names: Sequence[str] | None, n_columns: int) -> Categories:
    """The columns of categories and the values of each.

    `wanted` is "from_dtype" (the categories of pandas and polars), None, or a list of names, numbers or booleans.
    """
    declared = {number: values for number in range(n_columns) if (values := _declared(x, number)) is not None}
    if wanted is None:
        return {}
    if isinstance(wanted, str):  # "from_dtype", as is checked before
        return declared
    return {number: declared.get(number) or _seen(x, number) for number in _numbers(wanted, names, n_columns)}


def find_dates(x: Any, categories: Collection[int]) -> dict[int, DateColumn]:
    """The columns of dates in a frame: by their type, or as objects that all are dates of Python."""
    found = {}
    for number in range(x.shape[1]):
        if number not in categories and _holds_dates(x, number):
            seconds = _dated(column_of(x, number), "year first", str(number))
            found[number] = DateColumn("year first", have_times(seconds))
    return found


def find_texts(x: Any, wanted: Any, names: Sequence[str] | None, others: Collection[int]) -> list[int]:
    """The columns of text: those `wanted`, or with "auto" those of a frame that hold strings and look like text; not `others`,
    which hold categories or dates."""
    if wanted is None:
        return []
    if not isinstance(wanted, str):
        listed = sorted(set(_numbers(wanted, names, x.shape[1], "text_features")))
        twice = [number for number in listed if number in others]
        if twice:
            raise ValueError(f"text_features has column {twice[0]}, which holds categories or dates, expected it in one list")
        return listed
    if not is_frame(x):
        return []
    return [number for number in range(x.shape[1]) if number not in others and _looks_like_text(column_of(x, number))]


def _looks_like_text(values: Array) -> bool:
    known = [value for value in values if not is_missing(value)] if values.dtype.kind in "OUT" else []
    return all(isinstance(value, str) for value in known) and looks_like_text(known)


def texts_of(x: Any, number: int) -> list[str | None]:
    """The texts of a column, None for those that are missing."""
    values = column_of(x, number)
    if values.dtype.kind not in "OUT" and not _is_empty(values):
        raise ValueError(f"column {number} holds {values.dtype}, expected texts as in the training data")
    return [None if is_missing(value) else str(value) for value in values]


def _is_empty(values: Array) -> bool:
    """Whether a column holds no value: a frame then has numbers in it, whatever it would hold."""
    return all(map(is_missing, values))


def _holds_dates(x: Any, number: int) -> bool:
    kind = str((x.iloc[:, number] if hasattr(x, "iloc") else x[:, number]).dtype).lower()
    if kind != "object":
        return kind.startswith(("datetime", "date", "timestamp"))
    known = [value for value in column_of(x, number) if not is_missing(value)]
    return bool(known) and all(isinstance(value, date) for value in known)


def _dated(values: Array, order: str, name: str) -> Array:
    """Dates as seconds: of numpy's type, objects, or texts in the order that a run of `lutetia train` found."""
    if values.dtype.kind == "M":
        ticks = values.astype("datetime64[us]").astype(np.int64)
        return np.where(np.isnat(values), np.nan, ticks // 1_000_000 + ticks % 1_000_000 / 1_000_000)
    if values.dtype.kind not in "OUST" and not _is_empty(values):
        raise ValueError(f"column {name!r} holds {values.dtype}, expected dates as in the training data")
    try:
        return date_numbers([None if is_missing(value) else value for value in values], order, f"X, column {name!r}")
    except DataError as error:
        raise ValueError(str(error)) from error


def to_matrix(
    x: Any,
    categories: Mapping[int, Sequence[Any]],
    names: Sequence[str],
    unknown: str = "error",
    dates: Mapping[int, DateColumn] = MappingProxyType({}),
    texts: Collection[int] = (),
) -> Array:
    """A frame or an array of objects as float64 [n, columns], without its texts; a category that fit did not see is an error, or
    "missing"."""
    parts = []
    for number in range(x.shape[1]):
        if number in texts:
            continue
        values = column_of(x, number)
        if number in dates:
            parts.append(_dated(values, dates[number].order, names[number]))
        elif number in categories:
            parts.append(_numbered(values, categories[number], names[number], unknown))
        else:
            parts.append(_floats(values, names[number], _hint(x, number)))
    return np.stack(parts, 1) if parts else np.empty((len(x), 0))


def _declared(x: Any, number: int) -> list[Any] | None:
    """The categories that the type of a frame's column names."""
    if not is_frame(x):
        return None
    column = x.iloc[:, number] if hasattr(x, "iloc") else x[:, number]
    if not str(column.dtype).lower().startswith(("categ", "enum")):
        return None
    if not str(column.dtype).startswith("Categorical"):  # pandas' categories and polars' Enum are a fixed list
        return list(column.dtype.categories)
    return _seen(x, number)


def _seen(x: Any, number: int) -> list[Any]:
    """The values of a column in order; a column of several types is in the order of their texts."""
    values = {_plain(each) for each in column_of(x, number) if not is_missing(each)}
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=str)


def _numbers(wanted: Any, names: Sequence[str] | None, n_columns: int, of: str = "categorical_features") -> list[int]:
    """The numbers of columns that a parameter lists: by name, number, or a boolean for each."""
    marks = np.asarray(wanted)
    if marks.dtype == bool:
        if marks.shape != (n_columns,):
            raise ValueError(f"{of} has {marks.size} booleans, expected {n_columns}, one for each column")
        return np.flatnonzero(marks).tolist()
    numbers = []
    for each in marks.ravel().tolist():
        if isinstance(each, str):
            if names is None or each not in list(names):
                raise ValueError(f"{of} has {each!r}, which is not a column of the training data")
            numbers.append(list(names).index(each))
        elif isinstance(each, int) and -n_columns <= each < n_columns:
            numbers.append(each % n_columns)
        else:
            raise ValueError(f"{of} has {each!r}, expected names or numbers of the {n_columns} columns")
    return numbers


def _numbered(values: Array, known: Sequence[Any], name: str, unknown: str) -> Array:
    order = {_plain(value): number for number, value in enumerate(known)}
    plain = [None if is_missing(value) else _plain(value) for value in values]
    strange = sorted({str(value) for value in plain if value is not None and value not in order})
    if strange and unknown == "error":
        raise ValueError(f"Found unknown categories {strange} in column {name!r} during transform")
    return np.array([np.nan if value is None else order.get(value, np.nan) for value in plain], np.float64)


def _hint(x: Any, number: int) -> str:
    """What to do with a column that is no numbers, by the type that a frame gives it."""
    kind = str((x.iloc[:, number] if hasattr(x, "iloc") else x[:, number]).dtype).lower() if is_frame(x) else ""
    if kind.startswith(("categ", "enum")):
        return "it is a category that categorical_features does not list"
    if kind.startswith(("timedelta", "duration")):
        return "make it numbers, such as its .dt.total_seconds()"
    if kind.startswith("period"):
        return "make it dates, its .dt.to_timestamp()"
    return "list it in categorical_features or text_features, or make it a category"


def _floats(values: Array, name: str, hint: str) -> Array:
    if values.dtype.kind in "OUST":
        values = np.array([np.nan if is_missing(value) else value for value in values], dtype=object)
    if values.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: column {name!r}")
    if values.dtype.kind == "m":
        raise ValueError(f"column {name!r} holds {values.dtype}, expected numbers: {hint}")
    if values.dtype.kind == "M":
        raise ValueError(f"column {name!r} holds {values.dtype}, expected numbers as in the training data: convert it first")
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} (column {name!r}: {hint})") from error


def is_missing(value: Any) -> bool:
    """Whether a value is missing: None, NaN, pandas' NA or NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _plain(value: Any) -> Any:
    """A value as Python has it: numpy's are not equal to what a file gives back; 1.0 and 1 are."""
    return value.item() if isinstance(value, np.generic) else value

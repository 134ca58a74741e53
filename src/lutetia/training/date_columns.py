"""Columns of dates in a table of data: which they are, how their dates are written, and their numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lutetia.errors import DataError
from lutetia.models import DAY_SECONDS, date_text, varying_parts
from lutetia.training.columns import is_missing, plain_numbers, row_name, shown_text, text_of
from lutetia.training.dates import date_seconds, find_order, looks_like_date
from lutetia.training.formats import Array

NOT_A_TIME = "nat"  # as numpy and pandas write a date that is missing
MOSTLY = 0.9  # of the different values of a column: so many dates make it a column of dates, and the others mistakes
GLANCED = 20  # values that tell most other columns from dates
EXAMPLES = {
    "year first": "a date such as 2024-02-29",
    "day first": "a date with the day first, such as 29/02/2024",
    "month first": "a date with the month first, such as 02/29/2024",
}


@dataclass(frozen=True)
class DateColumn:
    """How the dates of a column are written: their order, one of `ORDERS`, and whether times of day come with them."""

    order: str
    times: bool


@dataclass(frozen=True)
class DatesFound:
    """The columns of dates by name: the orders in which they are written; or why a column is not used."""

    orders: dict[str, str]
    unused: dict[str, str]


def find_dates(
    columns: Mapping[str, Sequence[Any]], listed: Collection[str] | None, day_first: bool | None, lines: Sequence[int] | None
) -> DatesFound:
    """The columns of dates: those `listed`, or with None those that look like it. `day_first` is for dates that do not say so
    themselves; without it they are written as the others in the file."""
    asked = listed or ()
    texts = {name: own for name, values in columns.items() if (own := _texts(values, name in asked))}
    orders = {name: _order(own, day_first) for name, own in texts.items()}
    decided = set(orders.values()) & {"day first", "month first"}
    found = DatesFound({}, {})
    for name, order in orders.items():
        if order == "" and len(decided) == 1:
            (order,) = decided
        why = _obstacle(columns[name], order, lines)
        if name in asked and order == "":
            raise DataError(f"data.dates has {name!r}: {why}")
        if name not in asked and listed is not None:
            why = why or "dates that data.dates does not list"
        if why and name not in asked:
            found.unused[name] = why
        else:
            found.orders[name] = order or "day first"  # where they contradict, the error of `dated` names a row
    return found


def _texts(values: Sequence[Any], asked: bool) -> list[str]:
    """The different texts of a column of dates; none for another column, unless it is asked for."""
    if not asked and plain_numbers(values) is not None:
        return []
    texts = list(dict.fromkeys(text_of(value) for value in values if not _is_missing(value)))
    if asked:
        return texts
    glanced = texts[:: max(1, len(texts) // GLANCED)]
    if 2 * sum(map(looks_like_date, glanced)) < len(glanced):
        return []
    return texts if sum(map(looks_like_date, texts)) >= MOSTLY * len(texts) else []


def _order(texts: Sequence[str], day_first: bool | None) -> str | None:
    order = find_order(texts)
    return order if order != "" or day_first is None else "day first" if day_first else "month first"


def _obstacle(values: Sequence[Any], order: str | None, lines: Sequence[int] | None) -> str:
    """Why a column that looks like dates cannot be read; empty where it can."""
    if order is None:
        return "some of its dates have the day first, others the month"
    for row, value in enumerate(values):
        if _is_missing(value):
            continue
        text = text_of(value)
        if order == "":
            return f"dates such as {shown_text(text)} may have the day or the month first: data.day_first is true or false"
        if date_seconds(text, order) is None:
            return f"{shown_text(text)} in {row_name(row, lines)} is not {EXAMPLES[order]}: data.missing may name it"
    return ""


def dated(values: Sequence[Any], order: str, where: str, lines: Sequence[int] | None = None) -> Array:
    """A column of dates as seconds, float64 [n], NaN for missing; an error names the row of what is not a date."""
    seconds = np.full(len(values), np.nan)
    known: dict[str, float | None] = {}
    for row, value in enumerate(values):
        if _is_missing(value):
            continue
        text = text_of(value)
        if text not in known:
            known[text] = date_seconds(text, order)
        date = known[text]
        if date is None:
            raise DataError(f"{where}, {row_name(row, lines)}: {shown_text(text)}, expected {EXAMPLES[order]}")
        seconds[row] = date
    return seconds


def constant_dates(seconds: Array) -> str:
    """Why a column of dates is not used; empty where it is."""
    known = seconds[np.isfinite(seconds)]
    if not len(known):
        return "all its values are missing"
    is_constant = len(known) == len(seconds) and (known == known[0]).all()
    return f"all its values are {date_text(known[0], have_times(known))}" if is_constant else ""


def dates_text(seconds: Array, column: DateColumn) -> str:
    """What a column of dates was read as: "dates, day first, 2021-01-04 to 2024-02-29, with year, month, weekday"."""
    known = seconds[np.isfinite(seconds)]
    ends = " to ".join(date_text(end, column.times) for end in (known.min(), known.max()))
    order = "" if column.order == "year first" else f", {column.order}"
    parts = ", ".join(varying_parts(known))
    return f"{'dates with times' if column.times else 'dates'}{order}, {ends}" + (f", with {parts}" if parts else "")


def have_times(seconds: Array) -> bool:
    """Whether some dates, seconds float64 [n], have a time of day."""
    return bool((seconds[np.isfinite(seconds)] % DAY_SECONDS).any())


def _is_missing(value: object) -> bool:
    return is_missing(value) or str(value).lower() == NOT_A_TIME

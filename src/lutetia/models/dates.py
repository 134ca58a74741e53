"""Dates as numbers: seconds since the beginning of 1970, the parts of them that tables compare as well, and how both are shown.

What varies with the season, the day of the week or the hour is a few thresholds of such a part, and many of the date itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
PARTS = ("year", "month", "day", "weekday", "hour")  # of a date; weekdays are 1, Monday, to 7
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ORDERS = ("year first", "day first", "month first")  # how the dates of a column are written
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR, DAY = 3600, 86400  # seconds
EARLIEST = int((datetime(1, 1, 1, tzinfo=UTC) - EPOCH).total_seconds())
LATEST = int((datetime(9999, 12, 31, tzinfo=UTC) - EPOCH).total_seconds()) + DAY - 1


def part_of(seconds: Array, part: str) -> Array:
    """A part of dates, seconds float64 [n], as float64 [n]; NaN where a date is missing."""
    known = np.isfinite(seconds)
    whole = np.floor(np.clip(np.where(known, seconds, 0), EARLIEST, LATEST)).astype(np.int64)
    days = whole // DAY
    if part == "hour":
        found = whole // HOUR % 24
    elif part == "weekday":
        found = (days + 3) % 7 + 1  # 1970 began on a Thursday
    else:
        date = days.astype("datetime64[D]")
        month = date.astype("datetime64[M]")
        months = month.astype(np.int64)
        found = {"year": months // 12 + 1970, "month": months % 12 + 1, "day": (date - month).astype(np.int64) + 1}[part]
    return np.where(known, found, np.nan)


def varying_parts(seconds: Array) -> list[str]:
    """The parts in which some dates, seconds float64 [n], differ."""
    known = seconds[np.isfinite(seconds)]
    return [part for part in PARTS if len(np.unique(part_of(known, part))) > 1]


def date_text(seconds: float, times: bool) -> str:
    """A date as people read it, with its time of day where `times` says so: 2024-02-29 16:30."""
    if math.isnan(seconds):
        return "missing"
    moment = EPOCH + timedelta(seconds=math.floor(min(max(seconds, EARLIEST), LATEST)))
    if not times:
        return f"{moment.year:04}-{moment:%m-%d}"
    return f"{moment.year:04}-{moment:%m-%d} {moment:%H:%M:%S}".removesuffix(":00")


def part_text(value: float, part: str) -> str:
    """The largest value of a part that is not above a threshold."""
    number = math.floor(value)
    return WEEKDAYS[number - 1] if part == "weekday" and 1 <= number <= 7 else str(number)


def has_times(metadata: Mapping[str, Any], column: int) -> bool:
    """Whether the dates of a column have times of day."""
    return bool(metadata.get("dates", {}).get(str(column), {}).get("times", True))

"""Dates as people write them, as numbers: seconds since the beginning of 1970.

A year of four digits may come first (2024-02-29, 2024/2/29, 20240229T163000), a month may be a word (29 Feb 2024, Feb 29, 2024).
In 29/02/2024 and 02/29/2024 the day or the month comes first: that is the order of a whole column. A time of day may follow, and
a zone: such times become those of UTC, others stay as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from lutetia.models import DATE_EPOCH

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
ENDS = "uary|ruary|ch|il|e|y|ust|t|tember|ober|ember"  # of their long names
NAME = rf"(?P<name>{'|'.join(MONTHS)})(?:{ENDS})?\.?"
TIME = (
    r"(?:(?:T|,?\s+)(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?"
    r"\s*(?P<half>[ap]m|[ap]\.m\.)?\s*(?P<zone>Z|UTC|GMT|[-+]\d{2}(?::?\d{2})?)?)?"
)
DAY_NAME = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\s+)?"
PACKED, MONTHLY = r"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)", r"(?P<year>\d{4})[-/](?P<month>\d{1,2})"
READ = re.IGNORECASE | re.ASCII
CLEAR = [
    re.compile(form, READ)
    for form in (
        r"(?P<year>\d{4})(?P<mark>[-/.])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})" + TIME,
        PACKED + r"T(?P<hour>\d\d)(?P<minute>\d\d)(?P<second>\d\d)?(?P<zone>Z)?",
        DAY_NAME + rf"(?P<day>\d{{1,2}})[-\s]+{NAME}[-,\s]+(?P<year>\d{{4}})" + TIME,
        DAY_NAME + rf"{NAME}\s+(?P<day>\d{{1,2}}),?\s+(?P<year>\d{{4}})" + TIME,
    )
]
NUMBERS = r"(?P<former>\d{1,2})(?P<mark>[-/.])(?P<latter>\d{1,2})(?P=mark)(?P<year>\d{4}|(?<=/)\d\d)"
EITHER = re.compile(NUMBERS + TIME, READ)  # which is the day depends on the column
# Only where someone says that a column holds dates: they may also be numbers, or seasons such as 2009-10.
ASKED = [re.compile(form, READ) for form in (PACKED, MONTHLY)]
CENTURY = 50  # years of two digits are 1950 to 2049


def looks_like_date(text: str) -> bool:
    """Whether a text has the form of a date; the date itself may not exist."""
    return any(form.fullmatch(text) for form in (*CLEAR, EITHER))


def find_order(texts: Iterable[str]) -> str | None:
    """The order in which the dates of a column are written; "" where no date says which, None where they contradict.

    A number above 12 is a day. With points between the numbers the day comes first: nobody writes 02.29.2024.
    """
    orders, open_ones = set(), False
    for text in texts:
        match = EITHER.fullmatch(text)
        if match is None:
            continue
        former, latter = int(match["former"]), int(match["latter"])
        if match["mark"] == "." or former > 12 >= latter:
            orders.add("day first")
        elif latter > 12 >= former:
            orders.add("month first")
        else:
            open_ones = True
    if len(orders) > 1:
        return None
    return orders.pop() if orders else "" if open_ones else "year first"


def date_seconds(text: str, order: str) -> float | None:
    """A date in the order of its column, one of `ORDERS`; None for other texts and days that do not exist."""
    for form in (*CLEAR, *(() if order == "year first" else (EITHER,)), *ASKED):
        match = form.fullmatch(text)
        if match is not None:
            try:
                return _seconds(match.groupdict(), order)
            except (ValueError, OverflowError):  # the 30th of February; a time zone that leads out of the calendar
                return None
    return None


def _seconds(parts: dict[str, str | None], order: str) -> float:
    def number(name: str, default: int = 0) -> int:
        return int(parts.get(name) or default)

    year, month, day = number("year"), number("month"), number("day", 1)
    if parts.get("former"):
        month, day = (number("latter"), number("former"))[:: 1 if order == "day first" else -1]
        year += 0 if len(parts["year"] or "") > 2 else 1900 if year >= CENTURY else 2000
    if name := parts.get("name"):
        month = MONTHS.index(name[:3].lower()) + 1
    hour, half = number("hour"), (parts.get("half") or "").lower()
    if half:
        if not 1 <= hour <= 12:
            raise ValueError(f"{hour} {half} is no hour")
        hour = hour % 12 + (12 if half[0] == "p" else 0)
    moment = datetime(year, month, day, hour, number("minute"), number("second"), tzinfo=UTC) - _offset(parts.get("zone") or "")
    whole = (moment - DATE_EPOCH) // timedelta(seconds=1)
    return whole + int((parts.get("fraction") or "0").ljust(6, "0")[:6]) / 1_000_000


def _offset(zone: str) -> timedelta:
    """How far a zone is ahead of UTC."""
    if zone[:1] not in ("+", "-"):
        return timedelta()
    digits = zone[1:].replace(":", "").ljust(4, "0")
    if int(digits[:2]) > 23 or int(digits[2:]) > 59:
        raise ValueError(f"{zone} is no time zone")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return ahead if zone[0] == "+" else -ahead

"""Numbers with a unit, such as 12.5 mm: a column whose cells all have the same one holds numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lutetia.training.columns import Column, is_missing, number_of, text_of

LONGEST_UNIT = 12  # characters
MEASURED = re.compile(
    rf"(?P<number>[-+]?[\d.,]*\d(?:[eE][-+]?\d+)?)\s?(?P<unit>[^\s\d.,;:+\-*/_][^\s,;:]{{0,{LONGEST_UNIT - 1}}})"
)


def find_unit(values: Sequence[Any]) -> str | None:
    """The unit that follows the number in every cell that holds a value; None where one has another, or none, or a percent
    sign, which is read with the number."""
    unit = None
    for value in values:
        if is_missing(value):
            continue
        text = text_of(value)
        match = MEASURED.fullmatch(text)
        if (
            match is None
            or unit not in (None, match["unit"])
            or number_of(match["number"]) is None
            or number_of(text) is not None
        ):
            return None
        unit = match["unit"]
    return unit


def without_unit(values: Sequence[Any], unit: str | None) -> Sequence[Any]:
    """The values of a column without this unit; cells with another unit, or none, stay as they are."""
    return values if unit is None else Column([_bare(value, unit) for value in values])


def _bare(value: Any, unit: str) -> Any:
    if not isinstance(value, str | bytes):
        return value
    text = text_of(value)
    match = MEASURED.fullmatch(text)
    return match["number"] if match is not None and match["unit"] == unit else text

"""Values of a JSON document that nobody has checked: each is taken with its place, and refused if it is of another kind."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np

from lutetia.errors import DataError, describe

Array = np.ndarray[Any, Any]


def at(document: Any, *path: str | int) -> Any:
    """A value by the names on the way to it."""
    place = ""
    key: Any
    for key in path:
        place += f".{key}" if place else str(key)
        try:
            if not isinstance(document, dict if isinstance(key, str) else list):
                raise KeyError(key)
            document = document[key]
        except (KeyError, IndexError):
            raise DataError(f"the model has no {place}, expected one") from None
    return document


def mapping(document: Any, *path: str | int) -> dict[str, Any]:
    return _of(document, dict, "named values", *path)


def items(document: Any, *path: str | int) -> list[Any]:
    """A list; an array of numbers as a list."""
    found = at(document, *path)
    return found.tolist() if isinstance(found, np.ndarray) else _of(document, list, "a list", *path)


def text(document: Any, *path: str | int) -> str:
    return _of(document, str, "a string", *path)


def whole(document: Any, *path: str | int) -> int:
    """A whole number, or one written as a string."""
    found = at(document, *path)
    if isinstance(found, str):
        with suppress(ValueError):
            found = int(found)
    if isinstance(found, bool) or not isinstance(found, int):
        raise _wrong(found, "a whole number", path)
    return found


def number(document: Any, *path: str | int) -> float:
    """A finite number."""
    found = at(document, *path)
    if isinstance(found, bool) or not isinstance(found, int | float) or not _is_finite(found):
        raise _wrong(found, "a finite number", path)
    return float(found)


def wholes(document: Any, count: int | None, *path: str | int) -> list[int]:
    """Whole numbers, so many of them."""
    found = items(document, *path)
    if not all(isinstance(each, int) and abs(each) < 2**53 for each in found):
        raise _wrong(found, "whole numbers", path)
    _check_count(found, count, path)
    return [int(each) for each in found]


def floats(document: Any, count: int | None, *path: str | int) -> list[float]:
    """Finite numbers, so many of them."""
    found = items(document, *path)
    if not all(isinstance(each, int | float) and not isinstance(each, bool) and _is_finite(each) for each in found):
        raise _wrong(found, "finite numbers", path)
    _check_count(found, count, path)
    return [float(each) for each in found]


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _of(document: Any, kind: type, expected: str, *path: str | int) -> Any:
    found = at(document, *path)
    if not isinstance(found, kind):
        raise _wrong(found, expected, path)
    return found


def _check_count(found: list[Any], count: int | None, path: tuple[str | int, ...]) -> None:
    if count is not None and len(found) != count:
        raise DataError(f"the model has {len(found):,} numbers in {_place(path)}, expected {count:,}")


def _wrong(found: Any, expected: str, path: tuple[str | int, ...]) -> DataError:
    return DataError(f"{_place(path)} of the model is {describe(found)}, expected {expected}")


def _place(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path)) or "the document"

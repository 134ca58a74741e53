"""What the configs of models share: plain values in and out, and errors that name the field."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Self

from lutetia.errors import MAX_INT32, ArgumentError, check_int, did_you_mean, fail


class ModelConfig:
    """A frozen dataclass of plain values, as a config file holds them."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, tuples as lists; None is left out, as TOML has no null."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: plain(value) for name, value in found.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The config of such a dict; fields that are left out have their defaults, and a name that is no field is refused."""
        if not isinstance(values, Mapping):
            fail(f"a {cls.__name__}", values, "a table of fields")
        known = fields(cls)  # type: ignore[arg-type]
        check_names(cls.__name__, values, [field.name for field in known])
        needed = [field.name for field in known if field.default is MISSING and field.name not in values]
        if needed:
            raise ArgumentError(f"a {cls.__name__} was given no {', '.join(needed)}, which it needs")
        return cls(**values)


def plain(value: object) -> Any:
    """A field as TOML can hold it."""
    if isinstance(value, ModelConfig):
        return value.to_dict()
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def check_names(what: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Check that no unknown field is given, and name the one that was likely meant."""
    for name in given:
        if name not in known:
            raise ArgumentError(f"a {what} has no field {name!r}: {did_you_mean(name, known)}")


def check_bool(name: str, value: object) -> None:
    """Check a switch."""
    if not isinstance(value, bool):
        fail(name, value, "True or False")


def check_number(name: str, value: Any, low: float, high: float = math.inf, low_fits: bool = True) -> None:
    """Check a number in [low, high], or in (low, high]."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if not number or not low <= value <= high or (value == low and not low_fits):
        bound = f"{'of at least' if low_fits else 'above'} {low:g}" + ("" if math.isinf(high) else f" and at most {high:g}")
        fail(name, value, f"a number {bound}")


def whole_numbers(name: str, value: object, low: int, high: int = MAX_INT32) -> tuple[int, ...]:
    """Numbers from low to high that were given as a list or a tuple, as a tuple."""
    if not isinstance(value, tuple | list):
        fail(name, value, f"a list of whole numbers from {low} to {high}")
    for number in value:
        check_int(f"each of {name}", number, low, high)
    return tuple(value)


def sizes(name: str, value: object, counts: Sequence[int]) -> tuple[int, ...]:
    """A shape that was given as a list or a tuple of one of these lengths, as a tuple."""
    if not isinstance(value, tuple | list) or len(value) not in counts:
        fail(name, value, " or ".join(map(str, counts)) + " sizes")
    for size in value:
        check_int(f"a size of {name}", size, 1)
    return tuple(value)

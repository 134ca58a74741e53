"""Tables of a TOML file as frozen dataclasses: errors name the unknown key, wrong type or wrong range, and its place."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, TypeVar, Union

from lutetia.errors import ArgumentError, describe, did_you_mean

T = TypeVar("T")
NAMES = {int: "an integer", float: "a number", str: "a string", bool: "true or false", dict: "a table"}
NAMES |= {tuple: "a list", list: "a list"}


def option(
    default: object = dataclasses.MISSING,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Collection[Any] | None = None,
) -> Any:
    """A field of a config with the values it may have; `low` and `high` are inclusive."""
    metadata = {"low": low, "high": high, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


class Origin:
    """Where values came from, for messages: a file, or the command line for the keys it has set."""

    def __init__(self, file: str, overridden: Collection[str] = ()) -> None:
        self.file, self.overridden = file, set(overridden)

    def of(self, key: str) -> str:
        inside = any(key == each or each.startswith(f"{key}.") or key.startswith(f"{each}.") for each in self.overridden)
        return "--set" if inside else self.file

    def fail(self, key: str, value: object, expected: str) -> typing.NoReturn:
        raise ArgumentError(f"{self.of(key)}: {key} is {describe(value)}, expected {expected}")


def build(kind: type[T], table: Mapping[str, Any], origin: Origin, prefix: str = "") -> T:
    """A dataclass from a table of TOML; `prefix` is the dotted name of the table, empty for the whole file."""
    if not isinstance(table, Mapping):
        origin.fail(prefix, table, "a table")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for key in table:
        if key not in fields:
            refuse_key(key, fields, origin, prefix)
    values = {}
    for name, field in fields.items():
        key = f"{prefix}.{name}" if prefix else name
        if name in table:
            values[name] = _value(table[name], hints[name], field, key, origin)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ArgumentError(f"{origin.file}: {key} is missing, expected {_expected(hints[name], field)}")
    return kind(**values)


def refuse_key(key: str, known: Collection[str], origin: Origin, prefix: str) -> typing.NoReturn:
    """Raise the error for an unknown key, with the most similar known one."""
    full = f"{prefix}.{key}" if prefix else key
    what = f"[{prefix}] has no key {key!r}" if prefix else f"there is no table [{key}]"
    raise ArgumentError(f"{origin.of(full)}: {what}: {did_you_mean(key, known)}")


def _value(value: Any, hint: Any, field: dataclasses.Field[Any], key: str, origin: Origin) -> Any:
    kind = _plain(hint)
    if dataclasses.is_dataclass(kind):
        return build(kind, value, origin, key)  # type: ignore[arg-type]
    items = typing.get_args(kind)
    if items and typing.get_origin(kind) is tuple:
        return _items(value, items, field, key, origin)
    if typing.get_origin(kind) is not Union:
        kind = typing.get_origin(kind) or kind
    if not _is(value, kind) or not _within(value, field.metadata):
        origin.fail(key, value, _expected(hint, field))
    return float(value) if kind is float else value


def _items(value: object, items: tuple[Any, ...], field: dataclasses.Field[Any], key: str, origin: Origin) -> tuple[Any, ...]:
    expected = f"a list of {len(items)}, each {_expected(items[0], field)}"
    if not isinstance(value, list | tuple) or len(value) != len(items):
        origin.fail(key, value, expected)
    for each, kind in zip(value, items, strict=True):
        if not _is(each, kind) or not _within(each, field.metadata):
            origin.fail(key, value, expected)
    return tuple(kind(each) for each, kind in zip(value, items, strict=True))


def _plain(hint: object) -> Any:
    """The type without its `| None`: TOML has no null, so None can only be a default."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is Union:
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]  # noqa: UP007  # made at run time
    return hint


def _is(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Union:
        return any(_is(value, each) for each in typing.get_args(kind))
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max  # which long integers exceed, too
    return isinstance(value, typing.get_origin(kind) or kind)


def _within(value: object, metadata: Mapping[str, Any]) -> bool:
    low, high, choices = (metadata.get(name) for name in ("low", "high", "choices"))
    if choices is not None and value not in choices:
        return False
    return (low is None or value >= low) and (high is None or value <= high)


def _expected(hint: object, field: dataclasses.Field[Any]) -> str:
    low, high, choices = (field.metadata.get(name) for name in ("low", "high", "choices"))
    if choices is not None:
        return "one of " + ", ".join(map(repr, choices))
    kind = _plain(hint)
    kinds = typing.get_args(kind) if typing.get_origin(kind) is Union else (kind,)
    name = " or ".join(NAMES.get(typing.get_origin(each) or each, "a table") for each in kinds)
    if low is not None and high is not None:
        return f"{name} from {low} to {high}"
    if low is not None:
        return f"{name} of at least {low}"
    return f"{name} of at most {high}" if high is not None else name

"""Write TOML, which the standard library (`tomllib`) only reads, and read TOML from untrusted sources.

Tables hold strings, booleans, integers, floats, lists, and tables; `tomllib.loads(dumps(table)) == table` for all of them (a
tuple comes back as a list). Scalars and lists of a table are written before its tables, as TOML demands.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from lutetia.errors import ArgumentError, DataError, describe
from lutetia.files import read_text

LINE = 130  # a list that is longer is written with one item to a line
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# What a basic string may not hold as it is: quotes, backslashes, controls.
UNSAFE = re.compile(r'["\\\x00-\x1f\x7f]')
SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
MIN_INT, MAX_INT = -(2**63), 2**63 - 1  # what every reader of TOML must accept
LARGEST_FILE = 4 << 20  # bytes; more than any config needs
# tomllib takes time and memory that grow with the square of the parts of a dotted key.
DEEP_KEY = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){64}""")


def loads(text: str) -> dict[str, Any]:
    """The tables of a TOML document; for anything else a DataError, whose text fits after "is not TOML: "."""
    if DEEP_KEY.search(text):
        raise DataError("a key has more than 64 parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise DataError("its values are nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
        raise DataError(str(error)) from error


def read(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """The tables of a TOML file."""
    text = read_text(path, what, LARGEST_FILE)
    try:
        return loads(text)
    except DataError as error:
        raise DataError(f"{os.fspath(path)} is not TOML: {error}") from error


def dumps(table: Mapping[str, Any]) -> str:
    """The table as a TOML document."""
    if not isinstance(table, Mapping):
        raise ArgumentError(f"a TOML document is {describe(table)}, expected a table (a dict)")
    return "\n".join(_table(table, ())).lstrip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """The lines of a table whose header is written: its values, then its tables under headers of their own."""
    inner: list[tuple[str, Mapping[str, Any]]] = []
    lists: list[tuple[str, list[Mapping[str, Any]]]] = []
    for key, value in table.items():
        if not isinstance(key, str):
            raise ArgumentError(f"{_name(path)} has the key {describe(key)}, expected a string")
        if isinstance(value, Mapping):
            inner.append((key, value))
        elif isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
            lists.append((key, list(value)))
        else:
            yield f"{_key(key, path)} = {_value(value, (*path, key))}"
    for key, value in inner:
        here = (*path, key)
        yield from ("", f"[{_header(here)}]", *_table(value, here))
    for key, values in lists:
        here = (*path, key)
        for value in values:
            yield from ("", f"[[{_header(here)}]]", *_table(value, here))


def _value(value: object, path: tuple[str, ...], inline: bool = False) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value, path)
    if isinstance(value, int):
        if not MIN_INT <= value <= MAX_INT:
            raise ArgumentError(f"{_name(path)} is {describe(value)}, expected an integer of 64 bits")
        return str(int(value))
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, list | tuple):
        items = [_value(item, path, inline=True) for item in value]
        line = f"[{', '.join(items)}]"
        return line if inline or len(line) <= LINE else "[\n" + "".join(f"    {item},\n" for item in items) + "]"
    if isinstance(value, Mapping):  # within a list that holds other things too
        for key in value:
            if not isinstance(key, str):
                raise ArgumentError(f"{_name(path)} has the key {describe(key)}, expected a string")
        return "{" + ", ".join(f"{_key(key, path)} = {_value(item, (*path, key), True)}" for key, item in value.items()) + "}"
    raise ArgumentError(
        f"{_name(path)} is {describe(value)}, expected a string, boolean, number, list or table: TOML has no other"
    )


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = repr(float(value))  # the shortest that reads back as the same number
    return text if "." in text or "e" in text else text + ".0"


def _string(text: str, path: tuple[str, ...]) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{_name(path)} is {describe(text)}, expected text that UTF-8 can encode") from error
    return '"' + UNSAFE.sub(lambda found: SHORT.get(found[0], f"\\u{ord(found[0]):04x}"), text) + '"'


def _key(key: str, path: tuple[str, ...]) -> str:
    return key if BARE_KEY.fullmatch(key) else _string(key, (*path, key))


def _header(path: tuple[str, ...]) -> str:
    return ".".join(_key(key, path[:at]) for at, key in enumerate(path))


def _name(path: tuple[str, ...]) -> str:
    return ".".join(path).encode("utf-8", "backslashreplace").decode() if path else "the document"

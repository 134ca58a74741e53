"""Damage that files meet by accident or on purpose: flipped bits, cuts, splices, other numbers, values that break parsers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
NUMBERS = [
    b"0",
    b"1",
    b"-1",
    b"2",
    b"255",
    b"256",
    b"65536",
    b"100000",
    b"2147483647",
    b"2147483648",
    b"4294967295",
    b"-2147483649",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"18446744073709551616",
    b"1e39",
    b"1e400",
    b"-0.0",
    b"0.5",
    b"nan",
    b"inf",
    b"NaN",
    b"Infinity",
    b"9" * 5000,
    b"1" + b"0" * 400,
]
TOKENS = [
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b'"',
    b"'",
    b"\\",
    b"\n",
    b"\r\n",
    b",",
    b";",
    b"\t",
    b"[",
    b"]",
    b"{",
    b"}",
    b"[" * 3000,
    b"{" * 3000,
    b'{"a":' * 3000,
    b"a." * 3000 + b"a",
    b"(" * 300,
    b"null",
    b"true",
    b"false",
    b"[]",
    b"{}",
    b'""',
    b"[1]",
    b"[[]]",
    b'["a"]',
    b'{"a": 1}',
    b"None",
    b"object",
    b"|O",
    b"'<f4'",
    b"|V0",
    b"<U0",
    b"|S0",
    b"<f16",
    b"F32",
    b"I64",
    b"BF16",
    b"BOOL",
    b"F8_E4M3",
    b"../x",
    b"/dev/zero",
    b"\x1f\x8b",
    b"PK\x03\x04",
    b"\x93NUMPY",
    b"\x00\x00\x08\x03",
]


def mutate(data: bytes, draw: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """The bytes, damaged in one to four ways."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 4))):
        data = draw.choice(WAYS)(data, draw, others)
    return data[: 1 << 20]


def _place(data: bytes, draw: random.Random) -> int:
    """A place in the file, of its first bytes more often than of the others: that is where headers are."""
    end = len(data) if draw.random() < 0.5 else min(len(data), 300)
    return draw.randrange(end + 1)


def _flip(data: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _time in range(draw.choice((1, 2, 8))):
        if changed:
            changed[min(_place(data, draw), len(changed) - 1)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    at, value = _place(data, draw), draw.choice((b"\0", b"\xff", b"\x7f", b"\x80", b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f"))
    return data[:at] + value + data[at + len(value) :]


def _cut(data: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    return data[: _place(data, draw)]


def _remove(data: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    at = _place(data, draw)
    return data[:at] + data[at + draw.choice((1, 2, 8, 64, 1000)) :]


def _repeat(data: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    at, size = _place(data, draw), draw.choice((1, 8, 64, 1000))
    return data[: at + size] + data[at : at + size] * draw.choice((1, 2, 50)) + data[at + size :]


def _insert(data: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    at = _place(data, draw)
    return data[:at] + draw.choice(TOKENS) + data[at:]


def _splice(data: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    other = draw.choice(others) if others else data
    return data[: _place(data, draw)] + other[_place(other, draw) :]


def _number(data: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    """Another number in place of one that is written out, as in JSON, TOML, CSV and headers."""
    spans = [match.span() for match in NUMBER.finditer(data[: 1 << 16])]
    if not spans:
        return _overwrite(data, draw, _)
    begin, end = draw.choice(spans)
    return data[:begin] + draw.choice(NUMBERS) + data[end:]


def _value(data: bytes, draw: random.Random, _: Sequence[bytes]) -> bytes:
    """Another value behind a colon or an equals sign."""
    places = [match.span(1) for match in re.finditer(rb"[:=]\s*(\"[^\"\n]*\"|\[[^\]\n]*\]|[^\s,}\]]+)", data[: 1 << 16])]
    if not places:
        return _insert(data, draw, _)
    begin, end = draw.choice(places)
    return data[:begin] + draw.choice(draw.choice((TOKENS, NUMBERS))) + data[end:]


Way = Callable[[bytes, random.Random, Sequence[bytes]], bytes]
WAYS: tuple[Way, ...] = (
    _flip,
    _flip,
    _overwrite,
    _cut,
    _remove,
    _repeat,
    _insert,
    _splice,
    _number,
    _number,
    _number,
    _value,
    _value,
)

"""Universal Binary JSON as XGBoost writes it (https://ubjson.org): values with a letter in front, arrays of one type."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.errors import DataError

NUMBERS = {"i": ">i1", "U": ">u1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
CONSTANTS = {"Z": None, "T": True, "F": False}
DEEPEST = 100


def read_ubjson(data: bytes) -> Any:
    """The document that bytes hold."""
    reader = _Reader(data)
    document = reader.value(reader.letter(), 0)
    if reader.place != len(data):
        raise DataError(f"the document ends after {reader.place:,} bytes, and the file has {len(data):,}")
    return document


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.place:
            raise DataError(f"the document has {len(self.data):,} bytes, and asks for {count:,} after byte {self.place:,}")
        self.place += count
        return self.data[self.place - count : self.place]

    def letter(self) -> str:
        return self.take(1).decode("latin-1")

    def count(self) -> int:
        """A length: a whole number with its letter."""
        letter = self.letter()
        if letter not in "iUIlL":
            raise DataError(f"byte {self.place - 1:,} is {letter!r}, expected the letter of a length")
        return int(self.value(letter, 0))

    def text(self) -> str:
        try:
            return self.take(self.count()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"a string of the document is not UTF-8: {error}") from None

    def value(self, letter: str, depth: int) -> Any:
        if depth > DEEPEST:
            raise DataError(f"the document is nested more than {DEEPEST} times")
        if letter in NUMBERS:
            kind = np.dtype(NUMBERS[letter])
            return np.frombuffer(self.take(kind.itemsize), kind)[0].item()
        if letter in CONSTANTS:
            return CONSTANTS[letter]
        if letter == "S":
            return self.text()
        if letter == "C":
            return self.letter()
        if letter == "[":
            return self.array(depth + 1)
        if letter == "{":
            return self.object(depth + 1)
        raise DataError(f"byte {self.place - 1:,} is {letter!r}, expected the letter of a value")

    def size(self) -> tuple[str, int | None]:
        """The type and the number of the values that follow, where they are said."""
        kind = ""
        if self.peek() == "$":
            self.place += 1
            kind = self.letter()
            if self.peek() != "#":
                raise DataError(f"byte {self.place:,} follows a type, expected a count")
        if self.peek() == "#":
            self.place += 1
            return kind, self.count()
        return kind, None

    def peek(self) -> str:
        return self.data[self.place : self.place + 1].decode("latin-1")

    def array(self, depth: int) -> Any:
        kind, count = self.size()
        if kind in NUMBERS and count is not None:
            numbers = np.dtype(NUMBERS[kind])
            if count < 0:
                raise DataError(f"an array has {count} values")
            values = np.frombuffer(self.take(count * numbers.itemsize), numbers)
            return values.astype(numbers.newbyteorder("="))
        found: list[Any] = []
        while len(found) != count if count is not None else self.peek() != "]":
            found.append(self.value(kind or self.letter(), depth))
            if kind in CONSTANTS:
                raise DataError("an array of constants has no numbers, expected numbers")
        self.place += count is None
        return found

    def object(self, depth: int) -> dict[str, Any]:
        kind, count = self.size()
        found: dict[str, Any] = {}
        while len(found) != count if count is not None else self.peek() != "}":
            key = self.text()
            if key in found:
                raise DataError(f"the document names {key!r} twice, expected it once")
            found[key] = self.value(kind or self.letter(), depth)
        self.place += count is None
        return found


def is_ubjson(data: bytes) -> bool:
    """Whether bytes begin as a UBJSON object does: the length of its first name, or its size, follows the brace."""
    return len(data) > 2 and data[:1] == b"{" and (data[1:2] in (b"#", b"$") or (data[1:2] in (b"i", b"U", b"I", b"l", b"L")))

"""CSV files as numbers and names: commas, semicolons, tabs or bars between cells; errors name the line and column."""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lutetia.errors import DataError
from lutetia.training.formats import Array, read_whole

DELIMITERS = (",", ";", "\t", "|")
# A number, and a unit where one follows it; rows.c knows both by the same rule.
DECIMAL_COMMA = re.compile(r"([-+]?[0-9]*),([0-9]+(?:[eE][-+]?[0-9]+)?(?: ?[^\s0-9.,;:+\-*/_][^\s,;:]{0,11})?)")
PARTS = re.compile(r"([^0-9]*)([0-9]*)")  # of a name: what stands before each number
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Cells:
    """The cells of a CSV file, all rows of one length, and the names of its columns where the first row holds them."""

    path: Path
    header: list[str] | None
    rows: list[list[str]]
    lines: list[int]  # of the file, from 1: where each row ends

    @property
    def width(self) -> int:
        return len(self.rows[0]) if self.rows else 0

    def column_name(self, column: int) -> str:
        """The name of a column in messages."""
        return f"column {column}" if self.header is None or not self.header[column] else f"column {self.header[column]!r}"

    def place(self, row: int, column: int) -> str:
        """The place of a cell in messages."""
        return f"{self.path}, line {self.lines[row]}, {self.column_name(column)}"


class LabelledRows(NamedTuple):
    """Rows of numbers, each with a class, and the names of both."""

    x: Array  # float32 [n, columns]
    y: Array  # int64 [n]: numbers of classes
    classes: list[str]
    features: list[str]  # of the columns of x; empty where the file does not name them


def read_cells(path: Path, label: str | int | None = None) -> Cells:
    """Read a CSV file; a first row that holds `label`, or words where the next row has numbers, names the columns."""
    text = io.StringIO(_decoded(path), newline="")  # lines end at \n, \r or both, and at nothing else that splitlines() takes
    delimiter = max(DELIMITERS, key=lambda each: _count_cells(text, each))  # a comma in a tie
    text.seek(0)
    reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True)  # a space before a quote is not part of the cell
    lines, rows, read = [], [], 0
    try:
        for row in reader:
            read = reader.line_num
            if any(cells := list(map(str.strip, row))):
                lines.append(read)
                rows.append(cells)
    except csv.Error as error:
        found = f"a cell of more than {csv.field_size_limit():,} characters, expected a shorter one"
        raise DataError(f"{path}, line {read + 1}: {found}, or a quote that closes it") from error
    if not rows:
        raise DataError(f"{path} is empty, expected rows of numbers and a class")
    if delimiter != ",":
        rows = _with_points(rows)
    header = rows.pop(0) if label in rows[0] or _has_names(rows) else None
    first, lines = lines[0], lines[len(lines) - len(rows) :]
    width = len(header or rows[0])
    for line, row in zip(lines, rows, strict=True):
        if len(row) != width:
            is_title = width < len(row) == len(rows[-1])
            hint = f" as in line {first}: if that is a title, remove it" if is_title else ""
            raise DataError(f"{path}, line {line}: {len(row)} columns, expected {width}{hint}")
    return Cells(path, header, rows, lines)


def _decoded(path: Path) -> str:
    """The text of a file: UTF-8, or UTF-16 where its first two bytes say so."""
    data = read_whole(path, "a CSV file")
    name = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return data.decode(name)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        kind, hint = ("UTF-16", "") if name == "utf-16" else ("UTF-8", " (in Excel: CSV UTF-8)")
        raise DataError(
            f"{path}, line {line}: the byte 0x{data[error.start]:02x} is not {kind}, expected a CSV file saved as {kind}{hint}"
        ) from error


def _with_points(rows: list[list[str]]) -> list[list[str]]:
    """The cells with a point before the decimals, where the file has commas there and nowhere a point."""
    if any("." in cell and is_number(cell) for row in rows for cell in row):
        return rows
    return [[f"{match[1]}.{match[2]}" if (match := DECIMAL_COMMA.fullmatch(cell)) else cell for cell in row] for row in rows]


def _count_cells(text: io.StringIO, delimiter: str) -> int:
    """How many cells a delimiter makes of the first row, whose names may have several lines; 0 where one would be longer than a
    cell may be."""
    text.seek(0)
    lines = dropwhile(lambda line: not line.strip(), text)
    try:
        return len(next(csv.reader(lines, delimiter=delimiter, skipinitialspace=True), []))
    except csv.Error:
        return 0


def _has_names(rows: list[list[str]]) -> bool:
    """Whether the first row holds names: words in most of the columns that are numbers in the next."""
    numeric = [at for at, cell in enumerate(rows[1] if len(rows) > 1 else []) if is_number(cell)]
    numeric = numeric or list(range(len(rows[0])))
    words = sum(at >= len(rows[0]) or not is_number(rows[0][at]) for at in numeric)
    return 2 * words > len(numeric)


def read_csv(path: Path, label: str | int | None = None) -> LabelledRows:
    """The rows of a CSV file with their classes, which are numbered in the order of their names.

    `label` is the column of classes, by name or by number from 0; without it the last column holds them.
    """
    cells = read_cells(path, label)
    column = label_column(cells, label)
    words = class_names(cells, column)
    names = sorted(set(words), key=class_order)
    order = {name: number for number, name in enumerate(names)}
    others = [at for at in range(cells.width) if at != column]
    features = [] if cells.header is None else [cells.header[at] or f"column {at}" for at in others]
    x = numbers(cells, others, may_be_label=label is None)
    return LabelledRows(x, np.array([order[word] for word in words], np.int64), names, features)


def class_order(name: str) -> tuple[Any, ...]:
    """The key by which names of classes are sorted: numbers first, and numbers inside names as numbers, so that "type 2" comes
    before "type 10"."""
    number = float(name) if is_number(name) else None
    # Digits by their count and then as text: names may have thousands of them.
    parts = [(text, len(digits.lstrip("0")), digits.lstrip("0")) for text, digits in PARTS.findall(name)]
    return (number is None, number or 0.0, parts, name)


def label_column(cells: Cells, label: str | int | None) -> int:
    """The column that `label` names, the last one by default."""
    if not cells.rows:
        raise DataError(f"{cells.path} has column names and no rows below them, expected at least one")
    if cells.width < 2:
        raise DataError(f"{cells.path} has {cells.width} columns of values, expected at least one feature and a class")
    if label is None:
        return cells.width - 1
    if cells.header is not None and label in cells.header:
        return cells.header.index(str(label))
    if isinstance(label, int):
        if not -cells.width <= label < cells.width:
            raise DataError(f"{cells.path} has {cells.width} columns, but data.label is {label}")
        return label % cells.width
    if cells.header is None:
        raise DataError(f"{cells.path} has no column names, but data.label is {label!r}: expected a number, from 0")
    raise DataError(f"{cells.path} has no column {label!r}, expected data.label to be one of {', '.join(cells.header)}")


def class_names(cells: Cells, column: int) -> list[str]:
    """The class of each row, as the file writes it."""
    for number, row in enumerate(cells.rows):
        if not row[column]:
            raise DataError(f"{cells.place(number, column)} is empty, expected a class (data.label names the column of classes)")
    return [row[column] for row in cells.rows]


def numbers(cells: Cells, columns: Sequence[int], may_be_label: bool = False) -> Array:
    """Columns as float32 [n, len(columns)]; with `may_be_label` the error about a word says how to make its column the class."""
    values = np.empty((len(cells.rows), len(columns)), np.float32)
    for number, row in enumerate(cells.rows):
        for at, column in enumerate(columns):
            values[number, at] = _number(cells, number, column, row[column], may_be_label)
    return values


def _number(cells: Cells, row: int, column: int, cell: str, may_be_label: bool) -> float:
    place = cells.place(row, column)
    if not cell:
        raise DataError(f"{place} is empty, expected a number: fill it in, or remove the row")
    if not is_number(cell):
        said = f"{place}: {cell!r} is not a number"
        if is_number(cell.replace(",", ".")):
            raise DataError(f"{said}, expected a point before the decimals")
        name = column if cells.header is None else json.dumps(cells.header[column], ensure_ascii=False)
        raise DataError(f"{said}; if this column holds the class, set data.label = {name}" if may_be_label else said)
    value = float(cell)
    if abs(value) > LARGEST:
        raise DataError(f"{place}: {cell!r} is too large for a 32-bit float, expected at most {LARGEST:.4g}")
    return value


def is_number(text: str) -> bool:
    """Whether a cell is a finite number. 1_2 is none, as Python's own numbers are: it is a name."""
    try:
        return "_" not in text and math.isfinite(float(text))
    except ValueError:
        return False

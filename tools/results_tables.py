"""Tables in Markdown from the rows of a result, and the ranges of their numbers for a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from results import Result, Row, rows_of, text_of

MISSING = "–"
UNSAID = ("python", "numpy", "numba", "triton")  # versions that a page leaves to the file of the result
# Machine and torch of most results, as `_source` puts them, and the name that the head of a page gives them.
USUAL = {
    "NVIDIA H200, torch 2.11": "H200",
    "AMD EPYC, 1 thread, torch 2.13": "CPU",
    "AMD EPYC, 2 threads, torch 2.13": "CPU, 2 threads",
}


@dataclass(frozen=True)
class Column:
    """A heading and the columns of the result below it; several of them stand in one cell, with a slash between."""

    heading: str
    keys: Sequence[str]
    digits: int = 3
    scale: float = 1.0  # weights are counted in millions


@dataclass(frozen=True)
class Table:
    """What a page shows of one table of a result."""

    name: str
    columns: Sequence[Column]
    where: Callable[[Row], bool]


@dataclass(frozen=True)
class Spread:
    """A table with a row for each value of `by`, a column for each value of `over`, and `keys` in the cells."""

    name: str
    keys: Sequence[str]
    by: str
    over: Sequence[str]
    digits: int = 3
    where: Callable[[Row], bool] = lambda row: True


def column(heading: str, *keys: str, digits: int = 3, scale: float = 1.0) -> Column:
    """A column; its key is its heading unless others are given."""
    return Column(heading, keys or (heading,), digits, scale)


def table(name: str, *columns: Column | str, where: Callable[[Row], bool] = lambda row: True) -> Table:
    """A table with these columns; a text is a column of that name."""
    return Table(name, [column(each) if isinstance(each, str) else each for each in columns], where)


def markdown(result: Result, shown: Table | Spread) -> str:
    """The table in Markdown; a value that was not measured is a dash, and a column without any value is left out."""
    units = next(each["columns"] for each in result["tables"] if each["name"] == shown.name)
    rows = rows_of(result, shown.name)
    if isinstance(shown, Spread):
        return _spread([row for row in rows if shown.where(row)], shown, units)
    rows = [row for row in rows if shown.where(row)]
    columns = [[each.heading, *(_cell(row, each, units) for row in rows)] for each in shown.columns]
    heading, *lines = zip(*(each for each in columns if set(each[1:]) - {MISSING}), strict=True)
    return "\n".join([_line(heading), _rule(heading), *map(_line, lines)])


def _cell(row: Row, column: Column, units: dict[str, str | None]) -> str:
    texts = [text_of(_scaled(row.get(key), column.scale), units.get(key), column.digits) for key in column.keys]
    return "/".join(each or MISSING for each in texts) if any(texts) else MISSING


def _scaled(value: Any, scale: float) -> Any:
    return value / scale if scale != 1.0 and value is not None else value


def _line(cells: Any) -> str:
    """A row of a table; without spaces, as nobody edits what is generated."""
    return f"|{'|'.join(cells)}|"


def _rule(heading: Sequence[str]) -> str:
    return "|" + "---|" * len(heading)


def _spread(rows: Sequence[Row], shown: Spread, units: dict[str, str | None]) -> str:
    def kind(row: Row) -> str:
        return ", ".join(str(row[each]) for each in shown.over)

    kinds, names = list(dict.fromkeys(map(kind, rows))), list(dict.fromkeys(row[shown.by] for row in rows))
    cells = {(row[shown.by], kind(row)): _cell(row, Column("", shown.keys, shown.digits), units) for row in rows}
    heading = [f"{shown.by}: {' / '.join(shown.keys)}", *kinds]
    lines = [_line(heading), _rule(heading)]
    lines += [_line([name, *(cells.get((name, each)) or MISSING for each in kinds)]) for name in names]
    return "\n".join(lines)


def range_of(rows: Sequence[Row], key: str, unit: str | None = None, digits: int = 2) -> str:
    """From the least to the largest of a column, in words: "2.7x to 3.9x"."""
    values = [each for row in rows if row.get(key) is not None for each in _values(row[key])]
    low, high = (text_of(each, unit, digits) for each in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def value(result: Result, table: str, key: str, unit: str | None = None, digits: int = 3, **where: Any) -> str:
    """The one value of a column in the row where other columns have these values."""
    (row,) = (row for row in rows_of(result, table) if all(row.get(name) == each for name, each in where.items()))
    return text_of(row[key], unit, digits)


def _values(cell: Any) -> list[float]:
    return cell if isinstance(cell, list) else [cell]


def measured(result: Result, tables: Sequence[str]) -> str:
    """Where the rows of some tables come from, as far as it is known; sources that read alike are named once."""
    names = dict.fromkeys(row["source"] for table in tables for row in rows_of(result, table))
    return " ".join(filter(None, dict.fromkeys(_source(result["sources"][name]) for name in names)))


def _source(source: dict[str, Any]) -> str:
    """One sentence: machine, torch and peers; the file has the rest. Nothing where the machine is not known."""
    machine, versions = source["machine"] or {}, source["versions"] or {}
    place = machine.get("gpu") or machine.get("cpu")
    if not place:
        return ""
    facts = [place]
    if not machine.get("gpu") and machine.get("threads"):
        facts.append(f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''}")
    facts += [f"{name} {_short(version)}" for name, version in versions.items() if version and name not in UNSAID]
    described = ", ".join(facts)
    usual = next((each for each in USUAL if described.startswith(each)), "")
    return f"{USUAL.get(usual, '')}{described.removeprefix(usual)}."


def _short(version: str) -> str:
    """A version without its build: 2.13.0+cpu is 2.13."""
    return re.sub(r"^(\d+\.\d+)\.0$", r"\1", version.partition("+")[0])


@dataclass(frozen=True)
class Section:
    """One claim on a page: the command and the machine above its tables, one sentence below."""

    heading: str
    result: str  # the name of the file
    tables: Sequence[Table | Spread]
    sentence: str | Callable[[Result], str]
    setting: str = ""

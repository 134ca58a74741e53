"""Tables in Markdown from the rows of a result, and the ranges of their numbers for a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from results import Result, Row, rows_of, text_of

MISSING = "–"


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
    where: Callable[[Row], bool] = lambda row: True


@dataclass(frozen=True)
class Spread:
    """A table with a row for each value of `by`, a column for each value of `over`, and `key` in the cells."""

    name: str
    key: str
    by: str
    over: Sequence[str]


def column(heading: str, *keys: str, digits: int = 3, scale: float = 1.0) -> Column:
    """A column; its key is its heading unless others are given."""
    return Column(heading, keys or (heading,), digits, scale)


def markdown(result: Result, table: Table | Spread) -> str:
    """The table in Markdown; a value that was not measured is a dash."""
    units = next(each["columns"] for each in result["tables"] if each["name"] == table.name)
    rows = rows_of(result, table.name)
    if isinstance(table, Spread):
        return _spread(rows, table, units[table.key])
    lines = [_line(each.heading for each in table.columns), "|" + "---|" * len(table.columns)]
    lines += [_line(_cell(row, each, units) for each in table.columns) for row in rows if table.where(row)]
    return "\n".join(lines)


def _cell(row: Row, column: Column, units: dict[str, str | None]) -> str:
    texts = [text_of(_scaled(row.get(key), column.scale), units[key], column.digits) for key in column.keys]
    return " / ".join(each or MISSING for each in texts) if any(texts) else MISSING


def _scaled(value: Any, scale: float) -> Any:
    return value / scale if scale != 1.0 and value is not None else value


def _line(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def _spread(rows: Sequence[Row], table: Spread, unit: str | None) -> str:
    def kind(row: Row) -> str:
        return ", ".join(str(row[each]) for each in table.over)

    kinds, names = list(dict.fromkeys(map(kind, rows))), list(dict.fromkeys(row[table.by] for row in rows))
    cells = {(row[table.by], kind(row)): text_of(row.get(table.key), unit) for row in rows}
    lines = [_line([table.by, *kinds]), "|" + "---|" * (len(kinds) + 1)]
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
    """Where the rows of some tables come from: machine, versions, commit, date, as far as they are known."""
    names = dict.fromkeys(row["source"] for table in tables for row in rows_of(result, table))
    return " ".join(filter(None, (_source(result["sources"][name]) for name in names)))


def _source(source: dict[str, Any]) -> str:
    """One sentence; nothing where the machine is not known."""
    machine, versions = source["machine"] or {}, source["versions"] or {}
    place = machine.get("gpu") or machine.get("cpu")
    if not place:
        return ""
    facts = [place]
    if not machine.get("gpu") and machine.get("threads"):
        facts.append(f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''}")
    facts += [f"{name} {version}" for name, version in versions.items() if version and name != "numpy"]
    facts += [f"commit {source['commit']}"] if source["commit"] else []
    facts += [source["date"]] if source["date"] else []
    return ", ".join(facts) + "."

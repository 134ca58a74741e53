"""What a benchmark measured, as data: one JSON file of one form, printed as tables, saved whole or not at all.

    schema      1
    benchmark   the name of the file without its ending
    claim       one sentence: what the numbers are to show
    command     what prints them again
    settings    what was chosen: sizes, repeats, seeds
    sources     where rows come from, by name: {machine, versions, commit, date, note}; null for what is not known
    peers       who else is in the tables: {name, version, mode, constant}; `constant` says where a time came from that was not
                taken in the same run, null for one that was
    tables      {name, columns: {column: unit or null}, rows: [{source, column: value}]}
    missed      the claims that did not hold

A value is a number, a text, true or false, null (not measured), or a list of numbers: one for each run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SCHEMA = 1
FOLDER = Path(__file__).resolve().parent / "results"
KEYS = ("schema", "benchmark", "claim", "command", "settings", "sources", "peers", "tables", "missed")
SOURCE = ("machine", "versions", "commit", "date", "note")
PEER = ("name", "version", "mode", "constant")
MOST_COLUMNS = 12  # a wider table is printed with a line for each column
TEXTS = ("shape", "sizes", "kind", "dtype", "model", "rule", "backend", "part")  # columns of words
PACKAGES = ("torch", "triton", "numba", "numpy")
Row = dict[str, Any]
Result = dict[str, Any]


# ---- making one ------------------------------------------------------------------------------------------------------


def table(name: str, columns: Mapping[str, str | None], rows: Sequence[Row]) -> dict[str, Any]:
    """A table of this run; a row without one of the columns has not measured it."""
    return {"name": name, "columns": dict(columns), "rows": [{"source": "run", **row} for row in rows]}


def peer(name: str, package: str | None = None, mode: str | None = None, constant: str | None = None) -> dict[str, Any]:
    """Who else is in the tables; with `package`, the version that is installed here."""
    return {"name": name, "version": None if package is None else version_of(package), "mode": mode, "constant": constant}


def result(
    doc: str | None,
    name: str,
    settings: Mapping[str, Any],
    tables: Sequence[dict[str, Any]],
    *,
    peers: Sequence[dict[str, Any]] = (),
    packages: Sequence[str] = (),
    missed: Sequence[str] = (),
) -> Result:
    """What one run of the benchmark `name` found; the claim is the first line of its docstring `doc`."""
    source = {
        "machine": machine(),
        "versions": {"python": platform.python_version(), **{each: version_of(each) for each in (*PACKAGES, *packages)}},
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "note": None,
    }
    return check(
        {
            "schema": SCHEMA,
            "benchmark": name,
            "claim": (doc or "").strip().splitlines()[0],
            "command": f"lutetia bench {name}",
            "settings": dict(settings),
            "sources": {"run": source},
            "peers": list(peers),
            "tables": list(tables),
            "missed": list(missed),
        },
        name,
    )


def machine() -> dict[str, Any]:
    """The processor, its cores and threads, and the GPU that torch sees."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"cpu": processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpu": gpu}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def installed(*packages: str) -> str:
    """The first of several packages of one module that is installed; the first of all where none is."""
    return next((each for each in packages if version_of(each)), packages[0])


def tool_version(tool: str, option: str) -> str | None:
    """What a tool that `lutetia build` takes on this machine says of itself."""
    from lutetia._shared.programs import find_tool

    command = find_tool(tool)
    if command is None:
        return None
    done = subprocess.run([*command, option], capture_output=True, text=True, check=False)
    return next(iter((done.stdout + done.stderr).strip().splitlines()), None)


def commit() -> str | None:
    """The commit of this checkout, with a plus where it was changed since; None outside of git."""
    command = ["git", "-C", str(FOLDER.parent), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


# ---- checking one ----------------------------------------------------------------------------------------------------


def check(value: Any, where: str) -> Result:
    """The value itself when it has the form above; else a ValueError that says what differs, and where."""
    _keys(value, KEYS, where)
    if value["schema"] != SCHEMA:
        raise ValueError(f"{where}: the schema is {value['schema']!r}, expected {SCHEMA}")
    for name, source in value["sources"].items():
        _keys(source, SOURCE, f"{where}, source {name}")
    for each in value["peers"]:
        _keys(each, PEER, f"{where}, peers")
    for each in value["tables"]:
        _keys(each, ("name", "columns", "rows"), f"{where}, tables")
        for row in each["rows"]:
            _check_row(row, each, value["sources"], f"{where}, table {each['name']}")
    return dict(value)


def _keys(value: Any, expected: Sequence[str], where: str) -> None:
    if not isinstance(value, dict) or sorted(value) != sorted(expected):
        found = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise ValueError(f"{where}: found {found}, expected the keys {sorted(expected)}")


def _check_row(row: Any, of: dict[str, Any], sources: Mapping[str, Any], where: str) -> None:
    if not isinstance(row, dict) or row.get("source") not in sources:
        raise ValueError(f"{where}: a row has the source {row.get('source') if isinstance(row, dict) else row!r}, "
                         f"expected one of {sorted(sources)}")  # fmt: skip
    unknown = set(row) - {"source"} - set(of["columns"])
    if unknown:
        raise ValueError(f"{where}: a row has {sorted(unknown)}, expected columns of {sorted(of['columns'])}")
    for name, cell in row.items():
        numbers = cell if isinstance(cell, list) else [cell]
        plain = all(isinstance(each, int | float) for each in cell) if isinstance(cell, list) else True
        finite = all(math.isfinite(each) for each in numbers if isinstance(each, float))
        if not (plain and finite and (cell is None or isinstance(cell, str | int | float | list)) and cell != []):
            raise ValueError(f"{where}: {name} is {cell!r}, expected a finite number, a text, a list of numbers or null")


def load(path: Path) -> Result:
    """A saved result, checked."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as JSON: {error}") from error
    checked = check(value, str(path))
    if checked["benchmark"] != path.stem:
        raise ValueError(f"{path}: holds the result of {checked['benchmark']!r}, expected {path.stem!r}")
    return checked


def rows_of(found: Result, name: str) -> list[Row]:
    """The rows of a table of a result."""
    for each in found["tables"]:
        if each["name"] == name:
            return list(each["rows"])
    raise ValueError(f"{found['benchmark']}: no table {name!r}, expected one of {[each['name'] for each in found['tables']]}")


# ---- the command line ------------------------------------------------------------------------------------------------


def options_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes; `finish` does what these options say."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, in seconds: shows that it runs, measures nothing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the JSON into FILE, too")
    return parser


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def needs_cuda(name: str, instead: str = "") -> bool:
    """Whether there is a CUDA device; says so where there is none."""
    import torch

    if not torch.cuda.is_available():
        progress(
            f"{name} measures a CUDA device and this machine has none" + (f"; {instead} measures the CPU" if instead else "")
        )
    return bool(torch.cuda.is_available())


def finish(found: Result, options: argparse.Namespace) -> int:
    """Print and save what was found; the exit code: 1 when a claim was missed, which a quick run cannot tell."""
    if options.quick:
        found = {**found, "settings": {**found["settings"], "quick": True}, "missed": []}
    if options.save is not None:
        save(options.save, found)
    if options.json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        show(found)
    return int(bool(found["missed"]))


def save(path: Path, found: Result) -> None:
    """Write a result: a reader sees the old file or the new one."""
    from lutetia.files import write_atomically

    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as file:
        file.write(text.encode())


# ---- for the eye -----------------------------------------------------------------------------------------------------


def show(found: Result) -> None:
    """Every table of a result, then where it ran and against whom."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    for each in found["tables"]:
        drawn = Table(title=each["name"], title_justify="left")
        first, *others = zip(*cells_of(each), strict=True) if len(each["columns"]) > MOST_COLUMNS else cells_of(each)
        for heading in first:
            drawn.add_column(heading, justify="left" if heading in TEXTS or heading == first[0] else "right")
        for row in others:
            drawn.add_row(*row)
        console.print(drawn)
    for name, source in found["sources"].items():
        facts = {**(source["machine"] or {}), **(source["versions"] or {}), "commit": source["commit"], "date": source["date"]}
        console.print(f"{name}:", " · ".join(f"{key} {value}" for key, value in facts.items() if value is not None))
    for each in found["peers"]:
        told = [each["name"], each["version"], each["mode"], each["constant"] and f"constant: {each['constant']}"]
        console.print("peer:", ", ".join(filter(None, told)))
    for each in found["missed"]:
        console.print("missed:", each)


def cells_of(of: dict[str, Any]) -> list[list[str]]:
    """The headings of a table with their units, then its rows."""
    columns = of["columns"].items()
    headings = [name if unit in (None, "x", "%") else f"{name} ({unit})" for name, unit in columns]
    return [headings, *([text_of(row.get(name), unit) for name, unit in columns] for row in of["rows"])]


def text_of(value: Any, unit: str | None = None, digits: int = 3) -> str:
    """A value as a reader wants it: so many significant digits, a range for a list, nothing for null."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    suffix = unit if unit in ("x", "%") else ""
    if isinstance(value, list):
        low, high = text_of(min(value), None, digits), text_of(max(value), None, digits)
        return (low if low == high else f"{low}–{high}") + suffix
    return number(value, digits) + suffix


def number(value: float, digits: int) -> str:
    """A number with at most so many significant digits, two at least where it is no whole number, and commas."""
    if isinstance(value, int):
        return f"{value:,}"
    decimals = min(max(0, digits - 1 - (math.floor(math.log10(abs(value))) if value else 0)), 9)
    text = f"{value:,.{decimals}f}"
    while text.endswith("0") and "." in text and len(text.replace("-", "").replace(".", "").lstrip("0")) > 2:
        text = text[:-1].removesuffix(".")
    return text

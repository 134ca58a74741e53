"""Cells of a CSV file in C: thousands of numbers and dates, good ones and bad ones, as `lutetia predict` reads them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest

from lutetia.models import Tabular
from lutetia.precompute import c_files, integer_model
from lutetia.training.dates import ENDS, MONTHS
from lutetia.training.tables import read_cells
from precompute.odd_cells import UNIT, Texts, by_python
from precompute.strict_c import STRICT
from tools import require_tool

HARNESS = """#define main program
#include "rows.c"
#undef main
int main(int count, char **given)
{
    static char cell[4000];
    int i, n;
    if (count > 1) {
        (void)given;
        look_at_file();
        while ((n = read_row()) > 0) {
            printf("%ld", line);
            for (i = 0; i < n; i++)
                printf("\\x1f%s", cells[i]);
            putchar('\\x1e');
        }
        return 0;
    }
    while (fgets(cell, sizeof cell, stdin)) {
        double value;
        cell[strcspn(cell, "\\n")] = 0;
        value = cell[0] == '0' ? measured_of(cell + 1, "UNIT") : date_of(cell + 1, cell[0] - '0');
        value == value ? printf("%.17g\\n", value) : puts("none");
    }
    (void)program;
    return 0;
}
"""
Read = Callable[[list[tuple[int, str]]], list[float | None]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The readers of a C program, compiled."""
    folder, compiler = tmp_path_factory.mktemp("cells"), require_tool("gcc", "cc")
    model = Tabular(input_shape=(1,), n_classes=2, n_tables=1, n_anchors=1, n_encoded=1, n_edges=1, parts=("month",), seed=0)
    model.metadata = {"dates": {"0": {"order": "year first", "times": True}}}
    files = c_files(integer_model(model))
    for name, text in {**files, "harness.c": HARNESS.replace("UNIT", UNIT)}.items():
        (folder / name).write_text(text, encoding="utf-8")
    command = [compiler, *STRICT, "-DLUTETIA_NO_MAIN", "model.c", "columns.c", "harness.c", "-o", "read"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "read"


@pytest.fixture(scope="module")
def read(program: Path) -> Read:
    """What the C program makes of texts: of each a column, 0 for numbers or the number of an order of dates, and the cell."""

    def run(cells: list[tuple[int, str]]) -> list[float | None]:
        given = "".join(f"{column}{cell}\n" for column, cell in cells).encode()
        done = subprocess.run([program], input=given, capture_output=True, check=True, timeout=60)
        return [None if text == "none" else float(text) for text in done.stdout.decode().split()]

    return run


@pytest.mark.parametrize("kind", ["numbers", "dates"])
def test_texts_are_read_as_python_reads_them(kind: str, read: Read) -> None:
    texts = Texts(7)
    cells = [(0, texts.number()) if kind == "numbers" else (texts.random.randint(1, 3), texts.date()) for _ in range(6000)]
    cells = [(column, spoilt) for column, cell in cells if (spoilt := texts.spoilt(cell))]
    wanted = [by_python(*cell) for cell in cells]
    differing = [each for each in zip(cells, read(cells), wanted, strict=True) if each[1] != each[2]]
    assert differing == []
    assert 0.2 < sum(each is not None for each in wanted) / len(wanted) < 0.9


def test_every_month_and_all_days_around_leap_days(read: Read) -> None:
    named = [(1, f"29 {name}{end}{dot} 2024") for name in MONTHS for end in ("", *ENDS.split("|")) for dot in ("", ".")]
    days = [date(year, 2, 27) + timedelta(days=each) for year in (1900, 1999, 2000, 2023, 2024, 2100, 9999) for each in range(5)]
    cells = [
        *named,
        *((column, day.strftime(way)) for day in days for column, way in ((1, "%Y-%m-%d"), (2, "%d.%m.%Y"), (3, "%m/%d/%Y"))),
    ]
    cells += [
        (1, "1900-02-29"),
        (1, "2000-02-29"),
        (1, "2100-02-29"),
        (1, "0001-01-01T00:00+00:01"),
        (1, "9999-12-31T23:59-0001"),
    ]
    assert read(cells) == [by_python(*cell) for cell in cells]


def test_long_texts_do_no_harm(read: Read) -> None:
    cells = [(column, text * 400) for column in range(4) for text in ("1", "1,", "€", "x ", "jan", "2024-", "1.1")]
    assert read(cells) == [by_python(*cell) for cell in cells]


def any_cell(texts: Texts, mark: str) -> str:
    """A cell of a file with this mark between its cells, quoted in all ways, with commas and points in its numbers."""
    quoted = texts.one_of("a,b", "x\ny", 'say ""hi""', "  pad ", "", "é", "a;b", "1,5", "p\tq")
    comma = texts.one_of("1,5", "-,25", "1,234", "2,5e3", "1,", "1,2,3", "+0,1") if mark != "," else "2"
    if mark != "," and texts.random.random() < 0.4:
        comma += texts.one_of(" °C", "kWh", "eV", "e2", "e-", "  mm", " a b", "%", " /h", "m/s²", "é" * 12, "é" * 13, " ", "3 m")
    point = texts.one_of("1", "25", "red", "2.5" if texts.random.random() < 0.3 else "2", "x.y")
    return texts.one_of("", f'"{quoted}"', " 7 ", 'a"b', '"a"b', ' "q" ', comma, comma, point, point)


def test_files_are_read_as_python_reads_them(program: Path, tmp_path: Path) -> None:
    """Commas, semicolons, tabs and bars, decimal commas, all ends of lines, quotes, empty rows, a byte order mark."""
    texts, file = Texts(3), tmp_path / "x.csv"
    for _ in range(120):
        mark, end, width = texts.one_of(*",;\t|"), texts.one_of("\n", "\r\n", "\r"), texts.random.randint(2, 4)
        rows = [mark.join(any_cell(texts, mark) for _ in range(width)) for _ in range(texts.random.randint(2, 5))]
        rows = [mark.join("abcd"[:width]), *rows]
        rows.insert(texts.random.randrange(len(rows)), texts.one_of("", mark * (width - 1), " ", "\t" * 9))
        file.write_bytes((texts.one_of("", "\ufeff") + end.join(rows) + texts.one_of("", end, end + end)).encode())
        wanted = read_cells(file, "a")
        with file.open("rb") as given:
            done = subprocess.run([program, "rows"], stdin=given, capture_output=True, check=True, timeout=60)
        header, *found = [row.split("\x1f") for row in done.stdout.decode().split("\x1e")[:-1]]
        assert header[1:] == wanted.header
        assert [row[1:] for row in found] == [[cell.replace("\r\n", "\n") for cell in row] for row in wanted.rows]
        assert [int(row[0]) for row in found] == wanted.lines


def test_words_are_written_for_c() -> None:
    model = Tabular(input_shape=(1,), n_classes=2, n_tables=1, n_anchors=1, n_encoded=1, n_edges=1, seed=0)
    model.metadata = {"missing": ["Offline"], "unknown": "missing"}
    files = c_files(integer_model(model))
    assert '"null", "offline", 0}' in files["columns.c"]
    assert "#define LUTETIA_UNKNOWN_IS_MISSING 1" in files["columns.h"]
    assert "read_named" not in files["rows.c"]

"""CSV files: read as others wrote them, and what is wrong is told by its row and column."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from lutetia.errors import DataError
from lutetia.training.tables import read_cells, read_csv


def test_csv_with_names_and_words(tmp_path: Path) -> None:
    path = tmp_path / "iris.csv"
    path.write_text('kind,long,"wide, or so"\nrose,1,2.5\n\ntulip,-3e1,4\nrose,5,6\n')
    features, classes, names, columns = read_csv(path, "kind")
    assert features.tolist() == [[1, 2.5], [-30, 4], [5, 6]]
    assert features.dtype == np.float32
    assert (classes.tolist(), names) == ([0, 1, 0], ["rose", "tulip"])
    assert columns == ["long", "wide, or so"]


def test_csv_without_names_sorts_numbers_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"1,2,10\n3,4,9\n5,6,10\n"))
    features, classes, names, columns = read_csv(path)
    assert features.shape == (3, 2)
    assert (classes.tolist(), names) == ([1, 0, 1], ["9", "10"])
    assert columns == []


@pytest.mark.parametrize("label", ["kind", 0, -3])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_other_delimiters_and_a_class_in_front(delimiter: str, label: str | int, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("kind,a,b\nrose,1,2\ntulip,3,4\n".replace(",", delimiter))
    features, classes, names, columns = read_csv(path, label)
    assert features.tolist() == [[1, 2], [3, 4]]
    assert (classes.tolist(), names, columns) == ([0, 1], ["rose", "tulip"], ["a", "b"])


def test_a_quote_that_is_never_closed_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b,kind\n1,"two\nlines",x\n\n2,"3,y\n' + "4,5,x\n" * 30_000)
    with pytest.raises(
        DataError, match=r"a\.csv, line 5: a cell of more than 131,072 characters, expected .* a quote that closes"
    ):
        read_cells(path)


def test_delimiters_are_counted_in_the_whole_first_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('\n "price, with ""tax""\n(EUR)";long;kind\n1;2;rose\n3;4;tulip\n')
    assert read_csv(path).features == ['price, with "tax"\n(EUR)', "long"]


def test_a_class_in_front_without_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("rose,1,2\ntulip,3,4\n")
    features, classes, names, columns = read_csv(path, 0)
    assert (features.tolist(), classes.tolist(), names, columns) == ([[1, 2], [3, 4]], [0, 1], ["rose", "tulip"], [])


def test_decimal_commas_where_commas_cut_no_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for text in ("a;b;kind\n1,5;-2;x\n,25;3e1;y\n", "1,5\t-2\tx\n0,25\t30\ty\n"):  # with names and without
        path.write_text(text)
        assert read_csv(path).x.tolist() == [[1.5, -2], [0.25, 30]]


def test_decimal_commas_before_units(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("len;heat;note\n1,5 mm;-2,25°C;1,5 and more\n,5 mm;3,0°C;3,4-ol\n")
    assert read_cells(tmp_path / "a.csv").rows == [["1.5 mm", "-2.25°C", "1,5 and more"], [".5 mm", "3.0°C", "3,4-ol"]]


def test_a_file_that_is_not_utf8_says_where(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("a,b\n1,x\n2,Höhe\n".encode("latin-1"))
    with pytest.raises(DataError, match="line 3: the byte 0xf6 is not UTF-8, expected a CSV file saved as UTF-8"):
        read_csv(path)


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        ("", None, "is empty"),
        ("a,b\n", None, "has column names and no rows below them, expected at least one"),
        ("1\n2\n", None, "has 1 columns of values, expected at least one feature and a class"),
        ("a,b\n1,2\n3\n", None, ", line 3: 1 columns, expected 2"),
        ("1,2\nx,2\n", None, ", line 2, column 0: 'x' is not a number; if this column holds the class, set data.label = 0"),
        ("1,2\nnan,2\n", None, ", line 2, column 0: 'nan' is not a number"),
        ("a,b\n1,2\n", "c", "has no column 'c', expected data.label to be one of a, b"),
        ("1,2\n3,4\n", "c", "has no column names, but data.label is 'c': expected a number, from 0"),
        ("1,2\n3,4\n", 2, "has 2 columns, but data.label is 2"),
        ("a,b,kind\n1,,x\n", None, ", line 2, column 'b' is empty, expected a number: fill it in, or remove the row"),
        ("a,b,kind\n1,2,x\n1,2,\n", None, ", line 3, column 'kind' is empty, expected a class (data.label names the column"),
        (
            "kind,a,b\nx,1,2\n",
            None,
            ", line 2, column 'kind': 'x' is not a number; if this column holds the class, set data.label = \"kind\"",
        ),
        ("a;b;kind\n1,5;2.5;x\n", None, ", line 2, column 'a': '1,5' is not a number, expected a point before the decimals"),
        ("a,b\n\n1,2\n\n3\n", None, ", line 5: 1 columns, expected 2"),
        (
            "a,b,kind\n1,1e39,x\n",
            None,
            ", line 2, column 'b': '1e39' is too large for a 32-bit float, expected at most 3.4",
        ),
        ("a,b,kind\n1,-1e39,x\n", None, "'-1e39' is too large"),
    ],
)
def test_a_bad_csv_is_named(tmp_path: Path, text: str, label: str | int | None, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_csv(path, label)
    assert f"{path}" in str(caught.value)
    assert message in str(caught.value)


def test_files_of_other_programs(tmp_path: Path) -> None:
    """A table of a spreadsheet in UTF-16, a space before a quote, and characters that only Python takes for ends of lines."""
    path = tmp_path / "a.csv"
    path.write_bytes('name, "a, b",größe\r\nx\x0cy, "1, 2",3\r\nu\x85v\u2028w,"4\n5",6\r\n'.encode("utf-16"))
    cells = read_cells(path)
    assert cells.header == ["name", "a, b", "größe"]
    assert cells.rows == [["x\x0cy", "1, 2", "3"], ["u\x85v\u2028w", "4\n5", "6"]]
    assert cells.lines == [2, 4]
    path.write_bytes(b"\xff\xfea\x00,")
    with pytest.raises(DataError, match=r"is not UTF-16, expected a CSV file saved as UTF-16$"):
        read_cells(path)

"""Columns of plain numbers are read quickly, and as the slow way reads them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lutetia.training.columns import (
    Column,
    is_missing,
    number_of,
    numbers_rows,
    plain_numbers,
    read_column,
    text_of,
    without_words,
)
from lutetia.training.tables import is_number

CELLS = ["1", "-2.5", " 3", "1e5", "1_0", "1,234", "$5", "5%", "inf", "nan", "-nan", "NA", "", "?", "word", "1e999", "007", "٣"]
VALUES = [None, 1, 10**400, 2.5, math.nan, math.inf, True, b"7", *CELLS]


def slow_numbers(values: list[Any]) -> np.ndarray | None:
    """Cell by cell, as a column with one odd cell is read; None where a cell is neither missing nor a number."""
    numbers = [math.nan if is_missing(value) else number_of(text_of(value)) for value in values]
    return None if None in numbers else np.array(numbers, np.float64)


@given(st.lists(st.sampled_from(VALUES), min_size=1, max_size=8))
def test_plain_numbers_are_those_of_the_slow_way(values):
    plain, slow = plain_numbers(values), slow_numbers(values)
    if plain is not None:
        assert slow is not None
        np.testing.assert_array_equal(plain, slow)
    if {type(value) for value in values} <= {str, int, float, type(None)} and not set(values) & {"1,234", "$5", "5%", 10**400}:
        assert (plain is None) == (slow is None or bool(np.isnan(slow).all()))


def test_names_with_an_underscore_are_no_numbers():
    """1_10 and 11_0 are two names, which Python's float() takes for 110."""
    assert [number_of(text) for text in ("1_10", "1_1e5", "110")] == [None, None, 110]
    assert plain_numbers(["1_10", "11_0", None, 3]) is None
    _, numbers, known = read_column(["1_10", "11_0", "110", "1_10"], False)
    assert (known, numbers.tolist()) == (["110", "11_0", "1_10"], [2, 1, 0, 2])
    assert not is_number("1_10")


def test_a_column_is_read_once(monkeypatch):
    column = Column(["1", None, "3"])
    first = plain_numbers(column)
    monkeypatch.setattr("lutetia.training.columns._plain", lambda values: pytest.fail("read twice"))
    assert plain_numbers(column) is first


def test_words_that_are_numbers_still_stand_for_no_value():
    column = Column(["1", "-999", "3"])
    assert without_words(column, ["-999"]) == ["1", None, "3"]
    assert without_words(column, ["unknown"]) is column


def test_row_numbers_may_have_thousands_separators():
    assert numbers_rows([f"{number:,}" for number in range(990, 1020)])
    assert numbers_rows([str(number) for number in range(30)])
    assert not numbers_rows([*map(str, range(29)), None])
    assert not numbers_rows([*map(str, range(29)), "x"])

"""Numbers in texts of others: thousands of digits are no number, not an error of Python's."""

from __future__ import annotations

from pathlib import Path

import pytest

from lutetia._shared.numbers import whole_number
from lutetia.errors import ArgumentError, DataError
from lutetia.training.config import override
from lutetia.training.table_files import TableFile, find_target

LONG = "9" * 5000


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("0", 0), ("-12", -12), ("9" * 18, 10**18 - 1)],
        *[(text, None) for text in ("9" * 19, LONG, "", "-", "--1", "1.0", "٣", "²", " 1", "1_0")],
    ],
)
def test_whole_numbers(text: str, number: int | None) -> None:
    assert whole_number(text) == number


def test_a_long_number_is_no_column_and_no_table() -> None:
    file = TableFile(Path("a.csv"), {name: [0] for name in "ab"})
    assert [find_target(file, which) for which in ("0", -1, "b")] == ["a", "b", "b"]
    with pytest.raises(DataError, match="has no column '999"):
        find_target(file, LONG)
    for number in (LONG, "-1", "1"):
        with pytest.raises(ArgumentError, match="expected a number below 1"):
            override({"model": {"layers": [{}]}}, f"model.layers.{number}.read=hard")

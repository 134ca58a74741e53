"""What a model keeps of its columns: ranges, decimal places, and where values are missing."""

from __future__ import annotations

import numpy as np
import pytest

from lutetia.training.ranges import decimals_of, describe_columns

SEEN = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("values", "places"),
    [
        ([], 0),
        ([3, -4, 0, 1e15], 0),
        ([12.3, 0.1, -7.0], 1),
        ([0.0625, 1.5], 4),
        ([4.7e-12], 13),
        ([1234567.89], 2),
        ([1 / 3], 16),
        ([10 / 3], None),
        (np.float32([12.3, 0.1]).astype(np.float64), 1),  # as float32 has them
        (np.float32(SEEN.random(9)).astype(np.float64) ** 2, None),
        ([*[1.0] * 2000, 0.25], 2),  # past the values that are tried first
    ],
)
def test_decimal_places(values: list[float], places: int | None) -> None:
    own = np.full((1 + len(values), 2), np.nan)
    own[1:, 0] = values
    assert decimals_of(own) == [places, 0]


def test_ranges_are_those_of_the_rows_that_are_fitted() -> None:
    x = np.array([[1.5, np.nan, np.nan], [2.25, np.nan, 7.0], [-9.0, np.nan, 8.0]])
    assert describe_columns(x, x[:2]) == {
        "input_low": [1.5, 0.0, 7.0],
        "input_high": [2.25, 0.0, 7.0],
        "decimals": {"0": 2, "1": 0, "2": 0},
        "empty": [1, 2],
    }

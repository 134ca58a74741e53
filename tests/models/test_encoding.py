"""Codes of categories that the rows to fit do not have."""

from __future__ import annotations

import numpy as np

from lutetia.models import Columns, fit_encoding


def test_a_category_without_a_sample_is_like_the_mean_and_not_like_a_missing_one() -> None:
    """As one may be that is in the rows to test alone. Categories 0 to 4 have rising means; 2 is nearest to that of all rows."""
    place = np.repeat([0.0, 1, 2, 3, 4, np.nan], 20)
    target = np.repeat([0.0, 1, 5, 8, 9, 7], 20)[:, None]
    columns = Columns(place[:, None], target, np.ones(120), [7])
    encoding = fit_encoding(columns)
    codes = encoding.codes(np.array([[0.0], [1], [2], [3], [4], [5], [6], [np.nan], [7]]))
    assert codes.tolist() == [[1, 2, 3, 4, 5, 3, 3, 0, 0]]  # 7 is no category


def test_a_column_without_any_sample_has_one_code() -> None:
    columns = Columns(np.full((4, 1), np.nan), np.arange(4.0)[:, None], np.ones(4), [3])
    assert len(set(fit_encoding(columns).codes(np.array([[0.0], [1], [2]]))[0].tolist())) == 1

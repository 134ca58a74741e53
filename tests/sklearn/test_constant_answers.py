"""Reasons name what decided: no answer that all samples share, such as that a value is known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from lutetia.sklearn import LUTClassifier, LUTRegressor
from lutetia.training.boosting import ignore_constant_answers


def few_values() -> tuple[np.ndarray, np.ndarray]:
    """Three columns of two values and one of eight, none missing; the second and the third say nothing of y."""
    x = np.array(list(product((0, 1), (0, 1), (0, 1), range(8))) * 4, float)
    return x, (x[:, 0] + (x[:, 3] > 4) > 0).astype(int)


@pytest.mark.parametrize("estimator", [LUTClassifier, LUTRegressor])
def test_columns_that_say_nothing_get_nothing(estimator: type) -> None:
    x, y = few_values()
    model = estimator(n_tables=20, random_state=0).fit(x, y)
    found = model.explain(x[:64], rule="decisive")
    share = abs(found.relevance).sum(0) / abs(found.relevance).sum()
    assert share[[0, 3]].min() > 0.2
    assert share[[1, 2]].max() < 1e-3
    assert " is known" not in found.to_text(0)


def test_rows_are_copied_to_addresses_that_differ_in_answers_all_samples_share() -> None:
    random = np.random.default_rng(0)
    for always, never in ((0b0100, 0b0001), (0, 0), (0b1000, 0b0111), (0b1111, 0)):
        addresses = np.array([each for each in range(16) if each & always == always and not each & never], np.uint16)
        rows = random.normal(size=(16, 2))
        expected = np.array([rows[(each | always) & ~never] for each in range(16)])
        ignore_constant_answers(random.permutation(np.repeat(addresses, 3)), rows)
        np.testing.assert_array_equal(rows, expected)

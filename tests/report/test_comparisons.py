"""What the tables of a model of columns ask, said once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lutetia.models import Tabular
from lutetia.report.comparisons import comparisons


@pytest.mark.parametrize(
    ("codes", "wanted"),
    [([3, 7], [("b", ">", "a by rank", -11.0)]), ([7, 3], [("a", ">", "b by rank", 11.0)])],
)
def test_two_columns_are_compared_once(codes: list[int], wanted: list[tuple[str, str, str, float]]) -> None:
    """One table asks a > b, the other b > a; the first gives 10 for yes, the second 1 for no."""
    model = two_tables()
    found = comparisons(model, np.array(codes, np.uint8), np.ones(1), ["a", "b"])
    assert [tuple(each) for each in found] == wanted


def test_equal_ranks_answer_both_questions_with_no() -> None:
    found = comparisons(two_tables(), np.array([5, 5], np.uint8), np.ones(1), ["a", "b"])
    assert [str(each) for each in found] == ["a <= b by rank (-10)", "b <= a by rank (+1)"]


def two_tables() -> Tabular:
    model = Tabular(input_shape=(2,), n_classes=1, n_tables=2, n_anchors=1, n_encoded=2, n_edges=5, seed=0)
    model.encoding.source.copy_(torch.arange(2))
    model.set_tables(torch.tensor([[[0, 1]], [[1, 0]]]), torch.tensor([[0.0, 10.0], [1.0, 0.0]])[:, :, None])
    return model

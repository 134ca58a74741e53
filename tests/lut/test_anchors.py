"""Anchors: in range, never equal, distinct while possible, drawn from the field, evenly."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lutetia._shared.sampling import unrank
from lutetia.errors import ArgumentError
from lutetia.lut.connectivity.anchors import check_anchors, random_anchors


def unordered(anchors: torch.Tensor) -> list[list[frozenset[int]]]:
    return [[frozenset(pair) for pair in detector] for detector in anchors.tolist()]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.integers(1, 7), st.integers(1, 24), st.integers(0, 1000))
def test_pairs_are_distinct_while_possible(n_inputs: int, n_detectors: int, n_anchors: int, seed: int) -> None:
    anchors = random_anchors(n_inputs, n_detectors, n_anchors, seed=seed)
    assert anchors.shape == (n_detectors, n_anchors, 2)
    assert anchors.dtype == torch.int32
    check_anchors(anchors, n_inputs)
    for pairs in unordered(anchors):
        assert all(len(pair) == 2 and max(pair) < n_inputs for pair in pairs)
        counts = Counter(pairs)
        assert len(counts) == min(n_anchors, math.comb(n_inputs, 2))
        assert max(counts.values()) - min(counts.values()) <= 1  # when pairs run out, all come again equally often


def test_every_ordered_pair_is_equally_likely_in_every_place() -> None:
    n_inputs, n_detectors = 5, 20_000
    anchors = random_anchors(n_inputs, n_detectors, 3, seed=11)
    expected = n_detectors / 20
    for place in range(3):
        counts = Counter(map(tuple, anchors[:, place].tolist()))
        assert len(counts) == 20
        assert all(abs(count - expected) < 5 * math.sqrt(expected) for count in counts.values())


@pytest.mark.parametrize("high", [1, 2, 94906266, 2**31 - 7, 2**31 - 2])
def test_the_list_of_pairs_is_exact_at_its_corners(high: int) -> None:
    """Just before (0, high) the square root of a large rank may be rounded up to the next pair."""
    for h in range(high, high + 1 + 300 * (high < 2**30)):
        first, last = h * (h - 1) // 2, h * (h + 1) // 2 - 1
        low, got = unrank(np.array([first, last]))
        assert (low.tolist(), got.tolist()) == ([0, h - 1], [h, h])


def test_large_inputs_reach_both_ends() -> None:
    n_inputs = 2**31 - 1
    anchors = random_anchors(n_inputs, 2000, 4, seed=3).long()
    check_anchors(anchors, n_inputs)
    assert abs(anchors.double().mean() / n_inputs - 0.5) < 0.02
    assert anchors.max() > 0.99 * n_inputs
    assert anchors.min() < 0.01 * n_inputs


def test_a_field_bounds_its_detector() -> None:
    fields = torch.tensor([[3, 8, -1, 1], [9, 2, 5, 7], [-1, 0, -1, 6]])
    anchors = random_anchors(10, 3, 6, seed=0, fields=fields)
    for row, detector in zip(fields.tolist(), anchors.tolist(), strict=True):
        assert {x for pair in detector for x in pair} == set(row) - {-1}
    assert [len(set(pairs)) for pairs in unordered(anchors)] == [3, 6, 1]


def test_seeds() -> None:
    first = random_anchors(50, 7, 5, seed=4)
    assert torch.equal(first, random_anchors(50, 7, 5, seed=4))
    assert not torch.equal(first, random_anchors(50, 7, 5, seed=5))
    torch.manual_seed(1)
    first = random_anchors(50, 7, 5)
    assert not torch.equal(first, random_anchors(50, 7, 5))
    torch.manual_seed(1)
    assert torch.equal(first, random_anchors(50, 7, 5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({(1, 2, 0): 7}, "anchor 2 of detector 1 compares inputs 7 and 1, expected inputs from 0 to 6"),
        ({(0, 1, 1): -1}, "anchor 1 of detector 0 compares inputs 0 and -1, expected inputs from 0 to 6"),
        ({(1, 0, 1): 0, (1, 2, 0): 7}, "anchor 0 of detector 1 compares inputs 0 and 0, expected two different inputs"),
    ],
)
def test_check_names_the_first_offender(change: dict[tuple[int, int, int], int], message: str) -> None:
    anchors = torch.tensor([0, 1]).repeat(2, 3, 1)
    check_anchors(anchors, 7)
    for place, value in change.items():
        anchors[place] = value
    with pytest.raises(ArgumentError, match=message):
        check_anchors(anchors, 7)


@pytest.mark.parametrize(
    "anchors",
    [
        torch.zeros(2, 3, dtype=torch.int32),
        torch.zeros(2, 3, 3, dtype=torch.int32),
        torch.tensor([[[0.0, 1.0]]]),
        torch.tensor([[[False, True]]]),
        torch.tensor([0, 1]).repeat(2, 25, 1),
        torch.zeros(2, 0, 2, dtype=torch.int32),
    ],
)
def test_check_refuses_other_shapes_and_dtypes(anchors: torch.Tensor) -> None:
    with pytest.raises(ArgumentError, match="anchors is"):
        check_anchors(anchors, 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 2, 3), "n_inputs is 1"),
        ((5, 0, 3), "n_detectors is 0"),
        ((5, 2, 25), "n_anchors is 25"),
        ((5, 2, 0), "n_anchors is 0"),
        ((5, 2, 3, -1), "seed is -1"),
        ((5, 2.0, 3), r"n_detectors is 2\.0"),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        random_anchors(*arguments)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([[0, 1], [2, 5]], "detector 1 holds input 5, expected -1 to 4"),
        ([[0, -2], [2, 3]], "detector 0 holds input -2"),
        ([[0, 1], [3, 3]], "detector 1 holds input 3 twice"),
        ([[0, 1], [3, -1]], "detector 1 holds 1 inputs, expected at least 2"),
        ([[0, 1]], "fields is int64"),
        ([[0.0, 1.0], [0.0, 1.0]], "fields is float32"),
    ],
)
def test_bad_fields(fields: list[list[float]], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        random_anchors(5, 2, 3, seed=0, fields=torch.tensor(fields))

"""Comparisons with constants: drawn, and set from data."""

from __future__ import annotations

import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.lut import random_anchors
from lutetia.nn.thresholds import draw_comparisons, thresholds_of_data


def test_drawn_pairs_are_those_of_before() -> None:
    for seed in (0, 7):
        anchors, thresholds = draw_comparisons("pairs", 9, 5, 4, seed)
        assert thresholds is None
        assert torch.equal(anchors, random_anchors(9, 5, 4, seed))


@pytest.mark.parametrize(("n_detectors", "n_anchors"), [(6, 4), (5, 3), (4, 1)])
def test_drawn_thresholds(n_detectors: int, n_anchors: int) -> None:
    anchors, thresholds = draw_comparisons("thresholds", 3, n_detectors, n_anchors, 1)
    assert thresholds is not None
    assert torch.equal(anchors[:, :, 1].flatten(), 3 + torch.arange(n_detectors * n_anchors, dtype=torch.int32))
    assert ((thresholds >= -1) & (thresholds <= 1)).all()
    for inputs in anchors[:, :3, 0]:  # of any three of a detector that has more, all are distinct
        if n_anchors == 3:
            assert sorted(inputs.tolist()) == [0, 1, 2]
    anchors, thresholds = draw_comparisons("mixed", 3, n_detectors, n_anchors, 1)
    assert thresholds is not None
    assert len(thresholds) == int((anchors[:, :, 1] >= 3).sum()) == n_detectors * n_anchors // 2
    pairs = anchors[:, :, 1] < 3
    assert torch.equal(anchors[pairs], random_anchors(3, n_detectors, n_anchors, 1)[pairs])


def test_thresholds_of_data_divide_it() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.stack([torch.randn(999, generator=generator), torch.full((999,), 4.0), torch.arange(999) % 2], 1)
    anchors = torch.tensor([[[0, 3], [0, 4]], [[0, 5], [1, 6]], [[2, 7], [2, 8]]], dtype=torch.int32)
    before = torch.tensor([0.5, -0.5, 0.0, 0.3, 0.1, 0.2, -7.0])
    new = thresholds_of_data(x, anchors, before)
    above = (x[:, :1] > new[:3]).sum(0).tolist()
    assert above == [166, 832, 499]  # 5/6, 1/6 and 1/2 of the values lie below: their order is that of before
    assert new[3:].tolist() == [4.0, 0.5, 0.5, -7.0]  # one value; two values; a threshold that nothing names
    assert torch.equal(thresholds_of_data(x, anchors, new), new)


def test_thresholds_of_data_refuse_what_has_no_quantiles() -> None:
    anchors = torch.tensor([[[0, 2], [1, 2]]], dtype=torch.int32)
    with pytest.raises(ArgumentError, match="threshold 0 is compared with inputs 0 and 1"):
        thresholds_of_data(torch.randn(4, 2), anchors, torch.zeros(1))
    with pytest.raises(ArgumentError, match="x has no rows"):
        thresholds_of_data(torch.randn(0, 2), anchors[:, :1], torch.zeros(1))
    with pytest.raises(ArgumentError, match="x has a value that is not finite"):
        thresholds_of_data(torch.tensor([[float("nan"), 0.0]]), anchors[:, :1], torch.zeros(1))

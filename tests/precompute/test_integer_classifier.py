"""Whole-number classifiers: their stages against the graph, and bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from whole import classifier, classifiers, numbers

from lutetia.errors import ArgumentError
from lutetia.lut import use_backend
from lutetia.models import DenseClassifier, LUTLayer, Tabular, Votes
from lutetia.precompute import integer_model
from lutetia.precompute.integer.classifier import LinearStage

KINDS = classifiers()


def run_stages(whole: Any, sample: list[int]) -> list[int]:
    """The sums of the last stage, by loops over the definition."""
    x = sample
    for stage in whole.stages:
        if isinstance(stage, LinearStage):
            x = [
                int(b) + sum(int(w) * v for w, v in zip(row, x, strict=True))
                for row, b in zip(stage.weight, stage.bias, strict=True)
            ]
            continue
        bits = [
            int(x[a] > (c if b < 0 else x[b]))
            for a, b, c in zip(stage.left.tolist(), stage.right.tolist(), stage.constant.tolist(), strict=True)
        ]
        sums = stage.bias.tolist()
        for lanes, flip, contents, targets in zip(stage.lanes, stage.flip, stage.contents, stage.targets, strict=True):
            index = int("".join(str(bits[lane]) for lane in lanes), 2) ^ int(flip)
            for target, value in zip(targets.tolist(), contents[index].tolist(), strict=True):
                sums[target] += value
        assert all(-(2 ** (stage.bits - 1)) <= value < 2 ** (stage.bits - 1) for value in sums)
        x = sums
    return x


@pytest.mark.parametrize("kind", KINDS)
def test_stages_are_the_graph(kind: str) -> None:
    whole = integer_model(KINDS[kind])
    x = numbers(whole.n_inputs, whole.input_bits)
    sums = [run_stages(whole, sample) for sample in x.tolist()]
    assert whole(x).tolist() == [each.index(max(each)) for each in sums]
    assert len(set(whole(x).tolist())) > 1


@pytest.mark.parametrize("kind", ["stacked", "thresholds", "votes", "tabular"])
def test_is_near_the_float_model(kind: str) -> None:
    model = KINDS[kind]
    whole = integer_model(model)
    x = torch.rand(200, *model.config.input_shape, generator=torch.Generator().manual_seed(0))
    with use_backend("reference"):
        agreement = (whole(whole.quantise(x)) == model(x).argmax(1)).double().mean()
    assert agreement > 0.9


def test_bare_votes_and_a_regression() -> None:
    votes = Votes(6, 3, 9, k=3, bits=4, thresholds=(3, 9), seed=0)
    whole = integer_model(votes)
    x = numbers(6, 4)
    assert torch.equal(whole(x), votes(x).argmax(1))
    regression = Tabular(input_shape=(2,), n_classes=1, n_tables=3, n_anchors=2, n_encoded=2, n_edges=5, seed=0)
    regression.set_tables(torch.tensor([0, 2 + 100]).expand(3, 2, 2), torch.arange(12.0).view(3, 4, 1) / 11)
    whole = integer_model(regression)
    assert whole.n_outputs == 1
    assert whole(numbers(2, 8, 20)).tolist() == [run_stages(whole, each)[0] for each in numbers(2, 8, 20).tolist()]


def test_ranges_come_from_the_checkpoint() -> None:
    model = classifier(input_shape=(4,), layers=[LUTLayer(n_outputs=5, n_detectors=4, n_anchors=2)])
    model.metadata = {"input_low": -2.0, "input_high": 2.0}
    whole = integer_model(model)
    assert whole.quantise(torch.tensor([[-2.0, 0.0, 2.0, 9.0]])).tolist() == [[0, 128, 255, 255]]
    narrow = integer_model(model, input_bits=2, low=0.0, high=3.0)
    assert narrow.input_bits == 2
    assert narrow.quantise(torch.tensor([[0.0, 1.0, 2.0, 3.0]])).tolist() == [[0, 1, 2, 3]]


def test_refuses_other_numbers() -> None:
    whole = integer_model(KINDS["votes"])
    with pytest.raises(ArgumentError, match="x holds 256, expected whole numbers from 0 to 255"):
        whole(np.full((1, 9), 256))
    with pytest.raises(ArgumentError, match="x holds -1"):
        whole(torch.full((1, 9), -1))
    with pytest.raises(ArgumentError, match="x holds fractions"):
        whole(torch.full((1, 9), 0.5))
    with pytest.raises(ArgumentError, match="expected shape"):
        whole(torch.zeros(1, 8, dtype=torch.int64))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            dict(layers=[LUTLayer(n_outputs=5, n_detectors=4, n_anchors=2, read="blend")]),
            r"layers\.0 reads .*'blend'.*layers\.0\.read=hard",
        ),
        (dict(readout="lut", readout_read="confidence"), r"readout reads its tables by 'confidence'.*readout_read=hard"),
        (dict(norm="layer"), r"norms\.0 is a layer norm.*--set model\.norm=rms"),
    ],
)
def test_says_which_layer_and_what_to_train(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        integer_model(classifier(**fields))


def test_refuses_a_dense_classifier() -> None:
    with pytest.raises(ArgumentError, match="DenseClassifier multiplies"):
        integer_model(DenseClassifier(input_shape=(4,), n_classes=2, layers=[LUTLayer(n_outputs=4, n_detectors=2, n_anchors=2)]))

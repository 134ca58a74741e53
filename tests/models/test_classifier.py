"""The classifier: it is its layers one after the other, it learns, and its twin has the same shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lutetia import models
from lutetia.errors import ArgumentError
from lutetia.models import ClassifierConfig, DenseClassifier, LUTClassifier, LUTLayer, ProjectedLayer, Projection2dLayer
from lutetia.nn import LUT, LUTProjection2d, ProjectedLUT
from lutetia.precompute import lut_network
from tools import require_module

require_module("numba")

WINDOWS = Projection2dLayer((10, 8), receptive_field=3, projection=(4, 2), n_anchors=3, grid=(3, 4), detectors_per_position=2)
KEPT = Projection2dLayer((2, 5, 4), 4, 3, n_anchors=2, stride=2, keep=0.5, read="confidence2", placement="sampled")
FLAT = LUTLayer(n_outputs=9, n_detectors=6, n_anchors=3, read="blend")
PROJECTED = ProjectedLayer(n_outputs=8, heads=2, head_width=5, n_detectors=4, n_anchors=3)
STACKS: dict[str, dict[str, Any]] = {
    "windows": {"input_shape": (7, 6), "layers": (WINDOWS, KEPT)},
    "all tables": {"input_shape": (7, 6), "layers": (WINDOWS, FLAT), "readout": "lut", "readout_detectors": 5},
    "features": {"input_shape": (11,), "layers": (FLAT, PROJECTED), "norm": "layer"},
    "colours": {"input_shape": (3, 7, 6), "layers": (WINDOWS, PROJECTED), "norm": "rms", "readout": "lut"},
    "read-out only": {"layers": (), "input_shape": (3, 4)},
    "no read-out": {"input_shape": (7, 6), "layers": (WINDOWS, LUTLayer(4, 6, 3)), "readout": "none"},
    "tables only": {"input_shape": (5,), "readout": "lut", "readout_read": "confidence"},
}
EVERY = pytest.mark.parametrize("stack", STACKS)


def make(stack: str, dtype: torch.dtype = torch.float64, **more: Any) -> LUTClassifier:
    fields = {"n_classes": 4, "initial_noise": 1.0, "seed": 0, **STACKS[stack], **more}
    model = LUTClassifier(**fields, dtype=dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "log_" not in name:
                parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)).to(dtype) * 0.3
    return model


def some_input(model: LUTClassifier, n: int = 7) -> torch.Tensor:
    return torch.randn(n, *model.config.input_shape, dtype=torch.float64)


@EVERY
def test_it_is_its_layers_one_after_the_other(stack: str) -> None:
    model = make(stack)
    x = given = some_input(model)
    for layer, shape in zip(model.layers, model.config.shapes[1:], strict=True):
        x = layer(x) if isinstance(layer, LUTProjection2d) else layer(x.reshape(len(x), -1))
        assert x.shape == (7, *shape)
        flat = x.reshape(7, -1)
        if model.config.norm == "layer":
            x = ((flat - flat.mean(1, keepdim=True)) / (flat.var(1, correction=0, keepdim=True) + 1e-5).sqrt()).view_as(x)
        elif model.config.norm == "rms":
            x = (flat / (flat.square().mean(1, keepdim=True) + 1e-6).sqrt()).view_as(x)
        if model.config.norm != "none":
            norm: Any = model.norms[len(model.config.shapes) - 1 - len(model.layers) + list(model.layers).index(layer)]
            x = (x.reshape(7, -1) * norm.weight + getattr(norm, "bias", torch.zeros(()))).view_as(x)
    torch.testing.assert_close(model(given), model.readout(x.reshape(7, -1)))
    assert model(given).shape == (7, 4)
    kinds = {"projection2d": LUTProjection2d, "lut": LUT, "projected": ProjectedLUT}
    assert [type(layer) for layer in model.layers] == [kinds[layer.kind] for layer in model.config.layers]


@EVERY
def test_every_parameter_learns(stack: str) -> None:
    model = make(stack)
    x = some_input(model, 64).requires_grad_()
    nn.functional.cross_entropy(model(x), torch.arange(64) % 4).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    assert x.grad is not None
    assert x.grad.any()


@EVERY
def test_the_twin_has_the_same_shapes_and_no_tables(stack: str) -> None:
    model = make(stack)
    twin = model.dense_twin()
    assert isinstance(twin, DenseClassifier)
    assert twin.config == model.config
    assert twin(some_input(model)).shape == (7, 4)
    counts = [each.weight.shape for each in twin.modules() if isinstance(each, nn.Linear)]
    sizes = [int(torch.tensor(shape).prod()) for shape in model.config.shapes]
    sizes += [4] * (model.config.readout != "none")
    assert counts == list(zip(sizes[1:], sizes, strict=False))
    assert sum(isinstance(each, nn.ReLU) for each in twin.modules()) == len(counts) - 1  # none after the scores


def test_the_network_for_mnist() -> None:
    """28×28 -> 56×56 -> 28×28 -> 10, as the tables' authors built it: 376 k weights, here 20% of the outputs kept."""
    first = Projection2dLayer((56, 56), 5, 10, n_anchors=3, grid=13, detectors_per_position=4, keep=0.2)
    second = Projection2dLayer((28, 28), 20, 5, n_anchors=5, grid=8, detectors_per_position=16, keep=0.2)
    model = LUTClassifier(layers=(first, second), seed=0)
    assert [layer.lut.n_detectors for layer in model.layers] == [13 * 13 * 4, 8 * 8 * 16]
    tables = 13 * 13 * 4 * 8 * 20 + 8 * 8 * 16 * 32 * 5
    assert model.n_parameters == tables + 784 * 10 + 10
    pixels = torch.randint(256, (3, 28, 28), dtype=torch.uint8)
    assert torch.equal(model(pixels), model(pixels.float() / 255))
    assert model.dense_twin().n_parameters == 784 * 3136 + 3136 + 3136 * 784 + 784 + 784 * 10 + 10


def test_all_tables_in_exact_sums_do_not_depend_on_the_batch() -> None:
    model = make("all tables", torch.float32, sums="fixed")
    assert not [module for module in model.modules() if isinstance(module, nn.Linear)]
    x = some_input(model).float()
    whole = model(x)
    assert all(torch.equal(model(x[at : at + 1])[0], whole[at]) for at in range(7))


def test_it_learns_to_tell_apart() -> None:
    """Which of four quarters of an image is the brightest."""
    torch.manual_seed(0)
    x = torch.rand(512, 6, 6)
    y = x.unfold(1, 3, 3).unfold(2, 3, 3).sum((-1, -2)).flatten(1).argmax(1)
    layer = LUTLayer(n_outputs=16, n_detectors=64, n_anchors=4, read="blend")
    model = LUTClassifier(input_shape=(6, 6), n_classes=4, layers=(layer,), seed=0)
    optimizer = torch.optim.Adam(model.parameters(), 3e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert (model(x).argmax(1) == y).float().mean() > 0.9


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.zeros(2, 7, 5), r"x is float32 \[2, 7, 5\]"),
        (torch.zeros(7, 6), "expected shape"),
        (torch.zeros(2, 7, 6, dtype=torch.int64), "x is int64"),
        ("x", "expected a tensor"),
    ],
)
def test_bad_input_is_named(x: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make("windows")(x)


def test_a_stack_may_be_given_as_plain_values() -> None:
    config = ClassifierConfig(input_shape=(7, 6), layers=(WINDOWS, FLAT), seed=0)
    plain = ClassifierConfig(input_shape=[7, 6], layers=[WINDOWS.to_dict(), FLAT.to_dict()], seed=0)  # type: ignore[arg-type]
    assert plain == config
    assert hash(plain) == hash(config)
    x = torch.randn(2, 7, 6)
    assert torch.equal(LUTClassifier(plain)(x), LUTClassifier(config)(x))


def test_no_layers_at_all_must_be_said() -> None:
    """Without tables a classifier is a linear model: nobody should get that by leaving something out."""
    for kind in (LUTClassifier, DenseClassifier):
        with pytest.raises(
            ArgumentError, match=rf"a {kind.__name__} was given no layers, expected some, such as layers=\[LUTLayer"
        ):
            kind(n_classes=3)
    assert LUTClassifier(input_shape=(4,), n_classes=3, layers=[]).n_parameters == 15
    assert LUTClassifier(ClassifierConfig(input_shape=(4,), n_classes=3)).n_parameters == 15  # as older files hold it
    assert LUTClassifier(input_shape=(4,), n_classes=3, readout="lut").config.layers == ()


def test_a_mix_is_a_linear_layer_before_the_tables(tmp_path: Path) -> None:
    layer = LUTLayer(n_outputs=3, n_detectors=9, n_anchors=3, mix=4)
    model = LUTClassifier(input_shape=(2, 3), n_classes=3, layers=[layer], readout="none", initial_noise=0.5, seed=0)
    mix, tables = model.layers[0]
    assert [tuple(each.weight.shape) for each in (mix, tables)] == [(4, 6), (9, 8, 3)]
    x = torch.rand(200, 2, 3) * 4 - 2
    assert torch.equal(model(x), tables(x.flatten(1) @ mix.weight.T))
    model(x).square().sum().backward()
    assert mix.weight.grad.abs().sum() > 0
    model.save_pretrained(tmp_path / "mixed")
    again = models.load(tmp_path / "mixed")
    assert torch.equal(again(x), model.eval()(x))
    integers = lut_network(model, bits=10, weight_bits=14, low=-2.0, high=2.0)
    assert (integers.classes(x) == model(x).argmax(1)).double().mean() > 0.95


@pytest.mark.parametrize(("more", "said"), [({"mix": 1}, "at least two sums"), ({"mix": -1}, "mix is -1"), ({"mix": 4}, "fixed")])
def test_a_mix_that_cannot_be_is_refused(more: dict[str, int], said: str) -> None:
    layer = {"kind": "lut", "n_outputs": 3, "n_detectors": 9, "n_anchors": 3, **more}
    with pytest.raises(ArgumentError, match=said):
        LUTClassifier(input_shape=(6,), n_classes=3, layers=[layer], readout="none", sums="fixed")


@pytest.mark.parametrize("kind", [LUTClassifier, DenseClassifier])
@pytest.mark.parametrize("norm", ["none", "rms", "layer"])
@pytest.mark.parametrize("more", [{"kind": "lut"}, {"kind": "projected", "heads": 2, "head_width": 3}], ids=["lut", "projected"])
def test_inputs_of_any_float_dtype(kind: type[LUTClassifier], norm: str, more: dict[str, Any]) -> None:
    layer = {"n_outputs": 4, "n_detectors": 3, "n_anchors": 2, **more}
    model = kind(input_shape=(5,), n_classes=3, layers=[layer], norm=norm, initial_noise=0.5, seed=0).eval()
    x = torch.randn(6, 5).bfloat16()  # which the others hold exactly
    wanted = model(x.float())
    for dtype in (torch.float64, torch.bfloat16):
        torch.testing.assert_close(model(x.to(dtype)).float(), wanted, rtol=0.02, atol=0.02)

"""Tensors of layouts and types that layers do not take: refused by name, also where a call like it was prepared before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lutetia.errors import ArgumentError
from lutetia.lut import growth, kernels, use_backend
from lutetia.nn import (
    LUT,
    DecodeAttention,
    LUTAttention,
    LUTProjection2d,
    ProjectedLUT,
    cell_total_variation,
    choose_anchors,
)
from tools import require_module

require_module("numba")
ODD: dict[str, Callable[[Tensor], Tensor]] = {
    "sparse": lambda x: x.to_sparse(),
    "rows": lambda x: x.flatten(0, -2).to_sparse_csr(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor([*x]),
    "whole": lambda x: x.int(),
    "complex": lambda x: x.to(torch.complex64).conj(),
}
LAYERS: dict[str, tuple[Callable[[], Any], Tensor]] = {
    "lut": (lambda: LUT(6, 4, 7, 3, seed=1), torch.randn(2, 6)),
    "synapses": (lambda: LUT(6, 4, 7, 3, seed=1, synapses=growth.random(7, 3, 4, 0.5, seed=2)), torch.randn(2, 6)),
    "read": (lambda: LUT(6, 4, 7, 3, seed=1, read="confidence2"), torch.randn(2, 6)),
    "attention": (lambda: LUTAttention(6, 4, 7, 2, 1, 6, seed=1), torch.randn(2, 1, 6)),
    "projected": (lambda: ProjectedLUT(6, 4, heads=2, head_width=3, n_detectors=2, n_anchors=2, seed=1), torch.randn(2, 6)),
    "images": (
        lambda: LUTProjection2d((3, 3), (2, 2), receptive_field=2, projection=2, n_anchors=2, grid=2, seed=1),
        torch.randn(2, 3, 3),
    ),
    "decode": (lambda: DecodeAttention(8, 2, 1), torch.randn(2, 1, 8)),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", LAYERS)
def test_an_input_that_no_layer_takes(name: str, odd: str) -> None:
    make, x = LAYERS[name]
    layer = make()
    with torch.no_grad():
        for _ in range(2):  # the second may be served by what the first prepared
            layer(x)
        for batch in (x, x[:1]):
            layer(batch)
            with pytest.raises(ArgumentError, match=r"^x is "):
                layer(ODD[odd](batch))
            if hasattr(layer, "new_cache"):
                with pytest.raises(ArgumentError, match=r"^x is "):
                    layer(ODD[odd](batch), cache=layer.new_cache(len(batch), 4))
    with pytest.raises(ArgumentError, match=r"^x is "):
        layer(ODD[odd](x))


@pytest.mark.parametrize("name", ["lut", "synapses", "read", "attention"])
def test_an_input_without_memory(name: str) -> None:
    make, x = LAYERS[name]
    layer = make()
    for _ in range(2):
        with torch.no_grad():
            layer(x)
            with pytest.raises(ArgumentError, match="meta"):
                layer(x.to("meta"))
        with pytest.raises(ArgumentError, match="meta"):
            layer(x.to("meta"))


def test_another_float_than_the_layers_is_named() -> None:
    x = torch.randn(2, 3, 8)
    for layer in (DecodeAttention(8, 2, 1), ProjectedLUT(8, 8, heads=2, head_width=3, n_detectors=2, n_anchors=2)):
        with pytest.raises(ArgumentError, match=r"^x is float64 .*, expected dtype float32"):
            layer(x.double())
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x.bfloat16()).shape == x.shape


def test_double_inputs_of_float_tables_in_sequences() -> None:
    """The gradient is double, and the tables are not."""
    layer, x = LUTAttention(6, 19, 7, 2, 1, 6, seed=1), torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(3, 5, 19, dtype=torch.float64)
    found = torch.autograd.grad(layer(x), (x, layer.positions), grad)
    with use_backend("reference"):
        expected = torch.autograd.grad(layer(x), (x, layer.positions), grad)
    torch.testing.assert_close(found, expected)


def test_tensors_of_a_cache_that_have_no_sizes() -> None:
    layer, x = LUTAttention(6, 4, 7, 2, 1, 6, seed=1), torch.randn(2, 1, 6)
    for name, odd in (("lengths", torch.tensor(1)), ("lengths", ODD["nested"](torch.zeros(2, 3))), ("indices", ODD["nested"](x))):
        cache = layer.new_cache(2)
        setattr(cache, name, odd)
        with pytest.raises(ArgumentError, match=r"^cache\."):
            layer(x, cache=cache)


def test_targets_without_a_size() -> None:
    layer, x = LAYERS["synapses"][0](), LAYERS["synapses"][1]
    layer.synapse_targets = layer.synapse_targets[0]
    with pytest.raises(ArgumentError, match=r"^synapses.targets is int32 \[\]"):
        layer(x)


def test_tables_that_are_no_floats_have_no_variation() -> None:
    with pytest.raises(ArgumentError, match=r"^weight is "):
        cell_total_variation(torch.zeros(3, 4, 2, dtype=torch.int32))


@pytest.mark.parametrize("name", ["x", "target", "thresholds"])
def test_anchors_are_chosen_by_numbers(name: str) -> None:
    given = {"x": torch.randn(9, 4), "target": torch.arange(9) % 3, "thresholds": torch.zeros(2)}
    with pytest.raises(ArgumentError, match=f"^{name} is .* expected a tensor that has memory"):
        choose_anchors(**{**given, name: given[name].to("meta")}, n_detectors=2, n_anchors=2, kind="mixed")


def test_weights_of_inference_mode_take_their_step() -> None:
    """With fixed sums, too, where torch writes them."""
    grad, indices, weight = torch.randn(5, 4), torch.randint(0, 8, (5, 7)).int(), torch.randn(7, 8, 4)
    with torch.inference_mode():
        inference = weight.clone()
    for each in (weight, inference):
        kernels("cpu").gather_weight_gradients_fc(grad, indices, 8, weight=each, external_lr=0.1, sums="fixed", int_rescaler=1.0)
    assert torch.equal(weight, inference)

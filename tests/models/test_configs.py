"""Configs: every value is checked, and what is written to a file comes back."""

from __future__ import annotations

import tomllib
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from lutetia import toml
from lutetia.errors import ArgumentError
from lutetia.models import ClassifierConfig, LUTLayer, LUTTransformer, ProjectedLayer, Projection2dLayer, TransformerConfig

MNIST = ClassifierConfig(
    layers=(
        Projection2dLayer(
            out_shape=(56, 56), receptive_field=5, projection=10, grid=13, detectors_per_position=4, n_anchors=3, keep=0.2
        ),
        Projection2dLayer(
            out_shape=(28, 28),
            receptive_field=20,
            projection=(5, 5),
            stride=(1, 2),
            n_anchors=5,
            placement="sampled",
            read="blend",
        ),
        ProjectedLayer(n_outputs=40, heads=2, table_dropout=0.25),
        LUTLayer(n_outputs=20, n_detectors=3, n_anchors=4, read="confidence"),
    ),
    norm="layer",
    readout="lut",
    seed=3,
)
CONFIGS = [
    TransformerConfig(),
    TransformerConfig(attention="softmax", n_kv_heads=2, width=64, read="confidence2", rope_base=500, seed=7, initial_noise=1e-4),
    ClassifierConfig(input_shape=(9,)),
    MNIST,
]


@pytest.mark.parametrize("config", CONFIGS)
def test_through_a_file_and_back(config: Any) -> None:
    table = tomllib.loads(toml.dumps(config.to_dict()))
    assert table == config.to_dict()
    assert type(config).from_dict(table) == config
    with pytest.raises(FrozenInstanceError):
        config.seed = 1


def test_what_is_left_out_has_its_default() -> None:
    assert TransformerConfig.from_dict({}) == TransformerConfig()
    assert "n_kv_heads" not in TransformerConfig().to_dict()
    assert {"seed", "n_kv_heads"} | set(TransformerConfig().to_dict()) == {field.name for field in fields(TransformerConfig)}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"widht": 3}, "no field 'widht': did you mean width"),
        ({"xyzzy": 3}, "no field 'xyzzy': expected one of vocab, context"),
        ({"width": 1}, "width is 1"),
        ({"width": 32.0}, "width is 32.0"),
        ({"context": 0}, "context is 0"),
        ({"attention": "hard"}, "attention is 'hard', expected one of 'lut', 'softmax'"),
        ({"feed_forward": "mlp"}, "feed_forward is 'mlp'"),
        ({"read": "soft"}, "read is 'soft'"),
        ({"norm": None}, "norm is None"),
        ({"unembedding": "tied"}, "unembedding is 'tied'"),
        ({"gradient": "none"}, "gradient is 'none'"),
        ({"sums": "exact"}, "sums is 'exact'"),
        ({"algorithm": "fast"}, "algorithm is 'fast'"),
        ({"table_dropout": 1.0}, "table_dropout is 1.0"),
        ({"dropout": 1}, "dropout is 1, expected less than 1"),
        ({"initial_noise": -1}, "initial_noise is -1"),
        ({"initial_noise": float("nan")}, "initial_noise is nan"),
        ({"n_anchors": 11, "positional_dim": 3}, "at most 24"),
        ({"ff_anchors": 25}, "ff_anchors is 25"),
        ({"shared_positions": 1}, "shared_positions is 1"),
        ({"rope_base": 0}, "rope_base is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"attention": "softmax", "width": 36}, "width is 36, expected a multiple of 2 · n_heads = 8"),
        ({"attention": "softmax", "width": 516, "n_heads": 2}, "width is 516, expected at most 256 · n_heads = 512"),
        ({"attention": "softmax", "n_heads": 4, "n_kv_heads": 3}, "n_heads is 4, expected a multiple of n_kv_heads = 3"),
        ({"feed_forward": "projected", "sums": "fixed"}, "projections are float"),
    ],
)
def test_a_bad_field_of_a_transformer_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        TransformerConfig.from_dict(values)
    with pytest.raises(ArgumentError, match=said):
        LUTTransformer(**values)


LAYER = {"kind": "lut", "n_outputs": 4, "n_detectors": 2, "n_anchors": 2}
WINDOW = {"kind": "projection2d", "out_shape": [4, 4], "receptive_field": 2, "projection": 2, "n_anchors": 2}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"input_shape": 28}, "input_shape is 28"),
        ({"input_shape": [1, 2, 3, 4]}, "input_shape is"),
        ({"input_shape": [0, 2]}, "a size of input_shape is 0"),
        ({"n_classes": 1}, "n_classes is 1"),
        ({"layers": {"kind": "lut"}}, "layers is"),
        ({"layers": [3]}, "layer 0 is 3"),
        ({"layers": [LAYER, {"n_outputs": 3}]}, "the kind of layer 1 is None, expected one of 'projection2d', 'lut'"),
        ({"layers": [LAYER | {"n_ouputs": 3}]}, r"layer 0 \(lut\): a LUTLayer has no field 'n_ouputs': did you mean n_outputs"),
        ({"layers": [{"kind": "lut", "n_outputs": 4}]}, r"layer 0 \(lut\): .* no n_detectors, n_anchors"),
        ({"layers": [LAYER | {"read": "x"}]}, r"layer 0 \(lut\): read is 'x'"),
        ({"layers": [WINDOW]}, "a grid or a stride"),
        ({"layers": [WINDOW | {"grid": 2, "stride": 2}]}, "a grid or a stride"),
        ({"layers": [WINDOW | {"grid": 2, "keep": 0}]}, "keep is 0"),
        ({"layers": [WINDOW | {"grid": 2, "projection": [1, 2, 3]}]}, "projection is"),
        ({"layers": [WINDOW | {"grid": 2, "placement": "x"}]}, "placement is 'x'"),
        ({"layers": [LAYER, WINDOW | {"grid": 2}]}, r"what layer 0 puts out is \[4\], expected an image.* for layer 1"),
        ({"input_shape": [9], "layers": [WINDOW | {"grid": 2}]}, r"input_shape is \[9\], expected an image"),
        ({"readout": "softmax"}, "readout is 'softmax'"),
        ({"readout_anchors": 0}, "readout_anchors is 0"),
        ({"readout": "none", "layers": [LAYER]}, r"what the last layer puts out is \[4\], expected 10 numbers"),
        ({"readout": "none", "input_shape": [10]}, r"the input is \[10\], expected 10 numbers from a layer"),
        ({"sums": "fixed", "layers": [{"kind": "projected", "n_outputs": 4}]}, "layer 0"),
        ({"input_shape": [1]}, "at least two numbers"),
    ],
)
def test_a_bad_field_of_a_classifier_is_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        ClassifierConfig.from_dict(values)


def test_a_model_takes_a_config_fields_or_both() -> None:
    config = TransformerConfig(width=8, n_layers=1, context=4, seed=0)
    assert LUTTransformer(config).config is config
    assert LUTTransformer(config, n_layers=2).config == TransformerConfig(width=8, n_layers=2, context=4, seed=0)
    with pytest.raises(ArgumentError, match=r"config is .*, expected a TransformerConfig"):
        LUTTransformer(MNIST)
    with pytest.raises(ArgumentError, match="expected a table of fields"):
        TransformerConfig.from_dict([1])  # type: ignore[arg-type]

"""The minimum size of a model, from its config alone: a file that holds less is refused before anything is built."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from lutetia._shared.windows import pair_of
from lutetia.lut import SCALARS
from lutetia.models.classifier_config import ClassifierConfig, LUTLayer, ProjectedLayer, Projection2dLayer
from lutetia.models.gates_config import GateNetworkConfig, seen_bits
from lutetia.models.tabular_config import TabularConfig
from lutetia.models.transformer_config import TransformerConfig
from lutetia.models.votes_config import VotesConfig


class ModelSize(NamedTuple):
    """The number of tensors of a model, of values in them, and of values in the windows that are computed to build it."""

    tensors: int
    numbers: int
    windows: int = 0


def transformer_size(config: TransformerConfig) -> ModelSize:
    """The minimum size of a `LUTTransformer`."""
    width, read = config.width, len(SCALARS[config.read])
    if config.attention == "softmax":
        attention = 2 * width * width + 2 * width * config.kv_heads * (width // config.n_heads)
    else:
        detectors = config.n_heads * config.n_detectors
        attention = _lut(detectors, 2 * config.n_anchors + config.positional_dim, width, config.n_anchors)
        attention += (config.context - 1) * (1 if config.shared_positions else detectors) * config.positional_dim
    feed_forward = 0
    if config.feed_forward == "dense":
        feed_forward = _dense(config)
    elif config.feed_forward == "lut":
        feed_forward = _lut(config.ff_detectors, config.ff_anchors, width, config.ff_anchors) + read
    elif config.feed_forward == "projected":
        feed_forward = _projected(width, width, config.ff_heads, config.ff_head_width, config.ff_detectors, config.ff_anchors)
    if config.unembedding == "linear":
        unembedding = width * config.vocab
    else:
        unembedding = _lut(config.unembedding_detectors, config.unembedding_anchors, config.vocab, config.unembedding_anchors)
    gates = 2 * config.n_ngrams * width
    ngrams = config.n_ngrams * (config.ngram_rows + width)
    numbers = config.vocab * width + ngrams + config.n_layers * (attention + feed_forward + gates) + unembedding
    return ModelSize((3 if config.feed_forward == "none" else 4) * config.n_layers, numbers)


def dense_transformer_size(config: TransformerConfig) -> ModelSize:
    """The minimum size of a `DenseTransformer`: keys and values, whose heads the twin may choose, are not counted."""
    layer = 2 * config.width * config.width + _dense(config)
    return ModelSize(4 * config.n_layers, 2 * config.vocab * config.width + config.n_layers * layer)


def classifier_size(config: ClassifierConfig) -> ModelSize:
    """The minimum size of a `LUTClassifier`."""
    numbers = windows = 0
    for layer, before in zip(config.layers, config.shapes, strict=False):
        n_inputs = math.prod(before)
        if isinstance(layer, LUTLayer):
            numbers += _lut(layer.n_detectors, layer.n_anchors, layer.n_outputs, layer.n_anchors) + layer.mix * n_inputs
        elif isinstance(layer, ProjectedLayer):
            heads = (layer.heads, layer.head_width, layer.n_detectors, layer.n_anchors)
            numbers += _projected(n_inputs, layer.n_outputs, *heads)
        else:
            detectors, field, projection = _windows(layer, before)
            numbers += _lut(detectors, layer.n_anchors, max(1, round(layer.keep * projection)), layer.n_anchors)
            windows += detectors * (field + projection)
    n_outputs = math.prod(config.shapes[-1])
    if config.readout == "linear":
        numbers += n_outputs * config.n_classes
    elif config.readout == "lut":
        numbers += _lut(config.readout_detectors, config.readout_anchors, config.n_classes, config.readout_anchors)
    return ModelSize(len(config.layers), numbers, windows)


def dense_classifier_size(config: ClassifierConfig) -> ModelSize:
    """The minimum size of a `DenseClassifier`."""
    counts = [math.prod(shape) for shape in config.shapes]
    numbers = sum(n * m for n, m in pairwise(counts))
    return ModelSize(len(config.layers), numbers + (counts[-1] * config.n_classes if config.readout != "none" else 0))


def votes_size(config: VotesConfig) -> ModelSize:
    """The minimum size of a `VotesClassifier`."""
    n_bits = math.prod(config.input_shape) * len(config.thresholds)
    return ModelSize(3, config.n_tables * (config.k * n_bits + 2**config.k + 1))


def gates_size(config: GateNetworkConfig) -> ModelSize:
    """The minimum size of a `GateNetwork`."""
    n_bits = math.prod(config.input_shape) * len(config.thresholds)
    tables = [*config.hidden, config.n_tables]
    numbers = sum(own * (config.k * read + 2**config.k) for read, own in zip(config.seen, tables, strict=True))
    return ModelSize(3 + len(config.hidden), numbers + config.n_tables + (n_bits if config.learn_thresholds else 0))


def tabular_size(config: TabularConfig) -> ModelSize:
    """The minimum size of a `Tabular`."""
    encoding = config.n_encoded * (1 + config.n_edges + config.n_categories)
    if config.patch_counts:
        encoding += config.patch_detectors * (4 * config.patch_pairs + 2) + 3 * config.patch_counts + 2
    if config.core == "tables":
        spread = _lut(config.spread_tables, config.spread_anchors, 1, config.spread_anchors)
        tensors = (9 if config.spread_tables else 6) + (5 if config.patch_counts else 0)
        return ModelSize(tensors, encoding + spread + _lut(config.n_tables, config.n_anchors, config.n_classes, config.n_anchors))
    reads = seen_bits(config.n_encoded, len(config.gate_codes), config.gate_hidden, False, config.gate_windows)
    layers = zip(reads, [*config.gate_hidden, config.n_tables], strict=True)
    numbers = sum(tables * (config.n_anchors * read + 2**config.n_anchors) for read, tables in layers)
    return ModelSize(6 + len(config.gate_hidden), encoding + numbers + config.n_tables)


def _dense(config: TransformerConfig) -> int:
    """The weights and offsets of a dense feed-forward."""
    return (2 * config.ff_multiple * config.width + config.ff_multiple + 1) * config.width


def _lut(detectors: int, address_bits: int, n_outputs: int, n_anchors: int) -> int:
    """The weights and anchors of a layer of tables."""
    return detectors * (2**address_bits * n_outputs + 2 * n_anchors)


def _projected(n_inputs: int, n_outputs: int, heads: int, head_width: int, detectors: int, n_anchors: int) -> int:
    return heads * head_width * (n_inputs + n_outputs) + _lut(heads * detectors, n_anchors, head_width, n_anchors)


def _windows(layer: Projection2dLayer, before: tuple[int, ...]) -> tuple[int, int, int]:
    """The detectors of a layer, and the inputs and the outputs in the windows of each."""
    field, projection = pair_of("receptive_field", layer.receptive_field), pair_of("projection", layer.projection)
    if layer.grid is not None:
        positions = math.prod(pair_of("grid", layer.grid))
    else:
        assert layer.stride is not None
        sides = zip(before[-2:], field, pair_of("stride", layer.stride), strict=True)
        positions = math.prod(max(0, side - window) // stride + 1 for side, window, stride in sides)
    inputs, outputs = math.prod(before[:-2] + field), math.prod(layer.out_shape[:-2] + projection)
    return positions * layer.detectors_per_position, inputs, outputs

"""`integer_model`: a trained model in whole numbers, or an error that names the layer that has no such form."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from lutetia.errors import ArgumentError, check_range, fail
from lutetia.precompute.front.encoder import Range, encoder
from lutetia.precompute.front.lutnet import LUTNetwork, lut_network
from lutetia.precompute.integer.c_numbers import number_columns
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.language import IntegerBlock, IntegerTransformer, TableLayer
from lutetia.precompute.integer.scales import EMBEDDING_BITS, LARGEST_FRACTION, gains, scaled

BYTES = 256
MOST_BITS = 31  # of the stream
MOST_SHIFT = 16
INPUT_BITS = 8


def integer_model(
    folder_or_model: str | os.PathLike[str] | nn.Module,
    *,
    weight_bits: int = 8,
    input_bits: int = INPUT_BITS,
    low: Range | None = None,
    high: Range | None = None,
    n_tables: int | None = None,
    readings: str | Mapping[str, str] | None = None,
) -> IntegerTransformer | IntegerClassifier:
    """The whole-number model of a checkpoint or a model: a LUTTransformer made only of tables, a LUTClassifier, Votes or Tabular.
    `weight_bits` is the number of bits in a table entry, 2 to 8, or of a Tabular 2 to 24. Inputs of a classifier from `low` to
    `high` (by default those of its metadata, else 0 to 1) become numbers of `input_bits` bits; Votes and Tabular have their own
    encoding. With `readings`, "auto" or texts by the names of columns, the C program of a Tabular takes whole numbers that stand
    for values (see "Readings of a sensor" in docs/hardware.md). `n_tables` keeps only the first tables of a Tabular, whose
    intervals are then unknown; all by default.
    """
    from lutetia.models import LUTTransformer, Tabular, Votes, VotesClassifier, as_readings, load

    model: Any = folder_or_model if isinstance(folder_or_model, nn.Module) else load(folder_or_model)
    check_range("weight_bits", weight_bits, 2, 24 if isinstance(model, Tabular) else 8)
    if n_tables is not None and not isinstance(model, Tabular):
        fail("n_tables", n_tables, f"None: a {type(model).__name__} is not fitted table by table")
    if readings is not None and not isinstance(model, Tabular):
        fail("readings", readings, f"None: a {type(model).__name__} has no columns")
    if isinstance(model, LUTTransformer):
        return _language(model, weight_bits)
    if isinstance(model, Votes):
        span = (0.0, float(2**model.bits - 1))
        return IntegerClassifier(LUTNetwork(model.graph(), model, encoder(model.bits, *span, model.n_inputs, affine=True)))
    if isinstance(model, VotesClassifier):
        config = model.config
        coded = encoder(config.bits, config.low, config.high, model.votes.n_inputs, affine=True)
        return IntegerClassifier(LUTNetwork(model.graph(), model, coded))
    if isinstance(model, Tabular):
        is_whole = n_tables in (None, model.config.n_tables)
        columns = () if readings is None else number_columns(model, None, as_readings(readings))
        return IntegerClassifier(model.network(weight_bits, n_tables), model.metadata if is_whole else None, columns)
    _check_classifier(model)
    metadata = getattr(model, "metadata", {})
    ends = [metadata.get(f"input_{name}", default) if given is None else given
            for name, given, default in (("low", low, 0.0), ("high", high, 1.0))]  # fmt: skip
    return IntegerClassifier(lut_network(model, bits=input_bits, weight_bits=weight_bits, low=ends[0], high=ends[1]))


# ---- language models -------------------------------------------------------------------------------------------------


def _language(model: object, weight_bits: int) -> IntegerTransformer:
    _check_language(model)
    weights = {name: _array(module.weight) for name, module in _tables(model).items()}
    for name, weight in weights.items():
        if not np.isfinite(weight).all():
            raise ArgumentError(f"{name} holds weights that are not finite, expected numbers")
    bits = {name: EMBEDDING_BITS if name == "embedding" else weight_bits for name in weights}
    most = LARGEST_FRACTION
    while True:  # a coarser stream, where the finest scale of a table would make it too wide
        limits = {name: LARGEST_FRACTION if name == "unembedding" else most for name in weights}
        tables = {name: scaled(weight, bits[name], limits[name]) for name, weight in weights.items()}
        fractions = [each.fraction for name, each in tables.items() if name != "unembedding"]
        made = _assembled(model, tables, max(fractions))
        if made.widths()["stream"] <= MOST_BITS and max(fractions) - min(fractions) <= MOST_SHIFT:
            return made
        most = max(fractions) - 1


def _tables(model: Any) -> dict[str, Any]:
    """The modules that hold tables, by name."""
    named: dict[str, Any] = {"embedding": model.embedding}
    for number, block in enumerate(model.blocks):
        named |= {f"blocks.{number}.attention": block.attention, f"blocks.{number}.feed_forward": block.feed_forward}
    return {**named, "unembedding": model.unembedding}


def _assembled(model: Any, tables: dict[str, Any], fraction: int) -> IntegerTransformer:
    def layer(name: str, module: Any, norm: nn.Module) -> TableLayer:
        own = tables[name]
        shift = 0 if name == "unembedding" else fraction - own.fraction
        parts: dict[str, Any] = {}
        about = module.describe()
        if about.positions is not None:
            bits = (about.positions.detach().cpu() > 0).long().numpy()  # [context - 1, T or 1, bits]
            codes = (bits << np.arange(bits.shape[-1])).sum(-1)
            parts = {"positions": np.broadcast_to(codes, (len(codes), len(own.numbers))), "position_bits": bits.shape[-1]}
        anchors = about.anchors.detach().cpu().numpy().astype(np.int64)
        return TableLayer(own.numbers, own.fraction, anchors, gains(_gain(norm)), shift, **parts)

    blocks = tuple(
        IntegerBlock(
            layer(f"blocks.{number}.attention", block.attention, block.attention_norm),
            layer(f"blocks.{number}.feed_forward", block.feed_forward, block.feed_forward_norm),
        )
        for number, block in enumerate(model.blocks)
    )
    last = layer("unembedding", model.unembedding, model.norm)
    embedding = tables["embedding"]
    shift = fraction - embedding.fraction
    return IntegerTransformer(model.config.context, embedding.numbers, shift, fraction, blocks, last, model)


def _gain(norm: nn.Module) -> np.ndarray | None:
    weight = getattr(norm, "weight", None)
    return None if weight is None else _array(weight)


def _array(values: torch.Tensor) -> np.ndarray:
    return values.detach().cpu().double().numpy()


def _check_language(model: Any) -> None:
    """Refuse a model that multiplies; the error names the layers, and says how to train without them."""
    from lutetia.models import DenseTransformer

    config = model.config
    if isinstance(model, DenseTransformer):
        raise ArgumentError('a DenseTransformer multiplies in every layer: train kind = "transformer" with attention = "lut", '
                            'feed_forward = "lut", unembedding = "lut" and read = "hard"')  # fmt: skip
    faults: list[tuple[str, str]] = []
    if config.attention != "lut":
        faults.append(("blocks.0.attention is softmax attention", "attention=lut"))
    if config.feed_forward != "lut":
        faults.append((f"blocks.0.feed_forward is {config.feed_forward!r}", "feed_forward=lut"))
    if config.unembedding != "lut":
        faults.append(("unembedding is linear", "unembedding=lut"))
    if config.read != "hard" and (config.feed_forward == "lut" or config.unembedding == "lut"):
        layer = "blocks.0.feed_forward" if config.feed_forward == "lut" else "unembedding"
        faults.append((f"{layer} reads its tables by {config.read!r}", "read=hard"))
    if model.ngrams is not None:
        faults.append(("ngrams, the n-gram tables, enter through gates that multiply", "ngrams=[] --set model.ngram_word=false"))
    if config.norm == "layer":
        faults.append(("blocks.0.attention_norm is a layer norm, whose offsets affect comparisons", "norm=rms"))
    if faults:
        why, settings = "; ".join(why for why, _ in faults), " ".join(f"--set model.{setting}" for _, setting in faults)
        raise ArgumentError(
            f"the model multiplies, so it has no integer form: {why}. Train it again: lutetia train CONFIG.toml {settings}"
        )
    if config.vocab > BYTES:
        fail("vocab", config.vocab, f"at most {BYTES}: a whole-number model reads and writes bytes")


# ---- classifiers -----------------------------------------------------------------------------------------------------


def _check_classifier(model: object) -> None:
    """Refuse a classifier that multiplies or whose norms cannot be removed; the error names the layer."""
    from lutetia.models import DenseClassifier, LUTClassifier

    if isinstance(model, DenseClassifier):
        raise ArgumentError('a DenseClassifier multiplies in every layer: train kind = "classifier", whose layers are tables')
    if not isinstance(model, LUTClassifier):
        return  # lut_network knows what else there is
    faults: list[tuple[str, str]] = []
    for number, layer in enumerate(model.config.layers):
        if layer.read != "hard":
            faults.append((f"layers.{number} reads its tables by {layer.read!r}", f"layers.{number}.read=hard"))
    if model.config.readout == "lut" and model.config.readout_read != "hard":
        faults.append((f"readout reads its tables by {model.config.readout_read!r}", "readout_read=hard"))
    if model.config.norm == "layer":
        faults.append(("norms.0 is a layer norm, whose offsets affect comparisons", "norm=rms"))
    if faults:
        why, settings = "; ".join(why for why, _ in faults), " ".join(f"--set model.{setting}" for _, setting in faults)
        raise ArgumentError(f"the model has no integer form: {why}. Train it again: lutetia train CONFIG.toml {settings}")

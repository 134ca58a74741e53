"""A whole-number language model as C99: the tables, then the fixed program `c/language.c`."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.precompute.integer.c_text import BEGIN, END, INCLUDES, array, define, n_bytes, smallest, source, title
from lutetia.precompute.integer.language import IntegerTransformer, TableLayer
from lutetia.precompute.integer.sampling import weights
from lutetia.precompute.integer.scales import GAIN_BITS

HEADER = """{title}#ifndef LUTETIA_MODEL_H
#define LUTETIA_MODEL_H

#include <stdint.h>

{begin}
{sizes}
typedef {index} index_t;

/* All that is kept while reading and writing: {ram:,} bytes. */
typedef struct {{
    int length; /* bytes in the window */
    uint8_t bytes[LUTETIA_CONTEXT];
    index_t keys[LUTETIA_LAYERS][LUTETIA_CONTEXT][LUTETIA_DETECTORS];
    index_t rows[LUTETIA_KEPT][LUTETIA_CONTEXT][LUTETIA_FF_DETECTORS];
    int32_t seen[LUTETIA_KEPT][LUTETIA_CONTEXT][LUTETIA_WIDTH], fed[LUTETIA_KEPT][LUTETIA_CONTEXT][LUTETIA_WIDTH];
    int32_t stream[LUTETIA_CONTEXT][LUTETIA_WIDTH];
}} lutetia_state;

void lutetia_reset(lutetia_state *state);                              /* forget all bytes; first of all calls */
int lutetia_put(lutetia_state *state, int byte);                       /* read a byte; -1 where it is not of the vocabulary */
int lutetia_best(const lutetia_state *state);                          /* the best next byte; -1 where nothing was read */
int lutetia_draw(const lutetia_state *state, uint32_t *generator);     /* a next byte drawn; the seed is the first *generator */
{end}"""


def language_files(model: IntegerTransformer) -> dict[str, str]:
    """The text of model.c and model.h."""
    return {"model.c": _program(model), "model.h": _header(model)}


def memory(model: IntegerTransformer) -> dict[str, int]:
    """Bytes of constant tables, and of the state."""
    first = model.blocks[0]
    layers = list(model.layers.values())
    gain_rows = GAIN_BITS * (len(layers)) if any(layer.gains is not None for layer in layers) else 0
    positions = sum(block.attention.positions.size for block in model.blocks if block.attention.positions is not None)
    anchors = sum(layer.anchors.size for layer in layers) * n_bytes(smallest(0, model.width - 1))
    constants = model.n_bytes() + gain_rows * model.width + positions * n_bytes(_index_type(model)) + anchors
    indices = len(model.blocks) * len(first.attention.numbers) + _kept(model) * len(first.feed_forward.numbers)
    sums = (1 + 2 * _kept(model)) * model.width
    per_byte = 1 + indices * n_bytes(_index_type(model)) + 4 * sums
    return {"flash_table_bytes": constants, "ram_bytes": 4 + model.context * per_byte}


def _kept(model: IntegerTransformer) -> int:
    """Blocks whose sums are kept: all but the last, which only the newest byte passes; one at least, as C has no empty arrays."""
    return max(len(model.blocks) - 1, 1)


def _index_type(model: IntegerTransformer) -> str:
    return smallest(0, 2 ** max(layer.anchors.shape[1] for layer in model.layers.values()) - 1)


def _header(model: IntegerTransformer) -> str:
    sizes = define(
        LUTETIA_VOCAB=model.vocab,
        LUTETIA_CONTEXT=model.context,
        LUTETIA_WIDTH=model.width,
        LUTETIA_LAYERS=len(model.blocks),
        LUTETIA_KEPT=_kept(model),
        LUTETIA_DETECTORS=len(model.blocks[0].attention.numbers),
        LUTETIA_FF_DETECTORS=len(model.blocks[0].feed_forward.numbers),
    )
    about = title("A language model of lookup tables: reads bytes, writes bytes.")
    return HEADER.format(begin=BEGIN, end=END, title=about, sizes=sizes, index=_index_type(model), ram=memory(model)["ram_bytes"])


def _program(model: IntegerTransformer) -> str:
    attention = [block.attention for block in model.blocks]
    feed_forward = [block.feed_forward for block in model.blocks]
    last = model.unembedding
    bits = GAIN_BITS - 1 if any(layer.gains is not None for layer in model.layers.values()) else 0
    half = (bits + 1) // 2  # of the gains' bits
    drop, table = weights(1.0, last.fraction)
    anchor = smallest(0, model.width - 1)
    widths = model.widths()
    sizes = define(
        VOCAB=model.vocab, CONTEXT=model.context, WIDTH=model.width, LAYERS=len(model.blocks),
        DETECTORS=len(attention[0].numbers), ANCHORS=attention[0].anchors.shape[1], POSITION_BITS=attention[0].position_bits,
        FF_DETECTORS=len(feed_forward[0].numbers), FF_ANCHORS=feed_forward[0].anchors.shape[1],
        LAST_DETECTORS=len(last.numbers), LAST_ANCHORS=last.anchors.shape[1],
        EMBEDDING_SHIFT=model.embedding_shift, GAIN_BITS=bits, HALF=half, DROP=drop, N_WEIGHTS=len(table),
    )  # fmt: skip
    compared = "int32_t" if widths["compared"] <= 32 else "int64_t"
    types = [
        "typedef int8_t table_t;\n",
        f"typedef {anchor} anchor_t;\n",
        f"typedef {compared} compared_t;\ntypedef u{compared} unsigned_t;\n",
        f"typedef {'int32_t' if widths['stream'] + half <= 32 else 'int64_t'} half_t; /* x times half the bits of a gain */\n",
    ]
    proven = "".join(f"   {name:<24}{width} bits\n" for name, width in widths.items())
    distances = max(model.context - 1, 1)
    arrays = [
        array("EMBEDDING", model.embedding, "int16_t"),
        array("ATTENTION", _stacked(attention, "numbers"), "table_t"),
        array("POSITIONS", _positions(attention, distances)),
        array("PAIRS", _stacked(attention, "anchors").reshape(len(attention), -1), "anchor_t"),
        array("SHIFTS", np.array([layer.shift for layer in attention])),
        array("FEED_FORWARD", _stacked(feed_forward, "numbers"), "table_t"),
        array("FF_PAIRS", _stacked(feed_forward, "anchors").reshape(len(feed_forward), -1), "anchor_t"),
        array("FF_SHIFTS", np.array([layer.shift for layer in feed_forward])),
        array("UNEMBEDDING", last.numbers, "table_t"),
        array("LAST_PAIRS", last.anchors.reshape(-1), "anchor_t"),
        array("WEIGHTS", table, "int32_t"),
    ]
    if bits:
        layers = list(model.layers.values())
        arrays.append(array("HAS_GAINS", np.array([layer.gains is not None for layer in layers]).astype(np.int64)))
        arrays.append(array("GAINS", np.stack([_gain_bits(layer, model.width, bits) for layer in layers]), "int8_t"))
    return "".join([
        title("A language model of lookup tables: the tables, the network, a program that writes."),
        INCLUDES,
        sizes, "\n", *types, "\n/* Sums and their proven widths, in two's complement:\n", proven, "*/\n\n", *arrays, "\n",
        source("language.c"),
    ])  # fmt: skip


def _stacked(layers: list[TableLayer], name: str) -> np.ndarray[Any, Any]:
    return np.stack([getattr(layer, name) for layer in layers])


def _positions(layers: list[TableLayer], distances: int) -> np.ndarray[Any, Any]:
    """PE of each distance: [layers, distances, detectors]; one row of zeros for a context of one byte."""
    codes = [layer.positions for layer in layers if layer.positions is not None]
    return np.stack([each if len(each) else np.zeros((distances, each.shape[1]), dtype=np.int64) for each in codes])


def _gain_bits(layer: TableLayer, width: int, bits: int) -> np.ndarray[Any, Any]:
    """Masks of 0 and -1: one row for each bit of the gains, the lowest first, then one for their signs: [bits + 1, width]."""
    gains = np.ones(width, dtype=np.int64) if layer.gains is None else layer.gains
    rows = [-((np.abs(gains) >> bit) & 1) for bit in range(bits)]
    return np.stack([*rows, -(gains < 0).astype(np.int64)])

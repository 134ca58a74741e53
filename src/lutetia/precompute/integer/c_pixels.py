"""lutetia_encode in C: the pixels of an image as the inputs of a model that counts patterns. It multiplies nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.models import REGION_CELLS
from lutetia.precompute.integer.c_columns import comparisons
from lutetia.precompute.integer.c_text import array, define, n_bytes, smallest, source, type_of
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.pixels import whole_edges

Array = np.ndarray[Any, Any]
HEADER = """
{sizes}
/* An image, its pixels row by row, one channel after another, as the inputs of lutetia_answer. */
#define LUTETIA_ENCODES
#define LUTETIA_SAMPLE LUTETIA_PIXELS
#define LUTETIA_LEAST 0
#define LUTETIA_MOST 255
typedef uint8_t sample_t;
void lutetia_encode(const uint8_t pixels[LUTETIA_PIXELS], input_t x[LUTETIA_INPUTS]);
"""
# A detector compares pairs of pixels at every position of the image; `held` counts its addresses in each of 4 x 4 cells.
ENCODE = """
/* How far two pixels of a patch are apart. */
static int apart(const uint8_t *at, int detector, int pair)
{{
    const LUTETIA_FLASH {offset} *first = FIRST + (detector << {pair_bits}), *second = SECOND + (detector << {pair_bits});
    int total, channel;
    if (!ALL_CHANNELS[detector])
        return at[first[pair]] - at[second[pair]];
    for (total = 0, channel = 0; channel < {channels}; channel++, at += {plane})
        total += at[first[pair]] > at[second[pair]] ? at[first[pair]] - at[second[pair]] : at[second[pair]] - at[first[pair]];
    return total;
}}

void lutetia_encode(const uint8_t pixels[LUTETIA_PIXELS], input_t x[LUTETIA_INPUTS])
{{
    static {count} held[{cells}];
    int detector, row, column, pair, i, n = 0, down, across;
    for (detector = 0; detector < {detectors}; detector++) {{
        const uint8_t *line = pixels;
        int below = 0, from_top = 0;
        down = DOWN[detector];
        across = ACROSS[detector];
        memset(held, 0, sizeof held);
        for (row = 0; row < down; row++, line += {width}) {{
            int beside = 0, from_left = 0;
            for (column = 0; column < across; column++) {{
                int address = 0;
                for (pair = 0; pair < {pairs}; pair++)
                    if (apart(line + column, detector, pair) > (int)THRESHOLD[detector])
                        address |= 1 << pair;
                held[((from_top << 2 | from_left) << {pairs}) | address]++;
                for (beside += 4; beside >= across; beside -= across)
                    from_left++;
            }}
            for (below += 4; below >= down; below -= down)
                from_top++;
        }}
        for (; n < LUTETIA_COUNTS && DETECTOR[n] == detector; n++) {{
            int32_t total = 0;
            for (i = 0; i < 16; i++)
                if (CELLS[REGION[n]] >> i & 1)
                    total += held[(i << {pairs}) | ADDRESS[n]];
            counts[n] = ({count})total;
        }}
    }}
    for (i = 0; i < LUTETIA_INPUTS; i++)
        x[i] = code_of(i, i < LUTETIA_PIXELS ? pixels[i] : counts[i - LUTETIA_PIXELS]);
}}

"""


def pixels_header(model: IntegerClassifier) -> str:
    """What model.h says of lutetia_encode."""
    return HEADER.format(sizes=define(LUTETIA_PIXELS=model.model.n_columns, LUTETIA_COUNTS=model.model.patches.n_counts))


def pixels_text(model: IntegerClassifier) -> str:
    """The tables and the function of lutetia_encode."""
    parts, (channels, height, width) = _arrays(model), model.model.patches.shape
    pairs = int(model.model.patches.pairs.shape[1])
    sizes = {
        "offset": type_of(parts["FIRST"]), "pair_bits": _pair_bits(pairs), "channels": channels, "plane": height * width,
        "width": width, "pairs": pairs, "cells": 16 << pairs, "detectors": len(parts["DOWN"]), "count": _count_type(model),
    }  # fmt: skip
    kinds = {"FIRST": sizes["offset"], "SECOND": sizes["offset"]}
    tables = "".join(array(name, values, kinds.get(name)) for name, values in parts.items())
    tables += f"typedef int32_t value_t;\nstatic {sizes['count']} counts[LUTETIA_COUNTS];\n"
    return tables + source("codes.c") + ENCODE.format(**sizes)


def pixels_bytes(model: IntegerClassifier) -> tuple[int, int]:
    """Bytes of constants, and of memory that is used: what is held of one detector, all counts and the image."""
    parts, each = _arrays(model), n_bytes(_count_type(model))
    held = (16 << model.model.patches.pairs.shape[1]) + model.model.patches.n_counts
    flash = sum(values.size * n_bytes(type_of(values)) for values in parts.values())
    return flash, each * held + model.model.n_columns


def _count_type(model: IntegerClassifier) -> str:
    """Of a number of positions."""
    return smallest(0, model.model.n_columns)


def _pair_bits(pairs: int) -> int:
    """The bits of a number of a pair, so that pairs of a detector begin at a shifted number."""
    return (pairs - 1).bit_length()


def _arrays(model: IntegerClassifier) -> dict[str, Array]:
    """The tables of lutetia_encode: of detectors, of counts, and of inputs their edges and the code above each."""
    patches = model.model.patches
    pairs, plane, threshold, counted = patches.arrays()
    _, height, width = patches.shape
    n_pairs = pairs.shape[1]
    places = np.zeros((2, len(pairs), 1 << _pair_bits(n_pairs)), np.int64)
    shift = np.maximum(plane, 0)[:, None] * (height * width)
    for end, of in enumerate((slice(0, 2), slice(2, 4))):
        places[end, :, :n_pairs] = pairs[..., of] @ np.array([width, 1]) + shift
    starts, edges, codes = _edges(model)
    return {
        "FIRST": places[0].reshape(-1),
        "SECOND": places[1].reshape(-1),
        "ALL_CHANNELS": (plane < 0).astype(np.int64),
        "THRESHOLD": threshold,
        "DOWN": height - pairs[..., ::2].max((1, 2)),
        "ACROSS": width - pairs[..., 1::2].max((1, 2)),
        "DETECTOR": counted[:, 0],
        "ADDRESS": counted[:, 1],
        "REGION": counted[:, 2],
        "CELLS": np.array(REGION_CELLS),
        "START": starts,
        "EDGE": edges,
        "CODE": codes,
    }


def _edges(model: IntegerClassifier) -> tuple[Array, Array, Array]:
    """START [n_inputs + 1], EDGE and CODE: the edges of each input at the constants it is compared with; all of them, where two
    inputs are compared with each other."""
    left, right, constant = comparisons(model)
    compared = {*left[right >= 0].tolist(), *right[right >= 0].tolist()}
    starts, edges, codes = [0], [], []
    for number, own in enumerate(whole_edges(model)):
        wanted = np.arange(1, len(own) + 1) if number in compared else np.unique(constant[(left == number) & (right < 0)])
        wanted = wanted[(wanted >= 1) & (wanted <= len(own))]
        edges += own[wanted - 1].tolist()
        codes += (wanted + 1).tolist()
        starts.append(len(codes))
    return np.array(starts), np.array(edges, np.int64), np.array(codes, np.int64)

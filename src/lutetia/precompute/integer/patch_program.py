"""What the core of a model that counts patterns does, as the contents of its memories: see `verilog/patches.v`.

    detectors  of each detector its threshold, channel, whether all channels count, and its positions across and down
    offsets    of each of its steps the pixels that are compared, as places after that of the position
    slots      for each address that it can give the number of its counters; 0 where nothing is read of them
    inputs     the counts of each detector, then the pixels, that tables compare: where they are, and how many words of `edges`
    edges      for each value from 0 on, how many edges of an input lie just below it; PER values a word

and the tables of `core_program`. All of them are read from the first word to the last for an image, so no word says where the
next one is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lutetia.errors import ArgumentError, check_range
from lutetia.precompute.integer.classifier import IntegerClassifier, TableStage
from lutetia.precompute.integer.core_program import (
    Compared,
    CoreProgram,
    Field,
    Memory,
    MemoryWords,
    add_tables,
    compared_inputs,
    table_stage,
)
from lutetia.precompute.integer.pixels import LEVELS, has_patches, whole_edges
from lutetia.precompute.integer.verilog_language import bits_for

Array = np.ndarray[Any, Any]
PER = 16  # values of a word of edges: 8 take 1.8 times the words, 32 a quarter more bits (measured on drawn shapes)
MOST_CHANNELS = 16
MOST_PIXELS = 1 << 16  # of an image, without its channels
PIXEL = 3  # the kind of an input; 0 to 2 are counts of the image, of quarters and of cells
# Cycles of the parts of the core besides those that they spend on their work.
SET_UP, COUNTED = 2, 9  # before the positions of a detector, and behind them
TAKEN = 3  # before the words of an input
RESTED = 3  # behind the last input


@dataclass(frozen=True, eq=False)
class PatchProgram(CoreProgram):
    """What the core of a model that counts patterns does."""

    positions: int  # of all detectors

    @property
    def cycles(self) -> int:
        """From the last pixel of an image to its answer."""
        size = self.sizes
        counted = size["DETECTORS"] * (SET_UP + COUNTED) + self.positions * size["STEPS"]
        return counted + size["INPUTS"] * TAKEN + size["STEPPED"] + RESTED + self.looked

    @property
    def kept(self) -> dict[str, Memory]:
        """The image and the counters."""
        size = self.sizes
        made = {"image": Memory(8 * size["CHANNELS"], size["PIXELS"], 2 * size["C"])}
        for level, name in enumerate(("image", "quarter", "cell")):
            made[f"{name} counters"] = Memory(size["COUNT_BITS"] + size["DETECTOR_BITS"], 1 << size["SLOT_BITS"] + 2 * level)
        return made


def patch_program(model: IntegerClassifier, reuse: int = 1) -> PatchProgram:
    """The program of a model. Each comparator is used `reuse` times at every position: 1 has one for each pair of a detector."""
    stage = _check(model)
    patches = model.model.patches
    pairs, plane, threshold, counted = patches.arrays()
    channels, height, width = patches.shape
    check_range("reuse", reuse, 1, pairs.shape[1])
    per_step = -(-pairs.shape[1] // reuse)
    inputs = _inputs(model, stage)
    kept = np.unique([each.detector for each in inputs if each.detector >= 0])
    pairs = pairs[kept]
    across, down = width - pairs[..., 1::2].max((1, 2)), height - pairs[..., ::2].max((1, 2))
    slots, slot_bits = _slots(inputs, counted, model.model.n_columns, kept, pairs.shape[1])
    place_bits, side_bits = bits_for(height * width), max(height, width).bit_length()
    channel_bits = bits_for(channels)
    count_bits = int(max(height * width, 1)).bit_length()
    made = MemoryWords()
    made.add(
        "detectors",
        [
            Field("threshold", (channels * (LEVELS - 1)).bit_length()),
            Field("channel", channel_bits),
            Field("all", 1),
            Field("across", side_bits),
            Field("down", side_bits),
        ],
        np.stack([threshold[kept], np.maximum(plane[kept], 0), plane[kept] < 0, across, down], 1),
    )
    offsets = _offsets(pairs, width, per_step)
    made.add("offsets", [Field(f"{end} {n}", place_bits) for n in range(per_step) for end in ("first", "second")], offsets)
    made.add("slots", [Field("slot", slot_bits)], slots[:, None])
    source_bits = max(place_bits + channel_bits, slot_bits + 4)
    steps = [_steps(each.edges) for each in inputs]
    n_words = np.array([-(-len(each) // PER) for each in steps])
    ends = _last_of_each([each.detector for each in inputs])
    made.add(
        "inputs",
        [Field("last_word", bits_for(int(n_words.max()))), Field("source", source_bits), Field("kind", 2), Field("is_last", 1)],
        np.stack([n_words - 1, _sources(inputs, counted, slots, model, place_bits), [each.kind for each in inputs], ends], 1),
    )
    edge_bits = max(1, int(max(each.max(initial=0) for each in steps)).bit_length())
    edges = np.concatenate([np.pad(each, (0, -len(each) % PER)) for each in steps]).reshape(-1, PER)
    made.add("edges", [Field(str(n), edge_bits) for n in range(PER)], edges)
    places = {each.number: place for place, each in enumerate(inputs)}
    tables = add_tables(made, stage, places, {each.number: each.compared for each in inputs})
    sizes = {
        **tables,
        "CHANNELS": channels, "PIXELS": height * width, "IMAGE_WIDTH": width, "C": per_step, "STEPS": len(offsets) // len(kept),
        "DETECTORS": len(kept), "PAIRS": len(offsets), "PATTERN_BITS": pairs.shape[1], "PER": PER, "EDGE_BITS": edge_bits,
        "STEPPED": len(edges), "HAS_PIXELS": inputs[-1].kind == PIXEL,
        "PLACE_BITS": place_bits, "SIDE_BITS": side_bits, "CHANNEL_BITS": channel_bits, "COUNT_BITS": count_bits,
        "DISTANCE_BITS": (channels * (LEVELS - 1)).bit_length(), "VALUE_BITS": max(count_bits, 8), "SLOT_BITS": slot_bits,
        "SOURCE_BITS": source_bits, "WORD_BITS": bits_for(int(n_words.max())),
    }  # fmt: skip
    names = {"DETECTORS": "DETECTOR", "PAIRS": "PAIR", "STEPPED": "STEPPED", "STEPS": "STEP"}
    sizes |= {f"{name}_BITS": bits_for(sizes[counted]) for counted, name in names.items()}
    whole = {name: int(value) for name, value in sizes.items()}
    return PatchProgram(whole, made.words, made.fields, stage.bias.tolist(), int((across * down).sum()))


def _check(model: IntegerClassifier) -> TableStage:
    """The layer of tables of a model that has a core."""
    if not has_patches(model):
        raise ArgumentError("the model counts no patterns in images: graph.emit or emit(reuse=...) make its circuit")
    stage = table_stage(model)
    channels, height, width = model.model.patches.shape
    if channels > MOST_CHANNELS or height * width > MOST_PIXELS:
        found = f"{height} × {width} pixels of {channels} channels"
        raise ArgumentError(f"the images have {found}, expected {MOST_PIXELS:,} pixels and {MOST_CHANNELS} channels at most")
    return stage


# ---- inputs ----------------------------------------------------------------------------------------------------------


class _Coded(NamedTuple):
    """A pixel or a count that tables compare: its number in the model, its detector (-1 of a pixel), its kind, the edges that
    make a difference, and what the tables ask of it."""

    number: int
    detector: int
    kind: int
    edges: Array
    compared: Compared


def _inputs(model: IntegerClassifier, stage: TableStage) -> list[_Coded]:
    """The inputs that tables compare, in the order in which they become codes: counts by detector, then pixels."""
    counted, n_pixels = model.model.patches.arrays()[3], model.model.n_columns
    used = compared_inputs(stage, whole_edges(model))
    if max(used) < n_pixels:
        used[n_pixels] = Compared(np.zeros(0, np.int64), {})  # a detector that nobody asks: the core has at least one
    found = []
    for number in (*sorted(each for each in used if each >= n_pixels), *sorted(each for each in used if each < n_pixels)):
        detector, _, region = (-1, 0, 0) if number < n_pixels else counted[number - n_pixels].tolist()
        kind = PIXEL if number < n_pixels else 0 if region == 0 else 1 if region <= 4 else 2
        top, own = LEVELS - 1 if number < n_pixels else n_pixels, used[number].edges
        found.append(_Coded(number, detector, kind, own[own < top], used[number]))
    return found


def _steps(edges: Array) -> Array:
    """How many edges lie just below each value from 0 on: a value has passed those of all values up to its own."""
    return np.bincount(np.maximum(edges + 1, 0), minlength=1)


def _last_of_each(detectors: list[int]) -> Array:
    """Whether each input is the last of its detector, or of the pixels."""
    return np.append(np.diff(detectors) != 0, True)


def _sources(inputs: list[_Coded], counted: Array, slots: Array, model: IntegerClassifier, place_bits: int) -> Array:
    """Where the value of each input is: a pixel by place and channel, a count by its counter."""
    n_pixels, n_patterns = model.model.n_columns, 1 << model.model.patches.pairs.shape[1]
    _, height, width = model.model.patches.shape
    kept = {detector: place for place, detector in enumerate(np.unique([each.detector for each in inputs if each.detector >= 0]))}
    found = []
    for each in inputs:
        if each.kind == PIXEL:
            channel, place = divmod(each.number, height * width)
            found.append(channel << place_bits | place)
            continue
        detector, address, region = counted[each.number - n_pixels].tolist()
        slot = int(slots[kept[detector] * n_patterns + address])
        found.append((slot, slot << 2 | (region - 1), slot << 4 | (region - 5))[each.kind])
    return np.array(found, dtype=np.int64)


# ---- detectors -------------------------------------------------------------------------------------------------------


def _offsets(pairs: Array, width: int, per_step: int) -> Array:
    """The two places of each comparison of a step: [detectors · steps, 2 · per_step]; a pixel with itself where there is none."""
    n, n_pairs, _ = pairs.shape
    steps = -(-n_pairs // per_step)
    places = np.zeros((n, steps * per_step, 2), np.int64)
    places[:, :n_pairs] = np.stack([pairs[..., 0] * width + pairs[..., 1], pairs[..., 2] * width + pairs[..., 3]], -1)
    return places.reshape(n * steps, per_step * 2)


def _slots(inputs: list[_Coded], counted: Array, n_pixels: int, kept: Array, n_pairs: int) -> tuple[Array, int]:
    """The number of the counters of each address of each detector that is kept, from 1, and the bits of such a number."""
    slots = np.zeros((len(kept), 1 << n_pairs), np.int64)
    for place, detector in enumerate(kept):
        own = np.unique([counted[each.number - n_pixels, 1] for each in inputs if each.detector == detector])
        slots[place, own] = np.arange(1, len(own) + 1)
    return slots.reshape(-1), bits_for(int(slots.max()) + 1)

"""The core of a model that counts patterns, in Python: it reads the memories of a `PatchProgram` as the Verilog does, so it says
what these hold without a simulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.precompute.integer.patch_program import PER, PIXEL, PatchProgram

Array = np.ndarray[Any, Any]
GRID = 4  # cells down and across


def interpret(program: PatchProgram, pixels: Array) -> Array:
    """The answers to images, whole numbers [n, channels, places] from 0 to 255: classes, or sums of a regression, int64 [n]."""
    return program.answers(_codes(program, np.asarray(pixels, np.int64)))


def _codes(program: PatchProgram, pixels: Array) -> Array:
    """The code of each input, in the order of the memory: int64 [n, inputs]."""
    size, codes = program.sizes, []
    inputs = {name: program.column("inputs", name).tolist() for name in ("last_word", "source", "kind", "is_last")}
    edges = np.stack([program.column("edges", str(n)) for n in range(PER)], 1)
    word, detector, held = 0, 0, _counters(program, 0, pixels)
    for last_word, source, kind, is_last in zip(*inputs.values(), strict=True):
        if kind == PIXEL:
            channel, place = divmod(source, 1 << size["PLACE_BITS"])
            value = pixels[:, channel, place]
        else:
            value = held[kind][:, source]
        own = edges[word : word + last_word + 1].reshape(-1)
        passed = np.cumsum(own)
        codes.append(1 + passed[np.minimum(value, len(own) - 1)])
        word += last_word + 1
        if is_last and detector + 1 < size["DETECTORS"]:
            detector += 1
            held = _counters(program, detector, pixels)
    return np.stack(codes, 1)


def _counters(program: PatchProgram, detector: int, pixels: Array) -> list[Array]:
    """The counters of one detector after all its positions: of the image, of quarters, of cells, int64 [n, counters] each."""
    size = program.sizes
    told = {each.name: int(program.column("detectors", each.name)[detector]) for each in program.fields["detectors"]}
    row, column = np.divmod(np.arange(told["across"] * told["down"]), told["across"])
    places = row * size["IMAGE_WIDTH"] + column
    address: Array = np.zeros((len(pixels), len(places)), np.int64)
    steps = slice(detector * size["STEPS"], (detector + 1) * size["STEPS"])
    offsets = [program.column("offsets", each.name)[steps] for each in program.fields["offsets"]]
    for number in range(size["STEPS"] * size["C"]):
        step, lane = divmod(number, size["C"])
        first, second = (pixels[:, :, places + offsets[2 * lane + end][step]] for end in (0, 1))
        apart = np.abs(first - second).sum(1) if told["all"] else (first - second)[:, told["channel"]]
        address |= (apart > told["threshold"]).astype(np.int64) << number
    patterns = 1 << size["PATTERN_BITS"]
    slot = program.column("slots", "slot")[detector * patterns + address % patterns]
    top, left = row * GRID // told["down"], column * GRID // told["across"]
    counters = (slot, slot << 2 | (top >> 1 << 1 | left >> 1), slot << 4 | (top << 2 | left))
    return [_counted(each, 1 << size["SLOT_BITS"] + 2 * level) for level, each in enumerate(counters)]


def _counted(numbers: Array, n: int) -> Array:
    """How often each number below n is in each row: [rows, n]."""
    return np.stack([np.bincount(row, minlength=n) for row in numbers])

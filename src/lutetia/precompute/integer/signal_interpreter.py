"""The core of a model of windows of signals, in Python: it reads the memories of a `SignalProgram` as the Verilog does, so it
says what these hold without a simulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.models import SHAPE_SAMPLES
from lutetia.precompute.integer.signal_program import (
    ABOVE,
    FROM_MEAN,
    FROM_OTHER,
    HIGH,
    LOW,
    LOW_AT,
    OF_SHAPE,
    OTHER_SIDE,
    RANGE,
    SAME_SIDE,
    SAMPLE,
    SUM,
    SignalProgram,
)

Array = np.ndarray[Any, Any]


def interpret(program: SignalProgram, windows: Array) -> Array:
    """The answers to windows of samples int64 [n, signals, length]: classes, or sums of a regression, int64 [n]."""
    size, codes, edge = program.sizes, [], 0
    names = [each.name for each in program.fields["passes"]]
    edges = _signed(program.column("edges", "edge"), size["TOTAL_BITS"])
    above = _signed(program.column("passes", "above"), size["ABOVE_BITS"]).tolist()
    mean = np.zeros((len(windows), 1), np.int64)
    for at, numbers in enumerate(zip(*(program.column("passes", name).tolist() for name in names), strict=True)):
        word = dict(zip(names, numbers, strict=True))
        own, first, lag, take = windows[:, word["signal"]], word["first"], word["lag"], word["take"]
        samples, others = (own[:, begin : begin + word["n_samples"]] for begin in (first, first - lag))
        is_shape = take == OF_SHAPE
        taken = _shape_sums(own, word) > above[at] if is_shape else _taken(take, samples, others, mean)
        value, n_edges = _given(word["give"], samples, taken), word["n_edges"]
        if word["is_mean"]:
            mean = value[:, None] // size["LENGTH"]
        if word["is_coded"]:
            codes.append(1 + (value[:, None] > edges[edge : edge + n_edges]).sum(1))
            edge += n_edges
        if word["is_last"]:
            break
    return program.answers(np.stack(codes, 1))


def _signed(words: Array, bits: int) -> Array:
    return np.where(words >> bits - 1, words - (1 << bits), words)


def _shape_sums(samples: Array, word: dict[str, int]) -> Array:
    """The sum of a shape at each place: its samples, twice those that are raised and less the others."""
    count, apart = word["n_samples"], word["lag"]
    taps = [
        samples[:, tap * apart : tap * apart + count] * (2 if word["raised"] >> tap & 1 else -1) for tap in range(SHAPE_SAMPLES)
    ]
    return np.sum(taps, axis=0)


def _taken(take: int, samples: Array, others: Array, mean: Array) -> Array:
    same = (samples > mean) == (others > mean)
    return {
        SAMPLE: samples,
        ABOVE: samples - mean,
        FROM_MEAN: np.abs(samples - mean),
        FROM_OTHER: np.abs(samples - others),
        SAME_SIDE: same.astype(np.int64),
        OTHER_SIDE: (~same).astype(np.int64),
    }[take]


def _given(give: int, samples: Array, taken: Array) -> Array:
    if give == SUM:
        return np.asarray(taken.sum(1))
    if give in (LOW, HIGH):
        return np.asarray(samples.min(1) if give == LOW else samples.max(1))
    if give == RANGE:
        return np.asarray(samples.max(1) - samples.min(1))
    return np.asarray(samples.argmin(1) if give == LOW_AT else samples.argmax(1))

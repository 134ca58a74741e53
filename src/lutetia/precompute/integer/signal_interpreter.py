"""The core of a model of windows of signals, in Python: it reads the memories of a `SignalProgram` as the Verilog does, so it
says what these hold without a simulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.precompute.integer.signal_program import (
    ABOVE,
    FROM_MEAN,
    FROM_OTHER,
    HIGH,
    LOW,
    LOW_AT,
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
    names = ("signal", "take", "give", "n_samples", "first", "lag", "n_edges", "is_mean", "is_coded", "is_last")
    edges = program.column("edges", "edge")
    edges = np.where(edges >> size["TOTAL_BITS"] - 1, edges - (1 << size["TOTAL_BITS"]), edges)
    mean = np.zeros((len(windows), 1), np.int64)
    for word in zip(*(program.column("passes", name).tolist() for name in names), strict=True):
        signal, take, give, count, first, lag, n_edges, is_mean, is_coded, is_last = word
        own = windows[:, signal]
        samples, others = (own[:, begin : begin + count] for begin in (first, first - lag))
        value = _given(give, samples, _taken(take, samples, others, mean))
        if is_mean:
            mean = value[:, None] // size["LENGTH"]
        if is_coded:
            codes.append(1 + (value[:, None] > edges[edge : edge + n_edges]).sum(1))
            edge += n_edges
        if is_last:
            break
    return program.answers(np.stack(codes, 1))


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

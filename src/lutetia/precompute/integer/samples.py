"""Random samples of a classifier as its C program takes them: whole inputs, pixels, numbers of columns, or samples of signals."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from lutetia.precompute.integer.c_numbers import number_ends, numbers_type, values_of
from lutetia.precompute.integer.c_text import type_of
from lutetia.precompute.integer.c_windows import windows_of
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.pixels import has_patches, pixel_inputs

Array = np.ndarray[Any, Any]


class Samples(NamedTuple):
    """What is given [n, values], its type in C, and the inputs [answers, n_inputs] that are made of it."""

    given: Array
    kind: str
    x: Array

    def answers(self, model: IntegerClassifier) -> Array:
        """The answers of a model, each with the half width of its interval if there is one: int64 [n, 1 or 2]."""
        answers = [model(self.x).numpy(), *([] if model.half_width is None else [model.half_width(self.x)])]
        return np.stack(answers, 1)

    def to_bytes(self) -> bytes:
        """As a program reads them from a file."""
        sign, size = ("u", self.kind[4:-2]) if self.kind.startswith("u") else ("i", self.kind[3:-2])
        return self.given.astype(f"<{sign}{int(size) // 8}").tobytes()


def random_samples(model: IntegerClassifier, count: int) -> Samples:
    """So many of them."""
    random = np.random.default_rng(0)
    if has_patches(model):
        pixels = random.integers(256, size=(count, model.model.n_columns))
        return Samples(pixels, "uint8_t", np.asarray(pixel_inputs(model, pixels)))
    if (windows := windows_of(model)) is not None:
        low, high = windows.ends
        n = windows.length + (count - 1) * windows.step
        noise = random.integers(low // 2, high // 2, (n, len(windows.signals)))
        made = windows.inputs(noise, np.arange(count) * windows.step)
        return Samples(noise, "int32_t", model.quantise(torch.from_numpy(made)).numpy())
    if model.columns:
        return column_samples(model, random.random((count, len(model.columns))))
    top = 2**model.input_bits
    x = random.integers(top, size=(count, model.n_inputs))
    return Samples(x, type_of(np.array([top - 1])), x)


def column_samples(model: IntegerClassifier, places: Array) -> Samples:
    """Numbers at some places between the ends of their columns, from 0 to 1; every third of those that may be missing is."""
    kind, missing = numbers_type(model)
    ends = np.array([number_ends(column) for column in model.columns])
    given = np.rint(ends[:, 0] + places * (ends[:, 1] - ends[:, 0])).astype(np.int64)
    values = np.stack([values_of(column, given[:, at]) for at, column in enumerate(model.columns)], 1)
    for at, column in enumerate(model.columns):
        if column.valid:
            given[at % 3 :: 3, at], values[at % 3 :: 3, at] = missing, np.nan
    return Samples(given, kind, model.model.encoding.codes(values).T.astype(np.int64))

"""What the core of a model of windows of signals does, as the contents of its memories: see `verilog/signals.v`.

    passes     of each pass over a part of a signal: what is taken of its samples, what the pass gives, how many edges follow
    edges      of each pass the edges of its code, rising, each a whole number that it has to be above

and the tables of `core_program`. All of them are read from the first word to the last for a window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lutetia.errors import ArgumentError
from lutetia.models import SHAPE_KERNELS, SHAPE_SAMPLES, SignalFeature, SignalWindows
from lutetia.precompute.integer.c_windows import whole_edge, windows_of
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.core_program import (
    CoreProgram,
    Field,
    Memory,
    MemoryWords,
    add_tables,
    compared_inputs,
    table_stage,
)
from lutetia.precompute.integer.verilog_language import bits_for

Array = np.ndarray[Any, Any]
MOST_SIGNALS = 64
SHAPE_BITS = 5  # more than of a sample, of what the sum of a shape is above: it has 12 weights, and a sign
SPARE = 16  # samples that are taken while a window is answered, at least, where that many come before the next one
# What is taken of a sample, and what a pass gives: the numbers of `verilog/signals.v`.
SAMPLE, ABOVE, FROM_MEAN, FROM_OTHER, SAME_SIDE, OTHER_SIDE, OF_SHAPE = range(7)
SUM, LOW, HIGH, RANGE, LOW_AT, HIGH_AT = range(6)
AROUND = 8  # cycles of a pass besides its samples and edges
BEFORE = 1  # cycles between the last pass and the tables


class Pass(NamedTuple):
    """A pass over some samples of a signal: what is taken of each, what it gives, where it begins, how many samples it takes,
    and how many samples before each the other one is. Of a shape: over how many places, how far its samples are apart, which
    of them are raised (a bit each), and what their sum is above."""

    take: int
    give: int
    first: int
    n_samples: int
    lag: int = 0
    raised: int = 0
    above: int = 0
    is_mean: bool = False

    @property
    def needs_mean(self) -> bool:
        return self.take in (ABOVE, FROM_MEAN, SAME_SIDE, OTHER_SIDE)


def pass_of(kind: str, at: int, windows: SignalWindows) -> Pass:
    """The pass that makes a feature of such windows."""
    length = windows.length
    whole = {
        "mean": (SAMPLE, SUM), "minimum": (SAMPLE, LOW), "maximum": (SAMPLE, HIGH), "range": (SAMPLE, RANGE),
        "deviation": (FROM_MEAN, SUM), "place of the maximum": (SAMPLE, HIGH_AT), "place of the minimum": (SAMPLE, LOW_AT),
    }  # fmt: skip
    lagged = {"crossings": (OTHER_SIDE, 1), "change": (FROM_OTHER, at), "agreement": (SAME_SIDE, at)}
    parts = {"part": (SAMPLE, SUM, 8), "part above": (ABOVE, SUM, 8), "quarter range": (SAMPLE, RANGE, 4)}
    if kind in whole:
        return Pass(*whole[kind], 0, length, is_mean=kind == "mean")
    if kind in lagged:
        take, lag = lagged[kind]
        return Pass(take, SUM, lag, length - lag, lag)
    if kind == "quarter change":
        begin, end = _part(length, 4, at)
        return Pass(FROM_OTHER, SUM, begin + 1, end - begin - 1, 1)
    if kind == "shape":
        shape = windows.shapes[at]
        raised = sum(1 << place for place in SHAPE_KERNELS[shape.kernel])
        return Pass(OF_SHAPE, SUM, 0, shape.places(length), shape.apart, raised, shape.above)
    if kind not in parts:
        raise ArgumentError(f"the model asks for {kind!r} of its signals, which no core makes: --target c")
    take, give, count = parts[kind]
    begin, end = _part(length, count, at)
    return Pass(take, give, begin, end - begin)


def _part(length: int, count: int, number: int) -> tuple[int, int]:
    return number * length // count, (number + 1) * length // count


@dataclass(frozen=True, eq=False)
class SignalProgram(CoreProgram):
    """What the core of a model of windows does."""

    windows: SignalWindows

    @property
    def cycles(self) -> int:
        """From the last sample of a window to its answer."""
        size = self.sizes
        means = int(self.column("passes", "is_mean").sum()) * size["BITS"]
        taps = np.where(self.column("passes", "take") == OF_SHAPE, SHAPE_SAMPLES, 1)
        samples = int((self.column("passes", "n_samples") * taps).sum())
        return size["PASSES"] * AROUND + samples + means + int(self.column("passes", "n_edges").sum()) + BEFORE + self.looked

    @property
    def kept(self) -> dict[str, Memory]:
        """The samples."""
        size = self.sizes
        return {"samples": Memory(size["SIGNALS"] * size["BITS"], 1 << size["PLACE_BITS"], 2)}


def signal_program(model: IntegerClassifier) -> SignalProgram:
    """The program of a model of windows of signals."""
    windows = windows_of(model)
    if windows is None:
        raise ArgumentError("the model takes no windows of signals: graph.emit or emit(reuse=...) make its circuit")
    if len(windows.signals) > MOST_SIGNALS:
        raise ArgumentError(f"the windows have {len(windows.signals)} signals, expected {MOST_SIGNALS} at most")
    stage, length = table_stage(model), windows.length
    length_bits = bits_for(length + 1)
    total_bits = windows.bits + 1 + length_bits
    inputs = compared_inputs(stage, _whole_edges(model, windows, total_bits))
    source = model.model.encoding.source.tolist()
    order = sorted(inputs, key=lambda number: (source[number], number))
    columns = windows.columns
    passes = [*_passes(windows, [(number, *columns[source[number]]) for number in order])]
    place_bits = bits_for(length + min(SPARE, windows.step - 1))
    made = MemoryWords()
    has_shapes = any(each.take == OF_SHAPE for _, _, each in passes)
    above_bits = windows.bits + SHAPE_BITS if has_shapes else 1
    fields = {
        "signal": bits_for(len(windows.signals)), "take": 3, "give": 3, "n_samples": length_bits, "first": place_bits,
        "lag": place_bits, "n_edges": bits_for(max(len(inputs[number].edges) for number in order) + 1), "is_mean": 1,
        "is_coded": 1, "is_last": 1, "raised": SHAPE_SAMPLES if has_shapes else 1, "above": above_bits,
    }  # fmt: skip
    words = [
        (signal, each.take, each.give, each.n_samples, each.first, each.lag, 0 if number is None else len(inputs[number].edges),
         each.is_mean, number is not None, at == len(passes) - 1, each.raised, each.above & (1 << above_bits) - 1)
        for at, (number, signal, each) in enumerate(passes)
    ]  # fmt: skip
    made.add("passes", [Field(*each) for each in fields.items()], np.array(words))
    edges = np.concatenate([[0], *(inputs[number].edges for number in order)])[1:]
    edges = edges if len(edges) else np.zeros(1, np.int64)
    made.add("edges", [Field("edge", total_bits)], (edges & (1 << total_bits) - 1)[:, None])
    sizes = {
        **add_tables(made, stage, {number: place for place, number in enumerate(order)}, inputs),
        "SIGNALS": len(windows.signals), "BITS": windows.bits, "LENGTH": length, "STEP": windows.step,
        "ROOM": (1 << place_bits) - length, "PASSES": len(passes), "EDGES": len(edges),
        "SIGNAL_BITS": fields["signal"], "LENGTH_BITS": length_bits, "TOTAL_BITS": total_bits, "PLACE_BITS": place_bits,
        "LEFT_BITS": max(length, windows.step).bit_length(), "COUNTED_BITS": fields["n_edges"],
        "PASS_BITS": bits_for(len(passes)), "EDGE_BITS": bits_for(len(edges)), "COUNT_BITS": bits_for(windows.bits),
        "HAS_SHAPES": has_shapes, "RAISED_BITS": fields["raised"], "ABOVE_BITS": above_bits,
        "INNER_BITS": windows.bits + SHAPE_BITS,
    }  # fmt: skip
    whole = {name: int(value) for name, value in sizes.items()}
    return SignalProgram(whole, made.words, made.fields, stage.bias.tolist(), windows)


def _passes(windows: SignalWindows, asked: list[tuple[int, int, SignalFeature]]) -> Iterator[tuple[int | None, int, Pass]]:
    """The passes, of each its input, if it has one, and its signal. Asked are inputs with their signals and features; the mean of
    a signal comes first, where something needs it."""
    known = -1
    for number, signal, own in asked:
        one = pass_of(own.kind, own.at, windows)
        if one.needs_mean and known != signal:
            yield None, signal, pass_of("mean", 0, windows)
        if one.needs_mean or one.is_mean:
            known = signal
        yield number, signal, one


def _whole_edges(model: IntegerClassifier, windows: SignalWindows, bits: int) -> list[Array]:
    """All edges of each input as whole numbers of so many bits: its code is one more than the number of them that it is above."""
    encoding, columns, found = model.model.encoding, windows.columns, []
    for row, column in zip(encoding.edges.cpu().numpy(), encoding.source.tolist(), strict=True):
        divisor = windows.divisor(*columns[column])
        found.append(np.array([whole_edge(edge, divisor, bits) for edge in row[np.isfinite(row)].tolist()], np.int64))
    return found

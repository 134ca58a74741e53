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
from lutetia.models import SignalFeature, SignalWindows
from lutetia.precompute.integer.c_windows import whole_edge, windows_of
from lutetia.precompute.integer.classifier import IntegerClassifier
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
from lutetia.precompute.integer.verilog_language import bits_for

Array = np.ndarray[Any, Any]
MOST_SIGNALS = 64
SPARE = 16  # samples that are taken while a window is answered, at least, where that many come before the next one
# What is taken of a sample, and what a pass gives: the numbers of `verilog/signals.v`.
SAMPLE, ABOVE, FROM_MEAN, FROM_OTHER, SAME_SIDE, OTHER_SIDE = range(6)
SUM, LOW, HIGH, RANGE, LOW_AT, HIGH_AT = range(6)
AROUND = 8  # cycles of a pass besides its samples and edges
BEFORE = 1  # cycles between the last pass and the tables


class Pass(NamedTuple):
    """A pass over some samples of a signal: what is taken of each, what it gives, where it begins, how many samples it takes,
    and how many samples before each the other one is."""

    take: int
    give: int
    first: int
    n_samples: int
    lag: int = 0


def pass_of(kind: str, at: int, length: int) -> Pass:
    """The pass that makes a feature of a window of so many samples."""
    whole = {
        "mean": (SAMPLE, SUM), "minimum": (SAMPLE, LOW), "maximum": (SAMPLE, HIGH), "range": (SAMPLE, RANGE),
        "deviation": (FROM_MEAN, SUM), "place of the maximum": (SAMPLE, HIGH_AT), "place of the minimum": (SAMPLE, LOW_AT),
    }  # fmt: skip
    lagged = {"crossings": (OTHER_SIDE, 1), "change": (FROM_OTHER, at), "agreement": (SAME_SIDE, at)}
    parts = {"part": (SAMPLE, SUM, 8), "part above": (ABOVE, SUM, 8), "quarter range": (SAMPLE, RANGE, 4)}
    if kind in whole:
        return Pass(*whole[kind], 0, length)
    if kind in lagged:
        take, lag = lagged[kind]
        return Pass(take, SUM, lag, length - lag, lag)
    if kind == "quarter change":
        begin, end = _part(length, 4, at)
        return Pass(FROM_OTHER, SUM, begin + 1, end - begin - 1, 1)
    if kind not in parts:
        told = "no core makes: --target c, or train with --set data.shapes=false"
        raise ArgumentError(f"the model asks for {kind!r} of its signals, which {told}")
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
        samples = int(self.column("passes", "n_samples").sum())
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
    passes = [*_passes(windows, [(number, *columns[source[number]]) for number in order], inputs)]
    place_bits = bits_for(length + min(SPARE, windows.step - 1))
    made = MemoryWords()
    fields = {
        "signal": bits_for(len(windows.signals)), "take": 3, "give": 3, "n_samples": length_bits, "first": place_bits,
        "lag": place_bits, "n_edges": bits_for(max(each[6] for each in passes) + 1), "is_mean": 1, "is_coded": 1, "is_last": 1,
    }  # fmt: skip
    words = np.array([(*each, number == len(passes) - 1) for number, each in enumerate(passes)])
    made.add("passes", [Field(*each) for each in fields.items()], words)
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
    }  # fmt: skip
    whole = {name: int(value) for name, value in sizes.items()}
    return SignalProgram(whole, made.words, made.fields, stage.bias.tolist(), windows)


def _passes(
    windows: SignalWindows, asked: list[tuple[int, int, SignalFeature]], inputs: dict[int, Compared]
) -> Iterator[tuple[int, ...]]:
    """The words of the passes, without whether one is the last: of each input that is asked its number, signal and feature. The
    mean of a signal comes first, where something needs it."""
    known = -1
    for number, signal, own in asked:
        one = pass_of(own.kind, own.at, windows.length)
        needs_mean = one.take in (ABOVE, FROM_MEAN, SAME_SIDE, OTHER_SIDE)
        is_mean = own.kind == "mean"
        if needs_mean and known != signal:
            yield signal, SAMPLE, SUM, windows.length, 0, 0, 0, 1, 0
        if needs_mean or is_mean:
            known = signal
        yield signal, one.take, one.give, one.n_samples, one.first, one.lag, len(inputs[number].edges), int(is_mean), 1


def _whole_edges(model: IntegerClassifier, windows: SignalWindows, bits: int) -> list[Array]:
    """All edges of each input as whole numbers of so many bits: its code is one more than the number of them that it is above."""
    encoding, columns, found = model.model.encoding, windows.columns, []
    for row, column in zip(encoding.edges.cpu().numpy(), encoding.source.tolist(), strict=True):
        divisor = windows.divisor(*columns[column])
        found.append(np.array([whole_edge(edge, divisor, bits) for edge in row[np.isfinite(row)].tolist()], np.int64))
    return found

"""`lutetia build` of a model of windows of signals: a core that takes samples one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia.cli.build_core_kind import CoreKind, CorePage, Prepared
from lutetia.cli.build_data import Measured, run_recordings
from lutetia.cli.guard import UsageError
from lutetia.models import Tabular
from lutetia.precompute import Core, CoreProgram, IntegerClassifier, SignalCore, signal_program
from lutetia.report import Part

if TYPE_CHECKING:
    from lutetia.cli.build import BuildRequest

PIECE = 3  # windows of a piece of a recording that a simulator is given
FEED = (
    "Hold rst high for a rising edge of clk. Then give a sample of all signals at each rising edge at which in_valid and "
    "in_ready are both high, with in_last at the last one of a recording: no window lies in two. An answer is given at an edge "
    "at which out_valid and out_ready are both high. rst, synchronous and active high, begins anew with the first sample of a "
    "recording."
)
STREAM = (
    "Samples come in tdata as in in_data, and tlast comes with the last one of a recording; without it a recording has no end. "
    "The answer to a window is a frame of its own."
)


def _check(model: Tabular, request: BuildRequest) -> None:
    bits = model.metadata["windows"]["bits"]
    if request.input_bits not in (None, bits):
        raise UsageError(f"--input-bits is {request.input_bits}, and the samples of this model have {bits} bits")
    if request.reuse is not None:
        raise UsageError("--reuse is for a core that counts patterns in images, and this model takes windows of signals")


def _prepare(model: Tabular, data: Measured | str, request: BuildRequest) -> Prepared:
    """The recordings of the run, whole numbers [samples, signals] each."""
    return Prepared(data, run_recordings(request.checkpoint, request.data, model), {})


def _some(core: Core, recordings: Any, n: int) -> Any:
    """Pieces of the recordings, spread over them, which have at least n windows in all; or a random walk."""
    assert isinstance(core, SignalCore)
    windows = core.windows
    length = windows.length + (PIECE - 1) * windows.step
    n_pieces = -(-n // PIECE)
    whole = [own for own in recordings or () if len(own) >= length]
    if not whole:
        low, high = windows.ends
        steps = np.random.default_rng(0).integers(low // 64, high // 64, (n_pieces, length, len(windows.signals)))
        return list(np.clip(steps.cumsum(1), low, high))
    places = [(number, begin) for number, own in enumerate(whole) for begin in range(0, len(own) - length + 1, length)]
    chosen = [places[at] for at in np.unique(np.linspace(0, len(places) - 1, min(n_pieces, len(places))).astype(np.int64))]
    return [whole[number][begin : begin + length] for number, begin in chosen]


def _facts(core: Core) -> dict[str, Any]:
    assert isinstance(core, SignalCore)
    size, windows = core.program.sizes, core.windows
    signals = [{"name": each.name, "unit": f"{10.0**-each.decimals:.{each.decimals}f}"} for each in windows.signals]
    return {
        "window": {"bits": windows.bits, "length": windows.length, "step": windows.step, "signals": signals},
        "room": min(size["ROOM"], size["STEP"] - 1),
        "passes": size["PASSES"],
        "edges": size["EDGES"],
        "total_bits": size["TOTAL_BITS"],
        "cycles_per_window": core.cycles_per_window,
    }


def core_text(report: dict[str, Any]) -> str:
    """What a core is, in a sentence."""
    window = report["window"]
    n = len(window["signals"])
    of = f"of {n} signals" if n > 1 else "of a signal"
    return (
        f"the model takes windows {of}, so it becomes a core that takes a sample at a time: {window['length']:,} samples a "
        f"window, {report['passes']} passes over them, {report['tables']:,} tables, {report['latency']:,} cycles per answer"
    )


def _parts(report: dict[str, Any]) -> list[Part]:
    window, memory = report["window"], report["memories"]["samples"]
    n, bits = len(window["signals"]), window["bits"]
    return [
        Part("input", "samples", (), n, n * bits, "one after another"),
        Part("memory", "ring", (0,), n, n * bits, f"{memory['words']:,} samples"),
        Part("sum", "passes", (1,), 1, report["total_bits"], f"{report['passes']} in turn"),
        Part("compare", "codes", (2,), report["inputs"], 8 * report["inputs"], f"{report['edges']:,} edges"),
    ]


def _told(report: dict[str, Any]) -> dict[str, str]:
    window = report["window"]
    return {
        "signals": f"{len(window['signals'])}",
        "bits per sample": f"{window['bits']}",
        "samples of a window": f"{window['length']:,}",
        "samples from window to window": f"{window['step']:,}",
        "samples taken while a window is answered": f"{report['room']}",
    }


def _inputs(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    window = report["window"]
    bits = window["bits"]
    return [
        (each["name"], f"{bits * (at + 1) - 1}:{bits * at}", f"two’s complement, in steps of {each['unit']}")
        for at, each in enumerate(window["signals"])
    ]


def _feed(report: dict[str, Any]) -> str:
    window = report["window"]
    return (
        f"The first window is full after {window['length']:,} samples, then one every {window['step']:,}. While one is "
        f"answered, {report['room']} more samples are taken; then in_ready is low. {FEED}"
    )


def _program(model: IntegerClassifier, request: BuildRequest) -> CoreProgram:
    return signal_program(model)


def _emit(model: IntegerClassifier, request: BuildRequest) -> SignalCore:
    return model.emit_signals()


SIGNALS = CoreKind(
    name="signals",
    one="window",
    why="takes windows of signals",
    sample="sample",
    check=_check,
    program=_program,
    emit=_emit,
    prepare=_prepare,
    some=_some,
    facts=_facts,
    text=core_text,
    smaller="a shorter data.window",
    page=CorePage(
        said="The last samples are in memory. One pass after another makes sums and ends of them, which are looked up.",
        feed=_feed,
        stream=STREAM,
        parts=_parts,
        facts=_told,
        inputs=_inputs,
    ),
)

"""A model of windows of signals as Verilog: a core that takes samples one after another, and answers when a window is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from lutetia.errors import fail
from lutetia.models import SignalWindows
from lutetia.precompute.hdl.axi import in_bytes, padded
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.core_program import TABLE_SIZES
from lutetia.precompute.integer.hardware import BENCH
from lutetia.precompute.integer.signal_interpreter import interpret
from lutetia.precompute.integer.signal_program import SignalProgram, signal_program
from lutetia.precompute.integer.verilog_core import WRAPPER, Core, core_files, filled, parameters
from lutetia.precompute.integer.verilog_language import hex_words, words

Array = np.ndarray[Any, Any]
# What the bench is about.
BARE = """lutetia_core core (
        .clk(clk), .rst(rst), .in_data(sample[BITS-1:0]), .in_last(in_last), .in_valid(in_valid), .in_ready(in_ready),
        .out_data(out_data), .out_valid(out_valid), .out_ready(out_ready));"""
WRAPPED = """lutetia_core_axis core (
        .aclk(clk), .aresetn(!rst), .s_axis_tdata(sample[BITS-1:0]), .s_axis_tvalid(in_valid), .s_axis_tready(in_ready),
        .s_axis_tlast(in_last), .m_axis_tdata(out_data), .m_axis_tvalid(out_valid), .m_axis_tready(out_ready), .m_axis_tlast(),
        .identity());"""


@dataclass(frozen=True, eq=False)
class SignalCore(Core):
    """The core of a model of windows of signals. Recordings are whole numbers [samples, signals] each, one or a list of them."""

    program: SignalProgram = field(repr=False)
    answered: ClassVar[str] = "window"

    @property
    def windows(self) -> SignalWindows:
        return self.program.windows

    @property
    def cycles(self) -> int:
        """From the last sample of a window to its answer."""
        return self.program.cycles

    @property
    def cycles_per_window(self) -> int:
        """From the last sample of a window to that of the next, where nobody waits."""
        size = self.program.sizes
        return self.cycles - 1 + size["STEP"] - min(size["ROOM"], size["STEP"] - 1)

    def axi(self) -> dict[str, str]:
        """An AXI4-Stream wrapper, `lutetia_core_axis.v`: `tlast` with the last sample of a recording, answers of whole bytes."""
        size, bits = self.program.sizes, self.out_bits
        told = {
            "SAMPLE_BITS": size["SIGNALS"] * size["BITS"], "ANSWER_BITS": padded(bits), "OUT_BITS": bits,
            "IDENTITY": f"{self.identity:08x}", "ANSWER": in_bytes("answer", bits, self.model.n_outputs == 1),
        }  # fmt: skip
        return {WRAPPER: filled("signals_axis.v", told)}

    def answers(self, x: object) -> torch.Tensor:
        """What the model says of the windows of recordings: int64 [n]."""
        found = [self.windows.inputs(samples, self._starts(samples)) for samples in self._recordings(x)]
        inputs = np.concatenate([np.zeros((0, self.model.model.n_columns)), *found])
        return self.model(self.model.quantise(torch.from_numpy(inputs)))

    def interpret(self, x: object) -> torch.Tensor:
        """The same by the contents of the memories, read in Python as the Verilog reads them."""
        cut = [samples.T for samples in self.cut(x)]
        return torch.from_numpy(interpret(self.program, np.stack(cut))) if cut else torch.zeros(0, dtype=torch.int64)

    def testbench(self, x: object, *, axi: bool = False) -> dict[str, str]:
        """The files of a bench that feeds recordings and compares the answers, with `axi` through the wrapper."""
        size, recordings = self.program.sizes, self._recordings(x)
        bits, width = padded(self.out_bits) if axi else self.out_bits, size["SIGNALS"] * size["BITS"]
        marked = []
        for samples in recordings:
            full = np.zeros(len(samples), np.int64)
            full[self._starts(samples) + self.windows.length - 1] = 1
            last = np.arange(len(samples)) == len(samples) - 1
            flags = (full + 2 * last).tolist()
            marked += [word | flag << width for word, flag in zip(words(samples, size["BITS"]), flags, strict=True)]
        told = {
            "TOP": WRAPPED if axi else BARE, "SAMPLES": len(marked), "COUNT": len(self.answers(x)), "SAMPLE_BITS": width,
            "OUT_BITS": bits, "CYCLES": self.cycles, "LENGTH": size["LENGTH"], "STEP": size["STEP"],
        }  # fmt: skip
        return {
            BENCH: filled("signals_bench.v", told),
            "samples.mem": hex_words(marked),
            "answers.mem": self._answer_words(x, bits),
        }

    def cut(self, x: object) -> list[Array]:
        """The windows of recordings, int64 [samples, signals] each, in the order of their answers."""
        length = self.windows.length
        return [samples[start : start + length] for samples in self._recordings(x) for start in self._starts(samples)]

    def _starts(self, samples: Array) -> Array:
        """Where the windows of a recording begin."""
        return np.arange(0, max(len(samples) - self.windows.length + 1, 0), self.windows.step)

    def _recordings(self, x: object) -> list[Array]:
        """Recordings of at least one sample, int64 [samples, signals] each."""
        low, high = self.windows.ends
        expected = f"whole numbers from {low:,} to {high:,} [samples, {len(self.windows.signals)}], or a list of such recordings"
        given = x if isinstance(x, Sequence) else [x]
        found = []
        for each in given:
            try:
                own = np.asarray(each)
            except (TypeError, ValueError, RuntimeError):
                fail("recordings", each, expected)
            if own.dtype.kind not in "iu" or own.ndim != 2 or own.shape[1] != len(self.windows.signals):
                fail("recordings", f"{own.dtype} {list(own.shape)}", expected)
            if own.size and not low <= own.min() <= own.max() <= high:
                fail("recordings", f"{own.min()} to {own.max()}", expected)
            found.append(own.astype(np.int64))
        return [own for own in found if len(own)]


def emit_signals(model: IntegerClassifier) -> SignalCore:
    """The core of a model of windows of signals."""
    program = signal_program(model)
    size = program.sizes
    own = {name: value for name, value in size.items() if name not in TABLE_SIZES or name == "INPUT_BITS"}
    places = {"SAMPLE_BITS": size["SIGNALS"] * size["BITS"], "PARAMETERS": parameters(own)}
    return SignalCore(model, program, core_files("signals.v", model, program, places))

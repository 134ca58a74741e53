"""Cores that work step by step, their tables in memories: what those of images and those of signals share."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from lutetia import flow
from lutetia._shared import folders
from lutetia._version import __version__
from lutetia.errors import DataError
from lutetia.files import path_of
from lutetia.precompute.hdl.axi import padded
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.core_program import TABLE_SIZES, CoreProgram
from lutetia.precompute.integer.hardware import COMPILE, PROGRAMS, answers_of, simulator_for, synthesize_core, write_texts
from lutetia.precompute.integer.verilog_language import hex_words, template, words
from lutetia.precompute.tools.find import find_tool, run_program, time_limit
from lutetia.precompute.tools.hardware import EquivalenceError
from lutetia.precompute.tools.place import PlaceOptions

FORMAT = "lutetia.core/1"
CLASS_BITS = 8
WRAPPER = "lutetia_core_axis.v"


@dataclass(frozen=True, eq=False)
class Core:
    """A core; `files` are its Verilog and the contents of its memories."""

    model: IntegerClassifier = field(repr=False)
    program: CoreProgram = field(repr=False)
    files: dict[str, str] = field(repr=False)
    answered: ClassVar[str]  # what an answer is about

    @property
    def cycles(self) -> int:
        """From the last sample of what is answered to the answer."""
        raise NotImplementedError

    @property
    def sources(self) -> list[str]:
        """The Verilog files of the core."""
        return [name for name in self.files if name.endswith(".v")]

    @property
    def out_bits(self) -> int:
        """Of a class, or of the sum of a regression in two's complement."""
        return CLASS_BITS if self.model.n_outputs > 1 else self.program.sizes["SUM_BITS"]

    @property
    def identity(self) -> int:
        """A 32-bit number that identifies this core: the start of a SHA-256 of its files."""
        return int(
            hashlib.sha256("\0".join(part for pair in sorted(self.files.items()) for part in pair).encode()).hexdigest()[:8], 16
        )

    def axi(self) -> dict[str, str]:
        """An AXI4-Stream wrapper, `lutetia_core_axis.v`."""
        raise NotImplementedError

    def answers(self, x: Any) -> torch.Tensor:
        """What the model says: int64 [n]."""
        raise NotImplementedError

    def interpret(self, x: Any) -> torch.Tensor:
        """The same by the contents of the memories, read in Python as the Verilog reads them."""
        raise NotImplementedError

    def testbench(self, x: Any, *, axi: bool = False) -> dict[str, str]:
        """The files of a bench that feeds the core and compares the answers, with `axi` through the wrapper."""
        raise NotImplementedError

    def check_memories(self, x: Any) -> None:
        """EquivalenceError where the answers by the contents of the memories are not those of the model."""
        self._compare(self.interpret(x), self.answers(x), "the memories")

    def simulate(
        self,
        x: Any,
        *,
        tool: str | None = None,
        limit: float | None = None,
        axi: bool = False,
        slow: bool = False,
        resets: bool = False,
    ) -> torch.Tensor:
        """The answers of a simulator, int64 [n].

        All comes one directly after another, and both sides of the ports pause at random; with `axi` it passes the wrapper. With
        `slow` an answer is taken when the next one waits for it, with `resets` the core is reset twice before the first answer.
        EquivalenceError where an answer is not that of the model, or comes too late.
        """
        wanted = self.answers(x)
        if not len(wanted):
            return wanted
        tool = simulator_for(tool, len(wanted), "simulate")
        asked = [f"+{name}" for name, value in (("slow", slow), ("resets", resets)) if value]
        with (
            flow.step("simulate", part="precompute", tool=tool),
            tempfile.TemporaryDirectory() as place,
            time_limit(limit),
        ):
            folder = Path(place)
            wrapper = self.axi() if axi else {}
            write_texts({**self.files, **wrapper, **self.testbench(x, axi=axi)}, folder)
            run_program([*COMPILE[tool](folder, [*self.sources, *wrapper]), *asked], folder, check=False)
            answers, cycles = answers_of(folder, len(wanted))
        got, bits = torch.tensor(answers), padded(self.out_bits) if axi else self.out_bits
        if self.model.n_outputs == 1:  # two's complement
            got = got - (got >> bits - 1 << bits)
        self._compare(got, wanted, "the simulator")
        late = {each for each in cycles if each != self.cycles + axi}  # the wrapper has a register
        if late and not slow:
            raise EquivalenceError(f"an answer takes {late.pop()} cycles, expected {self.cycles + axi}")
        return got

    def synthesize(
        self,
        target: str = "ecp5",
        *,
        place: bool = False,
        fmax: float | None = None,
        speed_grade: int | None = None,
        limit: float | None = None,
    ) -> dict[str, Any]:
        """Synthesise it with yosys for an ECP5 or an iCE40: counts of lookup tables, flip-flops, block RAMs and DSPs (none).

        With `place` nextpnr places and routes it for a clock of `fmax` MHz, where it is installed: see
        `LanguageHardware.synthesize`.
        """
        options = PlaceOptions(fmax=fmax, speed_grade=speed_grade)
        return synthesize_core(self.files, self.sources, options, place=place, limit=limit, target=target)

    def save(self, folder: str | os.PathLike[str], x: Any) -> None:
        """Write all files, a test bench that feeds x, and a manifest to a folder, which appears whole or not at all."""
        facts = {"format": FORMAT, "lutetia": __version__, "cycles": self.cycles, "identity": f"0x{self.identity:08x}"}
        try:
            folders.write(path_of(folder), {**self.files, **self.testbench(x)}, {**facts, "later": ["outputs.mem"]})
        except OSError as error:
            raise DataError(f"{os.fspath(folder)} cannot be written: {error.strerror or error}") from error

    def _answer_words(self, x: Any, bits: int) -> str:
        """The answers in a memory of the test bench."""
        return hex_words([answer & (1 << bits) - 1 for answer in self.answers(x).tolist()])

    def _compare(self, got: torch.Tensor, wanted: torch.Tensor, source: str) -> None:
        wrong = (got != wanted).nonzero()
        if len(wrong):
            place = int(wrong[0])
            raise EquivalenceError(f"{self.answered} {place} comes out of {source} as {got[place]}, expected {wanted[place]}")


def core_files(name: str, model: IntegerClassifier, program: CoreProgram, places: dict[str, Any]) -> dict[str, str]:
    """The files of a core, whose own Verilog is the template `name`."""
    size, is_number = program.sizes, model.n_outputs == 1
    told = {
        "SIGNED": "signed " if is_number else "",
        "OUT_BITS": size["SUM_BITS"] if is_number else CLASS_BITS,
    }
    (bias,) = words(np.array([program.bias]), size["SUM_BITS"])
    tables = {each: size[each] for each in TABLE_SIZES} | {"LAST_LANES": size["LANES"] - 1, "LAST_OUTPUTS": size["OUTPUTS"] - 1}
    looked = {
        **told,
        "INPUT_BITS": size["INPUT_BITS"],
        "PARAMETERS": f"{parameters(tables)}\n    localparam [OUTPUTS*SUM_BITS-1:0] BIAS = "
        f"{model.n_outputs * size['SUM_BITS']}'h{bias:x};",
        "ANSWER": "candidate" if is_number else "{{(8-OUTPUT_BITS){1'b0}}, better ? output_number : best_number}",
    }
    contents = {f"{each}.mem": hex_words(rows) for each, rows in program.words.items()}
    core = f"{filled('tables.v', looked)}\n{filled(name, told | places)}"
    return {"memories.v": template("memories.v"), "core.v": core, **contents}


def parameters(sizes: dict[str, int]) -> str:
    """Sizes as constants of a module."""
    return "\n".join(f"    localparam {name} = {value};" for name, value in sizes.items())


def core_simulator(is_long: bool) -> str | None:
    """An installed simulator: Verilator, which compiles for some seconds, where the simulation is long; None without any."""
    order = ("verilator", "icarus") if is_long else ("icarus", "verilator")
    return next((each for each in order if find_tool(PROGRAMS[each])), None)


def filled(name: str, places: dict[str, Any]) -> str:
    """A file of Verilog whose places are filled."""
    text = template(name)
    for place, value in places.items():
        text = text.replace(f"@{place}@", str(value))
    return text

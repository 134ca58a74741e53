"""`LanguageHardware`: a language model as Verilog, simulated and synthesised."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lutetia import flow
from lutetia._shared import folders
from lutetia._version import __version__
from lutetia.errors import DataError, JobError, MissingFeatureError, check_choice, fail
from lutetia.files import path_of, read_json, read_text
from lutetia.precompute.integer.language import IntegerTransformer, check_prompt
from lutetia.precompute.integer.sampling import Draws
from lutetia.precompute.integer.verilog_language import CoreLayout, bench_text, core_files
from lutetia.precompute.tools.find import HOW, find_tool, missing, require_program, run_program, run_yosys, time_limit
from lutetia.precompute.tools.hardware import EquivalenceError
from lutetia.precompute.tools.place import DEVICES, Placement, PlaceOptions, route
from lutetia.precompute.tools.synthesize import KINDS, read_cells

FORMAT = "lutetia.language/1"
FOLDER = "verilog"  # of what `lutetia build --target verilog` wrote
DETECTORS = 4  # per cycle
SOURCES = ("memories.v", "core.v")
TOP = "lutetia_core"
BENCH = "bench.v"
PER_CYCLE = "detectors_per_cycle"
EXAMPLE = b"\n"  # the prompt of the test bench that is saved
LARGEST = 1 << 30  # bytes of a memory file


class Written(NamedTuple):
    """What a simulated core wrote, and the cycles from each byte in to its answer."""

    text: bytes
    cycles: list[int]


@dataclass(frozen=True, eq=False)
class LanguageHardware:
    """A core with a byte-in, byte-out port: made by `IntegerTransformer.emit`, or read by `LanguageHardware.load`."""

    files: dict[str, str] = field(repr=False)
    context: int
    vocab: int
    detectors_per_cycle: int
    model: IntegerTransformer | None = field(default=None, repr=False)  # what it must write, where that is known
    temperature: float | None = None  # of a core that can draw

    @property
    def layout(self) -> CoreLayout:
        """Where everything is stored, and how many cycles it takes."""
        if self.model is None:
            fail("model", None, "hardware made from a model: one read from a folder has only its files")
        return CoreLayout(self.model, self.detectors_per_cycle, self.temperature)

    def generate(self, prompt: bytes, n: int, *, seed: int | None = None, tool: str | None = None, stalls: bool = False) -> bytes:
        """The n bytes that the simulated core writes after a prompt: the best, or with a `seed` drawn."""
        return self.simulate(prompt, n, seed=seed, tool=tool, stalls=stalls).text

    def simulate(
        self,
        prompt: bytes,
        n: int,
        *,
        seed: int | None = None,
        tool: str | None = None,
        stalls: bool = False,
        limit: float | None = None,
    ) -> Written:
        """Let a simulator write n bytes after a prompt: "verilator" or "icarus", by default an installed one, Icarus for a few
        bytes and Verilator, which first compiles for half a minute, for many. The compiled simulation is kept as long as the
        core.

        With a `seed` a core that was emitted with a temperature draws them. With `stalls` both sides of the port pause at random.
        EquivalenceError where the bytes are not those of the model.
        """
        check_prompt(prompt, self.vocab)
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            fail("n", n, "how many bytes to write, 0 or more")
        if seed is not None:
            if self.temperature is None:
                fail("seed", seed, "None: this core writes the best byte; emit(temperature=1.0) makes one that draws")
            Draws(seed, self.temperature, 0)  # checks the seed
        tool = self.simulator(tool, n)
        if not n:
            return Written(b"", [])
        given = bytes(prompt[-self.context :])
        with (
            flow.step("simulate", part="precompute", tool=tool),
            tempfile.TemporaryDirectory() as place,
            time_limit(limit),
        ):
            command = self._compiled(tool)
            memories = {name: text for name, text in self.files.items() if name.endswith(".mem")}
            write_texts({**memories, "prompt.mem": _prompt_words(given)}, Path(place))
            asked = {"prompt": len(given), "count": n, "stalls": int(stalls), "draw": int(seed is not None), "seed": seed or 0}
            run_program([*command, *(f"+{name}={value}" for name, value in asked.items())], Path(place), check=False)
            written = read_outputs(Path(place), n)
        if self.model is None:
            return written
        if (wanted := self.model.generate(given, n, seed=seed, temperature=self.temperature or 1.0)) != written.text:
            place_of = next(at for at, (a, b) in enumerate(zip(written.text, wanted, strict=True)) if a != b)
            raise EquivalenceError(
                f"byte {place_of} comes out of the simulator as {written.text[place_of]}, expected {wanted[place_of]}"
            )
        return written

    def simulator(self, tool: str | None = None, n: int = 1) -> str:
        """The simulator that `simulate` takes for n bytes; MissingFeatureError, saying how to get one, where there is none."""
        return simulator_for(tool, n)

    def synthesize(
        self, *, place: bool = False, fmax: float | None = None, speed_grade: int | None = None, limit: float | None = None
    ) -> dict[str, Any]:
        """Synthesise it with yosys for an ECP5: counts of lookup tables, flip-flops, block RAMs and DSPs (none).

        With `place` nextpnr places and routes it, where it is installed: `fmax_mhz`, or in `placed` why there is none. `fmax` is
        the clock in MHz that it aims at: the one you need, as wires for a faster one may find no room. `speed_grade`: 6, 7 or 8.
        """
        options = PlaceOptions(fmax=fmax, speed_grade=speed_grade)
        return synthesize_core(self.files, self.sources, options, place=place, crowded=True, limit=limit)

    def facts(self) -> dict[str, Any]:
        """What a manifest says about the core."""
        return {
            "format": FORMAT,
            "lutetia": __version__,
            "top": TOP,
            "context": self.context,
            "vocab": self.vocab,
            "detectors_per_cycle": self.detectors_per_cycle,
            **({} if self.temperature is None else {"temperature": self.temperature}),
        }

    @property
    def sources(self) -> list[str]:
        """The Verilog files of the core."""
        return [name for name in self.files if name.endswith(".v") and name != BENCH]

    def _compiled(self, tool: str) -> list[str]:
        """The command that runs the core in its test bench, compiled at the first call; removed with the core."""
        built = _BUILT.setdefault(self, {})
        if tool not in built:
            place = Path(tempfile.mkdtemp())
            weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
            write_texts(self.contents(), place)
            built[tool] = COMPILE[tool](place, self.sources)
        return built[tool]

    def contents(self) -> dict[str, str]:
        """All files, with a test bench that writes 16 bytes."""
        example = _prompt_words(EXAMPLE if self.vocab > EXAMPLE[0] else b"\0")
        return {**self.files, "prompt.mem": example, BENCH: bench_text(self.context, self.temperature is not None)}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write all files, a test bench and a manifest to a folder, which appears whole or not at all."""
        try:
            folders.write(path_of(folder), self.contents(), self.facts())
        except OSError as error:
            raise DataError(f"{os.fspath(folder)} cannot be written: {error.strerror or error}") from error

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> LanguageHardware:
        """The core of a folder that `save` or `lutetia build --target verilog` wrote."""
        place = path_of(folder)
        place = place / FOLDER if (place / FOLDER).is_dir() else place
        facts = read_json(place / "core.json", "what a core is") if (place / "core.json").is_file() else None
        facts = facts or folders.read_manifest(place, FORMAT)
        names = sorted(each.name for each in place.iterdir() if each.suffix in (".v", ".mem"))
        whole = isinstance(facts, dict) and all(isinstance(facts.get(key), int) for key in ("context", "vocab", PER_CYCLE))
        if not set(SOURCES) <= set(names) or not whole:
            raise DataError(f"{place} holds no core of a language model, expected {' and '.join(SOURCES)}")
        texts = {name: read_text(place / name, "a file of a core", LARGEST) for name in names}
        temperature = facts.get("temperature")
        return cls(texts, facts["context"], facts["vocab"], facts[PER_CYCLE], temperature=temperature)


def emit_language(
    model: IntegerTransformer, detectors_per_cycle: int = DETECTORS, temperature: float | None = None
) -> LanguageHardware:
    """The core of a model, which compares and fetches this many detectors per cycle; with a temperature it can sample."""
    layout = CoreLayout(model, detectors_per_cycle, temperature)
    return LanguageHardware(core_files(layout), model.context, model.vocab, detectors_per_cycle, model, temperature)


def synthesize_core(
    texts: dict[str, str],
    sources: list[str],
    options: PlaceOptions,
    *,
    place: bool,
    limit: float | None,
    target: str = "ecp5",
    crowded: bool = False,
) -> dict[str, Any]:
    """Synthesise the files of a core, of which `sources` are Verilog: see `LanguageHardware.synthesize`, `crowded`: `route`."""
    check_choice("target", target, tuple(DEVICES))
    options.check(target, place)
    with tempfile.TemporaryDirectory() as where, time_limit(limit):
        folder = Path(where)
        write_texts(texts, folder)
        script = [
            f"read_verilog -DSYNTHESIS {' '.join(sources)}",
            f"synth_{target} -top {TOP}",
            "tee -q -o stat.json stat -json",
        ]
        run_yosys([*script, "delete t:$scopeinfo", "write_json placed.json"], folder, "synthesize")
        cells = read_cells(folder / "stat.json")
        clock = route(target, folder, options, crowded=crowded) if place else Placement(None, "")
    counted = {kind: sum(count for name, count in cells.items() if _is_kind(name, names)) for kind, names in KINDS.items()}
    clocked = {"fmax_mhz": clock.fmax_mhz, "placed": clock.placed}
    return {"target": target, "tool": "yosys, not Vivado", **counted, **clocked, "cells": cells}


def _prompt_words(prompt: bytes) -> str:
    return "".join(f"{byte:02x}\n" for byte in prompt)


def write_texts(texts: dict[str, str], folder: Path) -> None:
    """Write files into a folder of their own."""
    for name, text in texts.items():
        (folder / name).write_text(text)


def _is_kind(cell: str, names: tuple[str, ...]) -> bool:
    plain = cell.lstrip("\\")
    return any(plain == each or (each.endswith("*") and plain.startswith(each[:-1])) for each in names)


# ---- simulators ------------------------------------------------------------------------------------------------------


def simulator_for(tool: str | None, n: int, feature: str = "generate") -> str:
    """A simulator that is installed: Icarus for a few answers, Verilator for many."""
    if tool is None:
        order = ("icarus", "verilator") if n <= 20 else ("verilator", "icarus")
        tool = next((each for each in order if find_tool(PROGRAMS[each])), None)
        if tool is None:
            raise MissingFeatureError(f"{feature} needs {HOW['verilator']} or {HOW['iverilog']}")
    check_choice("tool", tool, tuple(COMPILE))
    if find_tool(PROGRAMS[tool]) is None:
        raise missing(PROGRAMS[tool], f"{feature}(tool={tool!r})")
    return tool


def _icarus(folder: Path, sources: list[str]) -> list[str]:
    command = require_program("iverilog", "generate")
    run_program([*command, "-g2005-sv", "-s", "lutetia_bench", "-o", "simulation.vvp", *sources, BENCH], folder)
    return ["vvp", "-n", str(folder / "simulation.vvp")]


def _verilator(folder: Path, sources: list[str]) -> list[str]:
    flags = [each for name in ("FAST", "SLOW", "GLOBAL") for each in ("-MAKEFLAGS", f"OPT_{name}=-O1")]
    quiet = ["-Wno-fatal", "-Wno-lint", "-Wno-style"]
    options = ["--binary", *quiet, *flags, "--top-module", "lutetia_bench", "--Mdir", "build", "-o", "simulation"]
    run_program([*require_program("verilator", "generate"), *options, *sources, BENCH], folder)
    return [str(folder / "build" / "simulation")]


PROGRAMS = {"icarus": "iverilog", "verilator": "verilator"}
# Each compiles the sources and the bench in a folder, and returns the command to run them.
COMPILE: dict[str, Callable[[Path, list[str]], list[str]]] = {"icarus": _icarus, "verilator": _verilator}
_BUILT: weakref.WeakKeyDictionary[LanguageHardware, dict[str, list[str]]] = weakref.WeakKeyDictionary()  # by core and simulator


def read_outputs(folder: Path, n: int) -> Written:
    """The output of a test bench: n bytes, each with its cycles."""
    answers, cycles = answers_of(folder, n)
    return Written(bytes(answers), cycles)


def answers_of(folder: Path, n: int) -> tuple[list[int], list[int]]:
    """The output of a test bench: n answers, and the cycles of each."""
    written = folder / "outputs.mem"
    lines = [line.split() for line in written.read_text().splitlines()] if written.is_file() else []
    try:
        answers = [(int(answer, 16), int(cycles)) for answer, cycles in lines]
    except ValueError as error:
        raise JobError(f"the simulated core wrote an undefined answer: {error}") from error
    if len(answers) < n:
        raise JobError(f"the simulation ended after {len(answers)} of {n} answers")
    return [answer for answer, _ in answers], [cycles for _, cycles in answers]

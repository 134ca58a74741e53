"""A model that counts patterns in images as Verilog: a core that takes pixels one after another and answers with a class."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lutetia import flow
from lutetia.errors import fail
from lutetia.precompute.hdl.axi import in_bytes, padded
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.hardware import BENCH, COMPILE, PROGRAMS, answers_of, simulator_for, synthesize_core, write_texts
from lutetia.precompute.integer.patch_interpreter import interpret
from lutetia.precompute.integer.patch_program import PatchProgram, patch_program
from lutetia.precompute.integer.pixels import LEVELS, pixel_inputs
from lutetia.precompute.integer.verilog_language import hex_words, template, words
from lutetia.precompute.tools.find import find_tool, run_program, time_limit
from lutetia.precompute.tools.hardware import EquivalenceError
from lutetia.precompute.tools.place import PlaceOptions

Array = np.ndarray[Any, Any]
CLASS_BITS = 8
WRAPPER = "lutetia_core_axis.v"
# What the bench is about.
BARE = """lutetia_core core (
        .clk(clk), .rst(rst), .in_data(images[sent]), .in_valid(in_valid), .in_ready(in_ready),
        .out_data(out_data), .out_valid(out_valid), .out_ready(out_ready));"""
WRAPPED = """lutetia_core_axis core (
        .aclk(clk), .aresetn(!rst), .s_axis_tdata(images[sent]), .s_axis_tvalid(in_valid), .s_axis_tready(in_ready),
        .s_axis_tlast((sent + 1) % PIXELS == 0), .m_axis_tdata(out_data), .m_axis_tvalid(out_valid),
        .m_axis_tready(out_ready), .m_axis_tlast(), .dropped(), .identity());"""
NUMBERED = ("PIXELS", "STEPS", "DETECTORS", "LANES", "OUTPUTS")  # what the core counts from 0 to the last one


@dataclass(frozen=True, eq=False)
class PatchCore:
    """The core of a model that counts patterns; `files` are its Verilog and the contents of its memories."""

    model: IntegerClassifier = field(repr=False)
    program: PatchProgram = field(repr=False)
    files: dict[str, str] = field(repr=False)

    @property
    def cycles(self) -> int:
        """From the last pixel of an image to its answer."""
        return self.program.cycles

    @property
    def cycles_per_image(self) -> int:
        """From the first pixel of an image to that of the next, where nobody waits."""
        size = self.program.sizes
        return size["PIXELS"] - 1 + self.cycles + (16 << size["SLOT_BITS"])

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
        """An AXI4-Stream wrapper, `lutetia_core_axis.v`: `tlast` with the last pixel of an image, an answer of whole bytes."""
        size, bits = self.program.sizes, self.out_bits
        told = {
            "PIXEL_BITS": 8 * size["CHANNELS"], "ANSWER_BITS": padded(bits), "OUT_BITS": bits, "IDENTITY": f"{self.identity:08x}",
            "LAST_PIXEL": size["PIXELS"] - 1, "PLACE_BITS": size["PLACE_BITS"],
            "ANSWER": in_bytes("answer", bits, self.model.n_outputs == 1),
        }  # fmt: skip
        return {WRAPPER: filled("patches_axis.v", told)}

    def answers(self, images: object) -> torch.Tensor:
        """What the model says of images, whole numbers [n, *shape] or [n, pixels] from 0 to 255: int64 [n]."""
        return self.model(pixel_inputs(self.model, self._pixels(images).reshape(-1, self.model.model.n_columns)))

    def interpret(self, images: object) -> torch.Tensor:
        """The same by the contents of the memories, read in Python as the Verilog reads them."""
        pixels = self._pixels(images)
        return torch.from_numpy(interpret(self.program, pixels)) if len(pixels) else torch.zeros(0, dtype=torch.int64)

    def check_memories(self, images: object) -> None:
        """EquivalenceError where the answers by the contents of the memories are not those of the model."""
        _compare(self.interpret(images), self.answers(images), "the memories")

    def testbench(self, images: object, *, axi: bool = False) -> dict[str, str]:
        """The files of a bench that feeds images and compares the answers, with `axi` through the wrapper."""
        pixels, size = self._pixels(images), self.program.sizes
        bits = padded(self.out_bits) if axi else self.out_bits
        told = {
            "TOP": WRAPPED if axi else BARE, "COUNT": len(pixels), "PIXELS": size["PIXELS"], "PIXEL_BITS": 8 * size["CHANNELS"],
            "OUT_BITS": bits, "CYCLES": self.cycles, "PER_IMAGE": self.cycles_per_image,
        }  # fmt: skip
        stream = pixels.transpose(0, 2, 1).reshape(-1, size["CHANNELS"])
        answers = [answer & (1 << bits) - 1 for answer in self.answers(images).tolist()]
        return {
            BENCH: filled("patches_bench.v", told),
            "images.mem": hex_words(words(stream, 8)),
            "answers.mem": hex_words(answers),
        }

    def simulate(
        self,
        images: object,
        *,
        tool: str | None = None,
        limit: float | None = None,
        axi: bool = False,
        slow: bool = False,
        resets: bool = False,
    ) -> torch.Tensor:
        """The answers of a simulator to images, whole numbers [n, *shape] or [n, pixels] from 0 to 255: int64 [n].

        The images come one directly after another, and both sides of the ports pause at random; with `axi` they pass the wrapper.
        With `slow` an answer is taken when the next one waits for it, with `resets` the core is reset twice in the first image.
        EquivalenceError where an answer is not that of the model, or comes too late.
        """
        wanted = self.answers(images)
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
            write_texts({**self.files, **wrapper, **self.testbench(images, axi=axi)}, folder)
            run_program([*COMPILE[tool](folder, [*self.sources, *wrapper]), *asked], folder, check=False)
            answers, cycles = answers_of(folder, len(wanted))
        got, bits = torch.tensor(answers), padded(self.out_bits) if axi else self.out_bits
        if self.model.n_outputs == 1:  # two's complement
            got = got - (got >> bits - 1 << bits)
        _compare(got, wanted, "the simulator")
        late = {each for each in cycles if each != self.cycles + axi}  # the wrapper has a register
        if late and not slow:
            raise EquivalenceError(f"an answer takes {late.pop()} cycles, expected {self.cycles + axi}")
        return got

    def synthesize(
        self, *, place: bool = False, fmax: float | None = None, speed_grade: int | None = None, limit: float | None = None
    ) -> dict[str, Any]:
        """Synthesise it with yosys for an ECP5: counts of lookup tables, flip-flops, block RAMs and DSPs (none).

        With `place` nextpnr places and routes it for a clock of `fmax` MHz, where it is installed: see
        `LanguageHardware.synthesize`.
        """
        options = PlaceOptions(fmax=fmax, speed_grade=speed_grade)
        return synthesize_core(self.files, self.sources, options, place=place, crowded=False, limit=limit)

    def _pixels(self, images: object) -> Array:
        """Images as whole numbers [n, channels, places]."""
        n_pixels, shape = self.model.model.n_columns, self.model.model.patches.shape
        expected = f"whole numbers from 0 to {LEVELS - 1}, {n_pixels} of each image: pixels have 8 bits"
        try:
            given = np.asarray(images)
        except (TypeError, ValueError, RuntimeError):
            fail("images", images, expected)
        is_whole = given.dtype.kind in "iu" and given.ndim > 1 and given.size == len(given) * n_pixels
        if not is_whole or (given.size and not 0 <= given.min() <= given.max() < LEVELS):
            fail("images", f"{given.dtype} {list(given.shape)}", expected)
        return given.astype(np.int64).reshape(len(given), shape[0], shape[1] * shape[2])


def emit_patches(model: IntegerClassifier, reuse: int = 1) -> PatchCore:
    """The core of a model that counts patterns, each of whose comparators is used `reuse` times at every position."""
    program = patch_program(model, reuse)
    size = program.sizes
    is_number = model.n_outputs == 1
    (bias,) = words(np.array([program.bias]), size["SUM_BITS"])
    numbers = size | {f"LAST_{name}": size[name] - 1 for name in NUMBERED}
    parameters = "".join(f"    localparam {name} = {value};\n" for name, value in numbers.items())
    parameters += f"    localparam [OUTPUTS*SUM_BITS-1:0] BIAS = {model.n_outputs * size['SUM_BITS']}'h{bias:x};"
    places = {
        "PIXEL_BITS": 8 * size["CHANNELS"],
        "SIGNED": "signed " if is_number else "",
        "OUT_BITS": size["SUM_BITS"] if is_number else CLASS_BITS,
        "PARAMETERS": parameters,
        "CHANNEL": "source[PLACE_BITS +: CHANNEL_BITS]",
        "ANSWER": "candidate" if is_number else "{{(8-OUTPUT_BITS){1'b0}}, better ? output_number : best_number}",
    }
    contents = {f"{name}.mem": hex_words(rows) for name, rows in program.words.items()}
    core = filled("patches.v", places)
    return PatchCore(model, program, {"memories.v": template("memories.v"), "core.v": core, **contents})


def _compare(got: torch.Tensor, wanted: torch.Tensor, source: str) -> None:
    wrong = (got != wanted).nonzero()
    if len(wrong):
        image = int(wrong[0])
        raise EquivalenceError(f"image {image} comes out of {source} as {got[image]}, expected {wanted[image]}")


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

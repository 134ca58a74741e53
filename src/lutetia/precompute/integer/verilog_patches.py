"""A model that counts patterns in images as Verilog: a core that takes pixels one after another and answers with a class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from lutetia.errors import fail
from lutetia.precompute.hdl.axi import in_bytes, padded
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.core_program import TABLE_SIZES
from lutetia.precompute.integer.hardware import BENCH
from lutetia.precompute.integer.patch_interpreter import interpret
from lutetia.precompute.integer.patch_program import PatchProgram, patch_program
from lutetia.precompute.integer.pixels import LEVELS, pixel_inputs
from lutetia.precompute.integer.verilog_core import WRAPPER, Core, core_files, filled, parameters
from lutetia.precompute.integer.verilog_language import hex_words, words

Array = np.ndarray[Any, Any]
# What the bench is about.
BARE = """lutetia_core core (
        .clk(clk), .rst(rst), .in_data(images[sent]), .in_valid(in_valid), .in_ready(in_ready),
        .out_data(out_data), .out_valid(out_valid), .out_ready(out_ready));"""
WRAPPED = """lutetia_core_axis core (
        .aclk(clk), .aresetn(!rst), .s_axis_tdata(images[sent]), .s_axis_tvalid(in_valid), .s_axis_tready(in_ready),
        .s_axis_tlast((sent + 1) % PIXELS == 0), .m_axis_tdata(out_data), .m_axis_tvalid(out_valid),
        .m_axis_tready(out_ready), .m_axis_tlast(), .dropped(), .identity());"""
NUMBERED = ("PIXELS", "STEPS", "DETECTORS")  # what the core counts from 0 to the last one


@dataclass(frozen=True, eq=False)
class PatchCore(Core):
    """The core of a model that counts patterns. Images are whole numbers [n, *shape] or [n, pixels] from 0 to 255."""

    program: PatchProgram = field(repr=False)
    answered: ClassVar[str] = "image"

    @property
    def cycles(self) -> int:
        """From the last pixel of an image to its answer."""
        return self.program.cycles

    @property
    def cycles_per_image(self) -> int:
        """From the first pixel of an image to that of the next, where nobody waits."""
        size = self.program.sizes
        return size["PIXELS"] - 1 + self.cycles + (16 << size["SLOT_BITS"])

    def axi(self) -> dict[str, str]:
        """An AXI4-Stream wrapper, `lutetia_core_axis.v`: `tlast` with the last pixel of an image, an answer of whole bytes."""
        size, bits = self.program.sizes, self.out_bits
        told = {
            "PIXEL_BITS": 8 * size["CHANNELS"], "ANSWER_BITS": padded(bits), "OUT_BITS": bits, "IDENTITY": f"{self.identity:08x}",
            "LAST_PIXEL": size["PIXELS"] - 1, "PLACE_BITS": size["PLACE_BITS"],
            "ANSWER": in_bytes("answer", bits, self.model.n_outputs == 1),
        }  # fmt: skip
        return {WRAPPER: filled("patches_axis.v", told)}

    def answers(self, x: object) -> torch.Tensor:
        """What the model says of images: int64 [n]."""
        return self.model(pixel_inputs(self.model, self.pixels(x).reshape(-1, self.model.model.n_columns)))

    def interpret(self, x: object) -> torch.Tensor:
        """The same by the contents of the memories, read in Python as the Verilog reads them."""
        pixels = self.pixels(x)
        return torch.from_numpy(interpret(self.program, pixels)) if len(pixels) else torch.zeros(0, dtype=torch.int64)

    def testbench(self, x: object, *, axi: bool = False) -> dict[str, str]:
        """The files of a bench that feeds images and compares the answers, with `axi` through the wrapper."""
        pixels, size = self.pixels(x), self.program.sizes
        bits = padded(self.out_bits) if axi else self.out_bits
        told = {
            "TOP": WRAPPED if axi else BARE, "COUNT": len(pixels), "PIXELS": size["PIXELS"], "PIXEL_BITS": 8 * size["CHANNELS"],
            "OUT_BITS": bits, "CYCLES": self.cycles, "PER_IMAGE": self.cycles_per_image,
        }  # fmt: skip
        stream = pixels.transpose(0, 2, 1).reshape(-1, size["CHANNELS"])
        return {
            BENCH: filled("patches_bench.v", told),
            "images.mem": hex_words(words(stream, 8)),
            "answers.mem": self._answer_words(x, bits),
        }

    def pixels(self, images: object) -> Array:
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
    own = {name: value for name, value in size.items() if name not in TABLE_SIZES or name in ("INPUTS", "INPUT_BITS")}
    places = {
        "PIXEL_BITS": 8 * size["CHANNELS"],
        "PARAMETERS": parameters(own | {f"LAST_{name}": size[name] - 1 for name in NUMBERED}),
        "CHANNEL": "source[PLACE_BITS +: CHANNEL_BITS]",
    }
    return PatchCore(model, program, core_files("patches.v", model, program, places))

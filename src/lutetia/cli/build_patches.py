"""`lutetia build` of a model that counts patterns in images: a core that takes pixels one after another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lutetia.cli.build_core_kind import CoreKind, CorePage, Prepared
from lutetia.cli.build_data import Measured
from lutetia.cli.guard import UsageError
from lutetia.models import Tabular
from lutetia.precompute import Core, CoreProgram, IntegerClassifier, PatchCore, patch_program, pixel_values
from lutetia.report import Part

if TYPE_CHECKING:
    from lutetia.cli.build import BuildRequest

FEED = (
    "Hold rst high for a rising edge of clk. Then give the pixels of an image row by row from the upper left corner, one at each "
    "rising edge at which in_valid and in_ready are both high; the next image may follow at once. An answer is given at an edge "
    "at which out_valid and out_ready are both high. in_ready is low while an image is answered. rst, synchronous and active "
    "high, begins anew with the first pixel of an image."
)
STREAM = (
    "Pixels come in tdata as in in_data, and tlast comes with the last pixel of an image, not of a row. An answer is a frame of "
    "its own. An image whose tlast comes too early or too late is left out, and dropped is high for a cycle."
)


def _check(model: Tabular, request: BuildRequest) -> None:
    if request.input_bits not in (None, 8):
        raise UsageError(f"--input-bits is {request.input_bits}, and the pixels of a model that counts patterns have 8 bits")
    assert model.patches is not None
    most = model.patches.pairs.shape[1]
    if request.reuse is not None and request.reuse > most:
        raise UsageError(f"--reuse is {request.reuse}, expected 1 to {most}: a detector compares {most} pairs of pixels")


def _prepare(model: Tabular, data: Measured | str, request: BuildRequest) -> Prepared:
    """The images to measure on as levels from 0 to 255 [n, pixels], the data with these in place of its values, and how far a
    value was from its level, in levels."""
    if isinstance(data, str):
        return Prepared(data, None, {"rounded_by": 0.0})
    x = as_doubles(data.x)
    levels = image_levels(model, x)
    values = pixel_values(model)
    near = values[levels]
    far = float(np.abs(near - x.flatten(1).numpy()).max(initial=0.0) / (values[1] - values[0]))
    rounded = replace(data, x=torch.from_numpy(near.reshape(x.shape)))
    return Prepared(rounded, levels, {"rounded_by": 0.0 if far < 1e-3 else far})


def as_doubles(x: torch.Tensor) -> torch.Tensor:
    """Images as float64, bytes as 0 to 1."""
    return x.double() / 255 if x.dtype == torch.uint8 else x.double()


def image_levels(model: Tabular, x: torch.Tensor) -> Any:
    """Images [n, ...] as levels from 0 to 255: int64 [n, pixels]."""
    assert model.patches is not None
    return model.patches.levels(as_doubles(x).flatten(1).numpy()).reshape(len(x), -1)


def _some(core: Core, levels: Any, n: int) -> Any:
    if levels is None or not len(levels):
        return np.random.default_rng(0).integers(0, 256, (n, core.model.model.n_columns))
    return levels[:n]


def _facts(core: Core) -> dict[str, Any]:
    assert isinstance(core, PatchCore)
    size, (channels, height, width) = core.program.sizes, core.model.model.patches.shape
    return {
        "pixels": {"channels": channels, "height": height, "width": width, "bits": 8 * channels},
        "cycles_per_image": core.cycles_per_image,
        "detectors": size["DETECTORS"],
        "comparators": size["C"],
        "reuse": size["STEPS"],
        "positions": core.program.positions,
    }


def core_text(report: dict[str, Any]) -> str:
    """What a core is, in a sentence."""
    pixels = "{height} rows of {width} pixels".format(**report["pixels"])
    return (
        f"the model counts patterns, so it becomes a core that takes {pixels} one after another: "
        f"{report['detectors']} detectors, {report['tables']:,} tables, {report['cycles_per_image']:,} cycles per image"
    )


def _parts(report: dict[str, Any]) -> list[Part]:
    pixels, bits = report["pixels"], {name: each["bits"] for name, each in report["memories"].items()}
    size, copies = f"{pixels['height']} rows of {pixels['width']} pixels", 2 * report["comparators"]
    return [
        Part("input", "pixels", (), pixels["channels"], pixels["bits"], "one after another"),
        Part("memory", "image", (0,), pixels["channels"], pixels["bits"], f"{size}, {copies} times"),
        Part("compare", "detectors", (1,), report["comparators"], report["comparators"], f"{report['positions']:,} positions"),
        Part("count", "counters", (2,), 1, bits["image counters"], "of the image, quarters, cells"),
        Part("compare", "codes", (3, 1), report["inputs"], 8 * report["inputs"], "counts and pixels"),
    ]


def _told(report: dict[str, Any]) -> dict[str, str]:
    return {
        "bits per pixel": f"{report['pixels']['bits']}",
        "detectors": f"{report['detectors']}",
        "comparisons of pixels a cycle": f"{report['comparators']}",
    }


def _inputs(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    channels = report["pixels"]["channels"]
    names = {1: ["grey"], 3: ["red", "green", "blue"]}.get(channels, [f"channel {number}" for number in range(channels)])
    return [(f"pixel, {name}", f"{8 * at + 7}:{8 * at}", "0 to 255") for at, name in enumerate(names)]


def _feed(report: dict[str, Any]) -> str:
    pixels = report["pixels"]
    return f"An image is {pixels['height']} rows of {pixels['width']} pixels. {FEED}"


def _program(model: IntegerClassifier, request: BuildRequest) -> CoreProgram:
    return patch_program(model, request.reuse or 1)


def _emit(model: IntegerClassifier, request: BuildRequest) -> PatchCore:
    return model.emit_images(reuse=request.reuse or 1)


PATCHES = CoreKind(
    name="patterns",
    one="image",
    why="counts patterns in images",
    sample="pixel",
    check=_check,
    program=_program,
    emit=_emit,
    prepare=_prepare,
    some=_some,
    facts=_facts,
    text=core_text,
    smaller="smaller images (data.size)",
    page=CorePage(
        said="The image is in memory. One detector after another is asked at each position; what it counts is looked up.",
        feed=_feed,
        stream=STREAM,
        parts=_parts,
        facts=_told,
        inputs=_inputs,
    ),
)

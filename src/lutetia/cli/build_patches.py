"""`lutetia build` of a model that counts patterns in images: a core that takes pixels one after another, in a folder.

verilog/          the core, the contents of its memories, and a test bench with images of the data
axi/              an AXI4-Stream wrapper of the core, with --axi
summary.html      one page: the accuracy, the parts, the ports, the memories, what was checked
report.json       the same for machines
manifest.json     checksums of all files
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lutetia._shared import folders
from lutetia._version import __version__
from lutetia.cli.build_data import Measured, fit_settings, open_run_data
from lutetia.cli.build_intervals import built_bounds, circuit_interval
from lutetia.cli.build_patches_page import patches_page, speed_text
from lutetia.cli.build_screen import Screen, accuracy_lines, cells_text, on_one_terminal, show_accuracy
from lutetia.cli.build_tables import Refit, Room, kept_tables, measured, output_unit
from lutetia.cli.guard import UsageError
from lutetia.cli.show import console
from lutetia.errors import ArgumentError, DataError, MissingFeatureError
from lutetia.models import Tabular
from lutetia.precompute import (
    HARDWARE_FOLDER,
    IntegerClassifier,
    LUTNetwork,
    PatchCore,
    TimeLimitError,
    core_block_rams,
    core_simulator,
    pixel_values,
)

if TYPE_CHECKING:
    from lutetia.cli.build import BuildRequest

FORMAT = "lutetia.build/1"
TARGETS = ("lut6", "verilog", "ecp5")  # lut6 is the default of the command
WEIGHT_BITS = 8
MOST_BLOCK_RAMS = 208  # of an ECP5 85k, the largest
AIMED = 60.0  # MHz, where --fmax does not say
READ_BACK = 256  # images
MOST_SIMULATED, FEWEST_SIMULATED = 64, 2  # images
CYCLES = {"icarus": 300_000, "verilator": 5_000_000}  # that are simulated in about half a minute
NOT_PROVED = "not proved: what a core does cycle by cycle is simulated, and its memories are read back"


def run_patch_build(model: Tabular, request: BuildRequest, show: bool) -> dict[str, Any]:
    """Write the folder of a `BuildRequest` that was checked, and return the report."""
    _check(model, request)
    screen = Screen(show)
    network, report = screen.run("tables", lambda: _network(model, request))
    levels = report.pop("levels")
    core = IntegerClassifier(network).emit_images(reuse=request.reuse or 1)
    report |= _core_facts(core)
    show_accuracy(report, screen)
    screen.say("core", core_text(report))
    given = _images(core, levels)
    texts = {f"{HARDWARE_FOLDER}/{name}": text for name, text in {**core.files, **core.testbench(given)}.items()}
    wrapper = {f"axi/{name}": text for name, text in core.axi().items()} if request.axi else {}
    report["axi"] = next(iter(wrapper), None)

    def save() -> None:
        contents = {**texts, **wrapper, "report.json": json.dumps(report, indent=2) + "\n", "summary.html": patches_page(report)}
        later = [f"{HARDWARE_FOLDER}/outputs.mem"]  # which a simulation in the folder leaves there
        try:
            folders.write(request.out, contents, {"format": FORMAT, "lutetia": __version__, "later": later})
        except OSError as error:
            raise DataError(f"{request.out} cannot be written: {error.strerror or error}") from error

    save()
    checks: tuple[tuple[str, Callable[[], dict[str, Any]]], ...] = (
        ("read_back", lambda: _read_back(core, levels, given)),
        ("simulated", lambda: _simulate(core, given, request)),
        ("synthesis", lambda: _synthesise(core, request)),
    )
    for name, check in checks:
        report[name] = screen.run(name.replace("_", " "), partial(_timed, check))
        screen.say(name.replace("_", " "), report[name]["left_out"] or f"{report[name]['seconds']:.1f} s")
        save()
    return report


def _check(model: Tabular, request: BuildRequest) -> None:
    """Refuse options that mean nothing for a core that takes pixels."""
    if request.target not in TARGETS:
        raise UsageError(
            f"{request.checkpoint} counts patterns in images, which is built as a core with memories: --target is "
            f"{request.target}, expected verilog, ecp5 or c"
        )
    if request.readings:
        raise UsageError("--reading is for columns of numbers, and this model counts patterns in images")
    if request.input_bits not in (None, 8):
        raise UsageError(f"--input-bits is {request.input_bits}, and the pixels of a model that counts patterns have 8 bits")
    if request.drop_unseen:
        raise UsageError("--drop-unseen is for a circuit of tables; the tables of a core are in memories, where it saves nothing")
    if request.temperature is not None or request.pins is not None:
        raise UsageError("--temperature and --pins are not for a core that counts patterns in images")
    if request.weight_bits is not None and request.weight_bits > WEIGHT_BITS and not model.is_regression:
        raise UsageError(f"--weight-bits is {request.weight_bits}, expected 2 to {WEIGHT_BITS}")
    assert model.patches is not None
    most = model.patches.pairs.shape[1]
    if request.reuse is not None and request.reuse > most:
        raise UsageError(f"--reuse is {request.reuse}, expected 1 to {most}: a detector compares {most} pairs of pixels")


# ---- the integer model -----------------------------------------------------------------------------------------------


def _network(model: Tabular, request: BuildRequest) -> tuple[LUTNetwork, dict[str, Any]]:
    """The integer model and its facts, with `levels`: the images that accuracy was measured on, int16 [n, pixels], or None."""
    data = open_run_data(request.checkpoint, request.data, model)
    weight_bits = request.weight_bits or WEIGHT_BITS
    room = Room(MOST_BLOCK_RAMS, lambda network: _block_rams(network, request.reuse or 1), "block_rams")
    refit = Refit(fit_settings(request.checkpoint), request.refit)
    levels, rounded, far = _as_levels(model, data)
    network, used = kept_tables(model, weight_bits, rounded, refit, request.n_tables, room)
    if (needed := _block_rams(network, request.reuse or 1)) > MOST_BLOCK_RAMS:
        raise ArgumentError(
            f"the core of {request.checkpoint} needs about {needed:,} block RAMs for {used['used']:,} of its tables, expected "
            f"{MOST_BLOCK_RAMS} at most, those of an ECP5 85k: fewer --tables, smaller images (data.size), or --target c"
        )
    interval = circuit_interval(network, built_bounds(network, rounded, weight_bits, used["used"]))
    facts = {
        "format": FORMAT,
        "lutetia": __version__,
        "checkpoint": str(request.checkpoint),
        "model": type(model).__name__,
        "kind": "patterns",
        "target": "verilog",
        "weights": sum(each.numel() for each in model.parameters()),
        "classes": [str(name) for name in model.metadata.get("classes", ())],
        "title": model.title or "the prediction",
        "accuracy": measured(network, rounded),
        "rounded_by": far,
        "weight_bits": weight_bits,
        "boosted_tables": used,
        "output_unit": output_unit(network),
        "interval": interval,
        "is_log": model.loss.is_log,
        "input": network.encoder.to_dict(),
        "levels": levels,
    }
    return network, facts


def _as_levels(model: Tabular, data: Measured | str) -> tuple[np.ndarray | None, Measured | str, float]:
    """The images to measure on as levels from 0 to 255 [n, pixels], the data with these in place of its values, and how far a
    value was from its level, in levels."""
    if isinstance(data, str):
        return None, data, 0.0
    assert model.patches is not None
    x = data.x.double() / 255 if data.x.dtype == torch.uint8 else data.x.double()
    levels = model.patches.levels(x.flatten(1).numpy()).reshape(len(x), -1)
    values = pixel_values(model)
    near = values[levels]
    far = float(np.abs(near - x.flatten(1).numpy()).max(initial=0.0) / (values[1] - values[0]))
    return levels, replace(data, x=torch.from_numpy(near.reshape(x.shape))), 0.0 if far < 1e-3 else far


def _block_rams(network: LUTNetwork, reuse: int) -> int:
    return core_block_rams(IntegerClassifier(network), reuse)


# ---- checks ----------------------------------------------------------------------------------------------------------


def _core_facts(core: PatchCore) -> dict[str, Any]:
    """What the core is, for the report."""
    size, (channels, height, width) = core.program.sizes, core.model.model.patches.shape
    return {
        "pixels": {"channels": channels, "height": height, "width": width, "bits": 8 * channels},
        "out_bits": core.out_bits,
        "latency": core.cycles,
        "cycles_per_image": core.cycles_per_image,
        "detectors": size["DETECTORS"],
        "identity": f"0x{core.identity:08x}",
        "comparators": size["C"],
        "reuse": size["STEPS"],
        "positions": core.program.positions,
        "inputs": size["INPUTS"],
        "tables": size["LANES"] // size["K"],
        "sum_bits": size["SUM_BITS"],
        "memories": {name: {**each._asdict(), "block_rams": each.block_rams} for name, each in core.program.memories.items()},
        "block_rams": core.program.block_rams,
        "proof": NOT_PROVED,
        **{name: {"left_out": "not finished", "seconds": 0.0} for name in ("read_back", "simulated", "synthesis")},
    }


def _images(core: PatchCore, levels: np.ndarray | None) -> np.ndarray:
    """Images for the test bench and the simulation, [n, pixels]: as many of the data as take about half a minute, else random."""
    tool = core_simulator(MOST_SIMULATED * core.cycles_per_image > CYCLES["icarus"])
    n = min(MOST_SIMULATED, max(FEWEST_SIMULATED, CYCLES[tool or "icarus"] // core.cycles_per_image))
    if levels is None or not len(levels):
        return np.random.default_rng(0).integers(0, 256, (n, core.model.model.n_columns))
    return levels[:n]


def _timed(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a check found, or why it was left out, with its seconds."""
    began = time.perf_counter()
    try:
        told = {"left_out": "", **check()}
    except (MissingFeatureError, TimeLimitError) as error:
        told = {"left_out": str(error)}
    return {**told, "seconds": round(time.perf_counter() - began, 3)}


def _read_back(core: PatchCore, levels: np.ndarray | None, given: np.ndarray) -> dict[str, Any]:
    """The memories, read in Python as the core reads them."""
    images = given if levels is None else levels[:READ_BACK]
    core.check_memories(images)
    return {"images": len(images), "equal": True}


def _simulate(core: PatchCore, given: np.ndarray, request: BuildRequest) -> dict[str, Any]:
    tool = core_simulator(len(given) * core.cycles_per_image > CYCLES["icarus"])
    core.simulate(given, tool=tool, limit=request.time_limit, axi=request.axi)
    through = " through the AXI4-Stream wrapper" if request.axi else ""
    return {"images": len(given), "equal": True, "by": f"{tool}{through}", "cycles": len(given) * core.cycles_per_image}


def _synthesise(core: PatchCore, request: BuildRequest) -> dict[str, Any]:
    """The counts of yosys, with --target ecp5 or --fmax also the clock of nextpnr and what it comes to."""
    place = request.target == "ecp5" or request.fmax is not None
    aimed = (request.fmax or AIMED) if place else None
    made = core.synthesize(place=place, fmax=aimed, speed_grade=request.speed_grade, limit=request.time_limit)
    speed = made["fmax_mhz"] and round(made["fmax_mhz"] * 1e6 / core.cycles_per_image, 1)
    return {**made, "images_per_second": speed}


# ---- on the screen ---------------------------------------------------------------------------------------------------


def core_text(report: dict[str, Any]) -> str:
    """What a core is, in a sentence."""
    pixels = "{height} rows of {width} pixels".format(**report["pixels"])
    return (
        f"the model counts patterns, so it becomes a core that takes {pixels} one after another: "
        f"{report['detectors']} detectors, {report['tables']:,} tables, {report['cycles_per_image']:,} cycles per image"
    )


def show_patch_report(report: dict[str, Any], out: Path) -> None:
    """The outcome in a few lines, accuracy first."""
    screen, is_told = console(), on_one_terminal()

    def say(name: str, text: str) -> None:
        screen.print(f"{name:<12}{text}", soft_wrap=True, markup=False)

    if not is_told:
        for name, text in accuracy_lines(report):
            say(name, text)
        say("core", core_text(report))
    if report["rounded_by"]:
        say("pixels", f"measured on 8-bit pixels: values of the data were up to {report['rounded_by']:.2f} levels from these")
    say("delay", f"{report['latency']:,} cycles from the last pixel of an image to its answer")
    say("speed", speed_text(report))
    read, simulated, made = (report[name] for name in ("read_back", "simulated", "synthesis"))
    say("read back", read["left_out"] or f"{read['images']} images by the contents of the memories: equal to the integer model")
    say("simulated", simulated["left_out"] or f"{simulated['images']} images by {simulated['by']}: equal to the integer model")
    say("proof", report["proof"])
    say("ecp5", made["left_out"] or cells_text(made))
    if made.get("placed"):
        say("placed", made["placed"])
    say("verilog", str(out / HARDWARE_FOLDER / "core.v"))
    if report["axi"]:
        say("axi", f"{out / report['axi']}, an AXI4-Stream wrapper of verilog/")
    say("summary", str(out / "summary.html"))

"""The way from a stream graph to checked hardware, as a list of named steps.

    build = Build(network.graph, samples=network.quantise(x))
    run_steps(build, OPTIMISE)   # fuse and minimise: the LUTs before and after each are in the report
    run_steps(build, MAKE)       # Verilog, VHDL, test benches: quick, and worth keeping even if a later step fails
    run_steps(build, CHECK)      # simulation, proof, synthesis: each within a time limit
    build.report                 # plain data, what the page of a build shows

A step whose tool is not installed, or that runs out of time, is skipped, and the report says so. A step that finds a mistake
records it and raises.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lutetia.errors import LutetiaError, MissingFeatureError, check_choice, check_tensor, fail
from lutetia.precompute.front.samples import random_input
from lutetia.precompute.ir.graph import Graph
from lutetia.precompute.tools.find import TimeLimitError, time_limit
from lutetia.precompute.tools.hardware import Hardware
from lutetia.precompute.tools.simulate import SIMULATORS

RANDOM_SAMPLES = 64  # that are simulated where none are given
TIME_LIMIT = 600.0  # seconds of each step
BUDGET = 12  # address bits of a fused table
LEVELS = (16, 12, 8, 6, 4, 3, 2)  # of logic between two registers, from few registers to many
LUT_INPUTS = {"lut6": 6, "lut4": 4, "ice40": 4, "ecp5": 4}


@dataclass
class Build:
    """A graph on its way to hardware.

    samples   what is simulated, as for `graph(x)`; random ones by default
    classes   the names of the answers of a classifier, for the report
    progress  called before each part of the proof
    """

    graph: Graph
    samples: Tensor | None = None
    classes: Sequence[str] = ()
    target: str = "lut6"
    pins: str | None = None  # the text of a .pcf or .lpf file, for place and route
    fmax: float | None = None  # MHz; `PIPELINE` moves registers until place and route reaches it
    time_limit: float | None = TIME_LIMIT
    progress: Callable[[int, int, str], None] | None = None  # parts of a step: done, all, what comes next
    hardware: dict[str, Hardware] = field(default_factory=dict)  # by language
    benches: dict[str, dict[str, str]] = field(default_factory=dict)
    bitstream: bytes | None = None  # of ice40 and ecp5, once synthesised
    report: dict[str, Any] = field(default_factory=lambda: {"simulated": None, "proof": None, "synthesis": None, "steps": []})

    def __post_init__(self) -> None:
        if not isinstance(self.graph, Graph):
            fail("graph", self.graph, "a Graph, as trace, table_graph or the graph() of a model give it")
        if self.samples is not None:
            check_tensor("samples", self.samples)
        check_choice("target", self.target, tuple(LUT_INPUTS))


@dataclass(frozen=True)
class BuildStep:
    """One step: its name, the words for a step that was not done, and its function."""

    name: str
    undone: str
    run: Callable[[Build], None]


def run_steps(
    build: Build, steps: Sequence[BuildStep], around: Callable[[BuildStep, Callable[[], None]], None] | None = None
) -> None:
    """Run steps in order; `around` is called with each and with what runs it, to show progress or to save what there is."""
    if not isinstance(steps, Sequence) or not all(isinstance(step, BuildStep) for step in steps):
        fail("steps", steps, "a list of BuildStep, such as MAKE")
    for step in steps:
        job = _job(build, step)
        job() if around is None else around(step, job)


def _job(build: Build, step: BuildStep) -> Callable[[], None]:
    def job() -> None:
        began = time.perf_counter()
        record = {"step": step.name, "seconds": 0.0, "left_out": "", "failed": ""}
        build.report["steps"].append(record)
        try:
            with time_limit(build.time_limit):
                step.run(build)
        except (MissingFeatureError, TimeLimitError) as error:
            record["left_out"] = f"{step.undone} ({error})"
        except LutetiaError as error:
            record["failed"] = str(error)
            raise
        finally:
            record["seconds"] = round(time.perf_counter() - began, 3)

    return job


# ---- the steps -------------------------------------------------------------------------------------------------------


def _optimise(change: Callable[[Graph, int], Graph]) -> Callable[[Build], None]:
    def run(build: Build) -> None:
        k = LUT_INPUTS[build.target]
        before = build.graph.cost(k).luts
        build.graph = change(build.graph, k)
        build.report["steps"][-1] |= {"luts_before": before, "luts_after": build.graph.cost(k).luts}

    return run


def _emit(language: str) -> Callable[[Build], None]:
    def run(build: Build) -> None:
        build.hardware[language] = build.graph.emit(language)

    return run


def _benches(build: Build) -> None:
    build.benches = {language: hardware.testbench() for language, hardware in build.hardware.items()}


def _simulate(build: Build) -> None:
    hardware = build.hardware["verilog"]
    x = random_input(build.graph, RANDOM_SAMPLES, seed=0) if build.samples is None else build.samples
    tool = hardware.simulator()
    y = hardware.simulate(x, tool=tool)
    entry: dict[str, Any] = {"samples": len(x), "equal": True, "tool": tool, "by": SIMULATORS[tool]}
    entry["inputs"] = "random" if build.samples is None else "given"
    if build.classes and y.dim() == 2 and y.shape[1] == 1:
        counts = Counter(y[:, 0].tolist())
        entry["answers"] = {str(name): counts[number] for number, name in enumerate(build.classes) if counts[number]}
    build.report["simulated"] = entry


def _prove(build: Build) -> None:
    build.report["proof"] = build.hardware["verilog"].prove(whole=True, progress=build.progress).to_dict()


def _synthesise(build: Build) -> None:
    made = build.hardware["verilog"].synthesize(build.target, pins=build.pins)
    build.report["synthesis"] = made.to_dict()
    build.bitstream = made.bitstream


def _pipeline(build: Build) -> None:
    """Find by bisection how long stages may be for the requested clock; if none reaches it, the fastest is kept."""
    assert build.fmax is not None
    best: tuple[float, Graph] | None = None
    tried: list[dict[str, Any]] = []
    low, high = 0, len(LEVELS)
    while low < high:
        middle = (low + high) // 2
        levels = LEVELS[middle]
        if build.progress is not None:
            build.progress(len(tried), len(LEVELS).bit_length(), f"stages of about {levels} LUTs")
        graph = build.graph.retime(levels)
        made = graph.emit("verilog").synthesize(build.target)
        if made.fmax_mhz is None:
            raise MissingFeatureError(f"fmax needs place and route: {made.placed}")
        tried.append(
            {"levels": levels, "fmax_mhz": made.fmax_mhz, "latency": graph.cost().latency, "flip_flops": made.flip_flops}
        )
        reached = made.fmax_mhz >= build.fmax
        if reached or best is None or best[0] < made.fmax_mhz < build.fmax:
            best = made.fmax_mhz, graph  # one that reaches it has longer stages than all that did so before
        low, high = (low, middle) if reached else (middle + 1, high)
    assert best is not None
    build.graph = best[1]
    build.report["pipeline"] = {"fmax_wanted": build.fmax, "fmax_mhz": best[0], "reached": best[0] >= build.fmax, "tried": tried}


FUSE = BuildStep("fuse", "not fused", _optimise(lambda graph, k: graph.fuse(BUDGET).dedupe()))
MINIMISE = BuildStep("minimise", "not minimised", _optimise(lambda graph, k: graph.minimise(k)))
PIPELINE = BuildStep("pipeline", "registers left as they were", _pipeline)
VERILOG = BuildStep("verilog", "not written", _emit("verilog"))
VHDL = BuildStep("vhdl", "not written", _emit("vhdl"))
BENCHES = BuildStep("test bench", "not written", _benches)
SIMULATION = BuildStep("simulation", "not simulated", _simulate)
PROOF = BuildStep("proof", "not proved", _prove)
SYNTHESIS = BuildStep("synthesis", "not synthesised", _synthesise)
OPTIMISE = (FUSE, MINIMISE)
MAKE = (VERILOG, VHDL, BENCHES)
CHECK = (SIMULATION, PROOF, SYNTHESIS)

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
from lutetia.precompute.ir.stream import Table
from lutetia.precompute.tools.find import TimeLimitError, time_limit
from lutetia.precompute.tools.hardware import Hardware
from lutetia.precompute.tools.simulate import SIMULATORS
from lutetia.precompute.tools.synthesize import Synthesis

RANDOM_SAMPLES = 64  # that are simulated where none are given
TIME_LIMIT = 600.0  # seconds of each step
BUDGET = 12  # address bits of a fused table
LEVELS = (16, 12, 8, 6, 4, 3, 2, 1)  # of logic between two registers, from few registers to many
MARGIN = 1.25  # by which a clock must be exceeded for longer stages to be tried
LUT_INPUTS = {"lut6": 6, "lut4": 4, "ice40": 4, "ecp5": 4}
JOINED = 6  # inputs up to which an ECP5 joins its LUTs by multiplexers


@dataclass(repr=False)
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
    speed_grade: int | None = None  # of an ECP5; 6 by default
    time_limit: float | None = TIME_LIMIT
    progress: Callable[[int, int, str], None] | None = None  # parts of a step: done, all, what comes next
    hardware: dict[str, Hardware] = field(default_factory=dict)  # by language
    benches: dict[str, dict[str, str]] = field(default_factory=dict)
    bitstream: bytes | None = None  # of ice40 and ecp5, once synthesised
    routed: Synthesis | None = None  # of the graph as `PIPELINE` left it
    report: dict[str, Any] = field(default_factory=lambda: {"simulated": None, "proof": None, "synthesis": None, "steps": []})

    def __post_init__(self) -> None:
        if not isinstance(self.graph, Graph):
            fail("graph", self.graph, "a Graph, as trace, table_graph or the graph() of a model give it")
        if self.samples is not None:
            check_tensor("samples", self.samples)
        check_choice("target", self.target, tuple(LUT_INPUTS))

    def __repr__(self) -> str:
        simulated, proof, made = (self.report[key] for key in ("simulated", "proof", "synthesis"))
        done = [
            f"{simulated['samples']} samples simulated" if simulated else "not simulated",
            proof["said"] if proof else "not proved",
            f"{made['luts']:,} LUTs for {made['target']}" if made else "not synthesised",
        ]
        return f"<Build of {self.graph}: {', '.join(done)}; see .report and .hardware>"


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
        k = _lut_inputs(build)
        before = build.graph.cost(k).luts
        build.graph = change(build.graph, k)
        build.report["steps"][-1] |= {"luts_before": before, "luts_after": build.graph.cost(k).luts}

    return run


def _lut_inputs(build: Build) -> int:
    """Of the LUTs that tables are minimised for. An ECP5 gains nothing from LUT4 for tables that its joined LUTs hold."""
    tables = [table.k for node in build.graph.nodes if isinstance(node, Table) for table in node.tables]
    return JOINED if build.target == "ecp5" and max(tables, default=0) <= JOINED else LUT_INPUTS[build.target]


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
    made = build.routed or _placed(build, build.hardware["verilog"])
    build.report["synthesis"] = made.to_dict()
    build.bitstream = made.bitstream


def _placed(build: Build, hardware: Hardware) -> Synthesis:
    return hardware.synthesize(build.target, pins=build.pins, fmax=build.fmax, speed_grade=build.speed_grade)


def _pipeline(build: Build) -> None:
    """Find how long stages may be for the requested clock, from a guess on: longer ones while they exceed it, else shorter ones.
    If none reaches it the fastest is kept; when the time is up or one cannot be routed, the best one so far.
    """
    wanted = build.fmax
    assert wanted is not None
    best: tuple[float, Graph, Synthesis] | None = None
    tried: list[dict[str, Any]] = []
    seen: set[int] = set()
    place, way = _first_guess(build.graph, wanted), 0  # way: -1 to longer stages, 1 to shorter ones
    while 0 <= place < len(LEVELS):
        graph = build.graph.retime(LEVELS[place])
        hardware = graph.emit("verilog")
        if hardware.identity not in seen:
            seen.add(hardware.identity)
            if build.progress is not None:
                build.progress(len(tried), len(LEVELS), f"stages of about {LEVELS[place]} LUTs")
            try:
                made = _placed(build, hardware)
            except TimeLimitError:
                if best is None:
                    raise
                break
            speed = made.fmax_mhz
            if speed is None:
                if best is None:
                    raise MissingFeatureError(f"fmax needs place and route: {made.placed}")
                break
            tried.append(
                {"levels": LEVELS[place], "fmax_mhz": speed, "latency": graph.cost().latency, "flip_flops": made.flip_flops}
            )
            if speed >= wanted or best is None or best[0] < speed:
                best = speed, graph, made  # one that reaches it has longer stages than all that did so before
            before, way = way, -1 if speed >= wanted else 1
            if before == -way or wanted <= speed < MARGIN * wanted:
                break
        place += way
    assert best is not None
    speed, build.graph, build.routed = best
    build.report["pipeline"] = {"fmax_wanted": wanted, "fmax_mhz": speed, "reached": speed >= wanted, "tried": tried}


def _first_guess(graph: Graph, fmax: float) -> int:
    """Where in `LEVELS` to begin. Wires take longer in a larger circuit: a level is about 1.5 ns, and 2 ns more at 6,600 LUTs."""
    level = 1.5 + graph.cost(4).luts ** 0.5 / 40
    return next((place for place, levels in enumerate(LEVELS) if levels * level <= 1000 / fmax), len(LEVELS) - 1)


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

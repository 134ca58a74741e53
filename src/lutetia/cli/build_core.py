"""`lutetia build` of a model whose circuit works step by step: a core with memories, in a folder.

verilog/          the core, the contents of its memories, and a test bench with samples of the data
axi/              an AXI4-Stream wrapper of the core, with --axi
summary.html      one page: the accuracy, the parts, the ports, the memories, what was checked
report.json       the same for machines
manifest.json     checksums of all files
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lutetia._shared import folders
from lutetia._version import __version__
from lutetia.cli.board_model import core_recipe
from lutetia.cli.build_board import FOLDER, OnBoard, board_lines, run_on_board
from lutetia.cli.build_core_page import core_page
from lutetia.cli.build_data import fit_settings, open_run_data
from lutetia.cli.build_intervals import built_bounds, circuit_interval
from lutetia.cli.build_patches import PATCHES
from lutetia.cli.build_screen import Screen, accuracy_lines, cells_text, on_one_terminal, show_accuracy
from lutetia.cli.build_signals import SIGNALS
from lutetia.cli.build_tables import Refit, Room, kept_tables, measured, output_unit
from lutetia.cli.guard import UsageError
from lutetia.cli.show import console
from lutetia.errors import ArgumentError, DataError, MissingFeatureError
from lutetia.models import Tabular
from lutetia.precompute import (
    CHIPS,
    DEVICES,
    HARDWARE_FOLDER,
    Board,
    Core,
    IntegerClassifier,
    LUTNetwork,
    SignalCore,
    TimeLimitError,
    core_questions,
    core_replies,
    core_simulator,
    wrapped_core,
)

if TYPE_CHECKING:
    from lutetia.cli.build import BuildRequest
    from lutetia.cli.build_core_kind import CoreKind

FORMAT = "lutetia.build/1"
TARGETS = ("lut6", "verilog", "ecp5", "ice40")  # lut6 is the default of the command
WEIGHT_BITS = 8
MOST_BLOCK_RAMS = {"ecp5": 208, "ice40": 32}  # of the largest
AIMED = 60.0  # MHz, where --fmax does not say
READ_BACK = 256  # answers
MOST_SIMULATED, FEWEST_SIMULATED = 64, 2  # answers
CYCLES = {"icarus": 300_000, "verilator": 5_000_000}  # that are simulated in about half a minute
NOT_PROVED = "not proved: what a core does cycle by cycle is simulated, and its memories are read back"
KINDS = {kind.name: kind for kind in (PATCHES, SIGNALS)}


def run_core_build(model: Tabular, request: BuildRequest, board: Board | None, show: bool) -> dict[str, Any]:
    """Write the folder of a `BuildRequest` that was checked, and return the report."""
    kind = PATCHES if model.patches is not None else SIGNALS
    _check(kind, model, request)
    screen = Screen(show)
    network, report, samples = screen.run("tables", lambda: _network(kind, model, request, board))
    alone = report.pop("alone")
    core = kind.emit(IntegerClassifier(network), request)
    report |= _facts(kind, core, report["device"])
    show_accuracy(report, screen)
    screen.say("core", kind.text(report))
    given = _given(kind, core, report, samples)
    texts = {f"{HARDWARE_FOLDER}/{name}": text for name, text in {**core.files, **core.testbench(given)}.items()}
    wrapper = {f"axi/{name}": text for name, text in core.axi().items()} if request.axi else {}
    report["axi"] = next(iter(wrapper), None)

    on_board: dict[str, Any] = {}

    def save() -> None:
        page = core_page(kind, report)
        contents = {**texts, **wrapper, **on_board, "report.json": json.dumps(report, indent=2) + "\n", "summary.html": page}
        later = [f"{HARDWARE_FOLDER}/outputs.mem"]  # which a simulation in the folder leaves there
        try:
            folders.write(request.out, contents, {"format": FORMAT, "lutetia": __version__, "later": later})
        except OSError as error:
            raise DataError(f"{request.out} cannot be written: {error.strerror or error}") from error

    save()
    if board is not None:
        recipe = core_recipe(kind.name, request, report["weight_bits"])
        job = OnBoard(board, wrapped_core(core), alone, recipe, *_questions(core, given))
        on_board, report["board"] = run_on_board(job, report, screen, request.time_limit)
        report["synthesis"]["left_out"] = f"see {FOLDER}: the core was made for the {board.title}"
        save()
    checks: tuple[tuple[str, Callable[[], dict[str, Any]]], ...] = (
        ("read_back", lambda: _read_back(kind, core, given if samples is None else kind.some(core, samples, READ_BACK))),
        ("simulated", lambda: _simulate(kind, core, report, given, request)),
        ("synthesis", lambda: _synthesise(kind, core, report, request)),
    )
    for name, check in checks[: -1 if board is not None else None]:
        report[name] = screen.run(name.replace("_", " "), partial(_timed, check))
        screen.say(name.replace("_", " "), report[name]["left_out"] or f"{report[name]['seconds']:.1f} s")
        save()
    return report


def device_of(request: BuildRequest) -> str:
    """The device that a core has to fit."""
    return "ice40" if request.target == "ice40" else "ecp5"


def _check(kind: CoreKind, model: Tabular, request: BuildRequest) -> None:
    """Refuse options that mean nothing for a core."""
    if request.target not in TARGETS:
        raise UsageError(
            f"{request.checkpoint} {kind.why}, which is built as a core with memories: --target is {request.target}, expected "
            "verilog, ecp5, ice40 or c"
        )
    if request.readings:
        raise UsageError(f"--reading is for columns of numbers, and this model {kind.why}")
    if request.drop_unseen:
        raise UsageError("--drop-unseen is for a circuit of tables; the tables of a core are in memories, where it saves nothing")
    if request.temperature is not None or request.pins is not None:
        raise UsageError(f"--temperature and --pins are not for a core, and this model {kind.why}")
    if request.weight_bits is not None and request.weight_bits > WEIGHT_BITS and not model.is_regression:
        raise UsageError(f"--weight-bits is {request.weight_bits}, expected 2 to {WEIGHT_BITS}")
    kind.check(model, request)


# ---- the integer model -----------------------------------------------------------------------------------------------


def _network(
    kind: CoreKind, model: Tabular, request: BuildRequest, board: Board | None
) -> tuple[LUTNetwork, dict[str, Any], Any]:
    """The integer model, its facts, and the samples that it was measured on, as a core takes them."""
    weight_bits, device = request.weight_bits or WEIGHT_BITS, device_of(request)
    most = MOST_BLOCK_RAMS[device] if board is None else CHIPS[board.chip].block_rams

    def block_rams(network: LUTNetwork) -> int:
        return kind.program(IntegerClassifier(network), request).block_rams(device)

    refit = Refit(fit_settings(request.checkpoint), request.refit)
    prepared = kind.prepare(model, open_run_data(request.checkpoint, request.data, model), request)
    room = Room(most, block_rams, "block_rams")
    kept, used = kept_tables(model, weight_bits, prepared.data, refit, request.n_tables, room)
    network = kept.network
    if (needed := block_rams(network)) > most:
        name = DEVICES[device].name if board is None else f"the {board.title}"
        raise ArgumentError(
            f"the core of {request.checkpoint} needs about {needed:,} block RAMs for {used['used']:,} of its tables, expected "
            f"{most} at most, those of {name}: fewer --tables, {kind.smaller}, or --target c"
        )
    interval = circuit_interval(network, built_bounds(network, prepared.data, weight_bits, used["used"]))
    facts = {
        "alone": kept.alone,
        "format": FORMAT,
        "lutetia": __version__,
        "checkpoint": str(request.checkpoint),
        "model": type(model).__name__,
        "kind": kind.name,
        "target": "verilog",
        "device": device,
        "weights": sum(each.numel() for each in model.parameters()),
        "classes": [str(name) for name in model.metadata.get("classes", ())],
        "title": model.title or "the prediction",
        "accuracy": measured(network, prepared.data),
        "weight_bits": weight_bits,
        "boosted_tables": used,
        "output_unit": output_unit(network),
        "interval": interval,
        "is_log": model.loss.is_log,
        "input": network.encoder.to_dict(),
        **prepared.facts,
    }
    return network, facts, prepared.samples


def _facts(kind: CoreKind, core: Core, device: str) -> dict[str, Any]:
    """What the core is, for the report."""
    size = core.program.sizes
    return {
        **kind.facts(core),
        "out_bits": core.out_bits,
        "latency": core.cycles,
        "identity": f"0x{core.identity:08x}",
        "inputs": size["INPUTS"],
        "tables": size["LANES"] // size["K"],
        "sum_bits": size["SUM_BITS"],
        "memories": {
            name: {**each._asdict(), "block_rams": each.block_rams(device)} for name, each in core.program.memories.items()
        },
        "block_rams": core.program.block_rams(device),
        "proof": NOT_PROVED,
        **{name: {"left_out": "not finished", "seconds": 0.0} for name in ("read_back", "simulated", "synthesis")},
    }


def _given(kind: CoreKind, core: Core, report: dict[str, Any], samples: Any) -> Any:
    """What the test bench and the simulation are given: as much of the data as takes about half a minute, else random samples."""
    each = kind.cycles_each(report)
    tool = core_simulator(MOST_SIMULATED * each > CYCLES["icarus"])
    return kind.some(core, samples, min(MOST_SIMULATED, max(FEWEST_SIMULATED, CYCLES[tool or "icarus"] // each)))


def _questions(core: Core, given: Any) -> tuple[list[bytes], list[bytes]]:
    """What the simulation is given, as a board is asked, and its answers; of recordings their windows."""
    samples = core.cut(given) if isinstance(core, SignalCore) else given
    return core_questions(core, samples), core_replies(core, core.answers(given))


# ---- checks ----------------------------------------------------------------------------------------------------------


def _timed(check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a check found, or why it was left out, with its seconds."""
    began = time.perf_counter()
    try:
        told = {"left_out": "", **check()}
    except (MissingFeatureError, TimeLimitError) as error:
        told = {"left_out": str(error)}
    return {**told, "seconds": round(time.perf_counter() - began, 3)}


def _read_back(kind: CoreKind, core: Core, samples: Any) -> dict[str, Any]:
    """The memories, read in Python as the core reads them."""
    core.check_memories(samples)
    return {kind.many: len(core.answers(samples)), "equal": True}


def _simulate(kind: CoreKind, core: Core, report: dict[str, Any], given: Any, request: BuildRequest) -> dict[str, Any]:
    n, each = len(core.answers(given)), kind.cycles_each(report)
    tool = core_simulator(n * each > CYCLES["icarus"])
    core.simulate(given, tool=tool, limit=request.time_limit, axi=request.axi)
    through = " through the AXI4-Stream wrapper" if request.axi else ""
    return {kind.many: n, "equal": True, "by": f"{tool}{through}", "cycles": n * each}


def _synthesise(kind: CoreKind, core: Core, report: dict[str, Any], request: BuildRequest) -> dict[str, Any]:
    """The counts of yosys, with the target of a device or --fmax also the clock of nextpnr and what it comes to."""
    place = request.target in MOST_BLOCK_RAMS or request.fmax is not None
    aimed = (request.fmax or AIMED) if place else None
    made = core.synthesize(report["device"], place=place, fmax=aimed, speed_grade=request.speed_grade, limit=request.time_limit)
    speed = made["fmax_mhz"] and round(made["fmax_mhz"] * 1e6 / kind.cycles_each(report), 1)
    return {**made, f"{kind.many}_per_second": speed}


# ---- on the screen ---------------------------------------------------------------------------------------------------


def show_core_report(report: dict[str, Any], out: Path) -> None:
    """The outcome in a few lines, accuracy first."""
    screen, is_told, kind = console(), on_one_terminal(), KINDS[report["kind"]]
    many = kind.many

    def say(name: str, text: str) -> None:
        screen.print(f"{name:<12}{text}", soft_wrap=True, markup=False)

    if not is_told:
        for name, text in accuracy_lines(report):
            say(name, text)
        say("core", kind.text(report))
    if report.get("rounded_by"):
        say("pixels", f"measured on 8-bit pixels: values of the data were up to {report['rounded_by']:.2f} levels from these")
    say("delay", f"{report['latency']:,} cycles from the last {kind.sample} of {_an(kind.one)} to its answer")
    if not report.get("board"):
        say("speed", _speed_text(kind, report))
    read, simulated, made = (report[name] for name in ("read_back", "simulated", "synthesis"))
    say("read back", read["left_out"] or f"{read[many]} {many} by the contents of the memories: equal to the integer model")
    say("simulated", simulated["left_out"] or f"{simulated[many]} {many} by {simulated['by']}: equal to the integer model")
    say("proof", report["proof"])
    for name, text in (
        board_lines(report["board"], out) if report.get("board") else [(report["device"], made["left_out"] or cells_text(made))]
    ):
        say(name, text)
    if made.get("placed"):
        say("placed", made["placed"])
    say("verilog", str(out / HARDWARE_FOLDER / "core.v"))
    if report["axi"]:
        say("axi", f"{out / report['axi']}, an AXI4-Stream wrapper of verilog/")
    say("summary", str(out / "summary.html"))


def _speed_text(kind: CoreKind, report: dict[str, Any]) -> str:
    speed, clock = kind.speed(report)
    if report["synthesis"].get("fmax_mhz"):
        return f"{speed:,.0f} {kind.many} per second at {clock:.1f} MHz, the clock that nextpnr found"
    return f"{speed:,.0f} {kind.many} per second at a clock of {clock:g} MHz; --target ecp5 (or ice40) says how fast it can be"


def _an(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"

"""`lutetia build`: a trained network of lookup tables as hardware, in a folder with the results of all checks.

summary.html      one page: the accuracy, the graph, the tables, the costs, what was simulated, proved and synthesised
report.json       the same for machines
tables.json       what each table is; tables.safetensors: its rows
verilog/, vhdl/   modules, a self-checking test bench and its samples
axi/              an AXI4-Stream wrapper of the Verilog, with --axi
board/            the circuit on a board, with --board: see build_board
circuit.bit       a bitstream, of --target ecp5 (circuit.bin of ice40), if nextpnr and the packer are installed
flow.json         the steps of the build, for lutetia.flow
manifest.json     checksums of all files

The folder is written before anything is checked, and again after each check: a check that takes too long costs only its own
result.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors

from lutetia import flow
from lutetia._shared import folders
from lutetia._shared.folders import MANIFEST
from lutetia._version import __version__
from lutetia.cli.board_model import circuit_recipe
from lutetia.cli.build_board import SIMULATED as ASKED
from lutetia.cli.build_board import OnBoard, check_board, circuit_room, run_on_board
from lutetia.cli.build_data import Measured, fit_settings, has_core, open_run_data
from lutetia.cli.build_intervals import built_bounds, circuit_interval
from lutetia.cli.build_page import page
from lutetia.cli.build_readings import asked_readings, check_readings, input_ports, on_readings, output_port
from lutetia.cli.build_screen import Screen, show_accuracy
from lutetia.cli.build_tables import LUTS, Refit, kept_tables, measured, output_unit, without_unseen
from lutetia.cli.guard import UsageError, did_you_mean
from lutetia.cli.one_target import one_output
from lutetia.cli.values import BITSTREAMS, C_TARGETS, PROGRAMS
from lutetia.errors import ArgumentError, DataError
from lutetia.files import check_writable, read_text
from lutetia.models import MOST_READING_BITS as MOST_BITS
from lutetia.models import Classifier, LUTClassifier, LUTTransformer, Model, Tabular, VotesClassifier, load
from lutetia.precompute import (
    CHECK,
    LATER,
    MAKE,
    OPTIMISE,
    PIPELINE,
    PROOF,
    SPEED_GRADES,
    SYNTHESIS,
    TARGETS,
    Board,
    Build,
    Graph,
    Hardware,
    LUTNetwork,
    Table,
    circuit_questions,
    circuit_replies,
    count_votes,
    encoder,
    fit_bits,
    lut_network,
    random_input,
    run_steps,
    votes_wiring,
    wrapped_circuit,
)

FORMAT = "lutetia.build/1"
MOST_INPUT_BITS = 16
DEFAULT_BITS = 8  # of an input, where no data says how many it takes
WEIGHT_BITS = 8
TABULAR_BITS = 6  # of a weight where a table of data is classified: the accuracy is that of 8
CLOCKED = ("ice40", "ecp5", "verilog")
PAGES = ("page", "html")  # which another command makes
SIMULATED = 64  # samples of the data that are simulated
LARGEST_PINS = 1 << 20  # bytes of a file of constraints
SHOWN = 6  # samples whose votes the page shows
DRAWN = 10_000  # tables of a network of votes up to which the page holds the whole of it


@dataclass(frozen=True)
class BuildRequest:
    """The options of the command; None lets the model and its data decide."""

    checkpoint: Path
    out: Path
    input_bits: int | None = None
    weight_bits: int | None = None
    target: str = "lut6"
    prove: bool = True
    data: Path | None = None
    range: tuple[float, float] | None = None
    time_limit: float = 600.0
    detectors_per_cycle: int = 4  # of a language model in Verilog
    fmax: float | None = None
    pins: Path | None = None  # constraints for place and route
    speed_grade: int | None = None  # of an ECP5
    n_tables: int | None = None  # of a Tabular
    temperature: float | None = None  # of the draws of a language model in Verilog
    reuse: int | None = None  # of a classifier in Verilog
    refit: bool | None = None  # the tables of a Tabular that are kept, where some are not; None: if it helps
    axi: bool = False  # an AXI4-Stream wrapper, too
    drop_unseen: bool = False  # rows of tables that no training sample reads may hold anything
    readings: tuple[str, ...] = ()  # of columns of a Tabular, NAME=READING
    output: str | None = None  # of several targets, the one to build
    board: str | None = None  # its name, or the file that describes it

    def load(self) -> Any:
        """The model to build."""
        return one_output(load(self.checkpoint), self.output, "build")


def run_build(request: BuildRequest, show: bool) -> dict[str, Any]:
    """Build, write the folder, check what is in it, and return the report."""
    _check(request)
    board = check_board(request)
    if board is not None:
        request = replace(request, target=board.family)
    model: Model[Any] | None = None if request.target in C_TARGETS else request.load()
    if isinstance(model, Tabular) and has_core(model):
        from lutetia.cli.build_core import run_core_build

        return run_core_build(model, request, board, show)
    if request.target in PROGRAMS:
        if request.axi:
            raise UsageError(f"--axi wraps a circuit, and --target is {request.target}, expected one of {', '.join(TARGETS)}")
        from lutetia.cli.build_program import run_program_build

        return run_program_build(request)
    pins = None if request.pins is None else _pins(request.pins)
    with flow.record() as recorded:
        model = _circuit_model(model, request.checkpoint)
        screen = Screen(show)
        network, facts = screen.run("tables", lambda: _network(model, request, board))
        samples, alone, recipe = (facts.pop(key) for key in ("samples", "alone", "recipe"))
        build = Build(
            network.graph,
            samples=samples,
            classes=model.metadata.get("classes", ()),
            target=request.target,
            fmax=request.fmax,
            speed_grade=request.speed_grade,
            pins=pins,
            time_limit=request.time_limit,
            progress=screen.part,
        )
        build.report |= facts
        show_accuracy(build.report, screen)

        def save() -> None:
            report = build.report
            contents = _files(build) | {"flow.json": recorded.to_json(), "report.json": json.dumps(report, indent=2) + "\n"}
            contents["summary.html"] = page(report)
            contents |= {f"axi/{name}": text for name, text in wrapper.items()} | on_board
            later = [f"{language}/{name}" for language in build.hardware for name in LATER]
            try:
                folders.write(request.out, contents, {"format": FORMAT, "lutetia": __version__, "later": later})
            except OSError as error:
                raise DataError(f"{request.out} cannot be written: {error.strerror or error}") from error

        run_steps(build, (*OPTIMISE, *([PIPELINE] if request.fmax else [])), screen.around(build))
        build.report |= _shape(build.graph)
        run_steps(build, MAKE, screen.around(build))
        build.report["identity"] = build.hardware["verilog"].manifest["identity"]
        on_board: dict[str, Any] = {}
        wrapper = build.hardware["verilog"].axi() if request.axi else {}
        build.report["axi"] = next((f"axi/{name}" for name in wrapper if name.endswith("_axis.v")), None)
        save()
        if board is not None:
            job = _on_board(board, build, alone, recipe)
            on_board, build.report["board"] = run_on_board(job, build.report, screen, request.time_limit)
            save()
        for step in CHECK:
            if not ((step is PROOF and not request.prove) or (step is SYNTHESIS and board is not None)):
                try:
                    run_steps(build, [step], screen.around(build))
                finally:
                    save()
    return build.report


# ---- before anything is made -----------------------------------------------------------------------------------------


def _check(request: BuildRequest) -> None:
    if request.target not in (*TARGETS, *PROGRAMS):
        hint = did_you_mean(request.target, (*TARGETS, *PROGRAMS))
        hint = f"lutetia page {request.checkpoint} makes one" if request.target in PAGES else hint
        raise UsageError(f"there is no target {request.target!r}: {hint}")
    if request.input_bits is not None and not 1 <= request.input_bits <= MOST_BITS:
        raise UsageError(
            f"--input-bits is {request.input_bits}, expected 1 to {MOST_INPUT_BITS}, or to {MOST_BITS} for a table of data"
        )
    asked_readings(request.readings)
    most = {"c": 16, "arduino": 16, "verilog": 8}.get(request.target, 24)
    if request.weight_bits is not None and not 2 <= request.weight_bits <= most:
        raise UsageError(f"--weight-bits is {request.weight_bits}, expected 2 to {most}")
    if not 1 <= request.detectors_per_cycle <= 64:
        raise UsageError(f"--detectors-per-cycle is {request.detectors_per_cycle}, expected 1 to 64")
    if request.n_tables is not None and request.n_tables < 1:
        raise UsageError(f"--tables is {request.n_tables}, expected 1 or more")
    if request.fmax is not None and not (request.fmax > 0 and request.target in CLOCKED):
        raise UsageError(
            f"--fmax is {request.fmax:g} and --target {request.target}, expected a clock in MHz on {', '.join(CLOCKED)}"
        )
    if request.reuse is not None and (request.target != "verilog" or request.reuse < 1):
        raise UsageError(f"--reuse is {request.reuse} and --target {request.target}, expected 1 or more with --target verilog")
    if request.temperature is not None and request.target != "verilog":
        raise UsageError("--temperature is for a language model with --target verilog; a program in C can always sample")
    if request.drop_unseen and request.target in PROGRAMS:
        raise UsageError(f"--drop-unseen is for a circuit of tables, not for --target {request.target}")
    if request.pins is not None and request.target not in BITSTREAMS:
        raise UsageError(f"--pins is given and --target is {request.target}, expected {' or '.join(BITSTREAMS)}")
    if request.speed_grade is not None and (request.target != "ecp5" or request.speed_grade not in SPEED_GRADES):
        grades = ", ".join(map(str, SPEED_GRADES))
        raise UsageError(f"--speed-grade is {request.speed_grade} and --target {request.target}, expected {grades} with ecp5")
    if not request.time_limit > 0:
        raise UsageError(f"--time-limit is {request.time_limit:g}, expected more than 0 seconds")
    if request.range is not None and not request.range[0] < request.range[1]:
        raise UsageError(f"--range is {request.range[0]:g} to {request.range[1]:g}, expected the lower end first")
    out, checkpoint = (Path(os.path.realpath(each)) for each in (request.out, request.checkpoint))
    if out == checkpoint or out in checkpoint.parents or checkpoint in out.parents:
        raise ArgumentError(f"--out is {request.out}, which is, holds or lies in the model {request.checkpoint}: choose another")
    try:
        folders.check_replaceable(request.out, FORMAT)
    except ArgumentError as error:
        raise ArgumentError(str(error).replace("was not written by Lutetia", "was not built here")) from error
    check_writable(request.out if request.out.exists() else request.out.parent)


def _pins(path: Path) -> str:
    try:
        return read_text(path, "a file of pin constraints", LARGEST_PINS)
    except DataError as error:
        raise DataError(f"--pins {error}") from error


def _circuit_model(model: Model[Any] | None, checkpoint: Path) -> Classifier:
    """A model that was loaded, if it can become a circuit."""
    if isinstance(model, LUTClassifier):
        _check_reads(model, checkpoint)
    if isinstance(model, LUTTransformer):
        raise DataError(f"{checkpoint} holds a language model, which is built as a program: --target c or verilog")
    if not isinstance(model, Classifier):
        raise DataError(f"{checkpoint} holds a {type(model).__name__}, expected a LUTClassifier, a VotesClassifier or a Tabular")
    return model


def _check_reads(model: LUTClassifier, checkpoint: Path) -> None:
    """Refuse reads other than hard ones, and say how to train the same network with hard reads."""
    soft = {number: layer.read for number, layer in enumerate(model.config.layers) if getattr(layer, "read", "hard") != "hard"}
    if soft:
        settings = " ".join(f"--set model.layers.{number}.read=hard" for number in soft)
        reads = " and ".join(sorted({f"{read!r}" for read in soft.values()}))
        raise ArgumentError(
            f"{checkpoint} reads its tables by {reads}, which is arithmetic; only read='hard' becomes a circuit. "
            f"Train it again: lutetia train CONFIG.toml {settings}"
        )


def _on_board(board: Board, build: Build, alone: Model[Any], recipe: dict[str, Any]) -> OnBoard:
    """The circuit of a build, with the first of its samples."""
    x = random_input(build.graph, ASKED, seed=0) if build.samples is None else build.samples[:ASKED]
    sides = circuit_questions(build.graph, x), circuit_replies(build.graph, build.graph(x))
    return OnBoard(board, wrapped_circuit(build.hardware["verilog"]), alone, recipe, *sides)


# ---- the integer model -----------------------------------------------------------------------------------------------


def _network(model: Classifier, request: BuildRequest, board: Board | None) -> tuple[LUTNetwork, dict[str, Any]]:
    """The integer model and its facts: how inputs are quantised, and its accuracy next to the model's."""
    alone: Model[Any] = model
    check_readings(model, request.input_bits, request.readings)
    data = open_run_data(request.checkpoint, request.data, model)
    choice = None
    if request.n_tables is not None and not (isinstance(model, Tabular) and model.config.core == "tables"):
        raise UsageError(f"--tables is for a table of data that was fitted table by table, not for a {type(model).__name__}")
    classifies = isinstance(model, Tabular) and not model.is_regression
    weight_bits = request.weight_bits or (TABULAR_BITS if classifies else WEIGHT_BITS)
    used: dict[str, Any] = {}
    interval = readings = None
    if isinstance(model, VotesClassifier):  # its bits and its range are part of it
        bits, ends, source = model.config.bits, (model.config.low, model.config.high), "checkpoint"
        if request.input_bits not in (None, bits):
            raise UsageError(f"--input-bits is {request.input_bits}, and this model was trained on inputs of {bits} bits")
        network = LUTNetwork(model.graph(), model, encoder(bits, *ends, model.votes.n_inputs, affine=True))
    elif isinstance(model, Tabular):  # its inputs become codes by an encoding of its own
        asked = asked_readings(request.readings)
        refit = Refit(fit_settings(request.checkpoint), request.refit)
        room = LUTS if board is None else circuit_room(board)
        kept, used = kept_tables(model, weight_bits, data, refit, request.n_tables, room)
        network, alone = kept.network, kept.alone
        if request.input_bits is not None or request.readings:
            network, readings = on_readings(model, network, data, request.input_bits, asked)
        is_exact = readings is None or not readings["changed"]
        interval = circuit_interval(network, built_bounds(network, data, weight_bits, used["used"], is_exact))
        source = "checkpoint"
        bits = network.bits
        ends = (0.0, 0.0)
    else:
        if request.input_bits is not None and request.input_bits > MOST_INPUT_BITS:
            raise UsageError(
                f"--input-bits is {request.input_bits}, expected 1 to {MOST_INPUT_BITS}, as this is no table of data"
            )
        ends, source = _range(model, request)
        if request.input_bits is None and isinstance(data, Measured):
            choice = fit_bits(model, *data.calibration, *ends)
        bits = request.input_bits or (choice.bits if choice else DEFAULT_BITS)
        network = lut_network(model, bits=bits, weight_bits=weight_bits, low=ends[0], high=ends[1])
    unseen = None
    if request.drop_unseen:
        network, unseen = without_unseen(network, data)
    accuracy = measured(network, data)
    facts = {
        "format": FORMAT,
        "lutetia": __version__,
        "checkpoint": str(request.checkpoint),
        "model": type(model).__name__,
        "weights": sum(each.numel() for each in model.parameters()),
        "classes": list(model.metadata.get("classes", ())),
        "features": list(model.metadata.get("features", ())),
        "ports": input_ports(model, network),
        "accuracy": accuracy,
        "readings": readings,
        "input_bits": bits,
        "weight_bits": weight_bits,
        "boosted_tables": used,
        "unseen": unseen,
        "output_unit": output_unit(network),
        "output_port": output_port(model, network),
        "interval": interval,
        "is_log": isinstance(model, Tabular) and model.loss.is_log,
        "input": {**network.encoder.to_dict(), "range_from": source, "chosen": choice.to_dict() if choice else None},
        "samples": network.quantise(data.x[:SIMULATED]) if isinstance(data, Measured) else None,
        "alone": alone,
        "recipe": circuit_recipe(request, bits, weight_bits, ends),
        "votes": _votes(model, network, data) if isinstance(data, Measured) and isinstance(model, VotesClassifier) else None,
    }
    return network, facts


def _votes(model: VotesClassifier, network: LUTNetwork, data: Measured) -> dict[str, Any]:
    """How the first samples were decided: the count of each class, and how many of the winning votes read each input."""
    x = network.quantise(data.x[:SHOWN])
    votes = count_votes(network.graph, x)
    parts = (x.tolist(), data.labels[:SHOWN].tolist(), *(part.tolist() for part in votes))
    items = [dict(zip(("values", "label", "answer", "counts", "reads"), item, strict=True)) for item in zip(*parts, strict=True)]
    circuit = votes_wiring(network.graph) if len(model.config.input_shape) == 2 and network.graph.n_lookups <= DRAWN else None
    return {"shape": list(model.config.input_shape), "top": 2**model.config.bits - 1, "items": items, "circuit": circuit}


def _range(model: LUTClassifier, request: BuildRequest) -> tuple[tuple[Any, Any], str]:
    """The range of the inputs, and where it comes from."""
    if request.range is not None:
        return request.range, "--range"
    low, high = (model.metadata.get(key) for key in ("input_low", "input_high"))
    if low is None or high is None:
        return (0.0, 1.0), "assumed"
    return (low, high), "checkpoint"


# ---- the folder ------------------------------------------------------------------------------------------------------


def _shape(graph: Graph) -> dict[str, Any]:
    cycles = graph.cycles()
    return {
        "graph": _nodes(graph),
        "tables": [_told(number, table) for number, table in enumerate(_tables(graph))],
        "lookups": graph.n_lookups,
        "latency": cycles.first,
        "cycles_per_frame": cycles.per_frame,
        "estimate": {"luts": graph.cost().luts, "flip_flops": graph.cost().flip_flops},
    }


def _files(build: Build) -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {}
    for language, hardware in build.hardware.items():
        files |= {f"{language}/{name}": text for name, text in _with_manifest(hardware, build, language).items()}
    if build.bitstream is not None:
        files[BITSTREAMS[build.target]] = build.bitstream
    files["tables.json"] = json.dumps(build.report["tables"], indent=1) + "\n"
    tables = {
        f"table{number}": torch.from_numpy(table.contents.astype("int64", order="C"))
        for number, table in enumerate(_tables(build.graph))
    }
    files["tables.safetensors"] = to_safetensors(tables)
    return files


def _with_manifest(hardware: Hardware, build: Build, language: str) -> dict[str, str]:
    """The files of a language and its test bench; the manifest also says what the inputs are and how far the truth may lie from
    the output."""
    known = {**hardware.manifest, "interval": build.report["interval"], "inputs": build.report["ports"]}
    return {**hardware.files, **build.benches[language], MANIFEST: json.dumps(known, indent=2) + "\n"}


def _tables(graph: Graph) -> list[Any]:
    found = {table.key: table for node in graph.nodes if isinstance(node, Table) for table in node.tables}
    return list(found.values())


def _told(number: int, table: Any) -> dict[str, Any]:
    return {"table": number, "address_bits": table.k, "rows": len(table.contents), "outputs": list(table.bits)}


def _nodes(graph: Graph) -> list[dict[str, Any]]:
    costs = graph.cost().to_dicts()
    return [
        {"number": number, "kind": node.kind, "name": node.name, "sources": list(node.sources), **_size(costs[number])}
        for number, node in enumerate(graph.nodes)
    ]


def _size(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("channels", "bits", "tables", "lookups", "widest", "table_bits", "luts", "flip_flops")}

"""`lutetia build` with `--target c`, `arduino` or `verilog`: a whole-number model as a program or as a core, in a folder.

library.properties, src/, examples/  with --target arduino: a library, and a sketch that uses it
model.c, model.h  the program: cc -std=c99 -O3 model.c -o run
signals.c, .h     of windows of signals: lutetia_push, which takes a sample of each and says when a window is full
recording.c       a program that reads a CSV file of samples: cc .. model.c signals.c recording.c -o run
columns.c, .h     of a model of columns: lutetia_encode, which turns values in their own units into its inputs
rows.c            a program that reads a CSV file: cc -std=c99 -O3 -DLUTETIA_NO_MAIN model.c columns.c rows.c -o run
verilog/          the core, the contents of its memories, and a test bench
report.json       sizes, widths of the sums, and the loss or the accuracy beside those of the float model
manifest.json     checksums of all files
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lutetia._shared import folders
from lutetia._shared.numbers import short_number
from lutetia._version import __version__
from lutetia.cli.build_data import fit_settings, has_core, open_run_data, open_run_text
from lutetia.cli.build_intervals import built_bounds, circuit_interval, circuit_text, program_interval, program_text
from lutetia.cli.build_readings import asked_readings, changed_text, on_readings, readings_text
from lutetia.cli.build_tables import Refit, first_tables, measured, output_unit
from lutetia.cli.build_uno import uno_facts, uno_text
from lutetia.cli.guard import UsageError
from lutetia.cli.show import console
from lutetia.cli.values import C_TARGETS
from lutetia.errors import DataError, MissingFeatureError
from lutetia.models import Model, Tabular
from lutetia.precompute import (
    HARDWARE_FOLDER,
    INPUT_BITS,
    IntegerClassifier,
    IntegerTransformer,
    LanguageHardware,
    LUTNetwork,
    TimeLimitError,
    arduino_files,
    c_files,
    c_memory,
    integer_model,
    library_name,
    measure_bare,
    number_columns,
)

if TYPE_CHECKING:
    from lutetia.cli.build import BuildRequest

FORMAT = "lutetia.build/1"
WEIGHT_BITS = 8
AVR_CLOCK = 16e6  # Hz, of an Arduino Uno
SIMULATED = 8  # bytes of a language model


def run_program_build(request: BuildRequest) -> dict[str, Any]:
    """Write the folder of a `BuildRequest` that was checked, and return the report."""
    model, taken = whole_model(request)
    if isinstance(model, IntegerTransformer) and request.target == "arduino":
        raise UsageError("a language model takes more memory than most boards have: --target c writes it as C")
    report = facts(model, request, taken)
    if request.target in C_TARGETS:
        texts = c_files(model)
        report |= {**c_memory(model), "compiled": measure_bare(model, texts)}
        report["uno"] = uno_facts(model, report)
        if isinstance(model, IntegerClassifier) and request.target == "arduino":
            report["library"] = library_name(request.checkpoint.resolve().name)
            texts = arduino_files(model, report["library"])
    elif isinstance(model, IntegerTransformer):
        if request.reuse is not None:
            raise UsageError("--reuse is for classifiers; for a language model, --detectors-per-cycle says how much is shared")
        hardware = model.emit("verilog", detectors_per_cycle=request.detectors_per_cycle, temperature=request.temperature)
        texts, core = _language_core(hardware, model, request)
        report |= core
        if request.fmax is not None:
            write_folder(request.out, texts, {**report, "synthesis": {"left_out": "not finished"}})
            report["synthesis"] = _synthesis(hardware, request)
    else:
        if request.fmax is not None or request.temperature is not None:
            raise UsageError(
                "--fmax and --temperature with --target verilog are for language models; a classifier: --target ecp5"
            )
        texts, core = _classifier_core(model) if request.reuse is None else _shared_core(model, request)
        report |= core
    write_folder(request.out, texts, report)
    return report


def _synthesis(hardware: LanguageHardware, request: BuildRequest) -> dict[str, Any]:
    """The results of yosys and nextpnr for the core, and bytes per second at that clock; or why they are not known."""
    try:
        made = hardware.synthesize(place=True, fmax=request.fmax, limit=request.time_limit)
    except (MissingFeatureError, TimeLimitError) as error:
        return {"left_out": str(error)}
    cycles = hardware.layout.cycles(hardware.context, full=True)
    speed = None if made["fmax_mhz"] is None else round(made["fmax_mhz"] * 1e6 / cycles)
    reached = None if made["fmax_mhz"] is None else made["fmax_mhz"] >= request.fmax
    return {"left_out": "", **made, "bytes_per_second": speed, "reached": reached}


def _language_core(
    hardware: LanguageHardware, model: IntegerTransformer, request: BuildRequest
) -> tuple[dict[str, str], dict[str, Any]]:
    """The files of a language model's core, and its cycles, predicted and simulated."""
    layout = hardware.layout
    texts = {f"{HARDWARE_FOLDER}/{name}": text for name, text in hardware.contents().items()}
    texts[f"{HARDWARE_FOLDER}/core.json"] = json.dumps(hardware.facts(), indent=2) + "\n"
    predicted = {"first": layout.cycles(1), "filled": layout.cycles(model.context), "full": layout.cycles(model.context, True)}
    try:
        written = hardware.simulate(bytes([min(10, model.vocab - 1)]), SIMULATED, limit=request.time_limit)
        simulated = {"left_out": "", "by": hardware.simulator(n=SIMULATED), "bytes": SIMULATED, "cycles": written.cycles}
    except (MissingFeatureError, TimeLimitError) as error:
        simulated = {"left_out": str(error)}
    return texts, {
        "detectors_per_cycle": request.detectors_per_cycle,
        "cycles_per_byte": predicted,
        "table_bytes": model.n_bytes(),
        "simulated": simulated,
    }


def _classifier_core(model: IntegerClassifier) -> tuple[dict[str, str], dict[str, Any]]:
    """The modules of a classifier's graph, with a test bench."""
    hardware = model.graph.emit("verilog")
    texts = {f"{HARDWARE_FOLDER}/{name}": text for name, text in {**hardware.files, **hardware.testbench()}.items()}
    return texts, {"latency": model.graph.cost().latency, "top": hardware.name}


def _shared_core(model: IntegerClassifier, request: BuildRequest) -> tuple[dict[str, str], dict[str, Any]]:
    """The files of a core that is used several times per sample, simulated on random inputs."""
    assert request.reuse is not None
    core = model.emit(reuse=request.reuse)
    x = torch.randint(2**model.input_bits, (SIMULATED, model.n_inputs), generator=torch.Generator().manual_seed(0))
    files = {**core.files, **core.testbench(x)}
    try:
        core.simulate(x, limit=request.time_limit)
        simulated: dict[str, Any] = {"left_out": "", "samples": SIMULATED}
    except (MissingFeatureError, TimeLimitError) as error:
        simulated = {"left_out": str(error)}
    facts = {"latency": core.cycles, "reuse": core.reuse, "top": "core", "simulated": simulated}
    return {f"{HARDWARE_FOLDER}/{name}": text for name, text in files.items()}, facts


def whole_model(request: BuildRequest) -> tuple[IntegerTransformer | IntegerClassifier, Taken | None]:
    """The whole-number model of the requested checkpoint, and how it takes numbers of columns if it does."""
    low, high = request.range or (None, None)
    bits, input_bits = request.weight_bits or WEIGHT_BITS, request.input_bits or INPUT_BITS
    model: Model[Any] = request.load()
    n_tables = request.n_tables
    if bits > WEIGHT_BITS and not isinstance(model, Tabular):
        raise UsageError(f"--weight-bits is {request.weight_bits}, expected 2 to {WEIGHT_BITS}; only tables of data take more")
    takes_numbers = bool(request.readings) or (isinstance(model, Tabular) and request.input_bits is not None)
    if request.target == "arduino" and isinstance(model, Tabular) and not has_core(model):
        takes_numbers = True
    if takes_numbers:
        _check_takes_numbers(model, request)
    if isinstance(model, Tabular) and (n_tables is not None or bits < WEIGHT_BITS or takes_numbers):
        return _kept_model(model, request, bits, takes_numbers)
    made = integer_model(model, weight_bits=bits, input_bits=input_bits, low=low, high=high, n_tables=n_tables)
    return made, None


def _check_takes_numbers(model: Model[Any], request: BuildRequest) -> None:
    """Refuse readings that a model cannot have."""
    if request.target not in C_TARGETS:
        raise UsageError(f"--reading is for a circuit or a program in C of a table of data, and --target is {request.target}")
    if not isinstance(model, Tabular):
        raise UsageError(f"--reading is for a table of data, not for a {type(model).__name__}")
    number_columns(model, request.input_bits, asked_readings(request.readings))


class Taken(NamedTuple):
    """The network of a program that takes whole numbers of columns, and which rows that changes."""

    network: LUTNetwork
    readings: dict[str, Any]


def _kept_model(
    model: Tabular, request: BuildRequest, weight_bits: int, takes_numbers: bool
) -> tuple[IntegerClassifier, Taken | None]:
    """The tables that are kept, in whole numbers; with readings, if `takes_numbers`."""
    n_tables, data = request.n_tables or model.config.n_tables, open_run_data(request.checkpoint, request.data, model)
    refit = Refit(fit_settings(request.checkpoint), request.refit)
    network = first_tables(model, n_tables, weight_bits, data, refit).network
    if not takes_numbers:
        return IntegerClassifier(network, built_bounds(network, data, weight_bits, n_tables)), None
    asked = asked_readings(request.readings)
    made, told = on_readings(model, network, data, request.input_bits, asked)
    bounds = built_bounds(made, data, weight_bits, n_tables, not told["changed"])
    return IntegerClassifier(network, bounds, number_columns(model, request.input_bits, asked)), Taken(made, told)


def facts(model: IntegerTransformer | IntegerClassifier, request: BuildRequest, taken: Taken | None) -> dict[str, Any]:
    """What is known of the model."""
    told = {
        "format": FORMAT,
        "lutetia": __version__,
        "checkpoint": str(request.checkpoint),
        "model": type(model.model).__name__,
        "target": request.target,
        "weight_bits": request.weight_bits or WEIGHT_BITS,
    }
    if isinstance(model, IntegerTransformer):
        text = open_run_text(request.checkpoint, request.data)
        loss = {"left_out": f"not measured ({text})"} if isinstance(text, str) else {"left_out": "", **model.report(text)}
        return {**told, "kind": "language", "widths": model.widths(), "loss": loss}
    network = model.network if taken is None else taken.network
    input_facts: dict[str, Any] = {"inputs": model.n_inputs, "outputs": model.n_outputs, "input": network.encoder.to_dict()}
    if taken is not None:
        input_facts["readings"] = taken.readings
    if isinstance(model.model, Tabular) and model.model.patches is not None:
        input_facts["pixels"] = model.model.n_columns
    widths = {f"stage {number}": stage.bits for number, stage in enumerate(model.stages)}
    input_facts["output_unit"] = output_unit(model.network)
    input_facts["is_log"] = isinstance(model.model, Tabular) and model.model.loss.is_log
    data = open_run_data(request.checkpoint, request.data, model.model)
    is_program = request.target in C_TARGETS
    input_facts["interval"] = program_interval(model, data) if is_program else circuit_interval(model.network, model.bounds)
    return {**told, "kind": "classifier", **input_facts, "widths": widths, "accuracy": measured(network, data)}


def write_folder(out: Path, texts: dict[str, Any], report: dict[str, Any]) -> None:
    """Write the files and the report, whole or not at all."""
    contents = {**texts, "report.json": json.dumps(report, indent=2) + "\n"}
    try:
        folders.write(out, contents, {"format": FORMAT, "lutetia": __version__})
    except OSError as error:
        raise DataError(f"{out} cannot be written: {error.strerror or error}") from error


# ---- on the screen ---------------------------------------------------------------------------------------------------


def show_program_report(report: dict[str, Any], out: Path) -> None:
    """The outcome in a few lines, loss or accuracy first."""
    show_quality(report)
    if report["target"] in C_TARGETS:
        window = "ram_window_bytes" in report
        say("memory", f"{report['flash_table_bytes']:,} bytes of tables, {report['ram_bytes']:,} bytes of RAM")
        if "readings" in report:
            say("inputs", readings_text(report["input"], "model.h") if "columns" in report["input"] else "pixels from 0 to 255")
            say("readings", changed_text(report["readings"]))
        if "flash_encoding_bytes" in report:
            takes = "signals.c, which takes samples" if window else "columns.c, which takes values in their own units"
            held = f", {report['ram_window_bytes']:,} bytes of RAM for a window" if window else ""
            say("encoding", f"{report['flash_encoding_bytes']:,} bytes of {takes}{held}")
        for machine, size in report["compiled"].items():
            say(machine, size["left_out"] or _size_text(size))
        if report["uno"] is not None:
            say("Arduino Uno", uno_text(report["uno"], report["weight_bits"]))
        if "library" in report:
            say("library", f"{report['library']}: put {out} into the libraries folder of the Arduino IDE, or zip it")
            say("example", str(next((out / "examples").glob("*/*.ino"))))
        elif "flash_encoding_bytes" in report or "readings" in report:
            names = ("model.c", "signals.c", "recording.c") if window else ("model.c", "columns.c", "rows.c")
            texts = " ".join(shlex.quote(str(out / name)) for name in names)
            say("program", f"cc -std=c99 -O3 -DLUTETIA_NO_MAIN {texts} -o run{' -lm' if report.get('is_log') else ''}")
            say("run it", f"./run < {'RECORDING' if window else 'DATA'}.csv")
        else:
            say("program", f"cc -std=c99 -O3 {out / 'model.c'} -o run")
            say("run it", "./run 200 < PROMPT" if report["kind"] == "language" else "./run < SAMPLES")
            if "pixels" in report:
                say("samples", f"one image a line: {report['pixels']:,} pixels from 0 to 255, channel by channel, row by row")
    elif report["kind"] == "language":
        cycles, simulated = report["cycles_per_byte"], report["simulated"]
        say("cycles", f"{cycles['first']:,} for the first byte, {cycles['filled']:,} when the window is filled, "
            f"{cycles['full']:,} for each after that")  # fmt: skip
        say("simulated", simulated["left_out"] or f"{simulated['bytes']} bytes by {simulated['by']}: equal to the integer model")
        if "synthesis" in report:
            say("ecp5", _synthesis_text(report["synthesis"]))
        say("core", str(out / HARDWARE_FOLDER / "core.v"))
    else:
        say("latency", f"{report['latency']} cycles")
        if "reuse" in report:
            told = report["simulated"]
            say("simulated", told["left_out"] or f"{told['samples']} samples, equal to the integer model")
        say("core", str(out / HARDWARE_FOLDER / f"{report['top']}.v"))


def _size_text(size: dict[str, Any]) -> str:
    text = f"{size['flash']:,} bytes of flash, {size['ram']:,} bytes of static RAM (-Os)"
    if "instructions" in size:
        text += f", {size['instructions']:,} instructions for an answer (in {size['emulator']})"
    if "cycles" in size:
        ms = short_number(size["cycles"] / AVR_CLOCK * 1e3, 3)
        text += f", {size['cycles']:,} cycles for an answer, {ms} ms at 16 MHz ({size['chip']} in {size['emulator']})"
    return text


def _synthesis_text(made: dict[str, Any]) -> str:
    if made["left_out"]:
        return made["left_out"]
    speed = f", {made['bytes_per_second']:,} bytes per second when the window is full" if made["bytes_per_second"] else ""
    from lutetia.cli.build_screen import cells_text

    return f"{cells_text(made)}; {made['placed']}{speed}"


def show_quality(report: dict[str, Any]) -> None:
    """The loss of a language model, or the accuracy of a classifier."""
    told = report.get("loss") or report.get("accuracy") or {}
    if told.get("left_out"):
        say("quality", told["left_out"])
    elif "integer_bits_per_byte" in told:
        text = f"model {told['float_bits_per_byte']:.3f}, whole numbers {told['integer_bits_per_byte']:.3f} bits per byte"
        say("loss", f"{text}, on {told['bytes']:,} bytes")
    else:
        from lutetia.cli.build_screen import output_text, quality

        say(*quality(told, "whole numbers"))
        if report.get("output_unit") is not None:
            say("output", output_text(report))
        if report.get("interval") is not None:
            say(
                "intervals",
                program_text(report["interval"]) if report["target"] in C_TARGETS else circuit_text(report["interval"]),
            )


def say(name: str, text: str) -> None:
    """One line of the report."""
    console().print(f"{name:<14}{text}", soft_wrap=True, markup=False)

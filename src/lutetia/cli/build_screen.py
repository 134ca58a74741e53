"""What `lutetia build` shows on the terminal: progress while it works, and a few lines at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lutetia._shared.losses import ERRORS, NOUNS
from lutetia._shared.numbers import short_number
from lutetia.cli.build_board import board_lines
from lutetia.cli.build_intervals import circuit_text
from lutetia.cli.build_readings import changed_text, readings_text
from lutetia.cli.guard import stop_if_interrupted
from lutetia.cli.show import console
from lutetia.cli.values import BITSTREAMS, PROGRAMS
from lutetia.precompute import Build, BuildStep

PROGRESS_WIDTH = 12  # of the name of a line


@dataclass(frozen=True)
class Screen:
    """Progress on the terminal."""

    show: bool
    spinners: list[Any] = field(default_factory=list)

    def run(self, name: str, job: Callable[[], Any]) -> Any:
        """Show a spinner while a block runs."""
        stop_if_interrupted()
        with console(stderr=True).status(f"{name} ..") if self.show else nullcontext() as spinner:
            self.spinners.append(spinner)
            return job()

    def part(self, done: int, parts: int, name: str) -> None:
        """Say which part of a step comes next, behind the spinner."""
        if self.show and self.spinners:
            self.spinners[-1].update(f"{done} of {parts}: {name} ..")

    def say(self, name: str, text: str) -> None:
        if self.show:
            console(stderr=True).print(f"{name:<{PROGRESS_WIDTH}}{text}", soft_wrap=True, markup=False)

    def around(self, build: Build) -> Callable[[BuildStep, Callable[[], None]], None]:
        """For `run_steps`: a spinner while a step runs, a line when it has ended."""

        def around(step: BuildStep, job: Callable[[], None]) -> None:
            self.run(step.name, job)
            record = build.report["steps"][-1]
            luts = f", {record['luts_before']:,} LUTs before, {record['luts_after']:,} after" if "luts_after" in record else ""
            self.say(step.name, record["left_out"] or f"{record['seconds']:.1f} s{luts}")

        return around


def on_one_terminal() -> bool:
    """Whether a person sees both the progress, on stderr, and the report, on stdout: then each line is shown once."""
    return sys.stdout.isatty() and sys.stderr.isatty()


def show_accuracy(report: dict[str, Any], screen: Screen) -> None:
    """The most important facts about a circuit."""
    for name, text in accuracy_lines(report):
        screen.say(name, text)


def accuracy_lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What is known of a circuit before it is checked: the name and the text of each line."""
    accuracy, given = report["accuracy"], report["input"]
    lines = [("accuracy", accuracy["left_out"])]
    if not accuracy["left_out"]:
        lines = [quality(accuracy, "circuit")]
    used = report.get("boosted_tables")
    if used and used["used"] < used["all"]:
        lines.append(("used", f"the first {used['used']} of {used['all']} tables{_refit(used)}; --tables sets how many"))
    if used and used.get("fewer"):
        lines.append(("fewer", "; ".join(_smaller(each) for each in used["fewer"]) + " (--tables)"))
    if report.get("unseen"):
        lines.append(("unseen", unseen_text(report["unseen"])))
    if "columns" in given:
        lines.append(("inputs", readings_text(given)))
        lines.append(("readings", changed_text(report["readings"])))
    elif not {"pixels", "window"} & set(report):
        lines.append(("inputs", f"{given['bits']} bits each, {_range_text(given)}"))
    if report.get("output_unit") is not None:
        lines.append(("output", output_text(report)))
    if report.get("interval") is not None:
        lines.append(("interval", circuit_text(report["interval"])))
    return lines


def _refit(used: dict[str, Any]) -> str:
    """Whether the rows of the tables were fitted again, and why."""
    tried = used.get("refit")
    if tried is None:
        return f", fitted again ({_worth(used['cut'])} without that)" if "cut" in used else ""
    again, cut = (
        f"{NOUNS[tried['measure']]} {short_number(tried[key])}"
        if tried["measure"] in NOUNS
        else f"{tried['measure'].replace('_', ' ')} {tried[key]:.1%}"
        for key in ("again", "cut")
    )
    kept = "fitted again" if tried["kept"] == "again" else "not fitted again"
    return f", {kept} ({again} with a second fit, {cut} without, on {tried['rows']:,} held-out training rows)"


def unseen_text(unseen: dict[str, Any]) -> str:
    """The effect of --drop-unseen: which rows were given up, and what that changed."""
    return (
        f"rows that none of {unseen['training_samples']:,} training samples reads hold anything (--drop-unseen): the circuit is "
        f"not the model; {unseen['unchanged']:.2%} of answers stayed, accuracy {unseen['accuracy_before']:.2%} without it, "
        f"{unseen['accuracy_after']:.2%} with it"
    )


def _smaller(circuit: dict[str, Any]) -> str:
    size = f"{circuit['luts']:,} LUTs" if "luts" in circuit else f"{circuit['block_rams']:,} block RAMs"
    return f"{circuit['tables']} tables: {_worth(circuit)}, about {size}"


def _worth(measured: dict[str, Any]) -> str:
    key = number_measure(measured)
    if measured.get("unusual"):
        return f"{1 - measured['integer_accuracy']:.1%} flagged"
    return f"{measured['integer_accuracy']:.1%}" if key is None else f"{NOUNS[key]} {short_number(measured[f'integer_{key}'])}"


def number_measure(measured: dict[str, Any]) -> str | None:
    """The measure of the loss of numbers that was taken; None of classes."""
    return next((key for key in NOUNS if f"float_{key}" in measured), None)


def quality(measured: dict[str, Any], whole: str) -> tuple[str, str]:
    """The accuracy of the model and of what was built from it, `whole`; for a regression their errors, of usual rows
    the part that is flagged."""
    on = f"on {measured['samples']:,} {measured['split']} samples"
    if (key := number_measure(measured)) is not None:
        model, made = (short_number(measured[f"{kind}_{key}"]) for kind in ("float", "integer"))
        return (
            ("RMSE", f"model {model}, {whole} {made}, {on}")
            if key == "rmse"
            else ("loss" if key in ERRORS else "order", f"{NOUNS[key]}: model {model}, {whole} {made}, {on}")
        )
    if measured.get("unusual"):
        return "flagged", f"model {1 - measured['float_accuracy']:.1%}, {whole} {1 - measured['integer_accuracy']:.1%}, {on}"
    return "accuracy", f"model {measured['float_accuracy']:.1%}, {whole} {measured['integer_accuracy']:.1%}, {on}"


def output_text(report: dict[str, Any]) -> str:
    """What the number that a circuit or a program gives stands for."""
    unit = f"a whole number, times {short_number(report['output_unit'], 6)}"
    return f"{unit}, is the logarithm of the prediction" if report.get("is_log") else unit


def cells_text(made: dict[str, Any]) -> str:
    """The counts of a synthesised core."""
    memories = f"{made['bram']} block RAMs, {made['dsp']} DSPs"
    return f"{made['luts']:,} LUTs, {made['flip_flops']:,} flip-flops, {memories} ({made['tool']})"


def _range_text(given: dict[str, Any]) -> str:
    if given["range_from"] == "assumed":
        return "assumed to be 0 to 1, as the checkpoint does not say; set it with --range LO HI"
    if given["map"] == "ranks":
        return "codes that the model's encoding makes, 0 if missing; --reading auto takes the numbers of the columns"
    if given["map"] == "values":
        return "pixels as they are"
    ends = [given["low"], given["high"]]
    shown = [min(ends[0]) if isinstance(ends[0], list) else ends[0], max(ends[1]) if isinstance(ends[1], list) else ends[1]]
    kind = "" if given["map"] == "affine" else ", with finer steps where many values lie"
    low, high = (short_number(each, 6) for each in shown)
    return f"{low} to {high} (by {'the training data' if given['range_from'] == 'checkpoint' else '--range'}){kind}"


def show_report(report: dict[str, Any], out: Path) -> None:
    """The outcome in a few lines, accuracy first."""
    if report.get("kind") in ("patterns", "signals"):
        from lutetia.cli.build_core import show_core_report

        show_core_report(report, out)
        return
    if report.get("target") in PROGRAMS:
        from lutetia.cli.build_program import show_program_report

        show_program_report(report, out)
        return
    screen, is_told = console(), on_one_terminal()
    width = PROGRESS_WIDTH if is_told else 11

    def say(name: str, text: str) -> None:
        screen.print(f"{name:<{width}}{text}", soft_wrap=True, markup=False)

    for name, text in () if is_told else accuracy_lines(report):
        say(name, text)
    say("tables", f"{len(report['tables'])} tables, {report['lookups']} lookups")
    pace = "cycle" if report["cycles_per_frame"] == 1 else f"{report['cycles_per_frame']} cycles"
    say("delay", f"first answer after {report['latency']} cycles, then one every {pace}")
    left = {step["step"]: step["left_out"] for step in report["steps"]}
    simulated, proof, made = report["simulated"], report["proof"], report["synthesis"]
    if simulated:
        say("simulated", f"{simulated['samples']} samples by {simulated['by']}: equal to the integer model")
    if proof:
        say("proved", proof["said"])
    if report.get("pipeline"):
        made_it = "reached" if report["pipeline"]["reached"] else "not reached"
        say(
            "pipeline", f"{report['pipeline']['fmax_wanted']:g} MHz {made_it}: {report['pipeline']['fmax_mhz']:.1f} MHz (nextpnr)"
        )
    if made:
        counts = f"{made['luts']:,} LUTs, {made['flip_flops']:,} flip-flops, {made['bram']} block RAMs ({made['tool']})"
        say(made["target"], counts)
        say("stages", ", ".join(f"{name} {luts:,}" for name, luts in made["stages"].items()))
        if made["placed"]:
            say("placed", made["placed"])
        if made["bitstream_bytes"]:
            say(
                "bitstream",
                f"{out / BITSTREAMS[made['target']]}, {made['bitstream_bytes']:,} bytes, identity {report['identity']}",
            )
    for name, text in board_lines(report["board"], out) if report.get("board") else ():
        say(name, text)
    for name in ("simulation", "proof", "synthesis"):
        if left.get(name) and not is_told:
            say(name, left[name])
    if report.get("axi"):
        say("axi", f"{out / report['axi']}, an AXI4-Stream wrapper of verilog/")
    say("summary", str(out / "summary.html"))

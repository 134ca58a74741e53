"""The summary page of a build, in the style of the report: what the circuit is, what was checked, and what every part costs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from lutetia import report as pages
from lutetia._shared.losses import NOUNS
from lutetia._shared.numbers import short_number
from lutetia.cli.build_readings import changed_text, value_text
from lutetia.cli.build_screen import unseen_text
from lutetia.precompute import page_title
from lutetia.report import CellTable, Check, Circuit, Decision, Decisions, Part, Story, VotingCircuit

MOST_PARTS = 200  # that are drawn
MOST_PORTS = 64  # inputs that are listed
MOST_CATEGORIES = 16  # of an input
OUT = "What comes out"
HANDSHAKE = (
    "A sample is accepted at a rising edge of clk at which in_valid and in_ready are both high, an answer given at one at which "
    "out_valid and out_ready are. rst is synchronous, active high."
)
NEAREST = "Give the nearest number for a value between two steps, and the nearest end for one beyond the ends."
SAID = "Every link between parts carries data, valid and ready."
COUNTS = {
    "luts": "LUTs",
    "flip_flops": "flip-flops",
    "bram": "block RAMs",
    "lut_ram": "LUT RAMs",
    "wide_muxes": "wide multiplexers",
    "carries": "carries",
    "dsp": "DSPs",
}


def page(report: dict[str, Any]) -> str:
    """The whole page, from what `report.json` holds."""
    left_out = len(report["graph"]) - MOST_PARTS
    said = f"{SAID} The first {MOST_PARTS} parts are drawn, {left_out:,} more are in the table." if left_out > 0 else SAID
    circuit = Circuit(_parts(report), said, _facts(report), _costs(report), _checks(report), tables=_tables(report))
    lead = f"Built from {report['checkpoint']} by lutetia {report['lutetia']}."
    title = f"{page_title(Path(report['checkpoint']))} as a circuit"
    return pages.html(Story(title, lead, _figures(report), circuit=circuit, decided=_votes(report)))


def _circuit(report: dict[str, Any]) -> VotingCircuit | None:
    """The whole network of votes, where it is small enough for the page."""
    votes = report.get("votes") or {}
    return VotingCircuit(**votes["circuit"], top=votes["top"]) if votes.get("circuit") else None


def _votes(report: dict[str, Any]) -> Decisions | None:
    """The samples whose votes were counted, each with the inputs that the winning votes read."""
    votes = report.get("votes")
    if not votes:
        return None
    items = [
        Decision(item["values"], item["answer"], item["counts"], {"reads": item["reads"]}, label=item["label"])
        for item in votes["items"]
    ]
    said = "A score is a count of votes: how many tables of a class answered one."
    rules = {"reads": "How many of the tables that voted for the answer read an input, directly or through other tables."}
    titles = {"reads": "where the winning votes looked"}
    return Decisions(tuple(votes["shape"]), items, report["classes"], said, rules, titles, report["features"], _circuit(report))


def _figures(report: dict[str, Any]) -> dict[str, str]:
    """The headline numbers: accuracy where it was measured, then size and delay."""
    figures = dict(accuracies(report))
    synthesis, estimate = report["synthesis"], report["estimate"]
    luts = f"{synthesis['luts']:,}" if synthesis else f"about {estimate['luts']:,}"
    figures[f"LUTs, synthesised for {synthesis['target']}" if synthesis else "LUTs, an estimate before synthesis"] = luts
    figures["clock cycles from input to output"] = f"{report['latency']:,}"
    figures["different tables"] = f"{len(report['tables']):,}"
    return figures


def accuracies(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Accuracies, or the errors of a regression."""
    measured = report.get("accuracy") or {}
    figures = []
    for key, name in (("float", "the trained model"), ("integer", "the circuit")):
        if isinstance(measured.get(f"{key}_accuracy"), float):
            part = measured[f"{key}_accuracy"]
            is_unusual = measured.get("unusual")
            figures.append((f"{'flagged by' if is_unusual else 'accuracy of'} {name}", f"{1 - part if is_unusual else part:.1%}"))
        for measure, noun in NOUNS.items():
            if isinstance(measured.get(f"{key}_{measure}"), float):
                figures.append((f"{noun} of {name}", short_number(measured[f"{key}_{measure}"])))
    return figures


def _facts(report: dict[str, Any]) -> dict[str, str]:
    wide = "columns" in report["input"]  # of several widths
    return {
        "weights": f"{report['weights']:,}",
        **({"bits of all inputs": f"{report['graph'][0]['bits']}"} if wide else {"bits per input": f"{report['input_bits']}"}),
        "bits per weight": f"{report['weight_bits']}",
        "lookups per sample": f"{report['lookups']:,}",
        **({_output(report): short_number(unit, 6)} if (unit := report.get("output_unit")) is not None else {}),
        **(within(interval) if (interval := report.get("interval")) else {}),
        **({"tables used": "{used} of {all}".format(**used)} if (used := report.get("boosted_tables")) else {}),
    }


def _output(report: dict[str, Any]) -> str:
    return f"{_predicted(report)} for each 1 of out_data"


def _predicted(report: dict[str, Any]) -> str:
    name = report["output_port"]["name"]
    return f"logarithm of {name}" if report.get("is_log") else name


def within(interval: dict[str, Any]) -> dict[str, str]:
    """The interval of a circuit, as a fact of its page."""
    if interval["whole"] is None:
        return {"9 of 10 test rows within, from 0 at least": f"±{short_number(interval['half_width'])}"}
    return {f"9 of 10 test rows within, ±{interval['whole']:,} of out_data": f"±{short_number(interval['half_width'])}"}


def _parts(report: dict[str, Any]) -> list[Part]:
    return [
        Part(
            node["kind"],
            node["name"],
            node["sources"],
            node["channels"],
            node["bits"],
            f"{node['lookups']:,} lookups" if node["lookups"] else "",
        )
        for node in report["graph"][:MOST_PARTS]
    ]


def _costs(report: dict[str, Any]) -> CellTable:
    names = ("number", "kind", "name", "luts", "flip_flops", "channels", "bits", "tables", "lookups", "widest", "table_bits")
    heads = ("node", "kind", "name", "LUTs", "flip-flops", *names[5:10], "table bits")
    rows = [[node[name] for name in names] for node in report["graph"]]
    return CellTable(heads, rows, "Bounds and estimates before synthesis.", "What each part costs")


def _checks(report: dict[str, Any]) -> list[Check]:
    simulated, proof, synthesis = report["simulated"], report["proof"], report["synthesis"]
    reasons = {step["step"]: step["left_out"] for step in report["steps"]}
    checks = [Check("Simulation", None, _left_out(reasons, "simulation"))]
    if simulated:
        engine = f" by {simulated['engine']}" if simulated.get("engine") else ""
        samples = f"{simulated['samples']} samples simulated{engine} with random pauses, all equal to the integer model"
        checks = [Check("Simulation", True, samples)]
    if proof:
        checks.append(Check("Proof", True, proof["said"]))
    else:
        checks.append(Check("Proof", None, _left_out(reasons, "proof")))
    if synthesis:
        counts = ", ".join(f"{synthesis[name]:,} {unit}" for name, unit in COUNTS.items() if synthesis[name])
        checks.append(Check(f"Synthesis for {synthesis['target']}", True, f"{counts} ({synthesis['tool']})"))
        if synthesis["placed"]:
            passed = None if synthesis["placed"].startswith("not placed") else True
            checks.append(Check("Place and route", passed, synthesis["placed"]))
        if synthesis["bitstream_bytes"]:
            checks.append(Check("Bitstream", True, f"{synthesis['bitstream_bytes']:,} bytes, identity {report['identity']}"))
    else:
        checks.append(Check("Synthesis", None, _left_out(reasons, "synthesis")))
    if report.get("unseen"):
        checks.append(Check("Rows that training never read", None, unseen_text(report["unseen"])))
    return checks


def _left_out(reasons: dict[str, str], step: str) -> str:
    return f"not run: {reasons[step]}" if reasons.get(step) else "not run"


def _tables(report: dict[str, Any]) -> list[CellTable]:
    widths: dict[int, list[int]] = defaultdict(list)
    for table in report["tables"]:
        widths[table["address_bits"]].append(sum(table["outputs"]))
    sizes = [(f"{bits} bits", 1 << bits, _range(outputs), len(outputs)) for bits, outputs in sorted(widths.items())]
    steps = [(step["step"], step["left_out"] or f"{step['seconds']:.2f} s") for step in report["steps"]]
    stages = (report["synthesis"] or {}).get("stages", {})
    said = "Counted after synthesis. A stage is the logic between two registers."
    return [
        *_interface(report),
        *([CellTable(("stage", "LUTs"), list(stages.items()), said, "LUTs by stage")] if stages else []),
        CellTable(("address", "rows", "bits per row", "different tables"), sizes, "", "Tables by size"),
        CellTable(("step", "time, or why it was not run"), steps, "", "Steps of the build"),
    ]


def _interface(report: dict[str, Any]) -> list[CellTable]:
    """Where the inputs are on the bus, and what the numbers of the output mean."""
    inputs = [(port["name"], "{}:{}".format(*port["bits"]), _holds(port)) for port in report["ports"][:MOST_PORTS]]
    more = len(report["ports"]) - len(inputs)
    if not inputs:
        given = report["graph"][0]
        said = f"{given['channels']:,} inputs, {given['bits'] // given['channels']} bits each, the first in the lowest bits"
        inputs = [(said, f"{given['bits'] - 1}:0", f"0 to {2 ** report['input_bits'] - 1:,} each")]
    told = HANDSHAKE + (f" {more:,} more inputs are in report.json." if more > 0 else "")
    told += f" {NEAREST} Of the data, {changed_text(report['readings'])}." if report.get("readings") else ""
    classes = [(number, name) for number, name in enumerate(report["classes"]) if str(number) != name]
    if port := report.get("output_port"):
        means = f"{_predicted(report)} = out_data × {short_number(report['output_unit'], 6)}"
        number = [
            CellTable(("output", "bits of out_data", "holds"), [(means, "{}:{}".format(*port["bits"]), _holds(port))], "", OUT)
        ]
    else:
        number = []
    return [
        CellTable(("input", "bits of in_data", "holds"), inputs, told, "What goes in"),
        *number,
        *([CellTable(("out_data", "class"), classes, "", OUT)] if classes else []),
    ]


def _holds(port: dict[str, Any]) -> str:
    if port["categories"]:
        more = len(port["categories"]) - MOST_CATEGORIES
        known = [f"{number}: {name}" for number, name in enumerate(port["categories"][:MOST_CATEGORIES])]
        return ", ".join([*known, *([f"and {more:,} more"] if more > 0 else [])])
    if "valid_of" in port:
        return f"1, or 0 where {port['valid_of']} has no value; its bits may then be anything"
    told = "" if port["value"] is None else value_text(port["value"])
    return f"{port['low']:,} to {port['high']:,}{' (two’s complement)' if port['signed'] else ''}{told}"


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"

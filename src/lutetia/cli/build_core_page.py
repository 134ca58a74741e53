"""The summary page of a core that works step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lutetia import report as pages
from lutetia.cli.build_core_kind import CoreKind
from lutetia.cli.build_page import accuracies, within
from lutetia.cli.build_screen import cells_text, output_text
from lutetia.precompute import DEVICES, page_title
from lutetia.report import CellTable, Check, Circuit, Part, Story

ICARUS = "iverilog -g2005-sv -s lutetia_bench -o run memories.v core.v bench.v && vvp -n run"
VERILATOR = "verilator --binary -Wno-fatal --top-module lutetia_bench memories.v core.v bench.v && obj_dir/Vlutetia_bench"


def core_page(kind: CoreKind, report: dict[str, Any]) -> str:
    """The whole page, from what `report.json` holds."""
    memories, checks = _memories(report), _checks(kind, report)
    circuit = Circuit(_parts(kind, report), kind.page.said, _facts(kind, report), memories, checks, tables=_tables(kind, report))
    lead = f"Built from {report['checkpoint']} by lutetia {report['lutetia']}."
    title = f"{page_title(Path(report['checkpoint']))} as a circuit"
    return pages.html(Story(title, lead, _figures(kind, report), circuit=circuit))


def _figures(kind: CoreKind, report: dict[str, Any]) -> dict[str, str]:
    made = report["synthesis"]
    figures = dict(accuracies(report)) | {f"clock cycles per {kind.one}": f"{kind.cycles_each(report):,}"}
    if not made["left_out"]:
        figures |= {f"LUTs, synthesised for {report['device']}": f"{made['luts']:,}", "block RAMs": f"{made['bram']:,}"}
    if made.get(f"{kind.many}_per_second"):
        figures[f"{kind.many} per second, placed and routed"] = f"{made[f'{kind.many}_per_second']:,.0f}"
    return figures


def _parts(kind: CoreKind, report: dict[str, Any]) -> list[Part]:
    parts, outputs = kind.page.parts(report), max(len(report["classes"]), 1)
    last = "the number" if report["output_unit"] is not None else "the greatest sum"
    n = len(parts)
    return [
        *parts,
        Part("table", "tables", (n - 1,), 1, report["memories"]["rows"]["bits"], f"{report['tables']:,} tables in turn"),
        Part("sum", "sums", (n,), outputs, outputs * report["sum_bits"]),
        Part("argmax" if report["output_unit"] is None else "output", last, (n + 1,), 1, report["out_bits"]),
    ]


def _facts(kind: CoreKind, report: dict[str, Any]) -> dict[str, str]:
    used, (speed, clock) = report["boosted_tables"], kind.speed(report)
    return {
        "weights": f"{report['weights']:,}",
        "bits per weight": f"{report['weight_bits']}",
        "tables used": f"{used['used']:,} of {used['all']:,}",
        f"cycles from the last {kind.sample} to the answer": f"{report['latency']:,}",
        f"{kind.many} per second at {clock:.1f} MHz": f"{speed:,.0f}",
        **kind.page.facts(report),
        **({"output": output_text(report)} if report["output_unit"] is not None else {}),
        **(within(report["interval"]) if report["interval"] else {}),
    }


def _memories(report: dict[str, Any]) -> CellTable:
    rows = [(name, each["words"], each["bits"], each["copies"], each["block_rams"]) for name, each in report["memories"].items()]
    heads = ("memory", "words", "bits of a word", "copies", "block RAMs at most")
    said = f"Block RAMs of {DEVICES[report['device']].name}, before synthesis; small memories become LUTs."
    return CellTable(heads, rows, said, "Memories")


def _checks(kind: CoreKind, report: dict[str, Any]) -> list[Check]:
    read, simulated, made = (report[name] for name in ("read_back", "simulated", "synthesis"))
    same, many = "all equal to the integer model", kind.many
    checks = [
        _check("Memories read back", read, lambda: f"{read[many]} {many}, {same}"),
        _check(
            "Simulation",
            simulated,
            lambda: f"{simulated[many]} {many} one after another by {simulated['by']}, with random pauses, {same}",
        ),
        Check("Proof", None, report["proof"]),
        _check(f"Synthesis for {report['device']}", made, lambda: cells_text(made)),
    ]
    if made.get("placed"):
        checks.append(Check("Place and route", None if made["placed"].startswith("not placed") else True, made["placed"]))
    return checks


def _check(name: str, told: dict[str, Any], text: Any) -> Check:
    return Check(name, None, f"not run: {told['left_out']}") if told["left_out"] else Check(name, True, text())


def _tables(kind: CoreKind, report: dict[str, Any]) -> list[CellTable]:
    out = f"{report['out_bits'] - 1}:0"
    classes = [(number, name) for number, name in enumerate(report["classes"])]
    if report["output_unit"] is not None:
        number = [(report["title"], out, f"{output_text(report)} (two’s complement)")]
        answer = CellTable(("output", "bits of out_data", "holds"), number, "", "What comes out")
    else:
        answer = CellTable(("out_data", "class"), classes, f"The number of the class, on bits {out}.", "What comes out")
    steps = [(name.replace("_", " "), report[name]["left_out"] or f"{report[name]['seconds']:.2f} s") for name in
             ("read_back", "simulated", "synthesis")]  # fmt: skip
    stream = [("AXI4-Stream wrapper", report["axi"]), ("identity", report["identity"])] if report["axi"] else []
    return [
        CellTable(("input", "bits of in_data", "holds"), kind.page.inputs(report), kind.page.feed(report), "What goes in"),
        answer,
        *([CellTable(("what", "where"), stream, kind.page.stream, "As a stream")] if stream else []),
        CellTable(
            ("in the folder verilog", ""),
            [("test bench in Icarus Verilog", ICARUS), ("in Verilator 5", VERILATOR)],
            "",
            "How to simulate it",
        ),
        CellTable(("check", "time, or why it was not run"), steps, "", "Checks of the build"),
    ]

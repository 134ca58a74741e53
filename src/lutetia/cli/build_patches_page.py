"""The summary page of the core of a model that counts patterns in images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lutetia import report as pages
from lutetia.cli.build_page import accuracies, within
from lutetia.cli.build_screen import cells_text, output_text
from lutetia.precompute import page_title
from lutetia.report import CellTable, Check, Circuit, Part, Story

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
COMMON_CLOCK = 25.0  # MHz, for an example of the speed where none was found
ICARUS = "iverilog -g2005-sv -s lutetia_bench -o run memories.v core.v bench.v && vvp -n run"
VERILATOR = "verilator --binary -Wno-fatal --top-module lutetia_bench memories.v core.v bench.v && obj_dir/Vlutetia_bench"


def patches_page(report: dict[str, Any]) -> str:
    """The whole page, from what `report.json` holds."""
    said = "The image is in memory. One detector after another is asked at each position; what its counts come to is looked up."
    circuit = Circuit(_parts(report), said, _facts(report), _memories(report), _checks(report), tables=_tables(report))
    lead = f"Built from {report['checkpoint']} by lutetia {report['lutetia']}."
    title = f"{page_title(Path(report['checkpoint']))} as a circuit"
    return pages.html(Story(title, lead, _figures(report), circuit=circuit))


def _figures(report: dict[str, Any]) -> dict[str, str]:
    made = report["synthesis"]
    figures = dict(accuracies(report)) | {"clock cycles per image": f"{report['cycles_per_image']:,}"}
    if not made["left_out"]:
        figures |= {"LUTs, synthesised for ecp5": f"{made['luts']:,}", "block RAMs": f"{made['bram']:,}"}
    if made.get("images_per_second"):
        figures["images per second, placed and routed"] = f"{made['images_per_second']:,.0f}"
    return figures


def speed_text(report: dict[str, Any]) -> str:
    """How many images a second come to: at the clock that nextpnr found, or at a common one."""
    clock = report["synthesis"].get("fmax_mhz")
    images = (clock or COMMON_CLOCK) * 1e6 / report["cycles_per_image"]
    if clock:
        return f"{images:,.0f} images per second at {clock:.1f} MHz, the clock that nextpnr found"
    return f"{images:,.0f} images per second at a clock of {COMMON_CLOCK:g} MHz; --target ecp5 says how fast the clock can be"


def _parts(report: dict[str, Any]) -> list[Part]:
    pixels, outputs = report["pixels"], max(len(report["classes"]), 1)
    size = f"{pixels['height']} rows of {pixels['width']} pixels"
    copies, last = 2 * report["comparators"], "the number" if report["output_unit"] is not None else "the greatest sum"
    bits = {name: each["bits"] for name, each in report["memories"].items()}
    return [
        Part("input", "pixels", (), pixels["channels"], pixels["bits"], "one after another"),
        Part("memory", "image", (0,), pixels["channels"], pixels["bits"], f"{size}, {copies} times"),
        Part("compare", "detectors", (1,), report["comparators"], report["comparators"], f"{report['positions']:,} positions"),
        Part("count", "counters", (2,), 1, bits["image counters"], "of the image, quarters, cells"),
        Part("compare", "codes", (3, 1), report["inputs"], 8 * report["inputs"], "counts and pixels"),
        Part("table", "tables", (4,), 1, bits["rows"], f"{report['tables']:,} tables in turn"),
        Part("sum", "sums", (5,), outputs, outputs * report["sum_bits"]),
        Part("argmax" if report["output_unit"] is None else "output", last, (6,), 1, report["out_bits"]),
    ]


def _facts(report: dict[str, Any]) -> dict[str, str]:
    used = report["boosted_tables"]
    return {
        "weights": f"{report['weights']:,}",
        "bits per pixel": f"{report['pixels']['bits']}",
        "bits per weight": f"{report['weight_bits']}",
        "tables used": f"{used['used']:,} of {used['all']:,}",
        "detectors": f"{report['detectors']}",
        "cycles from the last pixel to the answer": f"{report['latency']:,}",
        "speed": speed_text(report),
        "comparisons of pixels a cycle": f"{report['comparators']}",
        **({"output": output_text(report)} if report["output_unit"] is not None else {}),
        **(within(report["interval"]) if report["interval"] else {}),
    }


def _memories(report: dict[str, Any]) -> CellTable:
    rows = [(name, each["words"], each["bits"], each["copies"], each["block_rams"]) for name, each in report["memories"].items()]
    heads = ("memory", "words", "bits of a word", "copies", "block RAMs at most")
    return CellTable(heads, rows, "Block RAMs of an ECP5, before synthesis; small memories become LUTs.", "Memories")


def _checks(report: dict[str, Any]) -> list[Check]:
    read, simulated, made = (report[name] for name in ("read_back", "simulated", "synthesis"))
    same = "all equal to the integer model"
    checks = [
        _check("Memories read back", read, lambda: f"{read['images']} images, {same}"),
        _check(
            "Simulation",
            simulated,
            lambda: f"{simulated['images']} images one after another by {simulated['by']}, with random pauses, {same}",
        ),
        Check("Proof", None, report["proof"]),
        _check("Synthesis for ecp5", made, lambda: cells_text(made)),
    ]
    if made.get("placed"):
        checks.append(Check("Place and route", None if made["placed"].startswith("not placed") else True, made["placed"]))
    return checks


def _check(name: str, told: dict[str, Any], text: Any) -> Check:
    return Check(name, None, f"not run: {told['left_out']}") if told["left_out"] else Check(name, True, text())


def _tables(report: dict[str, Any]) -> list[CellTable]:
    pixels, out = report["pixels"], f"{report['out_bits'] - 1}:0"
    names = ["grey"] if pixels["channels"] == 1 else ["red", "green", "blue"]
    names = names if pixels["channels"] in (1, 3) else [f"channel {number}" for number in range(pixels["channels"])]
    inputs = [(f"pixel, {name}", f"{8 * at + 7}:{8 * at}", "0 to 255") for at, name in enumerate(names)]
    classes = [(number, name) for number, name in enumerate(report["classes"])]
    if report["output_unit"] is not None:
        number = [(report["title"], out, f"{output_text(report)} (two’s complement)")]
        answer = CellTable(("output", "bits of out_data", "holds"), number, "", "What comes out")
    else:
        answer = CellTable(("out_data", "class"), classes, f"The number of the class, on bits {out}.", "What comes out")
    steps = [(name.replace("_", " "), report[name]["left_out"] or f"{report[name]['seconds']:.2f} s") for name in
             ("read_back", "simulated", "synthesis")]  # fmt: skip
    image = f"An image is {pixels['height']} rows of {pixels['width']} pixels. "
    stream = [("AXI4-Stream wrapper", report["axi"]), ("identity", report["identity"])] if report["axi"] else []
    return [
        CellTable(("input", "bits of in_data", "holds"), inputs, image + FEED, "What goes in"),
        answer,
        *([CellTable(("what", "where"), stream, STREAM, "As a stream")] if stream else []),
        CellTable(
            ("in the folder verilog", ""),
            [("test bench in Icarus Verilog", ICARUS), ("in Verilator 5", VERILATOR)],
            "",
            "How to simulate it",
        ),
        CellTable(("check", "time, or why it was not run"), steps, "", "Checks of the build"),
    ]

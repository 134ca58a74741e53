"""`synthesize`: what yosys makes of the Verilog, and for ice40 and ecp5 what nextpnr makes of that.

The counts are those of yosys, not of a vendor's tool, and say so. LUTs, flip-flops, memories and wide multiplexers are always
reported together: a tool that puts tables into block RAM shows few LUTs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lutetia import flow
from lutetia.errors import ArgumentError, DataError, check_choice
from lutetia.precompute.tools.find import HOW, find_tool, run_program, run_yosys

if TYPE_CHECKING:
    from lutetia.precompute.tools.hardware import Hardware

TARGETS = ("lut6", "lut4", "ice40", "ecp5")
# Cells of the targets by what they are; names that end in * are beginnings.
KINDS = {
    "luts": ("$lut", "SB_LUT4", "LUT4", "L6MUX_LUT*"),
    "flip_flops": ("$_DFF*", "$_SDFF*", "$dff", "SB_DFF*", "TRELLIS_FF"),
    "bram": ("SB_RAM40*", "DP16KD", "PDPW16KD", "$mem*"),
    "lut_ram": ("TRELLIS_DPR16X4",),
    "wide_muxes": ("PFUMX", "L6MUX21", "$_MUX*", "$mux"),
    "carries": ("SB_CARRY", "CCU2C", "$alu"),
    "dsp": ("SB_MAC16", "MULT18X18D", "ALU54B"),
}


@dataclass(frozen=True)
class PlacedDevice:
    """A device that nextpnr places on: beyond `pins` a design is fed through shift registers, or it would not fit the package."""

    name: str
    program: str
    pins: int
    options: tuple[str, ...]


DEVICES = {
    "ice40": PlacedDevice("an iCE40 HX8K", "nextpnr-ice40", 150, ("--hx8k", "--package", "ct256", "--pcf-allow-unconstrained")),
    "ecp5": PlacedDevice("an ECP5 85k", "nextpnr-ecp5", 190, ("--85k", "--package", "CABGA381", "--lpf-allow-unconstrained")),
}


@dataclass(frozen=True)
class Synthesis:
    """Counts of one target."""

    target: str
    luts: int
    flip_flops: int
    bram: int
    lut_ram: int
    wide_muxes: int
    carries: int
    dsp: int
    cells: dict[str, int] = field(repr=False)
    tool: str = "yosys, not Vivado"
    fmax_mhz: float | None = None  # after place and route
    placed: str = ""  # what place and route came to, or why there is none

    @property
    def period_ns(self) -> float | None:
        """The shortest clock period after place and route."""
        return None if not self.fmax_mhz else 1000 / self.fmax_mhz

    @property
    def area_delay(self) -> float | None:
        """LUTs times the clock period in nanoseconds."""
        return None if self.period_ns is None else self.luts * self.period_ns

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "period_ns": self.period_ns, "area_delay": self.area_delay}

    def __str__(self) -> str:
        parts = [f"{self.luts} LUTs", f"{self.flip_flops} flip-flops", f"{self.bram} block RAMs", f"{self.wide_muxes} wide muxes"]
        parts += [
            f"{count} {name}"
            for count, name in ((self.lut_ram, "LUT RAMs"), (self.carries, "carries"), (self.dsp, "DSPs"))
            if count
        ]
        text = f"{self.target}: {', '.join(parts)} ({self.tool})"
        return f"{text}; {self.placed}" if self.placed else text


def synthesize(hardware: Hardware, target: str = "lut6", *, place: bool = True) -> Synthesis:
    """Count what the hardware needs on a target."""
    check_choice("target", target, TARGETS)
    if hardware.language != "verilog":
        raise ArgumentError(f'the hardware is in {hardware.language}, expected "verilog", which yosys reads')
    with flow.step("synthesize", part="precompute", target=target) as step, tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        for name, text in hardware.files.items():
            (folder / name).write_text(text)
        cells = _cells(hardware, target, folder)
        made = _counted(hardware, target, cells)
        step.note(luts=made.luts, flip_flops=made.flip_flops)
        if target in DEVICES and place:
            made = _placed(hardware, made, folder, DEVICES[target])
    return made


def _cells(hardware: Hardware, target: str, folder: Path) -> dict[str, int]:
    top = hardware.name
    sources = list(hardware.sources)
    script = []
    if _primitives(hardware, target):  # LUTs that the target has stay as they are: a synthesiser would undo the tree
        sources.remove(f"{top}_lut.v")
        script.append(f"read_verilog -lib {top}_lut.v")
    script += ["read_verilog -DSYNTHESIS " + " ".join(sources), *recipe(target, top)]
    run_yosys([*script, "tee -q -o stat.json stat -json"], folder, f"synthesize({target!r})")
    return read_cells(folder / "stat.json")


def recipe(target: str, top: str) -> list[str]:
    """The commands of a target."""
    if target in ("ice40", "ecp5"):
        return [f"synth_{target} -top {top}"]
    return [f"synth -flatten -lut {target.removeprefix('lut')} -top {top}", "opt_clean -purge"]


def _primitives(hardware: Hardware, target: str) -> bool:
    """Whether tables are written as LUTs that the target has."""
    from lutetia.precompute.ir.stream import Table

    forms = [table.form for node in hardware.graph.nodes if isinstance(node, Table) for table in node.tables]
    sizes = {len(cell.inputs) for form in forms if form is not None for cell in form.cells}
    return target in ("lut4", "lut6") and bool(sizes) and max(sizes) <= int(target[-1])


def read_cells(path: Path) -> dict[str, int]:
    """How many cells of each kind there are, by the statistics that yosys wrote."""
    try:
        text = path.read_text()
        found = json.loads(text[text.index("{") :])
        design = found.get("design") or next(iter(found["modules"].values()))
        return {str(name): int(count) for name, count in design["num_cells_by_type"].items()}
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"yosys wrote no statistics that can be read: {error}") from error


def _counted(hardware: Hardware, target: str, cells: Mapping[str, int]) -> Synthesis:
    counts = dict.fromkeys(KINDS, 0)
    for name, count in cells.items():
        plain = name.lstrip("\\")
        if plain == f"{hardware.name}_lut":
            counts["luts"] += count
            continue
        for kind, names in KINDS.items():
            if any(plain == each or (each.endswith("*") and plain.startswith(each[:-1])) for each in names):
                counts[kind] += count
                break
    return Synthesis(target=target, cells=dict(cells), **counts)  # type: ignore[arg-type]


# ---- place and route -------------------------------------------------------------------------------------------------


def _placed(hardware: Hardware, made: Synthesis, folder: Path, device: PlacedDevice) -> Synthesis:
    """Place and route on a device."""
    program = find_tool(device.program)
    if program is None:
        return _told(made, None, not_placed(device))
    graph = hardware.graph
    pins = graph.input_edge.width + graph.output_edge.width + 6
    top, note = hardware.name, ""
    sources = list(hardware.sources)
    if pins > device.pins:
        (folder / "harness.v").write_text(_harness(hardware))
        sources.append("harness.v")
        top, note = f"{hardware.name}_harness", ", fed through shift registers"
    script = [
        "read_verilog -DSYNTHESIS " + " ".join(sources),
        f"synth_{made.target} -top {top}",
        "delete t:$scopeinfo",
        "write_json placed.json",
    ]
    run_yosys(script, folder, f"synthesize({made.target!r})")
    return _told(made, *route(program, device, folder, note))


def route(program: Sequence[str], device: PlacedDevice, folder: Path, note: str = "") -> tuple[float | None, str]:
    """Place and route placed.json, which yosys wrote: the clock in MHz, or None, and what to say of it."""
    options = [*device.options, "--json", "placed.json", "--seed", "1", "--report", "report.json"]
    done = run_program([*program, *options, "--quiet", "--timing-allow-fail"], folder, check=False)
    if done.returncode:
        return None, f"not placed: nextpnr says {_last_error(done.stderr)}"
    report = json.loads((folder / "report.json").read_text())
    speeds = [clock["achieved"] for clock in report.get("fmax", {}).values()]
    if not speeds:
        return None, f"placed on {device.name}{note}; no path between registers, so no Fmax"
    speed = min(speeds)
    return speed, f"placed on {device.name}{note}: {speed:.1f} MHz, {1000 / speed:.2f} ns (nextpnr)"


def not_placed(device: PlacedDevice) -> str:
    """Why there is no clock where the tool is missing."""
    return f"not placed: {device.program} is not installed ({HOW[device.program].rsplit(': ', 1)[-1]})"


def _told(made: Synthesis, fmax: float | None, placed: str) -> Synthesis:
    return Synthesis(**{**asdict(made), "fmax_mhz": fmax, "placed": placed})


def _last_error(said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith("ERROR")]
    return lines[-1].removeprefix("ERROR: ").strip() if lines else "nothing"


def _harness(hardware: Hardware) -> str:
    """One pin in, one pin out: the sample is shifted in, the answer out."""
    width, out = hardware.graph.input_edge.width, hardware.graph.output_edge.width
    return f"""module {hardware.name}_harness (input wire clk, input wire rst, input wire in_bit, input wire in_valid,
    output wire in_ready, output wire out_bit, output wire out_valid, input wire out_ready);
    reg [{width - 1}:0] given;
    reg [{out - 1}:0] answer;
    wire [{out - 1}:0] out_data;
    always @(posedge clk) begin
        given <= {f"{{given[{width - 2}:0], in_bit}}" if width > 1 else "in_bit"};
        answer <= out_valid ? out_data : answer >> 1;
    end
    assign out_bit = answer[0];
    {hardware.name} dut (.clk(clk), .rst(rst), .in_data(given), .in_valid(in_valid), .in_ready(in_ready),
        .out_data(out_data), .out_valid(out_valid), .out_ready(out_ready));
endmodule
"""

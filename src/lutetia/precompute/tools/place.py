"""Place and route with nextpnr: how fast the clock may be, and the bitstream that a device loads.

A design with more bits than the package has pins is fed in parts. The identity of the hardware goes into an ECP5's USERCODE,
which a programmer can read back from the device over JTAG; iCE40 has no such register.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lutetia.errors import ArgumentError, check_range, fail
from lutetia.precompute.tools.find import HOW, find_tool, require_program, run_program, run_yosys

if TYPE_CHECKING:
    from lutetia.precompute.tools.hardware import Hardware


SPEED_GRADES = (6, 7, 8)  # of an ECP5
NETLIST = "netlist.json"  # what yosys made of the hardware
PART = 64  # bits of a sample that come in at once
MOST_NAMES = 5  # in a message


@dataclass(frozen=True)
class Device:
    """A device that nextpnr places on, with the program that packs its bitstream."""

    name: str
    nextpnr: str
    pins: int  # beyond them a design is fed in parts
    options: tuple[str, ...]
    constraints: str  # the option for pin constraints
    placed: str  # the option for the placed design
    packer: str
    speed_grades: tuple[int, ...] = ()  # the first is the default


DEVICES = {
    "ice40": Device(
        "an iCE40 HX8K",
        "nextpnr-ice40",
        150,
        ("--hx8k", "--package", "ct256", "--pcf-allow-unconstrained"),
        "--pcf",
        "--asc",
        "icepack",
    ),
    "ecp5": Device(
        "an ECP5 85k",
        "nextpnr-ecp5",
        190,
        ("--85k", "--package", "CABGA381", "--lpf-allow-unconstrained"),
        "--lpf",
        "--textcfg",
        "ecppack",
        SPEED_GRADES,
    ),
}


@dataclass(frozen=True)
class Placement:
    """The result of place and route, as fields of a `Synthesis`."""

    fmax_mhz: float | None
    placed: str
    bitstream: bytes | None = None


@dataclass(frozen=True)
class PlaceOptions:
    """What place and route is asked for: None leaves it to nextpnr."""

    pins: str | None = None  # the text of a .pcf or .lpf file
    fmax: float | None = None  # the clock in MHz that it aims at; it may be missed
    speed_grade: int | None = None  # of an ECP5

    def check(self, target: str, place: bool) -> None:
        """Refuse what the target does not have."""
        if self == PlaceOptions():
            return
        if not (place and target in DEVICES):
            (name, *_) = [name for name, value in vars(self).items() if value is not None]
            given = "pins are" if name == "pins" else f"{name} is"
            raise ArgumentError(
                f"{given} given and the target is {target!r}, expected place and route for {' or '.join(DEVICES)}"
            )
        if self.fmax is not None:
            check_range("fmax", self.fmax, math.ulp(0.0))
        if self.speed_grade is not None and self.speed_grade not in DEVICES[target].speed_grades:
            grades = ", ".join(map(str, DEVICES[target].speed_grades)) or f"none: {target} has no speed grades"
            fail("speed_grade", self.speed_grade, grades)


def place_and_route(hardware: Hardware, target: str, folder: Path, wanted: PlaceOptions) -> Placement:
    """Place and route the hardware, whose files and netlist are in the folder."""
    device = DEVICES[target]
    if find_tool(device.nextpnr) is None:
        return Placement(None, f"not placed: {_absent(device.nextpnr)}")
    return place_on(device, folder, wanted, hardware.identity, _write_netlist(hardware, target, folder))


def place_on(device: Device, folder: Path, wanted: PlaceOptions, identity: int, note: str = "") -> Placement:
    """Place and route placed.json in the folder on a device, and pack its bitstream."""
    program = find_tool(device.nextpnr) or require_program(device.nextpnr, "place and route")
    options = [*device.options, "--json", "placed.json", "--seed", "1", "--report", "report.json", device.placed, "placed.txt"]
    if wanted.pins is not None:
        (folder / "pins.txt").write_text(wanted.pins)
        options += [device.constraints, "pins.txt"]
    aimed, said = _aims(device, wanted)
    options += aimed
    note = said + note
    fault, said = _route(program, options, folder)
    if fault:
        package = device.options[device.options.index("--package") + 1]
        return Placement(None, f"{fault}; pins are those of {device.name} in a {package}" if wanted.pins else fault)
    note += _unmatched(said)
    bitstream = _pack(device, folder, identity)
    note += "" if bitstream else f", no bitstream ({_absent(device.packer)})"
    return Placement(*_clock(device, folder, note), bitstream)


def route(target: str, folder: Path, wanted: PlaceOptions, *, crowded: bool = True) -> Placement:
    """Place and route placed.json, which yosys wrote to the folder, without pins or a bitstream.

    `crowded` is for designs in which router1 takes back as many wires as it lays. router2 routes the saved placement in a call of
    its own: a language model's core took it 4 minutes, and in one call with placing it had not ended after 11. It takes back
    wires that are too long for the clock. The result varies with little things: four runs came to 51 to 58 MHz for a wanted 50.
    """
    device = DEVICES[target]
    program = find_tool(device.nextpnr)
    if program is None:
        return Placement(None, f"not placed: {_absent(device.nextpnr)}")
    aimed, note = _aims(device, wanted)
    options = [*device.options, *aimed, "--seed", "1"]
    steps: tuple[tuple[str, ...], ...] = (("--json", "placed.json", "--report", "report.json"),)
    if crowded:
        options += ["--router", "router2"]
        steps = (
            ("--json", "placed.json", "--no-route", "--write", "located.json"),
            ("--json", "located.json", "--no-pack", "--no-place", "--tmg-ripup", "--report", "report.json"),
        )
    for step in steps:
        fault, _ = _route(program, [*options, *step], folder)
        if fault:
            return Placement(None, fault)
    return Placement(*_clock(device, folder, note))


def _aims(device: Device, wanted: PlaceOptions) -> tuple[list[str], str]:
    """Options for the clock and the speed grade, and what to say of the grade."""
    options = [] if wanted.fmax is None else ["--freq", f"{wanted.fmax:g}"]
    if not device.speed_grades:
        return options, ""
    grade = wanted.speed_grade or device.speed_grades[0]
    return [*options, "--speed", f"{grade}"], f", speed grade {grade}"


def _route(program: list[str], options: list[str], folder: Path) -> tuple[str, str]:
    """Run nextpnr; why it failed, or nothing, and what else it said."""
    done = run_program([*program, *options, "--quiet", "--timing-allow-fail"], folder, check=False)
    return f"not placed: nextpnr says {_first_error(done.stderr)}" if done.returncode else "", done.stderr


def _unmatched(said: str) -> str:
    """What to say of pins whose names no port has: nextpnr chooses others, and goes on."""
    names = re.findall(r"unmatched constraint '(.*)'", said)
    return f", pins for {', '.join(map(repr, names[:MOST_NAMES]))} not used: the circuit has no such port" if names else ""


def _clock(device: Device, folder: Path, note: str = "") -> tuple[float | None, str]:
    """The clock in MHz that nextpnr reports, and what to say about it."""
    report = json.loads((folder / "report.json").read_text())
    speeds = [clock["achieved"] for clock in report.get("fmax", {}).values()]
    if not speeds:
        return None, f"placed and routed on {device.name}{note}; no path between registers, so no Fmax"
    speed = min(speeds)
    return speed, f"placed and routed on {device.name}{note}: {speed:.1f} MHz, {1000 / speed:.2f} ns (nextpnr)"


def _write_netlist(hardware: Hardware, target: str, folder: Path) -> str:
    """Write placed.json, the netlist for nextpnr: the cells that were counted. Return what the text of the result must say."""
    graph = hardware.graph
    pins = graph.input_edge.width + graph.output_edge.width + 6
    script, note = [f"read_json {NETLIST}"], ""
    if pins > DEVICES[target].pins:
        (folder / "harness.v").write_text(_harness(hardware))
        plain = {"ecp5": "-noabc9", "ice40": "-noabc"}[target]  # ABC9 refuses cells that are there already
        script += ["read_verilog harness.v", f"synth_{target} {plain} -top {hardware.name}_harness"]
        note = ", fed in parts"
    script += ["delete t:$scopeinfo", "write_json placed.json"]
    run_yosys(script, folder, f"synthesize({target!r})")
    return note


def _pack(device: Device, folder: Path, identity: int) -> bytes | None:
    """The bitstream; None without the packer."""
    packer = find_tool(device.packer)
    if packer is None:
        return None
    usercode = ["--compress", "--usercode", str(identity)] if device.packer == "ecppack" else []
    run_program([*packer, *usercode, "placed.txt", "circuit.bit"], folder)
    return (folder / "circuit.bit").read_bytes()


def _absent(tool: str) -> str:
    return f"{tool} is not installed: {HOW[tool].rsplit(': ', 1)[-1]}"


def _first_error(said: str) -> str:
    """The first error, which those behind it follow from; without one the last line."""
    lines = said.strip().splitlines() or ["nothing"]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines[-1:])[0].removeprefix("ERROR: ").strip()


def _harness(hardware: Hardware) -> str:
    """A wrapper with few pins: a sample comes in parts, one after the other, and the answer is shifted out. A single shift
    register of thousands of bits overflows the stack of yosys, and keeps bits that nothing reads.
    """
    width, out = hardware.graph.input_edge.width, hardware.graph.output_edge.width
    size = min(width, PART)
    parts = -(-width // size)
    return f"""module {hardware.name}_harness (input wire clk, input wire rst, input wire [{size - 1}:0] in_bits,
    input wire in_valid, output wire in_ready, output wire out_bit, output wire out_valid, input wire out_ready);
    reg [{parts - 1}:0] part;  // which one is loaded
    reg [{size * parts - 1}:0] given;
    reg [{out - 1}:0] answer;
    wire [{out - 1}:0] out_data;
    integer i;
    always @(posedge clk) begin
        part <= rst ? 1 : part << 1 | part[{parts - 1}];
        for (i = 0; i < {parts}; i = i + 1) if (part[i]) given[{size}*i +: {size}] <= in_bits;
        answer <= out_valid ? out_data : answer >> 1;
    end
    assign out_bit = answer[0];
    {hardware.name} dut (.clk(clk), .rst(rst), .in_data(given[{width - 1}:0]), .in_valid(in_valid), .in_ready(in_ready),
        .out_data(out_data), .out_valid(out_valid), .out_ready(out_ready));
endmodule
"""

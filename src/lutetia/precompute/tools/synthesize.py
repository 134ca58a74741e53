"""`synthesize`: the Verilog through yosys, and for ice40 and ecp5 through nextpnr.

The counts are those of yosys, not of a vendor's tool, and the report says so. LUTs, flip-flops, memories and wide multiplexers
are always reported together: a tool that puts tables into block RAM shows few LUTs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lutetia import flow
from lutetia.errors import ArgumentError, DataError, check_choice
from lutetia.precompute.tools.find import run_yosys
from lutetia.precompute.tools.place import DEVICES, NETLIST, PlaceOptions, place_and_route
from lutetia.precompute.tools.stages import luts_by_stage

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
    stages: dict[str, int] = field(default_factory=dict, repr=False)  # LUTs by stage, in the order of the data
    bitstream: bytes | None = field(default=None, repr=False)  # that a device can load, where the packer is installed

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
        told = {**asdict(self), "period_ns": self.period_ns, "area_delay": self.area_delay}
        del told["bitstream"]
        return {**told, "bitstream_bytes": None if self.bitstream is None else len(self.bitstream)}

    def __str__(self) -> str:
        parts = [f"{self.luts} LUTs", f"{self.flip_flops} flip-flops", f"{self.bram} block RAMs", f"{self.wide_muxes} wide muxes"]
        parts += [
            f"{count} {name}"
            for count, name in ((self.lut_ram, "LUT RAMs"), (self.carries, "carries"), (self.dsp, "DSPs"))
            if count
        ]
        text = f"{self.target}: {', '.join(parts)} ({self.tool})"
        return f"{text}; {self.placed}" if self.placed else text


def synthesize(hardware: Hardware, target: str, wanted: PlaceOptions, *, place: bool = True) -> Synthesis:
    """Count what the hardware needs on a target; place and route it as wanted."""
    check_choice("target", target, TARGETS)
    wanted.check(target, place)
    if hardware.language != "verilog":
        raise ArgumentError(f'the hardware is in {hardware.language}, expected "verilog", which yosys reads')
    with flow.step("synthesize", part="precompute", target=target) as step, tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        for name, text in hardware.files.items():
            (folder / name).write_text(text)
        cells = _cells(hardware, target, folder)
        made = _counted(hardware, target, cells)
        stages = luts_by_stage(folder / NETLIST, hardware.name, hardware.graph, lambda name: _kind(hardware, name))
        made = replace(made, stages=stages)
        step.note(luts=made.luts, flip_flops=made.flip_flops)
        if target in DEVICES and place:
            made = replace(made, **vars(place_and_route(hardware, target, folder, wanted)))
    return made


def _cells(hardware: Hardware, target: str, folder: Path) -> dict[str, int]:
    top = hardware.name
    sources = list(hardware.sources)
    script = []
    if _primitives(hardware, target):  # LUTs that the target has stay as they are: a synthesiser would undo the tree
        sources.remove(f"{top}_lut.v")
        script.append(f"read_verilog -lib {top}_lut.v")
    synth, *rest = recipe(target, top)  # the rest removes the names of nets, which the stages are known by
    script += ["read_verilog -DSYNTHESIS " + " ".join(sources), synth, f"write_json {NETLIST}", *rest]
    run_yosys([*script, "tee -q -o stat.json stat -json"], folder, f"synthesize({target!r})")
    return read_cells(folder / "stat.json")


def recipe(target: str, top: str) -> list[str]:
    """The commands of a target."""
    check_choice("target", target, TARGETS)
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
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise DataError(f"yosys wrote no statistics that can be read: {error}") from error


def _counted(hardware: Hardware, target: str, cells: Mapping[str, int]) -> Synthesis:
    counts = dict.fromkeys(KINDS, 0)
    for name, count in cells.items():
        kind = _kind(hardware, name)
        if kind is not None:
            counts[kind] += count
    return Synthesis(target=target, cells=dict(cells), **counts)  # type: ignore[arg-type]


def _kind(hardware: Hardware, cell: str) -> str | None:
    """What a cell is, by the name of its type."""
    plain = cell.lstrip("\\")
    if plain == f"{hardware.name}_lut":
        return "luts"
    for kind, names in KINDS.items():
        if any(plain == each or (each.endswith("*") and plain.startswith(each[:-1])) for each in names):
            return kind
    return None

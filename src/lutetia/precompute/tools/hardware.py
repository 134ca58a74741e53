"""`Hardware`, the result of `net.emit("verilog")`: files as text, a manifest, and tools to check and synthesise them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lutetia._shared import folders
from lutetia._shared.folders import MANIFEST as MANIFEST
from lutetia._version import __version__
from lutetia.errors import ArgumentError, DataError, LutetiaError
from lutetia.precompute.ir.stream import StreamEdge

if TYPE_CHECKING:
    from lutetia.precompute.ir.graph import Graph
    from lutetia.precompute.tools.cycles import Cycles
    from lutetia.precompute.tools.prove import Proof
    from lutetia.precompute.tools.synthesize import Synthesis

FORMAT = "lutetia.hardware/1"


class EquivalenceError(LutetiaError):
    """Hardware differs from the graph it was made from; `counterexample` says where."""

    kind = "equivalence"

    def __init__(self, message: str, counterexample: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.counterexample = counterexample or {}


@dataclass
class Hardware:
    """A graph as modules of a hardware language.

    graph      what it must compute; `graph(x)` is the reference
    language   "verilog" or "vhdl"
    name       of the top module
    files      text by file name: modules and the memories they read
    last       whether the top module has `out_last`
    """

    graph: Graph
    language: str
    name: str
    files: dict[str, str] = field(repr=False)
    last: bool = False

    @property
    def sources(self) -> dict[str, str]:
        """The files that hold modules, the top module last."""
        ending = ".v" if self.language == "verilog" else ".vhd"
        names = [name for name in self.files if name.endswith(ending) and name != f"{self.name}{ending}"]
        return {name: self.files[name] for name in (*names, f"{self.name}{ending}")}

    @property
    def identity(self) -> int:
        """A 32-bit number that identifies this hardware: the start of a SHA-256 of its files."""
        digest = hashlib.sha256()
        for name, text in sorted(self.files.items()):
            digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(text.encode()).digest())
        return int.from_bytes(digest.digest()[:4], "big")

    @property
    def manifest(self) -> dict[str, Any]:
        """What the files are: ports, channels, nodes, checksums."""
        graph = self.graph
        return {
            "format": FORMAT,
            "lutetia": __version__,
            "language": self.language,
            "top": self.name,
            "identity": f"0x{self.identity:08x}",
            "clock": "clk, rising edge",
            "reset": "rst, synchronous, active high",
            "input": _port(graph.input_edge),
            "output": _port(graph.output_edge),
            "nodes": [
                {"number": number, "kind": node.kind, "name": node.name, "sources": list(node.sources), "bits": node.edge.width}
                for number, node in enumerate(graph.nodes)
            ],
            "tables": graph.n_tables,
            "lookups": graph.n_lookups,
            "files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(self.files.items())},
        }

    def testbench(self, x: Tensor | None = None, *, seed: int = 0, stalls: bool = True) -> dict[str, str]:
        """A self-checking test bench and its samples: x as for `graph(x)`, by default a few random frames."""
        from lutetia.precompute.hdl.testbench import testbench

        return testbench(self, x, seed=seed, stalls=stalls)

    def axi(self) -> dict[str, str]:
        """An AXI4-Stream wrapper, `NAME_axis.v`: whole bytes of data, `tlast` with the last answer of a frame. Verilog only."""
        from lutetia.precompute.hdl.axi import axi_files

        self._check_verilog("axi()")
        return axi_files(self)

    def vivado(self, *, part: str = "xc7a35tcpg236-1", period_ns: float = 6.0) -> dict[str, str]:
        """A script and a clock for Vivado, around the wrapper of `axi()`. Untested: they were written without Vivado."""
        from lutetia.precompute.hdl.axi import vivado_files

        self._check_verilog("vivado()")
        return vivado_files(self, part=part, period_ns=period_ns)

    def _check_verilog(self, what: str) -> None:
        if self.language != "verilog":
            raise ArgumentError(f'{what} wraps Verilog but the hardware is in {self.language}, expected emit("verilog")')

    def save(self, folder: str | os.PathLike[str], *, testbench: bool = True) -> None:
        """Write all files, the manifest and a test bench to a folder, which appears whole or not at all."""
        from lutetia.precompute.hdl.testbench import LATER

        files = dict(self.files)
        if testbench:
            files |= self.testbench()
        facts = {key: value for key, value in self.manifest.items() if key != "files"} | {"later": LATER}
        try:
            folders.write(folder, files, facts)
        except OSError as error:
            raise DataError(f"{os.fspath(folder)} cannot be written: {error.strerror or error}") from error

    def simulator(self, tool: str | None = None) -> str:
        """The simulator that `simulate` takes on this machine: "icarus" where it is installed, else the built-in one."""
        from lutetia.precompute.tools.simulate import simulator

        return simulator(self, tool)

    def simulate(
        self, x: Tensor, *, tool: str | None = None, stalls: bool = True, seed: int = 0, time_limit: float | None = None
    ) -> Tensor:
        """Run samples through a simulator and compare with the graph: x as for `graph(x)` -> what came out, the same shape.

        `tool` is "icarus", "builtin" (which needs yosys from PyPI alone), "verilator", "cocotb" or, for VHDL, "ghdl"; by default
        what `simulator()` says. With `stalls` both sides pause at random. Raises EquivalenceError at the first sample that
        differs, and TimeLimitError after `time_limit` seconds.
        """
        from lutetia.precompute.tools.simulate import simulate

        return simulate(self, x, tool=tool, stalls=stalls, seed=seed, limit=time_limit)

    def cycles(self, *, tool: str | None = None, time_limit: float | None = None) -> Cycles:
        """Clock cycles that a simulator counts without pauses, to the first answer and for each frame; `graph.cycles()` says how
        many it must be. `tool` is "icarus", "builtin" or "verilator"."""
        from lutetia.precompute.tools.simulate import measure_cycles

        return measure_cycles(self, tool=tool, limit=time_limit)

    def prove(
        self,
        max_bits: int = 12,
        *,
        whole: bool = False,
        time_limit: float | None = None,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> Proof:
        """Prove that the Verilog does what the graph says; EquivalenceError with a counterexample where it does not.

        Always: the wiring, and every register, window and fork in each state it can reach. Row by row: tables of up to
        `max_bits` address bits. By SAT: narrow stages. What is wider is listed as skipped; with `whole` nothing is.
        `progress(done, parts, name)` is called before each part.
        """
        from lutetia.precompute.tools import find
        from lutetia.precompute.tools.prove import prove

        with find.time_limit(time_limit):
            return prove(self, max_bits, whole=whole, progress=progress)

    def synthesize(
        self,
        target: str = "lut6",
        *,
        place: bool = True,
        pins: str | None = None,
        fmax: float | None = None,
        speed_grade: int | None = None,
        time_limit: float | None = None,
    ) -> Synthesis:
        """Synthesise it with yosys for "lut6", "lut4", "ice40" or "ecp5".

        For the last two it is also placed and routed, given nextpnr, with Fmax and a bitstream. `pins` is the text of a file of
        pin constraints, .pcf or .lpf; without it nextpnr chooses the pins. `fmax` is the clock in MHz that it aims at,
        `speed_grade` that of an ECP5: 6 by default, 7 or 8.
        """
        from lutetia.precompute.tools import find
        from lutetia.precompute.tools.place import PlaceOptions
        from lutetia.precompute.tools.synthesize import synthesize

        with find.time_limit(time_limit):
            return synthesize(self, target, PlaceOptions(pins, fmax, speed_grade), place=place)


def _port(edge: StreamEdge) -> dict[str, Any]:
    return {
        "bits": edge.width,
        "layout": edge.layout,
        "shape": list(edge.shape),
        "channels": [
            {"low": int(low), "bits": domain.bits, "domain": str(domain), "scale": scale}
            for low, domain, scale in zip(edge.offsets[:-1], edge.domains, edge.scale, strict=True)
        ],
    }

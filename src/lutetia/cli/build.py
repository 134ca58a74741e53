"""`lutetia build`: a trained network of lookup tables as hardware, in a folder with everything that was checked on the way.

summary.html      one page: the graph, the tables, the costs, what was simulated, proved and synthesised
report.json       the same for machines
tables.json       what each table is; tables.safetensors: its rows
verilog/, vhdl/   modules, a self-checking test bench and its samples
flow.json         the steps of the build, for lutetia.flow
manifest.json     checksums of all files
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save as to_safetensors

from lutetia import flow
from lutetia._version import __version__
from lutetia.cli.build_page import page
from lutetia.cli.guard import UsageError, stop_if_interrupted
from lutetia.cli.show import console
from lutetia.errors import ArgumentError, MissingFeatureError
from lutetia.files import check_writable
from lutetia.models import LUTClassifier, load
from lutetia.precompute import lut_network
from lutetia.precompute.graph import Graph
from lutetia.precompute.hardware import MANIFEST, Hardware, write_folder
from lutetia.precompute.samples import random_input
from lutetia.precompute.stream import Table
from lutetia.precompute.synthesize import TARGETS

FORMAT = "lutetia.build/1"
SAMPLES = 64  # random ones that go through the simulator
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What the command line asked for."""

    checkpoint: Path
    out: Path
    input_bits: int
    weight_bits: int
    target: str
    prove: bool


@dataclass
class Steps:
    """What is done, how long it took, and what could not be done here."""

    show: bool
    done: list[dict[str, Any]] = field(default_factory=list)

    def run(self, name: str, job: Callable[[], T]) -> T | None:
        """Do one step; None where a tool is missing, which is told and not fatal."""
        stop_if_interrupted()
        began = time.perf_counter()
        screen = console(stderr=True)
        missing = ""
        made: T | None = None
        with screen.status(f"{name} ..") if self.show else nullcontext():
            try:
                made = job()
            except MissingFeatureError as error:
                missing = str(error)
        took = time.perf_counter() - began
        self.done.append({"step": name, "seconds": round(took, 3), "left_out": missing})
        if self.show:
            screen.print(f"{name:<12}{f'left out: {missing}' if missing else f'{took:.1f} s'}", soft_wrap=True)
        return made


def run_build(request: Request, show: bool) -> dict[str, Any]:
    """Build, write the folder, and return the report."""
    _check(request)
    steps = Steps(show)
    with flow.record() as recorded:
        report, files = _built(request, steps)
    report["steps"] = steps.done
    files["flow.json"] = recorded.to_json()
    files["report.json"] = json.dumps(report, indent=2) + "\n"
    files["summary.html"] = page(report)
    files[MANIFEST] = json.dumps(_manifest(files), indent=2) + "\n"
    write_folder(request.out, files)
    return report


def _check(request: Request) -> None:
    if request.target not in TARGETS:
        raise UsageError(f"there is no target {request.target!r}: did you mean one of {', '.join(TARGETS)}?")
    if not 1 <= request.input_bits <= 16:
        raise UsageError(f"--input-bits is {request.input_bits}, expected 1 to 16")
    if not 2 <= request.weight_bits <= 24:
        raise UsageError(f"--weight-bits is {request.weight_bits}, expected 2 to 24")
    out = request.out
    if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or (out / MANIFEST).is_file())):
        raise ArgumentError(f"{out} is there and was not built here: choose another --out, or remove it")
    check_writable(out if out.exists() else out.parent)


def _built(request: Request, steps: Steps) -> tuple[dict[str, Any], dict[str, str | bytes]]:
    model = load(request.checkpoint, expected=LUTClassifier)
    network = steps.run("tables", lambda: lut_network(model, bits=request.input_bits, weight_bits=request.weight_bits))
    assert network is not None
    graph = network.graph
    hardware = steps.run("verilog", lambda: graph.emit("verilog"))
    other = steps.run("vhdl", lambda: graph.emit("vhdl"))
    assert hardware is not None
    assert other is not None
    benches = steps.run("test bench", lambda: (hardware.testbench(), other.testbench()))
    assert benches is not None
    x = random_input(graph, SAMPLES, seed=0)
    simulated = steps.run("simulation", lambda: hardware.simulate(x))
    proof = steps.run("proof", hardware.prove) if request.prove else None
    synthesis = steps.run("synthesis", lambda: hardware.synthesize(request.target))
    report = {
        "format": FORMAT,
        "lutetia": __version__,
        "checkpoint": str(request.checkpoint),
        "model": type(model).__name__,
        "weights": sum(each.numel() for each in model.parameters()),
        "input_bits": request.input_bits,
        "weight_bits": request.weight_bits,
        "graph": _nodes(graph),
        "tables": [_told(number, table) for number, table in enumerate(_tables(graph))],
        "lookups": graph.n_lookups,
        "latency": graph.cost().latency,
        "estimate": {"luts": graph.cost().luts, "flip_flops": graph.cost().flip_flops},
        "simulated": None if simulated is None else {"samples": SAMPLES, "equal": True},
        "proof": None if proof is None else proof.to_dict(),
        "synthesis": None if synthesis is None else synthesis.to_dict(),
    }
    files: dict[str, str | bytes] = {}
    for folder, made, bench in (("verilog", hardware, benches[0]), ("vhdl", other, benches[1])):
        files |= {f"{folder}/{name}": text for name, text in _with_manifest(made, bench).items()}
    files["tables.json"] = json.dumps(report["tables"], indent=1) + "\n"
    files["tables.safetensors"] = to_safetensors(
        {
            f"table{number}": torch.from_numpy(table.contents.astype("int64", order="C"))
            for number, table in enumerate(_tables(graph))
        }
    )
    return report, files


def _with_manifest(hardware: Hardware, bench: dict[str, str]) -> dict[str, str]:
    return {**hardware.files, **bench, MANIFEST: json.dumps(hardware.manifest, indent=2) + "\n"}


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


def _manifest(files: dict[str, str | bytes]) -> dict[str, Any]:
    sums = {
        name: hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()
        for name, content in sorted(files.items())
    }
    return {"format": FORMAT, "lutetia": __version__, "files": sums}


def show_report(report: dict[str, Any], out: Path) -> None:
    """What came of it, in a few lines."""
    screen = console()
    tables = report["tables"]
    screen.print(f"{len(tables)} tables, {report['lookups']} lookups, latency {report['latency']} cycles", soft_wrap=True)
    if report["simulated"]:
        screen.print(f"simulated  {report['simulated']['samples']} samples, equal to the integer model", soft_wrap=True)
    if report["proof"]:
        left = f", {len(report['proof']['skipped'])} too wide for it" if report["proof"]["skipped"] else ""
        screen.print(f"proved     {len(report['proof']['proved'])} tables and stages by SAT{left}", soft_wrap=True)
    made = report["synthesis"]
    if made:
        counts = f"{made['luts']} LUTs, {made['flip_flops']} flip-flops, {made['bram']} block RAMs ({made['tool']})"
        screen.print(f"{made['target']:<11}{counts}", soft_wrap=True)
    screen.print(f"summary    {out / 'summary.html'}", soft_wrap=True)

"""A training step of LUT attention on the CPU is at least 20 times as fast as on the reference backend.

A step is forward, and the gradients of the inputs, the positions and the weights. Ratios of medians taken in one run, the
contestants taking turns: the reference (eager torch, distance by distance) and the compiled kernels, by pairs and by cells.
Claimed for the first shape; the others show where cells overtake pairs (more positions than cells, wide outputs) and where not.

    python benchmarks/lut_attention_cpu.py [--repeats N] [--only WORD] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numba
import torch
from rich.console import Console
from rich.table import Table

from lutetia.lut import kernels, random_anchors

cpu, reference = kernels("cpu"), kernels("reference")

SHAPES = {  # batch, length, inputs and outputs, detectors, anchor pairs, positional bits
    "claimed": (8, 128, 64, 16, 4, 3),
    "short": (32, 32, 32, 16, 4, 3),
    "long": (2, 512, 64, 16, 4, 4),
    "long, one sequence": (1, 1024, 64, 8, 3, 2),
    "wide": (2, 512, 256, 8, 3, 3),
    "many cells": (8, 64, 32, 16, 6, 4),
}
CLAIM = 20.0
PEER = "reference"
PIECES = ("detect", "y", "dx, dpositions", "dW")
Times = dict[str, float]  # milliseconds of each piece


@dataclass
class Result:
    """Median milliseconds of the pieces of a step, by contestant."""

    shape: str
    sizes: tuple[int, ...]
    milliseconds: dict[str, Times]

    def total(self, name: str) -> float:
        """A whole step."""
        return sum(self.milliseconds[name].values())

    def ratios(self) -> dict[str, float]:
        """How many times as long the reference takes for a step."""
        return {name: self.total(PEER) / self.total(name) for name in self.milliseconds if name != PEER}


def contestants(sizes: tuple[int, ...]) -> dict[str, Callable[[], Times]]:
    """Who takes a step on the same tensors; each returns what its pieces took."""
    batch, length, width, n_detectors, n_anchors, positional_dim = sizes
    x, grad = torch.randn(batch, length, width), torch.randn(batch, length, width)
    positions = torch.rand(length - 1, n_detectors, positional_dim) * 2 - 1
    n_rows = 1 << (2 * n_anchors + positional_dim)
    weight, anchors = torch.randn(n_detectors, n_rows, width), random_anchors(width, n_detectors, n_anchors, seed=0)

    def step(one: Any, sequence: Any, fill: str, propagate: str, gather: str) -> Times:
        at = [time.perf_counter()]
        found, pe = one.check_detectors(x, anchors), sequence.check_positions(positions)
        at.append(time.perf_counter())
        getattr(sequence, fill)(weight, found[0], pe[0], positional_dim)
        at.append(time.perf_counter())
        getattr(sequence, propagate)(grad, weight, *found, *pe, anchors, width, positional_dim)
        at.append(time.perf_counter())
        getattr(sequence, gather)(grad, found[0], pe[0], positional_dim, n_rows)
        at.append(time.perf_counter())
        return {name: 1e3 * (end - begin) for name, begin, end in zip(PIECES, at, at[1:], strict=False)}

    pairs = ("fill_outputs_seq_fc", "propagate_through_detectors_seq_fc", "gather_weight_gradients_seq_fc")
    cells = ("fill_outputs_cells_fc", "propagate_through_cells_fc", "gather_weight_gradients_cells_fc")
    return {
        PEER: lambda: step(reference, reference, *pairs),
        "cpu, pairs": lambda: step(cpu, cpu, *pairs),
        "cpu, cells": lambda: step(cpu, cpu, *cells),
    }


def measure(steps: dict[str, Callable[[], Times]], repeats: int) -> dict[str, Times]:
    """Medians of all pieces; the reference, seconds a step, has a third of the turns."""
    taken: dict[str, list[Times]] = {name: [] for name in steps}
    for name, step in steps.items():
        if name != PEER:
            step()  # compiles
    for turn in range(repeats):
        for name, step in steps.items():
            if name != PEER or turn % 3 == 0:
                taken[name].append(step())
    return {name: {piece: statistics.median(t[piece] for t in times) for piece in PIECES} for name, times in taken.items()}


def machine() -> dict[str, Any]:
    """Where this ran and on what."""
    model = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), model)
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numba": numba.__version__}
    return {"cpu": model, "cores": os.cpu_count(), "threads": torch.get_num_threads(), **versions}


def show(results: list[Result]) -> None:
    """A table: what each piece took, and how many times as long the reference takes for a step."""
    table = Table(title="A training step of LUT attention on the CPU, in milliseconds", title_justify="left")
    for heading in ("shape", "B, S, E, N_t, N_c, N_pe", "backend", *PIECES, "step", "reference / step"):
        table.add_column(heading, justify="left" if heading in ("shape", "backend") else "right")
    for result in results:
        ratios = result.ratios()
        for name, times in result.milliseconds.items():
            cells = [f"{times[piece]:.2f}" for piece in PIECES]
            ratio = f"{ratios[name]:.0f}" if name in ratios else ""
            table.add_row(result.shape, ", ".join(map(str, result.sizes)), name, *cells, f"{result.total(name):.2f}", ratio)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in machine().items()))


def main(argv: list[str] | None = None) -> int:
    """Run the shapes, print ratios; 1 when the claimed shape misses its ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9, help="steps per shape (default 9)")
    parser.add_argument("--only", default="", help="run the shapes whose name contains this")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    results = []
    for shape, sizes in SHAPES.items():
        if options.only in shape:
            print(shape, file=sys.stderr)
            results.append(Result(shape, sizes, measure(contestants(sizes), options.repeats)))
    if options.json:
        print(json.dumps({"machine": machine(), "results": [asdict(r) | {"ratios": r.ratios()} for r in results]}))
    else:
        show(results)
    return int(any(min(r.ratios().values()) < CLAIM for r in results if r.shape == "claimed"))


if __name__ == "__main__":
    sys.exit(main())

"""Generating through the index cache is at least 5 times as fast as recomputing the context, at a context of 256.

A model with random weights writes greedily, one text at a time, until the context is full. Milliseconds per byte through the
cache and by the whole text anew for every byte, taking turns in one run, and their ratio: over the whole text, when most
contexts are shorter than 256, and over its last bytes. Both must write the same bytes.

    python benchmarks/generate.py [--repeats N] [--only WORD] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from lutetia.models import LUTTransformer

CONTEXT, LAST, CLAIM = 256, 32, 5.0
TABLES = {"unembedding": "lut", "norm": "none"}
SHAPES: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "small, all tables": {"width": 32, "n_layers": 2, "n_detectors": 8, "ff_detectors": 16, **TABLES},
    "4 × 16 detectors, N_c 6, N_pe 4": {
        "width": 32,
        "n_layers": 2,
        "n_anchors": 6,
        "positional_dim": 4,
        "ff_detectors": 16,
        "ff_anchors": 6,
        **TABLES,
    },
    "softmax, KV cache": {"attention": "softmax", "feed_forward": "projected", "read": "confidence2"},
}


@dataclass
class Result:
    """Median milliseconds per byte, and how many times as long recomputing takes."""

    shape: str
    parameters: int
    same_bytes: bool
    cached: dict[str, float]
    recomputed: dict[str, float]

    def ratios(self) -> dict[str, float]:
        return {part: self.recomputed[part] / self.cached[part] for part in self.cached}


def cached(model: LUTTransformer, n: int) -> tuple[bytes, list[float]]:
    """What the model writes, and when each byte was there."""
    written, times = b"", [time.perf_counter()]
    for piece in model.generate(b"\n", n, temperature=0, stream=True):
        written += piece
        times.append(time.perf_counter())
    return written, times


@torch.no_grad()
def recomputed(model: LUTTransformer, n: int) -> tuple[bytes, list[float]]:
    """The same by the whole text anew for every byte."""
    tokens, times = torch.tensor([[10]]), [time.perf_counter()]
    for _ in range(n):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
        times.append(time.perf_counter())
    return bytes(tokens[0, 1:].tolist()), times


def per_byte(times: list[float]) -> dict[str, float]:
    """Milliseconds per byte, of the whole text and of the last bytes."""
    return {
        "whole text": 1e3 * (times[-1] - times[0]) / (len(times) - 1),
        "last bytes": 1e3 * (times[-1] - times[-1 - LAST]) / LAST,
    }


def measure(shape: str, repeats: int) -> Result:
    model = LUTTransformer(context=CONTEXT, **{"width": 64, **SHAPES[shape]}, seed=0).eval()
    contestants = {"cached": cached, "recomputed": recomputed}
    for write in contestants.values():
        write(model, 40)  # compiles
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    found: dict[str, bytes] = {}
    for _ in range(repeats):
        for name, write in contestants.items():
            found[name], times = write(model, CONTEXT - 1)
            taken[name].append(per_byte(times))
    medians = {name: {part: statistics.median(t[part] for t in each) for part in each[0]} for name, each in taken.items()}
    return Result(shape, model.n_parameters, found["cached"] == found["recomputed"], **medians)


def machine() -> dict[str, Any]:
    """Where this ran and on what."""
    model = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), model)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {"cpu": model, "cores": os.cpu_count(), "threads": torch.get_num_threads(), **versions}


def show(results: list[Result]) -> None:
    table = Table(title=f"Milliseconds per byte, batch 1, context {CONTEXT}", title_justify="left")
    for heading in ("model", "parameters", "part", "cached", "recomputed", "ratio", "same bytes"):
        table.add_column(heading, justify="left" if heading in ("model", "part") else "right")
    for result in results:
        for part, ratio in result.ratios().items():
            numbers = (f"{result.cached[part]:.2f}", f"{result.recomputed[part]:.2f}", f"{ratio:.1f}")
            table.add_row(result.shape, f"{result.parameters:,}", part, *numbers, "yes" if result.same_bytes else "no")
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in machine().items()))


def main(argv: list[str] | None = None) -> int:
    """Run the shapes, print ratios; 1 when LUT attention misses its ratio at the full context."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="texts per shape (default 3)")
    parser.add_argument("--only", default="", help="run the shapes whose name contains this")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(argv)
    results = []
    for shape in SHAPES:
        if options.only in shape:
            print(shape, file=sys.stderr)
            results.append(measure(shape, options.repeats))
    if options.json:
        print(json.dumps({"machine": machine(), "results": [asdict(r) | {"ratios": r.ratios()} for r in results]}))
    else:
        show(results)
    return int(any(r.ratios()["last bytes"] < CLAIM for r in results if "softmax" not in r.shape))


if __name__ == "__main__":
    sys.exit(main())

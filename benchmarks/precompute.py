"""Precompute: how many tables a second are enumerated, and how long ten thousand neurons take to become tables.

tables     Linear 16 -> 64 with a sign behind it, 16 binary inputs: 64 tables of 65,536 rows; at least 300 of them a second on
           two cores. Beside it, plain torch: the same matrix product and sign over all rows, kept as int8 and checked by
           nobody.
neurons    five layers of 2,000 neurons, each reading six values of two bits: traced, precomputed, deduplicated, in seconds.

python benchmarks/precompute.py [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter

import torch
from torch import nn

from lutetia.precompute import Binary, PlusMinus, Quantise, SparseLinear, Stream, UInt, decompose, trace
from lutetia.precompute.domains import enumerate_rows

ROUNDS = 7


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    found = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        **tables(),
        **neurons(),
    }
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        for name, value in found.items():
            print(f"{name:32} {value if isinstance(value, str) else f'{value:.2f}'}")
    return 0


def tables() -> dict[str, float]:
    """Tables of 16 bits a second: ours, and plain torch, by turns in one run."""
    layer = nn.Sequential(nn.Linear(16, 64), Quantise(PlusMinus()))
    linear = layer[0].double()

    def plain() -> torch.Tensor:
        with torch.no_grad():
            rows = enumerate_rows([Binary()] * 16, dtype=torch.float64)
            return torch.where(linear(rows) >= 0, 1, -1).to(torch.int8)

    ours, theirs = _by_turns(lambda: decompose(layer).tables(Binary()), plain)
    return {"tables per second": 64 / ours, "plain torch, per second": 64 / theirs, "ratio": theirs / ours}


def _by_turns(*functions: Callable[[], object]) -> list[float]:
    """The median seconds of each, called by turns."""
    taken: list[list[float]] = [[] for _ in functions]
    for _ in range(ROUNDS):
        for times, function in zip(taken, functions, strict=True):
            began = perf_counter()
            function()
            times.append(perf_counter() - began)
    return [statistics.median(times) for times in taken]


def neurons() -> dict[str, float]:
    """Seconds for each step of ten thousand neurons, and the memory of the process."""
    layers: list[nn.Module] = []
    for seed in range(5):
        layers += [SparseLinear(2000, 2000, 6, seed=seed), nn.BatchNorm1d(2000), Quantise(UInt(2), 0.5)]
    model = nn.Sequential(*layers).eval()
    marks = [perf_counter()]
    net = trace(model, input=Stream(channels=2000, dtype=UInt(2)))
    marks.append(perf_counter())
    net = net.precompute(max_bits=12)
    marks.append(perf_counter())
    net = net.dedupe()
    marks.append(perf_counter())
    steps = dict(zip(("trace, s", "precompute, s", "dedupe, s"), (b - a for a, b in pairwise(marks)), strict=True))
    return {**steps, "tables": net.n_tables, "peak memory, GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


if __name__ == "__main__":
    raise SystemExit(main())

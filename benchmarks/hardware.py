"""Ten thousand neurons of fan-in 6 and 2 bits, from trace to Verilog: seconds and memory. And minimise beside yosys."""

from __future__ import annotations

import argparse
import resource
import sys
import time

import numpy as np
import torch
from torch import nn

from lutetia.precompute import Quantise, SparseLinear, Stream, UInt, trace
from lutetia.precompute.minimise import minimise_tables
from lutetia.precompute.stream import TableData


def emission(neurons: int) -> None:
    """Trace, precompute, dedupe, emit."""
    torch.manual_seed(0)
    model = nn.Sequential(SparseLinear(1000, neurons, 6, seed=0), Quantise(UInt(2), 0.5))
    began = time.perf_counter()
    net = trace(model, input=Stream(channels=1000, dtype=UInt(2))).precompute(max_bits=12)
    traced = time.perf_counter() - began
    net = net.dedupe()
    hardware = net.emit("verilog")
    took = time.perf_counter() - began
    size = sum(map(len, hardware.files.values())) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{neurons} neurons of fan-in 6 x 2 bits: trace and tables {traced:.1f} s, to Verilog {took:.1f} s")
    print(f"{net.n_tables} tables, {size:.1f} MiB of Verilog, peak memory {peak:.2f} GiB")


def forms() -> None:
    """LUT6 of a few tables: yosys, a Shannon tree, partial sums."""
    rng = np.random.default_rng(0)
    numbers = np.arange(4096)
    bits = numbers[None] >> np.arange(12)[:, None] & 1
    pairs = numbers[None] >> 2 * np.arange(6)[:, None] & 3
    tables = {
        "random 8 -> 2": TableData(rng.integers(0, 4, (256, 1)), (2,)),
        "random 12 -> 4": TableData(rng.integers(0, 16, (4096, 1)), (4,)),
        "majority of 12": TableData((bits.sum(0) > 6).astype(np.int64)[:, None], (1,)),
        "count of 12": TableData(bits.sum(0)[:, None], (4,)),
        "threshold of 12": TableData((rng.integers(-7, 8, 12) @ bits > 3).astype(np.int64)[:, None], (1,)),
        "neuron 6 x 2 bits": TableData(np.clip(rng.integers(-3, 4, 6) @ pairs // 3 + 1, 0, 3)[:, None], (2,)),
    }
    print(f"{'LUT6':<20}{'yosys':>8}{'shannon':>9}{'adder':>7}{'kept':>6}")
    for name, made in zip(tables, minimise_tables(list(tables.values())), strict=True):
        tried = made.form.tried
        row = [str(tried.get(kind, "-")) for kind in ("yosys", "shannon", "adder")]
        print(f"{name:<20}{row[0]:>8}{row[1]:>9}{row[2]:>7}{made.form.luts:>6}")


def main(argv: list[str] | None = None) -> int:
    """Emit, then minimise; print what each took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--neurons", type=int, default=10_000, help="neurons to emit (default 10000)")
    parser.add_argument("--no-forms", action="store_true", help="leave out minimise beside yosys")
    options = parser.parse_args(argv)
    emission(options.neurons)
    if not options.no_forms:
        forms()
    return 0


if __name__ == "__main__":
    sys.exit(main())

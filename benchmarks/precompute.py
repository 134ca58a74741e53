"""Layers become tables at 300 tables of 16 input bits a second or more on two cores, each checked; then ten thousand neurons.

tables     Linear 16 -> 64 with a sign behind it, 16 binary inputs: 64 tables of 65,536 rows. Beside it, plain torch: the same
           matrix product and sign over all rows, kept as int8 and checked by nobody.
neurons    five layers of 2,000 neurons, each reading six values of two bits: traced, precomputed, deduplicated, in seconds.

    lutetia bench precompute [--quick] [--json] [--save]
"""

from __future__ import annotations

import resource
import sys
from itertools import pairwise
from time import perf_counter

import torch
from torch import nn

from lutetia.precompute import Binary, PlusMinus, Quantise, SparseLinear, Stream, UInt, decompose, enumerate_rows, trace
from results import Row, finish, options_of, peer, progress, result, table
from timing import in_turns

ROUNDS = 7
CLAIM = 300.0  # tables a second


def tables(inputs: int, outputs: int, rounds: int) -> list[Row]:
    """Tables a second: ours, and plain torch, taking turns in one run."""
    layer = nn.Sequential(nn.Linear(inputs, outputs), Quantise(PlusMinus()))
    linear = layer[0].double()

    @torch.no_grad()
    def plain() -> torch.Tensor:
        rows = enumerate_rows([Binary()] * inputs, dtype=torch.float64)
        return torch.where(linear(rows) >= 0, 1, -1).to(torch.int8)

    taken = in_turns({"Lutetia": lambda: decompose(layer).tables(Binary()), "plain torch": plain}, rounds)
    return [{"what": name, "tables per second": 1e3 * outputs / ms, "checked": name == "Lutetia"} for name, ms in taken.items()]


def neurons(width: int) -> Row:
    """Seconds for each step of five layers of neurons, and the memory of the process."""
    layers: list[nn.Module] = []
    for seed in range(5):
        layers += [SparseLinear(width, width, 6, seed=seed), nn.BatchNorm1d(width), Quantise(UInt(2), 0.5)]
    model = nn.Sequential(*layers).eval()
    marks = [perf_counter()]
    net = trace(model, input=Stream(channels=width, dtype=UInt(2)))
    marks.append(perf_counter())
    net = net.precompute(max_bits=12)
    marks.append(perf_counter())
    net = net.dedupe()
    marks.append(perf_counter())
    steps = dict(zip(("trace", "precompute", "dedupe"), (end - begin for begin, end in pairwise(marks)), strict=True))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"neurons": 5 * width, **steps, "tables": net.n_tables, "peak memory": memory}


def main(argv: list[str] | None = None) -> int:
    """Enumerate, then trace; 1 when fewer tables a second are made than claimed."""
    options = options_of(__doc__).parse_args(argv)
    progress("tables")
    made = tables(6, 4, 1) if options.quick else tables(16, 64, ROUNDS)
    progress("neurons")
    steps = neurons(20 if options.quick else 2000)
    units = {"trace": "s", "precompute": "s", "dedupe": "s", "tables": None, "peak memory": "GiB"}
    rate = made[0]["tables per second"]
    missed = [f"{rate:.0f} tables a second, {CLAIM:.0f} claimed"] if rate < CLAIM else []
    shown = [
        table("tables", {"what": None, "tables per second": None, "checked": None}, made),
        table("neurons", {"neurons": None, **units}, [steps]),
    ]
    peers = [peer("plain torch", "torch", "the same product and sign over all rows, unchecked")]
    return finish(result(__doc__, "precompute", {"rounds": ROUNDS}, shown, peers=peers, missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())

"""One LUT layer on a GPU: at least 4x the original CUDA library in eval and 8x in training, at the original's own shapes.

The original's times were measured on one H200 in float32 (they are constants here: its library is not a dependency). Ours are
medians over replays of a CUDA graph of the public call, and, beside them, of plain eager calls, where Python's launching counts
too. A training step is forward, gradient of the inputs and gradient of the weights.

How good that is: every kernel's work is to gather rows, so its rate (bytes of rows over time) stands beside the rate at which a
plain kernel reads a buffer of the size of the tables, over and over.

    python benchmarks/lut_step.py [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gpu_timing import eager, machine, replayed
from lutetia.lut import growth, kernels, lut
from lutetia.lut.connectivity.anchors import random_anchors
from lutetia.lut.connectivity.synapses import Synapses

# batch, inputs, outputs, detectors, anchor pairs: the original's eval and training step in ms
ORIGINAL = {
    (4096, 32, 32, 16, 6): (0.074, 0.53),
    (4096, 64, 64, 64, 10): (0.120, 0.71),
    (4096, 256, 256, 128, 8): (0.283, 2.68),
    (32768, 256, 256, 128, 8): (1.49, 17.5),
    (4096, 256, 1024, 256, 8): (2.00, 25.0),
}
GROUPED = (24576, 384, 384, 512, 8)  # 8 heads × 64 tables, each head reads its own 48 inputs and writes its own 48 outputs
GROUPED_LIMIT = (0.4, 2.5)


@dataclass
class Row:
    """One shape: medians in ms, rates in TB/s."""

    shape: str
    peer: str
    peer_eval: float
    peer_train: float
    eval: float
    train: float
    eager_eval: float
    eager_train: float
    kernels: dict[str, float]
    rates: dict[str, float]
    read_rate: float
    collisions: float  # weight gradient when every row of the batch hits one entry, over the usual


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("lut_step measures CUDA kernels and this machine has no CUDA device; lut_cpu measures the CPU's", file=sys.stderr)
        return 1
    rows = [measure(shape, "original", peer) for shape, peer in ORIGINAL.items()]
    rows.append(measure(GROUPED, "limit", GROUPED_LIMIT, grouped_synapses()))
    if options.json:
        print(json.dumps({"machine": machine(), "rows": [asdict(row) for row in rows]}, indent=1))
    else:
        show(rows)
    return 0


def grouped_synapses() -> Synapses:
    t = torch.arange(512).repeat_interleave(48)
    outputs = t // 64 * 48 + torch.arange(48).repeat(512)
    return growth.from_edges(512, 8, 384, torch.stack([t, outputs], 1)).to("cuda")


def measure(shape: tuple[int, ...], peer: str, times: tuple[float, float], synapses: Synapses | None = None) -> Row:
    batch, n_inputs, n_outputs, n_detectors, n_anchors = shape
    torch.manual_seed(0)
    fields = None if synapses is None else (torch.arange(512)[:, None] // 64 * 48 + torch.arange(48)).int()
    anchors = random_anchors(n_inputs, n_detectors, n_anchors, seed=0, fields=fields).to("cuda")
    size = (n_detectors, 2**n_anchors, n_outputs) if synapses is None else (synapses.n_weights,)
    weight = torch.randn(size, device="cuda", requires_grad=True)
    x = torch.randn(batch, n_inputs, device="cuda", requires_grad=True)
    grad = torch.randn(batch, n_outputs, device="cuda")

    def evaluate() -> Tensor:
        with torch.no_grad():
            return lut(x, weight, anchors, synapses=synapses)

    def train() -> tuple[Tensor, ...]:
        return torch.autograd.grad(lut(x, weight, anchors, synapses=synapses), (x, weight), grad)

    calls = pieces(x.detach(), weight.detach(), anchors, grad, synapses)
    taken = {name: replayed(call) for name, call in calls.items()}
    width = n_outputs if synapses is None else 48
    gathered = batch * n_detectors * width * 4 / 1e9  # rows of one gather, GB; GB per ms is TB/s
    share = {"eval forward": 1, "train forward": 1, "x gradient": 2, "weight gradient": 1}
    collisions = taken.pop("weight gradient, one entry") / taken["weight gradient"]
    return Row(
        shape=f"B{batch} I{n_inputs} O{n_outputs} N_t{n_detectors} N_c{n_anchors}" + (", grouped" if synapses else ""),
        peer=peer,
        peer_eval=times[0],
        peer_train=times[1],
        eval=replayed(evaluate),
        train=replayed(train),
        eager_eval=eager(evaluate),
        eager_train=eager(train),
        kernels=taken,
        rates={name: share[name] * gathered / milliseconds for name, milliseconds in taken.items()},
        read_rate=read_rate(weight.detach()),
        collisions=collisions,
    )


def pieces(x: Tensor, weight: Tensor, anchors: Tensor, grad: Tensor, synapses: Synapses | None) -> dict[str, Callable[[], Any]]:
    """The kernels of a step, one by one."""
    k, kind = kernels("triton"), "fc" if synapses is None else "sparse"
    rest = () if synapses is None else (synapses,)
    n_rows = 2 ** anchors.shape[1]
    found = k.check_detectors(x, anchors)
    one_entry = torch.zeros_like(found[0])

    def gather(indices: Tensor) -> Tensor:
        return getattr(k, f"gather_weight_gradients_{kind}")(grad, indices, *(rest or (n_rows,)))

    return {
        "eval forward": lambda: getattr(k, f"detect_and_fill_eval_{kind}")(x, weight, anchors, *rest),
        "train forward": lambda: getattr(k, f"detect_and_fill_{kind}")(x, weight, anchors, *rest),
        "x gradient": lambda: getattr(k, f"propagate_through_detectors_{kind}")(grad, weight, *found, anchors, x.shape[1], *rest),
        "weight gradient": lambda: gather(found[0]),
        "weight gradient, one entry": lambda: gather(one_entry),
    }


def read_rate(buffer: Tensor) -> float:
    """TB/s at which a plain kernel reads a buffer of this size again and again: out of L2 when it fits, else out of memory."""
    buffer = buffer.flatten()
    programs, tile, rounds = 4224, 1024, 64
    tiles = buffer.numel() // tile
    out = buffer.new_empty(programs)

    def call() -> None:
        read_kernel[(programs,)](buffer, out, tiles, rounds, TILE=tile, num_warps=1)

    return programs * rounds * tile * 4 / 1e9 / replayed(call)


@triton.jit
def read_kernel(buffer_ptr, out_ptr, tiles, rounds, TILE: tl.constexpr):
    """Every program reads `rounds` tiles, all programs side by side, round after round through the buffer."""
    total = tl.zeros([TILE], tl.float32)
    for i in range(0, rounds, 2):
        tile = (tl.program_id(0) + i * tl.num_programs(0)) % tiles
        other = (tl.program_id(0) + (i + 1) * tl.num_programs(0)) % tiles
        total += tl.load(buffer_ptr + tile.to(tl.int64) * TILE + tl.arange(0, TILE))
        total += tl.load(buffer_ptr + other.to(tl.int64) * TILE + tl.arange(0, TILE))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


def show(rows: list[Row]) -> None:
    console = Console(width=150)
    console.print(" · ".join(f"{name} {value}" for name, value in machine().items()))
    table = Table(title="One layer, ms (graph replay; eager beside it)", title_justify="left")
    for column in ("shape", "against", "eval", "ratio", "eager", "train", "ratio", "eager", "one entry / usual"):
        table.add_column(column, justify="left" if column == "shape" else "right")
    for row in rows:
        table.add_row(
            row.shape, f"{row.peer} {row.peer_eval:g} / {row.peer_train:g}",
            f"{row.eval:.4f}", f"{row.peer_eval / row.eval:.1f}x", f"{row.eager_eval:.3f}",
            f"{row.train:.4f}", f"{row.peer_train / row.train:.1f}x", f"{row.eager_train:.3f}", f"{row.collisions:.2f}x",
        )  # fmt: skip
    console.print(table)
    table = Table(title="Rate of gathered rows, TB/s, and its share of the plain read rate", title_justify="left")
    names = list(rows[0].kernels)
    for column in ("shape", *names, "plain read"):
        table.add_column(column, justify="left" if column == "shape" else "right")
    for row in rows:
        cells = [f"{row.rates[name]:.1f} ({row.rates[name] / row.read_rate:.0%})" for name in names]
        table.add_row(row.shape, *cells, f"{row.read_rate:.1f}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())

"""The four reads on a GPU, at the shape of a language model's feed-forward: 24,576 rows, 8 heads of 64 tables, N_c 8, 48 -> 48.

The original author's times are from his reports (one H100, float32; they are constants here). Ours are medians over replays of a
CUDA graph of the public call, and of plain eager calls beside them. A training step is forward and all gradients: of the inputs,
the tables, and the learned scalars.

    python benchmarks/lut_reads.py [--json] [--batch 24576]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gpu_timing import eager, machine, replayed
from lutetia.lut import kernels, random_anchors
from lutetia.nn import LUT
from lutetia.nn.projected_lut import head_wiring

# The original's eval and training step in ms.
ORIGINAL = {"hard": (1.61, 21.3), "blend": (3.84, 23.6), "confidence": (2.40, 12.9), "confidence2": (4.17, 24.7)}
HEADS, HEAD_WIDTH, DETECTORS, ANCHORS = 8, 48, 64, 8


@dataclass
class Row:
    """One read: medians in ms."""

    read: str
    original_eval: float
    original_train: float
    eval: float
    train: float
    eager_eval: float
    eager_train: float
    kernels: dict[str, float]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--batch", type=int, default=24576)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("lut_reads measures CUDA kernels and this machine has no CUDA device", file=sys.stderr)
        return 1
    rows = [measure(read, options.batch) for read in ORIGINAL]
    if options.json:
        print(json.dumps({"machine": machine(), "batch": options.batch, "rows": [asdict(row) for row in rows]}, indent=1))
    else:
        show(rows, options.batch)
    return 0


def layer_of(read: str) -> LUT:
    fields, synapses = head_wiring(HEADS, HEAD_WIDTH, DETECTORS, ANCHORS)
    width, n_detectors = HEADS * HEAD_WIDTH, HEADS * DETECTORS
    anchors = random_anchors(width, n_detectors, ANCHORS, seed=0, fields=fields)
    layer = LUT(width, width, n_detectors, ANCHORS, synapses=synapses, anchors=anchors, read=read, seed=0, device="cuda")
    torch.nn.init.normal_(layer.weight)
    return layer


def measure(read: str, batch: int) -> Row:
    torch.manual_seed(0)
    layer = layer_of(read)
    x = torch.randn(batch, layer.n_inputs, device="cuda", requires_grad=True)
    grad = torch.randn(batch, layer.n_outputs, device="cuda")
    learned = [x, *layer.parameters()]

    def evaluate() -> Tensor:
        with torch.no_grad():
            return layer(x)

    def train() -> tuple[Tensor, ...]:
        return torch.autograd.grad(layer(x), learned, grad)

    taken = {} if read == "hard" else {name: replayed(call) for name, call in pieces(layer, read, x.detach(), grad).items()}
    times = (replayed(evaluate), replayed(train), eager(evaluate), eager(train))
    return Row(read, *ORIGINAL[read], *times, kernels=taken)


def pieces(layer: LUT, read: str, x: Tensor, grad: Tensor) -> dict[str, Callable[[], Any]]:
    """The kernels of a training step, one by one."""
    k, weight, anchors, synapses = kernels("triton"), layer.weight.detach(), layer.anchors, layer.synapses
    logs = [None if log is None else log.detach() for log in (layer.log_beta, layer.log_gamma, layer.log_tau)]
    two = read in ("blend", "confidence2")
    rows = k.read_detectors(x, anchors, *logs, read=read)
    da, db = k.row_gains_sparse(grad, weight, *rows[:2], synapses, for_b=two)
    return {
        "read": lambda: k.read_detectors(x, anchors, *logs, read=read),
        "fill": lambda: k.fill_outputs_weighted_sparse(weight, *rows, synapses, two=two),
        "gains": lambda: k.row_gains_sparse(grad, weight, *rows[:2], synapses, for_b=two),
        "x gradient": lambda: k.propagate_through_reads(x, anchors, *logs, da, db, read=read),
        "weight gradient": lambda: k.gather_weighted_gradients_sparse(grad, *rows, synapses, two=two),
    }


def show(rows: list[Row], batch: int) -> None:
    console = Console(width=150)
    console.print(" · ".join(f"{name} {value}" for name, value in machine().items()))
    sizes = f"{HEADS} x {DETECTORS} tables, N_c {ANCHORS}, {HEAD_WIDTH} -> {HEAD_WIDTH}"
    title = f"{batch} rows, {sizes}; ms (graph replay; eager beside it)"
    table = Table(title=title, title_justify="left")
    for column in ("read", "original eval / train", "eval", "ratio", "eager", "train", "ratio", "eager"):
        table.add_column(column, justify="left" if column == "read" else "right")
    for row in rows:
        table.add_row(
            row.read, f"{row.original_eval:g} / {row.original_train:g}",
            f"{row.eval:.3f}", f"{row.original_eval / row.eval:.1f}x", f"{row.eager_eval:.3f}",
            f"{row.train:.3f}", f"{row.original_train / row.train:.1f}x", f"{row.eager_train:.3f}",
        )  # fmt: skip
    console.print(table)
    table = Table(title="The kernels of a training step, ms", title_justify="left")
    names = list(rows[-1].kernels)
    for column in ("read", *names):
        table.add_column(column, justify="left" if column == "read" else "right")
    for row in rows[1:]:
        table.add_row(row.read, *(f"{row.kernels[name]:.3f}" for name in names))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())

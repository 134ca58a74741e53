"""LUT attention on a GPU against the original CUDA library at its own shapes, and how time and memory grow with length.

The original's times were measured on one H200 in float32 (constants here). Ours are medians over replays of a CUDA graph of the
public call, with the algorithm that `auto` chooses. A training step gives the gradients of inputs, positions and weights; in
place, it changes the weights instead and has no gradient of theirs. The floor is what the bytes of a walk over the pairs take.

    python benchmarks/lut_attention.py [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gpu_timing import machine, replayed
from lutetia.lut import Sums, lut_attention
from lutetia.lut.algorithm import choose
from lutetia.lut.connectivity.anchors import random_anchors

# batch, length, inputs = outputs, detectors, anchor pairs, positional bits: the original's eval and training step in ms
ORIGINAL = {
    (64, 32, 32, 64, 6, 4): (0.248, 2.13),
    (32, 128, 32, 64, 6, 4): (0.814, 10.3),
    (8, 512, 64, 32, 4, 4): (2.05, 33.4),
    (4, 1024, 64, 32, 4, 4): (3.90, 65.8),
    (8, 512, 256, 32, 3, 3): (7.43, 126.7),
}
LENGTHS = (1024, 2048, 4096, 8192)  # B 4, E 256, N_t 32, N_c 3, N_pe 3
MEMORY, CACHE = 4.6e9, 8.8e9  # bytes that an H200 reads in a ms: from memory, and from its second-level cache (measured)


@dataclass
class Row:
    """One shape: medians in ms."""

    shape: str
    algorithm: str
    original_eval: float
    original_train: float
    eval: float
    train: float
    in_place: float
    eval_floor: float
    train_floor: float


@dataclass
class Growth:
    """One length: the median of a training step in ms, and its peak memory."""

    length: int
    train: float
    peak_gib: float


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("lut_attention measures CUDA kernels and this machine has no CUDA device; see lut_attention_cpu", file=sys.stderr)
        return 1
    rows = [measure(shape, times) for shape, times in ORIGINAL.items()]
    growth = [grow(length) for length in LENGTHS]
    if options.json:
        found = {"rows": [asdict(row) for row in rows], "growth": [asdict(each) for each in growth]}
        print(json.dumps({"machine": machine(), **found}, indent=1))
    else:
        show(rows, growth)
    return 0


class Layer:
    """The tensors of one layer and one batch."""

    def __init__(self, batch: int, length: int, width: int, n_detectors: int, n_anchors: int, positional_dim: int) -> None:
        torch.manual_seed(0)
        n_rows = 1 << (2 * n_anchors + positional_dim)
        self.anchors = random_anchors(width, n_detectors, n_anchors, seed=0).to("cuda")
        self.x = torch.randn(batch, length, width, device="cuda", requires_grad=True)
        self.weight = (0.1 * torch.randn(n_detectors, n_rows, width, device="cuda")).requires_grad_()
        self.positions = (2 * torch.rand(length - 1, n_detectors, positional_dim, device="cuda") - 1).requires_grad_()
        self.grad = torch.randn(batch, length, width, device="cuda")
        sizes = (batch, length, width, n_detectors, n_anchors, positional_dim)
        self.algorithm = choose("auto", sizes, sparse=False, dtype=torch.float32, sums=Sums(), device="cuda")

    def __call__(self) -> Tensor:
        return lut_attention(self.x, self.weight, self.anchors, self.positions)

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        return self()

    def train(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self(), (self.x, self.positions, self.weight), self.grad)

    def train_in_place(self) -> None:
        self.x.grad = self.positions.grad = None
        y = lut_attention(self.x, self.weight, self.anchors, self.positions, gradient="in_place", external_lr=1e-6)
        y.backward(self.grad)


def measure(shape: tuple[int, ...], times: tuple[float, float]) -> Row:
    layer = Layer(*shape)
    name = "B{} S{} E{} N_t{} N_c{} N_pe{}".format(*shape)
    ours = (replayed(layer.evaluate, 5), replayed(layer.train, 5), replayed(layer.train_in_place, 5))
    return Row(name, layer.algorithm, *times, *ours, *floors(*shape))


def floors(batch: int, length: int, width: int, n_detectors: int, n_anchors: int, positional_dim: int) -> tuple[float, float]:
    """The least ms in which pairs can be walked, for eval and for training with a dense gradient, in float32.

    A pair reads a row of its table forward; backward its row and that of a flipped bit, and adds to a row of the gradient: reads
    and writes it. The rows of a table come from memory once, as the detector has its turn, and from the cache when they are read
    again. The gradient is cleared first.
    """
    pairs = batch * length * (length - 1) // 2 * n_detectors
    table = 1 << (2 * n_anchors + positional_dim)

    def moved(rows: int, times: int = 1) -> float:
        """ms to move so many rows, drawn evenly from the tables, so many times."""
        different = n_detectors * table * (1 - (1 - 1 / table) ** (rows // n_detectors))
        return times * 4 * width * max(rows / CACHE, different / MEMORY)

    clear = n_detectors * table * 4 * width / MEMORY
    return moved(pairs), moved(pairs) + moved(2 * pairs) + moved(pairs, 2) + clear


def grow(length: int) -> Growth:
    layer = Layer(4, length, 256, 32, 3, 3)
    layer.train()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    layer.train()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 2**30
    return Growth(length, replayed(layer.train, 2, 5), peak)


def show(rows: list[Row], growth: list[Growth]) -> None:
    console = Console(width=140)
    console.print(" · ".join(f"{name} {value}" for name, value in machine().items()))
    table = Table(title="One LUT attention, ms (graph replay)", title_justify="left")
    for column in ("shape", "algorithm", "original", "eval", "ratio", "train", "ratio", "in place", "floor by pairs"):
        table.add_column(column, justify="left" if column == "shape" else "right")
    for row in rows:
        table.add_row(
            row.shape, row.algorithm, f"{row.original_eval:g} / {row.original_train:g}",
            f"{row.eval:.3f}", f"{row.original_eval / row.eval:.1f}x",
            f"{row.train:.3f}", f"{row.original_train / row.train:.1f}x",
            f"{row.in_place:.3f}", f"{row.eval_floor:.3f} / {row.train_floor:.3f}",
        )  # fmt: skip
    console.print(table)
    table = Table(title="A training step by length: B 4, E 256, N_t 32, N_c 3, N_pe 3", title_justify="left")
    for column in ("length", "ms", "over the length before", "peak GiB"):
        table.add_column(column, justify="right")
    for before, each in zip([None, *growth], growth, strict=False):
        ratio = "" if before is None else f"{each.train / before.train:.2f}x"
        table.add_row(str(each.length), f"{each.train:.2f}", ratio, f"{each.peak_gib:.2f}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())

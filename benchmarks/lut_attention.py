"""LUT attention on a GPU, mode for mode: at least 1.5x the original CUDA library in graphs, 25x in training by cells.

At the original's own shapes, in float32, with the algorithm that `auto` chooses: eager calls beside its eager calls, replays of a
CUDA graph beside replays of its patched build, whose times are constants (see original.py); and `torch.compile`. A training step
gives the gradients of inputs, positions and weights; in place, it changes the weights instead and has no gradient of theirs. The
floor is what the bytes of a walk over the pairs take. Then how time and memory grow with length.

    lutetia bench lut_attention [--quick] [--json] [--save]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

import original
from gpu_timing import Runs, Steps, in_processes, replayed
from lutetia.lut import Sums, lut_attention, random_anchors
from lutetia.lut.algorithm import choose
from results import Row, finish, needs_cuda, options_of, progress, result, table

NEEDS = ("cuda",)
LENGTHS = (1024, 2048, 4096, 8192)  # B 4, E 256, N_t 32, N_c 3, N_pe 3
MEMORY, CACHE = 4.6e9, 8.8e9  # bytes that an H200 reads in a ms: from memory, and from its second-level cache (measured)
CALLS = 20  # of one graph
FLOORS = {"eval floor": "eval, graph", "train floor": "train, graph", "in place floor": "in place, graph"}
LEAST, LEAST_CELLS = 1.5, 25.0  # claimed, graph against graph: everywhere; in training where cells are counted


def main(argv: list[str] | None = None) -> int:
    """Run the shapes and the lengths; 1 when a claim is missed."""
    options = options_of(__doc__).parse_args(argv)
    if not needs_cuda("lut_attention", "lut_attention_cpu"):
        return 1
    quick = {(2, 32, 32, 64, 6, 4): original.ATTENTION[64, 32, 32, 64, 6, 4]}
    shapes = quick if options.quick else original.ATTENTION
    taken = in_processes(runs_of, list(shapes))
    times = {shape: measure(shape, row) for shape, row in zip(shapes, taken, strict=True)}
    layers = [{"shape": name_of(shape), **original.beside(times[shape], peer)} for shape, peer in shapes.items()]
    floored = [floor_row(shape, layer) for shape, layer in zip(shapes, layers, strict=True)]
    tables = [
        table("layers", {"shape": None, "algorithm": None, **original.COLUMNS, "in place, graph": "ms"}, layers),
        table("floors", {"shape": None, **dict.fromkeys((*FLOORS, *FLOORS.values()), "ms")}, [row for row in floored if row]),
        table("growth", {"length": None, "train, graph": "ms", "over the length before": "times", "peak memory": "GiB"},
              growth((64, 128) if options.quick else LENGTHS)),
    ]  # fmt: skip
    settings = {"dtype": "float32", "algorithm": "auto"}
    found = result(__doc__, "lut_attention", settings, tables, peers=original.PEERS, missed=claims(layers))
    return finish(found, options)


def name_of(shape: tuple[int, ...]) -> str:
    return "B{} S{} E{} N_t{} N_c{} N_pe{}".format(*shape)


def claims(layers: list[Row]) -> list[str]:
    """What was claimed and is not so."""
    missed = []
    for row in layers:
        for step in original.STEPS:
            ratio, least = row[f"{step}, graph/graph"], LEAST_CELLS if (step, row["algorithm"]) == ("train", "cells") else LEAST
            if ratio < least:
                missed.append(f"{row['shape']}: {step} {ratio:.2f} times as fast, graph against graph, {least} claimed")
    return missed


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
        self.learned = (self.x, self.positions, self.weight)
        sizes = (batch, length, width, n_detectors, n_anchors, positional_dim)
        self.algorithm = choose("auto", sizes, sparse=False, dtype=torch.float32, sums=Sums(), device="cuda")

    def __call__(self) -> Tensor:
        return lut_attention(self.x, self.weight, self.anchors, self.positions)

    def train(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self(), self.learned, self.grad)

    def train_in_place(self) -> None:
        self.x.grad = self.positions.grad = None
        y = lut_attention(self.x, self.weight, self.anchors, self.positions, gradient="in_place", external_lr=1e-6)
        y.backward(self.grad)


def runs_of(shape: tuple[int, ...], modes: Sequence[str]) -> tuple[Runs, int]:
    """The steps of one shape in these modes."""
    progress(f"{name_of(shape)}, {' and '.join(modes)}")
    layer = Layer(*shape)
    return Steps(layer.__call__, layer.learned, layer.grad, (layer.anchors,), CALLS).runs(modes), CALLS


def measure(shape: tuple[int, ...], times: dict[str, float]) -> Row:
    """The times of one shape, that of a step in place with them."""
    layer = Layer(*shape)
    return {"algorithm": layer.algorithm, **times, "in place, graph": replayed(layer.train_in_place, CALLS)}


def floor_row(shape: tuple[int, ...], layer: Row) -> Row | None:
    """What a walk over the pairs takes at least, beside what it takes; None where no pairs are walked."""
    if layer["algorithm"] != "pairs":
        return None
    taken = {mode: layer[mode] for mode in FLOORS.values()}
    return {"shape": layer["shape"], **dict(zip(FLOORS, floors(*shape), strict=True)), **taken}


def floors(batch: int, length: int, width: int, n_detectors: int, n_anchors: int, positional_dim: int) -> tuple[float, ...]:
    """The least ms in which pairs can be walked, in float32: for eval, for training with a dense gradient, and in place.

    A pair reads a row of its table forward; backward its row and that of a flipped bit, and adds to a row of the gradient: reads
    and writes it. The rows of a table come from memory once, as the detector has its turn, and from the cache when they are read
    again. A dense gradient is written whole; in place, the rows that were read are read and written.
    """
    pairs = batch * length * (length - 1) // 2 * n_detectors
    table = 1 << (2 * n_anchors + positional_dim)

    def moved(rows: int, times: int = 1) -> float:
        """ms to move so many rows, drawn evenly from the tables, so many times."""
        different = n_detectors * table * (1 - (1 - 1 / table) ** (rows // n_detectors))
        return times * 4 * width * max(rows / CACHE, different / MEMORY)

    whole, walked = n_detectors * table * 4 * width / MEMORY, moved(pairs) + moved(2 * pairs)
    return moved(pairs), walked + whole, walked + moved(pairs, 2)


def growth(lengths: tuple[int, ...]) -> list[Row]:
    """A training step by length: its time, over the one before, and its peak memory."""
    rows: list[Row] = []
    for length in lengths:
        progress(f"length {length}")
        layer = Layer(4, length, 256, 32, 3, 3)
        layer.train()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        layer.train()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() / 2**30
        taken = replayed(layer.train, 2, 5)
        before = taken / rows[-1]["train, graph"] if rows else None
        rows.append({"length": length, "train, graph": taken, "over the length before": before, "peak memory": peak})
    return rows


if __name__ == "__main__":
    sys.exit(main())

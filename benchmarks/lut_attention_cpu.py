"""A training step of LUT attention on the CPU is at least 20 times as fast as on the reference backend.

A step is forward, and the gradients of the inputs, the positions and the weights. Ratios of medians taken in one run, the
contestants taking turns: the reference (eager torch, distance by distance) and the compiled kernels, by pairs and by cells.
Claimed for the first shape; the others show where cells overtake pairs (more positions than cells, wide outputs) and where not.

    lutetia bench lut_attention_cpu [--quick] [--json] [--save] [-- --repeats N --only WORD]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from lutetia.lut import kernels, random_anchors
from results import Row, finish, options_of, peer, progress, result, table

cpu, reference = kernels("cpu"), kernels("reference")

SHAPES = {  # batch, length, inputs and outputs, detectors, anchor pairs, positional bits
    "claimed": (8, 128, 64, 16, 4, 3),
    "short": (32, 32, 32, 16, 4, 3),
    "long": (2, 512, 64, 16, 4, 4),
    "long, one sequence": (1, 1024, 64, 8, 3, 2),
    "wide": (2, 512, 256, 8, 3, 3),
    "many cells": (8, 64, 32, 16, 6, 4),
}
QUICK = {"tiny": (1, 6, 8, 2, 2, 1)}
CLAIM = 20.0
PEER = "reference"
RATIO = "reference / step"
PIECES = ("detect", "y", "dx, dpositions", "dW")
Times = dict[str, float]  # milliseconds of each piece


def contestants(sizes: tuple[int, ...]) -> dict[str, Callable[[], Times]]:
    """Who takes a step on the same tensors; each returns what its pieces took."""
    batch, length, width, n_detectors, n_anchors, positional_dim = sizes
    x, grad = torch.randn(batch, length, width), torch.randn(batch, length, width)
    positions = torch.rand(length - 1, n_detectors, positional_dim) * 2 - 1
    n_rows = 1 << (2 * n_anchors + positional_dim)
    weight, anchors = torch.randn(n_detectors, n_rows, width), random_anchors(width, n_detectors, n_anchors, seed=0)

    def step(one: Any, sequence: Any, fill: str, propagate: str, gather: str) -> Times:
        at = [time.perf_counter()]
        found, pe = one.check_detectors(x, anchors), sequence.check_positions(positions)
        at.append(time.perf_counter())
        getattr(sequence, fill)(weight, found[0], pe[0], positional_dim)
        at.append(time.perf_counter())
        getattr(sequence, propagate)(grad, weight, *found, *pe, anchors, width, positional_dim)
        at.append(time.perf_counter())
        getattr(sequence, gather)(grad, found[0], pe[0], positional_dim, n_rows)
        at.append(time.perf_counter())
        return {name: 1e3 * (end - begin) for name, begin, end in zip(PIECES, at, at[1:], strict=False)}

    pairs = ("fill_outputs_seq_fc", "propagate_through_detectors_seq_fc", "gather_weight_gradients_seq_fc")
    cells = ("fill_outputs_cells_fc", "propagate_through_cells_fc", "gather_weight_gradients_cells_fc")
    return {
        PEER: lambda: step(reference, reference, *pairs),
        "cpu, pairs": lambda: step(cpu, cpu, *pairs),
        "cpu, cells": lambda: step(cpu, cpu, *cells),
    }


def measure(steps: dict[str, Callable[[], Times]], repeats: int) -> dict[str, Times]:
    """Medians of all pieces; the reference, seconds a step, has a third of the turns."""
    taken: dict[str, list[Times]] = {name: [] for name in steps}
    for name, step in steps.items():
        if name != PEER:
            step()  # compiles
    for turn in range(repeats):
        for name, step in steps.items():
            if name != PEER or turn % 3 == 0:
                taken[name].append(step())
    return {name: {piece: statistics.median(t[piece] for t in times) for piece in PIECES} for name, times in taken.items()}


def rows_of_shape(shape: str, sizes: tuple[int, ...], repeats: int) -> list[Row]:
    """A row for each contestant: its pieces, the whole step, and how many times as long the reference takes."""
    taken = measure(contestants(sizes), repeats)
    total = {name: sum(pieces.values()) for name, pieces in taken.items()}
    label = "B{} S{} E{} N_t{} N_c{} N_pe{}".format(*sizes)
    return [
        {"shape": shape, "sizes": label, "backend": name, **pieces, "step": total[name]}
        | ({} if name == PEER else {RATIO: total[PEER] / total[name]})
        for name, pieces in taken.items()
    ]


def main(argv: list[str] | None = None) -> int:
    """Run the shapes; 1 when the claimed one misses its ratio."""
    parser = options_of(__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="steps per shape (default 9)")
    parser.add_argument("--only", default="", help="run the shapes whose name contains this")
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    repeats = 1 if options.quick else options.repeats
    rows = []
    for shape, sizes in (QUICK if options.quick else SHAPES).items():
        if options.only in shape:
            progress(shape)
            rows += rows_of_shape(shape, sizes, repeats)
    missed = [
        f"{row['backend']}: {row[RATIO]:.1f} times as fast as the reference, {CLAIM} claimed"
        for row in rows
        if row["shape"] == "claimed" and row.get(RATIO, CLAIM) < CLAIM
    ]
    columns = {"shape": None, "sizes": None, "backend": None, **dict.fromkeys((*PIECES, "step"), "ms"), RATIO: "x"}
    peers = [peer(PEER, mode="Lutetia's plain definition in eager torch")]
    found = result(
        __doc__, "lut_attention_cpu", {"repeats": repeats}, [table("steps", columns, rows)], peers=peers, missed=missed
    )
    return finish(found, options)


if __name__ == "__main__":
    sys.exit(main())

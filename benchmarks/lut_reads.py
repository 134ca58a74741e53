"""The four reads on a GPU at the shape of a language model's feed-forward: each at least 4x the original author's times.

24,576 rows, 8 heads of 64 tables, N_c 8, 48 -> 48. The author's times are published (one H100, float32, mode not stated)
and are constants here, so part of each ratio is the machine. Ours are eager calls, `torch.compile` and replays of a CUDA graph.
A training step is forward and all gradients: of the inputs, the tables, and the learned scalars.

    lutetia bench lut_reads [--quick] [--json] [--save] [-- --batch 24576]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gpu_timing import Runs, Steps, in_processes, replayed
from lutetia.lut import kernels, random_anchors
from lutetia.nn import LUT
from lutetia.nn.projected_lut import head_wiring
from original import MODES, STEPS
from results import Row, finish, needs_cuda, options_of, peer, progress, result, table

NEEDS = ("cuda",)
# The original's eval and training step in ms.
ORIGINAL = {"hard": (1.61, 21.3), "blend": (3.84, 23.6), "confidence": (2.40, 12.9), "confidence2": (4.17, 24.7)}
HEADS, HEAD_WIDTH, DETECTORS, ANCHORS = 8, 48, 64, 8
CLAIM = 4.0
KERNELS = ("read detectors", "fill", "gains", "x gradient", "weight gradient")


def main(argv: list[str] | None = None) -> int:
    """Run the reads; 1 when a graph replay of one is slower than claimed."""
    parser = options_of(__doc__)
    parser.add_argument("--batch", type=int, default=24576, help="rows (default 24576)")
    options = parser.parse_args(argv)
    if not needs_cuda("lut_reads"):
        return 1
    batch = 8 if options.quick else options.batch
    reads, pieces_of = [], []
    for read, times in zip(ORIGINAL, in_processes(runs_of, [(read, batch) for read in ORIGINAL]), strict=True):
        progress(f"kernels of {read}")
        row, taken = measure(read, batch, times)
        reads.append(row)
        pieces_of += [{"read": read, **taken}] if taken else []
    columns = {"read": None, **{f"{step}, {mode}": "ms" for step in STEPS for mode in (*MODES, "empty graph")}}
    columns |= {f"original {step}": "ms" for step in STEPS} | dict.fromkeys(STEPS, "x")
    tables = [table("reads", columns, reads), table("kernels", {"read": None, **dict.fromkeys(KERNELS, "ms")}, pieces_of)]
    missed = [f"{row['read']}, {step}: {row[step]:.2f}, {CLAIM} claimed" for row in reads for step in STEPS if row[step] < CLAIM]
    settings = {"batch": batch, "heads": HEADS, "tables per head": DETECTORS, "anchors": ANCHORS, "width per head": HEAD_WIDTH}
    peers = [peer("original", mode="mode not stated", constant="its author's report, one H100, float32")]
    found = result(__doc__, "lut_reads", {**settings, "dtype": "float32"}, tables, peers=peers, missed=missed)
    return finish(found, options)


def layer_of(read: str) -> LUT:
    fields, synapses = head_wiring(HEADS, HEAD_WIDTH, DETECTORS, ANCHORS)
    width, n_detectors = HEADS * HEAD_WIDTH, HEADS * DETECTORS
    anchors = random_anchors(width, n_detectors, ANCHORS, seed=0, fields=fields)
    layer = LUT(width, width, n_detectors, ANCHORS, synapses=synapses, anchors=anchors, read=read, seed=0, device="cuda")
    torch.nn.init.normal_(layer.weight)
    return layer


def batch_of(read: str, batch: int) -> tuple[LUT, Tensor, Tensor]:
    """A layer, and x and the gradient of y for it."""
    torch.manual_seed(0)
    layer = layer_of(read)
    x = torch.randn(batch, layer.n_inputs, device="cuda", requires_grad=True)
    return layer, x, torch.randn(batch, layer.n_outputs, device="cuda")


def runs_of(case: tuple[str, int], modes: Sequence[str]) -> tuple[Runs, int]:
    """The steps of one read in these modes."""
    progress(f"{case[0]}, {' and '.join(modes)}")
    layer, x, grad = batch_of(*case)
    steps = Steps(lambda: layer(x), [x, *layer.parameters()], grad, list(layer.buffers()))
    return steps.runs(modes), steps.calls


def measure(read: str, batch: int, times: dict[str, float]) -> tuple[Row, dict[str, float]]:
    """The times of one read beside the original's, and of its kernels."""
    layer, x, grad = batch_of(read, batch)
    taken = {} if read == "hard" else {name: replayed(call) for name, call in pieces(layer, read, x.detach(), grad).items()}
    row: Row = {"read": read, **times}
    for step, theirs in zip(STEPS, ORIGINAL[read], strict=True):
        row |= {f"original {step}": theirs, step: theirs / times[f"{step}, graph"]}
    return row, taken


def pieces(layer: LUT, read: str, x: Tensor, grad: Tensor) -> dict[str, Callable[[], Any]]:
    """The kernels of a training step, one by one."""
    k, weight, anchors, synapses = kernels("triton"), layer.weight.detach(), layer.anchors, layer.synapses
    logs = [None if log is None else log.detach() for log in (layer.log_beta, layer.log_gamma, layer.log_tau)]
    two = read in ("blend", "confidence2")
    rows = k.read_detectors(x, anchors, *logs, read=read)
    da, db = k.row_gains_sparse(grad, weight, *rows[:2], synapses, for_b=two)
    return {
        "read detectors": lambda: k.read_detectors(x, anchors, *logs, read=read),
        "fill": lambda: k.fill_outputs_weighted_sparse(weight, *rows, synapses, two=two),
        "gains": lambda: k.row_gains_sparse(grad, weight, *rows[:2], synapses, for_b=two),
        "x gradient": lambda: k.propagate_through_reads(x, anchors, *logs, da, db, read=read),
        "weight gradient": lambda: k.gather_weighted_gradients_sparse(grad, *rows, synapses, two=two),
    }


if __name__ == "__main__":
    sys.exit(main())

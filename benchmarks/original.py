"""The original CUDA library's times at its own shapes, in float32 on one H200: constants, for it is not a dependency.

As shipped it synchronises after every kernel (its profiling switch is on) and cannot be captured in a CUDA graph: those are the
eager times. The graph times are those of a patched build: the switch off, its three streams made one, the waits removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from results import Row


class Original(NamedTuple):
    """Milliseconds: a forward pass in eval, and a training step."""

    eval_eager: float
    train_eager: float
    eval_graph: float
    train_graph: float


# batch, inputs, outputs, detectors, anchor pairs
STEP = {
    (4096, 32, 32, 16, 6): Original(0.086, 0.599, 0.0138, 0.0699),
    (4096, 64, 64, 64, 10): Original(0.104, 0.721, 0.0300, 0.289),
    (4096, 256, 256, 128, 8): Original(0.267, 2.77, 0.187, 2.14),
    (32768, 256, 256, 128, 8): Original(1.547, 17.6, 1.396, 16.6),
    (4096, 256, 1024, 256, 8): Original(2.18, 25.2, 1.94, 24.2),
}
# batch, length, inputs = outputs, detectors, anchor pairs, positional bits
ATTENTION = {
    (64, 32, 32, 64, 6, 4): Original(0.212, 2.37, 0.114, 1.54),
    (32, 128, 32, 64, 6, 4): Original(0.905, 10.4, 0.645, 9.52),
    (8, 512, 64, 32, 4, 4): Original(2.20, 33.5, 1.86, 32.0),
    (4, 1024, 64, 32, 4, 4): Original(3.79, 65.7, 3.66, 64.1),
    (8, 512, 256, 32, 3, 3): Original(7.54, 127.0, 7.15, 125.0),
}
MEASURED = "one H200, float32, measured beside Lutetia 8d54a75 with equal results; not in this run"
PEERS = [
    {"name": "original, eager", "version": "1.0", "mode": "eager, as shipped: waits after every kernel", "constant": MEASURED},
    {"name": "original, graph", "version": "1.0", "mode": "CUDA graph of a patched build", "constant": MEASURED},
]
STEPS, MODES = ("eval", "train"), ("eager", "compiled", "graph")
COLUMNS: dict[str, str | None] = {
    **{f"{step}, {mode}": "ms" for step in STEPS for mode in (*MODES, "empty graph")},
    **{f"original {step}, {mode}": "ms" for step in STEPS for mode in ("eager", "graph")},
    **{f"{step}, {mode}/{mode}": "x" for step in STEPS for mode in ("eager", "graph")},
}


def beside(ours: Mapping[str, Any], original: Original | None) -> Row:
    """Our times by "step, mode", the original's in the same modes, and how many times as fast we are, mode for mode."""
    row: Row = dict(ours)
    if original is None:
        return row
    for step in STEPS:
        for mode in ("eager", "graph"):
            theirs = float(getattr(original, f"{step}_{mode}"))
            row[f"original {step}, {mode}"] = theirs
            row[f"{step}, {mode}/{mode}"] = ratio(theirs, ours[f"{step}, {mode}"])
    return row


def ratio(theirs: float, ours: float | list[float]) -> float | list[float]:
    """How many times as fast we are; for several runs of ours, each."""
    return [theirs / each for each in ours] if isinstance(ours, list) else theirs / ours

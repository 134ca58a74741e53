"""The two inner loops of the interpreter, compiled: looking up, and summing up. All arrays are int64."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia._shared import compiled

jit: Any = compiled.jit(nogil=True)


@jit
def look_up(codes: np.ndarray, plan: tuple[np.ndarray, ...], out: np.ndarray) -> None:
    """Every lookup of every row: codes [n, channels] -> out [n, out_channels].

    Lookup u reads bits start[u] to start[u + 1] of (channel, bit), the first one most significant, and finds its row of
    `contents` at first[u] + address · n_outputs.
    """
    channel, bit, start, flip, first, outputs, out_start, contents = plan
    for row in range(codes.shape[0]):
        for u in range(flip.shape[0]):
            address = 0
            for j in range(start[u], start[u + 1]):
                address = (address << 1) | ((codes[row, channel[j]] >> bit[j]) & 1)
            n_outputs = out_start[u + 1] - out_start[u]
            base = first[u] + (address ^ flip[u]) * n_outputs
            for o in range(n_outputs):
                out[row, outputs[out_start[u] + o]] = contents[base + o]


@jit
def sum_up(
    x: np.ndarray, start: np.ndarray, index: np.ndarray, coefficient: np.ndarray, bias: np.ndarray, out: np.ndarray
) -> None:
    """out[:, o] = bias[o] + Σ_j coefficient[j] · x[:, index[j]] for j from start[o] to start[o + 1]: x [n, channels]."""
    for row in range(x.shape[0]):
        for o in range(bias.shape[0]):
            total = bias[o]
            for j in range(start[o], start[o + 1]):
                total += coefficient[j] * x[row, index[j]]
            out[row, o] = total

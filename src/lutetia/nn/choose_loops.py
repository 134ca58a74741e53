"""The compiled loops of `lutetia.nn.choose`."""

from __future__ import annotations

import numpy as np

from lutetia._shared.compiled import jit

SMOOTHING = 1.0  # samples of the mean that each cell is thought to hold besides its own


@jit(nogil=True, fastmath=True)
def gains(x, constants, candidates, rows, cells, target, weight, n_cells, found, begin, end):  # type: ignore[no-untyped-def]
    """How much of the target candidates explain: Σ over cells of (Σ target)² / (Σ weight + smoothing)."""
    k, m = target.shape[1], rows.shape[0]
    sums = np.empty((2 * n_cells, k))
    held = np.empty(2 * n_cells)
    bits = np.empty(m, np.uint8)
    for number in range(begin, end):
        compare(x, constants, candidates[number], rows, bits)
        sums[:] = 0
        held[:] = 0
        for at in range(m):
            cell = 2 * cells[at] + bits[at]
            held[cell] += weight[at]
            for d in range(k):
                sums[cell, d] += target[at, d]
        gain = 0.0
        for cell in range(2 * n_cells):
            for d in range(k):
                gain += sums[cell, d] * sums[cell, d] / (held[cell] + SMOOTHING)
        found[number] = gain


@jit(nogil=True)
def split(x, constants, anchor, rows, cells):  # type: ignore[no-untyped-def]
    """Each cell in two, by a comparison."""
    bits = np.empty(len(rows), np.uint8)
    compare(x, constants, anchor, rows, bits)
    for at in range(len(rows)):
        cells[at] = 2 * cells[at] + bits[at]


@jit(nogil=True)
def compare(x, constants, anchor, rows, bits):  # type: ignore[no-untyped-def]
    """The answers of one anchor for some columns of x."""
    n_inputs = x.shape[0]
    left = x[anchor[0]]
    if anchor[1] >= n_inputs:
        constant = constants[anchor[1] - n_inputs]
        for at in range(len(rows)):
            bits[at] = left[rows[at]] > constant
    else:
        right = x[anchor[1]]
        for at in range(len(rows)):
            bits[at] = left[rows[at]] > right[rows[at]]

"""The compiled loops of `lutetia.nn.choose`: samples lie in the order of their cells, so that sums over a cell are vectors."""

from __future__ import annotations

import numpy as np

from lutetia._shared.compiled import jit

SMOOTHING = 1.0  # samples of the mean that each cell is thought to hold besides its own


@jit(nogil=True)
def gather(x, inputs, rows, own):  # type: ignore[no-untyped-def]
    """Some inputs of some samples: x [n_inputs, n] -> own [len(inputs), len(rows)]."""
    for place in range(len(inputs)):
        values, mine = x[inputs[place]], own[place]
        for at in range(len(rows)):
            mine[at] = values[rows[at]]


@jit(nogil=True, fastmath=True)
def gains(x, constants, candidates, starts, target, weight, found, begin, end):  # type: ignore[no-untyped-def]
    """How much of the target [k, m] candidates explain: Σ over cells of (Σ target)² / (Σ weight + smoothing).

    x [n_inputs, m]; cell c holds the samples from starts[c] to starts[c + 1].
    """
    (k, m), n_cells = target.shape, len(starts) - 1
    sums, held = np.empty((k, n_cells)), np.empty(n_cells)
    bits = np.ones(m, np.uint8)
    for cell in range(n_cells):
        one = slice(starts[cell], starts[cell + 1])
        held[cell] = _sum(weight[one], bits[one])
        for d in range(k):
            sums[d, cell] = _sum(target[d, one], bits[one])
    for number in range(begin, end):
        compare(x, constants, candidates[number], bits)
        gain = 0.0
        for cell in range(n_cells):
            one = slice(starts[cell], starts[cell + 1])
            above = _sum(weight[one], bits[one])
            for d in range(k):
                own = _sum(target[d, one], bits[one])
                others, below = sums[d, cell] - own, held[cell] - above
                gain += own * own / (above + SMOOTHING) + others * others / (below + SMOOTHING)
        found[number] = gain


@jit(nogil=True, fastmath=True)
def _sum(values, bits):  # type: ignore[no-untyped-def]
    """Σ of the values whose bit is set."""
    total = 0.0
    for at in range(len(values)):
        total += values[at] * bits[at]
    return total


@jit(nogil=True)
def split(x, constants, anchor, starts, order, halves):  # type: ignore[no-untyped-def]
    """Each cell in two, by a comparison: the new order of the samples [m], and where the new cells begin [2 · n_cells + 1]."""
    bits = np.empty(x.shape[1], np.uint8)
    compare(x, constants, anchor, bits)
    place = 0
    for cell in range(len(starts) - 1):
        for bit in range(2):
            halves[2 * cell + bit] = place
            for at in range(starts[cell], starts[cell + 1]):
                if bits[at] == bit:
                    order[place] = at
                    place += 1
    halves[-1] = place


@jit(nogil=True)
def compare(x, constants, anchor, bits):  # type: ignore[no-untyped-def]
    """The answers of one anchor for all samples of x [n_inputs, m]."""
    n_inputs = x.shape[0]
    left = x[anchor[0]]
    if anchor[1] >= n_inputs:
        constant = constants[anchor[1] - n_inputs]
        for at in range(len(bits)):
            bits[at] = left[at] > constant
    else:
        right = x[anchor[1]]
        for at in range(len(bits)):
            bits[at] = left[at] > right[at]

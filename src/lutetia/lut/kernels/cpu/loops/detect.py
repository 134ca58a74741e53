"""The compiled loops of the `cpu` backend for detectors, and for the indices they give."""

from __future__ import annotations

import numpy as np

from lutetia._shared.loops import by_none, entry, jit, jit_inline, kernel
from lutetia._shared.vectors import largest as largest
from lutetia._shared.vectors import mark as mark
from lutetia._shared.vectors import transpose_in

LANES = 64  # batch rows compared at once
PADDED = LANES + 16  # a power of two would put a whole column of lanes in the same few cache sets
FEW = 6  # rows below which comparing one by one is faster


@jit_inline
def inputs_outside(anchors, n_inputs):
    """Whether anchors [N_t, N_c, 2] name an input that is not there: several compared at once, in every call of a small layer."""
    last = np.uint32(0)
    for anchor in anchors.flat:
        last = max(last, anchor)
    return last >= n_inputs


@entry
def anchors_outside(anchors, end, second_end):
    """Whether a pair of anchors [N_t, N_c, 2] names what is not there: from `end` on, the second of it from `second_end` on."""
    if end == second_end:
        return inputs_outside(anchors, end)
    outside = False
    for t in range(anchors.shape[0]):
        for r in range(anchors.shape[1]):
            outside |= (anchors[t, r, 0] >= end) | (anchors[t, r, 1] >= second_end)
    return outside


# A second anchor b is an input, or a constant where it is at least I. `constant_of` gives None without thresholds, else whether b
# is a constant, and its value. `input_of` is an input that can be read in either case, and `constant_or` chooses between the two:
# no branch inside a loop.
constant_of = by_none(
    lambda thresholds, b, n_inputs: None,
    lambda thresholds, b, n_inputs: (b >= n_inputs, thresholds[b - n_inputs] if b >= n_inputs else thresholds.dtype.type(0)),
)
input_of = by_none(lambda constant, b: b, lambda constant, b: np.uint32(0) if constant[0] else b)
constant_or = by_none(lambda constant, value: value, lambda constant, value: constant[1] if constant[0] else value)


@kernel
def detect(inputs, indices, closest, begin, end):
    """inputs -> indices [B, N_t], for rows begin to end; closest: None, or min_delta and its index.

    `inputs` are x [B, I], anchors [N_t, N_c, 2], and thresholds [n] or None.
    """
    for first in range(begin, end, LANES):
        n = min(LANES, end - first)
        if n < FEW:
            for row in range(first, first + n):
                detect_row(inputs, indices, closest, row)
        else:
            detect_lanes(inputs, indices, closest, first, n)


@jit
def detect_row(inputs, indices, closest, row):
    anchors = inputs[1]
    for t in range(anchors.shape[0]):
        bits = np.uint32(0)
        margin, which = margin_in_row(inputs, row, t, np.int64(0)), np.uint32(0)
        for r in range(anchors.shape[1]):
            u = margin_in_row(inputs, row, t, r)
            bits |= np.uint32(u > 0) << np.uint32(r)  # no branch: half of them would be guessed wrong
            if closest is not None:
                closer = abs(u) < abs(margin)
                margin, which = (u if closer else margin), (np.uint32(r) if closer else which)
        indices[row, t] = bits
        if closest is not None:
            closest[0][row, t], closest[1][row, t] = margin, which


@jit_inline
def margin_in_row(inputs, row, t, r):
    """u of comparison r of detector t in a row."""
    x, anchors, thresholds = inputs
    b = anchors[t, r, 1]
    constant = constant_of(thresholds, b, x.shape[1])
    return x[row, anchors[t, r, 0]] - constant_or(constant, x[row, input_of(constant, b)])


@jit
def detect_lanes(inputs, indices, closest, first, n):
    """The same for n rows at once: with x transposed, one instruction compares many rows (8 times as fast)."""
    x, anchors, thresholds = inputs
    n_detectors, n_anchors, _ = anchors.shape
    lanes = np.zeros((x.shape[1], PADDED), x.dtype)
    bits = np.empty((n_detectors, PADDED), np.uint32)
    transpose_in(lanes, x, first, n)
    if closest is not None:
        margin, which = np.empty((n_detectors, PADDED), x.dtype), np.empty((n_detectors, PADDED), np.uint32)
    for t in range(n_detectors):
        a, b = anchors[t, 0, 0], anchors[t, 0, 1]
        constant = constant_of(thresholds, b, x.shape[1])
        b = input_of(constant, b)
        for j in range(LANES):
            bits[t, j] = 0
            if closest is not None:
                margin[t, j], which[t, j] = lanes[a, j] - constant_or(constant, lanes[b, j]), 0
        for r in range(n_anchors):
            a, b, bit = anchors[t, r, 0], anchors[t, r, 1], np.uint32(1) << np.uint32(r)
            constant = constant_of(thresholds, b, x.shape[1])
            b = input_of(constant, b)
            for j in range(LANES):
                u = lanes[a, j] - constant_or(constant, lanes[b, j])
                bits[t, j] |= bit if u > 0 else np.uint32(0)
                if closest is not None:
                    closer = abs(u) < abs(margin[t, j])
                    margin[t, j] = u if closer else margin[t, j]
                    which[t, j] = np.uint32(r) if closer else which[t, j]
    for j in range(n):
        for t in range(n_detectors):
            indices[first + j, t] = bits[t, j]
            if closest is not None:
                closest[0][first + j, t], closest[1][first + j, t] = margin[t, j], which[t, j]

"""The compiled loop of `lutetia.models.encoding`: ranks of numbers among edges."""

from __future__ import annotations

import numpy as np

from lutetia._shared.loops import U, kernel

BLOCK = 256  # samples that take each step of the search together, so that the compiler can look up several at once


@kernel
def rank(x, inputs, codes, begin, end):  # type: ignore[no-untyped-def]
    """The codes of a range of samples: x float64 [n, columns] -> codes uint8 [n_encoded, n], for the inputs `numbers` alone.

    `inputs` are numbers and source, int64; edges float64 [n_encoded, n_edges]; and counts int32, how many of each row are edges.
    A code is one more than the edges below the value, and 0 for NaN.
    """
    numbers, source, edges, counts = inputs
    values, below = np.empty(BLOCK), np.empty(BLOCK, np.int32)
    for first in range(begin, end, BLOCK):
        last = min(first + BLOCK, end)
        for number in numbers:
            own, column = edges[number], source[number]
            for at in range(first, last):
                values[at - first] = x[at, column]
                below[at - first] = 0
            left = counts[number]
            while left > 0:  # the same steps for all: how many edges are left depends on none of the values
                half = np.int32((left + 1) >> 1)
                for at in range(U(last - first)):
                    below[at] += half * np.int32(own[U(below[at] + half - 1)] < values[at])
                left -= half
            for at in range(first, last):
                value = values[at - first]
                codes[number, at] = 0 if value != value else below[at - first] + 1

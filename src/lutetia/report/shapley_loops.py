"""The compiled loop of Shapley values: the groups of the columns that each table compares."""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import numpy as np

from lutetia._shared.loops import kernel


@kernel
def share_tables(rows, tables, factors, into, begin, end):
    """What each column adds in a range of tables, and the mean of the rows that the background reads.

    rows     codes uint8 [F] of the explained row and [m, F] of the others, constants among them
    tables   anchors int64 [T, A, 2]; where each side of them stands among the columns of its table, int64 [T, A, 2]; how many
             columns these are, int64 [T]; what each row of a table adds, float64 [T, 2**A]
    factors  float64 [most + 1, most]
    into     shares float64 [T, most], and the mean float64 [T]
    """
    codes, others = rows
    anchors, places, n_compared, gains = tables
    shares, average = into
    n_anchors, most = anchors.shape[1], factors.shape[1]
    scores = np.empty(1 << most)
    sizes = np.zeros(1 << most, np.int64)
    for group in range(1, 1 << most):
        sizes[group] = sizes[group >> 1] + (group & 1)
    answers = np.empty((n_anchors, 4), np.int64)  # with neither side of the explained row, the right one, the left one, both
    for table in range(begin, end):
        n = n_compared[table]
        scores[: 1 << n] = 0.0
        for row in range(len(others)):
            for place in range(n_anchors):
                left, right = anchors[table, place]
                for which in range(4):
                    one = codes[left] if which & 2 else others[row, left]
                    other = codes[right] if which & 1 else others[row, right]
                    answers[place, which] = (1 << place) if one > other else 0
            for group in range(1 << n):
                address = 0
                for place in range(n_anchors):
                    left, right = places[table, place]
                    address |= answers[place, (group >> left & 1) * 2 + (group >> right & 1)]
                scores[group] += gains[table, address]
        for group in range(1 << n):
            score = scores[group] / len(others)
            for column in range(n):
                if group >> column & 1:
                    shares[table, column] += factors[n, sizes[group] - 1] * score
                else:
                    shares[table, column] -= factors[n, sizes[group]] * score
        average[table] = scores[0] / len(others)

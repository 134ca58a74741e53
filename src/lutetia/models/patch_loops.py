"""The compiled loops of `lutetia.models.patches`: one detector at a time is asked at every position of an image."""

from __future__ import annotations

import numpy as np

from lutetia._shared.compiled import jit

GRID = 4  # an image is cut into 4 × 4 cells; quarters and the whole image are made of them


@jit(nogil=True)
def count(levels, detectors, starts, found, begin, end):  # type: ignore[no-untyped-def]
    """Counts of a range of images: levels int16 [n, C, H, W], found int32 [n, n_counts].

    `detectors` are pairs, plane, threshold and counted, int64; from starts[d] to starts[d + 1] are the counts of detector d.
    """
    pairs, plane, threshold, counted = detectors
    _, _, height, width = levels.shape
    n_addresses = 1 << pairs.shape[1]
    held = np.empty((GRID * GRID, n_addresses), np.int32)
    column = np.empty(width, np.int64)
    address = np.empty(width, np.uint8)
    apart = np.empty(width, np.int16)
    for sample in range(begin, end):
        for detector in range(len(pairs)):
            if starts[detector] == starts[detector + 1]:
                continue
            own = pairs[detector]
            down, right = height - max(own[:, 0].max(), own[:, 2].max()), width - max(own[:, 1].max(), own[:, 3].max())
            for at in range(right):
                column[at] = at * GRID // right
            held[:] = 0
            for row in range(down):
                look(levels[sample], own, plane[detector], threshold[detector], row, apart[:right], address[:right])
                cells = held[row * GRID // down * GRID :]
                for at in range(right):
                    cells[column[at], address[at]] += 1
            for number in range(starts[detector], starts[detector + 1]):
                first, last, left, end_of = bounds(counted[number, 2])
                total = 0
                for r in range(first, last):
                    for c in range(left, end_of):
                        total += held[r * GRID + c, counted[number, 1]]
                found[sample, number] = total


@jit(nogil=True)
def look(levels, pairs, plane, threshold, row, apart, address):  # type: ignore[no-untyped-def]
    """The addresses uint8 [positions] of one detector in a row: levels int16 [C, H, W], pairs [K, 4]."""
    n = len(address)
    address[:] = 0
    for place in range(len(pairs)):
        above, left, below, right = pairs[place]
        bit = np.uint8(1 << place)
        if plane >= 0:
            one, other = levels[plane, row + above, left : left + n], levels[plane, row + below, right : right + n]
            for at in range(n):
                apart[at] = one[at] - other[at]
        else:
            apart[:] = 0
            for channel in range(len(levels)):
                one, other = levels[channel, row + above, left : left + n], levels[channel, row + below, right : right + n]
                for at in range(n):
                    apart[at] += abs(one[at] - other[at])
        for at in range(n):
            address[at] |= bit if apart[at] > threshold else np.uint8(0)


@jit(nogil=True)
def bounds(region):  # type: ignore[no-untyped-def]
    """The cells of a region: rows from, to, columns from, to. 0 is the whole image, 1 to 4 its quarters, then the cells."""
    if region == 0:
        return 0, GRID, 0, GRID
    if region <= 4:
        half = GRID // 2
        row, column = (region - 1) // 2 * half, (region - 1) % 2 * half
        return row, row + half, column, column + half
    row, column = (region - 5) // GRID, (region - 5) % GRID
    return row, row + 1, column, column + 1

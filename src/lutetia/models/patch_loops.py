"""The compiled loops of `lutetia.models.patches`: one detector at a time is asked at every position of an image."""

from __future__ import annotations

import numpy as np

from lutetia._shared.compiled import jit
from lutetia._shared.loops import U

GRID = 4  # an image is cut into 4 × 4 cells; quarters and the whole image are made of them
BLOCK = 1 << 12  # positions that stay in the cache


@jit(nogil=True)
def count(levels, detectors, starts, found, begin, end):  # type: ignore[no-untyped-def]
    """Counts of a range of images: levels int16 [n, C, H, W], found int32 [n, n_counts].

    `detectors` are pairs, plane, threshold and counted, int64; from starts[d] to starts[d + 1] are the counts of detector d.
    """
    pairs, plane, threshold, counted = detectors
    _, channels, height, width = levels.shape
    n_addresses = 1 << pairs.shape[1]
    held = np.empty((GRID * GRID, n_addresses), np.int32)
    column = np.empty(width, np.int64)
    together = max(1, BLOCK // width)  # rows
    address = np.empty(together * width, np.uint8)
    apart = np.empty(together * width, np.int16)
    for sample in range(begin, end):
        image = levels[sample].reshape(channels, height * width)
        for detector in range(len(pairs)):
            if starts[detector] == starts[detector + 1]:
                continue
            own = pairs[detector]
            down, right = height - max(own[:, 0].max(), own[:, 2].max()), width - max(own[:, 1].max(), own[:, 3].max())
            offsets = own[:, ::2] * width + own[:, 1::2]
            for at in range(right):
                column[at] = at * GRID // right
            held[:] = 0
            for first in range(0, down, together):
                rows = min(together, down - first)
                n = (rows - 1) * width + right
                asked = offsets + first * width, plane[detector], np.int16(threshold[detector])
                look(image, asked, apart[:n], address[:n])
                for row in range(rows):
                    cells, line = held[(first + row) * GRID // down * GRID :], address[row * width : row * width + right]
                    for at in range(U(right)):
                        cells[U(column[at]), U(line[at])] += 1
            for number in range(starts[detector], starts[detector + 1]):
                top, bottom, left, end_of = bounds(counted[number, 2])
                total = 0
                for r in range(top, bottom):
                    for c in range(left, end_of):
                        total += held[r * GRID + c, counted[number, 1]]
                found[sample, number] = total


@jit(nogil=True)
def look(image, asked, apart, address):  # type: ignore[no-untyped-def]
    """The addresses uint8 [positions] of one detector at places one after another, also those where a row ends, which nobody
    counts: levels int16 [C, pixels]; `asked` are the places of the pixels of each pair [K, 2], the plane and the threshold.

    One loop over all rows of a block, in numbers of 16 bits, takes an eighth of the time of a loop for each row."""
    offsets, plane, threshold = asked
    n = U(len(address))
    address[:] = 0
    for place in range(len(offsets)):
        first, second = offsets[place]
        bit = np.uint8(1 << place)
        if plane >= 0:
            one, other = image[plane, first : first + n], image[plane, second : second + n]
            for at in range(n):
                address[at] |= bit if np.int16(one[at] - other[at]) > threshold else np.uint8(0)
        else:
            apart[:] = 0
            for channel in range(len(image)):
                one, other = image[channel, first : first + n], image[channel, second : second + n]
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

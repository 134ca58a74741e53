"""The compiled search for the quantiles of the samples of each row of a table: exact, in two passes over all samples.

Samples are counted by row and by size, in bins that are finer near 0, where the quantiles of what tables leave are. Only those in
the bin of their row's quantile are then compared with each other, a few in a hundred.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

import numpy as np

from lutetia._shared.elementary import bits_of_float
from lutetia._shared.loops import U, entry, jit, jit_any_order

SIZES = 32  # of each sign, two for each doubling
BINS = 2 * SIZES
LAST_BITS = 22  # of a float32, which a bin does not tell
ABOVE = 8  # bins above the mean size
FEW = 16  # samples of a row, which are compared as they are
EQUAL = 1e-9  # part of a weight that is rounding
LEAST = 1e-300


@entry
def quantile_rows(cells, off, weight, sought, rows):
    """The rows [R, 1] of a table: the quantile of `off` [n] over the samples of each, which count by their weights [n]. `sought`
    are the level, the rate, and the smoothing: samples at 0 that are added to each row."""
    level, rate, smoothing = sought
    n_rows = len(rows)
    ends, before, total = np.zeros((n_rows, 2), np.uint8), np.zeros(n_rows), np.zeros(n_rows)
    bins = np.zeros(len(off), np.uint8)
    if len(off) > FEW * n_rows:
        _bin(off, bins)
        _narrow(cells, bins, weight, level, (ends, before, total))
    else:
        for sample in range(len(off)):
            total[cells[sample]] += weight[sample]
    kept = np.empty(len(off) + 1, np.uint32)
    starts = _sort(cells, bins, weight, ends, kept)
    values, held = np.empty(starts[n_rows]), np.empty(starts[n_rows])
    for place in range(len(values)):
        values[place], held[place] = off[U(kept[place])], weight[U(kept[place])]
    for row in range(n_rows):
        one, wanted = slice(starts[row], starts[row + 1]), level * total[row]
        if total[row] > 0:
            found = _quantile(values[one], held[one], wanted - before[row], EQUAL * max(wanted, LEAST))
            rows[row, 0] = rate * total[row] / (total[row] + smoothing) * found
        else:
            rows[row, 0] = 0.0


@jit
def _bin(off, bins):
    """The bins uint8 [n] of numbers [n], which never fall as the numbers rise: by their leading bits, up to 16 times the mean."""
    n = len(off)
    top = (bits_of_float(np.float32(_sum_of_sizes(off) / n)) >> np.int32(LAST_BITS)) + np.int32(ABOVE)
    least, most = top - np.int32(SIZES - 1), np.int32(SIZES - 1)
    for sample in range(n):
        size = (bits_of_float(np.float32(abs(off[sample]))) >> np.int32(LAST_BITS)) - least
        size = min(max(size, np.int32(0)), most)
        bins[sample] = np.uint8(np.int32(SIZES) + size if off[sample] >= 0 else np.int32(SIZES - 1) - size)


@jit_any_order
def _sum_of_sizes(off):
    total = 0.0
    for sample in range(len(off)):
        total += abs(off[sample])
    return total


@jit
def _narrow(cells, bins, weight, level, narrowed):
    """The bins in which the quantile of a row may be, as the first and how many follow, ends uint8 [R, 2]; the weight before,
    and that of all samples of the row, [R] each."""
    ends, before, total = narrowed
    held = np.zeros(len(total) * BINS)
    for sample in range(len(cells)):
        held[U(cells[sample]) * U(BINS) + U(bins[sample])] += weight[sample]
    for row in range(len(total)):
        own = held[row * BINS : (row + 1) * BINS]
        for each in own:
            total[row] += each
        wanted = level * total[row]
        equal = EQUAL * max(wanted, LEAST)
        first, through = 0, own[0]
        while first < BINS - 1 and through < wanted - equal:
            before[row] = through
            first += 1
            through += own[first]
        last = first
        while last < BINS - 1 and through <= wanted + equal:
            last += 1
            through += own[last]
        ends[row, 0], ends[row, 1] = first, last - first


@jit
def _sort(cells, bins, weight, ends, kept):
    """The samples of a weight in the bins of their rows, uint32 [<= n], in the order of the rows; returns where those of each row
    begin, int64 [R + 1]."""
    found, place = np.empty(len(cells) + 1, np.uint32), U(0)
    starts = np.zeros(len(ends) + 1, np.int64)
    for sample in range(U(len(cells))):  # without a branch, which would be guessed wrong
        cell = U(cells[sample])
        found[place] = sample
        place += U(np.uint8(bins[sample] - ends[cell, U(0)]) <= ends[cell, U(1)])
    for at in range(place):
        starts[U(cells[U(found[at])]) + U(1)] += weight[U(found[at])] > 0
    for row in range(len(ends)):
        starts[row + 1] += starts[row]
    following = starts.copy()
    for at in range(place):
        cell = U(cells[U(found[at])])
        if weight[U(found[at])] > 0:
            kept[following[cell]] = found[at]
            following[cell] += 1
    return starts


@jit
def _quantile(values, held, wanted, equal):
    """The value up to which values hold `wanted` of their weights; the middle of two where it ends between them, but for `equal`.

    Values left and right of the place are set aside, by one of them in the middle, until it is found; both arrays are reordered.
    """
    first, last = 0, len(values)
    before, low = 0.0, -np.inf  # the weight of the values set aside on the left, and the greatest of them
    high = np.inf
    while True:
        pivot = values[first + (last - first) // 2]
        left, right, place, lighter, own = first, last, first, 0.0, 0.0
        below, above = low, high
        while place < right:
            value, weight = values[place], held[place]
            if value < pivot:
                lighter, below = lighter + weight, max(below, value)
                values[place], held[place], values[left], held[left] = values[left], held[left], value, weight
                left, place = left + 1, place + 1
            elif value > pivot:
                right, above = right - 1, min(above, value)
                values[place], held[place], values[right], held[right] = values[right], held[right], value, weight
            else:
                own += weight
                place += 1
        if abs(before + lighter - wanted) <= equal and below > -np.inf:
            return (below + pivot) / 2
        if before + lighter > wanted:
            last, high = left, pivot
        elif abs(before + lighter + own - wanted) <= equal and above < np.inf:
            return (pivot + above) / 2
        elif before + lighter + own >= wanted or right == last:
            return pivot
        else:
            before, low, first = before + lighter + own, pivot, right

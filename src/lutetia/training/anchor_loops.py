"""The compiled search for the anchors of one table, over codes of 8 bits.

Samples lie in the order of their cells. 32 of them are compared at once, and what they are fitted to has 13 bits, so that a
candidate costs 0.01 ns per sample, and sums are exact in any order. Eight inputs of a sample are one word: bringing samples into
the order of their cells is to fetch words, and to transpose them eight by eight.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lutetia._shared.elementary import bits_of_double, bits_of_float, double_of_bits, float_of_bits
from lutetia._shared.loops import U, entry, jit
from lutetia.training.anchor_vectors import AT_ONCE, GROUP, STRIP, fetch, masked_sums

PAD = 64  # numbers behind the last sample, which are read and not used
SMOOTHING = 1.0  # samples of the mean that each cell is thought to hold besides its own
EQUAL = 1e-9  # part of a gain that is rounding
LEAST_UNIT = 1e-100  # of weights, by which smoothing is divided: all may be 0
MOST = 32767 // (STRIP + 1)  # size of a target or a weight
Array = np.ndarray[Any, Any]


class Sample(NamedTuple):
    """Samples in the order of their cells. Entries uint64 [m] hold the row, what it is fitted to and its weight, in 32, 16 and 16
    bits; beside them these three, and the codes of the rows, those of an input `stride` after those of the input before it.
    `numbers` [m] and `shares` float32 [m] are targets and weights before they are rounded.
    `is_false` uint8 [m] is an answer of theirs."""

    entries: Array
    spilled: Array
    rows: Array
    target: Array
    weight: Array
    codes: Array
    stride: int
    numbers: Array
    shares: Array
    is_false: Array


class Cells(NamedTuple):
    """The cells of a table so far: where the samples of each begin, int64; Σ target and Σ weight of each, whole numbers; and the
    same of the samples for which a candidate is true, int32 [cells, candidates]."""

    starts: Array
    sums: Array
    held: Array
    own: Array
    above: Array


def room_of(m: int, n_groups: int) -> Sample:
    """Room for m samples of so many words."""
    padded = -(-m // GROUP) * GROUP
    target, weight = np.zeros((2, m + PAD), np.int16)
    entries, spilled = np.zeros((2, m), np.uint64)
    codes, is_false = np.zeros(GROUP * n_groups * (padded + PAD), np.uint8), np.zeros(m, np.uint8)
    rows, numbers, shares = np.zeros(padded, np.uint32), np.zeros(m), np.zeros(m, np.float32)
    return Sample(entries, spilled, rows, target, weight, codes, padded + PAD, numbers, shares, is_false)


def room_of_cells(n_anchors: int, n_candidates: int) -> Cells:
    """Room for the cells of a table, with so many candidates for each anchor."""
    n, width = 1 << n_anchors, n_candidates + 2 * AT_ONCE
    starts, (sums, held) = np.zeros(n + 1, np.int64), np.zeros((2, n))
    return Cells(starts, sums, held, *np.zeros((2, n // 2, width), np.int32))


def words_of(codes: Array) -> Array:
    """Codes uint8 [F, n] as words uint64 [groups, n] of eight inputs each."""
    n_inputs, n = codes.shape
    words = np.zeros((-(-n_inputs // GROUP), n, GROUP), np.uint8)
    for number, own in enumerate(codes):
        words[number // GROUP, :, number % GROUP] = own
    return words.view(np.uint64)[:, :, 0]


@entry
def pack(missing, direction, held, rows, sample):
    """The entries of rows uint32 [m]: what they are fitted to is missing [n, K] · direction [K], their weights are held [n].

    Both are rounded to whole numbers up to MOST, or fewer, so that no sum has more than 31 bits. Returns what a weight of 1
    stands for. Weights that are such numbers stay as they are, and where all are alike they are 1.
    """
    _gather(missing, direction, held, rows, sample)
    least, most, largest = _ends(sample)
    limit = max(1.0, min(np.float64(MOST), np.floor(2147483647.0 / max(len(rows), 1))))
    scale = limit / largest if 1e-300 < largest < np.inf else 0.0
    alike = least == most
    unit = most if alike else (1.0 if (most <= limit and _are_whole(sample)) else most / limit)
    for at in range(U(len(rows))):
        sample.target[at] = np.int16(np.rint(sample.numbers[at] * scale))
    for at in range(U(len(rows))):
        sample.weight[at] = np.int16(1) if alike else np.int16(np.rint(np.float64(sample.shares[at]) / unit))
    for at in range(U(len(rows))):
        low = U(np.uint16(sample.target[at])) << U(16) | U(np.uint16(sample.weight[at]))
        sample.entries[at], sample.rows[at] = U(rows[at]) << U(32) | low, rows[at]
    return unit


@jit
def _gather(missing, direction, held, rows, sample):
    """What rows are fitted to, and their weights."""
    if len(direction) == 1:
        for at in range(U(len(rows))):
            sample.numbers[at] = missing[U(rows[at]), U(0)] * direction[U(0)]
    else:
        for at in range(U(len(rows))):
            value = 0.0
            for output in range(U(len(direction))):
                value += missing[U(rows[at]), output] * direction[output]
            sample.numbers[at] = value
    for at in range(U(len(rows))):
        sample.shares[at] = held[U(rows[at])]


@jit
def _ends(sample):
    """The least and the most of the weights, and the largest size of a target. The bits of numbers from 0 on are whole numbers of
    the same order, whose ends are found in vectors."""
    least, most, largest = np.int32(0x7FFFFFFF), np.int32(0), np.int64(0)
    for at in range(U(len(sample.shares))):
        bits = bits_of_float(sample.shares[at])
        least, most = min(least, bits), max(most, bits)
    for at in range(U(len(sample.numbers))):
        largest = max(largest, bits_of_double(abs(sample.numbers[at])))
    return np.float64(float_of_bits(least)), np.float64(float_of_bits(most)), double_of_bits(largest)


@jit
def _are_whole(sample):
    """Whether all weights are whole numbers."""
    found = True
    for at in range(U(len(sample.shares))):
        found &= sample.shares[at] == np.rint(sample.shares[at])
    return found


@entry
def search(words, n_inputs, sample, cells, asked, given):
    """The anchors int64 [A, 2] of a table; `asked` are its candidates int64 [A, C, 2], their directions int8 [A, C], room for
    their gains [C], and the anchors; `given` is what `pack` packs. Each anchor is the best of its candidates: that with the
    largest Σ over cells of (Σ target)² / (unit · Σ weight + smoothing). Halves of a cell that go against the direction of a
    candidate count as one: they would be pooled.
    """
    candidates, ways, gains, anchors = asked
    missing, direction, held, rows = given
    unit = pack(missing, direction, held, rows, sample)
    more = SMOOTHING / max(unit, LEAST_UNIT)  # in units: sums of whole numbers are exact, and so are their differences
    cells.starts[0], cells.starts[1] = 0, len(sample.entries)
    cells.sums[0], cells.held[0] = _sum(sample.target), _sum(sample.weight)
    alike = _are_ones(sample)
    width = cells.own.shape[1]
    order, begins, limits = np.empty(width, np.int64), np.empty((2, width), np.int64), np.empty(width, np.uint8)
    for place in range(len(anchors)):
        n_cells, own = 1 << place, candidates[place]
        _fetch_used(words, n_inputs, own, sample)
        n_thresholds, n_asked = _in_turn(own, n_inputs, order)
        for turn in range(n_asked):
            left, right = own[order[turn], 0], own[order[turn], 1]
            begins[0, turn], begins[1, turn], limits[turn] = left * sample.stride, right * sample.stride, right - n_inputs
        if alike:
            _count((begins[0], limits, 0, n_thresholds), sample, None, cells, n_cells)
            _count((begins[0], begins[1], n_thresholds, n_asked), sample, None, cells, n_cells)
        else:
            _count((begins[0], limits, 0, n_thresholds), sample, sample.weight, cells, n_cells)
            _count((begins[0], begins[1], n_thresholds, n_asked), sample, sample.weight, cells, n_cells)
        _gain(cells, n_cells, more, ways[place], order[:n_asked], gains)
        best = _first_best(gains)
        anchors[place, 0], anchors[place, 1] = own[best, 0], own[best, 1]
        if place + 1 < len(anchors):
            turn = 0
            while order[turn] != best:
                turn += 1
            _split(anchors[place], n_inputs, sample, cells, n_cells)
            _halve(cells, n_cells, turn)
            _unpack(sample)


@jit
def _sum(numbers):
    """Σ of the numbers int16 of all samples."""
    total = np.int64(0)
    for at in range(U(len(numbers) - PAD)):
        total += np.int64(numbers[at])
    return np.float64(total)


@jit
def _are_ones(sample):
    """Whether all weights are 1."""
    found = True
    for at in range(U(len(sample.entries))):
        found &= sample.weight[at] == 1
    return found


@jit
def _in_turn(candidates, n_inputs, order):
    """The numbers of candidates as they are asked: those with a threshold, then those of two inputs, repeated ones left out, and
    each kind filled with its last one to a multiple of AT_ONCE. Returns how many the first are, and all."""
    n_asked, n_thresholds = 0, 0
    keys = np.empty(len(candidates), np.int64)
    for number in range(len(candidates)):
        keys[number] = candidates[number, 0] << 32 | candidates[number, 1]
    for is_pair in range(2):
        begin = n_asked
        for number in range(len(candidates)):
            if (candidates[number, 1] < n_inputs) == is_pair and not _is_repeated(keys, number):
                order[n_asked] = number
                n_asked += 1
        while n_asked > begin and n_asked % AT_ONCE:
            order[n_asked] = order[n_asked - 1]
            n_asked += 1
        if is_pair == 0:
            n_thresholds = n_asked
    return n_thresholds, n_asked


@entry
def walk(rows, first, step, n):
    """rows [m] = first, first + step, .., modulo n."""
    row = first % n
    for at in range(U(len(rows))):
        rows[at] = row
        row += step
        row -= n if row >= n else 0


@jit
def _unpack(sample):
    """Rows, targets and weights of the entries."""
    for at in range(len(sample.entries)):
        word = sample.entries[at]
        sample.rows[at] = np.uint32(word >> U(32))
        sample.target[at] = np.int16((word >> U(16)) & U(0xFFFF))
        sample.weight[at] = np.int16(word & U(0xFFFF))


@jit
def _is_repeated(keys, number):
    """Whether a candidate is one of those before it."""
    found = False
    for before in range(U(number)):
        found |= keys[before] == keys[number]
    return found


@jit
def _first_best(gains):
    """The first of the largest gains, which are equal but for rounding."""
    best = 0
    for number in range(len(gains)):
        if gains[number] > gains[best]:
            best = number
    enough, best = gains[best] * (1 - EQUAL), 0
    while gains[best] < enough:
        best += 1
    return best


@jit
def _fetch_used(words, n_inputs, candidates, sample):
    """The codes of the inputs that candidates compare, with those of their words."""
    for group in range(len(words)):
        is_used = False
        for number in range(len(candidates)):
            left, right = candidates[number, 0], candidates[number, 1]
            is_used |= left // GROUP == group or (right < n_inputs and right // GROUP == group)
        if is_used:
            for at in range(0, len(sample.rows), GROUP):
                fetch(words, group, sample.rows, at, sample.codes, sample.stride)


@jit
def _count(asked, sample, weight, cells, n_cells):
    """Σ target and Σ weight of the samples of each cell for which comparisons of one kind are true: `asked` says where codes on
    the left begin, where on the right or the thresholds, and the range of these."""
    left, right, first, last = asked
    width, found = cells.own.shape[1], (cells.own.reshape(-1), cells.above.reshape(-1))
    for cell in range(n_cells):
        ends = cells.starts[cell], cells.starts[cell + 1]
        for at in range(first, last, AT_ONCE):
            lefts = left[at], left[at + 1], left[at + 2], left[at + 3]
            rights = right[at], right[at + 1], right[at + 2], right[at + 3]
            masked_sums(sample.codes, (lefts, rights), (sample.target, weight), ends, found, cell * width + at)


@jit
def _gain(cells, n_cells, more, ways, order, gains):
    """The gains of candidates, times the unit of the weights; -1 of those that are repeated."""
    found, way = np.zeros(len(order)), np.empty(len(order))
    for turn in range(len(order)):
        way[turn] = ways[order[turn]]
    for cell in range(n_cells):
        _add_gains(cells.sums[cell], cells.held[cell], more, (cells.own[cell], cells.above[cell]), way, found)
    for number in range(len(gains)):
        gains[number] = -1.0
    for turn in range(len(order)):
        gains[order[turn]] = found[turn]


@jit
def _add_gains(total, held, more, sums, way, gains):
    """What a cell adds to the gains of candidates."""
    pooled, (targets, weights) = total * total / (held + more), sums
    for turn in range(U(len(gains))):
        own, above = np.float64(targets[turn]), np.float64(weights[turn])
        others, up, down = total - own, above + more, held - above + more
        apart = own * own / up + others * others / down
        gains[turn] += pooled if way[turn] * (own * down - others * up) < 0 else apart


@jit
def _split(anchor, n_inputs, sample, cells, n_cells):
    """The entries of each cell in two halves: those for which a comparison is false, then the others."""
    entries, spilled, is_false = sample.entries, sample.spilled, sample.is_false
    _compare(anchor, n_inputs, sample)
    cells.starts[2 * n_cells] = cells.starts[n_cells]
    for cell in range(n_cells - 1, -1, -1):
        begin, end = U(cells.starts[cell]), U(cells.starts[cell + 1])
        place = begin
        for at in range(begin, end):  # without a branch, which would be guessed wrong half of the time
            word = entries[at]
            entries[place], spilled[at - place] = word, word
            place += U(is_false[at])
        for at in range(place, end):
            entries[at] = spilled[at - place]
        cells.starts[2 * cell], cells.starts[2 * cell + 1] = begin, place


@jit
def _compare(anchor, n_inputs, sample):
    """Whether a comparison is false, for all samples."""
    n, stride = len(sample.entries), sample.stride
    left = sample.codes[anchor[0] * stride : anchor[0] * stride + n]
    if anchor[1] < n_inputs:
        right = sample.codes[anchor[1] * stride : anchor[1] * stride + n]
        for at in range(U(n)):
            sample.is_false[at] = left[at] <= right[at]
    else:
        limit = np.uint8(anchor[1] - n_inputs)
        for at in range(U(n)):
            sample.is_false[at] = left[at] <= limit


@jit
def _halve(cells, n_cells, turn):
    """The sums of the halves of all cells by one of the candidates."""
    for cell in range(n_cells - 1, -1, -1):
        own, above = np.float64(cells.own[cell, turn]), np.float64(cells.above[cell, turn])
        cells.sums[2 * cell + 1], cells.held[2 * cell + 1] = own, above
        cells.sums[2 * cell], cells.held[2 * cell] = cells.sums[cell] - own, cells.held[cell] - above

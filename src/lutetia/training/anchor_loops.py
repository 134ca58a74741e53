"""The compiled search for the anchors of one table, over codes of 8 bits.

Samples lie in the order of their cells. 32 of them are compared at once, and what they are fitted to has 16 bits, so that a
candidate costs 0.04 ns per sample, and sums are exact in any order. Eight inputs of a sample are one word: bringing samples into
the order of their cells is to fetch words, and to transpose them eight by eight.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lutetia._shared.compiled import data_of, ir, numba
from lutetia._shared.elementary import bits_of_double, bits_of_float, double_of_bits, float_of_bits
from lutetia._shared.loops import U, entry, extending, jit

LANES, GROUP = 32, 8  # samples compared at once; inputs of a word
PAD = 64  # numbers behind the last sample, which are read and not used
SMOOTHING = 1.0  # samples of the mean that each cell is thought to hold besides its own
EQUAL = 1e-9  # part of a gain that is rounding
LEAST_UNIT = 1e-100  # of weights, by which smoothing is divided: all may be 0
THRESHOLDS = np.arange(256, dtype=np.uint8)
AT_ONCE = 4  # candidates that are compared at once
STRIP = 7  # vectors of samples whose sums have 16 bits, besides one that is cut off
MOST = 32767 // (STRIP + 1)  # size of a target or a weight
INT, NUMBER, BYTES = ir.IntType(64), ir.IntType(32), ir.IntType(8)
Array = np.ndarray[Any, Any]


class Sample(NamedTuple):
    """Samples in the order of their cells. Entries uint64 [m] hold the row, what it is fitted to and its weight, in 32, 16 and 16
    bits; beside them these three, and the codes of the rows, those of an input `stride` after those of the input before it. Last
    come the thresholds. `numbers` [m] and `shares` float32 [m] are targets and weights before they are rounded."""

    entries: Array
    spilled: Array
    rows: Array
    target: Array
    weight: Array
    codes: Array
    stride: int
    numbers: Array
    shares: Array


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
    codes = np.concatenate([np.zeros(GROUP * n_groups * (padded + PAD), np.uint8), THRESHOLDS])
    return Sample(entries, spilled, np.zeros(padded, np.uint32), target, weight, codes, padded + PAD, np.zeros(m), np.zeros(m, np.float32))


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


# ---- in vectors ------------------------------------------------------------------------------------------------------


def _data(context: Any, builder: Any, signature: Any, args: Any, place: int) -> Any:
    return data_of(context, builder, signature.args[place], args[place])


@extending.intrinsic
def _sums(typing: Any, codes: Any, compared: Any, numbers: Any, ends: Any, found: Any, place: Any) -> Any:
    """Σ target and Σ weight of the samples of a range whose left code is above the right one, for several comparisons at once; a
    weight of None counts them. They are stored from a place on in two arrays int32 of `found`.

    `compared` says where codes on the left and on the right begin; on the right thresholds uint8 may stand for them. Targets and
    weights are added with 16 bits, of STRIP times 32 samples, before these sums are added with 32.
    """
    wide, part = ir.VectorType(NUMBER, LANES // 2), ir.VectorType(ir.IntType(16), LANES)
    counts = isinstance(numbers.types[1], numba.types.NoneType)
    is_pair = compared.types[1].dtype != numba.types.uint8
    kinds = numbers.types[:1] if counts else numbers.types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        unpack, alloca = numba.core.cgutils.unpack_tuple, numba.core.cgutils.alloca_once_value
        codes = _data(context, builder, signature, args, 0)
        given = unpack(builder, args[2], 2)
        sources = [data_of(context, builder, kind, value) for kind, value in zip(kinds, given, strict=False)]
        lefts, rights = (unpack(builder, side, AT_ONCE) for side in unpack(builder, args[1], 2))
        begin, end = unpack(builder, args[3], 2)
        sixteen = ir.Constant(wide, [NUMBER(16)] * wide.count)
        constants = None if is_pair else [_splat(builder, right) for right in rights]
        parts = [[alloca(builder, part(None)) for _ in sources] for _ in lefts]
        totals = [[alloca(builder, wide(None)) for _ in sources] for _ in lefts]
        count = [alloca(builder, INT(0)) for _ in lefts]

        def vector(values: Any, at: Any) -> Any:
            pointer = builder.bitcast(builder.gep(values, [at]), ir.VectorType(values.type.pointee, LANES).as_pointer())
            return builder.load(pointer, align=1)

        def add(at: Any, mask: Any = None) -> None:
            own = [vector(each, at) for each in sources]
            for k, left in enumerate(lefts):
                other = vector(codes, builder.add(rights[k], at)) if constants is None else constants[k]
                is_above = builder.icmp_unsigned(">", vector(codes, builder.add(left, at)), other)
                is_above = is_above if mask is None else builder.and_(is_above, mask)
                for total, values in zip(parts[k], own, strict=True):
                    before = builder.load(total)
                    builder.store(builder.select(is_above, builder.add(before, values), before), total)
                if counts:
                    bits = builder.ctpop(builder.bitcast(is_above, ir.IntType(LANES)))
                    builder.store(builder.add(builder.load(count[k]), builder.zext(bits, INT)), count[k])

        one, length = ir.IntType(LANES)(1), builder.sub(end, begin)
        rest, vectors = builder.and_(length, INT(LANES - 1)), builder.lshr(length, INT(5))
        some = builder.sub(builder.shl(one, builder.trunc(rest, one.type)), one)
        add(builder.sub(end, rest), builder.bitcast(some, ir.VectorType(ir.IntType(1), LANES)))
        strips = builder.add(builder.udiv(vectors, INT(STRIP)), INT(1))
        with numba.core.cgutils.for_range(builder, strips) as strip:
            first = builder.mul(strip.index, INT(STRIP))
            left = builder.sub(vectors, first)
            size = builder.select(builder.icmp_unsigned("<", left, INT(STRIP)), left, INT(STRIP))
            with numba.core.cgutils.for_range(builder, size) as loop:
                add(builder.add(begin, builder.mul(builder.add(first, loop.index), INT(LANES))))
            for own, sums in zip(parts, totals, strict=True):
                for each, total in zip(own, sums, strict=True):
                    pairs = builder.bitcast(builder.load(each), wide)
                    upper = builder.ashr(pairs, sixteen)
                    both = builder.add(upper, builder.ashr(builder.shl(pairs, sixteen), sixteen))
                    builder.store(builder.add(builder.load(total), both), total)
                    builder.store(part(None), each)
        several = ir.VectorType(NUMBER, AT_ONCE)
        for number, (kind, array) in enumerate(zip(found.types, unpack(builder, args[4], 2), strict=True)):
            if counts and number:
                own = several(ir.Undefined)
                for k, each in enumerate(count):
                    own = builder.insert_element(own, builder.trunc(builder.load(each), NUMBER), NUMBER(k))
            else:
                own = _totals(builder, [builder.load(sums[number]) for sums in totals])
            pointer = builder.gep(data_of(context, builder, kind, array), [args[5]])
            builder.store(own, builder.bitcast(pointer, several.as_pointer()), align=4)
        return context.get_dummy_value()

    return numba.types.void(codes, compared, numbers, ends, found, place), generate


def _splat(builder: Any, value: Any) -> Any:
    """A byte, as often as there are lanes."""
    vector = ir.VectorType(BYTES, LANES)
    one = builder.insert_element(vector(ir.Undefined), value, NUMBER(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(NUMBER, LANES), [NUMBER(0)] * LANES))


def _totals(builder: Any, vectors: list[Any]) -> Any:
    """The sums of the numbers of four vectors, as one vector."""

    def some(one: Any, other: Any, places: list[int]) -> Any:
        return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(NUMBER, len(places)), [NUMBER(at) for at in places]))

    def halved(values: Any) -> Any:
        size = values.type.count
        return builder.add(*(some(values, values, list(half)) for half in (range(size // 2), range(size // 2, size))))

    four = [halved(halved(values)) for values in vectors]
    two = [builder.add(*(some(*four[k : k + 2], [at, at + 4, at + 2, at + 6]) for at in (0, 1))) for k in (0, 2)]
    return builder.add(*(some(*two, [at, at + 1, at + 4, at + 5]) for at in (0, 2)))


@extending.intrinsic
def _fetch(typing: Any, words: Any, group: Any, rows: Any, at: Any, codes: Any, stride: Any) -> Any:
    """Eight words, of the samples from place `at`, as eight codes of each of eight inputs."""
    vector, bytes_of = ir.VectorType(INT, GROUP), ir.VectorType(BYTES, GROUP * GROUP)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, codes = (_data(context, builder, signature, args, place) for place in (2, 4))
        group, at, stride = args[1], args[3], args[5]
        table = context.make_array(signature.args[0])(context, builder, args[0])
        n = builder.extract_value(table.shape, 1)
        words = builder.gep(table.data, [builder.mul(group, n)])
        first = builder.mul(builder.mul(group, INT(GROUP)), stride)
        together = vector(ir.Undefined)
        for k in range(GROUP):
            row = builder.zext(builder.load(builder.gep(rows, [builder.add(at, INT(k))])), INT)
            together = builder.insert_element(together, builder.load(builder.gep(words, [row])), NUMBER(k))
        order = [NUMBER(GROUP * (k % GROUP) + k // GROUP) for k in range(GROUP * GROUP)]
        given = builder.bitcast(together, bytes_of)
        turned = builder.shuffle_vector(given, given, ir.Constant(ir.VectorType(NUMBER, GROUP * GROUP), order))
        turned = builder.bitcast(turned, vector)
        for k in range(GROUP):
            place = builder.add(builder.add(first, at), builder.mul(stride, INT(k)))
            pointer = builder.bitcast(builder.gep(codes, [place]), INT.as_pointer())
            builder.store(builder.extract_element(turned, NUMBER(k)), pointer, align=1)
        return context.get_dummy_value()

    int64 = numba.types.int64
    return numba.types.void(words, int64, rows, int64, codes, int64), generate


# ---- the search ------------------------------------------------------------------------------------------------------


@entry
def search(words, n_inputs, sample, cells, asked, unit):
    """The anchors int64 [A, 2] of a table; `asked` are its candidates int64 [A, C, 2], their directions int8 [A, C], room for
    their gains [C], and the anchors. Each is the best of its candidates: that with the largest Σ over cells of
    (Σ target)² / (unit · Σ weight + smoothing). Halves of a cell that go against the direction of a candidate count as one: they
    would be pooled.
    """
    candidates, ways, gains, anchors = asked
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
def pack(missing, direction, held, rows, sample):
    """The entries of rows uint32 [m]: what they are fitted to is missing [n, K] · direction [K], their weights are held [n].

    Both are rounded to whole numbers of 16 bits, or fewer, so that no sum has more than 31. Returns what a weight of 1 stands
    for. Weights that are such numbers stay as they are, and where all are alike they are 1.
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
    """The least and the most of the weights, and the largest size of a target. The bits of numbers above 0 are whole numbers of the
    same order, whose ends are found in vectors."""
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
                _fetch(words, group, sample.rows, at, sample.codes, sample.stride)


@jit
def _compared(n_inputs, left, right, sample):
    """Where the codes that are compared begin, and the step on the right."""
    if right < n_inputs:
        return U(left * sample.stride), U(right * sample.stride), U(1)
    return U(left * sample.stride), U(len(sample.codes) - 256 + (right - n_inputs)), U(0)


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
            _sums(sample.codes, (lefts, rights), (sample.target, weight), ends, found, cell * width + at)


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
    codes, entries, spilled = sample.codes, sample.entries, sample.spilled
    left, right, step = _compared(n_inputs, anchor[0], anchor[1], sample)
    cells.starts[2 * n_cells] = cells.starts[n_cells]
    for cell in range(n_cells - 1, -1, -1):
        begin, end = U(cells.starts[cell]), U(cells.starts[cell + 1])
        place = begin
        for at in range(begin, end):  # without a branch, which would be guessed wrong half of the time
            word = entries[at]
            entries[place], spilled[at - place] = word, word
            place += U(codes[left + at] <= codes[right + at * step])
        for at in range(place, end):
            entries[at] = spilled[at - place]
        cells.starts[2 * cell], cells.starts[2 * cell + 1] = begin, place


@jit
def _halve(cells, n_cells, turn):
    """The sums of the halves of all cells by one of the candidates."""
    for cell in range(n_cells - 1, -1, -1):
        own, above = np.float64(cells.own[cell, turn]), np.float64(cells.above[cell, turn])
        cells.sums[2 * cell + 1], cells.held[2 * cell + 1] = own, above
        cells.sums[2 * cell], cells.held[2 * cell] = cells.sums[cell] - own, cells.held[cell] - above

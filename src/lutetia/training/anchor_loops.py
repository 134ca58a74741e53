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
from lutetia._shared.loops import U, entry, extending, jit, jit_any_order

LANES, GROUP = 32, 8  # samples compared at once; inputs of a word
PAD = 64  # numbers behind the last sample, which are read and not used
SMOOTHING = 1.0  # samples of the mean that each cell is thought to hold besides its own
EQUAL = 1e-9  # part of a gain that is rounding
LEAST_UNIT = 1e-100  # of weights, by which smoothing is divided: all may be 0
THRESHOLDS = np.arange(256, dtype=np.uint8)
INT, NUMBER, BYTES = ir.IntType(64), ir.IntType(32), ir.IntType(8)
Array = np.ndarray[Any, Any]


class Sample(NamedTuple):
    """Samples in the order of their cells. Entries uint64 [m] hold the row, what it is fitted to and its weight, in 32, 16 and 16
    bits; beside them these three, and the codes of the rows, those of an input `stride` after those of the input before it. Last
    come the thresholds, 32 times each. `numbers` [m] are targets before they are rounded."""

    entries: Array
    spilled: Array
    rows: Array
    target: Array
    weight: Array
    codes: Array
    stride: int
    numbers: Array


class Cells(NamedTuple):
    """The cells of a table so far: where the samples of each begin, int64; Σ target and Σ weight of each, whole numbers; and of a
    comparison the same of the samples for which it is true."""

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
    codes = np.concatenate([np.zeros(GROUP * n_groups * (padded + PAD), np.uint8), np.repeat(THRESHOLDS, LANES)])
    return Sample(entries, spilled, np.zeros(padded, np.uint32), target, weight, codes, padded + PAD, np.zeros(m))


def room_of_cells(n_anchors: int) -> Cells:
    """Room for the cells of a table."""
    return Cells(np.zeros((1 << n_anchors) + 1, np.int64), *(np.zeros(1 << n_anchors) for _ in range(4)))


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
def _sums(typing: Any, codes: Any, compared: Any, target: Any, weight: Any, ends: Any) -> Any:
    """Σ target and Σ weight of the samples of a range whose left code is above the right one; without weights, how many they are.

    `compared` says where codes on the left and on the right begin, and the step on the right: with 0 it is one threshold.
    """
    wide, counts = ir.VectorType(NUMBER, LANES), isinstance(weight, numba.types.NoneType)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        codes, *numbers = (_data(context, builder, signature, args, place) for place in ((0, 2) if counts else (0, 2, 3)))
        left, right, step = numba.core.cgutils.unpack_tuple(builder, args[1], 3)
        begin, end = numba.core.cgutils.unpack_tuple(builder, args[4], 2)
        sums = [numba.core.cgutils.alloca_once_value(builder, wide(None)) for _ in numbers]
        count = numba.core.cgutils.alloca_once_value(builder, INT(0))

        def vector(values: Any, at: Any) -> Any:
            pointer = builder.bitcast(builder.gep(values, [at]), ir.VectorType(values.type.pointee, LANES).as_pointer())
            return builder.load(pointer, align=1)

        def add(at: Any, mask: Any = None) -> None:
            others = vector(codes, builder.add(right, builder.mul(at, step)))
            is_above = builder.icmp_unsigned(">", vector(codes, builder.add(left, at)), others)
            if mask is not None:
                is_above = builder.and_(is_above, builder.bitcast(mask, ir.VectorType(ir.IntType(1), LANES)))
            for total, each in zip(sums, numbers, strict=True):
                values = vector(each, at)
                own = builder.select(is_above, values, values.type(None))
                builder.store(builder.add(builder.load(total), builder.sext(own, wide)), total)
            if counts:
                bits = builder.ctpop(builder.bitcast(is_above, ir.IntType(LANES)))
                builder.store(builder.add(builder.load(count), builder.zext(bits, INT)), count)

        length = builder.sub(end, begin)
        with numba.core.cgutils.for_range(builder, builder.sdiv(length, INT(LANES))) as loop:
            add(builder.add(begin, builder.mul(loop.index, INT(LANES))))
        rest = builder.srem(length, INT(LANES))
        with builder.if_then(builder.icmp_signed(">", rest, INT(0))):
            one = ir.IntType(LANES)(1)
            add(builder.sub(end, rest), builder.sub(builder.shl(one, builder.trunc(rest, one.type)), one))
        reduce = numba.core.cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(NUMBER, [wide]), f"llvm.vector.reduce.add.v{LANES}i32"
        )
        totals = [builder.sext(builder.call(reduce, [builder.load(total)]), INT) for total in sums]
        return context.make_tuple(builder, signature.return_type, [*totals, builder.load(count)][:2])

    int64 = numba.types.int64
    tuple_of = numba.types.UniTuple
    return tuple_of(int64, 2)(codes, tuple_of(int64, 3), target, weight, tuple_of(int64, 2)), generate


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
    _unpack(sample)
    alike = True
    cells.starts[0], cells.starts[1] = 0, len(sample.entries)
    cells.sums[0], cells.held[0] = 0.0, 0.0
    for at in range(len(sample.entries)):
        cells.sums[0] += sample.target[at]
        cells.held[0] += sample.weight[at]
        alike &= sample.weight[at] == 1
    for place in range(len(anchors)):
        n_cells = 1 << place
        _fetch_used(words, n_inputs, candidates[place], sample)
        best = 0
        for number in range(len(gains)):
            gains[number] = -1.0
            if not _is_repeated(candidates[place], number):
                compared = _compared(n_inputs, candidates[place, number, 0], candidates[place, number, 1], sample)
                _count(compared, sample, cells, n_cells, alike)
                gains[number] = _gain(cells, n_cells, more, ways[place, number])
            if gains[number] > gains[best]:
                best = number
        enough, best = gains[best] * (1 - EQUAL), 0
        while gains[best] < enough:  # the first of those that are equal but for rounding
            best += 1
        anchors[place, 0], anchors[place, 1] = candidates[place, best, 0], candidates[place, best, 1]
        if place + 1 < len(anchors):
            compared = _compared(n_inputs, anchors[place, 0], anchors[place, 1], sample)
            _count(compared, sample, cells, n_cells, alike)
            _split(compared, sample, cells, n_cells)
            _halve(cells, n_cells)
            _unpack(sample)


@entry
def pack(missing, direction, held, rows, sample):
    """The entries of rows uint32 [m]: what they are fitted to is missing [n, K] · direction [K], their weights are held [n].

    Both are rounded to whole numbers of 16 bits, or fewer, so that no sum has more than 31. Returns what a weight of 1 stands
    for. Weights that are such numbers stay as they are, and where all are alike they are 1.
    """
    largest, least, most, is_whole = 0.0, np.inf, 0.0, True
    for at in range(len(rows)):
        row, value = U(rows[at]), 0.0
        for output in range(len(direction)):
            value += missing[row, output] * direction[output]
        sample.numbers[at] = value
        largest = max(largest, abs(value))
        weight = np.float64(held[row])
        least, most = min(least, weight), max(most, weight)
        is_whole &= weight == np.rint(weight)
    limit = max(1.0, min(32767.0, np.floor(2147483647.0 / max(len(rows), 1))))
    scale = limit / largest if 1e-300 < largest < np.inf else 0.0
    alike = least == most
    unit = most if alike else (1.0 if (is_whole and most <= limit) else most / limit)
    for at in range(len(rows)):
        weight = 1.0 if alike else np.rint(held[U(rows[at])] / unit)
        target = np.int16(np.rint(sample.numbers[at] * scale))
        low = U(np.uint16(target)) << U(16) | U(np.uint16(np.int16(weight)))
        sample.entries[at] = U(rows[at]) << U(32) | low
    return unit


@jit
def _unpack(sample):
    """Rows, targets and weights of the entries."""
    for at in range(len(sample.entries)):
        word = sample.entries[at]
        sample.rows[at] = np.uint32(word >> U(32))
        sample.target[at] = np.int16((word >> U(16)) & U(0xFFFF))
        sample.weight[at] = np.int16(word & U(0xFFFF))


@jit
def _is_repeated(candidates, number):
    """Whether a candidate is one of those before it."""
    for before in range(number):
        if candidates[before, 0] == candidates[number, 0] and candidates[before, 1] == candidates[number, 1]:
            return True
    return False


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
        return left * sample.stride, right * sample.stride, 1
    return left * sample.stride, len(sample.codes) - LANES * (256 - (right - n_inputs)), 0


@jit
def _count(compared, sample, cells, n_cells, alike):
    """Σ target and Σ weight of the samples of each cell for which a comparison is true."""
    if alike:
        for cell in range(n_cells):
            ends = cells.starts[cell], cells.starts[cell + 1]
            cells.own[cell], cells.above[cell] = _sums(sample.codes, compared, sample.target, None, ends)
    else:
        for cell in range(n_cells):
            ends = cells.starts[cell], cells.starts[cell + 1]
            cells.own[cell], cells.above[cell] = _sums(sample.codes, compared, sample.target, sample.weight, ends)


@jit_any_order
def _gain(cells, n_cells, more, way):
    """The gain of a comparison, times the unit of the weights."""
    gain = 0.0
    for cell in range(U(n_cells)):
        total, held, own, above = cells.sums[cell], cells.held[cell], cells.own[cell], cells.above[cell]
        others, up, down = total - own, above + more, held - above + more
        apart, pooled = own * own / up + others * others / down, total * total / (held + more)
        gain += pooled if way * (own * down - others * up) < 0 else apart
    return gain


@jit
def _split(compared, sample, cells, n_cells):
    """The entries of each cell in two halves: those for which a comparison is false, then the others."""
    codes, entries, spilled = sample.codes, sample.entries, sample.spilled
    left, right, step = U(compared[0]), U(compared[1]), U(compared[2])
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
def _halve(cells, n_cells):
    """The sums of the halves of all cells."""
    for cell in range(n_cells - 1, -1, -1):
        own, above = cells.own[cell], cells.above[cell]
        cells.sums[2 * cell + 1], cells.held[2 * cell + 1] = own, above
        cells.sums[2 * cell], cells.held[2 * cell] = cells.sums[cell] - own, cells.held[cell] - above

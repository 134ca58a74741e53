"""Vectors of the search for anchors: sums over the samples for which comparisons are true, and codes brought into their order."""

from __future__ import annotations

from typing import Any

from lutetia._shared.compiled import data_of, ir, numba
from lutetia._shared.loops import extending

LANES, GROUP = 32, 8  # samples compared at once; inputs of a word
AT_ONCE = 4  # candidates that are compared at once
STRIP = 7  # vectors of samples whose sums have 16 bits, besides one that is cut off
INT, NUMBER, BYTES = ir.IntType(64), ir.IntType(32), ir.IntType(8)


def _data(context: Any, builder: Any, signature: Any, args: Any, place: int) -> Any:
    return data_of(context, builder, signature.args[place], args[place])


@extending.intrinsic
def masked_sums(typing: Any, codes: Any, compared: Any, numbers: Any, ends: Any, found: Any, place: Any) -> Any:
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
    two = [builder.add(*(some(four[k], four[k + 1], [at, at + 4, at + 2, at + 6]) for at in (0, 1))) for k in (0, 2)]
    return builder.add(*(some(two[0], two[1], [at, at + 1, at + 4, at + 5]) for at in (0, 2)))


@extending.intrinsic
def fetch(typing: Any, words: Any, group: Any, rows: Any, at: Any, codes: Any, stride: Any) -> Any:
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

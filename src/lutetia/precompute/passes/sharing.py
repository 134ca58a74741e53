"""Sums of several outputs with their common parts added once.

A product with a constant is a sum of shifted copies of a channel, one per digit of the constant in signed form. Two digits that
occur together in several places, in one output or in many, become a new value: one adder instead of several. Pairs are chosen by
what they save, which is the width of the adder for every place but the first. The rest of each output is added pair by pair, the
narrowest adder first.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import combinations, pairwise
from typing import NamedTuple

MOST_PAIRS = 300_000  # of digits that are searched at once: seconds, and about 200 MB


Digit = tuple[int, int]  # value, place
Pair = tuple[int, int, int, int]  # two values, how much further the second is shifted, and its sign


class AdderPart(NamedTuple):
    """sign · 2**shift · value: values are the channels first, then the adders in their order."""

    value: int
    shift: int
    sign: int


class Adder(NamedTuple):
    """first + second; the first one is positive and not shifted, unless both are shifted alike."""

    first: AdderPart
    second: AdderPart


class Range(NamedTuple):
    """The least and the greatest number of a value."""

    low: int
    high: int

    @property
    def bits(self) -> int:
        """As two's complement where numbers are negative, else as plain binary."""
        top = max(self.high, ~self.low).bit_length()
        return max(top + (self.low < 0), 1)

    @property
    def signed(self) -> bool:
        return self.low < 0


class AdderTree(NamedTuple):
    """Adders in order, the range of every value, and the parts that are left of each output: at most two."""

    adders: tuple[Adder, ...]
    ranges: tuple[Range, ...]
    outputs: tuple[tuple[AdderPart, ...], ...]
    shared: int  # adders that several places use

    @property
    def cost(self) -> int:
        """Bits of all adders."""
        ends = sum(_width(self.ranges, *parts) for parts in self.outputs if len(parts) == 2)
        return sum(_width(self.ranges, *adder) for adder in self.adders) + ends


def shared_adders(channels: list[Range], sums: list[dict[int, int]]) -> AdderTree | None:
    """The adders of sums, each {channel: coefficient}, over channels of these ranges; None where one has too many digits."""
    digits = [{(channel, place): sign for channel, number in terms.items() for place, sign in _digits(number)} for terms in sums]
    if any(len(own) ** 2 // 2 > MOST_PAIRS for own in digits):
        return None
    search = _Search(channels, digits)
    for outputs in _blocks(digits):
        search.share(outputs)
    shared = len(search.adders)
    rest = tuple(search.added(own) for own in digits)
    return AdderTree(tuple(search.adders), tuple(search.ranges), rest, shared)


def _blocks(digits: list[dict[Digit, int]]) -> Iterator[list[int]]:
    """Outputs that are searched together."""
    block: list[int] = []
    pairs = 0
    for output, own in enumerate(digits):
        more = len(own) ** 2 // 2
        if pairs + more > MOST_PAIRS:
            yield block
            block, pairs = [], 0
        block.append(output)
        pairs += more
    yield block


def _digits(number: int) -> Iterator[tuple[int, int]]:
    """The digits of the signed form that has no two neighbours: place and sign."""
    place = 0
    while number:
        if number & 1:
            sign = 2 - (number & 3)
            yield place, sign
            number -= sign
        number >>= 1
        place += 1


def _pair(one: Digit, other: Digit, signs: int) -> Pair:
    """A pair of digits wherever it stands; the one in the lower place first."""
    if (one[1], one[0]) > (other[1], other[0]):
        one, other = other, one
    return one[0], other[0], other[1] - one[1], signs


def _width(ranges: list[Range] | tuple[Range, ...], first: AdderPart, second: AdderPart) -> int:
    """Bits of an adder: below the shift of the higher operand there is nothing to add."""
    low = max(first.shift, second.shift)
    ends = [ranges[part.value].bits + part.shift for part in (first, second)]
    return max(max(ends) + 1 - low, 1)


class _Search:
    """Pairs of digits and where they stand."""

    def __init__(self, channels: list[Range], digits: list[dict[Digit, int]]) -> None:
        self.ranges, self.adders, self.digits = list(channels), [], digits  # type: list[Range], list[Adder], list[dict[Digit, int]]
        self.places: dict[Pair, dict[tuple[int, Digit, Digit], None]] = {}
        self.queue: list[tuple[int, Pair]] = []

    def share(self, outputs: list[int]) -> None:
        """Make adders of pairs until none stands in two places of these outputs."""
        self.places = {}
        for output in outputs:
            for one, other in combinations(self.digits[output], 2):
                self._note(output, one, other)
        for pair in self.places:
            self._push(pair)
        while self.queue:
            saved, pair = heappop(self.queue)
            if -saved != self._saved(pair):
                self._push(pair)
                continue
            first, second, shift, sign = pair
            value = self._add(Adder(AdderPart(first, 0, 1), AdderPart(second, shift, sign)))
            for output, one, other in list(self.places.get(pair, ())):
                own = self.digits[output]
                if one in own and other in own:
                    low = min(one, other, key=lambda digit: (digit[1], digit[0]))
                    self._replace(output, one, other, (value, low[1]), own[low])

    def _replace(self, output: int, one: Digit, other: Digit, made: Digit, sign: int) -> None:
        own = self.digits[output]
        for gone in (one, other):
            for each in own:
                if each != gone:
                    self._forget(output, gone, each)
            del own[gone]
        own[made] = sign
        for each in own:
            if each != made:
                self._push(self._note(output, each, made))

    def _note(self, output: int, one: Digit, other: Digit) -> Pair:
        own = self.digits[output]
        pair = _pair(one, other, own[one] * own[other])
        self.places.setdefault(pair, {})[output, min(one, other), max(one, other)] = None
        return pair

    def _forget(self, output: int, one: Digit, other: Digit) -> None:
        own = self.digits[output]
        pair = _pair(one, other, own[one] * own[other])
        self.places.get(pair, {}).pop((output, min(one, other), max(one, other)), None)

    def _saved(self, pair: Pair) -> int:
        count = len(self.places.get(pair, ()))
        return (count - 1) * _width(self.ranges, AdderPart(pair[0], 0, 1), AdderPart(pair[1], pair[2], 1)) if count > 1 else 0

    def _push(self, pair: Pair) -> None:
        saved = self._saved(pair)
        if saved:
            heappush(self.queue, (-saved, pair))

    def _add(self, adder: Adder) -> int:
        lows, highs = zip(*(_ends(self.ranges[part.value], part) for part in adder), strict=True)
        self.adders.append(adder)
        self.ranges.append(Range(sum(lows), sum(highs)))
        return len(self.ranges) - 1

    def added(self, own: dict[Digit, int]) -> tuple[AdderPart, ...]:
        """Add the digits of one output until two are left: of neighbours by place and width the pair of the narrowest adder."""
        parts = [AdderPart(value, place, sign) for (value, place), sign in own.items()]
        while len(parts) > 2:
            parts.sort(key=lambda part: (part.shift, self.ranges[part.value].bits))
            one, other = min(pairwise(parts), key=lambda both: (_width(self.ranges, *both), both))
            parts.remove(one)
            parts.remove(other)
            low = min(one.shift, other.shift)
            sign = 1 if 1 in (one.sign, other.sign) else -1
            first, second = sorted((one, other), key=lambda part: (part.sign != sign, part.shift))
            made = Adder(
                AdderPart(first.value, first.shift - low, 1), AdderPart(second.value, second.shift - low, second.sign * sign)
            )
            parts.append(AdderPart(self._add(made), low, sign))
        return tuple(parts)


def _ends(own: Range, part: AdderPart) -> tuple[int, int]:
    ends = sorted(part.sign * end << part.shift for end in own)
    return ends[0], ends[1]

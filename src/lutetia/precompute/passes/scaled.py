"""A quantiser of many levels after a sum: multiply, shift, clamp, in place of one comparison per level.

A step function that rises (or falls) by one level at each threshold is clamp((m · x + b) >> s) for some whole numbers, where its
thresholds lie evenly enough. Rounding to even takes one more bit: where the bits that are shifted out are all zero, an odd
level is one too high. Such numbers are searched for and must hold for every threshold exactly; otherwise the comparisons stay.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from lutetia.precompute.ir.cost import digits
from lutetia.precompute.ir.graph import Builder
from lutetia.precompute.ir.stream import Layer, Lookup, StreamEdge, Sum, Table, TableData
from lutetia.precompute.tables.domains import MAX_BITS, Domain, UInt, domain_for
from lutetia.precompute.tables.exact import ExactSum

MANY = 15  # thresholds: fewer are cheaper as comparisons
MOST_SHIFT = 20
WIDEST = 12  # bits that are left to clamp, or shifted out where ties count
TRIED = 6  # shifts that work, of which the cheapest is taken


class Scaling(NamedTuple):
    """level = clamp((factor · x + offset) >> shift); `domain` holds factor · x + offset.

    ties   an odd level is one less where the bits that are shifted out are zero
    """

    factor: int
    offset: int
    shift: int
    domain: Domain
    ties: bool = False


def scaling_of(thresholds: np.ndarray, levels: np.ndarray, domain: Domain) -> Scaling | None:
    """The cheapest scaling of one channel, whose sums lie in `domain`; None where there is none."""
    if not len(thresholds):
        level = int(levels[0])
        return Scaling(0, level, 0, domain_for(level, level))
    change = set(np.diff(levels).tolist())
    if change not in ({1}, {-1}):
        return None
    sign = change.pop()
    # `reached` holds at and beyond the first sum of the pair, not at the other.
    beyond, before = (thresholds + 1, thresholds) if sign > 0 else (thresholds, thresholds + 1)
    reached = levels[1:] if sign > 0 else levels[:-1]
    exact = _search(sign, reached, beyond, before, domain, ties=False)
    if exact is not None:
        return exact
    moved = np.where(reached % 2 == 1, sign, 0)
    return _search(sign, reached, beyond - moved, before - moved, domain, ties=True)


def _search(
    sign: int, reached: np.ndarray, beyond: np.ndarray, before: np.ndarray, domain: Domain, *, ties: bool
) -> Scaling | None:
    thresholds = np.minimum(beyond, before)
    span = int(thresholds[-1] - thresholds[0])
    slope = (len(thresholds) - 1) / span if span else 1.0
    works: list[Scaling] = []
    for shift in range(MOST_SHIFT + 1):
        factor = _factor(sign, slope * 2**shift, reached * 2**shift, beyond, before)
        made = _offset(factor, reached * 2**shift, beyond, before, shift, domain)
        if made is not None and (not ties or _meets(made, reached, beyond)):
            works.append(made._replace(ties=ties))
        if len(works) >= TRIED:
            break
    return min(works, key=lambda each: (digits(each.factor) * each.domain.bits, each.shift), default=None)


def _factor(sign: int, about: float, level: np.ndarray, beyond: np.ndarray, before: np.ndarray) -> int:
    """The factor near a number that leaves the most room for an offset: the room is concave in it, so ternary search finds it."""

    def room(size: int) -> int:
        low, high = _ends(sign * size, level, beyond, before)
        return high - low

    least, most = max(1, int(about * 0.8)), int(about * 1.25) + 2
    while most - least > 2:
        third = (most - least) // 3
        if room(least + third) < room(most - third):
            least += third
        else:
            most -= third
    return sign * max(range(least, most + 1), key=room)


def _ends(factor: int, level: np.ndarray, beyond: np.ndarray, before: np.ndarray) -> tuple[int, int]:
    """The least and the greatest offset that puts every threshold in its place."""
    return int((level - factor * beyond).max()), int((level - factor * before).min()) - 1


def _meets(made: Scaling, reached: np.ndarray, beyond: np.ndarray) -> bool:
    """Whether every odd level is first reached with zeros below, where ties round to the even level before it."""
    odd = reached % 2 == 1
    ties = made.shift <= WIDEST and bool(np.all(made.factor * beyond[odd] + made.offset == reached[odd] * 2**made.shift))
    return ties and made.shift > 0


def _offset(factor: int, level: np.ndarray, beyond: np.ndarray, before: np.ndarray, shift: int, domain: Domain) -> Scaling | None:
    low, high = _ends(factor, level, beyond, before)
    if low > high:
        return None
    ends = sorted((factor * domain.low, factor * domain.high))
    made = domain_for(ends[0] + low, ends[1] + low)
    fits = made.bits <= MAX_BITS and 1 <= made.bits - shift <= WIDEST
    return Scaling(factor, low, shift, made) if fits else None


def add_scaled(builder: Builder, node: Layer, sums: ExactSum, source: int, summed: int, found: list[Scaling]) -> int:
    """Add the nodes; factors of one digit go into the sums themselves, which then cost nothing more."""
    edge = builder.edge(summed)
    made = edge.carrying([each.domain for each in found])
    factor = np.array([each.factor for each in found], dtype=np.int64)
    offset = np.array([each.offset for each in found], dtype=np.int64)
    if all(digits(each.factor) <= 1 for each in found):
        row = np.repeat(np.arange(len(found)), np.diff(sums.first))
        coefficient, bias = sums.coefficient * factor[row], sums.bias * factor + offset
        scaled = builder.add(Sum((source,), made, sums.first, sums.places, coefficient, bias, name=node.name))
    else:
        places = np.arange(len(found), dtype=np.int64)
        start = np.arange(len(found) + 1, dtype=np.int64)
        scaled = builder.add(Sum((summed,), made, start, places, factor, offset, name=node.name))
    parts = builder.add(_parts(scaled, made, found, node.name))
    edge = builder.edge(parts)
    tables, lookups, at = [], [], 0
    for channel, (each, domain) in enumerate(zip(found, node.edge.domains, strict=True)):
        tables.append(_clamp(each, domain))
        own = [edge.bits_of(place) for place in range(at, at + 1 + each.ties)]
        lookups.append(Lookup(channel, tuple(bit for bits in own for bit in bits), (channel,)))
        at += 1 + each.ties
    return builder.add(Table((parts,), node.edge, tuple(tables), tuple(lookups), name=node.name))


def _parts(source: int, edge: StreamEdge, found: list[Scaling], name: str) -> Table:
    """The bits above the shift of each channel, and where ties count, whether those below are all zero."""
    tables, lookups = [], []
    domains: list[Domain] = []
    for channel, each in enumerate(found):
        bits, kept = edge.bits_of(channel), each.domain.bits - each.shift
        tables.append(TableData(np.arange(2**kept)[:, None], (kept,)))
        lookups.append(Lookup(len(tables) - 1, tuple(bits[:kept]), (len(domains),)))
        domains.append(UInt(kept))
        if each.ties:
            tables.append(TableData((np.arange(2**each.shift) == 0).astype(np.int64)[:, None], (1,)))
            lookups.append(Lookup(len(tables) - 1, tuple(bits[kept:]), (len(domains),)))
            domains.append(UInt(1))
    return Table((source,), edge.carrying(domains), tuple(tables), tuple(lookups), name=name)


def _clamp(each: Scaling, domain: Domain) -> TableData:
    """The bits that are kept, and perhaps a tie in the lowest place -> codes of the nearest value of a domain."""
    bits = each.domain.bits - each.shift
    numbers = np.arange(2**bits)
    if each.domain.signed:
        numbers = np.where(numbers >= 2 ** (bits - 1), numbers - 2**bits, numbers)
    if each.ties:
        numbers = np.stack([numbers, numbers - numbers % 2], 1).reshape(-1)
    values = torch.from_numpy(np.clip(numbers, domain.low, domain.high))
    return TableData(domain.encode(values).numpy().astype(np.int64)[:, None], (domain.bits,))

"""Whole numbers in place of codes: what a sensor or a camera gives goes into a circuit as it is.

A model of columns compares codes. Where the code never falls while the value rises, a threshold on the code is one on the value,
and needs no code at all. Where two columns are compared with each other, and for categories, the codes are made: by a table, or
of wide values by a comparator for every step of the code. A column that may be missing has a second input, of one bit, behind
its value: without it the code is 0, and no comparison holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lutetia.errors import ArgumentError
from lutetia.precompute.ir.graph import Builder, Graph
from lutetia.precompute.ir.stream import Compare, Input, Lookup, Register, StreamEdge, Sum, Table, TableData, Wire
from lutetia.precompute.passes.dedupe import dedupe
from lutetia.precompute.tables.domains import Binary, Domain, domain_for

MOST_ADDRESS = 16  # bits of a value whose code is read from a table: of 16 bits 1,111 LUTs, where comparators took 2,060


@dataclass(frozen=True, eq=False)
class RisingCodes:
    """Codes that never fall: 1, and 1 more for each of the `steps`, int64 [n], that the value is above."""

    steps: np.ndarray

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Values of any shape -> their codes, int64."""
        return 1 + np.searchsorted(np.sort(self.steps), values)


@dataclass(frozen=True, eq=False)
class ListedCodes:
    """A code for each value from 0 on: int64 [2**bits]."""

    codes: np.ndarray

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Values of any shape -> their codes, int64."""
        return self.codes[values]


@dataclass(frozen=True, eq=False)
class ValueColumn:
    """A column: a domain that uses all its codes, by the number of each input of the graph that is made from the column the codes
    of its values, and whether a bit says that there is a value."""

    domain: Domain
    codes: Mapping[int, RisingCodes | ListedCodes]
    valid: bool = False


class _Place(NamedTuple):
    """Where a column is: its channel, that of its valid bit or -1, and what it is."""

    value: int
    valid: int
    column: ValueColumn


Source = Mapping[int, _Place]  # by the number of a code, its column


def on_values(graph: Graph, columns: Sequence[ValueColumn]) -> Graph:
    """A graph whose input is codes, which it only compares, as one whose input is the values of the columns."""
    readers = [graph.nodes[number] for number in graph.readers()[0]]
    if not all(isinstance(node, Compare) for node in readers):
        raise ArgumentError(f"the input goes to a {readers[0].kind}, expected comparisons only")
    domains: list[Domain] = []
    source: dict[int, _Place] = {}
    for column in columns:
        place = _Place(len(domains), len(domains) + 1 if column.valid else -1, column)
        domains += [column.domain, Binary()] if column.valid else [column.domain]
        source |= dict.fromkeys(column.codes, place)
    asked = [node for node in readers if isinstance(node, Compare)]
    coded = sorted({number for node in asked for number in _coded(node, source)})
    builder = Builder()
    given = builder.add(Input((), StreamEdge(tuple(domains)), name=graph.nodes[0].name))
    joined = _codes(builder, given, coded, source) if coded else given
    made = {number: len(domains) + at for at, number in enumerate(coded)}
    places = {0: joined}
    for number, node in enumerate(graph.nodes[1:], 1):
        if isinstance(node, Compare) and node.sources == (0,):
            places[number] = _compared(builder, joined, node, source, made)
        else:
            places[number] = builder.add(replace(node, sources=tuple(places[each] for each in node.sources)))
    return dedupe(Graph(builder.nodes, places[graph.output]))


def _coded(node: Compare, source: Source) -> list[int]:
    """The codes that comparisons need: of two columns that are compared, and of one whose codes rise and fall."""
    is_pair = node.right >= 0
    listed = [each for each in node.left[~is_pair].tolist() if isinstance(source[each].column.codes[each], ListedCodes)]
    return [*node.left[is_pair].tolist(), *node.right[is_pair].tolist(), *listed]


def _compared(builder: Builder, given: int, node: Compare, source: Source, made: Mapping[int, int]) -> int:
    """The same comparisons of values, or of codes where these are `made`; none of a value that is missing holds."""
    left, right, constant = node.left.copy(), node.right.copy(), node.constant.copy()
    valid = np.full(len(left), -1)
    for lane, (this, that) in enumerate(zip(node.left.tolist(), node.right.tolist(), strict=True)):
        place = source[this]
        codes = place.column.codes[this]
        if that >= 0 or isinstance(codes, ListedCodes):
            left[lane], right[lane] = made[this], made.get(that, -1)
            constant[lane] = min(int(constant[lane]), builder.edge(given).domains[made[this]].high)
        elif node.constant[lane] < 1 and place.valid >= 0:
            left[lane], constant[lane] = place.valid, node.constant[lane]  # every value has a code of at least 1
        else:
            left[lane], valid[lane] = place.value, place.valid
            constant[lane] = _last(codes, int(node.constant[lane]), place.column.domain)
    compared = builder.add(replace(node, sources=(given,), left=left, right=right, constant=constant))
    return _where_valid(builder, compared, given, valid)


def _last(codes: RisingCodes, code: int, domain: Domain) -> int:
    """The greatest value whose code is not above this one; one less than the least where there is none."""
    if code < 1:
        return domain.low - 1
    steps = np.sort(codes.steps)
    return int(steps[code - 1]) if code <= len(steps) else domain.high


def _where_valid(builder: Builder, source: int, given: int, valid: np.ndarray) -> int:
    """The channels of a node, of which some are 0 where a bit of the input is, whose channel is in `valid`, else -1."""
    edge, own = builder.edge(source), np.flatnonzero(valid >= 0)
    if not len(own):
        return source
    pairs = np.stack([edge.channels + valid[own], own], 1).reshape(-1)
    joined = edge.carrying([each for at in own.tolist() for each in (Binary(), edge.domains[at])])
    wire = builder.add(Wire((source, given), joined, pairs, name="valid"))
    sizes = sorted({edge.domains[at].bits for at in own.tolist()})
    tables = tuple(
        TableData(np.concatenate([np.zeros(2**bits, np.int64), np.arange(2**bits)])[:, None], (bits,)) for bits in sizes
    )
    lookups = tuple(
        Lookup(sizes.index(edge.domains[at].bits), (*joined.bits_of(2 * place), *joined.bits_of(2 * place + 1)), (place,))
        for place, at in enumerate(own.tolist())
    )
    kept = edge.carrying([domain_for(0, edge.domains[at].high) for at in own.tolist()])
    gated = builder.add(Table((wire,), kept, tables, lookups, name="valid"))
    index, domains = np.arange(edge.channels), list(edge.domains)
    index[own] = edge.channels + np.arange(len(own))
    for at, domain in zip(own.tolist(), kept.domains, strict=True):
        domains[at] = domain
    return builder.add(Wire((source, gated), edge.carrying(domains), index, name="valid"))


def _codes(builder: Builder, given: int, coded: Sequence[int], source: Source) -> int:
    """The values, and behind them the codes that are needed."""
    values = builder.edge(given)
    parts, domains = [given], [*values.domains]
    wide = [number for number in coded if _is_wide(source[number].column, number)]
    order: dict[int, int] = {}
    for numbers, make in (([number for number in coded if number not in wide], _by_tables), (wide, _by_comparators)):
        if numbers:
            parts.append(make(builder, given, numbers, source))
            order |= {number: len(domains) + at for at, number in enumerate(numbers)}
            domains += builder.edge(parts[-1]).domains
    index = np.array([*range(values.channels), *(order[number] for number in coded)])
    both = values.carrying([domains[each] for each in index])
    wire = builder.add(Wire(tuple(parts), both, index, name="codes"))
    return builder.add(Register((wire,), both, name="codes"))


def _is_wide(column: ValueColumn, number: int) -> bool:
    return column.domain.bits > MOST_ADDRESS and isinstance(column.codes[number], RisingCodes)


def _by_tables(builder: Builder, given: int, numbers: Sequence[int], source: Source) -> int:
    """Codes that are read from tables, by the bits of a value and that which says that there is one."""
    values, tables, lookups, domains = builder.edge(given), [], [], []
    for at, number in enumerate(numbers):
        place = source[number]
        codes = place.column.codes[number](place.column.domain.values().numpy())  # in the order of the bits of a value
        codes = np.concatenate([np.zeros_like(codes), codes]) if place.valid >= 0 else codes
        address = [*(values.bits_of(place.valid) if place.valid >= 0 else ()), *values.bits_of(place.value)]
        domains.append(domain_for(0, int(codes.max())))
        tables.append(TableData(codes[:, None], (domains[-1].bits,)))
        lookups.append(Lookup(at, tuple(address), (at,)))
    return builder.add(Table((given,), values.carrying(domains), tuple(tables), tuple(lookups), name="codes"))


def _by_comparators(builder: Builder, given: int, numbers: Sequence[int], source: Source) -> int:
    """Codes that count the steps which a value is above."""
    values, places = builder.edge(given), [source[number] for number in numbers]
    codes = [place.column.codes[number] for place, number in zip(places, numbers, strict=True)]
    steps = [own.steps for own in codes if isinstance(own, RisingCodes)]
    counts = [len(own) for own in steps]
    left = np.repeat([place.value for place in places], counts)
    lanes = values.carrying([Binary()] * len(left))
    compared = builder.add(Compare((given,), lanes, left, np.full(len(left), -1), np.concatenate(steps), name="steps"))
    edge = values.carrying([domain_for(1, 1 + count) for count in counts])
    start, index, one = np.concatenate([[0], np.cumsum(counts)]), np.arange(len(left)), np.ones(len(left), dtype=np.int64)
    summed = builder.add(Sum((compared,), edge, start, index, one, np.ones(len(counts), dtype=np.int64), name="codes"))
    return _where_valid(builder, summed, given, np.array([place.valid for place in places]))

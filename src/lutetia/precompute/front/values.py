"""Whole numbers in place of codes: what a sensor or a camera gives goes into a circuit as it is.

A model of columns compares codes. Where the code never falls while the value rises, a threshold on the code is one on the value,
and needs no code at all. Where two columns are compared with each other, and for categories, a table makes the codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lutetia.errors import ArgumentError
from lutetia.precompute.ir.graph import Builder, Graph
from lutetia.precompute.ir.stream import Compare, Input, Lookup, Register, StreamEdge, Table, TableData, Wire
from lutetia.precompute.passes.dedupe import dedupe
from lutetia.precompute.tables.domains import Domain


@dataclass(frozen=True, eq=False)
class ValueColumn:
    """A column: a domain that uses all its codes, and by the number of each input of the graph that is made from the column the
    code for each value, from the lowest on: int64 [2**bits]."""

    domain: Domain
    codes: Mapping[int, np.ndarray]


def on_values(graph: Graph, columns: Sequence[ValueColumn]) -> Graph:
    """A graph whose input is codes, which it only compares, as one whose input is the values of the columns."""
    readers = [graph.nodes[number] for number in graph.readers()[0]]
    if not all(isinstance(node, Compare) for node in readers):
        raise ArgumentError(f"the input goes to a {readers[0].kind}, expected comparisons only")
    asked = [node for node in readers if isinstance(node, Compare)]
    source = {number: (place, column) for place, column in enumerate(columns) for number in column.codes}
    coded = sorted({number for node in asked for number in _coded(node, source)})
    builder = Builder()
    given = builder.add(Input((), StreamEdge(tuple(column.domain for column in columns)), name=graph.nodes[0].name))
    joined = _codes(builder, given, coded, source, graph.input_edge) if coded else given
    place = {0: joined}
    for number, node in enumerate(graph.nodes[1:], 1):
        if isinstance(node, Compare) and node.sources == (0,):
            node = _on_values(node, source, {each: len(columns) + at for at, each in enumerate(coded)})
        place[number] = builder.add(replace(node, sources=tuple(place[each] for each in node.sources)))
    return dedupe(Graph(builder.nodes, place[graph.output]))


Source = Mapping[int, tuple[int, ValueColumn]]  # by the number of a code, the place of its column


def _coded(node: Compare, source: Source) -> list[int]:
    """The codes that comparisons need: of two columns that are compared, and of one that rises and falls."""
    is_pair = node.right >= 0
    falls = [each for each in np.unique(node.left[~is_pair]).tolist() if (np.diff(source[each][1].codes[each]) < 0).any()]
    return [*node.left[is_pair].tolist(), *node.right[is_pair].tolist(), *falls]


def _codes(builder: Builder, given: int, coded: Sequence[int], source: Source, codes: StreamEdge) -> int:
    """The values, and behind them the codes that are needed, made by tables."""
    values = builder.edge(given)
    tables, lookups = [], []
    for at, number in enumerate(coded):
        place, column = source[number]
        order = column.domain.values().numpy() - column.domain.low  # a table is read by the bits of a value
        tables.append(TableData(column.codes[number][order][:, None], (codes.domains[number].bits,)))
        lookups.append(Lookup(at, tuple(values.bits_of(place)), (at,)))
    own = values.carrying([codes.domains[number] for number in coded])
    made = builder.add(Table((given,), own, tuple(tables), tuple(lookups), name="codes"))
    both = values.carrying([*values.domains, *own.domains])
    wire = builder.add(Wire((given, made), both, np.arange(both.channels), name="codes"))
    return builder.add(Register((wire,), both, name="codes"))


def _on_values(node: Compare, source: Source, coded: Mapping[int, int]) -> Compare:
    """The same comparisons of values, or of codes where these are made."""
    left, right, constant = node.left.copy(), node.right.copy(), node.constant.copy()
    for lane, (this, that) in enumerate(zip(node.left.tolist(), node.right.tolist(), strict=True)):
        place, column = source[this]
        codes = column.codes[this]
        if that >= 0 or (np.diff(codes) < 0).any():
            left[lane], right[lane] = coded[this], coded.get(that, -1)
        else:
            left[lane], constant[lane] = place, column.domain.low - 1 + int((codes <= node.constant[lane]).sum())
    return replace(node, left=left, right=right, constant=constant)

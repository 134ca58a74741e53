"""`fuse`: merge a table with the tables it reads, where the result is small enough and costs no more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lutetia.errors import check_range
from lutetia.precompute.front.support import reduce_lookups
from lutetia.precompute.ir.balance import balance
from lutetia.precompute.ir.cost import table_luts
from lutetia.precompute.ir.graph import Graph, without_dead_nodes
from lutetia.precompute.ir.stream import Lookup, Register, StreamEdge, Table, TableData, Wire
from lutetia.precompute.passes.dontcare import dont_cares
from lutetia.precompute.passes.prune import prune


def fuse(graph: Graph, budget: int) -> Graph:
    """Merge tables, from the input on, until none can be merged any more."""
    check_range("budget", budget, 1, 20)
    tried: set[int] = set()
    while True:
        number = next((at for at in graph.of_kind(Table) if id(graph.nodes[at]) not in tried), None)
        if number is None:
            return balance(prune(dont_cares(graph)))
        merged = _merged(graph, number, budget)
        if merged is None:
            tried.add(id(graph.nodes[number]))
        else:
            nodes = list(graph.nodes)
            nodes[number] = merged
            graph = without_dead_nodes(graph.replaced(nodes, graph.output))


def _merged(graph: Graph, number: int, budget: int) -> Table | None:
    """The table fused with the one before it, or None."""
    node = graph.nodes[number]
    assert isinstance(node, Table)
    before, wires = _before(graph, node)
    if before is None:
        return None
    first = graph.nodes[before]
    assert isinstance(first, Table)
    edge = graph.nodes[node.source].edge
    tables: list[TableData] = []
    lookups: list[Lookup] = []
    for lookup in node.lookups:
        made = _compose(lookup, node.tables[lookup.table], edge, wires, first, budget)
        if made is None:
            return None
        lookups.append(replace(made[1], table=len(tables)))
        tables.append(made[0])
    reduced, lookups = reduce_lookups(tables, lookups)
    old = sum(table_luts(node.tables[lookup.table]) for lookup in node.lookups)
    if _only_reader(graph, before, number):
        old += sum(table_luts(first.tables[lookup.table]) for lookup in first.lookups)
    if sum(table_luts(reduced[lookup.table]) for lookup in lookups) > old:
        return None
    return replace(node, sources=first.sources, tables=tuple(reduced), lookups=tuple(lookups))


def _before(graph: Graph, node: Table) -> tuple[int | None, np.ndarray]:
    """The table before a table, seen through pipeline registers and wires; and for each channel read here, its channel there."""
    index = np.arange(graph.nodes[node.source].edge.channels)
    at = node.source
    while True:
        found = graph.nodes[at]
        if isinstance(found, Wire) and len(found.sources) == 1:
            index = found.index[index]
        elif isinstance(found, Table):
            return at, index
        elif not isinstance(found, Register):
            return None, index
        at = found.source


def _only_reader(graph: Graph, first: int, last: int) -> bool:
    readers = graph.readers()
    at = last
    while at != first:
        at = graph.nodes[at].sources[0]
        if len(readers[at]) > 1 or at == graph.output:
            return False
    return True


def _compose(
    lookup: Lookup, table: TableData, edge: StreamEdge, wires: np.ndarray, first: Table, budget: int
) -> tuple[TableData, Lookup] | None:
    """One lookup through the tables that feed it."""
    writers = {output: (inner, column) for inner in first.lookups for column, output in enumerate(inner.outputs)}
    at = np.array(lookup.inputs, dtype=np.int64)
    channels = np.searchsorted(edge.offsets, at, side="right") - 1
    bits = at - edge.offsets[channels]
    sources = [writers[int(wires[channel])] for channel in channels]
    inputs = list(dict.fromkeys(bit for inner, _ in sources for bit in inner.inputs))
    if len(inputs) > budget:
        return None
    k = len(inputs)
    place = {bit: k - 1 - position for position, bit in enumerate(inputs)}
    numbers = np.arange(2**k)
    address = np.zeros(2**k, dtype=np.int64)
    care = np.ones(2**k, dtype=bool)
    for (inner, column), bit in zip(sources, bits, strict=True):
        rows = np.zeros(2**k, dtype=np.int64)
        for read in inner.inputs:
            rows = (rows << 1) | (numbers >> place[read] & 1)
        rows ^= inner.flip
        data = first.tables[inner.table]
        address = (address << 1) | (data.contents[rows, column].astype(np.int64) >> bit & 1)
        if data.care is not None:
            care &= data.care[rows]
    address ^= lookup.flip
    if table.care is not None:
        care &= table.care[address]
    made = TableData(table.contents[address], table.bits, None if care.all() else care)
    return made, Lookup(0, tuple(inputs), lookup.outputs)

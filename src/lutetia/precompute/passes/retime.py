"""Where the pipeline registers go: at the narrowest cuts that leave at most a given number of logic levels between two of them.

Sums of many bits are split into sums of sums, and an argmax into comparisons of all pairs, where they alone have more levels.
Three registers and more are a row without enables, which would have to reach every flip-flop: all samples move in every cycle,
and a queue at the end, where they are narrow, holds those that nobody takes. What is computed does not change; the latency does.
Graphs with joins or windows keep the registers they have.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np

from lutetia.errors import check_range
from lutetia.precompute.ir.graph import Builder, Graph, without_dead_nodes
from lutetia.precompute.ir.stream import (
    Argmax,
    Compare,
    Lookup,
    Pool,
    Register,
    Row,
    StreamEdge,
    StreamNode,
    Sum,
    Table,
    TableData,
)
from lutetia.precompute.tables.domains import Binary, domain_for

SHORTEST_ROW = 3  # registers of a row; fewer wait for each other
SHORT_WORD = 3  # bits of terms that are added in fours within a level; of longer ones two, as each addition is a carry chain
MOST_CLASSES = 13  # of an argmax by pairs: a table of each class reads all comparisons with it


def retime(graph: Graph, levels: int) -> Graph:
    """Move the registers of a chain of nodes; any other graph stays as it is."""
    check_range("levels", levels, 1, 64)
    graph = without_dead_nodes(graph)
    if any(len(node.sources) > 1 or (node.latency and not isinstance(node, Register)) for node in graph.nodes):
        return graph
    if any(len(readers) > 1 for readers in graph.readers()):
        return graph
    builder = Builder()
    last = 0
    for node in graph.nodes:
        if isinstance(node, Register):
            continue
        edges = [builder.edge(last)] if builder.nodes else []
        if isinstance(node, Sum) and _levels(node, edges) > levels:
            last = _sum_of_sums(builder, node, last, levels)
        elif isinstance(node, Argmax) and _levels(node, edges) > levels and 2 < edges[0].channels <= MOST_CLASSES:
            last = _argmax_by_pairs(builder, node, last)
        else:
            last = builder.add(replace(node, sources=(last,) if builder.nodes else ()))
    return _registered(graph, builder.nodes, levels)


def _registered(graph: Graph, nodes: list[StreamNode], levels: int) -> Graph:
    """Place registers so that their total number of bits is least: best[i] is the least with one after node i."""
    edges = [[nodes[number - 1].edge] if number else [] for number in range(len(nodes))]
    depth = np.cumsum([_levels(node, own) for node, own in zip(nodes, edges, strict=True)])
    best, before = [0], [0]  # the input counts as registered
    for place in range(1, len(nodes)):
        fits = [start for start in range(place) if depth[place] - depth[start] <= levels] or [place - 1]
        start = min(fits, key=lambda each: best[each])
        best.append(best[start] + nodes[place].edge.width)
        before.append(start)
    chosen, place = [len(nodes) - 1], len(nodes) - 1
    while before[place]:
        place = before[place]
        chosen.append(place)
    builder = Builder()
    for number, node in enumerate(nodes):
        sources = (len(builder.nodes) - 1,) if number else ()
        builder.add(replace(node, sources=sources))
        if number in chosen and number:
            builder.add(_register(len(builder.nodes) - 1, node, chosen[::-1].index(number), len(chosen)))
    return graph.replaced(builder.nodes)


def _register(source: int, node: StreamNode, place: int, count: int) -> Register:
    """The register at a place among so many."""
    row: Row = "" if count < SHORTEST_ROW else "first" if not place else "middle" if place < count - 1 else "last"
    return Register((source,), node.edge, depth=count + 1 if row == "last" else 1, row=row, name=node.name)


def _levels(node: StreamNode, edges: list[StreamEdge]) -> int:
    """Roughly how many LUTs are in series."""
    if isinstance(node, Table):
        widest = max((table.k for table in node.tables), default=0)
        return 1 + max(0, math.ceil((widest - 6) / 2)) if widest > 1 else 0
    if isinstance(node, Sum):
        terms = int(np.diff(node.start).max(initial=0))
        return 1 if terms <= 1 else math.ceil(math.log2(terms)) + 1
    if isinstance(node, Compare):
        return 2
    if isinstance(node, Pool):
        return 3 * (node.taps - 1)
    if isinstance(node, Argmax):
        return 4 * math.ceil(math.log2(max(edges[0].channels, 2)))
    return 0


def _sum_of_sums(builder: Builder, node: Sum, source: int, levels: int) -> int:
    """Terms in groups, their sums, and the sums of these."""
    edge = builder.edge(source)
    size = 2 ** max(levels - 1, 2)
    if levels == 1 and max((edge.domains[channel].bits for channel in node.index.tolist()), default=0) > SHORT_WORD:
        size = 2
    if int(np.diff(node.start).max(initial=0)) <= size:
        return builder.add(replace(node, sources=(source,)))
    first, domains, starts = [0], [], [0]
    for output in range(len(node.bias)):
        for begin in range(int(node.start[output]), int(node.start[output + 1]), size):
            end = min(begin + size, int(node.start[output + 1]))
            low = high = 0
            for place in range(begin, end):
                domain, factor = edge.domains[int(node.index[place])], int(node.coefficient[place])
                ends = sorted((factor * domain.low, factor * domain.high))
                low, high = low + ends[0], high + ends[1]
            first.append(end)
            domains.append(domain_for(low, high))
        starts.append(len(domains))
    zeros, ones = np.zeros(len(domains), dtype=np.int64), np.ones(len(domains), dtype=np.int64)
    parts = Sum((source,), edge.carrying(domains), np.array(first), node.index, node.coefficient, zeros, name=node.name)
    made = builder.add(parts)
    total = Sum((made,), node.edge, np.array(starts), np.arange(len(domains)), ones, node.bias, name=node.name)
    return builder.add(total) if len(domains) == len(node.bias) else _again(builder, total, made, levels)


def _again(builder: Builder, total: Sum, source: int, levels: int) -> int:
    """The sum of sums, split once more where it is still too deep."""
    deep = _levels(total, [builder.edge(source)]) > levels
    return _sum_of_sums(builder, total, source, levels) if deep else builder.add(total)


def _argmax_by_pairs(builder: Builder, node: Argmax, source: int) -> int:
    """Compare every pair; the class that no other beats wins; the number of the winner."""
    edge = builder.edge(source)
    count, bits = edge.channels, node.edge.width
    pairs = list(combinations(range(count), 2))  # lane of (i, j): x[j] > x[i], so that the first of equals wins
    left, right = (np.array([pair[place] for pair in pairs], dtype=np.int64) for place in (1, 0))
    lanes = edge.carrying([Binary()] * len(pairs))
    compared = builder.add(Compare((source,), lanes, left, right, np.zeros(len(pairs), dtype=np.int64), name=node.name))
    tables, lookups = [], []
    for own in range(count):
        read = [lane for lane, pair in enumerate(pairs) if own in pair]
        # It wins where it beats all before it, and none after it beats it.
        wanted = sum(int(pairs[lane][1] == own) << (len(read) - 1 - place) for place, lane in enumerate(read))
        tables.append(TableData((np.arange(2 ** len(read)) == wanted).astype(np.int64)[:, None], (1,)))
        lookups.append(Lookup(own, tuple(read), (own,)))
    wins = builder.add(Table((compared,), edge.carrying([Binary()] * count), tuple(tables), tuple(lookups), name=node.name))
    rows = np.arange(2**count)
    winner = np.zeros(2**count, dtype=np.int64)  # exactly one bit is set; the first class is the highest address bit
    for own in range(count):
        winner[rows == 1 << (count - 1 - own)] = own
    care = np.array([row.bit_count() == 1 for row in rows.tolist()])
    table = TableData(winner[:, None], (bits,), care)
    return builder.add(Table((wins,), node.edge, (table,), (Lookup(0, tuple(range(count)), (0,)),), name=node.name))

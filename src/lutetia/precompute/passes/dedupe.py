"""`dedupe`: build equal parts once.

Lookups of the same rows at the same bits, and equal comparisons, become one with a wire after it. Tables with the same rows
become one table; then also tables that are the same after their inputs are permuted or negated. For the latter every table gets a
canonical form, with its own input order and polarity: by how the rows are distributed over the two values of each input, which
does not depend on the order or polarity of the others. Inputs with equal distributions may end up in the wrong order, so that a
pair is missed, but tables are compared row by row before they are merged.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lutetia.precompute.ir.balance import balance
from lutetia.precompute.ir.graph import Builder, Graph
from lutetia.precompute.ir.stream import Compare, Lookup, Register, StreamEdge, StreamNode, Sum, Table, TableData, Wire
from lutetia.precompute.passes.prune import prune

MIXER = 0x9E3779B97F4A7C15


def dedupe(graph: Graph) -> Graph:
    """Build equal nodes once, and drop unused ones."""
    graph = _share_tables(graph)
    builder = Builder()
    place: dict[int, int] = {}
    for number, node in enumerate(graph.nodes):
        node = _past_wires(builder, replace(node, sources=tuple(place[source] for source in node.sources)))
        if isinstance(node, Table):
            place[number] = _unique_lookups(builder, node)
        elif isinstance(node, Compare):
            place[number] = _unique_lanes(builder, node)
        elif isinstance(node, Register):
            place[number] = _before_wire(builder, node)
        else:
            place[number] = builder.add(node)
    return balance(prune(graph.replaced(builder.nodes, place[graph.output])))


def _past_wires(builder: Builder, node: StreamNode) -> StreamNode:
    """Let a node that reads a wire read the wire's source instead: only then do equal nodes behind different wires look equal."""
    while (
        isinstance(node, Table | Compare | Sum)
        and isinstance(wire := builder.nodes[node.source], Wire)
        and len(wire.sources) == 1
    ):
        index = wire.index
        if isinstance(node, Compare):
            right = np.where(node.right >= 0, index[np.maximum(node.right, 0)], -1)
            node = replace(node, sources=wire.sources, left=index[node.left], right=right)
        elif isinstance(node, Sum):
            node = replace(node, sources=wire.sources, index=index[node.index])
        else:
            before, after = wire.edge.offsets, builder.edge(wire.source).offsets
            channel = np.repeat(np.arange(len(index)), np.diff(before))
            bits = after[index[channel]] + np.arange(len(channel)) - before[channel]
            lookups = [replace(lookup, inputs=tuple(bits[list(lookup.inputs)].tolist())) for lookup in node.lookups]
            node = replace(node, sources=wire.sources, lookups=tuple(lookups))
    return node


def _before_wire(builder: Builder, node: Register) -> int:
    """Move a register behind a wire that duplicates channels in front of it, where there are fewer."""
    wire = builder.nodes[node.source]
    if not isinstance(wire, Wire) or len(wire.sources) > 1 or builder.edge(wire.source).channels >= node.edge.channels:
        return builder.add(node)
    kept = builder.add(replace(node, sources=wire.sources, edge=builder.edge(wire.source)))
    return builder.add(replace(wire, sources=(kept,)))


def _unique_lookups(builder: Builder, node: Table) -> int:
    first: dict[tuple[int, tuple[int, ...], int], int] = {}
    kept: list[Lookup] = []
    index = np.empty(node.edge.channels, dtype=np.int64)
    firsts = []
    size = 0
    for lookup in node.lookups:
        key = (lookup.table, lookup.inputs, lookup.flip)
        if key not in first:
            first[key] = len(kept)
            firsts.append(size)
            kept.append(replace(lookup, outputs=tuple(range(size, size + len(lookup.outputs)))))
            size += len(lookup.outputs)
        at = firsts[first[key]]
        index[list(lookup.outputs)] = np.arange(at, at + len(lookup.outputs))
    if len(kept) == len(node.lookups):
        return builder.add(node)
    return _wired(builder, node, index, size, lambda edge: replace(node, edge=edge, lookups=tuple(kept)))


def _unique_lanes(builder: Builder, node: Compare) -> int:
    lanes = np.stack([node.left, node.right, np.where(node.right >= 0, 0, node.constant)])
    unique, index = np.unique(lanes, axis=1, return_inverse=True)
    index = index.ravel()
    if unique.shape[1] == lanes.shape[1]:
        return builder.add(node)
    left, right, constant = unique
    return _wired(
        builder, node, index, len(left), lambda edge: replace(node, edge=edge, left=left, right=right, constant=constant)
    )


def _wired(builder: Builder, node: StreamNode, index: np.ndarray, size: int, make) -> int:  # type: ignore[no-untyped-def]
    """A narrower node, and a wire that puts its channels back in their places."""
    own = np.empty(size, dtype=np.int64)
    own[index] = np.arange(len(index))
    edge: StreamEdge = node.edge.carrying([node.edge.domains[at] for at in own], [node.edge.scale[at] for at in own])
    return builder.add(Wire((builder.add(make(edge)),), node.edge, index, name=node.name))


# ---- tables ----------------------------------------------------------------------------------------------------------


def _share_tables(graph: Graph) -> Graph:
    """One `TableData` for all lookups, of all nodes, that can share it."""
    originals: dict[object, TableData] = {}  # by rows
    forms: dict[object, tuple[TableData, tuple[int, ...], int]] = {}  # by rows, the canonical form and how to get there
    groups: dict[object, list[object]] = {}  # by rows of the canonical form, the tables that have it
    for node in graph.nodes:
        for table in node.tables if isinstance(node, Table) else ():
            if table.key not in originals:
                originals[table.key] = table
                forms[table.key] = canonical(table)
                groups.setdefault(forms[table.key][0].key, []).append(table.key)
    shared = {key: forms[members[0]][0] for key, members in groups.items() if len(members) > 1}
    return graph.replaced(
        [_shared(node, originals, forms, shared) if isinstance(node, Table) else node for node in graph.nodes], graph.output
    )


def _shared(node: Table, originals: dict, forms: dict, shared: dict) -> Table:
    numbers: dict[object, int] = {}
    tables: list[TableData] = []
    lookups = []
    for lookup in node.lookups:
        key: object = node.tables[lookup.table].key
        form, order, flip = forms[key]
        table = originals[key]
        if form.key in shared:
            table = shared[form.key]
            inputs = tuple(lookup.inputs[place] for place in order)
            moved = _moved(lookup.flip, order)
            lookup = replace(lookup, inputs=inputs, flip=moved ^ flip)
        number = numbers.setdefault(table.key, len(tables))
        if number == len(tables):
            tables.append(table)
        lookups.append(replace(lookup, table=number))
    return replace(node, tables=tuple(tables), lookups=tuple(lookups))


def _moved(mask: int, order: tuple[int, ...]) -> int:
    """A mask over address bits, after the bits are put into an order (0 is the most significant one)."""
    k, moved = len(order), 0
    for place in order:
        moved = (moved << 1) | (mask >> (k - 1 - place) & 1)
    return moved


def canonical(table: TableData) -> tuple[TableData, tuple[int, ...], int]:
    """The canonical form of a table: the table, the input order, and which outputs to flip."""
    k = table.k
    if k == 0:
        return table, (), 0
    words = _hashes(table)
    keys = []
    negated = []
    for bit in range(k):
        halves = words.reshape(2**bit, 2, -1)
        zero, one = (int(halves[:, value].sum(dtype=np.uint64)) for value in (0, 1))
        negated.append(one < zero)
        keys.append((min(zero, one), max(zero, one)))
    order = tuple(sorted(range(k), key=keys.__getitem__))
    flip = 0
    for place in order:
        flip = (flip << 1) | negated[place]
    # The row of canonical address a is the one whose bit order[j] is bit j of a, flipped where negated.
    addresses = np.arange(2**k) ^ flip
    sources = np.zeros(2**k, dtype=np.int64)
    for j, place in enumerate(order):
        sources |= (addresses >> (k - 1 - j) & 1) << (k - 1 - place)
    care = None if table.care is None else table.care[sources]
    return replace(table, contents=table.contents[sources], care=care, form=None), order, flip


def _hashes(table: TableData) -> np.ndarray:
    """A number for each row that tells different rows apart: uint64 [2**k]. Don't-care rows all get the same number."""
    words = table.words.astype(np.uint64) + np.uint64(1)
    if table.care is not None:
        words = np.where(table.care, words, np.uint64(0))
    words = words * np.uint64(MIXER)
    words ^= words >> np.uint64(29)
    return words * np.uint64(MIXER)

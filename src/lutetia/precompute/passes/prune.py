"""Remove channels that nothing reads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia.precompute.ir.graph import Builder, Graph, without_dead_nodes
from lutetia.precompute.ir.stream import Compare, Input, Layer, Pool, Register, Sum, Table, Unpack, Window, Wire

if TYPE_CHECKING:
    from lutetia.precompute.ir.stream import StreamEdge, StreamNode, TableData


def prune(graph: Graph) -> Graph:
    """The graph without dead nodes and channels; input and output keep theirs."""
    graph = without_dead_nodes(graph)
    live = _live(graph)
    kept = [np.flatnonzero(channels) for channels in live]
    if all(len(each) == node.edge.channels for each, node in zip(kept, graph.nodes, strict=True)):
        return graph
    maps = []
    for channels in live:
        index = np.cumsum(channels) - 1
        maps.append(np.where(channels, index, -1))
    builder = Builder()
    place: dict[int, int] = {}
    for number, node in enumerate(graph.nodes):
        sources = [place[source] for source in node.sources]
        if isinstance(node, Register | Window | Pool):
            sources = [_selected(builder, sources[0], node, live[number], maps[node.source])]
        made = _narrowed(graph, node, kept[number], maps, live)
        if isinstance(node, Window):
            fill = tuple(np.array(node.fill)[live[number][:: node.taps]].tolist())
            made = replace(node, edge=made.edge, fill=fill)
        place[number] = builder.add(replace(made, sources=tuple(sources)))
    return without_dead_nodes(graph.replaced(builder.nodes, place[graph.output]))


def _selected(builder: Builder, source: int, node: StreamNode, wanted: np.ndarray, places: np.ndarray) -> int:
    """Exactly the channels needed by a node that passes all its channels on: the source's others may have other readers."""
    if isinstance(node, Window):
        wanted = wanted[:: node.taps]
    elif isinstance(node, Pool):
        wanted = np.repeat(wanted, node.taps)
    index = places[wanted]
    edge = builder.edge(source)
    if len(index) == edge.channels:
        return source
    chosen = edge.carrying([edge.domains[at] for at in index], [edge.scale[at] for at in index])
    return builder.add(Wire((source,), chosen, index, name=node.name))


def _live(graph: Graph) -> list[np.ndarray]:
    """Which channels of each node are read."""
    live = [np.zeros(node.edge.channels, dtype=bool) for node in graph.nodes]
    live[graph.output][:] = True
    live[0][:] = True
    for number in reversed(range(len(graph.nodes))):
        node = graph.nodes[number]
        if isinstance(node, Input):
            continue
        if isinstance(node, Table | Window) and not live[number].any():
            live[number][0] = True  # a node with no channel at all would be none
        if isinstance(node, Unpack):  # parts are samples, which all have the same channels
            live[number][:] = True
        if isinstance(node, Window):  # all taps of a channel come together
            live[number] = np.repeat(live[number].reshape(-1, node.taps).any(1), node.taps)
        read = _read(graph, node, live[number])
        for source, channels in zip(node.sources, read, strict=True):
            live[source] |= channels
            if not live[source].any():
                live[source][0] = True
    return live


def _read(graph: Graph, node: StreamNode, wanted: np.ndarray) -> list[np.ndarray]:
    """Which channels of its sources a node reads for some of its own."""
    sizes = [graph.nodes[source].edge.channels for source in node.sources]
    read = np.zeros(sum(sizes), dtype=bool)
    if isinstance(node, Wire):
        read[node.index[wanted]] = True
    elif isinstance(node, Register):
        read[:] = wanted
    elif isinstance(node, Window):
        read[:] = wanted.reshape(-1, node.taps).any(1)
    elif isinstance(node, Pool):
        read[:] = np.repeat(wanted, node.taps)
    elif isinstance(node, Compare):
        read[node.left[wanted]] = True
        read[node.right[wanted & (node.right >= 0)]] = True
    elif isinstance(node, Sum):
        for output in np.flatnonzero(wanted):
            read[node.index[node.start[output] : node.start[output + 1]]] = True
    elif isinstance(node, Table):
        offsets = graph.nodes[node.source].edge.offsets
        bits = [bit for lookup in node.lookups if wanted[list(lookup.outputs)].any() for bit in lookup.inputs]
        read[np.searchsorted(offsets, np.array(bits, dtype=np.int64), side="right") - 1] = True
    else:
        read[:] = True
    return np.split(read, np.cumsum(sizes)[:-1])


def _narrowed(graph: Graph, node: StreamNode, kept: np.ndarray, maps: list[np.ndarray], live: list[np.ndarray]) -> StreamNode:
    edge = node.edge.carrying([node.edge.domains[at] for at in kept], [node.edge.scale[at] for at in kept])
    changes: dict[str, Any] = {"edge": edge}
    if isinstance(node, Wire):
        joined = np.concatenate([maps[source] for source in node.sources])
        firsts = np.cumsum([0, *(int(live[source].sum()) for source in node.sources)])
        owner = np.concatenate([np.full(len(maps[source]), at) for at, source in enumerate(node.sources)])
        changes["index"] = (joined + firsts[owner])[node.index[kept]]
    elif isinstance(node, Compare):
        source = maps[node.source]
        changes["left"], changes["constant"] = source[node.left[kept]], node.constant[kept]
        changes["right"] = np.where(node.right[kept] >= 0, source[np.maximum(node.right[kept], 0)], -1)
    elif isinstance(node, Sum):
        rows = [slice(int(node.start[output]), int(node.start[output + 1])) for output in kept]
        changes["start"] = np.cumsum([0, *(row.stop - row.start for row in rows)], dtype=np.int64)
        changes["index"] = maps[node.source][np.concatenate([node.index[row] for row in rows])]
        changes["coefficient"] = np.concatenate([node.coefficient[row] for row in rows])
        changes["bias"] = node.bias[kept]
    elif isinstance(node, Table):
        changes.update(_narrowed_table(node, graph.nodes[node.source].edge, kept, maps[node.source]))
    assert not isinstance(node, Layer) or len(kept) == node.edge.channels
    return replace(node, **changes)


def _narrowed_table(node: Table, edge: StreamEdge, kept: np.ndarray, source: np.ndarray) -> dict[str, Any]:
    """Lookups that write something that is read, with their bits where they now lie."""
    widths = np.array([domain.bits for domain in edge.domains])
    new_offsets = np.zeros(len(source) + 1, dtype=np.int64)
    new_offsets[1:] = np.cumsum(np.where(source >= 0, widths, 0))
    place = {int(channel): at for at, channel in enumerate(kept)}
    tables: list[TableData] = []
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    lookups = []
    for lookup in node.lookups:
        columns = [column for column, output in enumerate(lookup.outputs) if output in place]
        if not columns:
            continue
        at = np.array(lookup.inputs, dtype=np.int64)
        channel = np.searchsorted(edge.offsets, at, side="right") - 1
        bits = tuple((new_offsets[channel] + at - edge.offsets[channel]).tolist())
        key = (lookup.table, tuple(columns))
        if key not in numbers:
            numbers[key] = len(tables)
            table = node.tables[lookup.table]
            if len(columns) != len(lookup.outputs):
                contents, widths_ = table.contents[:, columns], tuple(table.bits[column] for column in columns)
                table = replace(table, contents=contents, bits=widths_, form=None)
            tables.append(table)
        outputs = tuple(place[lookup.outputs[column]] for column in columns)
        lookups.append(replace(lookup, table=numbers[key], inputs=bits, outputs=outputs))
    return {"tables": tuple(tables), "lookups": tuple(lookups)}

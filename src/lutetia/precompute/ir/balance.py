"""Skip connections: a short path waits for a long one in a queue that is just deep enough.

Where two paths join, their samples are paired in order. By the time the long path delivers its i-th sample the short path may
have delivered more; a queue must hold these, or the network would deadlock, and as many more as the pipeline registers of the
long path hold, or it would run at half speed. Which input samples each sample needs is counted place by place over one frame.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lutetia.precompute.ir.graph import Builder, Graph, without_dead_nodes
from lutetia.precompute.ir.stream import Input, Register, StreamEdge, StreamNode, Unpack, Window, Wire


def balance(graph: Graph) -> Graph:
    """Replace the queues in front of every join."""
    graph = _stripped(graph)
    needs, latency = _needs(graph)
    builder = Builder()
    place: dict[int, int] = {}
    for number, node in enumerate(graph.nodes):
        sources = [place[source] for source in node.sources]
        if isinstance(node, Wire) and len(node.sources) > 1:
            for at, source in enumerate(node.sources):
                depth = _depth(needs[source], needs[number]) + latency[number] - latency[source]
                if depth:
                    edge = graph.nodes[source].edge
                    sources[at] = builder.add(Register((place[source],), edge, depth=depth, balance=True, name=node.name))
        place[number] = builder.add(replace(node, sources=tuple(sources)))
    return graph.replaced(builder.nodes, place[graph.output])


def _stripped(graph: Graph) -> Graph:
    """Without the queues of an earlier call."""
    skip = {number: node.source for number, node in enumerate(graph.nodes) if isinstance(node, Register) and node.balance}

    def real(number: int) -> int:
        while number in skip:
            number = skip[number]
        return number

    nodes: list[StreamNode] = [replace(node, sources=tuple(map(real, node.sources))) for node in graph.nodes]
    return without_dead_nodes(graph.replaced(nodes, real(graph.output)))


def _needs(graph: Graph) -> tuple[list[np.ndarray], list[int]]:
    """Per node: the input sample that each of its samples has to wait for (-1: none), and the pipeline stages before it."""
    shape = _nominal(graph)
    needs: list[np.ndarray] = []
    shapes: list[tuple[int, ...]] = []
    latency: list[int] = []
    for node in graph.nodes:
        before = max((latency[source] for source in node.sources), default=0)
        latency.append(before + node.latency)
        if isinstance(node, Input):
            needs.append(np.arange(int(np.prod(shape, dtype=np.int64))))
            shapes.append(shape)
        elif isinstance(node, Window):
            made, frame = _through(node, needs[node.source], shapes[node.source])
            needs.append(made)
            shapes.append(frame)
        elif isinstance(node, Unpack):
            needs.append(np.repeat(needs[node.source], node.parts))
            shapes.append((node.parts,))
        else:
            shortest = min(len(needs[source]) for source in node.sources)
            needs.append(np.max([needs[source][:shortest] for source in node.sources], axis=0))
            shapes.append(shapes[node.source] if len(node.sources) == 1 else shapes[node.sources[0]])
    return needs, latency


def _nominal(graph: Graph) -> tuple[int, ...]:
    """The shape of a frame; an endless sequence is cut at a length well beyond all its windows."""
    edge: StreamEdge = graph.nodes[0].edge
    if None not in edge.shape:
        return edge.shape  # type: ignore[return-value]
    stride, field = 1, 1
    for node in graph.nodes:
        if isinstance(node, Window):
            field += (node.kernel[0] - 1) * node.dilation[0] * stride
            stride *= node.stride[0]
    return (4 * field + 16 * stride,)


def _through(node: Window, need: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, tuple[int, ...]]:
    """What each window waits for: the last sample of the frame that lies at or before its last tap."""
    ends = []
    for size, k, s, d, p, q in zip(shape, node.kernel, node.stride, node.dilation, node.padding, node.ends, strict=True):
        count = (size + p + q - (k - 1) * d - 1) // s + 1
        ends.append(np.arange(count) * s + (k - 1) * d - p)
    if len(ends) == 1:
        last = np.minimum(ends[0], shape[0] - 1)
    else:
        y, x = np.meshgrid(*ends, indexing="ij")
        last = np.where(y < 0, -1, np.clip(y, 0, None) * shape[1] + np.clip(x, -1, shape[1] - 1))
        last = np.where(y >= shape[0], shape[0] * shape[1] - 1, last)
    last = last.ravel()
    frame = () if node.edge.layout == "vector" else tuple(len(axis) for axis in ends)
    return np.where(last >= 0, need[np.maximum(last, 0)], -1), frame


def _depth(source: np.ndarray, joined: np.ndarray) -> int:
    """How many samples of a source may have to wait besides the next one.

    Before the input sample that the join needs is accepted, the source has passed on every sample that needed only earlier ones;
    windows completed by padding alone can wait inside their node.
    """
    passed = np.searchsorted(np.maximum.accumulate(source), joined, side="left")
    return max(0, int((passed - np.arange(len(joined))).max(initial=0)))

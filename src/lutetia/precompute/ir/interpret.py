"""The integer interpreter: the meaning of a stream graph. Hardware and every pass must agree with it.

Inside, the samples of a frame are the rows of an int64 array [batch, *shape, channels]; outside it is PyTorch's layout:
[batch, channels], [batch, channels, length] or [batch, channels, height, width].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from lutetia.errors import ArgumentError, check_tensor
from lutetia.precompute.ir.kernels import look_up, sum_up
from lutetia.precompute.ir.stream import (
    Argmax,
    Compare,
    Input,
    Layer,
    Pool,
    Register,
    StreamEdge,
    StreamNode,
    Sum,
    Table,
    Unpack,
    Window,
    Wire,
)

if TYPE_CHECKING:
    from lutetia.precompute.ir.graph import Graph

ELEMENTS = 2**24  # of the widest edge, at once
_plans: WeakKeyDictionary[Table, tuple[np.ndarray, ...]] = WeakKeyDictionary()


def run(graph: Graph, x: Tensor) -> Tensor:
    """Values in, values out, in PyTorch's layout: x [batch, channels, *shape] of whole numbers -> int64."""
    edge = graph.nodes[0].edge
    values = _enter(edge, x)
    return _leave(graph.nodes[graph.output].edge, np.concatenate([frames[graph.output] for frames in _chunks(graph, values)]))


def trace_values(graph: Graph, x: Tensor) -> list[np.ndarray]:
    """What every edge carries: int64 [batch, *shape, channels] for each node."""
    values = _enter(graph.nodes[0].edge, x)
    parts = list(_chunks(graph, values, keep=True))
    return [np.concatenate([part[number] for part in parts]) for number in range(len(graph.nodes))]


def _chunks(graph: Graph, values: np.ndarray, keep: bool = False) -> Any:
    frame = max(1, math.prod(values.shape[1:-1]))
    widest = max(node.edge.channels * (node.edge.samples or frame) for node in graph.nodes)
    size = max(1, ELEMENTS // max(widest, 1))
    last_use = {source: number for number, node in enumerate(graph.nodes) for source in node.sources}
    for begin in range(0, max(len(values), 1), size):
        made: dict[int, np.ndarray] = {}
        for number, node in enumerate(graph.nodes):
            sources = [values[begin : begin + size]] if isinstance(node, Input) else [made[source] for source in node.sources]
            made[number] = evaluate(node, sources, [graph.nodes[source].edge for source in node.sources])
            for source in () if keep else node.sources:
                if last_use[source] == number and source != graph.output:
                    made.pop(source, None)
        yield made


def evaluate(node: StreamNode, sources: list[np.ndarray], edges: list[StreamEdge]) -> np.ndarray:
    """One node: int64 [batch, *shape, channels] of each source -> the same of the node."""
    return RULES[type(node)](node, sources, edges)


def _enter(edge: StreamEdge, x: Tensor) -> np.ndarray:
    expected = ["batch", edge.channels, *("length" if size is None else size for size in edge.shape)]
    check_tensor("x", x, expected)
    whole = x.detach().cpu().to(torch.int64)
    if x.is_floating_point() and not torch.equal(whole.to(x.dtype), x.detach().cpu()):
        raise ArgumentError("x holds numbers that are not whole, expected values of the input's domain (divide by its scale)")
    for channel, domain in enumerate(edge.domains):
        domain.check(f"channel {channel} of x", whole[:, channel])
    return np.ascontiguousarray(np.moveaxis(whole.numpy(), 1, -1))


def _leave(edge: StreamEdge, values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(values, -1, 1)))


# ---- the nodes -------------------------------------------------------------------------------------------------------


def _same(node: StreamNode, sources: list[np.ndarray], edges: list[StreamEdge]) -> np.ndarray:
    return sources[0]


def _wire(node: Wire, sources: list[np.ndarray], edges: list[StreamEdge]) -> np.ndarray:
    joined = sources[0] if len(sources) == 1 else np.concatenate(sources, axis=-1)
    return joined[..., node.index]


def _table(node: Table, sources: list[np.ndarray], edges: list[StreamEdge]) -> np.ndarray:
    x = sources[0]
    codes = encode(edges[0], x.reshape(-1, x.shape[-1]))
    if node not in _plans:
        _plans[node] = _plan(node, edges[0])
    out = np.zeros((len(codes), node.edge.channels), dtype=np.int64)
    look_up(codes, _plans[node], out)
    return out.reshape(*x.shape[:-1], node.edge.channels)


def encode(edge: StreamEdge, values: np.ndarray) -> np.ndarray:
    """Values -> codes: int64 [n, channels]."""
    masks = np.array([2**domain.bits - 1 for domain in edge.domains], dtype=np.int64)
    steps = np.array([domain.step for domain in edge.domains], dtype=np.int64)
    if (steps == 1).all():
        return np.ascontiguousarray(values & masks)
    lows = np.array([domain.low for domain in edge.domains], dtype=np.int64)
    return np.ascontiguousarray(np.where(steps == 1, values & masks, (values - lows) // steps))


def _plan(node: Table, edge: StreamEdge) -> tuple[np.ndarray, ...]:
    """The lookups as flat arrays, and the rows of all tables as values, one after the other."""
    at = np.array([bit for lookup in node.lookups for bit in lookup.inputs], dtype=np.int64)
    channel = np.searchsorted(edge.offsets, at, side="right") - 1
    bit = at - edge.offsets[channel]
    starts = np.cumsum([0, *(len(lookup.inputs) for lookup in node.lookups)], dtype=np.int64)
    outputs = np.array([output for lookup in node.lookups for output in lookup.outputs], dtype=np.int64)
    out_starts = np.cumsum([0, *(len(lookup.outputs) for lookup in node.lookups)], dtype=np.int64)
    flips = np.array([lookup.flip for lookup in node.lookups], dtype=np.int64)
    # A table may be read with other domains at its outputs, so rows are kept per table and set of domains.
    places: dict[tuple[Any, ...], int] = {}
    rows: list[np.ndarray] = []
    size = 0
    first = np.empty(len(node.lookups), dtype=np.int64)
    for number, lookup in enumerate(node.lookups):
        domains = tuple(node.edge.domains[output] for output in lookup.outputs)
        if (lookup.table, domains) not in places:
            contents = torch.from_numpy(np.ascontiguousarray(node.tables[lookup.table].contents).astype(np.int64))
            columns = [domain.decode(contents[:, column]) for column, domain in enumerate(domains)]
            values = torch.stack(columns, 1).flatten().numpy() if columns else np.zeros(0, dtype=np.int64)
            places[lookup.table, domains] = size
            rows.append(values)
            size += len(values)
        first[number] = places[lookup.table, domains]
    contents_ = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
    return channel, bit, starts, flips, first, outputs, out_starts, contents_


def _compare(node: Compare, sources: list[np.ndarray], edges: list[StreamEdge]) -> np.ndarray:
    x = sources[0]
    against = np.where(node.right >= 0, x[..., np.maximum(node.right, 0)], node.constant)
    return (x[..., node.left] > against).astype(np.int64)


def _sum(node: Sum, sources: list[np.ndarray], edges: list[StreamEdge]) -> np.ndarray:
    x = sources[0]
    out = np.empty((math.prod(x.shape[:-1]), len(node.bias)), dtype=np.int64)
    sum_up(np.ascontiguousarray(x.reshape(-1, x.shape[-1])), node.start, node.index, node.coefficient, node.bias, out)
    return out.reshape(*x.shape[:-1], len(node.bias))


def _pool(node: Pool, sources: list[np.ndarray], edges: list[StreamEdge]) -> np.ndarray:
    x = sources[0]
    return x.reshape(*x.shape[:-1], -1, node.taps).max(-1)


def _argmax(node: Argmax, sources: list[np.ndarray], edges: list[StreamEdge]) -> np.ndarray:
    return sources[0].argmax(-1)[..., None]


def _window(node: Window, sources: list[np.ndarray], edges: list[StreamEdge]) -> np.ndarray:
    x, rank = sources[0], len(node.kernel)
    if node.pads:
        sizes = [size + p + q for size, p, q in zip(x.shape[1:-1], node.padding, node.ends, strict=True)]
        padded = np.broadcast_to(np.array(node.fill, dtype=np.int64), (len(x), *sizes, x.shape[-1])).copy()
        padded[(slice(None), *(slice(side, side + size) for side, size in zip(node.padding, x.shape[1:-1], strict=True)))] = x
        x = padded
    fields = tuple((k - 1) * d + 1 for k, d in zip(node.kernel, node.dilation, strict=True))
    if any(size < wanted for size, wanted in zip(x.shape[1:-1], fields, strict=True)):
        raise ArgumentError(f"a window over {fields} samples does not fit into {x.shape[1:-1]}")
    seen = sliding_window_view(x, fields, axis=tuple(range(1, rank + 1)))  # [batch, *places, channels, *field]
    places = tuple(slice(None, None, step) for step in node.stride)
    taps = tuple(slice(None, None, step) for step in node.dilation)
    seen = seen[(slice(None), *places, slice(None), *taps)]
    seen = seen.reshape(*seen.shape[: rank + 1], -1)
    return seen.reshape(len(seen), -1) if node.edge.layout == "vector" else seen


def _unpack(node: Unpack, sources: list[np.ndarray], edges: list[StreamEdge]) -> np.ndarray:
    x = sources[0]
    return np.ascontiguousarray(x.reshape(len(x), -1, node.parts).swapaxes(1, 2))


def _layer(node: Layer, sources: list[np.ndarray], edges: list[StreamEdge]) -> np.ndarray:
    x = sources[0]
    real = torch.tensor(x.reshape(-1, x.shape[-1])) * torch.tensor(edges[0].scale, dtype=torch.float64)
    levels = to_levels(node.block(real), node.edge.scale)
    return levels.numpy().reshape(*x.shape[:-1], node.edge.channels)


def to_levels(real: Tensor, scale: tuple[float, ...]) -> Tensor:
    """Real numbers -> the integers that equal them exactly when multiplied by the scale: float64 [n, channels] -> int64."""
    if set(scale) == {1.0}:
        levels = back = real.round()
    else:
        steps = torch.tensor(scale, dtype=torch.float64)
        levels = (real / steps).round_()
        back = levels * steps
    if not torch.equal(back, real):
        found = real[back != real][0].item()
        raise ArgumentError(f"a layer gives {found!r}, which is not on its grid: put a quantiser after it")
    return levels.to(torch.int64)


RULES: dict[type[StreamNode], Callable[..., np.ndarray]] = {
    Input: _same, Register: _same, Wire: _wire, Table: _table, Compare: _compare, Sum: _sum, Pool: _pool, Argmax: _argmax,
    Window: _window, Unpack: _unpack, Layer: _layer,
}  # fmt: skip

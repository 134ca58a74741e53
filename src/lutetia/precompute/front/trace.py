"""`trace`: a PyTorch model as a stream graph, through torch.fx.

Layers are gathered into blocks that end where the values are on a grid of integers: at a quantiser, or where a layer's own
weights keep them on one. A window precedes whatever reads several samples; one pipeline register follows every
block.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from lutetia import flow
from lutetia.errors import ArgumentError, fail
from lutetia.precompute.front.arrange import (
    CHUNKS,
    PADS,
    POOLS,
    SPLITS,
    directions,
    functional_pool,
    padded_shape,
    pads_of,
    parts_of,
    picked_channels,
    shuffled_channels,
    turned_round,
    unpacked,
)
from lutetia.precompute.front.block import LayerBlock
from lutetia.precompute.front.claims import claim_of, speaks_for
from lutetia.precompute.front.detectors import exact_tables, is_lut_layer
from lutetia.precompute.front.functions import ADD, ARITHMETIC, ELEMENTWISE, MULTIPLY, RISING, SUBTRACT
from lutetia.precompute.front.grid import grid_of
from lutetia.precompute.front.ops import (
    Added,
    Average,
    BlockOp,
    Claimed,
    Each,
    Multiplied,
    WindowShape,
    clone,
    numbers,
    op_of,
    pool_window,
)
from lutetia.precompute.front.quantise import Quantise, SparseLinear
from lutetia.precompute.front.slide import check_window
from lutetia.precompute.front.translate import argmax_node, as_numbers
from lutetia.precompute.ir.balance import balance
from lutetia.precompute.ir.graph import Builder, Graph
from lutetia.precompute.ir.stream import (
    Input,
    Layer,
    Layout,
    Pool,
    Register,
    Stream,
    StreamEdge,
    Window,
    Wire,
    window_edge,
)
from lutetia.precompute.tables.domains import Ternary

RANK = {"vector": 0, "sequence": 1, "image": 2}
ONE_D = (nn.Conv1d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d, nn.ConstantPad1d)
TWO_D = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.BatchNorm2d)
GLOBAL = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d)
SKIPPED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)


def trace(model: nn.Module, input: Stream) -> Graph:
    """The stream graph of a model, whose input is `input`. The model is traced in eval mode: batch norm uses its running
    statistics, dropout is off. The graph computes in integers exactly what PyTorch computes in float64.
    """
    if not isinstance(model, nn.Module):
        fail("model", model, "a module")
    if not isinstance(input, Stream):
        fail("input", input, "a Stream, such as Stream(channels=4, dtype=UInt(2))")
    model = clone(model).eval()
    if _Fx().is_leaf_module(model, ""):
        model = nn.Sequential(model)
    with flow.step("trace", part="precompute", model=type(model).__name__, channels=input.channels) as step:
        graph = balance(_Tracing(model, input).run())
        step.note(nodes=len(graph.nodes))
    return graph


class _Fx(fx.Tracer):
    """Layers that are known as a whole stay whole."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        masked = isinstance(getattr(module, "mask", None), Tensor)
        known = masked or isinstance(module, Quantise | SparseLinear) or speaks_for(module) or is_lut_layer(module)
        return known or super().is_leaf_module(module, name)


@dataclass(frozen=True)
class _Value:
    """The result of a node of the fx graph: a stream, and the layers that still wait for a grid.

    pool   a maximum that comes between the first `at` ops of the block and the rest, which must rise or fall throughout
    pads   zeros around each frame, for the window that follows
    """

    node: int
    block: LayerBlock | None = None
    pool: WindowShape | None = None
    at: int = 0
    pads: tuple[tuple[int, int], ...] | None = None


class _Tracing:
    """One walk over the fx graph."""

    def __init__(self, model: nn.Module, stream: Stream) -> None:
        self.model, self.stream = model, stream
        self.builder = Builder()
        self.name = ""

    def run(self) -> Graph:
        try:
            graph = _Fx().trace(self.model)
        except fx.proxy.TraceError as error:
            raise ArgumentError(f"torch.fx cannot trace the model, expected no branches on values: {error}") from error
        values: dict[fx.Node, Any] = {}
        output = None
        for node in graph.nodes:
            self.name = str(node.target) if node.op == "call_module" else node.name
            if node.op == "placeholder":
                if values:
                    raise ArgumentError(
                        f"the model has the inputs {[n.name for n in values]} and {node.name}, expected one input"
                    )
                values[node] = _Value(self.builder.add(Input((), self.stream.edge(self._layout()), name=node.name)))
            elif node.op == "output":
                (result,) = node.args
                if not isinstance(result, fx.Node):
                    fail("the output of the model", result, "one tensor")
                output = self.settle(values[result])
            else:
                args = [values[a] if isinstance(a, fx.Node) else _opened(a, values) for a in node.args]
                values[node] = self._apply(node, args)
        assert output is not None
        return Graph(self.builder.nodes, output)

    def _layout(self) -> Layout:
        modules = list(self.model.modules())
        if self.stream.height is not None:
            return "image"
        if any(isinstance(module, TWO_D) for module in modules):
            raise ArgumentError("the model has layers for images, expected a Stream with height and width")
        claimed = [claim.window for module in modules if (claim := claim_of(module)) is not None and claim.window is not None]
        if self.stream.length is None and any(isinstance(module, nn.Unflatten) for module in modules):
            return "vector"  # which the model itself makes a sequence of
        sequence = self.stream.length is not None or claimed or any(isinstance(module, ONE_D) for module in modules)
        return "sequence" if sequence else "vector"

    # ---- one fx node --------------------------------------------------------------------------------------------------

    def _apply(self, node: fx.Node, args: list[Any]) -> Any:
        if node.op == "call_module":
            return self.module(self.model.get_submodule(str(node.target)), args[0])
        target: Any = node.target
        values = [arg for arg in args if isinstance(arg, _Value)]
        if len(values) == 2 and (target in ADD or target in SUBTRACT):
            return self.added(values[0], values[1], 1 if target in ADD else -1)
        if len(values) == 2 and target in MULTIPLY:
            return self.multiplied(values[0], values[1])
        if target in ELEMENTWISE or (target in ARITHMETIC and len(values) == 1):
            return self.each(_function(target, args, node.kwargs), args, rising=target in RISING)
        if target in (torch.flatten, "flatten"):
            ends = dict(zip(("start_dim", "end_dim"), args[1:], strict=False)) | node.kwargs
            return self.flattened(args[0], ends.get("start_dim", 0), ends.get("end_dim", -1))
        if target in ("view", "reshape") and len(args) == 3 and args[2] == -1:
            return self.flattened(args[0], 1, -1)  # x.view(len(x), -1)
        if target is operator.getitem and isinstance(args[0], list):
            return args[0][args[1]]  # one part of a split
        if target in ("size", getattr, operator.getitem) and args[1] in (0, "shape"):
            return args[0]  # the size of the batch, which only `view` reads
        if target in (torch.cat, torch.concat) and (node.kwargs.get("dim", (args[1:] or [0])[0]) == 1):
            return self.joined(args[0])
        if target in (torch.argmax, "argmax") and node.kwargs.get("dim", (args[1:] or [None])[0]) in (1, -1):
            return self.argmax(args[0])
        if target in POOLS:
            return self.module(functional_pool(target, args[1:], node.kwargs), args[0])
        if target is operator.getitem and isinstance(args[0], _Value):
            return self.chosen(args[0], lambda channels: picked_channels(args[1], channels, self.name))
        if target in (*CHUNKS, *SPLITS):
            given = [*args[1:], *([node.kwargs["dim"]] if "dim" in node.kwargs else [])]
            parts = parts_of(target, given, self.builder.edge(self.settle(args[0])).channels, self.name)
            return [self.chosen(args[0], lambda channels, part=part: part) for part in parts]  # type: ignore[misc]
        if target is F.pad:
            options = dict(zip(("pad", "mode", "value"), args[1:], strict=False)) | node.kwargs
            if options.get("mode", "constant") != "constant":
                fail(f"the mode of {self.name}", options["mode"], '"constant"')
            return self.padded(args[0], options["pad"], options.get("value"))
        raise ArgumentError(f"{node.format_node()} is not supported, expected layers, sums, concatenation, flatten or argmax")

    def module(self, module: nn.Module, value: _Value) -> _Value:
        """One layer."""
        if isinstance(module, SKIPPED):
            return value
        if isinstance(module, nn.Flatten):
            return self.flattened(value, module.start_dim, module.end_dim)
        if isinstance(module, nn.Unflatten):
            return _Value(self.builder.add(unpacked(self.builder, self.settle(value), module, self.name)))
        if isinstance(module, PADS):
            return self.padded(value, module.padding, module.value)
        if isinstance(module, nn.ChannelShuffle):
            return self.chosen(value, lambda channels: shuffled_channels(module.groups, channels))
        if isinstance(module, GLOBAL):
            return self.global_pool(module, value)
        if isinstance(module, nn.MaxPool1d | nn.MaxPool2d):
            return self.max_pool(pool_window(module), value)
        if isinstance(module, nn.AvgPool1d | nn.AvgPool2d):
            return self.average(module, pool_window(module), value)
        if is_lut_layer(module):
            return _Value(exact_tables(self.builder, self.settle(value), module, self.name))
        op = op_of(module)
        if not op.mixes:
            return self._extended(value, op)
        return self.mixed(op, value)

    def mixed(self, op: BlockOp, value: _Value) -> _Value:
        """A layer that mixes channels or samples: after values on a grid, or, without a window, after anything."""
        shape = op.window
        if value.pads is not None and shape is not None:
            shape, value = padded_shape(shape, value.pads), replace(value, pads=None)
        try:
            node = self.settle(value)
        except ArgumentError:
            if (shape is not None and not shape.is_trivial) or value.block is None or value.pool is not None:
                raise
            return _Value(value.node, value.block.extended(op))
        edge = self.builder.edge(node)
        if isinstance(op, Claimed) and op.window is not None:
            check_window(op, None if len(set(edge.domains)) > 1 else edge.domains[0])
        if shape is not None:
            node = self.window(node, shape)
        elif edge.layout != "vector":
            raise ArgumentError(f"{self.name} works on vectors but its input is a {edge.layout}: flatten it first")
        return _Value(node, LayerBlock((op,), edge.channels, RANK[edge.layout]))

    def _extended(self, value: _Value, op: BlockOp) -> _Value:
        edge = self.builder.edge(value.node)
        if value.pads is not None:
            raise ArgumentError(f"{self.name} follows padding, expected a convolution or pooling after it")
        block = value.block.extended(op) if value.block else LayerBlock((op,), edge.channels, RANK[edge.layout])
        made = replace(value, block=block)
        return _Value(self.settle(made)) if isinstance(op, Each) and op.quantiser is not None else made

    # ---- the pieces ---------------------------------------------------------------------------------------------------

    def settle(self, value: _Value) -> int:
        """The node whose values are these, on their grid of integers."""
        if value.pads is not None:
            raise ArgumentError(f"{self.name} follows padding, expected a convolution or pooling after it")
        if value.block is None:
            return value.node
        if value.pool is not None:
            return self._pooled(value, value.block, value.pool)
        before = self.builder.edge(value.node)
        domain, scale = grid_of(value.block, before, self.name)
        edge = before.carrying(domain, [scale] * len(domain))
        layer = self.builder.add(Layer((value.node,), edge, value.block, name=self.name))
        return self.builder.add(Register((layer,), edge, name=self.name))

    def _pooled(self, value: _Value, block: LayerBlock, pool: WindowShape) -> int:
        """A maximum inside a block: after increasing functions (or decreasing ones, for a minimum) it has fewer bits."""
        rest = block.ops[value.at :]
        sign = directions(rest, block.out_channels) if rest else None
        if sign is not None:
            node = turned_round(self.builder, self.settle(_Value(value.node, block)), sign < 0, self.name)
            return turned_round(self.builder, self.max_pool(pool, _Value(node)).node, sign < 0, self.name)
        first = LayerBlock(block.ops[: value.at], block.channels, block.rank)
        node = self.max_pool(pool, _Value(self.settle(_Value(value.node, first)))).node
        return self.settle(_Value(node, LayerBlock(rest, first.out_channels, block.rank) if rest else None))

    def window(self, node: int, shape: WindowShape, fill: Sequence[int] | None = None) -> int:
        edge = self.builder.edge(node)
        if len(shape.kernel) != RANK[edge.layout]:
            raise ArgumentError(f"{self.name} has a window of {len(shape.kernel)} axes but its input is a {edge.layout}")
        if shape.is_trivial:
            return node
        if fill is None and any((*shape.padding, *shape.ends)):
            node, edge = self._with_zero(node)
        sizes = shape.kernel, shape.stride, shape.dilation, shape.padding
        made = window_edge(edge, *sizes, shape.after)
        values = tuple(fill) if fill is not None else (0,) * edge.channels
        return self.builder.add(Window((node,), made, *sizes, values, after=shape.after, name=self.name))

    def _with_zero(self, node: int) -> tuple[int, StreamEdge]:
        """The same stream with room for the zeros of padding."""
        edge = self.builder.edge(node)
        if any(domain.step != 1 for domain in edge.domains):
            node = as_numbers(self.builder, node, Ternary())
            edge = self.builder.edge(node)
        domains = tuple(domain.within(min(domain.low, 0), max(domain.high, 0)) for domain in edge.domains)
        return node, replace(edge, domains=domains)

    def max_pool(self, shape: WindowShape, value: _Value) -> _Value:
        taps = math.prod(shape.kernel)
        zeros = value.pads is not None
        if value.pads is not None:
            if any(shape.padding):
                raise ArgumentError(f"{self.name} pads by {shape.padding} an input that is padded already, expected padding once")
            shape, value = padded_shape(shape, value.pads), replace(value, pads=None)
        if value.block is not None and value.pool is None:
            return replace(value, pool=shape, at=len(value.block.ops))
        node = self.settle(value)
        edge = self.builder.edge(node)
        window = self.window(node, shape, None if zeros else [domain.low for domain in edge.domains])
        made = self.builder.edge(window)
        made = made.carrying(made.domains[::taps], made.scale[::taps])
        return _Value(self.builder.add(Pool((window,), made, taps, name=self.name)) if taps > 1 else window)

    def average(self, module: nn.Module, shape: WindowShape, value: _Value) -> _Value:
        wide = shape if value.pads is None else padded_shape(shape, value.pads)
        node = self.settle(replace(value, pads=None))
        channels = self.builder.edge(node).channels
        window = self.window(node, wide)
        return _Value(window, LayerBlock((Average(module, shape, channels),), channels, len(shape.kernel)))

    def global_pool(self, module: Any, value: _Value) -> _Value:
        node = self.settle(value)
        edge = self.builder.edge(node)
        if numbers(module.output_size, max(len(edge.shape), 1)) != (1,) * len(edge.shape) or edge.samples is None:
            fail(
                f"output_size of {self.name}", module.output_size, "1, and frames of known size: adaptive pooling is global here"
            )
        kernel: tuple[int, ...] = edge.shape  # type: ignore[assignment]
        ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
        shape = WindowShape(kernel, kernel, ones, zeros)
        if isinstance(module, nn.AdaptiveMaxPool1d | nn.AdaptiveMaxPool2d):
            return self.max_pool(shape, _Value(node))
        mean: nn.Module = nn.AvgPool1d(kernel[0]) if len(kernel) == 1 else nn.AvgPool2d((kernel[0], kernel[1]))
        return self.average(mean, shape, _Value(node))

    def each(self, function: Callable[[Tensor], Tensor], args: list[Any], rising: bool) -> _Value:
        value = next(arg for arg in args if isinstance(arg, _Value))
        return self._extended(value, Each(function, monotone=rising))

    def added(self, first: _Value, second: _Value, sign: int) -> _Value:
        return self._both(self.settle(first), self.settle(second), lambda channels: Added(channels, sign))

    def multiplied(self, first: _Value, second: _Value) -> _Value:
        nodes = self.settle(first), self.settle(second)
        if nodes[0] == nodes[1]:
            return self._extended(_Value(nodes[0]), Each(torch.square))
        return self._both(*nodes, Multiplied)

    def _both(self, first: int, second: int, op: Callable[[int], BlockOp]) -> _Value:
        """An op of two equal streams."""
        edges = [self.builder.edge(node) for node in (first, second)]
        if edges[0].channels != edges[1].channels or edges[0].shape != edges[1].shape:
            sizes = " and ".join(f"{edge.channels} channels of {edge.shape or 'one sample'}" for edge in edges)
            raise ArgumentError(f"{self.name} is given {sizes}, expected the same twice")
        channels = edges[0].channels
        return _Value(self.join((first, second)), LayerBlock((op(channels),), 2 * channels, RANK[edges[0].layout]))

    def joined(self, parts: Sequence[_Value]) -> _Value:
        nodes = [self.settle(part) for part in parts]
        shapes = [self.builder.edge(node).shape for node in nodes]
        if len(set(shapes)) > 1:
            raise ArgumentError(f"{self.name} joins frames of {shapes}, expected equal ones")
        return _Value(self.join(nodes))

    def join(self, nodes: Sequence[int]) -> int:
        edges = [self.builder.edge(node) for node in nodes]
        domains = [domain for edge in edges for domain in edge.domains]
        edge = edges[0].carrying(domains, [scale for each in edges for scale in each.scale])
        edge = replace(edge, phase=max(each.phase for each in edges))
        return self.builder.add(Wire(tuple(nodes), edge, np.arange(len(domains)), name=self.name))

    def padded(self, value: _Value, sizes: object, fill: object) -> _Value:
        """Zeros around frames, which the next window adds."""
        node = self.settle(value)
        edge = self.builder.edge(node)
        return _Value(node, pads=pads_of(sizes, RANK[edge.layout], fill, self.name))

    def chosen(self, value: _Value, channels: Callable[[int], np.ndarray]) -> _Value:
        """Some channels, in any order: `channels` is a function of how many there are."""
        node = self.settle(value)
        edge = self.builder.edge(node)
        index = channels(edge.channels)
        if not len(index):
            raise ArgumentError(f"{self.name} keeps none of {edge.channels} channels, expected at least one")
        made = edge.carrying([edge.domains[each] for each in index], [edge.scale[each] for each in index])
        return _Value(self.builder.add(Wire((node,), made, index.astype(np.int64), name=self.name)))

    def flattened(self, value: _Value, start: int, end: int) -> _Value:
        if (start, end) != (1, -1):
            raise ArgumentError(f"{self.name} flattens from {start} to {end}, expected 1 to -1: a batch is not part of a sample")
        node = self.settle(value)
        edge = self.builder.edge(node)
        if edge.layout == "vector":
            return _Value(node)
        if edge.samples is None:
            raise ArgumentError(f"{self.name} flattens an endless sequence into one vector, expected a Stream with a length")
        kernel: tuple[int, ...] = edge.shape  # type: ignore[assignment]
        ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
        made = replace(window_edge(edge, kernel, kernel, ones, zeros), layout="vector", shape=())
        fill = (0,) * edge.channels
        return _Value(self.builder.add(Window((node,), made, kernel, kernel, ones, zeros, fill, name=self.name)))

    def argmax(self, value: _Value) -> _Value:
        node = self.settle(value)
        edge = self.builder.edge(node)
        if len(set(edge.scale)) > 1:
            raise ArgumentError(f"{self.name} compares channels with the scales {sorted(set(edge.scale))}, expected one scale")
        return _Value(argmax_node(self.builder, node, self.name))


def _opened(arg: object, values: dict[fx.Node, Any]) -> Any:
    if isinstance(arg, tuple | list):
        return [values[each] if isinstance(each, fx.Node) else each for each in arg]
    return arg


def _function(target: Any, args: list[Any], options: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    """A function of the one tensor among the arguments."""
    at = next(place for place, arg in enumerate(args) if isinstance(arg, _Value))

    def function(x: Tensor) -> Tensor:
        given = [*args[:at], x, *args[at + 1 :]]
        return getattr(x, target)(*given[1:], **options) if isinstance(target, str) else target(*given, **options)

    function.__name__ = target if isinstance(target, str) else target.__name__
    return function

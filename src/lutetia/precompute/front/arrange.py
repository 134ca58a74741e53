"""Layers that only rearrange: slices and shuffles of channels, padding by itself, pooling as a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from lutetia.errors import ArgumentError, fail
from lutetia.precompute.front.ops import NORMS, BlockOp, Each, WindowShape
from lutetia.precompute.ir.graph import Builder
from lutetia.precompute.ir.stream import Lookup, Table, TableData, Unpack

PADS = (nn.ConstantPad1d, nn.ConstantPad2d, nn.ZeroPad1d, nn.ZeroPad2d)
CHUNKS = (torch.chunk, "chunk")
SPLITS = (torch.split, "split")
# The modules behind functional pooling, and the names of the arguments of the functions.
_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_MEAN = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
POOLS: dict[Any, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    F.max_pool1d: (nn.MaxPool1d, _MAX),
    F.max_pool2d: (nn.MaxPool2d, _MAX),
    F.avg_pool1d: (nn.AvgPool1d, _MEAN[:-1]),
    F.avg_pool2d: (nn.AvgPool2d, _MEAN),
}
WIDEST = 16  # bits of a channel that is turned round


def functional_pool(target: object, args: Sequence[Any], options: dict[str, Any]) -> nn.Module:
    """The module of `F.max_pool1d(x, ..)` and its like; args are those after x."""
    kind, names = POOLS[target]
    given = dict(zip(names, args, strict=False)) | options
    return kind(**{name: value for name, value in given.items() if name != "stride" or value is not None})


def picked_channels(index: object, channels: int, name: str) -> np.ndarray:
    """The channels that `x[:, index]` keeps, with nothing else cut."""
    if not isinstance(index, list) or len(index) < 2 or index[0] != slice(None):
        raise ArgumentError(f"{name} takes {index} of a batch, expected channels, such as x[:, 1:3]")
    if any(each not in (slice(None), Ellipsis) for each in index[2:]):
        raise ArgumentError(f"{name} cuts frames by {index[2:]}, expected all samples of a frame")
    chosen = index[1]
    if isinstance(chosen, slice):
        return np.arange(channels)[chosen]
    if isinstance(chosen, list | tuple) and all(isinstance(each, int) for each in chosen):
        return np.arange(channels)[list(chosen)]
    return fail(f"the channels of {name}", chosen, "a slice or a list of whole numbers")


def shuffled_channels(groups: int, channels: int) -> np.ndarray:
    """The order of the channels after `nn.ChannelShuffle(groups)`."""
    return np.arange(channels).reshape(groups, channels // groups).T.reshape(-1)


def parts_of(target: object, args: Sequence[Any], channels: int, name: str) -> list[np.ndarray]:
    """The channels of each part of `torch.chunk(x, n, 1)` or `torch.split(x, sizes, 1)`; args are those after x."""
    if len(args) < 2 or args[1] != 1:
        raise ArgumentError(f"{name} splits axis {args[1] if len(args) > 1 else 0}, expected 1, the channels")
    whole = torch.arange(channels)
    parts = whole.chunk(args[0]) if target in CHUNKS else whole.split(args[0])
    return [part.numpy() for part in parts]


def pads_of(sizes: Any, rank: int, value: Any, name: str) -> tuple[tuple[int, int], ...]:
    """(in front, behind) of each axis, from PyTorch's order, in which the last axis comes first."""
    if value not in (0, None):
        fail(f"the value of {name}", value, "0: other padding is not supported")
    listed = [int(size) for size in ([sizes] * 2 * rank if isinstance(sizes, int) else sizes)]
    if len(listed) != 2 * rank or min(listed) < 0:
        fail(f"the padding of {name}", sizes, f"{2 * rank} sizes of at least 0: in front and behind for each axis")
    return tuple((listed[2 * axis], listed[2 * axis + 1]) for axis in reversed(range(rank)))


def padded_shape(shape: WindowShape, pads: Sequence[tuple[int, int]]) -> WindowShape:
    """A window that does the padding in front of it itself."""
    front = tuple(own + pad[0] for own, pad in zip(shape.padding, pads, strict=True))
    behind = tuple(own + pad[1] for own, pad in zip(shape.ends, pads, strict=True))
    return replace(shape, padding=front, after=None if behind == front else behind)


def directions(ops: Sequence[BlockOp], channels: int) -> np.ndarray | None:
    """For each channel 1 where ops are increasing, -1 where they are decreasing; None where one is neither."""
    sign = np.ones(channels, dtype=np.int64)
    for op in ops:
        if not isinstance(op, Each) or not op.monotone:
            return None
        if isinstance(op.function, NORMS):
            weight = getattr(op.function, "weight", None)
            sign *= 1 if weight is None else np.where(weight.detach().cpu().numpy() < 0, -1, 1)
    return sign


def turned_round(builder: Builder, node: int, channels: np.ndarray, name: str) -> int:
    """Swap low and high in some channels (bool [channels]): their maximum is then what was the minimum."""
    edge = builder.edge(node)
    if not channels.any():
        return node
    tables, lookups = [], []
    for channel, domain in enumerate(edge.domains):
        if domain.bits > WIDEST:
            raise ArgumentError(f"{name} has values of {domain.bits} bits, expected at most {WIDEST} after a pooling layer")
        codes = np.arange(2**domain.bits)
        values = domain.decode(torch.from_numpy(codes))
        turned = torch.where(domain.holds(values), domain.low + domain.high - values, values)
        contents = domain.encode(turned).numpy() if channels[channel] else codes
        tables.append(TableData(contents.astype(np.int64)[:, None], (domain.bits,)))
        lookups.append(Lookup(channel, tuple(edge.bits_of(channel)), (channel,)))
    return builder.add(Table((node,), edge, tuple(tables), tuple(lookups), name=name))


def unpacked(builder: Builder, source: int, module: nn.Unflatten, name: str) -> Unpack:
    """A vector as a sequence of samples: `nn.Unflatten(1, (channels, length))`."""
    edge, sizes = builder.edge(source), tuple(int(size) for size in module.unflattened_size)
    if edge.layout != "vector" or module.dim not in (1, -1) or len(sizes) != 2 or min(sizes) < 1 or sizes[1] < 2:
        said = f"{name} makes {sizes} of axis {module.dim} of a {edge.layout}"
        raise ArgumentError(f"{said}, expected (channels, length) of a vector, with a length of two or more")
    channels, parts = sizes
    if channels * parts != edge.channels:
        raise ArgumentError(f"{name} makes {sizes} of {edge.channels} numbers, expected {channels * parts}")
    kinds = list(zip(edge.domains, edge.scale, strict=True))
    own = kinds[::parts]
    if kinds != [kind for kind in own for _ in range(parts)]:
        raise ArgumentError(f"{name} makes samples of numbers of several kinds, expected one domain and scale for each channel")
    made = edge.carrying([domain for domain, _ in own], [scale for _, scale in own])
    return Unpack((source,), replace(made, layout="sequence", shape=(parts,), rate=edge.rate * parts), parts, name=name)

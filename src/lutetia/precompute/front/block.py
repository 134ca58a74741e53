"""`LayerBlock`: a module, or a chain of them, as one function of a single window of its input.

A block reads `channels` values at each of a few *taps* (one tap for vectors; the kernel of a convolution) and answers with
`out_channels` values. Its inputs are one flat row: channel by channel, and within a channel tap by tap (rows of a kernel first,
as in PyTorch's own weights), so input `c · n_taps + t` is tap t of channel c. It is evaluated by calling the modules themselves,
in float64 and in eval mode, without padding: bias, batch norm, activation and quantiser are all included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError, fail
from lutetia.precompute.front.ops import BlockOp, op_of


@dataclass(eq=False)
class LayerBlock:
    """A chain of ops over one window: x [n, channels · n_taps] -> [n, out_channels], float64."""

    ops: tuple[BlockOp, ...]
    channels: int
    rank: int = 0  # 0 vectors, 1 sequences, 2 images
    _ready: list[Any] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, module: nn.Module, n_inputs: int | None = None) -> LayerBlock:
        """The block of a module; `n_inputs` is needed where no layer fixes the number of channels (activations, pooling)."""
        ops = tuple(op_of(each) for each in flatten(module))
        if not ops:
            fail("module", module, "a module with at least one layer")
        rank = max(op.rank for op in ops)
        taps = math.prod(len(axis) for axis in _positions(ops, rank))
        known = next((op.in_channels for op in ops if op.in_channels is not None), None)
        if known is None and n_inputs is None:
            raise ArgumentError(
                f"{type(module).__name__} does not fix its number of channels: put it into a block after a layer that does"
            )
        if known is None and n_inputs is not None:
            if n_inputs % taps:
                raise ArgumentError(f"n_inputs is {n_inputs}, expected a multiple of {taps}, the taps of the window")
            known = n_inputs // taps
        assert known is not None
        return cls(ops, known, rank)

    def __post_init__(self) -> None:
        channels = self.channels
        for op in self.ops:
            if op.in_channels not in (None, channels):
                raise ArgumentError(
                    f"{op} has {op.in_channels} input channels, expected {channels}, what the layer before it gives"
                )
            if op.rank not in (0, self.rank) or (
                op.rank == 0 and self.rank and op.mixes and op.window is None and not op.pointwise
            ):
                raise ArgumentError(f"{op} works on vectors, expected a layer for {('', 'sequences', 'images')[self.rank]}")
            channels = op.out_channels if op.out_channels is not None else channels
        self.out_channels = channels

    # ---- the window ---------------------------------------------------------------------------------------------------

    @cached_property
    def positions(self) -> tuple[tuple[int, ...], ...]:
        """Per axis, which places of the receptive field are read: those between dilated taps are not."""
        return _positions(self.ops, self.rank)

    @property
    def taps(self) -> int:
        """How many taps the window has."""
        return math.prod(len(axis) for axis in self.positions)

    @property
    def n_inputs(self) -> int:
        return self.channels * self.taps

    def extended(self, op: BlockOp) -> LayerBlock:
        """The block with one more op after it."""
        return LayerBlock((*self.ops, op), self.channels, max(self.rank, op.rank))

    # ---- the function -------------------------------------------------------------------------------------------------

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, n_inputs] -> [n, out_channels], in float64."""
        return self.finish(self._spread(x), 0)

    def finish(self, x: Tensor, start: int) -> Tensor:
        """Run the ops from `start` on: x [n, C, *window], or [n, C] where the window is one tap -> [n, out_channels]."""
        self.prepare()
        if x.dim() == 2:
            x = x.reshape(*x.shape, *(1,) * self.rank)
        with torch.no_grad():
            for run in self._ready[start:]:
                x = run(x)
        return x.flatten(1)

    def prepare(self) -> None:
        """Make the copies that run in float64, once."""
        if not self._ready:
            self._ready.extend([op.ready() for op in self.ops])

    def _spread(self, x: Tensor) -> Tensor:
        """Rows of taps -> the receptive field they belong to, zero in between: [n, channels · taps] -> [n, channels, *field]."""
        x = x.to(torch.float64)
        if not self.rank:
            return x
        sizes = [axis[-1] + 1 for axis in self.positions]
        spread = x.new_zeros(x.shape[0], self.channels, *sizes)
        grid = np.ix_(*self.positions)
        taps = x.reshape(x.shape[0], self.channels, *(len(axis) for axis in self.positions))
        where: Any = (slice(None), slice(None), *(torch.from_numpy(axis) for axis in grid))
        spread[where] = taps
        return spread

    @cached_property
    def supports(self) -> list[np.ndarray]:
        """For each output, the inputs that it may depend on, rising."""
        mixing = [op for op in self.ops if op.mixes]
        if not mixing:
            return [np.array([channel]) for channel in range(self.out_channels)]
        if len(mixing) == 1:
            taps = self.taps
            rows = mixing[0].rows(self.channels)
            return [np.unique(channels * taps + tap) for channels, tap in rows]
        tables, channels = [], self.channels
        for op in mixing:
            tables.append(op.rows(channels))
            channels = len(tables[-1])
        origin = (0,) * self.rank
        places = {tap: number for number, tap in enumerate(product(*self.positions))}
        return [_trace_back(mixing, tables, output, origin, places) for output in range(self.out_channels)]

    def __repr__(self) -> str:
        return f"Block({' -> '.join(map(str, self.ops))})"


def _trace_back(
    mixing: Sequence[BlockOp], tables: Sequence[Any], output: int, origin: tuple[int, ...], places: dict[tuple[int, ...], int]
) -> np.ndarray:
    """The inputs that one output reads through several mixing layers."""
    frontier = {(output, origin)}
    for op, rows in zip(reversed(mixing), reversed(tables), strict=True):
        offsets = op.offsets()
        strides = op.window.stride if op.window else (1,) * len(origin)
        reached = set()
        for channel, place in frontier:
            for source, tap in zip(*rows[channel], strict=True):
                moved = tuple(at * stride + step for at, stride, step in zip(place, strides, offsets[tap] or origin, strict=True))
                reached.add((int(source), moved))
        frontier = reached
    taps = len(places)
    return np.array(sorted(channel * taps + places[place] for channel, place in frontier), dtype=np.int64)


def _positions(ops: Sequence[BlockOp], rank: int) -> tuple[tuple[int, ...], ...]:
    axes = []
    for axis in range(rank):
        used = {0}
        for op in reversed(ops):
            if op.window is not None:
                kernel, stride, dilation = (part[axis] for part in (op.window.kernel, op.window.stride, op.window.dilation))
                used = {at * stride + tap * dilation for at in used for tap in range(kernel)}
        axes.append(tuple(sorted(used)))
    return tuple(axes)


def flatten(module: nn.Module) -> list[nn.Module]:
    """The layers of nested Sequentials, in order."""
    from lutetia.precompute.front.claims import speaks_for

    if isinstance(module, nn.Sequential) and not speaks_for(module):
        return [layer for child in module for layer in flatten(child)]
    return [module]

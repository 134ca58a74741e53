"""What the compiled loops are called with: how the weights of a layer lie in memory, and tensors as arrays.

`arrays` says what the arrays of a plan mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Any

import numpy as np
from torch import Tensor

from lutetia._shared.arrays import array_of
from lutetia._shared.threads import OUT_OF_MEMORY
from lutetia.errors import require
from lutetia.lut.connectivity.full import Connectivity, Full
from lutetia.lut.connectivity.parts import layout_for
from lutetia.lut.kernels.cpu.arrays import LayerArrays, Places
from lutetia.lut.sums import FLOAT, Sums, raise_overflow


@cache
def loop(module: str, name: str) -> Callable[..., Any]:
    """A compiled loop; numba is first imported here."""
    require("numba", "the cpu backend of lutetia.lut")
    return getattr(import_module(f"lutetia.lut.kernels.cpu.loops.{module}"), name)


def scale_of(sums: Sums) -> float | None:
    """`scale` of the loops."""
    return sums.scale if sums.exact else None


def raise_if(flags: int, sums: Sums = FLOAT) -> None:
    """Raise what a kernel's flags stand for."""
    if flags & OUT_OF_MEMORY:
        raise MemoryError("a compiled kernel ran out of memory for its sums")
    if flags:
        raise_overflow(sums)


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """The sizes of a layer and the arrays that describe its connectivity."""

    n_detectors: int
    n_rows: int
    n_outputs: int
    table_at: np.ndarray  # uint64 [N_t + 1]: where the weights of each detector begin
    layer: LayerArrays
    rates: float | np.ndarray = 1.0  # lr_scale of every synapse listed, float64, or one for all

    @cached_property
    def arrays(self) -> tuple[Any, ...]:
        """The layer as the loops of one step take it."""
        return tuple(self.layer)

    @property
    def n_weights(self) -> int:
        """Length of the flat weight tensor."""
        return int(self.table_at[-1])

    @cached_property
    def n_synapses(self) -> int:
        """Additions for one batch row: the synapses of one lookup neuron of each detector."""
        return self.n_weights // self.n_rows

    @cached_property
    def places(self) -> Places:
        """Where the gradients of all weights go: where the weights are."""
        starts = np.empty(0, np.uint64) if self.layer.row_start is None else self.layer.row_start
        return Places(starts, self.table_at, np.uint64(self.n_rows))

    def places_of(self, neurons: np.ndarray, widths: Tensor) -> Places:
        """Where the gradients of these lookup neurons go, int64 [n], when only theirs are kept, one after the other.

        `widths` [N_t · R] say how many weights each has.
        """
        starts = np.zeros(self.n_detectors * self.n_rows + 1, np.uint64)
        starts[1:][neurons] = widths.numpy()[neurons]
        np.cumsum(starts, out=starts)
        return Places(starts, starts[:: self.n_rows].copy(), np.uint64(self.n_rows))


def plan_of(connectivity: Connectivity) -> LayerPlan:
    """The plan of a layer with this connectivity, worked out once and kept in it."""
    return layout_for(connectivity, _plan)


def _plan(c: Connectivity) -> LayerPlan:
    sizes, n, every = (c.n_detectors, c.n_rows, c.n_outputs), c.n_detectors, np.arange(c.n_detectors, dtype=np.uint64)
    one_block, zeros = np.array([0, n] if n else [0], np.uint64), np.zeros(n, np.uint64)
    if isinstance(c, Full):
        table_at = np.arange(n + 1, dtype=np.uint64) * np.uint64(c.n_rows * c.n_outputs)
        width, column = np.full(n, c.n_outputs, np.uint64), np.full(n, 0 if c.n_outputs else -1, np.int64)
        layer = LayerArrays(one_block, every, table_at[:-1], width, column, zeros, np.arange(c.n_outputs, dtype=np.uint32))
        return LayerPlan(*sizes, table_at, layer, rates=float(c.meta.lr_scale))
    rates = c.rates if isinstance(c.rates, float) else array_of(c.rates)
    start, targets = array_of(c.owner_start).view(np.uint64), array_of(c.owner_targets)
    if c.layout == "general":
        first, ones = every * np.uint64(c.n_rows), np.ones(n, np.uint64)
        layer = LayerArrays(one_block, every, first, ones, zeros.view(np.int64), zeros, targets, start)
        return LayerPlan(*sizes, start[:: c.n_rows].copy(), layer, rates=rates)
    block_start, detectors = (array_of(tensor.long()).view(np.uint64) for tensor in (c.blocks.start, c.blocks.detectors))
    table_at, width, column = start * np.uint64(c.n_rows), np.diff(start), np.full(n, -1, np.int64)
    for t in range(n):
        outputs = targets[start[t] : start[t + 1]]
        if len(outputs) and (np.diff(outputs) == 1).all():
            column[t] = outputs[0]
    return LayerPlan(
        *sizes, table_at, LayerArrays(block_start, detectors, table_at[:-1], width, column, start[:-1], targets), rates=rates
    )

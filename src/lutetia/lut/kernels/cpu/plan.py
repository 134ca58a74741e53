"""How the weights of a layer lie in memory, as arrays that the compiled loops can walk, and tensors as such arrays.

`arrays` says what the arrays of a plan mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lutetia.lut.connectivity.full import Connectivity, Full
from lutetia.lut.connectivity.parts import layout_for
from lutetia.lut.connectivity.synapses import Synapses
from lutetia.lut.kernels.cpu.arrays import Blocks, Neurons, Places

BITS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}  # numba has neither: the loops decode the bits
AT_HAND = 2**18  # weights that stay in the caches of one core
A_CALL = 200_000  # additions that take longer than calling torch


def array_of(tensor: Tensor) -> np.ndarray:
    """The memory of a contiguous tensor, or of a contiguous copy; int32 as unsigned, halves as their bits."""
    # Looking before each step is quicker than taking it: at batch 1 these few calls cost as much as the kernel.
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if tensor.dtype in BITS:
        tensor = tensor.view(BITS[tensor.dtype])
    array = tensor.numpy()
    return array.view(np.uint32) if array.dtype == np.int32 else array


def float_array_of(tensor: Tensor) -> np.ndarray:
    """The same, in the dtype in which its elements are added."""
    return array_of(tensor.float() if tensor.dtype in BITS else tensor)


def new_array(shape: tuple[int, ...], *operands: Tensor) -> np.ndarray:
    """An uninitialised array for sums of these operands."""
    return np.empty(shape, np.float64 if any(tensor.dtype == torch.float64 for tensor in operands) else np.float32)


@dataclass(frozen=True, eq=False)
class Plan:
    """The sizes of a layer and the arrays that describe its connectivity."""

    n_detectors: int
    n_rows: int
    n_outputs: int
    table_at: np.ndarray  # uint64 [N_t + 1]: where the weights of each detector begin
    blocks: Blocks | None = None  # full and shared connectivity
    rows: Neurons | None = None  # general connectivity
    full: bool = False  # whether every lookup neuron reaches every output, in order
    rates: float | np.ndarray = 1.0  # lr_scale of every synapse listed, float64, or one for all

    @cached_property
    def synapses(self) -> tuple[Any, ...]:
        """The one of the two that there is, as the loops take it."""
        return tuple(self.blocks or self.rows or ())

    @property
    def n_weights(self) -> int:
        """Length of the flat weight tensor."""
        return int(self.table_at[-1])

    @cached_property
    def n_synapses(self) -> int:
        """Additions for one batch row: the synapses of one lookup neuron of each detector."""
        return self.n_weights // self.n_rows

    def suits_bags(self, n: int) -> bool:
        """Whether `embedding_bag` is the faster way to add up the rows of n batch rows: full connectivity, tables in the cache.

        It goes through all tables for each batch row, with masked vectors: up to 1.5 times as fast as our loop if the tables stay
        in the cache, half as fast if not; and a call costs 8 µs.
        """
        return self.full and self.n_weights <= AT_HAND and n * self.n_synapses >= A_CALL

    @cached_property
    def places(self) -> Places:
        """Where the gradients of all weights go: where the weights are."""
        starts = np.empty(0, np.uint64) if self.rows is None else self.rows.row_start
        return Places(starts, self.table_at, np.uint64(self.n_rows))

    def places_of(self, neurons: np.ndarray) -> Places:
        """Where the gradients of these lookup neurons go, int64 [n], when only theirs are kept, one after the other."""
        starts = np.zeros(self.n_detectors * self.n_rows + 1, np.uint64)
        starts[1:][neurons] = self._extent(neurons)[1]
        np.cumsum(starts, out=starts)
        return Places(starts, starts[:: self.n_rows].copy(), np.uint64(self.n_rows))

    def weights_of(self, neurons: np.ndarray) -> np.ndarray:
        """The places in the weight tensor of all weights of these lookup neurons [n], in order: int64."""
        start, width = self._extent(neurons)
        return np.repeat(start - (np.cumsum(width) - width), width) + np.arange(width.sum())

    def _extent(self, neurons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the weights of each lookup neuron begin and how many they are, both int64 [n]."""
        if self.rows is not None:
            row_start = self.rows.row_start.view(np.int64)
            return row_start[neurons], row_start[neurons + 1] - row_start[neurons]
        table_at = self.table_at.view(np.int64)
        t, row = np.divmod(neurons, self.n_rows)
        width = (table_at[t + 1] - table_at[t]) // self.n_rows
        return table_at[t] + row * width, width


def plan_of(connectivity: Connectivity) -> Plan:
    """The plan of a layer with this connectivity, worked out once and kept in it."""
    return layout_for(connectivity, _plan)


def _plan(c: Connectivity) -> Plan:
    sizes = (c.n_detectors, c.n_rows, c.n_outputs)
    if isinstance(c, Full):
        table_at = np.arange(c.n_detectors + 1, dtype=np.uint64) * np.uint64(c.n_rows * c.n_outputs)
        start, width = np.array([0, c.n_detectors], np.uint64), np.array([c.n_outputs], np.uint64)
        detectors, list_at = np.arange(c.n_detectors, dtype=np.uint64), np.zeros(c.n_detectors, np.uint64)
        outputs, some = np.arange(c.n_outputs, dtype=np.uint32), c.n_outputs > 0 and c.n_detectors > 0
        block = Blocks(start, detectors, table_at[:-1], list_at, width, width > 0, outputs)  # of all detectors
        return Plan(*sizes, table_at, block, full=some, rates=float(c.meta.lr_scale))
    rates = c.rates if isinstance(c.rates, float) else array_of(c.rates)
    start, targets = array_of(c.owner_start).view(np.uint64), array_of(c.owner_targets)
    if c.layout == "general":
        return Plan(*sizes, start[:: c.n_rows].copy(), rows=Neurons(start, targets, np.uint64(c.n_rows)), rates=rates)
    table_at = start * np.uint64(c.n_rows)
    return Plan(*sizes, table_at, _blocks(c, start, table_at, targets), rates=rates)


def _blocks(s: Synapses, list_at: np.ndarray, table_at: np.ndarray, targets: np.ndarray) -> Blocks:
    of_blocks = (s.block_start, s.block_detectors, s.block_width)
    start, detectors, width = (array_of(tensor.long()).view(np.uint64) for tensor in of_blocks)
    lists = [targets[at : at + count] for at, count in zip(list_at[detectors[start[:-1]]], width, strict=True)]
    contiguous = np.array([len(outputs) > 0 and bool((np.diff(outputs) == 1).all()) for outputs in lists])
    return Blocks(start, detectors, table_at[detectors], list_at[detectors], width, contiguous, targets)

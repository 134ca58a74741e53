"""Sequences on CUDA: by counting cells, which is here, or by walking pairs, which is in `pairs`.

The sources are in `source.cells`; here each is given its grid and its block sizes (measured on an H200). The work is
cut into tiles of sequences and detectors, whose counts and products fit a budget of memory.
Under sparse connectivity each pair is a row of a batch for the kernels of one step: no table is filled up with zeros, so this
needs the memory of the synapses, and of some pairs at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lutetia._shared.launches import planned
from lutetia._shared.memory import free_memory
from lutetia._shared.numbers import cdiv, next_power_of_2
from lutetia._shared.triton_order import Sorted, sort_columns
from lutetia.errors import ArgumentError
from lutetia.lut.kernels.protocol import Comparisons, Connectivity, Detected, Full, Into, Products, Sequence, Synapses
from lutetia.lut.kernels.recorder import kernel, unrecorded
from lutetia.lut.kernels.reference.rows import subtract
from lutetia.lut.kernels.reference.sequences import CellsOfPairs, add_step, pairs_of, slopes_of_pairs
from lutetia.lut.kernels.triton import pairs
from lutetia.lut.kernels.triton.detect import detect
from lutetia.lut.kernels.triton.layout import layout_of
from lutetia.lut.kernels.triton.pairs import COPIES, all_by_detector, by_detector, spread_totals
from lutetia.lut.kernels.triton.rows import fill_units, gain_units, gather_units
from lutetia.lut.kernels.triton.source import cells as source
from lutetia.lut.kernels.triton.source.cells import CellCase, Counts
from lutetia.lut.kernels.triton.source.pairs import Totals
from lutetia.lut.sums import Sums, from_units, sum_dtype

# Block sizes and warps. The blocks of cells and outputs are the largest ones: narrower tables have narrower blocks.
COUNT = {"CELLS": 2048, "num_warps": 2}
FILL = {"BLOCK_N": 64, "BLOCK_C": 32, "BLOCK_O": 64, "num_warps": 4, "num_stages": 3}
PROJECT = {"BLOCK_N": 64, "BLOCK_C": 128, "BLOCK_O": 32, "num_warps": 4, "num_stages": 3}
GATHER = {"BLOCK_N": 32, "BLOCK_C": 64, "BLOCK_O": 64, "num_warps": 4, "num_stages": 4}
SLOPES = {"BLOCK_J": 4, "BLOCK_I": 64}


# ---- kernels ---------------------------------------------------------------------------------------------------------


def count_cells(sequence: Sequence, dtype: torch.dtype) -> Counts:
    """How often each cell (K, PE) fires for each j, [B, S, N_t, C] of any integers; and whether one passes 8 bits [1]."""
    indices, n_anchors, positional_dim = sequence.x.indices.contiguous(), sequence.n_anchors, sequence.positional_dim
    (batch, length, n_detectors), n_keys, n_positions = indices.shape, 1 << n_anchors, 1 << positional_dim
    shape, wide = (batch, length, n_detectors, n_keys * n_positions), indices.new_zeros(1)
    if length < 2 or not indices.numel():
        return Counts(indices.new_zeros(shape, dtype=dtype), wide)
    counts = Counts(indices.new_empty(shape, dtype=dtype), wide)
    words = cdiv(length - 1, 32)
    keys = indices.new_empty(batch, n_detectors, words, n_keys)
    block = min(64, n_keys)
    planned(source.key_bits_kernel, (batch * n_detectors, words, n_keys // block))(
        indices, keys, length, n_detectors, words, N_K=n_keys, BLOCK_K=block, num_warps=1
    )
    positions = indices.new_empty(n_detectors, length, n_positions)
    planned(source.position_bits_kernel, (cdiv(length, 16), n_detectors))(
        sequence.positions.indices.contiguous(), positions, length, n_detectors, N_PE=positional_dim, BLOCK=16, num_warps=1
    )
    block_p = min(n_positions, COUNT["CELLS"])
    block_k = min(n_keys, COUNT["CELLS"] // block_p)
    block_j = max(1, COUNT["CELLS"] // (block_p * block_k))
    grid = (batch * cdiv(length, block_j), n_keys // block_k * (n_positions // block_p), n_detectors)
    case, numbers = (
        CellCase(n_anchors, positional_dim, BLOCK_J=block_j, BLOCK_K=block_k, BLOCK_P=block_p),
        (length, n_detectors, words),
    )
    planned(source.count_cells_kernel, grid)(keys, positions, counts, numbers, CASE=case, num_warps=COUNT["num_warps"])
    return counts


@kernel
def fill_sequence(weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums) -> Tensor:
    """y[j] = Σ_{i < j} Σ_t W[t, cell], or y = stat · W -> [B, S, O]."""
    if not isinstance(connectivity, Full):
        dtype = sum_dtype(weight)
        y = weight.new_zeros(*sequence.x.indices.shape[:2], connectivity.n_outputs, dtype=torch.int64 if sums.exact else dtype)
        for each in pairs_of(sequence):
            filled = fill_units(weight, connectivity, each.cells.flatten(0, 1), sums)
            y.index_add_(1, each.j, filled.view(len(y), len(each.j), y.shape[2]))
        return from_units(y, sums, dtype)
    if walks_pairs(sums, sequence, weight):
        return pairs.fill(weight, sequence, sums)
    y = weight.new_zeros(*sequence.x.indices.shape[:2], weight.shape[2], dtype=torch.float32)
    for tile in tiles_of(weight, sequence):
        tile.fill(y[tile.rows])
    return y


@kernel
def propagate_sequence(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, sequence: Sequence, anchors: Tensor, n_inputs: int, sums: Sums
) -> tuple[Tensor, Tensor]:
    """grad [B, S, O], anchors [N_t, N_c, 2] -> dx [B, S, I], dpositions [S-1, N_t, N_pe].

    By cells every dot product is looked up in P = g · Wᵀ.
    """
    if not isinstance(connectivity, Full):
        gain, dtype = partial(_gain, grad, weight, connectivity, sums), sum_dtype(grad, weight)
        slopes, distances = map(by_detector, slopes_of_pairs(sequence, gain, 1, sums, dtype))
        sent = spread_totals(slopes, distances[None], sequence, anchors, n_inputs)
        return from_units(sent[0], sums, dtype), from_units(sent[1], sums, dtype)
    if walks_pairs(sums, sequence, weight, grad):
        return pairs.propagate(grad, weight, sequence, anchors, n_inputs, sums)
    batch, length, n_detectors = sequence.x.indices.shape
    totals = grad.new_zeros(batch, n_detectors, length, dtype=torch.float32)
    distances = totals.new_zeros(COPIES, n_detectors, max(length - 1, 0))
    for tile in tiles_of(weight, sequence):
        tile.add_slopes(grad[tile.rows], Totals(totals[tile.rows, tile.detectors], distances[:, tile.detectors]), n_detectors)
    return spread_totals(totals, distances, sequence, anchors, n_inputs)


@kernel
def gather_sequence(grad: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums, into: Into | None) -> Tensor:
    """grad [B, S, O] -> dW, by cells statᵀ · g, or `into` after its step."""
    if not isinstance(connectivity, Full):
        total = grad.new_zeros(connectivity.weight_shape, dtype=torch.int64 if sums.exact else sum_dtype(grad))
        for each in pairs_of(sequence):
            total += gather_units(grad[:, each.j].flatten(0, 1), connectivity, each.cells.flatten(0, 1), sums)
        return subtract(from_units(total, sums, sum_dtype(grad)), into)
    lr_scale = connectivity.meta.lr_scale
    if walks_pairs(sums, sequence, grad):
        return pairs.gather(grad, sequence, lr_scale, sums, into)
    return subtract(_gather(grad, sequence, lr_scale), into)


def _gain(grad: Tensor, weight: Tensor, connectivity: Synapses, sums: Sums, each: CellsOfPairs, bits: Tensor) -> Tensor:
    """What flipping bits of the cells of pairs changes, one synapse after the other; as `slopes_of_pairs` wants it."""
    cells, others = (rows.flatten(0, 1) for rows in (each.cells, each.cells ^ bits.int()))
    layout, dtype = layout_of(connectivity), sum_dtype(grad, weight)
    rows, like = (cells, others), torch.int64 if sums.exact else dtype
    chosen, flipped = gain_units(grad[:, each.j].flatten(0, 1), weight, layout, rows, sums, like)
    assert flipped is not None
    return from_units(chosen - flipped, sums, dtype).view(each.cells.shape)


def _gather(grad: Tensor, sequence: Sequence, lr_scale: float) -> Tensor:
    """dW [N_t, R, O] of the full tables, by cells."""
    n_detectors, n_rows, n_outputs = sequence.x.indices.shape[2], sequence.n_cells << sequence.n_anchors, grad.shape[2]
    make = grad.new_empty if sequence.x.indices.numel() else grad.new_zeros
    gradient = make(n_detectors, n_rows, n_outputs, dtype=torch.float32)
    scaled = grad.float() if lr_scale == 1.0 else grad.float() * lr_scale
    for tile in tiles_of(gradient, sequence):
        tile.gather(scaled[tile.rows], gradient[tile.detectors])
    return gradient


@kernel
def count_firings(sequence: Sequence) -> Tensor:
    """How often each cell (K, PE) fires for each j: int32 [B, S, N_t, C]."""
    return count_cells(sequence, torch.int32).stat


@kernel
def fill_step(x: Tensor, weight: Tensor, anchors: Tensor, cache: Tensor, lengths: Tensor, places: Tensor) -> Tensor:
    """y [B, O] of one new position of each row, whose indices join those in the cache."""
    q = unrecorded(detect)(x, Comparisons(anchors), False).indices
    return add_step(q, weight, anchors.shape[1], cache, lengths, places)


def walks_pairs(sums: Sums, sequence: Sequence, *operands: Tensor) -> bool:
    """Whether pairs are walked: because that was asked for, or because cells cannot be counted.

    Tensor cores add neither integers of this width nor float64, and counts have at most 16 bits.
    """
    if sequence.products is None or sums.exact:
        return True
    return sum_dtype(*operands) == torch.float64 or sequence.x.indices.shape[1] > 2**16


class Tile(NamedTuple):
    """Some sequences and some detectors of one layer: what is counted at once."""

    rows: slice
    detectors: slice
    weight: Tensor  # of these detectors
    sequence: Sequence  # of these rows and detectors

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Places, detectors, outputs."""
        batch, length, n_detectors = self.sequence.x.indices.shape
        return batch * length, n_detectors, self.weight.shape[2]

    def in_order(self, indices: Tensor) -> Sorted:
        """The places of the tile in order of an index of theirs: order [.., N], end and count of each value [.., 2**N_c]."""
        return sort_columns(indices.view(self.numbers[0], -1), 1 << self.sequence.n_anchors)

    def counts(self) -> Counts:
        """Counts in the narrowest integers that hold S - 1, and whether 8 bits would not do."""
        return count_cells(self.sequence, torch.int16 if self.sequence.x.indices.shape[1] <= 2**15 else torch.int32)

    def case(self, sizes: dict[str, int], add: bool = False) -> tuple[CellCase, dict[str, int]]:
        """What a kernel is compiled for: the block sizes, as far as there are cells and outputs; and how it is launched."""
        seq, precision = self.sequence, (self.sequence.products or Products()).precision
        block_c = max(16, min(sizes["BLOCK_C"], seq.n_cells))
        block_o = max(16, min(sizes["BLOCK_O"], next_power_of_2(self.weight.shape[2])))
        case = CellCase(seq.n_anchors, seq.positional_dim, precision, add, sizes["BLOCK_N"], block_c, block_o)
        return case, {name: sizes[name] for name in ("num_warps", "num_stages")}

    def fill(self, y: Tensor) -> None:
        """Add what the tile gives to its y [B, S, O]."""
        (n_places, n_detectors, n_outputs), indices = self.numbers, self.sequence.x.indices
        case, launch = self.case(FILL)
        order = self.in_order(indices).order
        grid = (cdiv(n_places, case.BLOCK_N), cdiv(n_outputs, case.BLOCK_O), n_detectors)
        planned(source.fill_cells_kernel, grid)(self.weight, self.counts(), indices, order, y, self.numbers, CASE=case, **launch)

    def add_slopes(self, grad: Tensor, totals: Totals, n_all: int) -> None:
        """Add the slopes of the tile to its part of the totals of so many detectors: [B, N_t, S] and [COPIES, N_t, S-1]."""
        seq, (batch, length, n_detectors) = self.sequence, self.sequence.x.indices.shape
        if length > 1:
            products = self.project(grad.contiguous(), seq.x.closest[1])
            case = CellCase(seq.n_anchors, seq.positional_dim, BLOCK_J=SLOPES["BLOCK_J"], BLOCK_I=SLOPES["BLOCK_I"])
            planned(source.slopes_of_cells_kernel, (batch * cdiv(length, SLOPES["BLOCK_J"]), n_detectors))(
                products, all_by_detector(seq.x), all_by_detector(seq.positions), totals,
                (length, n_detectors, n_all, COPIES), CASE=case, num_warps=2,
            )  # fmt: skip

    def project(self, grad: Tensor, which: Tensor) -> Tensor:
        """P[n, t, c] = g[n] · W[t, index[n, t], c] of the indices, then of those with bit `which` flipped: [N, 2 N_t, C]."""
        (n_places, n_detectors, _), n_cells, indices = self.numbers, self.sequence.n_cells, self.sequence.x.indices
        both = indices.new_empty(n_places, 2, n_detectors)
        planned(source.flip_kernel, (cdiv(indices.numel(), 1024),))(
            indices, which.contiguous(), both, indices.numel(), n_detectors, BLOCK=1024
        )
        out = grad.new_empty(n_places, 2 * n_detectors, n_cells, dtype=torch.float32)
        case, launch = self.case(PROJECT)
        order = self.in_order(both).order
        grid = (cdiv(n_places, case.BLOCK_N), cdiv(n_cells, case.BLOCK_C), 2 * n_detectors)
        planned(source.project_cells_kernel, grid)(grad, self.weight, both, order, out, self.numbers, CASE=case, **launch)
        return out

    def gather(self, grad: Tensor, out: Tensor) -> None:
        """statᵀ · g, as the gradient of the tile's tables [N_t, R, O] or, past the first sequences, added to it."""
        (_, n_detectors, n_outputs), seq = self.numbers, self.sequence
        case, launch = self.case(GATHER, add=self.rows.start > 0)
        grid = (n_detectors << seq.n_anchors, cdiv(seq.n_cells, case.BLOCK_C), cdiv(n_outputs, case.BLOCK_O))
        sorted_rows = self.in_order(seq.x.indices)
        planned(source.gather_cells_kernel, grid)(
            grad.contiguous(), self.counts(), sorted_rows, out, self.numbers, CASE=case, **launch
        )


def tiles_of(weight: Tensor, sequence: Sequence) -> Iterator[Tile]:
    """Cut batch and detectors so that the counts and products of one tile fit the budget (bytes)."""
    indices, budget = sequence.x.indices, (sequence.products or Products()).budget
    batch, length, n_detectors = indices.shape
    if indices.numel() == 0:
        return
    least = length * sequence.n_cells * 8  # one sequence, one detector: two float32 products, or counts, per place and cell
    budget = free_memory(indices.device) // 4 if budget is None else budget
    if least > budget:
        raise ArgumentError(f"budget is {budget} bytes, expected at least {least}: one sequence of {length} through one detector")
    per_tile = budget // least
    detectors = min(n_detectors, per_tile)
    rows = min(batch, max(1, per_tile // detectors))
    for r in range(0, batch, rows):
        for t in range(0, n_detectors, detectors):
            some, own = slice(r, min(r + rows, batch)), slice(t, min(t + detectors, n_detectors))
            x = [None if each is None else each[some, :, own].contiguous() for each in sequence.x]
            positions = [None if each is None else each[:, own] for each in sequence.positions]
            part = sequence._replace(x=Detected(*x), positions=Detected(*positions))  # type: ignore[arg-type]
            yield Tile(some, own, weight[own], part)

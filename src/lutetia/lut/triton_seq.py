"""The LUT kernels for sequences on CUDA, in Triton; the names of `reference_seq`.

Fully connected layers walk pairs or count cells (`triton_seq_kernels`). Sparse connectivity walks the pairs of the same layer
with its missing synapses filled in by zeros, so it needs the memory of the full tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_choice
from lutetia.lut import reference_seq
from lutetia.lut import triton as step
from lutetia.lut import triton_seq_kernels as source
from lutetia.lut.sums import sum_dtype
from lutetia.lut.synapses import SynapseMeta, Synapses
from lutetia.lut.triton import ACC, _finish, _sums, cdiv, exactly, next_power_of_2

Found: TypeAlias = tuple[Tensor, Tensor, Tensor]
PRECISIONS = ("float32", "tf32", "bf16")

# Block sizes and warps of the cells kernels (measured on an H200): places, cells or outputs at a time.
FILL = {"BLOCK_N": 64, "BLOCK_C": 32, "num_warps": 4}
PROJECT = {"BLOCK_N": 64, "BLOCK_O": 32, "num_warps": 4}
GATHER = {"BLOCK_N": 32, "num_warps": 4}
SLOPES = {"BLOCK_I": 32, "BLOCK_J": 32, "num_warps": 8}

# Both are memory-bound passes over a small tensor: plain torch is as fast as a kernel of our own.
check_positions = reference_seq.check_positions
check_positions_eval = reference_seq.check_positions_eval
densify_firing_stat = reference_seq.densify_firing_stat
fill_outputs_by_firings = reference_seq.fill_outputs_by_firings


# ---- pairs, fully connected ------------------------------------------------------------------------------------------


def fill_outputs_seq_fc(
    weight: Tensor, indices: Tensor, pe_indices: Tensor, positional_dim: int, *, sums: str = "float", int_rescaler: float = 1.0
) -> Tensor:
    """weight [N_t, R, O], indices [B, S, N_t], pe_indices [S-1, N_t] -> y [B, S, O]."""
    (n_detectors, n_rows, n_outputs), (batch, length, _) = weight.shape, indices.shape
    out, overflow = _sums([batch, length, n_outputs], sums, weight, zero=False)
    if out.numel():
        block_o = min(128, next_power_of_2(n_outputs))
        block_t, block_i, warps = pair_blocks(n_detectors, length, block_o)
        source.fill_pairs_kernel[(batch * length, cdiv(n_outputs, block_o))](
            weight, by_detector(indices), by_detector(pe_indices), out, overflow, length, n_detectors, n_outputs,
            **cell_bits(n_rows, positional_dim), **exactly(sums, int_rescaler), ACC=ACC[sum_dtype(weight)],
            BLOCK_T=block_t, BLOCK_I=block_i, BLOCK_O=block_o, num_warps=warps,
        )  # fmt: skip
    return _finish(out, overflow, sums, int_rescaler, sum_dtype(weight))


def pair_blocks(n_detectors: int, length: int, block_o: int) -> tuple[int, int, int]:
    """Detectors and positions per step of one program that walks pairs, and its warps."""
    rows = max(8, 4096 // block_o)
    block_i = min(32, rows, next_power_of_2(length))
    return max(1, min(rows // block_i, next_power_of_2(n_detectors))), block_i, 2


def propagate_through_detectors_seq_fc(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    min_delta: Tensor,
    min_delta_index: Tensor,
    pe_indices: Tensor,
    pe_min_delta: Tensor,
    pe_min_delta_index: Tensor,
    anchors: Tensor,
    n_inputs: int,
    positional_dim: int,
    *,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """grad [B, S, O], weight [N_t, R, O], found [B, S, N_t], pe_* [S-1, N_t] -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
    (n_detectors, n_rows, n_outputs), (batch, length, _) = weight.shape, grad.shape
    totals, overflow = _sums([batch, n_detectors, length], sums, grad, weight)
    position_totals = totals.new_zeros(n_detectors, max(length - 1, 0))
    which = by_detector(min_delta_index)
    if batch and length > 1:
        block_o = min(64, next_power_of_2(n_outputs))
        block_t, block_i = min(2, n_detectors), min(16, next_power_of_2(length))
        source.slopes_of_pairs_kernel[(batch * length, cdiv(n_detectors, block_t))](
            grad.contiguous(), weight, by_detector(indices), by_detector(min_delta), which,
            by_detector(pe_indices), by_detector(pe_min_delta), by_detector(pe_min_delta_index),
            totals, position_totals, overflow, length, n_detectors, n_outputs,
            **cell_bits(n_rows, positional_dim), **exactly(sums, int_rescaler), ACC=ACC[sum_dtype(grad, weight)],
            BLOCK_T=block_t, BLOCK_I=block_i, BLOCK_O=block_o, num_warps=1,
        )  # fmt: skip
    rest = (overflow, which, pe_min_delta_index, anchors, n_inputs, positional_dim, sums, int_rescaler)
    return spread_totals(totals, position_totals, *rest, dtype=sum_dtype(grad, weight))


def spread_totals(
    totals: Tensor,
    position_totals: Tensor,
    overflow: Tensor,
    which: Tensor,
    pe_which: Tensor,
    anchors: Tensor,
    n_inputs: int,
    positional_dim: int,
    sums: str,
    int_rescaler: float,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Total slopes [B, N_t, S] to the anchors of their closest calls, those of distances [N_t, S-1] to their position bits."""
    batch, n_detectors, length = totals.shape
    dx = totals.new_zeros(batch, length, n_inputs)
    if totals.numel():
        block_t = min(64, next_power_of_2(n_detectors))
        source.scatter_totals_kernel[(batch * length, cdiv(n_detectors, block_t))](
            totals, which, anchors, dx, length, n_inputs, n_detectors, N_C=anchors.shape[1], BLOCK_T=block_t, num_warps=1
        )
    dpositions = totals.new_zeros(*pe_which.shape, positional_dim)
    if positional_dim:
        dpositions.scatter_(2, pe_which.long().unsqueeze(-1), position_totals.t().unsqueeze(-1))
    kept = dx.dtype if sums == "float" else (dtype or torch.float32)
    return _finish(dx, overflow, sums, int_rescaler, kept), _finish(dpositions, overflow, sums, int_rescaler, kept)


def gather_weight_gradients_seq_fc(
    grad: Tensor,
    indices: Tensor,
    pe_indices: Tensor,
    positional_dim: int,
    n_rows: int,
    *,
    meta: SynapseMeta = SynapseMeta(),
    external_lr: float = -1.0,
    weight: Tensor | None = None,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """grad [B, S, O], indices [B, S, N_t], pe_indices [S-1, N_t] -> dW [N_t, R, O]; with external_lr >= 0 the updated weight."""
    (batch, length, n_outputs), n_detectors, dtype = grad.shape, indices.shape[2], sum_dtype(grad)
    direct = external_lr >= 0 and sums == "float" and weight is not None and weight.dtype == dtype == torch.float32
    out, overflow = _sums([0 if direct else n_detectors, n_rows, n_outputs], sums, grad)
    if direct and weight is not None:
        out = weight
    if batch and length > 1:
        scaled = (grad if meta.lr_scale == 1.0 else grad.to(dtype) * meta.lr_scale).contiguous()
        block_o = min(64, next_power_of_2(n_outputs))
        block_t, block_i, warps = pair_blocks(n_detectors, length, block_o)
        source.gather_pairs_kernel[(batch * length, cdiv(n_detectors, block_t))](
            scaled, by_detector(indices), by_detector(pe_indices), out, overflow, length, n_detectors, n_outputs,
            float(external_lr), **cell_bits(n_rows, positional_dim), IN_PLACE=direct, **exactly(sums, int_rescaler),
            ACC=ACC[dtype], BLOCK_T=block_t, BLOCK_I=block_i, BLOCK_O=block_o, num_warps=warps,
        )  # fmt: skip
    return settle(out if direct else _finish(out, overflow, sums, int_rescaler, dtype), external_lr, weight, meta)


def settle(gradient: Tensor, external_lr: float, weight: Tensor | None, meta: SynapseMeta) -> Tensor:
    """The gradient itself, or with external_lr >= 0 the weight after its step (already taken when both are the same)."""
    if external_lr < 0:
        return gradient
    assert weight is not None
    if gradient.data_ptr() != weight.data_ptr():
        weight.copy_(weight - external_lr * gradient)
    if meta.min_weight > -float("inf") or meta.max_weight < float("inf"):
        weight.clamp_(meta.min_weight, meta.max_weight)
    return weight


def by_detector(tensor: Tensor) -> Tensor:
    """[..., S, N_t] -> [..., N_t, S], contiguous."""
    return tensor.transpose(-1, -2).contiguous()


def cell_bits(n_rows: int, positional_dim: int) -> dict[str, Any]:
    n_anchors = reference_seq.anchors_of_rows(n_rows, positional_dim)
    return {"N_ROWS": n_rows, "N_C": n_anchors, "N_PE": positional_dim}


# ---- pairs, sparse ---------------------------------------------------------------------------------------------------


def fill_outputs_seq_sparse(
    weight: Tensor,
    indices: Tensor,
    pe_indices: Tensor,
    positional_dim: int,
    synapses: Synapses,
    *,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """weight [n_weights], indices [B, S, N_t], pe_indices [S-1, N_t] -> y [B, S, O]."""
    dense = synapses.expand(weight)
    return fill_outputs_seq_fc(dense, indices, pe_indices, positional_dim, sums=sums, int_rescaler=int_rescaler)


def propagate_through_detectors_seq_sparse(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    min_delta: Tensor,
    min_delta_index: Tensor,
    pe_indices: Tensor,
    pe_min_delta: Tensor,
    pe_min_delta_index: Tensor,
    anchors: Tensor,
    n_inputs: int,
    positional_dim: int,
    synapses: Synapses,
    *,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The same as `_fc` with weight [n_weights] -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
    found = (indices, min_delta, min_delta_index, pe_indices, pe_min_delta, pe_min_delta_index)
    return propagate_through_detectors_seq_fc(
        grad, synapses.expand(weight), *found, anchors, n_inputs, positional_dim, sums=sums, int_rescaler=int_rescaler
    )


def gather_weight_gradients_seq_sparse(
    grad: Tensor,
    indices: Tensor,
    pe_indices: Tensor,
    positional_dim: int,
    synapses: Synapses,
    *,
    external_lr: float = -1.0,
    weight: Tensor | None = None,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """grad [B, S, O], indices [B, S, N_t], pe_indices [S-1, N_t] -> dW [n_weights], or the updated weight."""
    gradient = torch.zeros(synapses.n_weights, dtype=sum_dtype(grad), device=grad.device)
    for number, meta in enumerate(synapses.metas):
        dense = gather_weight_gradients_seq_fc(
            grad, indices, pe_indices, positional_dim, synapses.n_rows, meta=meta, sums=sums, int_rescaler=int_rescaler
        )
        gradient = torch.where(synapses.weight_meta == number, synapses.flatten(dense), gradient)
    if external_lr < 0:
        return gradient
    assert weight is not None
    return synapses.clamp_(weight.copy_(weight - external_lr * gradient))


# ---- cells, fully connected ------------------------------------------------------------------------------------------


def fill_firing_stat(
    indices: Tensor, pe_indices: Tensor, positional_dim: int, n_anchors: int, dtype: torch.dtype = torch.int32
) -> Tensor:
    """How often each cell (K, PE) fires for each j: indices [B, S, N_t], pe_indices [S-1, N_t] -> counts [B, S, N_t, C]."""
    batch, length, n_detectors = indices.shape
    n_cells = 1 << (n_anchors + positional_dim)
    stat = indices.new_zeros(batch, length, n_detectors, n_cells, dtype=dtype)
    if stat.numel() and length > 1:
        source.fill_firing_stat_kernel[(batch * length, n_detectors)](
            by_detector(indices), by_detector(pe_indices), stat, length, n_detectors,
            N_PE=positional_dim, N_CELLS=n_cells, BINS=max(n_cells, 128), BLOCK_I=min(256, next_power_of_2(length)), num_warps=4,
        )  # fmt: skip
    return stat


def count_dtype(indices: Tensor) -> torch.dtype:
    """The narrowest integers that hold S - 1."""
    return torch.int16 if indices.shape[1] <= 2**15 else torch.int32


def fill_outputs_cells_fc(
    weight: Tensor,
    indices: Tensor,
    pe_indices: Tensor,
    positional_dim: int,
    *,
    sums: str = "float",
    int_rescaler: float = 1.0,
    precision: str = "float32",
    budget: int | None = None,
) -> Tensor:
    """y = stat · W: weight [N_t, R, O], indices [B, S, N_t], pe_indices [S-1, N_t] -> [B, S, O]."""
    check_choice("precision", precision, PRECISIONS)
    if walks_anyway(sums, weight):
        return fill_outputs_seq_fc(weight, indices, pe_indices, positional_dim, sums=sums, int_rescaler=int_rescaler)
    y = weight.new_zeros(*indices.shape[:2], weight.shape[2], dtype=torch.float32)
    for tile in tiles_of(weight, indices, pe_indices, positional_dim, precision, budget):
        y[tile.rows] += tile.fill()
    return y


def propagate_through_cells_fc(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    min_delta: Tensor,
    min_delta_index: Tensor,
    pe_indices: Tensor,
    pe_min_delta: Tensor,
    pe_min_delta_index: Tensor,
    anchors: Tensor,
    n_inputs: int,
    positional_dim: int,
    *,
    sums: str = "float",
    int_rescaler: float = 1.0,
    precision: str = "float32",
    budget: int | None = None,
) -> tuple[Tensor, Tensor]:
    """As `propagate_through_detectors_seq_fc`, with every dot product looked up in P = g · Wᵀ."""
    check_choice("precision", precision, PRECISIONS)
    found, pe = (indices, min_delta, min_delta_index), (pe_indices, pe_min_delta, pe_min_delta_index)
    if walks_anyway(sums, weight, grad):
        return propagate_through_detectors_seq_fc(
            grad, weight, *found, *pe, anchors, n_inputs, positional_dim, sums=sums, int_rescaler=int_rescaler
        )
    batch, length, n_detectors = indices.shape
    totals = grad.new_zeros(batch, n_detectors, length, dtype=torch.float32)
    position_totals = totals.new_zeros(n_detectors, max(length - 1, 0))
    for tile in tiles_of(weight, indices, pe_indices, positional_dim, precision, budget):
        slopes, distances = tile.slopes(grad[tile.rows], *found[1:], *pe[1:])
        totals[tile.rows, tile.detectors] += slopes
        position_totals[tile.detectors] += distances
    rest = (totals, by_detector(min_delta_index), pe[2], anchors, n_inputs, positional_dim, "float", int_rescaler)
    return spread_totals(totals, position_totals, *rest)


def gather_weight_gradients_cells_fc(
    grad: Tensor,
    indices: Tensor,
    pe_indices: Tensor,
    positional_dim: int,
    n_rows: int,
    *,
    meta: SynapseMeta = SynapseMeta(),
    external_lr: float = -1.0,
    weight: Tensor | None = None,
    sums: str = "float",
    int_rescaler: float = 1.0,
    precision: str = "float32",
    budget: int | None = None,
) -> Tensor:
    """dW = statᵀ · g: grad [B, S, O], indices [B, S, N_t], pe_indices [S-1, N_t] -> [N_t, R, O], or the updated weight."""
    check_choice("precision", precision, PRECISIONS)
    if walks_anyway(sums, grad):
        options: dict[str, Any] = {"external_lr": external_lr, "weight": weight, "sums": sums, "int_rescaler": int_rescaler}
        return gather_weight_gradients_seq_fc(grad, indices, pe_indices, positional_dim, n_rows, meta=meta, **options)
    n_detectors, n_outputs = indices.shape[2], grad.shape[2]
    gradient = grad.new_zeros(n_detectors, n_rows, n_outputs, dtype=torch.float32)
    scaled = grad.float() * meta.lr_scale
    for tile in tiles_of(gradient, indices, pe_indices, positional_dim, precision, budget):
        tile.gather(scaled[tile.rows], gradient[tile.detectors])
    return settle(gradient, external_lr, weight, meta)


def walks_anyway(sums: str, *operands: Tensor) -> bool:
    """Tensor cores neither add integers of this width nor float64: those walk pairs, which gives the same answer."""
    return sums == "fixed" or sum_dtype(*operands) == torch.float64


class Tile:
    """Some sequences and some detectors of one layer: what is counted at once."""

    def __init__(
        self,
        weight: Tensor,
        indices: Tensor,
        pe_indices: Tensor,
        positional_dim: int,
        precision: str,
        rows: slice,
        detectors: slice,
    ) -> None:
        self.rows, self.detectors, self.precision, self.positional_dim = rows, detectors, precision, positional_dim
        self.weight = weight[detectors]
        self.indices = indices[rows, :, detectors].contiguous()
        self.pe_indices = pe_indices[:, detectors]
        self.n_anchors = reference_seq.anchors_of_rows(weight.shape[1], positional_dim)
        self.n_cells = 1 << (self.n_anchors + positional_dim)

    @property
    def n_places(self) -> int:
        return self.indices.shape[0] * self.indices.shape[1]

    def options(self) -> dict[str, Any]:
        return {"N_Q": 1 << self.n_anchors, "N_CELLS": self.n_cells, "PRECISION": self.precision}

    def sorted_by(self, indices: Tensor) -> Found:
        """The places of the tile in order of an index of theirs: order [N_t, N], end and count of each value [N_t, 2**N_c]."""
        return step.sort_by_neuron(indices.view(self.n_places, -1), 1 << self.n_anchors)

    def stat(self) -> Tensor:
        return fill_firing_stat(self.indices, self.pe_indices, self.positional_dim, self.n_anchors, count_dtype(self.indices))

    def fill(self) -> Tensor:
        """y of the tile: [B, S, O]."""
        batch, length, n_detectors = self.indices.shape
        n_outputs = self.weight.shape[2]
        y = self.weight.new_zeros(batch, length, n_outputs, dtype=torch.float32)
        order, _, _ = self.sorted_by(self.indices)
        block_o = max(16, min(128, next_power_of_2(n_outputs)))
        source.fill_cells_kernel[(cdiv(self.n_places, FILL["BLOCK_N"]), cdiv(n_outputs, block_o), n_detectors)](
            self.weight, self.stat(), self.indices, order, y, self.n_places, n_detectors, n_outputs,
            **self.options(), BLOCK_O=block_o, **FILL,
        )  # fmt: skip
        return y

    def slopes(self, grad: Tensor, delta: Tensor, which: Tensor, pe_delta: Tensor, pe_which: Tensor) -> tuple[Tensor, Tensor]:
        """Total slopes [B, N_t, S] and [N_t, S-1] of the tile."""
        batch, length, n_detectors = self.indices.shape
        delta, which = delta[self.rows, :, self.detectors], which[self.rows, :, self.detectors]
        flipped = self.indices ^ (1 << which)
        main_p, flipped_p = (self.project(grad.contiguous(), indices) for indices in (self.indices, flipped))
        totals = grad.new_zeros(batch, n_detectors, length, dtype=torch.float32)
        distances = totals.new_zeros(n_detectors, max(length - 1, 0))
        if length > 1:
            source.slopes_of_cells_kernel[(batch * cdiv(length, SLOPES["BLOCK_J"]), n_detectors)](
                main_p, flipped_p, by_detector(self.indices), by_detector(delta), by_detector(which),
                by_detector(self.pe_indices), by_detector(pe_delta[:, self.detectors]), by_detector(pe_which[:, self.detectors]),
                totals, distances, length, n_detectors,
                N_PE=self.positional_dim, N_CELLS=self.n_cells, **SLOPES,
            )  # fmt: skip
        return totals, distances

    def project(self, grad: Tensor, indices: Tensor) -> Tensor:
        """P[n, t, c] = g[n] · W[t, index[n, t], c]: [N, N_t, C]."""
        n_detectors, n_outputs = self.indices.shape[2], self.weight.shape[2]
        out = grad.new_empty(self.n_places, n_detectors, self.n_cells, dtype=torch.float32)
        order, _, _ = self.sorted_by(indices)
        block_c = max(16, min(128, self.n_cells))
        source.project_cells_kernel[(cdiv(self.n_places, PROJECT["BLOCK_N"]), cdiv(self.n_cells, block_c), n_detectors)](
            grad, self.weight, indices, order, out, self.n_places, n_detectors, n_outputs,
            **self.options(), BLOCK_C=block_c, **PROJECT,
        )  # fmt: skip
        return out

    def gather(self, grad: Tensor, out: Tensor) -> None:
        """Add statᵀ · g to the gradient of the tile's tables [N_t, R, O]."""
        n_detectors, n_outputs = self.indices.shape[2], grad.shape[2]
        block_c, block_o = max(16, min(64, self.n_cells)), max(16, min(64, next_power_of_2(n_outputs)))
        grid = (n_detectors << self.n_anchors, cdiv(self.n_cells, block_c), cdiv(n_outputs, block_o))
        source.gather_cells_kernel[grid](
            grad.contiguous(), self.stat(), *self.sorted_by(self.indices), out, self.n_places, n_detectors, n_outputs,
            **self.options(), ADD=True, BLOCK_C=block_c, BLOCK_O=block_o, **GATHER,
        )  # fmt: skip


def tiles_of(
    weight: Tensor, indices: Tensor, pe_indices: Tensor, positional_dim: int, precision: str, budget: int | None
) -> Iterator[Tile]:
    """Cut batch and detectors so that the counts and products of one tile fit the budget (bytes)."""
    batch, length, n_detectors = indices.shape
    if indices.numel() == 0:
        return
    n_cells = 1 << (reference_seq.anchors_of_rows(weight.shape[1], positional_dim) + positional_dim)
    least = length * n_cells * 8  # one sequence, one detector: two float32 products, or counts, per place and cell
    budget = free_memory(indices.device) // 4 if budget is None else budget
    if least > budget:
        raise ArgumentError(f"budget is {budget} bytes, expected at least {least}: one sequence of {length} through one detector")
    per_tile = budget // least
    detectors = min(n_detectors, per_tile)
    rows = min(batch, max(1, per_tile // detectors))
    for r in range(0, batch, rows):
        for t in range(0, n_detectors, detectors):
            cut = slice(r, min(r + rows, batch)), slice(t, min(t + detectors, n_detectors))
            yield Tile(weight, indices, pe_indices, positional_dim, precision, *cut)


def free_memory(device: torch.device) -> int:
    """Bytes that could be allocated now: free on the device, or cached by torch's allocator."""
    if device.type != "cuda":
        return 2**30  # under the interpreter
    if torch.cuda.is_current_stream_capturing():
        return torch.cuda.get_device_properties(device).total_memory // 4
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)

"""The LUT kernels for sequences on CUDA, in Triton; the names of `reference_seq`.

Fully connected layers walk pairs (`triton_seq_pairs`) or count cells (`triton_seq_cells`). Sparse connectivity, below, walks the
pairs of the same layer with its missing synapses filled in by zeros, so it needs the memory of the full tables.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia.lut import reference_seq
from lutetia.lut.sums import sum_dtype
from lutetia.lut.synapses import Synapses
from lutetia.lut.triton_seq_cells import (
    fill_firing_stat,
    fill_outputs_cells_fc,
    gather_weight_gradients_cells_fc,
    propagate_through_cells_fc,
)
from lutetia.lut.triton_seq_pairs import (
    check_positions,
    check_positions_eval,
    fill_outputs_seq_fc,
    gather_weight_gradients_seq_fc,
    propagate_through_detectors_seq_fc,
)

__all__ = [
    "check_positions",
    "check_positions_eval",
    "densify_firing_stat",
    "fill_firing_stat",
    "fill_outputs_by_firings",
    "fill_outputs_cells_fc",
    "fill_outputs_seq_fc",
    "fill_outputs_seq_sparse",
    "gather_weight_gradients_cells_fc",
    "gather_weight_gradients_seq_fc",
    "gather_weight_gradients_seq_sparse",
    "propagate_through_cells_fc",
    "propagate_through_detectors_seq_fc",
    "propagate_through_detectors_seq_sparse",
]

# A step towards a recorded picture of the cells, not a fast path: plain torch will do.
densify_firing_stat = reference_seq.densify_firing_stat
fill_outputs_by_firings = reference_seq.fill_outputs_by_firings


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

"""LUT attention on CUDA by walking the pairs of positions, fully connected; the names of `reference_seq`.

The sources are in `triton_seq_kernels`; here each is given its grid and its block sizes (measured on an H200).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from lutetia.lut import reference_seq
from lutetia.lut import triton_seq_kernels as source
from lutetia.lut.sums import sum_dtype
from lutetia.lut.synapses import SynapseMeta
from lutetia.lut.triton import ACC, _finish, _sums, cdiv, exactly, next_power_of_2, sort_by_neuron

Found: TypeAlias = tuple[Tensor, Tensor, Tensor]

# Positions and outputs at a time, and warps. Where three rows are under way, a part of each is read: fewer registers.
FILL = (16, 64, 1)
SLOPES = {"short": (8, 16, 1), "long": (32, 16, 1)}
GATHER = (32, 64, 1)
DETECTORS = {"short": 4, "long": 2}  # of one program that fills
COPIES = 16  # of the totals of distances: there are few, and all programs at work would add to the same ones


# ---- what was found --------------------------------------------------------------------------------------------------


def check_positions(positions: Tensor) -> Found:
    """positions [S-1, N_t, N_pe] -> PE indices int32, min_delta, min_delta_index int32, each [S-1, N_t]."""
    return _check_positions(positions, train=True) if positions.numel() else reference_seq.check_positions(positions)


def check_positions_eval(positions: Tensor) -> Tensor:
    """positions [S-1, N_t, N_pe] -> PE indices int32 [S-1, N_t]."""
    return _check_positions(positions, train=False)[0] if positions.numel() else reference_seq.check_positions_eval(positions)


def _check_positions(positions: Tensor, train: bool) -> Found:
    shape, positional_dim = positions.shape[:-1], positions.shape[-1]
    values = positions.to(sum_dtype(positions)).contiguous()
    index = values.new_empty(shape, dtype=torch.int32)
    found = (index, torch.empty_like(index, dtype=values.dtype), torch.empty_like(index)) if train else (index, index, index)
    padded = next_power_of_2(positional_dim)
    block = max(1, 512 // padded)
    source.check_positions_kernel[(cdiv(index.numel(), block),)](
        values, *found, index.numel(), N_PE=positional_dim, N_PE_PADDED=padded, TRAIN=train, BLOCK=block
    )
    return found


def by_detector(tensor: Tensor) -> Tensor:
    """[..., S, N_t] -> [..., N_t, S], contiguous."""
    return tensor.transpose(-1, -2).contiguous()


def all_by_detector(index: Tensor, delta: Tensor, which: Tensor) -> Found:
    """Three of [..., S, N_t] -> [..., N_t, S], contiguous, in one kernel."""
    *batch, length, n_detectors = index.shape
    out = tuple(tensor.new_empty(*batch, n_detectors, length) for tensor in (index, delta, which))
    if index.numel():
        grid = (index.numel() // (length * n_detectors), cdiv(length, 32), cdiv(n_detectors, 32))
        given = (tensor.contiguous() for tensor in (index, delta, which))
        source.by_detector_kernel[grid](*given, *out, length, n_detectors, BLOCK=32)
    return out[0], out[1], out[2]


def in_order(indices: Tensor, n_values: int) -> Found:
    """Places by the value of their index: indices [N, N_t] -> order [N_t, N], end and count of each value [N_t, values]."""
    n_places, n_detectors = indices.shape
    if n_values > 128 or not indices.numel():
        return sort_by_neuron(indices, n_values)
    block = max(16, min(256, 4096 // n_values))
    chunk = block * cdiv(n_places, 64 * block)  # at most 64 of them
    chunks = cdiv(n_places, chunk)
    counts = indices.new_empty(n_detectors, chunks, n_values)
    order, end, count = indices.new_empty(n_detectors, n_places), *(indices.new_empty(n_detectors, n_values) for _ in range(2))
    sizes = (n_places, n_detectors, chunk)
    source.count_chunks_kernel[(chunks, n_detectors)](indices, counts, *sizes, N_Q=n_values, BLOCK=block)
    source.order_chunks_kernel[(chunks, n_detectors)](
        indices, counts, order, end, count, *sizes, N_Q=n_values, N_CHUNKS=next_power_of_2(chunks), BLOCK=block
    )
    return order, end, count


def table(n_rows: int, positional_dim: int, n_outputs: int) -> dict[str, Any]:
    """What the kernels must know of a table."""
    n_anchors = reference_seq.anchors_of_rows(n_rows, positional_dim)
    return {"N_ROWS": n_rows, "N_C": n_anchors, "N_PE": positional_dim, "FAR": n_rows * n_outputs >= 2**31}


def kind(length: int) -> str:
    """Short sequences read each row about once, out of memory; long ones again, out of the cache while few detectors are at work.

    Neighbouring detectors of a short one share what is read of the indices, so these need not be put by detector.
    """
    return "short" if length <= 64 else "long"


def blocks(sizes: tuple[int, int, int], length: int, n_outputs: int) -> dict[str, int]:
    """The block sizes of a program, as far as there are positions and outputs."""
    block_i, block_o, warps = sizes
    block_i, block_o = min(block_i, next_power_of_2(length)), min(block_o, next_power_of_2(n_outputs))
    return {"BLOCK_I": block_i, "BLOCK_O": block_o, "num_warps": warps}


# ---- kernels ---------------------------------------------------------------------------------------------------------


def fill_outputs_seq_fc(
    weight: Tensor, indices: Tensor, pe_indices: Tensor, positional_dim: int, *, sums: str = "float", int_rescaler: float = 1.0
) -> Tensor:
    """weight [N_t, R, O], indices [B, S, N_t], pe_indices [S-1, N_t] -> y [B, S, O]."""
    (n_detectors, n_rows, n_outputs), (batch, length, _) = weight.shape, indices.shape
    out, overflow = _sums([batch, length, n_outputs], sums, weight)
    if out.numel() and length > 1:
        detectors, tile = DETECTORS[kind(length)], blocks(FILL, length, n_outputs)
        found, steps = (indices.contiguous(), pe_indices.contiguous()), (n_detectors, 1, n_detectors, 1)
        if kind(length) == "long":
            found, steps = (by_detector(indices), by_detector(pe_indices)), (1, length, 1, length - 1)
        source.fill_pairs_kernel[(batch * length, cdiv(n_outputs, tile["BLOCK_O"]), cdiv(n_detectors, detectors))](
            weight, *found, out, overflow, length, n_detectors, n_outputs, *steps, **table(n_rows, positional_dim, n_outputs),
            **exactly(sums, int_rescaler), ACC=ACC[sum_dtype(weight)], DETECTORS=detectors, **tile,
        )  # fmt: skip
    return _finish(out, overflow, sums, int_rescaler, sum_dtype(weight))


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
    position_totals = totals.new_zeros(COPIES, n_detectors, max(length - 1, 0))
    found = all_by_detector(indices, min_delta, min_delta_index)
    if batch and length > 1:
        source.slopes_of_pairs_kernel[(batch * length, n_detectors)](
            grad.contiguous(), weight, *found, *all_by_detector(pe_indices, pe_min_delta, pe_min_delta_index),
            totals, position_totals, overflow, length, n_detectors, n_outputs, COPIES,
            **table(n_rows, positional_dim, n_outputs), **exactly(sums, int_rescaler), ACC=ACC[sum_dtype(grad, weight)],
            **blocks(SLOPES[kind(length)], length, n_outputs),
        )  # fmt: skip
    rest = (overflow, found[2], pe_min_delta_index, anchors, n_inputs, positional_dim, sums, int_rescaler)
    return spread_totals(totals, position_totals.sum(0), *rest, dtype=sum_dtype(grad, weight))


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
        source.gather_pairs_kernel[(batch * length, n_detectors)](
            scaled, by_detector(indices), by_detector(pe_indices), out, overflow, length, n_detectors, n_outputs,
            float(external_lr), **table(n_rows, positional_dim, n_outputs), IN_PLACE=direct, **exactly(sums, int_rescaler),
            ACC=ACC[dtype], **blocks(GATHER, length, n_outputs),
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

"""Sequences on CUDA by walking the pairs of positions, fully connected.

The sources are in `source.pairs`; here each is given its grid and its block sizes (measured on an H200).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lutetia._shared.launches import Planned, planned
from lutetia._shared.numbers import cdiv, next_power_of_2
from lutetia._shared.triton_order import transposed_each
from lutetia.lut.kernels import cuda
from lutetia.lut.kernels.cuda import pairs as cuda_pairs
from lutetia.lut.kernels.protocol import Detected, Into, Sequence, Sums, sum_dtype
from lutetia.lut.kernels.reference.rows import subtract
from lutetia.lut.kernels.triton.launch import ACC, finish, fusion, scale_of, target_of
from lutetia.lut.kernels.triton.source import pairs as source
from lutetia.lut.kernels.triton.source.basics import Rows, Target
from lutetia.lut.kernels.triton.source.pairs import PairCase, Totals

# Positions and outputs at a time, and warps. Where three rows are under way, a part of each is read: fewer registers.
FILL = (16, 64, 2)
SLOPES = {"short": (8, 16, 1), "long": (32, 16, 1)}
GATHER = (32, 64, 1)
DETECTORS = {"short": 4, "long": 2}  # of one program that fills
COPIES = 16  # of the totals of distances: there are few, and all programs at work would add to the same ones


# ---- what detectors found ---------------------------------------------------------------------------------------------


def by_detector(tensor: Tensor) -> Tensor:
    """[..., S, N_t] -> [..., N_t, S], contiguous."""
    return transposed_each((tensor,))[0]


def all_by_detector(detected: Detected) -> Rows:
    """All three, [..., S, N_t] -> [..., N_t, S], contiguous, in one kernel."""
    return Rows(*transposed_each((detected.indices, *detected.closest)))


def kind(length: int) -> str:
    """Short sequences read each row about once, out of memory; long ones again, out of the cache while few detectors are at work.

    Neighbouring detectors of a short one share what is read of the indices, so these need not be put by detector.
    """
    return "short" if length <= 64 else "long"


def case_of(sequence: Sequence, n_outputs: int, sums: Sums, dtype: torch.dtype, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """Launch options: what is known of the table, and the block sizes, as far as there are positions and outputs."""
    (block_i, block_o, warps), n_rows = sizes, sequence.n_cells << sequence.n_anchors
    table = (n_rows, sequence.n_anchors, sequence.positional_dim, n_rows * n_outputs >= 2**31)
    block_i, block_o = min(block_i, next_power_of_2(sequence.x.indices.shape[1])), min(block_o, next_power_of_2(n_outputs))
    case = PairCase(*table, scale_of(sums), ACC[dtype], block_i, block_o)
    return {"CASE": case, "num_warps": warps, **fusion(sums)}


# ---- kernels ---------------------------------------------------------------------------------------------------------


def fill(weight: Tensor, sequence: Sequence, sums: Sums) -> Tensor:
    """weight [N_t, R, O] -> y [B, S, O]."""
    (batch, length, _), n_outputs = sequence.x.indices.shape, weight.shape[2]
    target = target_of([batch, length, n_outputs], sums, weight)
    if target.out.numel() and length > 1:
        launch_fill(weight, sequence, target, sums)
    return finish(target, sums, sum_dtype(weight))


def launch_fill(weight: Tensor, sequence: Sequence, target: Target, sums: Sums) -> Planned:
    """Add up rows of weight [N_t, R, O] in a target [B, S > 1, O] that is not empty; what was launched."""
    (n_detectors, _, n_outputs), (batch, length, _) = weight.shape, sequence.x.indices.shape
    detectors, options = DETECTORS[kind(length)], case_of(sequence, n_outputs, sums, sum_dtype(weight), FILL)
    indices, pe_indices = sequence.x.indices, sequence.positions.indices
    found, steps = (indices.contiguous(), pe_indices.contiguous()), (n_detectors, 1, n_detectors, 1)
    if kind(length) == "long":
        found, steps = (by_detector(indices), by_detector(pe_indices)), (1, length, 1, length - 1)
    grid = (batch * length, cdiv(n_outputs, options["CASE"].BLOCK_O), cdiv(n_detectors, detectors))
    numbers = (length, n_detectors, n_outputs)
    return planned(source.fill_pairs_kernel, grid)(weight, found, target, numbers, steps, DETECTORS=detectors, **options)


def propagate(
    grad: Tensor, weight: Tensor, sequence: Sequence, anchors: Tensor, n_inputs: int, sums: Sums
) -> tuple[Tensor, Tensor]:
    """grad [B, S, O], weight [N_t, R, O] -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
    (n_detectors, _, n_outputs), (batch, length, _) = weight.shape, grad.shape
    in_cuda = batch and length > 1 and grad.is_cuda and not sums.exact and cuda.available()
    if in_cuda and cuda_pairs.slopes_fit(grad, weight, sequence):
        sent, dx, dpositions = cuda_pairs.slopes(grad, weight, sequence, anchors, n_inputs)
        return dx if sent is None else scatter_totals(sent, sequence.x.closest[1], anchors, dx), dpositions
    target = target_of([batch, n_detectors, length], sums, grad, weight)
    totals = target.out
    position_totals = totals.new_zeros(COPIES, n_detectors, max(length - 1, 0))
    rows = all_by_detector(sequence.x)
    if batch and length > 1:
        options = case_of(sequence, n_outputs, sums, sum_dtype(grad, weight), SLOPES[kind(length)])
        planned(source.slopes_of_pairs_kernel, (batch * length, n_detectors))(
            grad.contiguous(), weight, rows, all_by_detector(sequence.positions),
            Totals(totals, position_totals, target.overflow), (length, n_detectors, n_outputs, COPIES), **options,
        )  # fmt: skip
    dx, dpositions = spread_totals(totals, position_totals, sequence, anchors, n_inputs)
    dtype = sum_dtype(grad, weight)
    return finish(target._replace(out=dx), sums, dtype), finish(target._replace(out=dpositions), sums, dtype)


def spread_totals(
    totals: Tensor, position_totals: Tensor, sequence: Sequence, anchors: Tensor, n_inputs: int
) -> tuple[Tensor, Tensor]:
    """Total slopes [B, N_t, S] to the anchors of their closest calls, those of distances [copies, N_t, S-1] to their bits."""
    batch, _, length = totals.shape
    (_, which), (_, pe_which) = sequence.x.closest, sequence.positions.closest
    dx = scatter_totals(totals, which, anchors, totals.new_zeros(batch, length, n_inputs))
    dpositions = totals.new_empty(*pe_which.shape, sequence.positional_dim)
    if dpositions.numel():
        padded = next_power_of_2(sequence.positional_dim)
        block = max(1, 256 // padded)
        planned(source.place_totals_kernel, (cdiv(pe_which.numel(), block),))(
            position_totals,
            pe_which,
            dpositions,
            tuple(position_totals.shape),
            N_PE=sequence.positional_dim,
            PADDED=padded,
            BLOCK=block,
        )
    return dx, dpositions


def scatter_totals(totals: Tensor, which: Tensor, anchors: Tensor, dx: Tensor) -> Tensor:
    """Add total slopes [B, N_t, S] to dx [B, S, I], at the anchors of their closest calls `which` [B, S, N_t]."""
    (_, n_detectors, length), n_inputs = totals.shape, dx.shape[2]
    if totals.numel():
        block_t = min(64, next_power_of_2(n_detectors))
        planned(source.scatter_totals_kernel, (dx.shape[0] * length, cdiv(n_detectors, block_t)))(
            totals,
            which.contiguous(),
            anchors,
            dx,
            (length, n_inputs, n_detectors),
            N_C=anchors.shape[1],
            BLOCK_T=block_t,
            num_warps=1,
        )
    return dx


def gather(grad: Tensor, sequence: Sequence, lr_scale: float, sums: Sums, into: Into | None = None) -> Tensor:
    """grad [B, S, O] -> dW [N_t, R, O], or `into` after its step."""
    (batch, length, n_outputs), n_detectors, dtype = grad.shape, sequence.x.indices.shape[2], sum_dtype(grad)
    n_rows = sequence.n_cells << sequence.n_anchors
    direct = into if into is not None and not sums.exact and into.weight.dtype == dtype == torch.float32 else None
    indices = by_detector(sequence.x.indices)
    if batch and grad.is_cuda and not sums.exact and cuda.available():
        out = direct.weight if direct else grad.new_empty(n_detectors, n_rows, n_outputs, dtype=dtype)
        # In place, a table row that no pair reads costs nothing: up to half as many pairs as rows, atomics are as fast or faster.
        few = direct is not None and batch * length * (length - 1) < n_rows // 2
        if not few and cuda_pairs.fits(grad, sequence, out):
            order = cuda_pairs.in_order(indices, sequence)
            scale = lr_scale if direct is None else -lr_scale * float(direct.rate)
            cuda_pairs.gather(grad, sequence, indices, order, (out, scale, direct is not None))
            return out if direct else subtract(out, into)
    target = Target(direct.weight) if direct else target_of([n_detectors, n_rows, n_outputs], sums, grad)
    if batch and length > 1:
        scaled = (grad if lr_scale == 1.0 else grad.to(dtype) * lr_scale).contiguous()
        numbers = (length, n_detectors, n_outputs, float(direct.rate) if direct else None)
        planned(source.gather_pairs_kernel, (batch * length, n_detectors))(
            scaled,
            (indices, by_detector(sequence.positions.indices)),
            target,
            numbers,
            **case_of(sequence, n_outputs, sums, dtype, GATHER),
        )
    return target.out if direct else subtract(finish(target, sums, dtype), into)

"""Sequences on CUDA under sparse connectivity: each pair is a row of a batch for the kernels of one step.

No table is filled up with zeros, so this needs the memory of the synapses, and of some pairs at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lutetia.lut.connectivity.full import Connectivity
from lutetia.lut.kernels.protocol import Into, Sequence
from lutetia.lut.kernels.recorder import unrecorded
from lutetia.lut.kernels.reference.rows import subtract, uncertainty_slope
from lutetia.lut.kernels.triton.pairs import by_detector, spread_totals
from lutetia.lut.kernels.triton.rows import fill_rows, gather_rows, row_gains
from lutetia.lut.sums import Sums, sum_dtype

CELLS_AT_ONCE = 2**22  # that pairs read


class Part(NamedTuple):
    """Some pairs i < j of all B sequences: their positions [n], and the cells that detectors read, int32 [B · n, N_t]."""

    i: Tensor
    j: Tensor
    cells: Tensor


def parts_of(sequence: Sequence) -> Iterator[Part]:
    """The pairs of a sequence, in parts that are small enough to save memory."""
    index, pe = sequence.x.indices, sequence.positions.indices
    batch, length, n_detectors = index.shape
    both = torch.tril_indices(length, length, -1, device=index.device)
    shift = sequence.n_anchors + sequence.positional_dim
    for j, i in zip(*(each.split(max(1, CELLS_AT_ONCE // max(1, batch * n_detectors))) for each in both), strict=True):
        cells = index[:, j] << shift | index[:, i] << sequence.positional_dim | pe[j - i - 1]
        yield Part(i, j, cells.flatten(0, 1))


def fill(weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums) -> Tensor:
    """y [B, S, O]."""
    shape = (*sequence.x.indices.shape[:2], connectivity.n_outputs)
    y = weight.new_zeros(shape, dtype=sum_dtype(weight))
    for part in parts_of(sequence):
        rows = unrecorded(fill_rows)(weight, connectivity, part.cells, None, sums)
        y.index_add_(1, part.j, rows.view(shape[0], -1, shape[2]))
    return y


def propagate(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, sequence: Sequence, anchors: Tensor, n_inputs: int, sums: Sums
) -> tuple[Tensor, Tensor]:
    """grad [B, S, O] -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
    (delta, which), (pe_delta, pe_which), n_pe = sequence.x.closest, sequence.positions.closest, sequence.positional_dim
    totals = torch.zeros_like(delta, dtype=sum_dtype(grad, weight))
    distances = totals.new_zeros(pe_delta.shape)

    def gain(part: Part, flips: Tensor) -> Tensor:
        rows = (part.cells, part.cells ^ flips.flatten(0, 1).int())
        chosen, flipped = unrecorded(row_gains)(grad[:, part.j].flatten(0, 1), weight, connectivity, rows, sums)
        assert flipped is not None
        return (chosen - flipped).view_as(flips)

    for part in parts_of(sequence):
        i, j, of_q, of_k = part.i, part.j, delta[:, part.j], delta[:, part.i]
        at_q = of_q.abs() < of_k.abs()
        flips = torch.where(at_q, 1 << (which[:, j] + sequence.n_anchors + n_pe), 1 << (which[:, i] + n_pe))
        slope = uncertainty_slope(torch.where(at_q, of_q, of_k)) * gain(part, flips)
        totals.index_add_(1, j, slope * at_q).index_add_(1, i, slope * ~at_q)
        if n_pe:
            far = pe_delta[j - i - 1].expand_as(slope)
            near = far.abs() < torch.minimum(of_q.abs(), of_k.abs())
            slope = uncertainty_slope(far) * gain(part, (1 << pe_which[j - i - 1]).expand_as(slope)) * near
            distances.index_add_(0, j - i - 1, slope.sum(0))
    slopes = (by_detector(totals), by_detector(distances)[None])
    return spread_totals(*slopes, by_detector(which), sequence, anchors, n_inputs)


def gather(grad: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums, into: Into | None) -> Tensor:
    """dW, or `into` after its step: grad [B, S, O]."""
    total = grad.new_zeros(connectivity.weight_shape, dtype=sum_dtype(grad))
    for part in parts_of(sequence):
        total += unrecorded(gather_rows)(grad[:, part.j].flatten(0, 1), connectivity, part.cells, None, sums, None)
    return subtract(total, into)

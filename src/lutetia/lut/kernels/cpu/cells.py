"""Sequences on the CPU by counting cells, compiled; the primitives of a `Backend`. The loops are in `loops.cells`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import ArgumentError
from lutetia.lut.connectivity.full import Connectivity, full
from lutetia.lut.kernels.cpu.arrays import Keys, Margins
from lutetia.lut.kernels.cpu.pairs import Gather, Slopes, by_pairs, fill_pairs, gradient_or_step, of_pairs, scaled_by, send
from lutetia.lut.kernels.cpu.plan import Plan, array_of, new_array, plan_of
from lutetia.lut.kernels.cpu.rows import scale_of, weight_array
from lutetia.lut.kernels.cpu.sequence_plan import arrays_of, grad_array, n_pairs, within_budget
from lutetia.lut.kernels.cpu.threads import loop, over, raise_if
from lutetia.lut.kernels.protocol import Into, Products, Sequence
from lutetia.lut.kernels.recorder import kernel, unrecorded
from lutetia.lut.sums import Sums

TILE = 64  # places that gather_cells counts at once: with 16 it takes 1.1 times as long, with 4 half as long again


def _serve(sequence: Sequence, sums: Sums) -> bool:
    """Whether the loops over cells can do it; if not, those over pairs give the same answer."""
    return not sums.exact and sequence.n_cells >= 4


def _budget(sequence: Sequence) -> int | None:
    return (sequence.products or Products()).budget


# ---- forward ---------------------------------------------------------------------------------------------------------


@kernel
def count_firings(sequence: Sequence) -> Tensor:
    """How often each cell (K, PE) fires for each j: int32 [B, S, N_t, C]."""
    batch, length, n_detectors = sequence.x.indices.shape
    plan = plan_of(full(n_detectors, sequence.n_cells << sequence.n_anchors, 1))
    stat = np.empty((batch * length, n_detectors, sequence.n_cells), np.int32)
    work, n = stat.size // 8 + n_pairs(sequence), batch * ((length + 1) // 2)
    over(n, work, loop("cells", "count_firings"), arrays_of(sequence, plan), stat)
    return torch.from_numpy(stat).view(batch, length, n_detectors, sequence.n_cells)


@kernel
def fill_firings(weight: Tensor, firings: tuple[Tensor, Tensor, Tensor], shape: tuple[int, int], sums: Sums) -> Tensor:
    """y = Σ count · W[row]: weight [N_t, R, O], shape (B, S) -> [B, S, O]."""
    n_detectors, n_rows, n_outputs = weight.shape
    place, row, count = (np.ascontiguousarray(tensor.numpy(), np.int64) for tensor in firings)
    if not len(place) == len(row) == len(count):
        raise ArgumentError(f"firings have {len(place)} places, {len(row)} rows, {len(count)} counts, expected as many of each")
    for name, values, end in (("place", place, shape[0] * shape[1]), ("row", row, n_detectors * n_rows)):
        if values.size and not 0 <= values.min() <= values.max() < end:
            raise ArgumentError(f"firings have a {name} from {values.min()} to {values.max()}, expected 0 to {end - 1}")
    if (np.diff(place) < 0).any():
        raise ArgumentError("firings are not in the order of their places, expected them as from densify_firing_stat")
    y = new_array((shape[0] * shape[1], n_outputs), weight)
    arrays = (array_of(weight).reshape(-1), (place, row, count), y, scale_of(sums))
    raise_if(over(len(y), len(place) * n_outputs, loop("cells", "fill_firings"), *arrays), sums)
    return torch.from_numpy(y).view(*shape, n_outputs)


@kernel
def fill_cells(weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums) -> Tensor:
    """`fill_pairs` by cells -> [B, S, O]."""
    if not _serve(sequence, sums):
        return unrecorded(fill_pairs)(weight, connectivity, sequence, sums)
    plan, (batch, length, _) = plan_of(connectivity), sequence.x.indices.shape
    seq, y = arrays_of(sequence, plan), new_array((batch * length, plan.n_outputs), weight)
    within_budget(_budget(sequence), seq, 4 * (sequence.n_cells + plan.n_outputs) * y.itemsize)
    additions = n_pairs(sequence) * plan.n_synapses
    over(batch * ((length + 1) // 2), additions, loop("cells", "fill_cells"), weight_array(weight, plan), seq, y)
    return torch.from_numpy(y).view(batch, length, plan.n_outputs)


# ---- backward --------------------------------------------------------------------------------------------------------


@kernel
def propagate_cells(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, sequence: Sequence, anchors: Tensor, n_inputs: int, sums: Sums
) -> tuple[Tensor, Tensor]:
    """`propagate_pairs` by cells."""
    slopes = _by_cells(grad, weight, sequence, plan_of(connectivity)) if _serve(sequence, sums) else None
    return send(slopes or by_pairs(grad, weight, sequence, plan_of(connectivity), sums), sequence, anchors, n_inputs, sums)


def _by_cells(grad: Tensor, weight: Tensor, sequence: Sequence, plan: Plan) -> Slopes:
    """Slopes from the products of g with all cells of a place."""
    g = grad_array(grad, weight, sequence, plan)

    def add(seq: Keys, margins: Margins, slopes: tuple[np.ndarray, np.ndarray]) -> None:
        padded, n_cells = plan.n_outputs + 3, sequence.n_cells
        within_budget(_budget(sequence), seq, (padded * n_cells + 4 * (padded + n_cells)) * g.itemsize)
        arrays = (g, weight_array(weight, plan), seq, margins, slopes)
        work = n_pairs(sequence) * plan.n_synapses
        over(seq[0].shape[0] * seq[0].shape[1], work, loop("cells", "propagate_cells"), *arrays)

    return Slopes(add, plan, g.dtype)


@kernel
def gather_cells(grad: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums, into: Into | None) -> Tensor:
    """`gather_pairs` by cells."""
    plan = plan_of(connectivity)
    gather = _of_cells(grad, sequence, plan) if _serve(sequence, sums) else of_pairs(grad, sequence, plan, sums)
    return gradient_or_step(gather, connectivity, sums, into)


def _of_cells(grad: Tensor, sequence: Sequence, plan: Plan) -> Gather:
    """From the counts of a tile of places at a time."""
    seq, g = arrays_of(sequence, plan), grad_array(grad, grad, sequence, plan)
    tile = 4 * within_budget(_budget(sequence), seq, 4 * (sequence.n_cells + plan.n_outputs) * g.itemsize, TILE // 4)
    additions = n_pairs(sequence) * plan.n_synapses // max(plan.n_detectors, 1)

    def add(begin: int, end: int, out: np.ndarray, rate: float) -> None:
        scaled, _ = scaled_by(g, plan, rate)
        over(end - begin, (end - begin) * additions, loop("cells", "gather_cells"), scaled, seq, out, begin, np.uint64(tile))

    return Gather(add, plan, g.dtype)

"""The LUT kernels for sequences on the CPU, compiled; the same names in the same order as in `reference_seq`.

The loops are in `numba_seq` (pairs) and `numba_cells` (cells); here tensors become arrays, detector by detector, are checked,
and the work is shared out over threads: positions going forward, detectors and batch rows to the inputs, detectors to the
weights. No two threads write to the same place, and how many there are never changes a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_choice, check_tensor, fail
from lutetia.lut.cpu import Rates, _anchor_array, _index_array, _raise_if, _scale, _weight_array, check_detectors
from lutetia.lut.cpu_plan import Plan, array_of, fc_plan, new_array, sparse_plan
from lutetia.lut.cpu_seq_plan import (
    Found,
    Sequence,
    cells_apply,
    cells_of,
    grad_array,
    margins_of,
    n_pairs,
    sequence,
    tables_of,
    within_budget,
)
from lutetia.lut.reference_seq import PRECISIONS, densify_firing_stat
from lutetia.lut.reference_seq import check_positions as check_no_positions
from lutetia.lut.sums import convert_integers_to_floats
from lutetia.lut.synapses import SynapseMeta, Synapses
from lutetia.lut.threads import over

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

TILE = 64  # places that gather_cells counts at once: with 16 it takes 1.1 times as long, with 4 half as long again
STEP = 1 << 24  # gradients that an in-place step keeps at once


@cache
def compiled() -> ModuleType:
    """The compiled loops over pairs; numba is first imported here."""
    from lutetia.lut import numba_seq

    return numba_seq


@cache
def compiled_cells() -> ModuleType:
    """Those over cells."""
    from lutetia.lut import numba_cells

    return numba_cells


# ---- detect ----------------------------------------------------------------------------------------------------------


def check_positions(positions: Tensor) -> Found:
    """positions [S-1, N_t, N_pe] -> PE indices int32, min_delta, min_delta_index int32, each [S-1, N_t]."""
    positional_dim = positions.shape[-1]
    if positional_dim == 0:
        return check_no_positions(positions)
    # A position is compared with zero: one detector, whose anchors are the positions and a zero beside them.
    anchors = torch.tensor([[(r, positional_dim) for r in range(positional_dim)]], dtype=torch.int32)
    index, min_delta, which = check_detectors(torch.nn.functional.pad(positions.detach(), (0, 1)), anchors)
    return index.squeeze(-1), min_delta.squeeze(-1), which.squeeze(-1)


def check_positions_eval(positions: Tensor) -> Tensor:
    """positions [S-1, N_t, N_pe] -> PE indices int32 [S-1, N_t]."""
    return check_positions(positions)[0]


# ---- forward ---------------------------------------------------------------------------------------------------------


def fill_outputs_seq_fc(
    weight: Tensor, indices: Tensor, pe_indices: Tensor, positional_dim: int, *, sums: str = "float", int_rescaler: float = 1.0
) -> Tensor:
    """weight [N_t, R, O], indices [B, S, N_t], pe_indices [S-1, N_t] -> y [B, S, O]."""
    return _fill(weight, indices, pe_indices, positional_dim, fc_plan(*weight.shape), sums, int_rescaler)


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
    """weight [n_weights], everything else as in `_fc` -> y [B, S, O]."""
    return _fill(weight, indices, pe_indices, positional_dim, sparse_plan(synapses), sums, int_rescaler)


def _fill(
    weight: Tensor, indices: Tensor, pe_indices: Tensor, positional_dim: int, plan: Plan, sums: str, int_rescaler: float
) -> Tensor:
    seq, (batch, length, _) = sequence(indices, pe_indices, positional_dim, plan), indices.shape
    y = new_array((batch * length, plan.n_outputs), weight)
    arrays = (_weight_array(weight, plan), *tables_of(plan), seq, y, _scale(sums, int_rescaler))
    additions = n_pairs(indices) * plan.n_synapses
    _raise_if(over(batch * ((length + 1) // 2), additions, compiled().fill_seq, *arrays), int_rescaler)
    return torch.from_numpy(y).view(batch, length, plan.n_outputs)


def fill_step(x: Tensor, weight: Tensor, anchors: Tensor, cache: Tensor, lengths: Tensor, places: Tensor) -> Tensor:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O] of one new position of each row, in one launch.

    cache int16 [B, N_t, S] has room for its indices, which join lengths [B] earlier ones; places int32 [N_t, S-1] are the PE
    indices, farthest first. All are contiguous, weight and x of one dtype, float32 or float64.
    """
    (n_detectors, n_anchors, _), n_rows = anchors.shape, weight.shape[1]
    positional_dim = n_rows.bit_length() - 1 - 2 * n_anchors
    y = np.empty((len(x), weight.shape[2]), array_of(x).dtype)
    held = lengths.numpy()
    arrays = (array_of(x), _anchor_array(anchors, x.shape[1]), array_of(weight).reshape(-1), cache.numpy(), held)
    additions = int(held.sum()) * n_detectors * weight.shape[2]
    over(len(x), additions, compiled().fill_step, *arrays, array_of(places), positional_dim, y)
    return torch.from_numpy(y)


# ---- forward by cells ------------------------------------------------------------------------------------------------


def fill_firing_stat(indices: Tensor, pe_indices: Tensor, positional_dim: int, n_anchors: int) -> Tensor:
    """How often each cell (K, PE) fires for each j: indices [B, S, N_t], pe_indices [S-1, N_t] -> int32 [B, S, N_t, C]."""
    batch, length, n_detectors = indices.shape
    plan = fc_plan(n_detectors, 1 << (2 * n_anchors + positional_dim), 1)
    seq, n_cells = sequence(indices, pe_indices, positional_dim, plan), 1 << (n_anchors + positional_dim)
    stat = np.empty((batch * length, n_detectors, n_cells), np.int32)
    over(batch * ((length + 1) // 2), stat.size // 8 + n_pairs(indices), compiled_cells().count_firings, seq, stat)
    return torch.from_numpy(stat).view(*indices.shape, n_cells)


def fill_outputs_by_firings(
    weight: Tensor,
    firings: tuple[Tensor, Tensor, Tensor],
    batch: int,
    length: int,
    *,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """weight [N_t, R, O], firings as from `densify_firing_stat`, places rising -> y [B, S, O]."""
    n_detectors, n_rows, n_outputs = weight.shape
    place, row, count = (np.ascontiguousarray(tensor.numpy(), np.int64) for tensor in firings)
    for name, values, end in (("place", place, batch * length), ("row", row, n_detectors * n_rows)):
        if values.size and not 0 <= values.min() <= values.max() < end:
            raise ArgumentError(f"firings have a {name} from {values.min()} to {values.max()}, expected 0 to {end - 1}")
    if (np.diff(place) < 0).any():
        raise ArgumentError("firings are not in the order of their places, expected them as from densify_firing_stat")
    y = new_array((batch * length, n_outputs), weight)
    arrays = (array_of(weight).reshape(-1), (place, row, count), y, _scale(sums, int_rescaler))
    _raise_if(over(len(y), len(place) * n_outputs, compiled_cells().fill_firings, *arrays), int_rescaler)
    return torch.from_numpy(y).view(batch, length, n_outputs)


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
    """weight [N_t, R, O], indices [B, S, N_t], pe_indices [S-1, N_t] -> y [B, S, O]."""
    check_choice("precision", precision, PRECISIONS)
    plan, (batch, length, _) = fc_plan(*weight.shape), indices.shape
    if not cells_apply(plan, positional_dim, sums):
        return fill_outputs_seq_fc(weight, indices, pe_indices, positional_dim, sums=sums, int_rescaler=int_rescaler)
    seq = sequence(indices, pe_indices, positional_dim, plan)
    y = new_array((batch * length, plan.n_outputs), weight)
    within_budget(budget, seq, 4 * (cells_of(seq) + plan.n_outputs) * y.itemsize)
    additions = n_pairs(indices) * plan.n_synapses
    over(batch * ((length + 1) // 2), additions, compiled_cells().fill_cells, _weight_array(weight, plan), seq, y)
    return torch.from_numpy(y).view(batch, length, plan.n_outputs)


# ---- backward, to the inputs and the positions -----------------------------------------------------------------------


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
    """grad [B, S, O], weight [N_t, R, O], indices, min_delta, min_delta_index [B, S, N_t], pe_* [S-1, N_t],
    anchors [N_t, N_c, 2] -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
    found, pe = (indices, min_delta, min_delta_index), (pe_indices, pe_min_delta, pe_min_delta_index)
    plan = fc_plan(*weight.shape)
    return _propagate_pairs(grad, weight, found, pe, anchors, n_inputs, positional_dim, plan, sums, int_rescaler)


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
    """weight [n_weights], everything else as in `_fc` -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
    found, pe = (indices, min_delta, min_delta_index), (pe_indices, pe_min_delta, pe_min_delta_index)
    plan = sparse_plan(synapses)
    return _propagate_pairs(grad, weight, found, pe, anchors, n_inputs, positional_dim, plan, sums, int_rescaler)


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
    """The arguments and results of `propagate_through_detectors_seq_fc`."""
    check_choice("precision", precision, PRECISIONS)
    found, pe = (indices, min_delta, min_delta_index), (pe_indices, pe_min_delta, pe_min_delta_index)
    plan = fc_plan(*weight.shape)
    if not cells_apply(plan, positional_dim, sums):
        return _propagate_pairs(grad, weight, found, pe, anchors, n_inputs, positional_dim, plan, sums, int_rescaler)
    g = grad_array(grad, weight, indices, plan)
    additions = n_pairs(indices) * plan.n_synapses

    def by_cells(seq: Sequence, margins: tuple[np.ndarray, ...], slopes: tuple[np.ndarray, np.ndarray]) -> None:
        padded, n_cells = plan.n_outputs + 3, cells_of(seq)
        within_budget(budget, seq, (padded * n_cells + 4 * (padded + n_cells)) * g.itemsize)
        arrays = (g, _weight_array(weight, plan), seq, margins, slopes)
        over(seq[0].shape[0] * seq[0].shape[1], additions, compiled_cells().propagate_cells, *arrays)

    return _propagate(by_cells, found, pe, anchors, n_inputs, positional_dim, plan, g.dtype, sums, int_rescaler)


def _propagate_pairs(
    grad: Tensor,
    weight: Tensor,
    found: Found,
    pe: Found,
    anchors: Tensor,
    n_inputs: int,
    positional_dim: int,
    plan: Plan,
    sums: str,
    int_rescaler: float,
) -> tuple[Tensor, Tensor]:
    g = grad_array(grad, weight, found[0], plan)
    additions = 3 * n_pairs(found[0]) * plan.n_synapses

    def by_pairs(seq: Sequence, margins: tuple[np.ndarray, ...], slopes: tuple[np.ndarray, np.ndarray]) -> None:
        arrays = (g, _weight_array(weight, plan), *tables_of(plan), seq, margins, slopes, _scale(sums, int_rescaler))
        _raise_if(over(seq[0].shape[0] * seq[0].shape[1], additions, compiled().propagate_seq, *arrays), int_rescaler)

    return _propagate(by_pairs, found, pe, anchors, n_inputs, positional_dim, plan, g.dtype, sums, int_rescaler)


def _propagate(
    add_slopes: Callable[..., None],
    found: Found,
    pe: Found,
    anchors: Tensor,
    n_inputs: int,
    positional_dim: int,
    plan: Plan,
    dtype: np.dtype[Any],
    sums: str,
    int_rescaler: float,
) -> tuple[Tensor, Tensor]:
    """dx and dpositions from what `add_slopes` sums up for every place and detector, and every distance and detector."""
    seq, (batch, length, n_detectors) = sequence(found[0], pe[0], positional_dim, plan), found[0].shape
    if anchors.shape[:2] != (n_detectors, int(seq[2])):
        fail("anchors", anchors, f"shape [{n_detectors}, {seq[2]}, 2]")
    kept = np.dtype(np.int64) if sums == "fixed" else dtype
    slopes = (np.zeros((n_detectors, batch, length), kept), np.zeros((n_detectors, batch, length - 1), kept))
    margins = margins_of(found, pe, positional_dim)
    which = _index_array("min_delta_index", found[2].flatten(0, 1), n_detectors, anchors.shape[1])
    pe_which = torch.from_numpy(_index_array("pe_min_delta_index", pe[2], n_detectors, max(positional_dim, 1)).view(np.int32))
    pairs = _anchor_array(anchors, n_inputs)
    add_slopes(seq, margins, slopes)

    dx = np.empty((batch * length, n_inputs), dtype)
    arrays = (slopes[0].reshape(n_detectors, -1), np.ascontiguousarray(which.T), pairs, dx, _scale(sums, int_rescaler))
    _raise_if(over(len(dx), slopes[0].size, compiled().send_slopes, *arrays), int_rescaler)
    pe_slopes = torch.from_numpy(slopes[1]).sum(1).flip(1).t()  # nearest first
    dpositions = pe_slopes.new_zeros(*pe_slopes.shape, positional_dim)
    if positional_dim:
        dpositions.scatter_(2, pe_which.long().unsqueeze(2), pe_slopes.unsqueeze(2))
    if sums == "fixed":
        dpositions = convert_integers_to_floats(dpositions, int_rescaler, torch.from_numpy(dx).dtype)
    return torch.from_numpy(dx).view(batch, length, n_inputs), dpositions


# ---- backward, to the weights ----------------------------------------------------------------------------------------


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
    """grad [B, S, O], indices [B, S, N_t], pe_indices [S-1, N_t] -> dW [N_t, R, O]; with external_lr >= 0 the new weight."""
    plan = fc_plan(indices.shape[2], n_rows, grad.shape[2])

    def gather_at(rate: float) -> Gather:
        return _gather_pairs(grad, indices, pe_indices, positional_dim, plan, rate, sums, int_rescaler)

    return _gradient_or_step_fc(gather_at, plan, meta, external_lr, weight, sums)


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
    """The same where synapses are missing: -> dW [n_weights], or the updated weight [n_weights]."""
    plan = sparse_plan(synapses)
    gather = _gather_pairs(grad, indices, pe_indices, positional_dim, plan, plan.rates, sums, int_rescaler)
    if external_lr < 0:
        return gather(0, plan.n_detectors)
    check_tensor("weight", weight, [plan.n_weights])
    assert weight is not None
    for begin, end in _parts(plan, sums):
        part = weight.detach()[int(plan.table_at[begin]) : int(plan.table_at[end])]
        part.copy_(part - external_lr * gather(begin, end))
    return synapses.clamp_(weight)


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
    """The arguments and results of `gather_weight_gradients_seq_fc`."""
    check_choice("precision", precision, PRECISIONS)
    plan = fc_plan(indices.shape[2], n_rows, grad.shape[2])

    def gather_at(rate: float) -> Gather:
        if cells_apply(plan, positional_dim, sums):
            return _gather_cells(grad, indices, pe_indices, positional_dim, plan, rate, budget)
        return _gather_pairs(grad, indices, pe_indices, positional_dim, plan, rate, sums, int_rescaler)

    return _gradient_or_step_fc(gather_at, plan, meta, external_lr, weight, sums)


class Gather(NamedTuple):
    """A gathering of gradients, times a rate, that has its arguments but for where to."""

    add: Callable[[int, int, np.ndarray], None]  # to those of detectors begin to end, flat
    plan: Plan
    dtype: np.dtype[Any]

    def __call__(self, begin: int, end: int) -> Tensor:
        """The gradients of the weights of detectors begin to end, flat."""
        out = np.zeros(int(self.plan.table_at[end] - self.plan.table_at[begin]), self.dtype)
        self.add(begin, end, out)
        return torch.from_numpy(out)


def _gather_pairs(
    grad: Tensor,
    indices: Tensor,
    pe_indices: Tensor,
    positional_dim: int,
    plan: Plan,
    rates: Rates,
    sums: str,
    int_rescaler: float,
) -> Gather:
    seq, g = sequence(indices, pe_indices, positional_dim, plan), grad_array(grad, grad, indices, plan)
    if isinstance(rates, float):
        g, rates = (g if rates == 1.0 else g * g.dtype.type(rates)), np.empty(0)
    rates = rates.astype(g.dtype)
    additions = n_pairs(indices) * plan.n_synapses // max(plan.n_detectors, 1)

    def add(begin: int, end: int, out: np.ndarray) -> None:
        arrays = (g, rates, *tables_of(plan), seq, out, begin, _scale(sums, int_rescaler))
        _raise_if(over(end - begin, (end - begin) * additions, compiled().gather_seq, *arrays), int_rescaler)

    return Gather(add, plan, g.dtype)


def _gather_cells(
    grad: Tensor, indices: Tensor, pe_indices: Tensor, positional_dim: int, plan: Plan, rate: float, budget: int | None
) -> Gather:
    seq, g = sequence(indices, pe_indices, positional_dim, plan), grad_array(grad, grad, indices, plan)
    g = g if rate == 1.0 else g * g.dtype.type(rate)
    tile = 4 * within_budget(budget, seq, 4 * (cells_of(seq) + plan.n_outputs) * g.itemsize, TILE // 4)
    additions = n_pairs(indices) * plan.n_synapses // max(plan.n_detectors, 1)

    def add(begin: int, end: int, out: np.ndarray) -> None:
        over(end - begin, (end - begin) * additions, compiled_cells().gather_cells, g, seq, out, begin, np.uint64(tile))

    return Gather(add, plan, g.dtype)


def _gradient_or_step_fc(
    gather_at: Callable[[float], Gather], plan: Plan, meta: SynapseMeta, external_lr: float, weight: Tensor | None, sums: str
) -> Tensor:
    """dW [N_t, R, O], or weight after its step and within its bounds; `gather_at` is given the rate."""
    shape = (plan.n_rows, plan.n_outputs)
    if external_lr < 0:
        return gather_at(meta.lr_scale)(0, plan.n_detectors).view(-1, *shape)
    check_tensor("weight", weight, [plan.n_detectors, *shape])
    assert weight is not None
    step = gather_at(-external_lr * meta.lr_scale)
    if sums == "float" and weight.is_contiguous() and array_of(weight).dtype == step.dtype:
        # Straight to the weights: of large tables a batch reads a few rows in a hundred, and the others are not touched.
        step.add(0, plan.n_detectors, array_of(weight).reshape(-1))
        torch.autograd.graph.increment_version(weight)
        if meta.min_weight > -math.inf or meta.max_weight < math.inf:
            weight.detach().clamp_(meta.min_weight, meta.max_weight)
        return weight
    gather = gather_at(meta.lr_scale)
    for begin, end in _parts(plan, sums):
        part = weight.detach()[begin:end]
        stepped = part - external_lr * gather(begin, end).view(-1, *shape)
        part.copy_(stepped.clamp_(meta.min_weight, meta.max_weight))
    return weight


def _parts(plan: Plan, sums: str) -> list[tuple[int, int]]:
    """Ranges of detectors that take their step one after the other, so that only their gradients are kept."""
    n = plan.n_detectors
    # A fixed sum may be out of range, and that must be known before the first weight changes.
    step = n if sums == "fixed" else max(torch.get_num_threads(), STEP * n // max(plan.n_weights, 1), 1)
    return [(begin, min(begin + step, n)) for begin in range(0, n, step)]

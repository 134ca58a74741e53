"""Sequences on the CPU, pair by pair, compiled; the primitives of a `Backend`.

The loops are in `loops.pairs` and `loops.slopes`; here tensors become arrays, detector by detector, are checked, and the work is
shared out over threads: positions going forward, detectors and batch rows to the inputs, detectors to the weights. No two threads
write to the same place, and how many there are never changes a result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_tensor, fail
from lutetia.lut.connectivity.full import Connectivity
from lutetia.lut.kernels.cpu.arrays import Gradients, Keys, Margins
from lutetia.lut.kernels.cpu.detect import anchor_array
from lutetia.lut.kernels.cpu.plan import Plan, array_of, float_array_of, new_array, plan_of
from lutetia.lut.kernels.cpu.rows import index_array, scale_of
from lutetia.lut.kernels.cpu.sequence_plan import arrays_of, grad_array, margins_of, n_pairs, tables_of
from lutetia.lut.kernels.cpu.threads import loop, over, raise_if
from lutetia.lut.kernels.protocol import Into, Sequence
from lutetia.lut.kernels.recorder import kernel
from lutetia.lut.sums import Sums, from_units

STEP = 1 << 24  # gradients that an in-place step keeps at once


# ---- forward ---------------------------------------------------------------------------------------------------------


@kernel
def fill_pairs(weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums) -> Tensor:
    """y[j] = Σ_{i<j} Σ_t W[t, cell] -> [B, S, O]."""
    plan, (batch, length, _) = plan_of(connectivity), sequence.x.indices.shape
    y = new_array((batch * length, plan.n_outputs), weight)
    arrays = (tables_of(plan, weight), arrays_of(sequence, plan), y, scale_of(sums))
    additions = n_pairs(sequence) * plan.n_synapses
    raise_if(over(batch * ((length + 1) // 2), additions, loop("pairs", "fill_seq"), *arrays), sums)
    return torch.from_numpy(y).view(batch, length, plan.n_outputs)


@kernel
def fill_step(x: Tensor, weight: Tensor, anchors: Tensor, cache: Tensor, lengths: Tensor, places: Tensor) -> Tensor:
    """y [B, O] of one new position of each row, whose indices join those in the cache; in one launch."""
    n_rows, n_detectors, capacity = weight.shape[1], len(anchors), cache.shape[2]
    positional_dim = n_rows.bit_length() - 1 - 2 * anchors.shape[1]
    fits = cache.shape[:2] == (len(x), n_detectors) and len(lengths) == len(x) and places.shape == (n_detectors, capacity - 1)
    if not fits or positional_dim < 0 or weight.shape[:2] != (n_detectors, 1 << (2 * anchors.shape[1] + positional_dim)):
        fail("cache", cache, f"indices, lengths and places of {len(x)} rows and {n_detectors} detectors, and tables that fit")
    y, held = new_array((len(x), weight.shape[2]), weight), lengths.numpy()
    earlier = (cache.numpy(), held, array_of(places), positional_dim)
    arrays = ((float_array_of(x), anchor_array(anchors, x.shape[1])), array_of(weight).reshape(-1), earlier, y)
    work = int(held.sum()) * n_detectors * weight.shape[2]
    if over(len(x), work, loop("pairs", "fill_step"), *arrays):
        raise ArgumentError(f"the cache holds an index past {1 << anchors.shape[1]}, or a length past {capacity - 1}: reset() it")
    return torch.from_numpy(y)


# ---- backward, to the inputs and the positions -----------------------------------------------------------------------


@kernel
def propagate_pairs(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, sequence: Sequence, anchors: Tensor, n_inputs: int, sums: Sums
) -> tuple[Tensor, Tensor]:
    """grad [B, S, O], anchors [N_t, N_c, 2] -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
    return send(by_pairs(grad, weight, sequence, plan_of(connectivity), sums), sequence, anchors, n_inputs, sums)


class Slopes(NamedTuple):
    """Something that adds up slopes for every place and detector, and for every distance and detector."""

    add: Callable[[Keys, Margins, tuple[np.ndarray, np.ndarray]], None]
    plan: Plan
    dtype: np.dtype[Any]


def by_pairs(grad: Tensor, weight: Tensor, sequence: Sequence, plan: Plan, sums: Sums) -> Slopes:
    """Slopes from the rows themselves."""
    g = grad_array(grad, weight, sequence, plan)

    def add(seq: Keys, margins: Margins, slopes: tuple[np.ndarray, np.ndarray]) -> None:
        arrays = (g, tables_of(plan, weight), seq, margins, slopes, scale_of(sums))
        work = 3 * n_pairs(sequence) * plan.n_synapses
        raise_if(over(seq[0].shape[0] * seq[0].shape[1], work, loop("slopes", "propagate_seq"), *arrays), sums)

    return Slopes(add, plan, g.dtype)


def send(slopes: Slopes, sequence: Sequence, anchors: Tensor, n_inputs: int, sums: Sums) -> tuple[Tensor, Tensor]:
    """dx and dpositions."""
    seq, (batch, length, n_detectors) = arrays_of(sequence, slopes.plan), sequence.x.indices.shape
    if anchors.shape[:2] != (n_detectors, sequence.n_anchors):
        fail("anchors", anchors, f"shape [{n_detectors}, {sequence.n_anchors}, 2]")
    (_, closest), (_, pe_closest) = sequence.x.closest, sequence.positions.closest
    pairs, kept = anchor_array(anchors, n_inputs), np.dtype(np.int64) if sums.exact else slopes.dtype
    totals = (np.zeros((n_detectors, batch, length), kept), np.zeros((n_detectors, batch, length - 1), kept))
    margins, n_pe = margins_of(sequence), sequence.positional_dim
    which = index_array("min_delta_index", closest.flatten(0, 1), n_detectors, anchors.shape[1])
    bits = index_array("pe_min_delta_index", pe_closest, n_detectors, max(n_pe, 1))
    slopes.add(seq, margins, totals)

    dx = np.empty((batch * length, n_inputs), slopes.dtype)
    arrays = (totals[0].reshape(n_detectors, -1), np.ascontiguousarray(which.T), pairs, dx, scale_of(sums))
    raise_if(over(len(dx), totals[0].size, loop("slopes", "send_slopes"), *arrays), sums)
    of_distance = torch.from_numpy(totals[1]).sum(1).flip(1).t()  # nearest first
    dpositions = of_distance.new_zeros(*of_distance.shape, n_pe)
    if n_pe:
        dpositions.scatter_(2, torch.from_numpy(bits.view(np.int32)).long().unsqueeze(2), of_distance.unsqueeze(2))
    to_x = torch.from_numpy(dx).view(batch, length, n_inputs)
    return to_x, from_units(dpositions, sums, to_x.dtype)


# ---- backward, to the weights ----------------------------------------------------------------------------------------


@kernel
def gather_pairs(grad: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums, into: Into | None) -> Tensor:
    """grad [B, S, O] -> dW, or `into` after its step."""
    return gradient_or_step(of_pairs(grad, sequence, plan_of(connectivity), sums), connectivity, sums, into)


class Gather(NamedTuple):
    """A gathering of gradients that has its arguments but for where to."""

    add: Callable[[int, int, np.ndarray, float], None]  # rate times those of detectors begin to end, flat
    plan: Plan
    dtype: np.dtype[Any]

    def __call__(self, begin: int, end: int) -> Tensor:
        """The gradients of the weights of detectors begin to end, flat."""
        out = np.zeros(int(self.plan.table_at[end] - self.plan.table_at[begin]), self.dtype)
        self.add(begin, end, out, 1.0)
        return torch.from_numpy(out)


def of_pairs(grad: Tensor, sequence: Sequence, plan: Plan, sums: Sums) -> Gather:
    """From all pairs."""
    seq, g = arrays_of(sequence, plan), grad_array(grad, grad, sequence, plan)
    additions = n_pairs(sequence) * plan.n_synapses // max(plan.n_detectors, 1)

    def add(begin: int, end: int, out: np.ndarray, rate: float) -> None:
        scaled, rates = scaled_by(g, plan, rate)
        arrays = (Gradients(scaled, rates), tables_of(plan), seq, (out, begin), scale_of(sums))
        raise_if(over(end - begin, (end - begin) * additions, loop("pairs", "gather_seq"), *arrays), sums)

    return Gather(add, plan, g.dtype)


def scaled_by(g: np.ndarray, plan: Plan, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """g times rate and lr_scale where that is one number; else also what multiplies each synapse."""
    if isinstance(plan.rates, float):
        factor = rate * plan.rates
        return (g if factor == 1.0 else g * g.dtype.type(factor)), np.empty(0, g.dtype)
    return g, (rate * plan.rates).astype(g.dtype)


def gradient_or_step(gather: Gather, connectivity: Connectivity, sums: Sums, into: Into | None) -> Tensor:
    """dW, or `into` after its step."""
    plan = gather.plan
    if into is None:
        return gather(0, plan.n_detectors).view(connectivity.weight_shape)
    weight, rate = into
    check_tensor("weight", weight, list(connectivity.weight_shape))
    if not sums.exact and weight.is_contiguous() and array_of(weight).dtype == gather.dtype:
        # Straight to the weights: of large tables a batch reads a few rows in a hundred, and the others are not touched.
        gather.add(0, plan.n_detectors, array_of(weight).reshape(-1), -rate)
        torch.autograd.graph.increment_version(weight)
        return weight
    for begin, end in _parts(plan, sums):
        rows = slice(begin, end) if weight.dim() == 3 else slice(int(plan.table_at[begin]), int(plan.table_at[end]))
        part = weight.detach()[rows]
        part.copy_(part - rate * gather(begin, end).view(part.shape))
    return weight


def _parts(plan: Plan, sums: Sums) -> list[tuple[int, int]]:
    """Ranges of detectors that take their step one after the other, so that only their gradients are kept."""
    n = plan.n_detectors
    # A fixed sum may be out of range, and that must be known before the first weight changes.
    step = n if sums.exact else max(torch.get_num_threads(), STEP * n // max(plan.n_weights, 1), 1)
    return [(begin, min(begin + step, n)) for begin in range(0, n, step)]

"""Sequences (LUT attention), pair by pair: the definition, in plain torch.

For each pair i < j of positions and each detector, the index of x[j] (Q), the index of x[i] (K) and the signs of the learned
position of the distance j - i (PE) form one *cell*: Q << (N_c + N_pe) | K << N_pe | PE. Its row of weights is added to y[j].
The pairs are walked one distance at a time: all pairs (j - d, j) for d = 1 .. S - 1.

B batch · S sequence length · I inputs · O outputs · N_t detectors · N_c anchor pairs · N_pe positional bits ·
R = 2**(2 N_c + N_pe) rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lutetia.lut.connectivity.full import Connectivity
from lutetia.lut.kernels.protocol import Into, Sequence
from lutetia.lut.kernels.recorder import kernel
from lutetia.lut.kernels.reference.rows import closest_anchors, gradient_of, rows_of, subtract, uncertainty_slope
from lutetia.lut.sums import Sums, from_units, sum_dtype, to_units


class Pairs(NamedTuple):
    """All pairs (j - d, j) of one distance d: the cell each detector reads, int64 [B, S - d, N_t]."""

    distance: int
    cells: Tensor


def pairs_of(sequence: Sequence) -> Iterator[Pairs]:
    """The pairs, nearest first."""
    n_pe, shift = sequence.positional_dim, sequence.n_anchors + sequence.positional_dim
    indices, pe_indices = sequence.x.indices.long(), sequence.positions.indices.long()
    for d in range(1, indices.shape[1]):
        yield Pairs(d, indices[:, d:] << shift | indices[:, :-d] << n_pe | pe_indices[d - 1])


# ---- forward ---------------------------------------------------------------------------------------------------------


@kernel
def fill_pairs(weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums) -> Tensor:
    """y[j] = Σ_{i<j} Σ_t W[t, cell] -> [B, S, O]."""
    tables, dtype = connectivity.expand(weight), sum_dtype(weight)
    y = weight.new_zeros(*sequence.x.indices.shape[:2], tables.shape[2], dtype=torch.int64 if sums.exact else dtype)
    for d, cells in pairs_of(sequence):
        y[:, d:] += to_units(rows_of_pairs(tables, cells), sums).sum(2)
    return from_units(y, sums, dtype)


def rows_of_pairs(tables: Tensor, cells: Tensor) -> Tensor:
    """W[t, cell]: tables [N_t, R, O], cells [B, L, N_t] -> [B, L, N_t, O]."""
    return rows_of(tables, cells.flatten(0, 1)).unflatten(0, cells.shape[:2])


# ---- backward, to the inputs and the positions -----------------------------------------------------------------------


@kernel
def propagate_pairs(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, sequence: Sequence, anchors: Tensor, n_inputs: int, sums: Sums
) -> tuple[Tensor, Tensor]:
    """grad [B, S, O], anchors [N_t, N_c, 2] -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
    return send_gains(gain_of_pairs(grad, connectivity.expand(weight), sums), sequence, anchors, n_inputs, sums)


class Gain(NamedTuple):
    """What flipping a bit of cells changes: distance, cells, other cells -> g·W[t, cell] - g·W[t, other], in this dtype."""

    of: Callable[[int, Tensor, Tensor], Tensor]
    dtype: torch.dtype


def gain_of_pairs(grad: Tensor, tables: Tensor, sums: Sums) -> Gain:
    """From the rows themselves: grad [B, S, O], tables [N_t, R, O]."""
    dtype = sum_dtype(grad, tables)

    def gain(distance: int, cells: Tensor, others: Tensor) -> Tensor:
        g = grad[:, distance:].to(dtype).unsqueeze(2)
        main, other = (to_units(g * rows_of_pairs(tables, rows), sums) for rows in (cells, others))
        return from_units((main - other).sum(3), sums, dtype)

    return Gain(gain, dtype)


def send_gains(gain: Gain, sequence: Sequence, anchors: Tensor, n_inputs: int, sums: Sums) -> tuple[Tensor, Tensor]:
    """dx and dpositions.

    Per pair and detector: the closer call of Q and K is flipped and its slope goes to its anchors, at j or at i; where PE is
    closer than both, it is flipped too and its slope goes to the position of that distance.
    """
    indices, pe_indices, n_anchors, n_pe = sequence.x[0], sequence.positions[0], sequence.n_anchors, sequence.positional_dim
    (delta, which), (pe_delta, pe_which) = sequence.x.closest, sequence.positions.closest
    dx = indices.new_zeros(*indices.shape[:2], n_inputs, dtype=torch.int64 if sums.exact else gain.dtype)
    dpositions = dx.new_zeros(*pe_indices.shape, n_pe)
    a, b = closest_anchors(anchors, which)  # [B, S, N_t]
    for d, cells in pairs_of(sequence):
        at_q = delta[:, d:].abs() < delta[:, :-d].abs()
        flips = torch.where(at_q, 1 << (which[:, d:].long() + n_anchors + n_pe), 1 << (which[:, :-d].long() + n_pe))
        slope = uncertainty_slope(torch.where(at_q, delta[:, d:], delta[:, :-d])) * gain.of(d, cells, cells ^ flips)
        _add_slope(dx[:, d:], a[:, d:], b[:, d:], slope * at_q, sums)
        _add_slope(dx[:, :-d], a[:, :-d], b[:, :-d], slope * ~at_q, sums)
        if n_pe:
            far = pe_delta[d - 1].expand_as(slope)
            closest = (far.abs() < delta[:, d:].abs()) & (far.abs() < delta[:, :-d].abs())
            bit = pe_which[d - 1].long()
            slope = uncertainty_slope(far) * gain.of(d, cells, cells ^ (1 << bit)) * closest
            addends = to_units(slope, sums).to(dx.dtype).sum((0, 1))
            dpositions[d - 1].scatter_add_(1, bit[:, None], addends[:, None])
    return from_units(dx, sums, gain.dtype), from_units(dpositions, sums, gain.dtype)


def _add_slope(dx: Tensor, a: Tensor, b: Tensor, slope: Tensor, sums: Sums) -> None:
    """dx[a] += slope, dx[b] -= slope, in place: dx [B, L, I], a, b, slope [B, L, N_t]."""
    addends = to_units(slope, sums).to(dx.dtype)
    dx.scatter_add_(2, a, addends).scatter_add_(2, b, -addends)


# ---- backward, to the weights ----------------------------------------------------------------------------------------


@kernel
def gather_pairs(grad: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums, into: Into | None) -> Tensor:
    """dW[t, cell] += lr_scale · g[j] over all pairs: grad [B, S, O] -> dW, or `into` after its step.

    Every pair is a row of a batch of the one-step kernel.
    """
    pairs, indices = list(pairs_of(sequence)), sequence.x.indices
    grads = torch.cat([grad.new_empty(0, grad.shape[2]), *(grad[:, d:].flatten(0, 1) for d, _ in pairs)])
    cells = torch.cat([indices.new_empty(0, indices.shape[2]), *(cells.flatten(0, 1).int() for _, cells in pairs)])
    return subtract(gradient_of(grads, connectivity, cells, None, sums), into)

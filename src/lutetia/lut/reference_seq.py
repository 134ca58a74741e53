"""The definition of every LUT kernel for sequences (LUT attention), in plain torch.

For each pair i < j of positions and each detector, the index of x[j] (Q), the index of x[i] (K) and the signs of the learned
position of the distance j - i (PE) form one *cell*: Q << (N_c + N_pe) | K << N_pe | PE. Its row of weights is added to y[j].
The pairs are walked one distance at a time: all pairs (j - d, j) for d = 1 .. S - 1.

B batch · S sequence length · I inputs · O outputs · N_t detectors · N_c anchor pairs · N_pe positional bits ·
R = 2**(2 N_c + N_pe) rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from lutetia.lut.reference import (
    gather_weight_gradients_fc,
    gather_weight_gradients_sparse,
    pack_bits,
    rows_of,
    uncertainty_slope,
)
from lutetia.lut.sums import convert_integers_to_floats, sum_dtype, to_fixed
from lutetia.lut.synapses import SynapseMeta, Synapses

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

PRECISIONS = ("float32", "tf32", "bf16")  # of the products of the cells algorithm, where a backend can choose


# ---- detect ----------------------------------------------------------------------------------------------------------


def check_positions(positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """positions [S-1, N_t, N_pe] -> PE indices int32, min_delta, min_delta_index int32, each [S-1, N_t].

    Without positional bits the index is 0 and the closest call is infinitely far.
    """
    values = positions.to(sum_dtype(positions))
    if positions.shape[-1] == 0:
        nowhere = values.new_full(values.shape[:-1], float("inf"))
        return nowhere.new_zeros(nowhere.shape, dtype=torch.int32), nowhere, nowhere.new_zeros(nowhere.shape, dtype=torch.int32)
    which = values.abs().argmin(-1, keepdim=True)
    return pack_bits(values > 0), values.gather(-1, which).squeeze(-1), which.squeeze(-1).int()


def check_positions_eval(positions: Tensor) -> Tensor:
    """positions [S-1, N_t, N_pe] -> PE indices int32 [S-1, N_t]."""
    return check_positions(positions)[0]


class Pairs(NamedTuple):
    """All pairs (j - d, j) of one distance d: the cell each detector reads, int64 [B, S - d, N_t]."""

    distance: int
    cells: Tensor


def pairs_of(indices: Tensor, pe_indices: Tensor, positional_dim: int, n_anchors: int) -> Iterator[Pairs]:
    """indices [B, S, N_t], pe_indices [S-1, N_t] -> the pairs, nearest first."""
    indices, pe_indices = indices.long(), pe_indices.long()
    for d in range(1, indices.shape[1]):
        q, k, pe = indices[:, d:], indices[:, :-d], pe_indices[d - 1]
        yield Pairs(d, q << (n_anchors + positional_dim) | k << positional_dim | pe)


def anchors_of_rows(n_rows: int, positional_dim: int) -> int:
    """N_c, from R = 2**(2 N_c + N_pe)."""
    return (n_rows.bit_length() - 1 - positional_dim) // 2


# ---- forward ---------------------------------------------------------------------------------------------------------


def fill_outputs_seq_fc(
    weight: Tensor, indices: Tensor, pe_indices: Tensor, positional_dim: int, *, sums: str = "float", int_rescaler: float = 1.0
) -> Tensor:
    """y[j] = Σ_{i<j} Σ_t W[t, cell]: weight [N_t, R, O], indices [B, S, N_t], pe_indices [S-1, N_t] -> [B, S, O]."""
    batch, length, _ = indices.shape
    dtype = sum_dtype(weight)
    y = weight.new_zeros(batch, length, weight.shape[2], dtype=torch.int64 if sums == "fixed" else dtype)
    for d, cells in pairs_of(indices, pe_indices, positional_dim, anchors_of_rows(weight.shape[1], positional_dim)):
        rows = rows_of(weight, cells.flatten(0, 1)).unflatten(0, cells.shape[:2])
        y[:, d:] += (rows if sums == "float" else to_fixed(rows, int_rescaler)).sum(2)
    return y if sums == "float" else convert_integers_to_floats(y, int_rescaler, dtype)


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
    """The same where synapses are missing: weight [n_weights] -> [B, S, O]."""
    dense = synapses.expand(weight)
    return fill_outputs_seq_fc(dense, indices, pe_indices, positional_dim, sums=sums, int_rescaler=int_rescaler)


# ---- forward by cells ------------------------------------------------------------------------------------------------
# For a given j, Q is fixed, so only C = 2**(N_c + N_pe) cells can fire: count them, and the sum over pairs becomes a product.


def fill_firing_stat(indices: Tensor, pe_indices: Tensor, positional_dim: int, n_anchors: int) -> Tensor:
    """How often each cell (K, PE) fires for each j: indices [B, S, N_t], pe_indices [S-1, N_t] -> int32 [B, S, N_t, C]."""
    n_cells = 1 << (n_anchors + positional_dim)
    stat = indices.new_zeros(*indices.shape, n_cells, dtype=torch.int32)
    for d, cells in pairs_of(indices, pe_indices, positional_dim, n_anchors):
        fired = (cells & (n_cells - 1)).unsqueeze(-1)
        stat[:, d:].scatter_add_(-1, fired, torch.ones_like(fired, dtype=torch.int32))
    return stat


def densify_firing_stat(stat: Tensor, indices: Tensor, n_anchors: int) -> tuple[Tensor, Tensor, Tensor]:
    """The firings as a list: stat [B, S, N_t, C], indices [B, S, N_t] -> place b·S + j, row t·R + cell, and count, each [n]."""
    length, n_cells = stat.shape[1], stat.shape[3]
    b, j, t, cell = stat.nonzero(as_tuple=True)
    row = ((t << n_anchors) + indices[b, j, t].long()) * n_cells + cell
    return b * length + j, row, stat[b, j, t, cell]


def fill_outputs_by_firings(
    weight: Tensor,
    firings: tuple[Tensor, Tensor, Tensor],
    batch: int,
    length: int,
    *,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """y = Σ count · W[row]: weight [N_t, R, O], firings as from `densify_firing_stat` -> [B, S, O]."""
    place, row, count = firings
    dtype, flat = sum_dtype(weight), weight.flatten(0, 1)
    rows = flat[row].to(dtype)
    addends = count[:, None] * (rows if sums == "float" else to_fixed(rows, int_rescaler))
    y = addends.new_zeros(batch * length, flat.shape[1]).index_add_(0, place, addends)
    y = y if sums == "float" else convert_integers_to_floats(y, int_rescaler, dtype)
    return y.view(batch, length, flat.shape[1])


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
    """`fill_outputs_seq_fc` by cells: weight [N_t, R, O], indices [B, S, N_t], pe_indices [S-1, N_t] -> [B, S, O].

    A backend may do its products in a lower `precision`, and keeps its scratch below `budget` bytes; here both are ignored.
    """
    batch, length, _ = indices.shape
    n_anchors = anchors_of_rows(weight.shape[1], positional_dim)
    stat = fill_firing_stat(indices, pe_indices, positional_dim, n_anchors)
    firings = densify_firing_stat(stat, indices, n_anchors)
    return fill_outputs_by_firings(weight, firings, batch, length, sums=sums, int_rescaler=int_rescaler)


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
    """Per pair and detector: the closer call of Q and K is flipped and its slope goes to its anchors, at j or at i; where PE is
    closer than both, it is flipped too and its slope goes to the position of that distance.

    grad [B, S, O], weight [N_t, R, O], indices, min_delta, min_delta_index [B, S, N_t], pe_* [S-1, N_t], anchors [N_t, N_c, 2]
    -> dx [B, S, I], dpositions [S-1, N_t, N_pe].
    """

    def gain(distance: int, cells: Tensor, others: Tensor) -> Tensor:
        return gain_of(grad[:, distance:], weight, cells, others, sums, int_rescaler)

    found = (indices, min_delta, min_delta_index, pe_indices, pe_min_delta, pe_min_delta_index)
    return propagate_gains(gain, *found, anchors, n_inputs, positional_dim, sum_dtype(grad, weight), sums, int_rescaler)


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
    """The same where synapses are missing: weight [n_weights] -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
    found = (indices, min_delta, min_delta_index, pe_indices, pe_min_delta, pe_min_delta_index)
    return propagate_through_detectors_seq_fc(
        grad, synapses.expand(weight), *found, anchors, n_inputs, positional_dim, sums=sums, int_rescaler=int_rescaler
    )


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
    """`propagate_through_detectors_seq_fc` by cells: P = g·Wᵀ holds g·W[t, cell] of all cells, and a pair looks up a few of them.

    Fixed sums are those of the pairs. `precision` and `budget` are ignored, as in `fill_outputs_cells_fc`.
    """
    found = (indices, min_delta, min_delta_index, pe_indices, pe_min_delta, pe_min_delta_index)
    if sums == "fixed":
        options = {"sums": sums, "int_rescaler": int_rescaler}
        return propagate_through_detectors_seq_fc(grad, weight, *found, anchors, n_inputs, positional_dim, **options)  # type: ignore[arg-type]
    dtype = sum_dtype(grad, weight)
    p = torch.einsum("bjo,tro->bjtr", grad.to(dtype), weight.to(dtype))

    def gain(distance: int, cells: Tensor, others: Tensor) -> Tensor:
        main, other = (p[:, distance:].gather(3, c.unsqueeze(3)).squeeze(3) for c in (cells, others))
        return main - other

    return propagate_gains(gain, *found, anchors, n_inputs, positional_dim, dtype, sums, int_rescaler)


Gain: TypeAlias = Callable[[int, Tensor, Tensor], Tensor]  # distance, cells, other cells -> g·W[t, cell] - g·W[t, other]


def propagate_gains(
    gain: Gain,
    indices: Tensor,
    min_delta: Tensor,
    min_delta_index: Tensor,
    pe_indices: Tensor,
    pe_min_delta: Tensor,
    pe_min_delta_index: Tensor,
    anchors: Tensor,
    n_inputs: int,
    positional_dim: int,
    dtype: torch.dtype,
    sums: str,
    int_rescaler: float,
) -> tuple[Tensor, Tensor]:
    """dx and dpositions, where `gain` says what flipping a bit of a cell would have changed."""
    n_anchors, n_detectors = anchors.shape[1], anchors.shape[0]
    kept = torch.int64 if sums == "fixed" else dtype
    dx = indices.new_zeros(*indices.shape[:2], n_inputs, dtype=kept)
    dpositions = indices.new_zeros(*pe_indices.shape, positional_dim, dtype=kept)
    a, b = anchors.long()[torch.arange(n_detectors, device=anchors.device), min_delta_index.long()].unbind(-1)  # [B, S, N_t]
    for d, cells in pairs_of(indices, pe_indices, positional_dim, n_anchors):
        delta_q, delta_k, delta_pe = min_delta[:, d:], min_delta[:, :-d], pe_min_delta[d - 1].expand_as(min_delta[:, d:])
        at_q = delta_q.abs() < delta_k.abs()
        flip_q = 1 << (min_delta_index[:, d:].long() + n_anchors + positional_dim)
        flip_k = 1 << (min_delta_index[:, :-d].long() + positional_dim)
        slope = uncertainty_slope(torch.where(at_q, delta_q, delta_k)) * gain(d, cells, cells ^ torch.where(at_q, flip_q, flip_k))
        add_slope(dx[:, d:], a[:, d:], b[:, d:], slope * at_q, sums, int_rescaler)
        add_slope(dx[:, :-d], a[:, :-d], b[:, :-d], slope * ~at_q, sums, int_rescaler)
        if positional_dim:
            closest = (delta_pe.abs() < delta_q.abs()) & (delta_pe.abs() < delta_k.abs())
            which = pe_min_delta_index[d - 1].long()
            slope = uncertainty_slope(delta_pe) * gain(d, cells, cells ^ (1 << which)) * closest
            addends = (slope.to(kept) if sums == "float" else to_fixed(slope, int_rescaler)).sum((0, 1))
            dpositions[d - 1].scatter_add_(1, which[:, None], addends[:, None])
    if sums == "float":
        return dx, dpositions
    return convert_integers_to_floats(dx, int_rescaler, dtype), convert_integers_to_floats(dpositions, int_rescaler, dtype)


def gain_of(grad: Tensor, weight: Tensor, cells: Tensor, others: Tensor, sums: str, int_rescaler: float) -> Tensor:
    """g·W[t, cell] - g·W[t, other]: grad [B, L, O], weight [N_t, R, O], cells, others [B, L, N_t] -> [B, L, N_t]."""
    g = grad.flatten(0, 1).to(sum_dtype(grad, weight))[:, None]
    main, other = (g * rows_of(weight, c.flatten(0, 1)) for c in (cells, others))
    if sums == "float":
        gain = (main - other).sum(2)
    else:
        units = to_fixed(main, int_rescaler).sum(2) - to_fixed(other, int_rescaler).sum(2)
        gain = convert_integers_to_floats(units, int_rescaler, main.dtype)
    return gain.view(cells.shape)


def add_slope(dx: Tensor, a: Tensor, b: Tensor, slope: Tensor, sums: str, int_rescaler: float) -> None:
    """dx[a] += slope, dx[b] -= slope, in place: dx [B, L, I], a, b, slope [B, L, N_t]."""
    addends = slope.to(dx.dtype) if sums == "float" else to_fixed(slope, int_rescaler)
    dx.scatter_add_(2, a, addends).scatter_add_(2, b, -addends)


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
    """dW[t, cell] += lr_scale · g[j] over all pairs: grad [B, S, O], indices [B, S, N_t] -> [N_t, R, O], or the new weight."""
    grads, cells = pairs_as_batch(grad, indices, pe_indices, positional_dim, anchors_of_rows(n_rows, positional_dim))
    options = {"external_lr": external_lr, "weight": weight, "sums": sums, "int_rescaler": int_rescaler}
    return gather_weight_gradients_fc(grads, cells, n_rows, meta=meta, **options)  # type: ignore[arg-type]


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
    """The same where synapses are missing: -> [n_weights], or the updated weight."""
    n_anchors = anchors_of_rows(synapses.n_rows, positional_dim)
    grads, cells = pairs_as_batch(grad, indices, pe_indices, positional_dim, n_anchors)
    options = {"external_lr": external_lr, "weight": weight, "sums": sums, "int_rescaler": int_rescaler}
    return gather_weight_gradients_sparse(grads, cells, synapses, **options)  # type: ignore[arg-type]


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
    """`gather_weight_gradients_seq_fc` by cells: each firing adds count · lr_scale · g[j], at once for all its pairs.

    `precision` and `budget` are ignored, as in `fill_outputs_cells_fc`.
    """
    n_detectors, n_anchors, dtype = indices.shape[2], anchors_of_rows(n_rows, positional_dim), sum_dtype(grad)
    stat = fill_firing_stat(indices, pe_indices, positional_dim, n_anchors)
    place, row, count = densify_firing_stat(stat, indices, n_anchors)
    addends = (grad.to(dtype) * meta.lr_scale).flatten(0, 1)[place]
    addends = count[:, None] * (addends if sums == "float" else to_fixed(addends, int_rescaler))
    sum_ = addends.new_zeros(n_detectors * n_rows, grad.shape[2]).index_add_(0, row, addends)
    gradient = sum_ if sums == "float" else convert_integers_to_floats(sum_, int_rescaler, dtype)
    gradient = gradient.view(n_detectors, n_rows, -1)
    if external_lr < 0:
        return gradient
    assert weight is not None
    return weight.copy_((weight - external_lr * gradient).clamp(meta.min_weight, meta.max_weight))


def pairs_as_batch(
    grad: Tensor, indices: Tensor, pe_indices: Tensor, positional_dim: int, n_anchors: int
) -> tuple[Tensor, Tensor]:
    """Every pair as a row of a batch of the one-step kernels: g[j] [B·S(S-1)/2, O] and its cells int32 [B·S(S-1)/2, N_t]."""
    pairs = list(pairs_of(indices, pe_indices, positional_dim, n_anchors))
    grads = [grad[:, d:].flatten(0, 1) for d, _ in pairs]
    cells = [cell.flatten(0, 1).int() for _, cell in pairs]
    return torch.cat([grad.new_empty(0, grad.shape[2]), *grads]), torch.cat([indices.new_empty(0, indices.shape[2]), *cells])

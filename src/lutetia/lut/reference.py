"""The definition of every LUT kernel, in plain torch.

B batch · S sequence length · I inputs · O outputs · N_t detectors · N_c anchor pairs per detector · R = 2**N_c rows.
Slow and simple on purpose: the `cpu` and `triton` backends hold the same names in the same order and are tested against this.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia.lut.sums import convert_integers_to_floats, sum_dtype, to_fixed
from lutetia.lut.synapses import SynapseMeta, Synapses

__all__ = [
    "check_detectors",
    "check_detectors_eval",
    "convert_integers_to_floats",
    "detect_and_fill_eval_fc",
    "detect_and_fill_eval_sparse",
    "detect_and_fill_fc",
    "detect_and_fill_sparse",
    "fill_outputs_fc",
    "fill_outputs_sparse",
    "gather_weight_gradients_fc",
    "gather_weight_gradients_sparse",
    "gather_weight_rows_fc",
    "gather_weight_rows_sparse",
    "propagate_through_detectors_fc",
    "propagate_through_detectors_sparse",
]


# ---- detect ----------------------------------------------------------------------------------------------------------


def check_detectors(x: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compare anchor pairs and remember the closest call.

    x [..., I], anchors [N_t, N_c, 2] -> indices int32, min_delta (float32 or float64), min_delta_index int32, each [..., N_t].
    """
    deltas = anchor_deltas(x, anchors)
    min_delta_index = deltas.abs().argmin(-1, keepdim=True)  # the first of equals
    min_delta = deltas.gather(-1, min_delta_index)
    return pack_bits(deltas > 0), min_delta.squeeze(-1), min_delta_index.squeeze(-1).int()


def check_detectors_eval(x: Tensor, anchors: Tensor) -> Tensor:
    """x [..., I], anchors [N_t, N_c, 2] -> indices int32 [..., N_t]."""
    return pack_bits(anchor_deltas(x, anchors) > 0)


def anchor_deltas(x: Tensor, anchors: Tensor) -> Tensor:
    """u = x[a] - x[b]: x [..., I], anchors [N_t, N_c, 2] -> [..., N_t, N_c]."""
    x = x.to(sum_dtype(x))
    a, b = anchors.long().unbind(-1)
    return x[..., a] - x[..., b]


def pack_bits(bits: Tensor) -> Tensor:
    """Σ bit_r << r: bool [..., N] -> int32 [...]."""
    powers = 1 << torch.arange(bits.shape[-1], device=bits.device)
    return (bits * powers).sum(-1).int()


# ---- forward ---------------------------------------------------------------------------------------------------------


def fill_outputs_fc(weight: Tensor, indices: Tensor, *, sums: str = "float", int_rescaler: float = 1.0) -> Tensor:
    """y = Σ_t W[t, index_t]: weight [N_t, R, O], indices [B, N_t] -> [B, O]."""
    return total(rows_of(weight, indices), 1, sums, int_rescaler)


def fill_outputs_sparse(
    weight: Tensor, indices: Tensor, synapses: Synapses, *, sums: str = "float", int_rescaler: float = 1.0
) -> Tensor:
    """The same where synapses are missing: weight [n_weights], indices [B, N_t] -> [B, O]."""
    return fill_outputs_fc(synapses.expand(weight), indices, sums=sums, int_rescaler=int_rescaler)


def detect_and_fill_eval_fc(
    x: Tensor, weight: Tensor, anchors: Tensor, *, sums: str = "float", int_rescaler: float = 1.0
) -> Tensor:
    """Both steps, nothing kept: x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O]."""
    return fill_outputs_fc(weight, check_detectors_eval(x, anchors), sums=sums, int_rescaler=int_rescaler)


def detect_and_fill_eval_sparse(
    x: Tensor, weight: Tensor, anchors: Tensor, synapses: Synapses, *, sums: str = "float", int_rescaler: float = 1.0
) -> Tensor:
    """The same where synapses are missing: x [B, I], weight [n_weights], anchors [N_t, N_c, 2] -> y [B, O]."""
    return fill_outputs_sparse(weight, check_detectors_eval(x, anchors), synapses, sums=sums, int_rescaler=int_rescaler)


def detect_and_fill_fc(
    x: Tensor, weight: Tensor, anchors: Tensor, *, sums: str = "float", int_rescaler: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both steps, for training: x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O], then as `check_detectors`."""
    found = check_detectors(x, anchors)
    return fill_outputs_fc(weight, found[0], sums=sums, int_rescaler=int_rescaler), *found


def detect_and_fill_sparse(
    x: Tensor, weight: Tensor, anchors: Tensor, synapses: Synapses, *, sums: str = "float", int_rescaler: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same where synapses are missing: x [B, I], weight [n_weights], anchors [N_t, N_c, 2] -> the same four."""
    found = check_detectors(x, anchors)
    return fill_outputs_sparse(weight, found[0], synapses, sums=sums, int_rescaler=int_rescaler), *found


def rows_of(weight: Tensor, indices: Tensor) -> Tensor:
    """W[t, index_t] of every detector: weight [N_t, R, O], indices [B, N_t] -> [B, N_t, O]."""
    detectors = torch.arange(weight.shape[0], device=weight.device)
    return weight.to(sum_dtype(weight))[detectors, indices.long()]


def total(addends: Tensor, dim: int, sums: str, int_rescaler: float) -> Tensor:
    """Sum over one dimension, in floating point or exactly."""
    if sums == "float":
        return addends.sum(dim)
    return convert_integers_to_floats(to_fixed(addends, int_rescaler).sum(dim), int_rescaler, addends.dtype)


# ---- backward, to the inputs -----------------------------------------------------------------------------------------


def propagate_through_detectors_fc(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    min_delta: Tensor,
    min_delta_index: Tensor,
    anchors: Tensor,
    n_inputs: int,
    *,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """The slope of the blend of the chosen row and its nearest neighbour, sent to the anchors of the closest call.

    grad [B, O], weight [N_t, R, O], indices, min_delta, min_delta_index [B, N_t], anchors [N_t, N_c, 2] -> dx [B, I].
    """
    alternatives = indices ^ (1 << min_delta_index)
    g = grad.to(sum_dtype(grad, weight))[:, None]
    addends = torch.cat([g * rows_of(weight, indices), -g * rows_of(weight, alternatives)], dim=2)
    gain = total(addends, 2, sums, int_rescaler)  # g·W[t, index] - g·W[t, alt]
    slope = uncertainty_slope(min_delta) * gain
    detectors = torch.arange(anchors.shape[0], device=anchors.device)
    a, b = anchors.long()[detectors, min_delta_index.long()].unbind(-1)
    return scatter_to_anchors(slope, a, b, n_inputs, sums, int_rescaler)


def propagate_through_detectors_sparse(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    min_delta: Tensor,
    min_delta_index: Tensor,
    anchors: Tensor,
    n_inputs: int,
    synapses: Synapses,
    *,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """The same where synapses are missing: weight [n_weights], everything else as in `_fc` -> dx [B, I]."""
    dense = synapses.expand(weight)
    options = {"sums": sums, "int_rescaler": int_rescaler}
    return propagate_through_detectors_fc(grad, dense, indices, min_delta, min_delta_index, anchors, n_inputs, **options)  # type: ignore[arg-type]


def uncertainty_slope(u: Tensor) -> Tensor:
    """-dU/du of U(u) = 0.5 / (1 + |u|), with sgn(0) = -1: 0.5 sgn(u) / (1 + |u|)²."""
    near = 1 + u.abs()
    return torch.where(u > 0, 0.5, -0.5).to(u.dtype) / (near * near)


def scatter_to_anchors(slope: Tensor, a: Tensor, b: Tensor, n_inputs: int, sums: str, int_rescaler: float) -> Tensor:
    """dx[a] += slope, dx[b] -= slope: all [B, N_t] -> [B, I]."""
    addends = slope if sums == "float" else to_fixed(slope, int_rescaler)
    dx = addends.new_zeros(slope.shape[0], n_inputs)
    dx.scatter_add_(1, a, addends).scatter_add_(1, b, -addends)
    return dx if sums == "float" else convert_integers_to_floats(dx, int_rescaler, slope.dtype)


# ---- backward, to the weights ----------------------------------------------------------------------------------------


def gather_weight_gradients_fc(
    grad: Tensor,
    indices: Tensor,
    n_rows: int,
    *,
    meta: SynapseMeta = SynapseMeta(),
    external_lr: float = -1.0,
    weight: Tensor | None = None,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """dW[t, index_t] += lr_scale · g: grad [B, O], indices [B, N_t] -> [N_t, R, O].

    With external_lr >= 0 no gradient is kept: `weight` [N_t, R, O] takes the step -external_lr · dW at once, is clamped to the
    range of its meta, and is returned.
    """
    n_detectors, n_outputs = indices.shape[1], grad.shape[1]
    addends = (grad.to(sum_dtype(grad)) * meta.lr_scale)[:, None].expand(-1, n_detectors, -1).reshape(-1, n_outputs)
    slots = lookup_neurons(indices, n_rows)
    if sums == "fixed":
        addends = to_fixed(addends, int_rescaler)
    sum_ = addends.new_zeros(n_detectors * n_rows, n_outputs).index_add_(0, slots, addends)
    if sums == "fixed":
        sum_ = convert_integers_to_floats(sum_, int_rescaler, sum_dtype(grad))
    gradient = sum_.view(n_detectors, n_rows, n_outputs)
    if external_lr < 0:
        return gradient
    assert weight is not None
    return weight.copy_((weight - external_lr * gradient).clamp(meta.min_weight, meta.max_weight))


def gather_weight_gradients_sparse(
    grad: Tensor,
    indices: Tensor,
    synapses: Synapses,
    *,
    external_lr: float = -1.0,
    weight: Tensor | None = None,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """The same where synapses are missing: grad [B, O], indices [B, N_t] -> [n_weights], or the updated weight [n_weights]."""
    gradient = torch.zeros(synapses.n_weights, dtype=sum_dtype(grad), device=grad.device)
    for number, meta in enumerate(synapses.metas):
        dense = gather_weight_gradients_fc(grad, indices, synapses.n_rows, meta=meta, sums=sums, int_rescaler=int_rescaler)
        gradient = torch.where(synapses.weight_meta == number, synapses.flatten(dense), gradient)
    if external_lr < 0:
        return gradient
    assert weight is not None
    return synapses.clamp_(weight.copy_(weight - external_lr * gradient))


def gather_weight_rows_fc(
    grad: Tensor,
    indices: Tensor,
    n_rows: int,
    *,
    meta: SynapseMeta = SynapseMeta(),
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The rows of dW that were looked up: grad [B, O], indices [B, N_t] -> slots int64 [n], rising, and values [n, O].

    The slot of a row is its place in the table: t · n_rows + row.
    """
    gradient = gather_weight_gradients_fc(grad, indices, n_rows, meta=meta, sums=sums, int_rescaler=int_rescaler)
    slots = lookup_neurons(indices, n_rows).unique()
    return slots, gradient.flatten(0, 1)[slots]


def gather_weight_rows_sparse(
    grad: Tensor, indices: Tensor, synapses: Synapses, *, sums: str = "float", int_rescaler: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The same where synapses are missing: grad [B, O], indices [B, N_t] -> places in weight int64 [n], rising; values [n]."""
    gradient = gather_weight_gradients_sparse(grad, indices, synapses, sums=sums, int_rescaler=int_rescaler)
    fired = torch.zeros(synapses.n_detectors * synapses.n_rows, 1, device=grad.device)
    fired[lookup_neurons(indices, synapses.n_rows)] = 1
    fired = fired.expand(-1, synapses.n_outputs).reshape(synapses.n_detectors, synapses.n_rows, synapses.n_outputs)
    places = synapses.flatten(fired).nonzero().flatten()
    return places, gradient[places]


def lookup_neurons(indices: Tensor, n_rows: int) -> Tensor:
    """t · n_rows + index_t of every look-up, flat: indices [B, N_t] -> int64 [B · N_t]."""
    return (indices.long() + n_rows * torch.arange(indices.shape[1], device=indices.device)).flatten()

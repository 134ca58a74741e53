"""Rows of tables, read and learned, one step at a time: the definition, in plain torch.

B batch · I inputs · O outputs · N_t detectors · N_c anchor pairs per detector · R = 2**N_c rows.
Slow and simple on purpose: the `cpu` and `triton` backends hold the same names and are tested against these.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lutetia.lut.kernels.protocol import Coefficients, Connectivity, Detected, Full, Into
from lutetia.lut.kernels.recorder import kernel
from lutetia.lut.sums import Sums, from_units, sum_dtype, to_units

# ---- forward ---------------------------------------------------------------------------------------------------------


@kernel
def fill_rows(
    weight: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums
) -> Tensor:
    """y = Σ_t W[t, index_t], with coefficients Σ_t a_t W[t, index_t] + b_t W[t, alternative_t]: indices [B, N_t] -> y [B, O]."""
    tables, dtype = connectivity.expand(weight), sum_dtype(weight, *factors(coefficients))
    addends = [with_factor(rows_of(tables, rows), factor, dtype) for rows, factor in rows_read(indices, coefficients)]
    return total(torch.cat(addends, dim=1), 1, sums)


def rows_of(weight: Tensor, indices: Tensor) -> Tensor:
    """W[t, index_t] of every detector: weight [N_t, R, O], indices [B, N_t] -> [B, N_t, O]."""
    detectors = torch.arange(weight.shape[0], device=weight.device)
    return weight.to(sum_dtype(weight))[detectors, indices.long()]


def rows_read(indices: Tensor, coefficients: Coefficients | None) -> list[tuple[Tensor, Tensor | None]]:
    """The rows that are read, [B, N_t], each with its coefficient [B, N_t], None for 1."""
    if coefficients is None:
        return [(indices, None)]
    a, b, alternatives = coefficients
    return [(indices, a)] if alternatives is None else [(indices, a), (alternatives, b)]


def factors(coefficients: Coefficients | None) -> tuple[Tensor, ...]:
    """The tensor that affects the dtype of a sum, if there is one."""
    return () if coefficients is None else (coefficients.a,)


def with_factor(values: Tensor, factor: Tensor | None, dtype: torch.dtype) -> Tensor:
    """values [B, N_t, O] times factor [B, N_t]."""
    return values if factor is None else values * factor.to(dtype)[..., None]


def total(addends: Tensor, dim: int, sums: Sums) -> Tensor:
    """Sum over one dimension, in floating point or exactly."""
    return from_units(to_units(addends, sums).sum(dim), sums, addends.dtype)


# ---- backward, to the inputs -----------------------------------------------------------------------------------------


@kernel
def row_gains(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, rows: tuple[Tensor, Tensor | None], sums: Sums
) -> tuple[Tensor, Tensor | None]:
    """g·W[t, index_t] of one or two rows: grad [B, O], rows [B, N_t] each -> [B, N_t] each."""
    tables, g = connectivity.expand(weight), grad.to(sum_dtype(grad, weight))[:, None]
    first, second = (None if indices is None else total(g * rows_of(tables, indices), 2, sums) for indices in rows)
    assert first is not None
    return first, second


@kernel
def propagate(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, detected: Detected, anchors: Tensor, n_inputs: int, sums: Sums
) -> Tensor:
    """The slope of the blend of the chosen row and its nearest neighbour, sent to the anchors of the closest call.

    grad [B, O], detected [B, N_t], anchors [N_t, N_c, 2] -> dx [B, I]. d_t = U'(min_delta) (g·W[t, index] - g·W[t, alternative])
    goes to dx[a], and -d_t to dx[b]. In exact sums the difference is one sum, and the addends of dx another.
    """
    indices, (min_delta, min_delta_index) = detected.indices, detected.closest
    tables, g = connectivity.expand(weight), grad.to(sum_dtype(grad, weight))[:, None]
    alternatives = indices ^ (1 << min_delta_index)
    addends = torch.cat([g * rows_of(tables, indices), -g * rows_of(tables, alternatives)], dim=2)
    slope = uncertainty_slope(min_delta) * total(addends, 2, sums)
    return scatter_to_anchors(slope, *closest_anchors(anchors, min_delta_index), n_inputs, sums)


def uncertainty_slope(u: Tensor) -> Tensor:
    """-dU/du of U(u) = 0.5 / (1 + |u|), with sgn(0) = -1: 0.5 sgn(u) / (1 + |u|)²."""
    near = 1 + u.abs()
    return torch.where(u > 0, 0.5, -0.5).to(u.dtype) / (near * near)


def closest_anchors(anchors: Tensor, min_delta_index: Tensor) -> tuple[Tensor, Tensor]:
    """The two inputs of the closest call: anchors [N_t, N_c, 2], min_delta_index [..., N_t] -> int64 [..., N_t] each."""
    detectors = torch.arange(anchors.shape[0], device=anchors.device)
    a, b = anchors.long()[detectors, min_delta_index.long()].unbind(-1)
    return a, b


def scatter_to_anchors(slopes: Tensor, a: Tensor, b: Tensor, n_inputs: int, sums: Sums) -> Tensor:
    """dx[a] += slope, dx[b] -= slope: all [B, n] -> dx [B, I]; b >= I is a constant, which gets nothing."""
    addends = to_units(slopes, sums)
    dx = addends.new_zeros(slopes.shape[0], n_inputs)
    is_input = b < n_inputs
    dx.scatter_add_(1, a, addends).scatter_add_(1, b.where(is_input, 0), -addends.where(is_input, 0))
    return from_units(dx, sums, slopes.dtype)


# ---- backward, to the weights ----------------------------------------------------------------------------------------


@kernel
def gather_rows(
    grad: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums, into: Into | None
) -> Tensor:
    """dW[t, index_t] += lr_scale · g · coefficient: grad [B, O], indices [B, N_t] -> dW, or `into` after its step.

    A step avoids a gradient of the weight's size where it can. The caller clamps to bounds.
    """
    return subtract(gradient_of(grad, connectivity, indices, coefficients, sums), into)


@kernel
def gather_compact(
    grad: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums
) -> tuple[Tensor, Tensor]:
    """The lookup neurons t · R + row that were read, int64 [n], rising, and the gradients of their weights, flat."""
    gradient = gradient_of(grad, connectivity, indices, coefficients, sums)
    read = torch.cat([rows for rows, _ in rows_read(indices, coefficients)])
    neurons = lookup_neurons(read, connectivity.n_rows).unique()
    return neurons, gradient.flatten()[connectivity.places_of(neurons)]


def gradient_of(
    grad: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums
) -> Tensor:
    """dW, of the shape of a weight."""
    n_detectors, n_rows, dtype = indices.shape[1], connectivity.n_rows, sum_dtype(grad, *factors(coefficients))

    def gather(lr_scale: float) -> Tensor:
        g = (grad.to(dtype) * lr_scale)[:, None].expand(-1, n_detectors, -1)
        sum_ = to_units(g[:0], sums).new_zeros(n_detectors * n_rows, grad.shape[1])
        for rows, factor in rows_read(indices, coefficients):
            addends = to_units(with_factor(g, factor, dtype), sums)
            sum_.index_add_(0, lookup_neurons(rows, n_rows), addends.flatten(0, 1))
        return from_units(sum_, sums, dtype).view(n_detectors, n_rows, grad.shape[1])

    return of_each_meta(connectivity, gather)


def of_each_meta(connectivity: Connectivity, gather: Callable[[float], Tensor]) -> Tensor:
    """The gradient of the weight, where `gather` gives that of the dense table at one lr_scale."""
    if isinstance(connectivity, Full):
        return gather(connectivity.meta.lr_scale)
    gradient = connectivity.flatten(gather(connectivity.metas[0].lr_scale))
    for number, meta in enumerate(connectivity.metas[1:], 1):
        gradient = torch.where(connectivity.weight_meta == number, connectivity.flatten(gather(meta.lr_scale)), gradient)
    return gradient


def subtract(gradient: Tensor, into: Into | None) -> Tensor:
    """The gradient itself, or the weight of `into` after its step."""
    if into is None:
        return gradient
    weight = into.weight.detach()
    weight.copy_(weight - into.rate * gradient)
    return into.weight


def lookup_neurons(indices: Tensor, n_rows: int) -> Tensor:
    """t · n_rows + index_t of every look-up, flat: indices [B, N_t] -> int64 [B · N_t]."""
    return (indices.long() + n_rows * torch.arange(indices.shape[1], device=indices.device)).flatten()

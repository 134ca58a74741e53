"""The compiled loops of the `cpu` backend for rows added with coefficients, in the general layout.

The conventions are those of `general` and `weighted`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.lut.kernels.cpu.loops.basics import U, jit, kernel, load, out_of_range, round_to_unit, sums_in, write_sums


@kernel
def fill_weighted_general(weight: Any, synapses: Any, chosen: Any, factors: Any, y: Any, scale: Any, begin: Any, end: Any) -> Any:
    """weight flat, chosen and factors as in fill_weighted -> y [B, O], for rows begin to end."""
    row_start, targets, n_rows = synapses
    n_outputs, bad = U(y.shape[1]), False
    y = y[begin:end].reshape(-1)
    y[:] = 0
    total = sums_in(y, scale)
    bad |= add_general(total, n_outputs, weight, row_start, targets, n_rows, chosen[0][begin:end], factors[0][begin:end], scale)
    if factors[1].size > 0:
        second, b = chosen[1][begin:end], factors[1][begin:end]
        bad |= add_general(total, n_outputs, weight, row_start, targets, n_rows, second, b, scale)
    return bad | write_sums(total, scale, y)


@jit
def add_general(
    total: Any, n_outputs: Any, weight: Any, row_start: Any, targets: Any, n_rows: Any, chosen: Any, factor: Any, scale: Any
) -> Any:
    """total [n · O] += factor · W[chosen], both [n, N_t]."""
    bad = False
    for t in range(chosen.shape[1]):
        for i in range(chosen.shape[0]):
            neuron = U(t) * n_rows + U(chosen[i, t])
            for s in range(row_start[neuron], row_start[neuron + U(1)]):
                at = U(i) * n_outputs + U(targets[s])
                value = factor[i, t] * load(weight, s)
                if scale is None:
                    total[at] += value
                else:
                    units = round_to_unit(value, scale)
                    bad |= out_of_range(units)
                    total[at] += np.int64(units)
    return bad


@kernel
def gains_general(grad: Any, weight: Any, synapses: Any, chosen: Any, out: Any, scale: Any, begin: Any, end: Any) -> Any:
    """grad [B, O], weight flat, chosen and out as in gains -> out = g · W[chosen], for rows begin to end."""
    bad = gains_general_row(grad, weight, synapses, chosen[0], out[0], scale, begin, end)
    if out[1].size > 0:
        bad |= gains_general_row(grad, weight, synapses, chosen[1], out[1], scale, begin, end)
    return bad


@jit
def gains_general_row(grad: Any, weight: Any, synapses: Any, chosen: Any, out: Any, scale: Any, begin: Any, end: Any) -> Any:
    """Of one of the two: chosen [B, N_t] -> out [B, N_t]."""
    row_start, targets, n_rows = synapses
    bad = False
    for t in range(chosen.shape[1]):
        for i in range(begin, end):
            neuron = U(t) * n_rows + U(chosen[i, t])
            gain, units = grad.dtype.type(0), np.int64(0)
            for s in range(row_start[neuron], row_start[neuron + U(1)]):
                value = grad[i, targets[s]] * load(weight, s)
                if scale is None:
                    gain += value
                else:
                    rounded = round_to_unit(value, scale)
                    bad |= out_of_range(rounded)
                    units += np.int64(rounded)
            if scale is not None:
                bad |= out_of_range(units)
                gain = grad.dtype.type(np.float64(units) / scale)
            out[i, t] = gain
    return bad


@kernel
def gather_weighted_general(
    grad: Any, rates: Any, synapses: Any, chosen: Any, factors: Any, places: Any, out: Any, scale: Any, begin: Any, end: Any
) -> Any:
    """out += factor · grad [B, O] at the rows read, for detectors begin to end."""
    bad = False
    for t in range(U(begin), U(end)):
        spans = places[1]
        part = out[spans[t] : spans[t + U(1)]]
        total = sums_in(part, scale)
        bad |= gather_general_row(total, grad, rates, synapses, chosen[0], factors[0], places, t, scale)
        if factors[1].size > 0:
            bad |= gather_general_row(total, grad, rates, synapses, chosen[1], factors[1], places, t, scale)
        bad |= write_sums(total, scale, part)
    return bad


@jit
def gather_general_row(
    total: Any, grad: Any, rates: Any, synapses: Any, chosen: Any, factor: Any, places: Any, t: Any, scale: Any
) -> Any:
    """The share of one pair of chosen and factor [B, N_t] in the sums of detector t."""
    row_start, targets, _ = synapses
    starts, spans, n_rows = places
    bad = False
    for i in range(chosen.shape[0]):
        neuron = t * n_rows + U(chosen[i, t])
        first, at = row_start[neuron], starts[neuron] - spans[t]
        for k in range(row_start[neuron + U(1)] - first):
            value = grad[i, targets[first + k]]
            if rates.size > 0:
                value = value * rates[first + k]
            value = value * factor[i, t]
            if scale is None:
                total[at + k] += value
            else:
                units = round_to_unit(value, scale)
                bad |= out_of_range(units)
                total[at + k] += np.int64(units)
    return bad

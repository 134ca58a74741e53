"""The compiled loops of the `cpu` backend for the general layout, where each lookup neuron has outputs of its own.

The conventions are those of `rows`. `synapses` holds row_start [N_t · R + 1], targets [n_weights], and R.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.lut.kernels.cpu.loops.basics import U, jit, kernel, load, out_of_range, round_to_unit, sums_in, write_sums
from lutetia.lut.kernels.cpu.loops.rows import send_to_anchors, uncertainty_slope


@kernel
def fill_general(weight: Any, synapses: Any, indices: Any, y: Any, scale: Any, begin: Any, end: Any) -> Any:
    """The same for the general layout: `synapses` holds row_start [N_t · R + 1], targets [n_weights], and R."""
    row_start, targets, n_rows = synapses
    n_outputs, bad = U(y.shape[1]), False
    y = y[begin:end].reshape(-1)
    indices = indices[begin:end]
    y[:] = 0
    total = sums_in(y, scale)
    for t in range(indices.shape[1]):
        for i in range(indices.shape[0]):
            neuron = U(t) * n_rows + U(indices[i, t])
            for s in range(row_start[neuron], row_start[neuron + U(1)]):
                at = U(i) * n_outputs + U(targets[s])
                if scale is None:
                    total[at] += load(weight, s)
                else:
                    units = round_to_unit(load(weight, s), scale)
                    bad |= out_of_range(units)
                    total[at] += np.int64(units)
    return bad | write_sums(total, scale, y)


@kernel
def propagate_general(
    grad: Any, weight: Any, synapses: Any, found: Any, anchors: Any, dx: Any, scale: Any, begin: Any, end: Any
) -> Any:
    """The same for the general layout: `synapses` holds row_start [N_t · R + 1], targets [n_weights], and R."""
    row_start, targets, n_rows = synapses
    indices, min_delta, min_delta_index = found
    bad, one, n_inputs = False, min_delta.dtype.type(1), U(dx.shape[1])
    dx = dx[begin:end].reshape(-1)
    dx[:] = 0
    total = sums_in(dx, scale)
    for t in range(indices.shape[1]):
        for i in range(begin, end):
            index, which = indices[i, t], min_delta_index[i, t]
            neuron = U(t) * n_rows + U(index)
            other = U(t) * n_rows + U(index ^ (np.uint32(1) << which))
            if scale is None:
                gain = row_gain(grad, i, weight, row_start, targets, neuron)
                gain -= row_gain(grad, i, weight, row_start, targets, other)
            else:
                plus, overflow = row_gain_fixed(grad, i, weight, row_start, targets, neuron, scale)
                minus, overflow_too = row_gain_fixed(grad, i, weight, row_start, targets, other, scale)
                bad |= overflow | overflow_too | out_of_range(plus - minus)
                gain = grad.dtype.type(np.float64(plus - minus) / scale)
            slope = uncertainty_slope(min_delta[i, t], one) * gain
            bad |= send_to_anchors(total, U(i - begin) * n_inputs, anchors[t, which], slope, scale)
    return bad | write_sums(total, scale, dx)


@jit
def row_gain(grad: Any, i: Any, weight: Any, row_start: Any, targets: Any, neuron: Any) -> Any:
    """Σ grad[i] · weight over the synapses of a lookup neuron."""
    gain = grad.dtype.type(0)
    for s in range(row_start[neuron], row_start[neuron + U(1)]):
        gain += grad[i, targets[s]] * load(weight, s)
    return gain


@jit
def row_gain_fixed(grad: Any, i: Any, weight: Any, row_start: Any, targets: Any, neuron: Any, scale: Any) -> Any:
    """The same in units, and whether an addend was out of range."""
    total, bad = np.int64(0), False
    for s in range(row_start[neuron], row_start[neuron + U(1)]):
        units = round_to_unit(grad[i, targets[s]] * load(weight, s), scale)
        bad |= out_of_range(units)
        total += np.int64(units)
    return total, bad


@kernel
def gather_general(
    grad: Any, rates: Any, synapses: Any, indices: Any, places: Any, out: Any, fresh: Any, scale: Any, begin: Any, end: Any
) -> Any:
    """The same for the general layout, for detectors begin to end; `rates` holds a number per weight, or none at all."""
    row_start, targets, _ = synapses
    starts, spans, n_rows = places
    bad = False
    for t in range(U(begin), U(end)):
        part = out[spans[t] : spans[t + U(1)]]
        if fresh:
            part[:] = 0
        total = sums_in(part, scale)
        for i in range(indices.shape[0]):
            neuron = t * n_rows + U(indices[i, t])
            first, at = row_start[neuron], starts[neuron] - spans[t]
            for k in range(row_start[neuron + U(1)] - first):
                value = grad[i, targets[first + k]]
                if rates.size > 0:
                    value = value * rates[first + k]
                if scale is None:
                    total[at + k] += value
                else:
                    units = round_to_unit(value, scale)
                    bad |= out_of_range(units)
                    total[at + k] += np.int64(units)
        bad |= write_sums(total, scale, part)
    return bad

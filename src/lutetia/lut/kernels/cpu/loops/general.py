"""The compiled loops of the `cpu` backend for the general layout, where each lookup neuron has outputs of its own.

The conventions are those of `rows`.
"""

from __future__ import annotations

import numpy as np

from lutetia._shared.loops import U, by_none, clear, element, jit, kernel, load, times
from lutetia.lut.kernels.cpu.arrays import Neurons
from lutetia.lut.kernels.cpu.loops.basics import add_one, out_of_range, round_to_unit, sums_in, write_sums
from lutetia.lut.kernels.cpu.loops.gather import reads_from, rows_from, sink_from
from lutetia.lut.kernels.cpu.loops.rows import send_to_anchors, uncertainty_slope


@kernel
def fill(weight, neurons, reads, y, scale, begin, end):
    """weight flat, reads [B, N_t] -> y [B, O], for rows begin to end."""
    y, neurons = y[begin:end], Neurons(*neurons)
    flat = y.reshape(-1)
    clear(flat)
    total = sums_in(scale, flat)
    bad = add_neurons(total, U(y.shape[1]), weight, neurons, rows_from(reads[0]), begin, scale)
    bad |= add_neurons(total, U(y.shape[1]), weight, neurons, rows_from(reads[1]), begin, scale)
    return bad | write_sums(total, scale, flat)


@jit
def add_neurons(total, n_outputs, weight, neurons, rows, begin, scale):
    """total [n · O] += the rows of n batch rows from `begin` on."""
    bad = False
    if rows is not None:
        for t in range(rows.indices.shape[1]):
            for i in range(U(total.size) // max(n_outputs, U(1))):
                place = (U(begin) + i, U(t))
                neuron, factor = U(t) * neurons.n_rows + U(rows.indices[place]), element(rows.factors, place)
                for s in range(neurons.row_start[neuron], neurons.row_start[neuron + U(1)]):
                    at = i * n_outputs + U(neurons.targets[s])
                    bad |= add_one(total, at, times(factor, load(weight, s)), scale)
    return bad


@kernel
def gains(grad, weight, neurons, reads, scale, begin, end):
    """grad [B, O], weight flat -> the factors of reads = g · W of their rows, for batch rows begin to end."""
    neurons = Neurons(*neurons)
    bad = write_gains(grad, weight, neurons, rows_from(reads[0]), scale, begin, end)
    return bad | write_gains(grad, weight, neurons, rows_from(reads[1]), scale, begin, end)


@jit
def write_gains(grad, weight, neurons, rows, scale, begin, end):
    bad = False
    if rows is not None:
        for t in range(rows.indices.shape[1]):
            for i in range(begin, end):
                neuron = U(t) * neurons.n_rows + U(rows.indices[i, t])
                total, overflow = dot(grad, i, weight, neurons, neuron, scale)
                rows.factors[i, t], out = from_units(scale, total, grad)
                bad |= overflow | out
    return bad


@jit
def dot(grad, i, weight, neurons, neuron, scale):
    """Σ grad[i] · weight over the synapses of a lookup neuron, and whether an addend was out of range; fixed sums in units."""
    total, units, bad = grad.dtype.type(0), np.int64(0), False
    for s in range(neurons.row_start[neuron], neurons.row_start[neuron + U(1)]):
        value = grad[i, neurons.targets[s]] * load(weight, s)
        if scale is None:
            total += value
        else:
            rounded = round_to_unit(value, scale)
            bad |= out_of_range(rounded)
            units += np.int64(rounded)
    return which_sum(scale, total, units), bad


which_sum = by_none(lambda scale, total, units: total, lambda scale, total, units: units)
# A sum in the dtype of grad, and whether it was out of range.
from_units = by_none(
    lambda scale, total, grad: (total, False),
    lambda scale, total, grad: (grad.dtype.type(np.float64(total) / scale), out_of_range(total)),
)


@jit
def difference(grad, i, weight, neurons, neuron, other, scale):
    """g·W[neuron] - g·W[other] as one sum, and whether something was out of range."""
    plus, bad = dot(grad, i, weight, neurons, neuron, scale)
    minus, overflow = dot(grad, i, weight, neurons, other, scale)
    gain, out = from_units(scale, plus - minus, grad)
    return gain, bad | overflow | out


@kernel
def propagate(grad, weight, neurons, found, dx, scale, begin, end):
    """grad [B, O], weight flat -> dx [B, I], for rows begin to end."""
    (indices, min_delta, min_delta_index, anchors), neurons = found, Neurons(*neurons)
    bad, one, n_inputs = False, min_delta.dtype.type(1), U(dx.shape[1])
    dx = dx[begin:end].reshape(-1)
    clear(dx)
    total = sums_in(scale, dx)
    for t in range(indices.shape[1]):
        for i in range(begin, end):
            index, which = indices[i, t], min_delta_index[i, t]
            first = U(t) * neurons.n_rows
            other = first + U(index ^ (np.uint32(1) << which))
            gain, overflow = difference(grad, i, weight, neurons, first + U(index), other, scale)
            slope = uncertainty_slope(min_delta[i, t], one) * gain
            bad |= overflow | send_to_anchors(total, (U(i - begin), n_inputs), anchors[t, which], slope, scale)
    return bad | write_sums(total, scale, dx)


@kernel
def gather(gradients, neurons, reads, sink, scale, begin, end):
    """sink += gradients [B, O] at the rows read, for detectors begin to end."""
    reads, sink, neurons, bad = reads_from(reads), sink_from(sink), Neurons(*neurons), False
    spans = sink.places.spans
    for t in range(U(begin), U(end)):
        part = sink.out[spans[t] : spans[t + U(1)]]
        if sink.fresh:
            clear(part)
        total = sums_in(scale, part)
        bad |= gather_table(total, gradients, neurons, reads.first, sink.places, t, scale)
        bad |= gather_table(total, gradients, neurons, reads.second, sink.places, t, scale)
        bad |= write_sums(total, scale, part)
    return bad


@jit
def gather_table(total, gradients, neurons, rows, places, t, scale):
    """The share of some rows [B, N_t] in the sums of detector t."""
    bad, (grad, rates) = False, gradients
    if rows is not None:
        for i in range(rows.indices.shape[0]):
            neuron, factor = t * places.n_rows + U(rows.indices[i, t]), element(rows.factors, (i, t))
            first, at = neurons.row_start[neuron], places.starts[neuron] - places.spans[t]
            for k in range(neurons.row_start[neuron + U(1)] - first):
                value = grad[i, neurons.targets[first + k]]
                if rates.size > 0:
                    value = value * rates[first + k]
                bad |= add_one(total, at + k, times(factor, value), scale)
    return bad

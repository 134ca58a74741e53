"""The compiled loops of the `cpu` backend for small batches that learn: one launch forward, and one backward.

What comes back from the graph is checked here, too: a launch of its own would take as long as the work.
"""

from __future__ import annotations

import numpy as np

from lutetia._shared.loops import by_none, entry, jit
from lutetia._shared.vectors import largest
from lutetia.lut.kernels.cpu.loops.detect import detect, inputs_outside
from lutetia.lut.kernels.cpu.loops.gather import gather
from lutetia.lut.kernels.cpu.loops.rows import fill, propagate


@entry
def learn(inputs, weight, layer, found, y, scale):
    """detect and fill x [B, I], given with its anchors -> indices, min_delta and its index [B, N_t], as `found`, and y [B, O].

    True where anchors are out of range.
    """
    x, anchors = inputs
    indices, margin, which = found
    if inputs_outside(anchors, x.shape[1]):
        return True
    rows, zero = indices.view(np.uint32), np.int64(0)
    detect((x, anchors, None), rows, (margin, which), zero, x.shape[0])
    return fill(weight, layer, ((rows, None), None), y, scale, zero, x.shape[0])


@entry
def send(grad, weight, layer, found, inputs, sink, scale):
    """grad [B, O] -> dx [B, I] and dW: `propagate`, and `gather` into what is fresh.

    `found` are indices [B, N_t] and what they lie below; `inputs` min_delta, its index, anchors and dx, or None; `sink` the
    first and the fourth argument of `gather`, or None. True where an index or an anchor is out of range.
    """
    indices = found[0].view(np.uint32)
    if largest(indices.reshape(-1)) >= found[1]:
        return True
    return send_to_inputs(inputs, grad, weight, layer, indices, scale) | send_to_sink(sink, layer, indices, scale)


@jit
def propagate_small(inputs, grad, weight, layer, indices, scale):
    margin, which, anchors, dx = inputs
    which = which.view(np.uint32)
    if inputs_outside(anchors, dx.shape[1]) or largest(which.reshape(-1)) >= anchors.shape[1]:
        return True
    return propagate(grad, weight, layer, (indices, margin, which, anchors), dx, scale, np.int64(0), indices.shape[0])


@jit
def gather_small(sink, layer, indices, scale):
    gradients, out = sink
    return gather(gradients, layer, ((indices, None), None), out, scale, np.int64(0), indices.shape[1])


# Nothing to do where the first argument is None.
send_to_inputs = by_none(lambda inputs, grad, weight, layer, indices, scale: False, propagate_small)
send_to_sink = by_none(lambda sink, layer, indices, scale: False, gather_small)

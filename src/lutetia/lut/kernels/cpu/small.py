"""A small batch through a layer with a hard read: arrays are made once, and a call runs one loop, as does its backward pass."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.arrays import array_of
from lutetia._shared.prepared import allocator
from lutetia._shared.threads import SMALLEST_SHARE
from lutetia.lut.connectivity.full import Full
from lutetia.lut.kernels.cpu.plan import loop, plan_of, scale_of
from lutetia.lut.kernels.cpu.rows import NO_RATES, check_anchors_fit, gather_rows, propagate, weight_array
from lutetia.lut.kernels.protocol import FLOAT, Connectivity, Detected

FOUND = (torch.int32, torch.float32, torch.int32)  # `Detected`


def serves(x: Tensor, weight: Tensor, anchors: Tensor, connectivity: Connectivity) -> bool:
    """Whether x [B, I] is small enough for one thread and one loop."""
    plan = plan_of(connectivity)
    work = x.shape[0] * (2 * anchors.numel() + plan.n_synapses)
    return work < 2 * SMALLEST_SHARE


class Launches:
    """The arrays of one layer for one shape of x [B, I]."""

    scatters = True  # one loop gives the gradients of x and of the weight

    def __init__(self, x: Tensor, weight: Tensor, anchors: Tensor, connectivity: Connectivity) -> None:
        plan, self.connectivity, self.anchors, n = plan_of(connectivity), connectivity, anchors, x.shape[0]
        check_anchors_fit(anchors, plan)
        self.x_shape, self.y_shape, self.found_shape = tuple(x.shape), (n, plan.n_outputs), (n, plan.n_detectors)
        self.weight_pointer, self.strides, self.make = weight.data_ptr(), weight.stride(), allocator(x)
        self.arrays = (weight_array(weight, plan), plan.arrays)
        self.pairs, self.scale = array_of(anchors), scale_of(FLOAT)
        self.run = loop("rows", "evaluate")
        self.trains = 4 * n * plan.n_synapses + plan.n_weights // 8 < 2 * SMALLEST_SHARE
        self.rate, self.rates = 1.0, NO_RATES  # of all synapses alike, and of each
        if isinstance(plan.rates, float):
            self.rate = plan.rates
        else:
            self.rates = plan.rates.astype(np.float32)
        self.places, self.n_rows = tuple(plan.places), plan.n_rows
        c = connectivity
        self.wires = (None, None, None) if isinstance(c, Full) else (c.owner_start, c.owner_targets, c.owner_meta)

    def room(self, x: Tensor) -> Detected:
        """Memory for `Detected`, [B, N_t] each."""
        shape, strides, make = self.found_shape, (self.found_shape[1], 1), self.make
        return Detected(*(make(shape, strides, dtype) for dtype in FOUND))

    def fill(self, x: Tensor, weight: Tensor, found: Detected | None) -> Tensor | None:
        """x [B, I] -> y [B, O], and `Detected` where there is room for it; None where anchors are out of range."""
        y = np.empty(self.y_shape, np.float32)
        inputs = ((x.detach() if x.requires_grad else x).numpy(), self.pairs)
        if found is None:
            failed = self.run(inputs, *self.arrays, y, self.scale, 0, self.y_shape[0])
        else:
            arrays = (found.indices.numpy(), *(each.numpy() for each in found.closest))
            failed = loop("small", "learn")(inputs, *self.arrays, arrays, y, self.scale)
        return None if failed else torch.from_numpy(y)

    def gradients(self, grad: Tensor, weight: Tensor, found: tuple[Tensor, ...], size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """grad [B, O], `Detected` [B, N_t] -> dx [B, I] and dW of this size."""
        dx = self.make(self.x_shape, (self.x_shape[1], 1), torch.float32)
        dw = self.make(size, self.strides, torch.float32)
        if self._send(grad, weight, found, dx, dw):
            return dx, dw
        return self._to_inputs(grad, weight, found), self._to_weight(grad, found[0])

    def to_inputs(self, grad: Tensor, weight: Tensor, found: tuple[Tensor, ...]) -> Tensor:
        """The first of them."""
        dx = self.make(self.x_shape, (self.x_shape[1], 1), torch.float32)
        return dx if self._send(grad, weight, found, dx, None) else self._to_inputs(grad, weight, found)

    def to_weight(self, grad: Tensor, indices: Tensor, size: tuple[int, ...]) -> Tensor:
        """The second, from indices [B, N_t]."""
        dw = self.make(size, self.strides, torch.float32)
        return dw if self._send(grad, None, (indices,), None, dw) else self._to_weight(grad, indices)

    def _send(self, grad: Tensor, weight: Tensor | None, found: tuple[Tensor, ...], dx: Tensor | None, dw: Tensor | None) -> bool:
        """Fill those of dx and dW that there are; False where something has moved, or is out of range."""
        if weight is not None and weight.data_ptr() != self.weight_pointer:
            return False
        for each, dtype in zip(found, FOUND, strict=False):  # whatever a hook has stored and brought back
            if each.shape != self.found_shape or each.dtype is not dtype or not each.is_contiguous():
                return False
        gradients, (indices, *margins) = array_of(grad), map(Tensor.numpy, found)
        inputs = None if dx is None else (*margins, self.pairs, dx.numpy())
        sink = None
        if dw is not None:
            rated = gradients if self.rate == 1.0 else gradients * np.float32(self.rate)
            sink = ((rated, self.rates), (dw.numpy().reshape(-1), self.places, True))
        return not loop("small", "send")(gradients, *self.arrays, (indices, self.n_rows), inputs, sink, self.scale)

    # As every other call does, which says what is wrong.
    def _to_inputs(self, grad: Tensor, weight: Tensor, found: tuple[Tensor, ...]) -> Tensor:
        return propagate(grad, weight, self.connectivity, Detected(*found), self.anchors, self.x_shape[1], FLOAT)

    def _to_weight(self, grad: Tensor, indices: Tensor) -> Tensor:
        return gather_rows(grad, self.connectivity, indices, None, FLOAT, None)

"""The launches of small layers, planned once: a call hands over addresses and nothing else.

`Launches` are those of one step with a hard read, `PairLaunches` those of a sequence by pairs, evaluated.
All tensors are contiguous float32 or int32, aligned to 16 bytes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lutetia._shared.launches import Planned, watched
from lutetia._shared.prepared import allocator
from lutetia._shared.steps import Parameter, Zeros
from lutetia._shared.volley import Room, Volley, share
from lutetia.lut.kernels.cuda import keeps_hard_by_detector
from lutetia.lut.kernels.protocol import FLOAT, Connectivity, Detected, Sequence, Synapses
from lutetia.lut.kernels.triton import detect, pairs, rows
from lutetia.lut.kernels.triton.launch import sizes_of, tables_of
from lutetia.lut.kernels.triton.layout import layout_of
from lutetia.lut.kernels.triton.source.basics import Inputs, Rows, Sizes, Target

NOTHING = (None,) * 6
ADDRESSES = ("x", "weight", "anchors", "positions", "y")  # that a volley of pairs is given, and then one of its own memory
HOW = (FLOAT, torch.float32)


def serves(x: Tensor, weight: Tensor, anchors: Tensor, connectivity: Connectivity) -> bool:
    """Whether a forward pass of x [B, I] is one launch of one Triton kernel."""
    layout = layout_of(connectivity)
    if layout.kind == "general" or not layout.widest or rows.fills_by_slab(layout, x.shape[0]):
        return False
    return not keeps_hard_by_detector(x, anchors, (weight, layout.n_outputs), False, None)


class Launches:
    """Those of one layer for one shape of x [B, I]."""

    trains = True  # they serve training too

    def __init__(self, x: Tensor, weight: Tensor, anchors: Tensor, connectivity: Connectivity) -> None:
        self.layout, self.connectivity, self.anchors = layout_of(connectivity), connectivity, anchors
        self.x_shape, self.y_shape = tuple(x.shape), (x.shape[0], self.layout.n_outputs)
        self.make, self.found_shape, self.strides = allocator(x), (x.shape[0], anchors.shape[0]), weight.stride()
        arrays = tables_of(self.layout, None)[1:]
        self.pointers = tuple(None if array is None else array.data_ptr() for array in arrays)
        self.weight_pointer, self.anchors_pointer = weight.data_ptr(), anchors.data_ptr()
        self.wires: tuple[Any, ...] = (None, None, None)
        if isinstance(connectivity, Synapses):
            self.wires = (connectivity.owner_start, connectivity.owner_targets, connectivity.owner_meta)
        self.plans: dict[str, Planned] = {}
        self.to_x, self.sizes = sizes_of(self.layout, x.shape[1]), sizes_of(self.layout)
        self.numbers: Any = None  # of the launch to the weights
        lr_scale = self.layout.lr_scale
        self.scatters = rows.scatters(self.layout, FLOAT) and not isinstance(lr_scale, Tensor) and lr_scale == 1.0
        self.clears_rows = rows.clears_rows(self.layout, FLOAT)

    def room(self, x: Tensor) -> Detected:
        """Memory for `Detected`, [B, N_t] each."""
        shape, strides, make = self.found_shape, (self.found_shape[1], 1), self.make
        return Detected(*(make(shape, strides, dtype) for dtype in (torch.int32, torch.float32, torch.int32)))

    def _empty(self, shape: tuple[int, ...]) -> Tensor:
        return self.make(shape, (shape[1], 1), torch.float32)

    def _ready(self, name: str) -> Planned | None:
        """A plan that can be launched with addresses."""
        plan = self.plans.get(name)
        return None if plan is None or plan.launch.compiled is None or watched() else plan

    def fill(self, x: Tensor, weight: Tensor, found: Detected | None) -> Tensor:
        """x [B, I] -> y [B, O], and `Detected` where there is room for it."""
        y = self._empty(self.y_shape) if self.layout.disjoint else x.new_zeros(self.y_shape)
        name = "eval" if found is None else "train"
        plan = self._ready(name)
        if plan is not None:
            places = NOTHING if found is None else (*(each.data_ptr() for each in found), None, None, None)  # type: ignore[union-attr]
            plan.launch.again(
                (x.data_ptr(), self.anchors_pointer, None, None, None, None), places, (y.data_ptr(), None, None),
                (self.weight_pointer, *self.pointers), self.to_x, *plan.constants,
            )  # fmt: skip
            return y
        plan = rows.launch_fill(weight, self.layout, Inputs(x, self.anchors), Rows(*(found or (None,))), Target(y), HOW)
        self._keep(name, plan)
        return y

    def _keep(self, name: str, plan: Planned | None) -> None:
        if plan is not None:
            self.plans[name] = plan

    def gradients(self, grad: Tensor, weight: Tensor, found: tuple[Tensor, ...], size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """dx [B, I] and dW of this size; the kernel of the first sets the memory of the second to zero."""
        if not self._scatters(found[0]) or self.layout.n_weights >= 2**30:
            return self.to_inputs(grad, weight, found), self.to_weight(grad, found[0], size)
        out = self.make(size, self.strides, torch.float32)
        return self.to_inputs(grad, weight, found, out), self._scatter(grad, found[0], out)

    def to_inputs(self, grad: Tensor, weight: Tensor, found: tuple[Tensor, ...], cleared: Tensor | None = None) -> Tensor:
        """grad [B, O], `Detected` [B, N_t] -> dx [B, I]; `cleared` is set to zero."""
        dx = self._empty(self.x_shape) if self.clears_rows else grad.new_zeros(self.x_shape)
        name = "gains" if cleared is None else "gains and zeros"
        plan = self._ready(name)
        if plan is not None and weight.data_ptr() == self.weight_pointer and all(each.is_contiguous() for each in found):
            plan.launch.again(
                grad.data_ptr(), (*(each.data_ptr() for each in found), None, None, None), self.anchors_pointer,
                (dx.data_ptr(), None, None), (self.weight_pointer, *self.pointers), self.to_x,
                None if cleared is None else (cleared.data_ptr(), self.layout.n_weights), *plan.constants,
            )  # fmt: skip
            return dx
        sent, to = Rows(*(each.contiguous() for each in found)), (self.anchors, self.x_shape[1], cleared)
        self._keep(name, rows.gains(grad, weight.contiguous(), self.layout, sent, Target(dx), FLOAT, to))
        return dx

    def to_weight(self, grad: Tensor, indices: Tensor, size: tuple[int, ...]) -> Tensor:
        """grad [B, O], indices [B, N_t] -> dW of this size."""
        if not self._scatters(indices):
            return rows.gather_rows(grad, self.connectivity, indices.contiguous(), None, FLOAT, None)
        return self._scatter(grad, indices, grad.new_zeros(size))

    def _scatters(self, indices: Tensor) -> bool:
        """Whether dW is added up by atomics, from memory that is zero."""
        return self.scatters and indices.is_contiguous()

    def _scatter(self, grad: Tensor, indices: Tensor, out: Tensor) -> Tensor:
        """Add grad [B, O] to the rows of dW that were read."""
        plan = self._ready("scatter")
        if plan is not None:
            plan.launch.again(
                grad.data_ptr(), (indices.data_ptr(), None, None, None, None, None), out.data_ptr(),
                (None, *self.pointers), self.sizes, self.numbers, *plan.constants,
            )  # fmt: skip
            return out
        launched = rows.scatter(grad, Rows(indices), self.layout, out, None, torch.float32)
        if launched is not None:
            self.plans["scatter"], self.numbers = launched
        return out


def serves_pairs(x: Tensor, weight: Tensor, positions: Tensor) -> bool:
    """Whether y of x [B, S, I] takes three launches and no copies."""
    if not (positions.dtype == torch.float32 and positions.is_contiguous() and positions.data_ptr() % 16 == 0):
        return False
    return x.shape[1] > 1 and positions.shape[1] == weight.shape[0] and positions.shape[2] > 0 and weight.shape[2] > 0


class PairLaunches:
    """Those of one layer for one shape of x [B, S, I]."""

    def __init__(self, x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor) -> None:
        (batch, length, n_inputs), (n_detectors, n_anchors, _) = x.shape, anchors.shape
        self.anchors, self.positions, self.n_anchors, self.shape = anchors, positions, n_anchors, (batch, length, n_detectors)
        self.sizes, self.connectivity = Sizes(n_inputs, n_detectors), self  # nothing that a call could name
        self.pointers = (weight.data_ptr(), anchors.data_ptr(), positions.data_ptr())
        # What a long sequence finds is walked by detector, and stored so.
        self.long = pairs.kind(length) == "long"
        self.found = (
            ((batch, n_detectors, length), (n_detectors, length - 1)) if self.long else (self.shape, (length - 1, n_detectors))
        )
        self.steps = (1, length, 1, length - 1) if self.long else (n_detectors, 1, n_detectors, 1)
        self.make, self.n_outputs = allocator(x), weight.shape[2]
        self.volley: Volley | None = None
        self.plans: tuple[Planned, ...] = ()
        rooms = [Room(4 * math.prod(each), 0, 0) for each in self.found]
        self.places, self.n_bytes = share(dict(zip(("indices", "signs"), rooms, strict=True)))

    def fill(self, x: Tensor, weight: Tensor, found: None = None) -> Tensor | None:
        """x [B, S, I] -> y [B, S, O]; None where the positions have moved."""
        (batch, length, _), n_outputs = self.shape, self.n_outputs
        at_weight, at_anchors, at_positions = self.pointers
        if self.positions.data_ptr() != at_positions:
            return None
        y = self.make((batch, length, n_outputs), (length * n_outputs, n_outputs, 1), torch.float32)
        if self.volley is None or watched():
            self._launch(x, weight, y.zero_())
            return y
        room = self.make((self.n_bytes,), (1,), torch.uint8)
        self.volley(x.data_ptr(), at_weight, at_anchors, at_positions, y.data_ptr(), room.data_ptr())
        return y

    def _launch(self, x: Tensor, weight: Tensor, y: Tensor) -> None:
        """The first time: by tensors, which Triton looks at; y [B, S, O] is zero."""
        values, length = self.positions[: self.shape[1] - 1], self.shape[1] if self.long else None
        indices, signs = (x.new_empty(size, dtype=torch.int32) for size in self.found)
        compared = detect.launch(x, Inputs(x, self.anchors), Rows(indices), detect.compared(x, self.anchors), {}, length)
        assert compared is not None  # a batch that is prepared for has rows
        signed = detect.launch_positions(values, Rows(signs), self.long)
        by_place, by_distance = (indices.transpose(1, 2), signs.t()) if self.long else (indices, signs)
        sequence = Sequence(Detected(by_place), Detected(by_distance), self.n_anchors, values.shape[2])
        self.plans = (compared, signed, pairs.launch_fill(weight, sequence, Target(y), FLOAT))  # kept: what is launched is theirs
        self.volley = self._in_a_row(signs.numel())

    def _in_a_row(self, n_signs: int) -> Volley | None:
        """The same launches in a row, by addresses; None under the interpreter, and where Triton must make one of them."""
        (batch, length, n_detectors), n_outputs = self.shape, self.n_outputs
        x, weight, anchors, positions, y, indices, signs = (Parameter(name, 0) for name in (*ADDRESSES, "indices", "signs"))
        turned = (length, n_detectors) if self.long else (None, None)
        given: list[tuple[Any, ...]] = [
            ((x, anchors, None, None, None, None), (indices, *NOTHING[1:]), self.sizes, turned[0]),
            (positions, (signs, *NOTHING[1:]), n_signs, turned[1]),
            (weight, (indices, signs), (y, None, None), (length, n_detectors, n_outputs), self.steps),
        ]
        if not all(plan.launch.ready() for plan in self.plans):
            return None
        shots = [plan.launch.shot(*each, *plan.constants) for plan, each in zip(self.plans, given, strict=True)]
        if None in shots:
            return None
        places = {name: (number, 0) for number, name in enumerate(ADDRESSES)}
        places |= {name: (len(ADDRESSES), begin) for name, begin in self.places.items()}
        return Volley([Zeros("y", 4 * batch * length * n_outputs), *shots], places)  # type: ignore[list-item]

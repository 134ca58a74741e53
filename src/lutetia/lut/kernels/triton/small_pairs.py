"""The launches of a short sequence by pairs, evaluated, planned once: a call hands over addresses and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia._shared.launches import Planned, watched
from lutetia.lut.kernels.protocol import Detected, Sequence
from lutetia.lut.kernels.triton import detect, pairs
from lutetia.lut.kernels.triton.source.basics import Inputs, Rows, Sizes, Target
from lutetia.lut.sums import FLOAT

trains = False
NOTHING = (None,) * 5  # what `Rows` has besides indices


def serves(x: Tensor, weight: Tensor, positions: Tensor) -> bool:
    """Whether y of x [B, S, I] takes three launches and no copies."""
    if not (positions.dtype == torch.float32 and positions.is_contiguous() and positions.data_ptr() % 16 == 0):
        return False
    length, per_detector = x.shape[1], positions.shape[1] == weight.shape[0]
    return length > 1 and pairs.kind(length) == "short" and per_detector and positions.shape[2] > 0 and weight.shape[2] > 0


class Launches:
    """Those of one layer for one shape of x [B, S, I]. All tensors are contiguous float32 or int32, aligned to 16 bytes."""

    def __init__(self, x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor) -> None:
        (batch, length, n_inputs), (n_detectors, n_anchors, _) = x.shape, anchors.shape
        self.anchors, self.positions, self.n_anchors, self.shape = anchors, positions, n_anchors, (batch, length, n_detectors)
        self.sizes, self.connectivity = Sizes(n_inputs, n_detectors), self  # nothing that a call could name
        self.pointers = (weight.data_ptr(), anchors.data_ptr(), positions.data_ptr())
        self.plans: tuple[Planned, ...] = ()

    def fill(self, x: Tensor, weight: Tensor, found: None = None) -> Tensor | None:
        """x [B, S, I] -> y [B, S, O]; None where the positions have moved."""
        (batch, length, n_detectors), n_outputs = self.shape, weight.shape[2]
        at_weight, at_anchors, at_positions = self.pointers
        if self.positions.data_ptr() != at_positions:
            return None
        indices, y = x.new_empty(self.shape, dtype=torch.int32), x.new_zeros((batch, length, n_outputs))
        signs = x.new_empty((length - 1, n_detectors), dtype=torch.int32)
        if not self.plans or watched() or any(plan.launch.compiled is None for plan in self.plans):
            self._launch(x, weight, (indices, signs, y))
            return y
        to_detect, to_sign, to_fill = self.plans
        at_indices, at_signs = indices.data_ptr(), signs.data_ptr()
        inputs = (x.data_ptr(), at_anchors, None, None, None, None)
        to_detect.launch.again(inputs, (at_indices, *NOTHING), self.sizes, *to_detect.constants)
        to_sign.launch.again(at_positions, (at_signs, *NOTHING), signs.numel(), *to_sign.constants)
        numbers, steps = (length, n_detectors, n_outputs), (n_detectors, 1, n_detectors, 1)
        to_fill.launch.again(
            at_weight, (at_indices, at_signs), (y.data_ptr(), None, None), numbers, steps, *to_fill.constants
        )  # fmt: skip
        return y

    def _launch(self, x: Tensor, weight: Tensor, room: tuple[Tensor, Tensor, Tensor]) -> None:
        """The first time: by tensors, which Triton looks at."""
        indices, signs, y = room
        values = self.positions[: self.shape[1] - 1]
        sequence = Sequence(Detected(indices), Detected(signs), self.n_anchors, values.shape[2])
        compared = detect.launch(x, Inputs(x, self.anchors), Rows(indices), detect.compared(x, self.anchors), {})
        assert compared is not None  # a batch that is prepared for has rows
        signed = detect.launch_positions(values, Rows(signs))
        self.plans = (compared, signed, pairs.launch_fill(weight, sequence, Target(y), FLOAT))

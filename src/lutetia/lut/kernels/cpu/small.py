"""A small batch through a layer with a hard read, nothing kept: arrays are made once, and a call runs one loop."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.arrays import array_of
from lutetia._shared.threads import SMALLEST_SHARE
from lutetia.lut.kernels.cpu.plan import loop, plan_of, scale_of
from lutetia.lut.kernels.cpu.rows import check_anchors_fit, weight_array
from lutetia.lut.kernels.protocol import FLOAT, Connectivity

trains = False


def serves(x: Tensor, weight: Tensor, anchors: Tensor, connectivity: Connectivity) -> bool:
    """Whether x [B, I] is small enough for one thread and one loop."""
    plan = plan_of(connectivity)
    work = x.shape[0] * (2 * anchors.numel() + plan.n_synapses)
    return work < 2 * SMALLEST_SHARE


class Launches:
    """The arrays of one layer for one shape of x [B, I]."""

    def __init__(self, x: Tensor, weight: Tensor, anchors: Tensor, connectivity: Connectivity) -> None:
        plan, self.connectivity = plan_of(connectivity), connectivity
        check_anchors_fit(anchors, plan)
        self.y_shape = (x.shape[0], plan.n_outputs)
        self.arrays = (weight_array(weight, plan), plan.arrays)
        self.pairs, self.scale, self.run = array_of(anchors), scale_of(FLOAT), loop("rows", "evaluate")

    def fill(self, x: Tensor, weight: Tensor, found: None) -> Tensor | None:
        """x [B, I] -> y [B, O]; None where anchors are out of range."""
        y = np.empty(self.y_shape, np.float32)
        rows = (x.detach() if x.requires_grad else x).numpy()
        failed = self.run((rows, self.pairs), *self.arrays, y, self.scale, 0, self.y_shape[0])
        return None if failed else torch.from_numpy(y)

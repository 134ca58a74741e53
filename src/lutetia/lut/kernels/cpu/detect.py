"""What detectors find, on the CPU, compiled; the primitives of a `Backend`. The loops are in `loops.detect`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.arrays import array_of, float_array_of, new_array
from lutetia._shared.threads import over
from lutetia.lut.connectivity.anchors import Comparisons, check_anchors
from lutetia.lut.kernels.cpu.plan import loop, raise_if
from lutetia.lut.kernels.protocol import Detected
from lutetia.lut.kernels.recorder import kernel, unrecorded
from lutetia.lut.kernels.reference.detect import detect_positions as detect_no_positions


@kernel
def detect(x: Tensor, comparisons: Comparisons, train: bool) -> Detected:
    """x [..., I] -> `Detected` [..., N_t]."""
    rows, pairs, constants = compared(x, comparisons)
    shape, columns = (*x.shape[:-1], len(pairs)), (len(rows), len(pairs))
    indices = np.empty(shape, np.int32)
    margins = (new_array(shape, x), np.empty(shape, np.int32)) if train else ()
    closest = tuple(array.reshape(columns) for array in margins) or None
    arrays = ((rows, pairs, constants), indices.view(np.uint32).reshape(columns), closest)
    raise_if(over(len(rows), 2 * len(rows) * pairs.size, loop("detect", "detect"), *arrays))
    return Detected(*map(torch.from_numpy, (indices, *margins)))


@kernel
def detect_positions(positions: Tensor, train: bool) -> Detected:
    """positions [S-1, N_t, N_pe] -> `Detected` [S-1, N_t]."""
    n_pe = positions.shape[-1]
    if n_pe == 0:
        return unrecorded(detect_no_positions)(positions, train)
    # A position is compared with zero: one detector, whose anchors are the positions and a zero beside them.
    anchors = torch.tensor([[(r, n_pe) for r in range(n_pe)]], dtype=torch.int32)
    padded = torch.nn.functional.pad(positions.detach(), (0, 1))
    found = unrecorded(detect)(padded, Comparisons(anchors), train)
    return Detected(*(each.squeeze(-1) for each in found if each is not None))


def compared(x: Tensor, comparisons: Comparisons) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """x [..., I] as rows [n, I], and what is compared in them: anchors as from `anchor_array`, and thresholds [n] or None."""
    n_inputs, thresholds = x.shape[-1], comparisons.thresholds
    constants = None if thresholds is None else array_of(thresholds)
    pairs = anchor_array(comparisons.anchors, n_inputs, 0 if constants is None else len(constants))
    return float_array_of(x).reshape(-1, n_inputs), pairs, constants


def anchor_array(anchors: Tensor, n_inputs: int, n_thresholds: int = 0) -> np.ndarray:
    """anchors [N_t, N_c, 2] as unsigned integers, checked to name an input, or one of this many thresholds.

    Checked in every call: `.data` or `.numpy()` may have changed them, and a loop would read or write out of bounds.
    """
    pairs = array_of(anchors)
    if loop("detect", "anchors_outside")(pairs, n_inputs, n_inputs + n_thresholds):
        check_anchors(anchors, n_inputs, n_thresholds)
    return pairs

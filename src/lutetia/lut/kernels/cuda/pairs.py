"""The gradient of LUT attention's tables on CUDA, each table row written once."""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia._shared import nvrtc
from lutetia.lut.kernels.cuda import SOURCES
from lutetia.lut.kernels.protocol import Sequence
from lutetia.lut.kernels.triton.source.rows import Sorted

THREADS, SORT_THREADS = 256, 1024
BLOCKS = 4  # that gather on one multiprocessor
MOST_PLACES = 128  # at a time: the number of one is a byte
MOST_PAIRS = 2**16


def fits(grad: Tensor, sequence: Sequence, out: Tensor) -> bool:
    """Whether the kernel takes tables of this size: grad [B, S, O], out [N_t, R, O]."""
    _, length, width = grad.shape
    if grad.dtype == torch.float64 or out.dtype != torch.float32 or not 0 < width <= 64 or width % 8 or out.data_ptr() % 16:
        return False
    if not 1 < length <= MOST_PAIRS or sequence.n_anchors > 12:
        return False
    return _shared(length, width, sequence) <= nvrtc.limits().shared


def _shared(length: int, width: int, sequence: Sequence) -> int:
    """Bytes that a block of `gather` shares."""
    places = min(MOST_PLACES, MOST_PAIRS // (length - 1))
    return 4 * places * width + 8 * sequence.n_cells + 2 * length + places * (length - 1)


def in_order(indices: Tensor, sequence: Sequence) -> Sorted:
    """The places of each detector by their Q: indices by detector, [B, N_t, S]."""
    batch, n_detectors, length = indices.shape
    n_places, n_q = batch * length, 1 << sequence.n_anchors
    ends, counts = indices.new_empty(2, n_detectors, n_q)
    places = Sorted(indices.new_empty(n_detectors, n_places), ends, counts)
    sizes = (("ADD", 0), ("CELLS", 1), ("N_PE", 0), ("PLACES", 1), ("W", 8), ("THREADS", SORT_THREADS), ("BLOCKS", 1))
    run = nvrtc.kernel(SOURCES / "pairs.cu", "sort_places", sizes, (SORT_THREADS, 8 * n_q), indices.device.index)
    run((n_detectors, 1, 1), indices, places.order, ends, counts, length, n_places, n_q)
    return places


def gather(
    grad: Tensor, sequence: Sequence, by_detector: tuple[Tensor, Tensor], order: Sorted, step: tuple[Tensor, float, bool]
) -> None:
    """out = (or, with `add`, +=) scale · dW: grad [B, S, O]; indices [B, N_t, S] and PE indices [N_t, S-1]; places by their Q.

    `step` is out [N_t, R, O], the scale, and whether to add.
    """
    (batch, length, width), (out, scale, add) = grad.shape, step
    places = min(MOST_PLACES, MOST_PAIRS // (length - 1))
    sizes = {"ADD": int(add), "CELLS": sequence.n_cells, "N_PE": sequence.positional_dim, "PLACES": places, "W": width}
    sizes |= {"THREADS": THREADS, "BLOCKS": BLOCKS}
    run = nvrtc.kernel(
        SOURCES / "pairs.cu", "gather_pairs", tuple(sizes.items()), (THREADS, _shared(length, width, sequence)), grad.device.index
    )
    tensors = (grad.float().contiguous(), *by_detector, order.order, order.end, order.count, out)
    run((1 << sequence.n_anchors, by_detector[0].shape[1], 1), *tensors, float(scale), length, batch * length)

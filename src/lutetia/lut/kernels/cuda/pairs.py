"""The gradients of LUT attention on CUDA: of its tables, each row written once, and of inputs and positions."""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia._shared import nvrtc
from lutetia._shared.triton_order import Sorted
from lutetia.lut.kernels.cuda import SOURCES
from lutetia.lut.kernels.protocol import Detected, Sequence

SOURCE, SLOPES_SOURCE = SOURCES / "pairs.cu", SOURCES / "slopes.cu"
THREADS, SORT_THREADS = 256, 1024
BLOCKS = 5  # that gather on one multiprocessor
MOST_PLACES = 128  # at a time: the number of one is a byte
MOST_PAIRS = 2**16
WHOLE, RUN = 64, 32  # positions of a sequence that one block takes whole; of a longer one, those of a block
SLOPES_THREADS = 256
SHORT, LONG = (1, 4), (2, 3)  # STEPS and BLOCKS of `slopes`, for such sequences: more rows on their way, or more blocks


def fits(grad: Tensor, sequence: Sequence, out: Tensor) -> bool:
    """Whether the kernel takes tables of this size: grad [B, S, O], out [N_t, R, O]."""
    _, length, width = grad.shape
    if grad.dtype == torch.float64 or out.dtype != torch.float32 or not 0 < width <= 64 or width % 8 or out.data_ptr() % 16:
        return False
    if not 1 < length <= MOST_PAIRS or sequence.n_anchors > 12:
        return False
    return _shared(length, width, sequence, add=True) <= nvrtc.limits().shared


def _shared(length: int, width: int, sequence: Sequence, add: bool) -> int:
    """Bytes that a block of `gather` shares, and 4 that it declares."""
    places = min(MOST_PLACES, MOST_PAIRS // (length - 1))
    return 4 * places * width + (10 if add else 8) * sequence.n_cells + 2 * length + places * (length - 1) + 4


def in_order(indices: Tensor, sequence: Sequence) -> Sorted:
    """The places of each detector by their Q: indices by detector, [B, N_t, S]."""
    batch, n_detectors, length = indices.shape
    n_places, n_q = batch * length, 1 << sequence.n_anchors
    ends, counts = indices.new_empty(2, n_detectors, n_q)
    places = Sorted(indices.new_empty(n_detectors, n_places), ends, counts)
    sizes = (("ADD", 0), ("CELLS", 1), ("N_PE", 0), ("PLACES", 1), ("W", 8), ("THREADS", SORT_THREADS), ("BLOCKS", 1))
    run = nvrtc.kernel(SOURCE, "sort_places", sizes, (SORT_THREADS, 8 * n_q), indices.device.index)
    run((n_detectors, 1, 1), indices, places.order, ends, counts, length, n_places, n_q)
    return places


def gather(grad: Tensor, sequence: Sequence, indices: Tensor, order: Sorted, step: tuple[Tensor, float, bool]) -> None:
    """out = (or, with `add`, +=) scale · dW: grad [B, S, O]; indices by detector, [B, N_t, S]; places by their Q.

    `step` is out [N_t, R, O], the scale, and whether to add.
    """
    (batch, length, width), (out, scale, add) = grad.shape, step
    places = min(MOST_PLACES, MOST_PAIRS // (length - 1))
    sizes = {"ADD": int(add), "CELLS": sequence.n_cells, "N_PE": sequence.positional_dim, "PLACES": places, "W": width}
    sizes |= {"THREADS": THREADS, "BLOCKS": BLOCKS}
    launch = (THREADS, _shared(length, width, sequence, add))
    run = nvrtc.kernel(SOURCE, "gather_pairs", tuple(sizes.items()), launch, grad.device.index)
    distances = sequence.positions.indices.contiguous()
    tensors = (grad.float().contiguous(), indices, distances, order.order, order.end, order.count, out)
    run((1 << sequence.n_anchors, indices.shape[1], 1), *tensors, float(scale), length, batch * length)


def slopes_fit(grad: Tensor, weight: Tensor, sequence: Sequence) -> bool:
    """Whether `slopes` takes tables of this size: grad [B, S, O], weight [N_t, R, O]."""
    length, width = grad.shape[1:]
    if weight.dtype != torch.float32 or grad.dtype == torch.float64 or not 0 < width <= 64 or width % 8:
        return False
    if any(found.closest[0].dtype != torch.float32 for found in (sequence.x, sequence.positions)):
        return False
    if weight.data_ptr() % 16 or weight[0].numel() >= 2**31 or len(weight) >= 2**16:
        return False
    return max(sequence.n_anchors, sequence.positional_dim) <= 15 and _shared_slopes(length) <= nvrtc.limits().shared // 2


def _shared_slopes(length: int) -> int:
    """Bytes that a block of `slopes` shares."""
    return 4 * length * (4 + 2 * SLOPES_THREADS // 32)


def slopes(
    grad: Tensor, weight: Tensor, sequence: Sequence, anchors: Tensor, n_inputs: int
) -> tuple[Tensor | None, Tensor, Tensor]:
    """grad [B, S, O], weight [N_t, R, O] -> None, dx [B, S, I] and dpositions [S-1, N_t, N_pe].

    The slopes of a long sequence, [B, N_t, S], come in place of None, and dx is still zero.
    """
    (batch, length, width), n_detectors = grad.shape, weight.shape[0]
    run = length if length <= WHOLE else RUN
    runs = -(-length // run)
    dx = grad.new_zeros(batch, length, n_inputs, dtype=torch.float32)
    totals = grad.new_zeros(batch, n_detectors, length, dtype=torch.float32) if runs > 1 else None
    dpositions = grad.new_zeros(length - 1, n_detectors, sequence.positional_dim, dtype=torch.float32)
    steps, blocks = SHORT if runs == 1 else LONG
    sizes = {"N_C": sequence.n_anchors, "N_PE": sequence.positional_dim, "W": width}
    sizes |= {"THREADS": SLOPES_THREADS, "STEPS": steps, "BLOCKS": blocks}
    launch = (SLOPES_THREADS, _shared_slopes(length))
    run_kernel = nvrtc.kernel(SLOPES_SOURCE, "slopes_of_pairs", tuple(sizes.items()), launch, grad.device.index)
    found = (*_three(sequence.x), *_three(sequence.positions))
    tensors = (grad.float().contiguous(), weight, *found, anchors, totals, dx, dpositions)
    run_kernel((batch * runs, n_detectors, 1), *tensors, length, n_detectors, n_inputs, run)
    return totals, dx, dpositions


def _three(found: Detected) -> tuple[Tensor, ...]:
    return (found.indices.contiguous(), *(each.contiguous() for each in found.closest))

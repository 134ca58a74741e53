"""CUDA C++ for what Triton cannot express, compiled at run time; the Triton kernels are the definition and the fallback.

What detectors find in a large batch is kept *by detector*: tensors [B, N_t] with strides (1, B), which these kernels read and
write row by row of the batch. Only shapes decide it, so that a compiler, which has no data, can tell, too.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from lutetia._shared import nvrtc

SOURCES = Path(__file__).parent
LEAST_BATCH, LEAST_READS = 2048, 2**21  # rows of a batch, and rows times detectors; below, the Triton kernels are as fast
LEAST_ROWS = 2**14  # rows of a batch times blocks of tables: fewer would leave most multiprocessors without work
MOST_ANCHORS = 12


def keeps_by_detector(x: Tensor, anchors: Tensor, exact: bool, thresholds: Tensor | None) -> bool:
    """Whether what detectors find in x [B, I] for a soft read is kept by detector."""
    if not x.is_cuda or exact or thresholds is not None or x.dtype == torch.float64 or anchors.shape[1] > MOST_ANCHORS:
        return False
    return x.shape[0] >= LEAST_BATCH and x.shape[0] * anchors.shape[0] >= LEAST_READS and available()


def keeps_hard_by_detector(
    x: Tensor, anchors: Tensor, tables: tuple[Tensor, int], exact: bool, thresholds: Tensor | None
) -> bool:
    """The same for the hard read, which Triton reads and adds up at once: only where tables pass through shared memory.

    `tables` are the weight and the number of outputs.
    """
    weight, n_outputs = tables
    if not keeps_by_detector(x, anchors, exact, thresholds) or weight.dtype == torch.float64:
        return False
    width, rest = divmod(weight.numel(), anchors.shape[0] << anchors.shape[1])
    if rest or not is_narrow(width, 1 << anchors.shape[1]):
        return False
    return x.shape[0] * (n_outputs // width) >= LEAST_ROWS


def is_narrow(width: int, n_rows: int) -> bool:
    """Whether two tables of [n_rows, width] fit in shared memory, and their rows in the registers of eight lanes."""
    return 0 < width <= 64 and width % 8 == 0 and 8 * n_rows * width <= nvrtc.limits().shared


def is_by_detector(tensor: Tensor) -> bool:
    """Whether a tensor [B, N_t] lies in memory as [N_t, B]."""
    return tensor.dim() == 2 and tensor.stride() == (1, tensor.shape[0]) and not tensor.is_contiguous()


def like(tensor: Tensor, by_detector: bool) -> Tensor:
    """The tensor [B, N_t], by detector or by row."""
    if by_detector:
        return tensor.t().contiguous().t()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


@cache
def available() -> bool:
    """Whether these kernels can be compiled and launched here: capability 8 has asynchronous copies to shared memory."""
    return nvrtc.available(SOURCES / "trial.cu", (8, 0), "large LUT layers run on slower Triton kernels")

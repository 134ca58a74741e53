"""What detectors find, on CUDA; the sources are in `source.detect`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lutetia._shared.launches import Planned, planned
from lutetia._shared.numbers import cdiv, next_power_of_2
from lutetia._shared.triton_order import transposed
from lutetia.lut.kernels.cuda import keeps_by_detector, tables
from lutetia.lut.kernels.protocol import READS, Coefficients, Comparisons, Detected, Read, Sums, sum_dtype
from lutetia.lut.kernels.recorder import kernel, unrecorded
from lutetia.lut.kernels.reference.detect import detect_positions as detect_no_positions
from lutetia.lut.kernels.triton.launch import ACC
from lutetia.lut.kernels.triton.source import detect as source
from lutetia.lut.kernels.triton.source.basics import Inputs, ReadCase, Rows, Sizes


@kernel
def detect(x: Tensor, comparisons: Comparisons, train: bool) -> Detected:
    """x [..., I] -> `Detected` [..., N_t]."""
    anchors, thresholds = comparisons
    detected = room_for(x, (*x.shape[:-1], len(anchors)), train)
    launch(x, Inputs(x.contiguous(), anchors, thresholds=thresholds), Rows(*detected), compared(x, anchors), {})
    return detected


def room_for(x: Tensor, shape: tuple[int, ...], train: bool) -> Detected:
    """Uninitialised memory for `Detected`, of this shape."""
    indices = x.new_empty(shape, dtype=torch.int32)
    return Detected(indices, x.new_empty(shape, dtype=sum_dtype(x)), torch.empty_like(indices)) if train else Detected(indices)


@kernel
def read(x: Tensor, comparisons: Comparisons, read: Read, sums: Sums) -> tuple[Tensor, Coefficients]:
    """x [B, I] -> indices int32 and coefficients, [B, N_t] each."""
    anchors, thresholds = comparisons
    windows = windows_for(x, comparisons, sums) if read.name != "hard" else None
    if windows is not None:
        return tables.read(x, anchors, windows, read)
    shape, dtype, count = (x.shape[0], anchors.shape[0]), sum_dtype(x), 1 if read.name == "confidence" else 2
    indices, *others = (x.new_empty(shape, dtype=torch.int32) for _ in range(count))
    coefficients = Coefficients(*(x.new_empty(shape, dtype=dtype) for _ in range(count)), *others)
    case = compared(x, anchors, read.name, sums, count)
    rows = Rows(indices, None, None, *coefficients)
    inputs = Inputs(x.contiguous(), anchors, *read.logs, thresholds)
    launch(x, inputs, rows, case, {"enable_fp_fusion": not sums.exact})
    return indices, coefficients


def windows_for(x: Tensor, comparisons: Comparisons, sums: Sums) -> tables.Windows | None:
    """The windows of the anchors where CUDA kernels read this batch, else None."""
    anchors, thresholds = comparisons
    if not keeps_by_detector(x, anchors, sums.exact, thresholds):
        return None
    return tables.windows_of(anchors, x.shape[1])


def launch(
    x: Tensor, inputs: Inputs, rows: Rows, case: ReadCase, options: dict[str, Any], length: int | None = None
) -> Planned | None:
    """Compare x [..., I] into rows [..., N_t], or sequences of this length into [B, N_t, S]; what was launched, if any was."""
    n_detectors = inputs.anchors.shape[0]
    if not rows.indices.numel():
        return None
    block_t = tile_of(case, n_detectors)
    return planned(source.detect_kernel, (rows.indices.numel() // n_detectors, cdiv(n_detectors, block_t)))(
        inputs, rows, Sizes(x.shape[-1], n_detectors), length, READ=case, BLOCK_T=block_t, num_warps=1, **options
    )


def compared(x: Tensor, anchors: Tensor, read: str = "hard", sums: Sums = Sums(), coefficients: int = 0) -> ReadCase:  # noqa: B008
    """How these inputs are compared."""
    n_c, acc = anchors.shape[1], ACC[sum_dtype(x)]
    return ReadCase(READS.index(read), coefficients, n_c, next_power_of_2(n_c), acc, ACC[torch.float64] if sums.exact else acc)


def tile_of(case: ReadCase, n_detectors: int) -> int:
    """How many detectors one program compares."""
    return min(next_power_of_2(n_detectors), max(1, 256 // case.N_C_PADDED))


def detect_columns(x: Tensor, comparisons: Comparisons) -> Tensor:
    """x [B, I] -> indices [B, N_t], stored by detector: faster for large batches."""
    anchors, thresholds = comparisons
    batch, n_detectors = x.shape[0], anchors.shape[0]
    index = x.new_empty(n_detectors, batch, dtype=torch.int32)
    block_t = min(16, next_power_of_2(n_detectors))
    planned(source.detect_columns_kernel, (cdiv(batch, 128),))(
        Inputs(transposed(x), anchors, thresholds=thresholds), index, (batch, x.shape[1], n_detectors),
        READ=compared(x, anchors), BLOCK_T=block_t, BLOCK_B=128, num_warps=block_t,
    )  # fmt: skip
    return index.t()


@kernel
def detect_positions(positions: Tensor, train: bool) -> Detected:
    """positions [S-1, N_t, N_pe] -> `Detected` [S-1, N_t]."""
    if not positions.numel():
        return unrecorded(detect_no_positions)(positions, train)
    values = positions.to(sum_dtype(positions)).contiguous()
    detected = room_for(values, positions.shape[:-1], train)
    launch_positions(values, Rows(*detected))
    return detected


def launch_positions(values: Tensor, rows: Rows, turned: bool = False) -> Planned:
    """values [S-1, N_t, N_pe], of which there are some, into rows [S-1, N_t], or turned, [N_t, S-1]; what was launched."""
    n_signs, positional_dim = rows.indices.numel(), values.shape[-1]
    padded = next_power_of_2(positional_dim)
    block = max(1, 512 // padded)
    return planned(source.detect_positions_kernel, (cdiv(n_signs, block),))(
        values, rows, n_signs, values.shape[1] if turned else None, N_PE=positional_dim, N_PE_PADDED=padded, BLOCK=block
    )

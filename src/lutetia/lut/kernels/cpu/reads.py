"""Reads on the CPU, forward and backward, compiled; the primitives of a `Backend`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.arrays import array_of, new_array
from lutetia._shared.threads import over
from lutetia.errors import check_tensor
from lutetia.lut.kernels.cpu.detect import compared
from lutetia.lut.kernels.cpu.plan import loop, raise_if, scale_of
from lutetia.lut.kernels.protocol import READS, Coefficients, Comparisons, Read, Sums, sum_dtype
from lutetia.lut.kernels.recorder import kernel

WORK = {"hard": 2, "blend": 2, "confidence": 10, "confidence2": 10}  # additions of a pair, roughly: an exponential takes twenty


@kernel
def read(x: Tensor, comparisons: Comparisons, read: Read, sums: Sums) -> tuple[Tensor, Coefficients]:
    """x [B, I] -> indices int32 and coefficients, [B, N_t] each."""
    rows, pairs, constants = _compared(x, comparisons)
    shapes = ((len(rows), len(pairs)), (0, 0) if read.name == "confidence" else (len(rows), len(pairs)))
    rows_read = [(np.empty(shape, np.int32), np.empty(shape, rows.dtype)) for shape in shapes]
    unsigned = tuple((indices.view(np.uint32), factors) for indices, factors in rows_read)
    arrays = ((rows, pairs, constants), _how(read, sums, rows.dtype), unsigned)
    raise_if(over(len(rows), len(rows) * pairs.size * WORK[read.name], loop("reads", "read"), *arrays))
    (indices, a), (others, b) = [tuple(map(torch.from_numpy, each)) for each in rows_read]
    return indices, Coefficients(a) if read.name == "confidence" else Coefficients(a, b, others)


def _how(read: Read, sums: Sums, dtype: np.dtype[Any]) -> tuple[np.ndarray, int]:
    """β, γ, τ as an array [3], 1 where there is none, in the dtype of the arithmetic; and the number of the read."""
    logs = [0.0 if log is None else float(log) for log in read.logs]
    return np.exp(np.array(logs, np.float64 if sums.exact else dtype)), READS.index(read.name)


def _compared(x: Tensor, comparisons: Comparisons) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is compared, as these loops take it: without thresholds there are 0 of them."""
    rows, pairs, constants = compared(x, comparisons)
    return rows, pairs, np.empty(0, rows.dtype) if constants is None else constants


@kernel
def send_slopes(
    x: Tensor, comparisons: Comparisons, read: Read, gains: tuple[Tensor, Tensor | None], sums: Sums, to_x: bool
) -> tuple[Tensor | None, Tensor]:
    """The gradients of a and b, [B, N_t] each -> dx [B, I] (None unless `to_x`), and of log β, log γ, log τ: [3]."""
    (rows, pairs, constants), (da, db) = _compared(x, comparisons), gains
    n = len(rows)
    check_tensor("da", da, [n, len(pairs)])
    if db is not None:
        check_tensor("db", db, [n, len(pairs)])
    to_a = array_of(da.to(sum_dtype(da)))
    to_b = to_a[:0] if read.name == "confidence" or db is None else array_of(db.to(sum_dtype(da)))
    dx, learned = new_array(rows.shape if to_x else (0, 0), x), np.empty((3, n), np.int64 if sums.exact else np.float64)
    arrays = ((rows, pairs, constants), _how(read, sums, rows.dtype), (to_a, to_b), (dx, learned), scale_of(sums))
    raise_if(over(n, 3 * n * pairs.size * WORK[read.name], loop("reads", "propagate_reads"), *arrays), sums)
    units = sums.scale if sums.exact else 1.0
    return torch.from_numpy(dx) if to_x else None, torch.from_numpy(learned.sum(1) / units).to(sum_dtype(x))

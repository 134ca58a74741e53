"""Which row each detector reads, and which comparison nearly made it another; in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia.lut.kernels.protocol import Comparisons, Detected, sum_dtype
from lutetia.lut.kernels.recorder import kernel


@kernel
def detect(x: Tensor, comparisons: Comparisons, train: bool) -> Detected:
    """x [..., I] -> `Detected` [..., N_t]; with `train` all three, else only the indices."""
    return signs(anchor_deltas(x, comparisons), train)


@kernel
def detect_positions(positions: Tensor, train: bool) -> Detected:
    """positions [S-1, N_t, N_pe] -> `Detected` [S-1, N_t]; without positional bits the closest call is infinitely far."""
    values = positions.to(sum_dtype(positions))
    if positions.shape[-1]:
        return signs(values, train)
    nothing = values.new_zeros(values.shape[:-1], dtype=torch.int32)
    far = torch.full_like(nothing, float("inf"), dtype=values.dtype)
    return Detected(nothing, far, torch.zeros_like(nothing)) if train else Detected(nothing)


def signs(margins: Tensor, train: bool) -> Detected:
    """margins [..., N] -> the signs as bits, the margin closest to zero (the first of equals) and its bit, [...] each."""
    indices = pack_bits(margins > 0)
    if not train:
        return Detected(indices)
    which = margins.abs().argmin(-1, keepdim=True)
    return Detected(indices, margins.gather(-1, which).squeeze(-1), which.squeeze(-1).int())


def anchor_deltas(x: Tensor, comparisons: Comparisons) -> Tensor:
    """u = x[a] - x[b], or x[a] - thresholds[b - I] where b >= I: x [..., I] -> [..., N_t, N_c]."""
    anchors, thresholds = comparisons
    x, n_inputs = x.to(sum_dtype(x)), x.shape[-1]
    a, b = anchors.long().unbind(-1)
    if thresholds is None or not len(thresholds):
        return x[..., a] - x[..., b]
    other = torch.where(b < n_inputs, x[..., b.clamp(max=n_inputs - 1)], thresholds.to(x.dtype)[(b - n_inputs).clamp(min=0)])
    return x[..., a] - other


def pack_bits(bits: Tensor) -> Tensor:
    """Σ bit_r << r: bool [..., N] -> int32 [...]."""
    powers = 1 << torch.arange(bits.shape[-1], device=bits.device)
    return (bits * powers).sum(-1).int()

"""Small, plain layers as kernels that a compiled graph launches itself; the sources are in `source.plain`.

A graph that calls an op goes through torch's dispatcher and our Python, which takes longer than a launch of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia._shared.numbers import cdiv, next_power_of_2
from lutetia.lut.connectivity.full import full
from lutetia.lut.kernels.protocol import FLOAT
from lutetia.lut.kernels.triton.layout import layout_of
from lutetia.lut.kernels.triton.rows import clears_rows, fill_blocks, gains_blocks
from lutetia.lut.kernels.triton.source import plain as source

BLOCK_B = 8  # rows of a batch from which one program adds up gradients


def fill(x: Tensor, weight: Tensor, anchors: Tensor) -> Tensor:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O]."""
    (batch, n_inputs), (n_detectors, n_anchors, _), n_outputs = x.shape, anchors.shape, weight.shape[2]
    y, (block_t, block_o) = x.new_empty(batch, n_outputs), fill_blocks(layout_of(full(*weight.shape)))
    torch.library.wrap_triton(source.plain_fill_kernel)[batch, cdiv(n_outputs, block_o)](
        x.contiguous(), weight.contiguous(), anchors.contiguous(), y, N_I=n_inputs, N_T=n_detectors, N_C=n_anchors, N_O=n_outputs,
        BLOCK_T=block_t, BLOCK_C=next_power_of_2(n_anchors), BLOCK_O=block_o, num_warps=1,
    )  # fmt: skip
    return y


def gradients(grad: Tensor, x: Tensor, weight: Tensor, anchors: Tensor, to_x: bool) -> tuple[Tensor, Tensor]:
    """grad [B, O], x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> dx [B, I], empty unless to_x, and dW."""
    (batch, n_inputs), (n_detectors, n_anchors, _), n_outputs = x.shape, anchors.shape, weight.shape[2]
    layout, grad = layout_of(full(*weight.shape)), grad.contiguous()
    alone, (block_t, block_o) = clears_rows(layout, FLOAT), gains_blocks(layout)
    dx = x.new_empty(x.shape if to_x else 0) if alone or not to_x else x.new_zeros(x.shape)
    dw, indices = weight.new_empty(weight.shape), x.new_empty(batch, n_detectors, dtype=torch.int32)
    torch.library.wrap_triton(source.plain_gains_kernel)[batch, cdiv(n_detectors, block_t)](
        grad, x.contiguous(), weight.contiguous(), anchors.contiguous(), indices, dx if to_x else grad, dw, dw.numel(),
        N_I=n_inputs, N_T=n_detectors, N_C=n_anchors, N_O=n_outputs,
        TO_X=to_x, ALONE=alone, BLOCK_T=block_t, BLOCK_C=next_power_of_2(n_anchors), BLOCK_O=block_o, num_warps=1,
    )  # fmt: skip
    block_t = min(16, next_power_of_2(n_detectors))
    torch.library.wrap_triton(source.plain_scatter_kernel)[cdiv(batch, BLOCK_B), cdiv(n_detectors, block_t)](
        grad, indices, dw, batch, N_T=n_detectors, N_C=n_anchors, N_O=n_outputs,
        BLOCK_B=BLOCK_B, BLOCK_T=block_t, BLOCK_O=next_power_of_2(n_outputs), num_warps=1,
    )  # fmt: skip
    return dx, dw

"""Small, plain layers as kernels that a compiled graph launches itself; the sources are in `source.plain`.

A graph that calls an op goes through torch's dispatcher and our Python, which takes longer than a launch of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia._shared.numbers import cdiv, next_power_of_2
from lutetia.lut.connectivity.full import full
from lutetia.lut.kernels.triton.layout import layout_of
from lutetia.lut.kernels.triton.rows import fill_blocks
from lutetia.lut.kernels.triton.source import plain as source

BLOCK_B = 4  # rows of a batch from which one program adds up gradients
FEW = 16  # detectors, at most, that one program has


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
    block_t, warps = (next_power_of_2(n_detectors), 2) if n_detectors <= FEW else (FEW // 2, 1)
    dx = x.new_zeros(x.shape) if to_x and n_detectors > FEW else x.new_empty(x.shape if to_x else 0)
    grad, dw = grad.contiguous(), weight.new_zeros(weight.shape)  # by a graph, whose own launches cost less than those of others
    torch.library.wrap_triton(source.plain_gradients_kernel)[cdiv(batch, BLOCK_B), cdiv(n_detectors, block_t)](
        grad, x.contiguous(), weight.contiguous(), anchors.contiguous(), dx if to_x else grad, dw, batch,
        N_I=n_inputs, N_T=n_detectors, N_C=n_anchors, N_O=n_outputs, TO_X=to_x, ALONE=n_detectors <= FEW,
        BLOCK_B=BLOCK_B, BLOCK_T=block_t, BLOCK_C=next_power_of_2(n_anchors), BLOCK_O=min(32, next_power_of_2(n_outputs)),
        num_warps=warps,
    )  # fmt: skip
    return dx, dw

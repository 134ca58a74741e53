"""Small, plain layers in compiled graphs: one kernel forward, one backward; the sources are in `source.plain`.

Backward, the comparisons are made again: a graph takes longer to keep a tensor than a kernel to compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from torch import Tensor

from lutetia._shared.launches import planned
from lutetia._shared.numbers import cdiv, next_power_of_2
from lutetia.lut.connectivity.full import full
from lutetia.lut.kernels.protocol import FEW, STACKED
from lutetia.lut.kernels.triton.layout import layout_of
from lutetia.lut.kernels.triton.rows import fill_blocks
from lutetia.lut.kernels.triton.source import plain as source

BLOCK_B = 4  # rows of a batch from which one program adds up gradients
Layers = Sequence[tuple[Tensor, Tensor]]  # weight and anchors of each


def fill(x: Tensor, weight: Tensor, anchors: Tensor) -> Tensor:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O]."""
    (batch, n_inputs), (n_detectors, n_anchors, _), n_outputs = x.shape, anchors.shape, weight.shape[2]
    y, (block_t, block_o) = x.new_empty(batch, n_outputs), fill_blocks(layout_of(full(*weight.shape)))
    planned(source.plain_fill_kernel, (batch, cdiv(n_outputs, block_o)))(
        x.contiguous(), weight.contiguous(), anchors.contiguous(), y, N_I=n_inputs, N_T=n_detectors, N_C=n_anchors, N_O=n_outputs,
        BLOCK_T=block_t, BLOCK_C=next_power_of_2(n_anchors), BLOCK_O=block_o, num_warps=1,
    )  # fmt: skip
    return y


def gradients(grad: Tensor, x: Tensor, weight: Tensor, anchors: Tensor, to_x: bool) -> tuple[Tensor, Tensor]:
    """grad [B, O], x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> dx [B, I], empty unless to_x, and dW."""
    (batch, n_inputs), (n_detectors, n_anchors, _), n_outputs = x.shape, anchors.shape, weight.shape[2]
    block_t, warps = (next_power_of_2(n_detectors), 2) if n_detectors <= FEW else (FEW // 2, 1)
    dx = x.new_zeros(x.shape) if to_x and n_detectors > FEW else x.new_empty(x.shape if to_x else 0)
    grad, dw = grad.contiguous(), weight.new_zeros(weight.shape)
    planned(source.plain_gradients_kernel, (cdiv(batch, BLOCK_B), cdiv(n_detectors, block_t)))(
        grad, x.contiguous(), weight.contiguous(), anchors.contiguous(), dx if to_x else grad, dw, batch,
        N_I=n_inputs, N_T=n_detectors, N_C=n_anchors, N_O=n_outputs, TO_X=to_x, ALONE=n_detectors <= FEW,
        BLOCK_B=BLOCK_B, BLOCK_T=block_t, BLOCK_C=next_power_of_2(n_anchors), BLOCK_O=min(32, next_power_of_2(n_outputs)),
        num_warps=warps,
    )  # fmt: skip
    return dx, dw


# ---- stacks: layers that follow each other ---------------------------------------------------------------------------


def fill_stack(x: Tensor, layers: Layers) -> Tensor:
    """x [B, I], two to four layers -> y [B, O] of the last."""
    ys = [x.new_empty(x.shape[0], weight.shape[2]) for weight, _ in layers]
    sizes, widest = _stack_sizes(x, layers)
    planned(source.stack_fill_kernel, (x.shape[0],))(
        x.contiguous(), *_stack_pointers(x, layers), *_padded(ys, x), **sizes, BLOCK_O=widest, num_warps=1
    )
    return ys[-1]


def stack_gradients(grad: Tensor, x: Tensor, layers: Layers, to_x: bool) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """grad [B, O] of the last layer's y, x [B, I], two to four layers -> dx [B, I], empty unless to_x; dy of the layers before
    the last; dW of all."""
    dx, dws = x.new_empty(x.shape if to_x else 0), [weight.new_zeros(weight.shape) for weight, _ in layers]
    ys, dys = ([x.new_empty(x.shape[0], weight.shape[2]) for weight, _ in layers[:-1]] for _ in range(2))
    (sizes, widest), grad = _stack_sizes(x, layers), grad.contiguous()
    before = chain(_padded(ys, grad, STACKED - 1), _padded(dys, grad, STACKED - 1))
    planned(source.stack_gradients_kernel, (cdiv(x.shape[0], BLOCK_B),))(
        grad, x.contiguous(), *_stack_pointers(x, layers), *before, dx if to_x else grad, *_padded(dws, grad), x.shape[0],
        **sizes, TO_X=to_x, BLOCK_B=BLOCK_B, BLOCK_O=min(32, widest), ALL_O=widest, num_warps=2,
    )  # fmt: skip
    return dx, dys, dws


def _padded(tensors: Sequence[Tensor], other: Tensor, number: int = STACKED) -> list[Tensor]:
    """As many tensors as a kernel takes; it does not touch the others."""
    return [*tensors, *[other] * (number - len(tensors))]


def _stack_pointers(x: Tensor, layers: Layers) -> list[Tensor]:
    return [tensor for each in zip(*layers, strict=True) for tensor in _padded([part.contiguous() for part in each], x)]


def _stack_sizes(x: Tensor, layers: Layers) -> tuple[dict[str, int], int]:
    """The sizes that both kernels take, and the widest output, as a power of two."""
    sizes = {"LAYERS": len(layers), "N_I": x.shape[1]}
    for number in range(1, STACKED + 1):
        weight, anchors = layers[min(number, len(layers)) - 1]
        sizes |= {f"T_{number}": anchors.shape[0], f"C_{number}": anchors.shape[1], f"O_{number}": weight.shape[2]}
    sizes["BLOCK_T"] = next_power_of_2(max(len(anchors) for _, anchors in layers))
    sizes["BLOCK_C"] = next_power_of_2(max(anchors.shape[1] for _, anchors in layers))
    return sizes, next_power_of_2(max(weight.shape[2] for weight, _ in layers))

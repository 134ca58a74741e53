"""How a call becomes ops in a compiled graph: those of an eager program, or where a layer is small, those of `small_layers`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import lutetia
from lutetia import flow
from lutetia._uncompiled import as_constant, is_exporting
from lutetia.lut.autograd.small_layers import SOURCE
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.lut.kernels import choice

WIDEST, MOST_ROWS, MOST_READS = 256, 2**14, 2**20  # outputs, rows of a batch, and these times detectors of a small layer
MOST_NUMBERS = 2**27  # these times outputs


def in_graph(x: Any, layer: tuple[Any, ...], meta: Any, n_inputs: int | None = None) -> Tensor | None:
    """y in a compiled graph, of a call with usual options and tensors that fit, else None; layer: weight, anchors and, if any,
    positions. A graph checks before each run all that was looked at to make it, and so this looks at little.
    """
    fits = isinstance(x, Tensor) and x.dim() > 1 and all(isinstance(each, Tensor) and each.dim() == 3 for each in layer)
    if not fits or x.shape[-1] != (n_inputs or x.shape[-1]):
        return None
    if choice.chosen or not isinstance(meta, SynapseMeta) or meta.lr_scale != 1.0:
        return None
    weight, anchors, *positions = layer
    for each in (x, weight, *positions):
        if each.dtype != torch.float32 or each.device != anchors.device or each.layout != anchors.layout:
            return None
    n_bits, name, rows = anchors.shape[1], "lut", x if x.dim() == 2 else x.flatten(0, -2)
    if positions:
        distances, n_owners, n_pe = positions[0].shape
        if x.dim() != 3 or (n_owners != 1 and n_owners != anchors.shape[0]) or not 1 <= x.shape[1] <= distances + 1:
            return None
        n_bits, name, rows = 2 * n_bits + n_pe, "lut_attention", x
    if weight.shape[:2] != (anchors.shape[0], 1 << as_constant(n_bits)) or anchors.dtype != torch.int32:
        return None
    learns = torch.is_grad_enabled() and any(each.requires_grad for each in (x, weight, *positions))
    is_layer = n_inputs is not None and len(layer) == 2  # torch 2.11 does not compile `not` of a tuple
    if is_layer and (weight.requires_grad or not learns) and is_small(rows, weight, anchors):  # dW is made with dx
        y = torch.ops.lutetia.lut_layer(rows, weight, anchors, SOURCE)
    elif positions and (x.requires_grad or positions[0].requires_grad) and learns and is_small_sequence(x, weight, anchors):
        y = torch.ops.lutetia.lut_attention_layer(x, *layer, SOURCE)
    elif learns:
        y = getattr(torch.ops.lutetia, name)(rows, *layer, None, None, None, "{}")[0]
    else:
        y = getattr(torch.ops.lutetia, f"{name}_eval")(rows, *layer, None, None, None, "{}")
    return y if y.dim() == x.dim() else y.view(*x.shape[:-1], y.shape[-1])


def is_small(x: Tensor, weight: Tensor, anchors: Tensor) -> bool:
    """Whether launches of a layer take longer than its kernels, on CUDA, and nothing looks at them; x [B, I]."""
    n_rows, n_reads = x.shape[0], x.shape[0] * anchors.shape[0]
    if not is_unseen(x) or not 0 < n_rows < MOST_ROWS or n_reads > MOST_READS or weight.shape[2] > WIDEST:
        return False
    return n_reads * weight.shape[2] <= MOST_NUMBERS and weight.numel() < 2**30


def is_small_sequence(x: Tensor, weight: Tensor, anchors: Tensor) -> bool:
    """The same of attention by lookup; x [B, S, I]."""
    batch, length, _ = x.shape
    return is_unseen(x) and 0 < batch * length * (length - 1) // 2 * anchors.shape[0] * weight.shape[2] <= MOST_NUMBERS


def is_unseen(x: Tensor) -> bool:
    """Whether x is on CUDA, and nobody wants to see what is launched."""
    return x.is_cuda and not lutetia.debug and not flow.recording() and not is_exporting()

"""Calls of small layers, where Python takes longer than the kernel: everything is checked and planned once.

What was prepared belongs to one weight and one shape of x, read hard, with a dense gradient. A capture prepares nothing: what it
is given may be memory that belongs to its graph.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

import lutetia
from lutetia import flow
from lutetia._shared.direct import PLAIN
from lutetia._shared.memo import trusted
from lutetia._shared.prepared import Prepared, keep, known, prepared_for
from lutetia.lut.algorithm import choose
from lutetia.lut.connectivity.anchors import is_captured
from lutetia.lut.kernels import choice
from lutetia.lut.kernels.protocol import FLOAT, Connectivity, Sums


def quick_for(x: Tensor, weight: Tensor, anchors: Tensor, mark: Any) -> Prepared | None:
    """The prepared launches for this call, if there are any and nothing observes the call.

    `mark` is the connectivity, or what stands for it: the meta of a full one, the first tensor of synapses.
    """
    return None if lutetia.debug or flow.recording() else prepared_for(x, weight, anchors, mark, choice.chosen)


def backend_of(x: Tensor) -> str:
    """The backend that prepares for tensors where x is."""
    return "triton" if x.is_cuda else "cpu" if x.is_cpu else ""


def prepare(x: Tensor, layer: tuple[Tensor, Tensor], connectivity: Connectivity, sums: Sums) -> None:
    """Prepare for calls like this one, where they are small and plain: x [B, I]; layer: weight and anchors."""
    weight, anchors = layer
    if x.dim() != 2 or sums != FLOAT or not x.dtype == weight.dtype == torch.float32 or anchors.is_inference():
        return
    before = known.get((id(weight), x.shape))
    if before is not None and before.is_for(layer, connectivity):
        return
    backend = backend_of(x)
    if not backend or is_captured(x) or choice.backend_name(x) != backend or type(weight) not in PLAIN or not x.shape[0]:
        return
    if weight.is_inference() or not all(each.is_contiguous() and each.data_ptr() % 16 == 0 for each in layer):
        return
    small = import_module(f"lutetia.lut.kernels.{backend}.small")
    if not small.serves(x, weight, anchors, connectivity):
        return
    quick = Prepared(small.Launches(x, weight, trusted(anchors), connectivity), layer, None, backend)
    keep(quick, x, weight, quick.launches.trains)


def prepare_attention(x: Tensor, layer: tuple[Tensor, Tensor], positions: Tensor) -> None:
    """The same for evaluating sequences x [B, S, I] by pairs, fully connected, on CUDA; what marks them are their positions."""
    weight, anchors = layer
    before = known.get((id(weight), x.shape))
    if before is not None and before.mark is positions and before.is_for(layer, before.launches.connectivity):
        before.set_mark(positions)
        return
    if backend_of(x) != "triton" or is_captured(x) or choice.backend_name(x) != "triton" or not x.numel():
        return
    if not x.dtype == weight.dtype == torch.float32 or any(each.is_inference() for each in (*layer, positions)):
        return
    if not all(each.is_contiguous() and each.data_ptr() % 16 == 0 and type(each) in PLAIN for each in layer):
        return
    sizes = (*x.shape[:2], weight.shape[2], *anchors.shape[:2], positions.shape[2])
    small = import_module("lutetia.lut.kernels.triton.small")
    if small.serves_pairs(x, weight, positions) and choose("auto", sizes, False, x.dtype, FLOAT, x.device.type) == "pairs":
        launches = small.PairLaunches(x, weight, trusted(anchors), positions)
        keep(Prepared(launches, layer, positions, "triton"), x, weight, False)

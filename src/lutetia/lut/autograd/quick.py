"""Eager calls of small layers, where Python takes longer than the kernel: everything is checked and planned once.

A `Quick` belongs to one weight and one shape of x, read hard, with a dense gradient. A call that it serves checks little,
allocates, and launches.
"""

from __future__ import annotations

import weakref
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

import lutetia
from lutetia import flow
from lutetia._shared.direct import PLAIN, is_quiet
from lutetia._shared.memo import trusted
from lutetia.lut.algorithm import choose
from lutetia.lut.connectivity.full import Connectivity
from lutetia.lut.kernels import choice
from lutetia.lut.sums import FLOAT, Sums

MOST = 512  # of them, before all are forgotten
_known: dict[tuple[int, torch.Size], Quick] = {}
_by_connectivity: weakref.WeakValueDictionary[tuple[int, int], Quick] = weakref.WeakValueDictionary()


def quick_for(x: Tensor, weight: Tensor, anchors: Tensor, mark: Any) -> Quick | None:
    """The prepared launches for this call, if there are any and nothing observes the call.

    `mark` is the connectivity, or what stands for it: the meta of a full one, the first tensor of synapses.
    """
    if type(x) not in PLAIN:
        return None
    quick = _known.get((id(weight), x.shape))  # of a weight that lives: those of others are forgotten when they die
    if quick is None or quick.anchors is not anchors or (quick.mark is not mark and quick.launches.connectivity is not mark):
        return None
    if weight.data_ptr() != quick.weight_pointer or anchors.data_ptr() != quick.anchors_pointer or not quick.takes(x):
        return None
    if quick.counts and quick.is_written():
        return None
    return quick if is_quiet() and not lutetia.debug and choice.chosen in ("", quick.backend) else None


def quick_back(grad: Tensor, connectivity: Connectivity) -> Quick | None:
    """The prepared launches for a backward pass of grad [B, O] through any weight of this connectivity."""
    quick = _by_connectivity.get((id(connectivity), grad.shape[0]))
    if quick is None or quick.launches.connectivity is not connectivity or type(grad) not in PLAIN or not quick.takes(grad):
        return None
    return quick if is_quiet() and choice.chosen in ("", quick.backend) else None


def backend_of(x: Tensor) -> str:
    """The backend that prepares for tensors where x is."""
    return "triton" if x.is_cuda else "cpu" if x.is_cpu else ""


def current_device() -> int:
    """The device on which kernels are launched; `torch.cuda.current_device` takes four times as long."""
    return torch._C._cuda_getDevice()


def prepare(x: Tensor, layer: tuple[Tensor, Tensor], connectivity: Connectivity, sums: Sums) -> None:
    """Prepare for calls like this one, where they are small and plain: x [B, I]; layer: weight and anchors."""
    weight, anchors = layer
    if x.dim() != 2 or sums != FLOAT or not x.dtype == weight.dtype == torch.float32 or anchors.is_inference():
        return
    key = (id(weight), x.shape)
    known = _known.get(key)
    if known is not None and known.is_for(layer, connectivity):
        return
    backend = backend_of(x)
    if not backend or choice.backend_name(x) != backend or type(weight) not in PLAIN or not x.shape[0]:
        return
    if weight.is_inference() or not all(each.is_contiguous() and each.data_ptr() % 16 == 0 for each in layer):
        return
    small = import_module(f"lutetia.lut.kernels.{backend}.small")
    if not small.serves(x, weight, anchors, connectivity):
        return
    quick = Quick(small.Launches(x, weight, trusted(anchors), connectivity), layer, None, backend)
    _keep(quick, x, weight, small.trains)
    if quick.trains:
        _by_connectivity[id(connectivity), x.shape[0]] = quick


def mark_as(mark: Any, x: Tensor, layer: tuple[Tensor, Tensor], connectivity: Connectivity) -> None:
    """Let what was prepared for a call know by what the next one will name its connectivity."""
    known = _known.get((id(layer[0]), x.shape))
    if known is not None and known.is_for(layer, connectivity):
        known.set_mark(mark)


def prepare_attention(x: Tensor, layer: tuple[Tensor, Tensor], positions: Tensor) -> None:
    """The same for evaluating sequences x [B, S, I] by pairs, fully connected, on CUDA; what marks them are their positions."""
    weight, anchors = layer
    known = _known.get((id(weight), x.shape))
    if known is not None and known.mark is positions and known.is_for(layer, known.launches.connectivity):
        known.set_mark(positions)
        return
    if backend_of(x) != "triton" or choice.backend_name(x) != "triton" or not x.numel():
        return
    if not x.dtype == weight.dtype == torch.float32 or any(each.is_inference() for each in (*layer, positions)):
        return
    if not all(each.is_contiguous() and each.data_ptr() % 16 == 0 and type(each) in PLAIN for each in layer):
        return
    sizes = (*x.shape[:2], weight.shape[2], *anchors.shape[:2], positions.shape[2])
    small = import_module("lutetia.lut.kernels.triton.small")
    if small.serves_pairs(x, weight, positions) and choose("auto", sizes, False, x.dtype, FLOAT, x.device.type) == "pairs":
        launches = small.PairLaunches(x, weight, trusted(anchors), positions)
        _keep(Quick(launches, layer, positions, "triton"), x, weight, False)


def _keep(quick: Quick, x: Tensor, weight: Tensor, trains: bool) -> None:
    """Keep what was prepared for calls like that of x, as long as its weight lives."""
    key = (id(weight), x.shape)
    if len(_known) >= MOST:
        _known.clear()
    _known[key], quick.device, quick.trains = quick, x.get_device(), trains
    quick.weight = weakref.ref(weight, lambda _: _known.pop(key, None))


class Quick:
    """The launches of one layer for one shape of x [..., I]: forward, to the inputs, to the weights."""

    __slots__ = (
        *("__weakref__", "anchors", "anchors_pointer", "anchors_version", "backend", "by_grad", "call", "counts", "device"),
        *("facts", "launches", "mark", "mark_version", "trains", "weight", "weight_pointer"),
    )
    device: int
    trains: bool  # or serves evaluation alone
    weight: Any  # a weak reference
    facts: Any  # what a node of the graph knows, once there is one
    call: Any  # what it is made from
    by_grad: bool  # whether torch.autograd.grad has asked for the gradient of the weight

    def __init__(self, launches: Any, layer: tuple[Tensor, Tensor], mark: Any, backend: str) -> None:
        weight, self.anchors = layer
        self.launches, self.backend, self.facts, self.call, self.by_grad = launches, backend, None, None, False
        self.weight_pointer, self.anchors_pointer = weight.data_ptr(), self.anchors.data_ptr()
        self.anchors_version = self.anchors._version
        self.set_mark(mark)

    def set_mark(self, mark: Any) -> None:
        """Know the connectivity by this, and where it is a tensor of synapses how often that was written to."""
        self.mark, self.mark_version = mark, mark._version if type(mark) is Tensor else None
        # Kernels of a GPU read copies. The loops of a CPU read the anchors where they are, and compare them first.
        self.counts = self.backend != "cpu" or self.mark_version is not None

    def is_written(self) -> bool:
        """Whether the anchors or synapses, of which there are copies, were written to."""
        if self.anchors._version != self.anchors_version:
            return True
        return self.mark_version is not None and self.mark._version != self.mark_version

    def is_for(self, layer: tuple[Tensor, Tensor], connectivity: Connectivity) -> bool:
        """Whether these are the tensors that it knows, unchanged."""
        weight, anchors = layer
        if self.weight() is not weight or self.anchors is not anchors or self.launches.connectivity is not connectivity:
            return False
        pointers = (weight.data_ptr(), anchors.data_ptr())
        return anchors._version == self.anchors_version and pointers == (self.weight_pointer, self.anchors_pointer)

    def takes(self, tensor: Tensor) -> bool:
        """Whether a plain tensor of the right shape lies where and as it must."""
        return (
            tensor.dtype is torch.float32
            and tensor.is_contiguous()
            and not tensor.data_ptr() & 15
            and tensor.get_device() == self.device
            and (self.backend == "cpu" or self.device == current_device())
            and not flow.recording()
        )

    def evaluate(self, x: Tensor, weight: Tensor) -> Tensor | None:
        """x [..., I] -> y [..., O]; None where something is wrong after all."""
        return self.launches.fill(x, weight, None)

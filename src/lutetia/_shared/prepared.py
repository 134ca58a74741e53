"""Eager calls of small layers, where Python takes longer than the kernel: what was checked and planned by a call like them.

A `Prepared` call belongs to one weight and one shape of x. A call that it serves checks little, allocates, and launches.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lutetia._shared.direct import PLAIN, is_quiet

MOST = 512  # of them, before all are forgotten
known: dict[tuple[int, torch.Size], Prepared] = {}


def current_device() -> int:
    """The device on which kernels are launched; `torch.cuda.current_device` takes four times as long."""
    return torch._C._cuda_getDevice()


def allocator(like: Tensor) -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]:
    """What makes uninitialised tensors of sizes, strides and a dtype where `like` is, on the current device, as compiled graphs
    do: in 0.5 µs, where `new_empty` takes 2.3."""
    makers: Any = torch._C._dynamo.guards
    return makers._empty_strided_cuda if like.is_cuda else makers._empty_strided_cpu


class Prepared:
    """The launches of one layer for one shape of x [..., I]. Besides its weight, of float32, it has anchors, which are integers.

    `mark` is what calls name the rest of the layer by: any object, or a tensor that must not be written to.
    """

    __slots__ = (
        *("__weakref__", "anchors", "anchors_pointer", "anchors_version", "backend", "by_grad", "call", "counts", "device"),
        *("facts", "launches", "mark", "trains", "watched", "weight", "weight_pointer"),
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

    def set_mark(self, mark: Any, others: tuple[Tensor, ...] = ()) -> None:
        """Know the layer by this, and how often it, where it is a tensor, and the others were written to."""
        self.mark, marks = mark, (mark, *others) if type(mark) is Tensor else ()
        self.watched = tuple((each, each._version) for each in marks)
        # Kernels of a GPU read copies. The loops of a CPU read the anchors where they are, and compare them first.
        self.counts = self.backend != "cpu" or bool(marks)

    def is_written(self) -> bool:
        """Whether the anchors, or what is watched with the mark, of which there are copies, were written to."""
        if self.anchors._version != self.anchors_version:
            return True
        return any(each._version != version for each, version in self.watched)

    def is_for(self, layer: tuple[Tensor, Tensor], connectivity: Any) -> bool:
        """Whether these are the weight and anchors that it knows, unchanged, and the connectivity of its launches."""
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
            and not (pointer := tensor.data_ptr()) & 15
            and pointer != 0  # a meta tensor's
            and tensor.get_device() == self.device
            and (self.backend == "cpu" or self.device == current_device())
        )


def prepared_for(x: Tensor, weight: Tensor, anchors: Tensor, mark: Any, backend: str) -> Prepared | None:
    """The prepared launches for this call on a backend, "" for any, if there are any and nothing observes the call."""
    if type(x) not in PLAIN:
        return None
    call = known.get((id(weight), x.shape))  # of a weight that lives: those of others are forgotten when they die
    if call is None or call.anchors is not anchors or (call.mark is not mark and call.launches.connectivity is not mark):
        return None
    if weight.data_ptr() != call.weight_pointer or anchors.data_ptr() != call.anchors_pointer or not call.takes(x):
        return None
    if call.counts and call.is_written():
        return None
    return call if is_quiet() and backend in ("", call.backend) else None


def keep(call: Prepared, x: Tensor, weight: Tensor, trains: bool) -> None:
    """Keep what was prepared for calls like that of x, as long as its weight lives."""
    key = (id(weight), x.shape)
    if len(known) >= MOST:
        known.clear()
    known[key], call.device, call.trains = call, x.get_device(), trains
    call.weight = weakref.ref(weight, lambda _: known.pop(key, None))


def mark_as(mark: Any, others: tuple[Tensor, ...], x: Tensor, layer: tuple[Tensor, Tensor], connectivity: Any) -> None:
    """Let what was prepared for a call know by what the next one will name its layer, and which others must not be written to."""
    call = known.get((id(layer[0]), x.shape))
    if call is not None and call.is_for(layer, connectivity):
        call.set_mark(mark, others)

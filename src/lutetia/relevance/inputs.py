"""The inputs of a model, as leaves that get relevance, and the model left as it was."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lutetia.errors import ArgumentError, fail


class StandIns:
    """Leaves that require grad in place of the floating-point and complex tensors among a model's inputs.

    An object and not a function that calls itself: that would keep the inputs alive until the garbage collector runs.
    """

    def __init__(self, copied: bool) -> None:
        self.copied = copied
        self.made: dict[int, tuple[Tensor, Tensor]] = {}  # by the id of the user's tensor: the leaf, and that tensor

    def of(self, value: Any) -> Any:
        """A value, or what is inside it, with leaves in place of tensors."""
        if isinstance(value, Tensor):
            if id(value) not in self.made:
                plain = value.clone() if value.is_inference() else value  # autograd keeps no tensor of inference mode
                differentiable = value.is_floating_point() or value.is_complex()
                leaf = plain.detach().requires_grad_() if differentiable else plain
                self.made[id(value)] = (leaf, value)
            leaf = self.made[id(value)][0]
            return leaf.clone() if self.copied and leaf.requires_grad else leaf
        if isinstance(value, PackedSequence):  # which of its tensors is data
            return value._replace(data=self.of(value.data))
        if hasattr(value, "_fields"):
            return type(value)(*map(self.of, value))
        if type(value) in (tuple, list):
            return type(value)(map(self.of, value))
        return {name: self.of(each) for name, each in value.items()} if type(value) is dict else value


def prepare_inputs(inputs: Any, copied: bool = False) -> tuple[tuple[Any, ...], dict[str, Any], dict[int, tuple[Tensor, Tensor]]]:
    """Arguments for the model, with leaves that require grad in place of tensors of floats, and which leaf replaced which.

    `copied`: hand over copies of the leaves, which a model may change in place.
    """
    stand_ins = StandIns(copied)
    if isinstance(inputs, (Tensor, PackedSequence)):
        return (stand_ins.of(inputs),), {}, stand_ins.made
    if isinstance(inputs, Mapping):
        return (), {name: stand_ins.of(value) for name, value in inputs.items()}, stand_ins.made
    if isinstance(inputs, (tuple, list)):
        return tuple(stand_ins.of(value) for value in inputs), {}, stand_ins.made
    fail("inputs", inputs, "a tensor, a tuple of arguments or a mapping of keyword arguments")


def named_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of a model by name, each once, in the order of its own `named_modules`, which takes ten times as long."""
    named: dict[str, nn.Module] = {}
    stack: list[tuple[str, nn.Module]] = [("", model)]
    met: set[int] = set()
    while stack:
        name, module = stack.pop()
        if id(module) in met:
            continue
        met.add(id(module))
        named[name] = module
        prefix = f"{name}." if name else ""
        stack += [(prefix + child, each) for child, each in reversed(module._modules.items()) if each is not None]
    return named


@contextmanager
def as_found(model: nn.Module) -> Iterator[None]:
    """Put back what a forward pass may change: RNG state and buffers. Frozen parameters take part while it runs."""
    modules = named_modules(model)
    parameters = [parameter for module in modules.values() for parameter in module._parameters.values() if parameter is not None]
    if any([parameter.is_inference() for parameter in parameters]):
        name = next(name for name, parameter in model.named_parameters() if parameter.is_inference())
        raise ArgumentError(f"{name} was made in inference mode, expected parameters made outside of it, which autograd can keep")
    training = any([module.training for module in modules.values()])
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()] if training else []
    devices = sorted({parameter.device.index for parameter in parameters if parameter.is_cuda})
    try:
        with thawed(parameters), torch.random.fork_rng(devices=devices):
            yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


_THAW = threading.Lock()
_THAWED: Counter[int] = Counter()  # frozen parameters that require grad for now, by id: how many threads run them


@contextmanager
def thawed(parameters: Iterable[Tensor]) -> Iterator[None]:
    """While active, frozen parameters require grad: until the last thread that runs them is done."""
    with _THAW:
        frozen = [each for each in parameters if (not each.requires_grad or id(each) in _THAWED) and each.is_floating_point()]
        _THAWED.update(map(id, frozen))
        for parameter in frozen:
            parameter.requires_grad_(True)
    try:
        yield
    finally:
        with _THAW:
            for parameter in frozen:
                _THAWED[id(parameter)] -= 1
                if not _THAWED[id(parameter)]:
                    del _THAWED[id(parameter)]
                    parameter.requires_grad_(False)

"""The inputs of a model, as leaves that get relevance, and the model left as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lutetia.errors import fail


def prepare_inputs(inputs: Any, copied: bool = False) -> tuple[tuple[Any, ...], dict[str, Any], dict[int, tuple[Tensor, Tensor]]]:
    """Arguments for the model, with floating-point tensors replaced by leaves that require grad, and which leaf replaced which.

    `copied`: hand over copies of the leaves, which a model may change in place.
    """
    stand_ins: dict[int, tuple[Tensor, Tensor]] = {}

    def stand_in(value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in stand_ins:
                plain = value.clone() if value.is_inference() else value  # autograd keeps no tensor of inference mode
                leaf = plain.detach().requires_grad_() if value.is_floating_point() else plain
                stand_ins[id(value)] = (leaf, value)
            leaf = stand_ins[id(value)][0]
            return leaf.clone() if copied and leaf.requires_grad else leaf
        if isinstance(value, PackedSequence):  # which of its tensors is data
            return value._replace(data=stand_in(value.data))
        if hasattr(value, "_fields"):
            return type(value)(*map(stand_in, value))
        if type(value) in (tuple, list):
            return type(value)(map(stand_in, value))
        return {name: stand_in(each) for name, each in value.items()} if type(value) is dict else value

    if isinstance(inputs, (Tensor, PackedSequence)):
        return (stand_in(inputs),), {}, stand_ins
    if isinstance(inputs, Mapping):
        return (), {name: stand_in(value) for name, value in inputs.items()}, stand_ins
    if isinstance(inputs, (tuple, list)):
        return tuple(stand_in(value) for value in inputs), {}, stand_ins
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
    modules = list(named_modules(model).values())
    parameters = [parameter for module in modules for parameter in module._parameters.values() if parameter is not None]
    frozen = [parameter for parameter in parameters if not parameter.requires_grad and parameter.is_floating_point()]
    training = any([module.training for module in modules])
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()] if training else []
    devices = sorted({parameter.device.index for parameter in parameters if parameter.is_cuda})
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        with torch.no_grad():
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)

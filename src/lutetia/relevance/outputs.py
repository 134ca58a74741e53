"""Which tensor of a model's output is explained: by name, by a function, or the logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lutetia.errors import ArgumentError, describe, fail
from lutetia.relevance.seeds import make_seed
from lutetia.relevance.seen import Constants

# What people want explained where several tensors come out; of a list, its last element.
PREFERRED = ("logits", "prediction_logits", "last_hidden_state", "feature_maps")


def select(output: object, target: object) -> tuple[Tensor, Tensor]:
    """The tensor to explain, and the relevance it begins with, of the same shape.

    `output`: a tensor, or tensors in tuples, mappings and dataclasses. `target`: an index or seed for the main output; the
    name of an output, or a tuple that begins with one; a mapping from names to targets, for several outputs; or a function
    of the output that returns the tensor to explain.
    """
    if callable(target) and not isinstance(target, Tensor):
        with torch.enable_grad(), Constants():
            returned = target(output)
        explained = _checked(returned, "what the target function returned", output)
        return explained, explained.detach().clone()
    if isinstance(target, Mapping):
        return _several(output, target)
    if isinstance(target, str):
        target = (target,)
    if isinstance(target, tuple) and target and isinstance(target[0], str):
        explained = _checked(output_named(output, target[0]), f"output {target[0]!r}", output)
        rest = target[1:]
        return explained, make_seed(explained, rest[0] if len(rest) == 1 else rest or None)
    explained = _checked(main_output(output), "output", output)
    return explained, make_seed(explained, target)


def main_output(output: object) -> Tensor:
    """The tensor to explain by default: the output itself, its logits, or the first floating-point tensor in it."""
    if isinstance(output, Tensor):
        return output
    tensors = dict(named_tensors(output))
    for name in PREFERRED:
        chosen = [tensor for key, tensor in tensors.items() if key.split(".")[0] == name]
        if chosen:
            return chosen[-1]
    floating = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    if floating:
        return next((tensor for tensor in floating if tensor.grad_fn is not None), floating[0])
    fail("the model's output", output, f"a tensor, or something that holds one; it holds {_listed(tensors)}")


def named_tensors(output: object, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in an output with its name, such as "logits", "feature_maps.1" or "0"; a lone tensor has none."""
    if isinstance(output, Tensor):
        yield prefix, output
        return
    for name, value in _parts(output):
        yield from named_tensors(value, f"{prefix}.{name}" if prefix else str(name))


def _parts(output: Any) -> list[tuple[Any, Any]]:
    if isinstance(output, Mapping):
        return list(output.items())
    if hasattr(output, "_fields"):  # a named tuple
        return list(zip(output._fields, output, strict=True))
    if isinstance(output, (tuple, list)):
        return list(enumerate(output))
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [(field.name, getattr(output, field.name)) for field in dataclasses.fields(output)]
    return []


def output_named(output: object, name: str) -> Tensor:
    """The tensor of this name in an output, or the only one below it."""
    tensors = dict(named_tensors(output))
    if name in tensors:
        return tensors[name]
    inside = [tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")]
    if len(inside) == 1:
        return inside[0]
    known = _listed(tensors) if not isinstance(output, Tensor) else "one tensor without a name"
    raise ArgumentError(f"target names the output {name!r}, which the model does not give: it gives {known}")


def _several(output: object, targets: Mapping[Any, Any]) -> tuple[Tensor, Tensor]:
    """Several outputs, flattened into one [N]."""
    if not targets:
        fail("target", targets, "at least one output name")
    chosen = [select(output, (name, *each) if isinstance(each, tuple) else _placed(name, each)) for name, each in targets.items()]
    dtype = chosen[0][0].dtype
    with torch.enable_grad():
        joined = torch.cat([tensor.to(dtype).reshape(-1) for tensor, _ in chosen])
    return joined, torch.cat([seed.to(dtype).reshape(-1) for _, seed in chosen])


def _placed(name: object, target: object) -> Any:
    return name if target is None else (name, target)


def _checked(tensor: object, what: str, output: object) -> Tensor:
    """The tensor, if it is floating-point and has a grad_fn; otherwise an error that names the outputs that are."""
    if (
        isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and tensor.is_floating_point()
        and tensor.grad_fn is not None
    ):
        return tensor
    others = {name: each for name, each in named_tensors(output) if each.is_floating_point() and each.grad_fn is not None}
    also = "" if isinstance(output, Tensor) else f"; of the outputs these are: {_listed(others)}"
    raise ArgumentError(
        f"{what} is {describe(tensor)}, expected a floating-point tensor with a grad_fn (one of its inputs must require "
        f"grad, with gradients enabled){also}"
    )


def _listed(tensors: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name!r} ({describe(tensor)})" for name, tensor in list(tensors.items())[:20]) or "no tensor"

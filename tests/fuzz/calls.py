"""Calls of which some arguments are wrong: each must work, or fail with an error of ours that says what was expected."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Make = Callable[[random.Random], "Call"]


@dataclass
class Call:
    """A function, and arguments that it takes: by name, and those that are given by place first."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any]
    by_place: tuple[str, ...] = ()
    changed: list[str] = field(default_factory=list)

    def run(self) -> Any:
        rest = {name: value for name, value in self.arguments.items() if name not in self.by_place}
        return self.function(*(self.arguments[name] for name in self.by_place), **rest)

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={text(value)}" for name, value in self.arguments.items())
        return f"{self.name}({arguments}), changed: {self.changed}"


def text(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(text, value))})"
    return repr(value)[:60]


# ---- what may be wrong with an argument ------------------------------------------------------------------------------


def perturbed(value: Any, rng: random.Random) -> Any:
    """Another value in place of a good one."""
    if isinstance(value, Tensor):
        return rng.choice(TENSORS)(value, rng)
    if isinstance(value, bool):
        return rng.choice([None, 3, "yes", not value])
    if isinstance(value, int):
        return rng.choice([-1, 0, 1, value + 1, value - 1, 2 * value, 2**31, 2**32 + value, 2**63, 2**70, 1.5, None, "3", True])
    if isinstance(value, float):
        return rng.choice([-1.0, 0.0, float("nan"), float("inf"), 1e300, None, "1", 2])
    if isinstance(value, str):
        return rng.choice(["", "other", None, 0, value.upper()])
    if isinstance(value, tuple) and value:
        which = rng.randrange(len(value))
        changed = tuple(perturbed(each, rng) if k == which else each for k, each in enumerate(value))
        return rng.choice([changed, changed, changed, value[:-1], None, [*value]])
    return rng.choice([None, 0, "other", torch.zeros(2)])


def resized(tensor: Tensor, rng: random.Random) -> Tensor:
    """A dimension longer, shorter or gone."""
    if not tensor.dim():
        return tensor.reshape(1)
    dim = rng.randrange(tensor.dim())
    size = max(0, tensor.shape[dim] + rng.choice([-1, 1, -tensor.shape[dim], tensor.shape[dim], -2, 5]))
    if not tensor.shape[dim]:
        return tensor.new_zeros(*tensor.shape[:dim], size, *tensor.shape[dim + 1 :])
    index = torch.arange(size) % tensor.shape[dim]
    return (
        tensor.index_select(dim, index)
        if tensor.shape[dim]
        else tensor.new_zeros(*tensor.shape[:dim], size, *tensor.shape[dim + 1 :])
    )


def revalued(tensor: Tensor, rng: random.Random) -> Tensor:
    """One element, or all, far off."""
    if tensor.dtype.is_floating_point:
        value: Any = rng.choice([float("nan"), float("inf"), -float("inf"), 1e38, 0.0])
    else:
        most = torch.iinfo(tensor.dtype).max if tensor.dtype != torch.bool else 1
        value = rng.choice([-1, most, -most, min(most, 2**20), min(most, 1 << 12), -(2**15), 0])
    changed = tensor.clone()
    if tensor.numel() and rng.random() < 0.7:
        changed.view(-1)[rng.randrange(tensor.numel())] = value
        return changed
    return changed.fill_(value)


def retyped(tensor: Tensor, rng: random.Random) -> Tensor:
    """Another dtype. Not another float: each would be a loop to compile."""
    if tensor.dtype.is_floating_point:
        return tensor.to(rng.choice([torch.int32, torch.int64, torch.bool, torch.complex64, torch.uint8]))
    return tensor.to(rng.choice([torch.float32, torch.int64, torch.int16, torch.bool, torch.complex64, torch.uint8]))


TENSORS: list[Callable[[Tensor, random.Random], Any]] = [
    resized,
    resized,
    resized,
    revalued,
    revalued,
    revalued,
    retyped,
    lambda tensor, rng: None,
    lambda tensor, rng: tensor.tolist(),
    lambda tensor, rng: tensor.unsqueeze(0),
    lambda tensor, rng: tensor.flatten(),
    lambda tensor, rng: tensor.transpose(0, -1) if tensor.dim() > 1 else tensor,
    lambda tensor, rng: tensor.expand(3, *tensor.shape),
    lambda tensor, rng: tensor[..., :1].expand_as(tensor) if tensor.dim() else tensor,
    lambda tensor, rng: tensor.to("meta"),
    lambda tensor, rng: tensor.to_sparse() if tensor.dim() else tensor,
    lambda tensor, rng: tensor.long() + 2**32 if not tensor.dtype.is_floating_point else tensor,
    lambda tensor, rng: torch.empty_like(tensor).flip(0) if tensor.dim() else tensor,
    lambda tensor, rng: tensor.numpy(),
]


def drawing(make: Make) -> Callable[[random.Random], tuple[str, Callable[[], object]]]:
    """Calls of one function as words, and what makes them, for `wild_calls`."""

    def draw(rng: random.Random) -> tuple[str, Callable[[], object]]:
        torch.manual_seed(rng.randrange(2**31))
        call = make(rng)
        return str(call), call.run

    return draw

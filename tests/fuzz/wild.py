"""Random calls of public functions: sound arguments, of which one to three are replaced by others, wrong or just unusual.

A case is right when the call answers or raises an error of Lutetia's. Sizes stay small where large ones are allowed and would
only cost memory that the caller asked for.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]
ODD: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    3,
    7,
    2**31,
    2**63,
    -(2**63),
    10**30,
    0.5,
    -0.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e300,
    "",
    "x",
    "auto",
    "\0",
    b"ab",
    (),
    [],
    [1],
    (2, 2),
    {},
    {"a": 1},
    [[1, 2], [3]],
    object(),
    torch.float32,
    "cuda:99",
    1 + 2j,
    print,
]
Made = Callable[["Wild"], tuple[Callable[..., object], dict[str, Any]]]
Draw = Callable[[random.Random], tuple[str, Callable[[], object]]]  # a call as words, and what makes it


class Wild:
    """Draws everything from one generator, so that the seed of a case gives the same call again."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        torch.manual_seed(draw.randrange(2**31))

    def spoiled(self, name: str, made: Made) -> tuple[str, Callable[[], object]]:
        """A call with up to three other arguments, as words and as a function."""
        function, arguments = made(self)
        for key in self.draw.sample(list(arguments), min(len(arguments), self.draw.choice((0, 1, 1, 1, 1, 2, 3)))):
            arguments[key] = self.other(arguments[key])
        words = f"{name}({', '.join(f'{key}={_shown(value)}' for key, value in arguments.items())})"
        return words, lambda: consume(function(**arguments))

    def other(self, value: Any) -> Any:
        """Something else in place of a value: near it, of another kind, or anything."""
        if isinstance(value, Tensor) and self.draw.random() < 0.8:
            return self.other_tensor(value)
        if isinstance(value, int) and not isinstance(value, bool) and self.draw.random() < 0.5:
            return value + self.draw.choice((-2, -1, 1, 2, -value, -2 * value))
        if isinstance(value, list | tuple) and value and self.draw.random() < 0.5:
            items = list(value)
            items[self.draw.randrange(len(items))] = self.draw.choice(ODD)
            return type(value)(items) if type(value) in (list, tuple) else items
        return self.tensor() if self.draw.random() < 0.2 else self.draw.choice(ODD)

    def other_tensor(self, value: Tensor) -> Tensor:
        way = self.draw.randrange(9)
        if way == 0:
            return value.to(self.draw.choice([each for each in DTYPES if each != value.dtype]))
        if way == 1 and value.dim():
            return value.narrow(self.draw.randrange(value.dim()), 0, 0)
        if way == 2 and value.dim():
            return value.repeat(*(self.draw.choice((1, 2)) for _ in range(value.dim())))
        if way == 3:
            return value[None] if self.draw.random() < 0.5 or not value.dim() else value[0] if len(value) else value
        if way == 4 and value.dim() > 1:
            return value.transpose(self.draw.randrange(value.dim()), self.draw.randrange(value.dim()))
        if way == 5 and value.dtype in (torch.int32, torch.int64):
            return value.clone().fill_(self.draw.choice((-1, 0, 5, 1000, 2**31 - 1, -(2**31))))
        if way == 6 and value.is_floating_point():
            return value.clone().fill_(self.draw.choice((float("nan"), float("inf"), -float("inf"), 0.0, 1e4)))
        if way == 7:
            return value.flip(0) if value.dim() else value
        return value.to_sparse() if value.dim() and value.dtype not in (torch.bool, torch.float8_e4m3fn) else value

    def tensor(self) -> Tensor:
        shape = [self.draw.choice((0, 1, 2, 3, 5)) for _ in range(self.draw.randrange(5))]
        return torch.randint(-3, 9, shape).to(self.draw.choice(DTYPES))

    def one(self, *values: Any) -> Any:
        return self.draw.choice(values)


def spoiling(name: str, made: Made) -> Draw:
    """Calls of one function."""
    return lambda rng: Wild(rng).spoiled(name, made)


def consume(value: object) -> None:
    """Make lazy answers work."""
    if hasattr(value, "__next__"):
        for _ in itertools.islice(value, 100):  # type: ignore[call-overload]
            pass


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        numbers = value.flatten()[:9].tolist() if value.layout == torch.strided else value.layout
        return f"{value.dtype} {list(value.shape)} {numbers}"
    return repr(value)[:200]


def small(value: Any) -> bool:
    """Whether sizes are such that a model of them may be built: a user may ask for a large one."""
    if isinstance(value, Mapping):
        return all(map(small, value.values()))
    if isinstance(value, list | tuple):
        return all(map(small, value))
    return not isinstance(value, int) or value < 20

"""Random calls, some of whose arguments are wrong: each must work, or fail with an error of ours that says what was expected.

Run as a program it makes calls in a process of its own, since what is looked for ends processes:

    python tests/fuzz/calls.py GROUP SEED CALLS

writes the number and the text of each call to stderr before it is made, so that the last line names the one that crashed, and a
JSON object of counts to stdout.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import random
import resource
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lutetia.errors import LutetiaError

GROUPS = {"lut": "calls_lut", "nn": "calls_nn"}  # and "crash", which shows that a crash is seen
MEMORY = 12 << 30  # bytes of address space: a call that asks for more gets a MemoryError


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
    """Another value in the place of a good one."""
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


# ---- the process that makes the calls --------------------------------------------------------------------------------


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def run(make: Callable[[random.Random], Call], seed: int, n_calls: int) -> dict[str, Any]:
    """Make calls and count how they end; `raw` lists those that ended in an error that is not ours."""
    counts: Counter[str] = Counter()
    per_function: Counter[str] = Counter()
    raw: list[str] = []
    for number in range(n_calls):
        rng = random.Random(seed * 1_000_003 + number)
        torch.manual_seed(rng.randrange(2**31))
        call = make(rng)
        per_function[call.name] += 1
        print(number, call, file=sys.stderr, flush=True)
        try:
            with quiet():
                call.run()
            counts["worked"] += 1
        except (LutetiaError, MemoryError) as error:
            counts[type(error).__name__] += 1
        except BaseException as error:
            if "allocate memory" in str(error):  # torch says it with a RuntimeError
                counts["MemoryError"] += 1
                continue
            counts["raw"] += 1
            raw.append(f"{number}: {call}: {type(error).__name__}: {str(error)[:200]}")
    return {"counts": counts, "functions": per_function, "raw": raw}


def in_child(group: str, seed: int, n_calls: int, timeout: float = 600) -> dict[str, Any]:
    """The same in a process of its own; a crash or a hang is an AssertionError that names the call."""
    command = [sys.executable, __file__, group, str(seed), str(n_calls)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        log = (error.stderr or b"").decode()
        raise AssertionError(f"{' '.join(command[1:])} did not end; its last call was {log.splitlines()[-1:]}") from None
    assert done.returncode == 0, f"{' '.join(command[1:])} ended with {done.returncode}: {done.stderr.splitlines()[-6:]}"
    return json.loads(done.stdout)


def crash(rng: random.Random) -> Call:
    """A call that ends the process."""
    return Call("crashes", ctypes.string_at, {"address": 0}, ("address",))


if __name__ == "__main__":
    group, seed, n_calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parent))
    print(json.dumps(run(importlib.import_module(GROUPS[group]).make if group in GROUPS else crash, seed, n_calls)))

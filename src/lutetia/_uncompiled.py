"""Marks for torch.compile that do not load it: `torch.compiler.disable` imports `torch._dynamo`, which takes as long as torch.

Once something else has loaded the compiler, a marked function runs as `torch.compiler.disable` would run it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(reason: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function that torch.compile must leave alone, with all that it calls; graphs break around it, for this reason."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        disabled: list[Callable[P, R]] = []  # at most one, made when the compiler is there

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            if not disabled:
                alone = torch.compiler.disable(function, reason=reason)  # a line of its own: torch 2.11 warns of a method that
                disabled.append(alone)  # waits for its argument where a graph breaks
            return disabled[0](*args, **kwargs)

        # What `torch.compiler.disable` would set, so that a graph breaks before the call and tells the reason.
        call.__dict__.update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)
        return call

    return mark


def constant_result(function: F) -> F:
    """Mark a function whose result torch.compile may treat as a constant, as `torch.compiler.assume_constant_result` does."""
    function.__dict__["_dynamo_marked_constant"] = True
    return function


@constant_result
def is_exporting() -> bool:
    """Whether a program is being exported; in graphs that torch 2.11 compiles, its own function is always True."""
    return torch.compiler.is_exporting()


def as_constant(number: Any) -> Any:
    """A number that torch.compile may have made a symbol: a compiled graph is one for this value."""
    if not torch.compiler.is_compiling():
        return number
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # loaded by the compiler; loading it takes a second

    return guard_scalar(number)

"""Custom functions that run as the operations they are made of while a model is watched.

Their forward is plain torch. Their backward was written to save memory or to flatten a gradient, and keeps nothing that a rule
could divide relevance by.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lutetia.relevance.registry import is_known

_REFORMER, _YOSO = (f"transformers.models.{name}.modeling_{name}" for name in ("reformer", "yoso"))
OPENED = {(_REFORMER, "_ReversibleFunction"), (_REFORMER, "ReverseSort"), (_YOSO, "YosoCumulation")}  # module and class
INSIDE: ContextVar[bool] = ContextVar("lutetia opened function", default=False)  # whether one is running


def is_opened(function: type[torch.autograd.Function]) -> bool:
    """Whether calls of a custom function run as its operations: gradients are wanted, and nobody registered a rule for it."""
    listed = (function.__module__, function.__name__) in OPENED
    return listed and torch.is_grad_enabled() and not is_known(f"{function.__name__}Backward")


def run_open(function: type[torch.autograd.Function], args: Any) -> Any:
    """What the forward of a custom function returns for these arguments, each operation with a node of its own."""
    token = INSIDE.set(True)
    try:
        with GradientsStayOn():
            return function.forward(SimpleNamespace(save_for_backward=lambda *tensors: None), *args)
    finally:
        INSIDE.reset(token)


class GradientsStayOn(TorchFunctionMode):
    """`no_grad` has no effect: inside a custom function it only says that another backward takes over."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return None if func is torch._C._set_grad_enabled else func(*args, **(kwargs or {}))

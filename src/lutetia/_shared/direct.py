"""Whether an op may be bypassed by calling its implementation."""

from __future__ import annotations

import torch
from torch import Tensor

PLAIN = (Tensor, torch.nn.Parameter)


def is_direct(*tensors: Tensor) -> bool:
    """Whether nothing observes the call of an op: no compiler, tracer, transform or mode, and plain tensors.

    Then its implementation can be called directly, which saves the 8 µs of the dispatcher.
    """
    if torch.compiler.is_compiling():  # first: a compiled graph guards all that was looked at to decide what it does
        return False
    for tensor in tensors:
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided or not (tensor.is_cpu or tensor.is_cuda):
            return False
    return is_quiet()


def is_quiet() -> bool:
    """Whether no compiler, tracer, transform or mode is at work."""
    if torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._autograd._profiler_enabled():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False
    return torch._C._functorch.peek_interpreter_stack() is None

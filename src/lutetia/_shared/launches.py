"""Triton launches that ask Triton only once: a compiled kernel is kept and launched again without its just-in-time front end.

Triton works out at every call which compiled kernel fits the types, alignments and constants of the arguments. That takes longer
than a small kernel runs. A `Launch` does it at its first call only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton import knobs


class Launch:
    """One kernel, one grid, one signature.

    The caller promises that every call has arguments of the same types, the same constants, pointers aligned alike (to 16 bytes
    or not) and, where Triton specialises on them, integers alike; all positional, in the order of the kernel's parameters.
    """

    __slots__ = ("compiled", "device", "grid", "kernel", "options")

    def __init__(self, kernel: Any, grid: tuple[int, ...], device: torch.device, **options: Any) -> None:
        self.kernel, self.grid, self.options, self.device = kernel, (*grid, 1, 1)[:3], options, device.index
        self.compiled: Any = None  # until the first call, and always under the interpreter

    def __call__(self, *arguments: Any) -> None:
        """Launch on the current stream."""
        if self.ready():
            self.start(*arguments)
            return
        compiled = self.kernel[self.grid](*arguments, **self.options)
        if compiled is not None and torch.cuda.current_device() == self.device:  # one of another device would not run here
            self.compiled = compiled

    def ready(self) -> bool:
        """Whether a call would be launched at once, by `start`."""
        return self.compiled is not None and not _watched() and torch.cuda.current_device() == self.device

    def start(self, *arguments: Any) -> None:
        """Launch what is `ready`; tensors may be given by their addresses, which asks the driver nothing."""
        kernel = self.compiled
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        kernel.run(*self.grid, stream, kernel.function, kernel.packed_metadata, None, None, None, *arguments)


def alike(*tensors: Tensor | None) -> tuple[Any, ...]:
    """What Triton looks at in tensors: part of the signature of a launch."""
    return tuple([None if tensor is None else (tensor.dtype, tensor.data_ptr() & 15) for tensor in tensors])


def _watched() -> bool:
    """Whether a profiler wants to hear of launches."""
    hook = knobs.runtime.launch_enter_hook
    return bool(getattr(hook, "calls", hook))

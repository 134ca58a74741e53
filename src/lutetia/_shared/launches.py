"""Triton launches that ask Triton only once: a compiled kernel is kept and launched again without its just-in-time front end.

Triton works out at every call which compiled kernel fits the types, alignments and constants of the arguments. That takes longer
than a small kernel runs. Here it does so once for each signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from triton import knobs

MOST_SIGNATURES = 4096  # of a kernel that are kept, before all are forgotten


class Launch:
    """One kernel, one grid, one signature.

    The caller promises that every call has arguments of the same types, the same constants, pointers aligned alike (to 16 bytes
    or not) and, where Triton specialises on them, integers alike; all positional, in the order of the kernel's parameters.
    """

    __slots__ = ("compiled", "device", "grid", "kernel", "options")

    def __init__(self, kernel: Any, grid: tuple[int, ...], device: torch.device, **options: Any) -> None:
        self.kernel, self.grid, self.options, self.device = kernel, grid, options, device.index
        self.compiled: Any = None  # until the first call, and always under the interpreter

    def __call__(self, *arguments: Any) -> None:
        """Launch on the current stream."""
        if self.compiled is None or _watched() or torch._C._cuda_getDevice() != self.device:
            self.compiled = self.kernel[self.grid](*arguments, **self.options)
        else:
            start(self.compiled, self.grid, self.device, arguments)


class KeptKernel:
    """A Triton kernel, launched as `kernel[grid](*groups, NAME=constant, num_warps=4)`: the constants come by name, after groups
    of tensors and numbers."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.known = kernel, dict[Any, Any]()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *groups: Any, **named: Any) -> None:
        key = [torch._C._cuda_getDevice() if torch.cuda.is_initialized() else -1]
        _sign(groups, key)
        signature = (*key, *named.items())
        compiled = self.known.get(signature)
        if compiled is None or _watched():
            compiled = self.kernel[grid](*groups, **named)
            if compiled is not None:  # not under the interpreter
                if len(self.known) >= MOST_SIGNATURES:
                    self.known.clear()
                self.known[signature] = compiled
            return
        constants = [named[name] for name in self.kernel.arg_names[len(groups) :]]
        start(compiled, grid, key[0], (*groups, *constants))


def kept(module: ModuleType) -> Any:
    """The kernels of a module, under their names."""
    return SimpleNamespace(**{name: KeptKernel(each) for name, each in vars(module).items() if name.endswith("_kernel")})


def start(compiled: Any, grid: tuple[int, ...], device: int, arguments: Iterable[Any]) -> None:
    """Launch a compiled kernel on the current stream."""
    x, y, z = (*grid, 1, 1)[:3]
    stream = torch._C._cuda_getCurrentRawStream(device)
    compiled.run(x, y, z, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments)


def _sign(values: Iterable[Any], key: list[Any]) -> None:
    """Add to a key what Triton looks at: types and alignments of tensors, numbers. A float is a float, whatever its value."""
    for value in values:
        if isinstance(value, Tensor):
            key.append(value.dtype)
            key.append(value.data_ptr() & 15)
        elif isinstance(value, tuple):
            _sign(value, key)
        else:
            key.append(float if type(value) is float else value)


def _watched() -> bool:
    """Whether a profiler wants to hear of launches."""
    hook = knobs.runtime.launch_enter_hook
    return bool(getattr(hook, "calls", hook))

"""Running a compiled kernel over a range, on the threads torch already has.

Why not numba's `parallel=True`: its `workqueue` layer ends the process when two Python threads launch at once, its `omp` layer
ends it in a forked child, and it takes several times as long to compile. So a kernel k(*arguments, begin, end) is compiled
serial and without the GIL, and runs on the threads of `_shared.threads`.

A kernel made with `loops.basics.kernel` has its launch compiled too: that takes 2 µs; through Python it takes 50 to 100.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from lutetia._shared.threads import launch, openmp, pool
from lutetia.errors import require
from lutetia.lut.sums import FLOAT, Sums, raise_overflow

SMALLEST_SHARE = 100_000  # additions that take about 10 µs: less than it takes to wake a thread that has gone to sleep
OVERFLOW, OUT_OF_MEMORY = 1, 2  # flags: what went wrong in a kernel
Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def loop(module: str, name: str) -> Callable[..., Any]:
    """A compiled loop; numba is first imported here."""
    require("numba", "the cpu backend of lutetia.lut")
    return getattr(import_module(f"lutetia.lut.kernels.cpu.loops.{module}"), name)


def over(n: int, additions: int, kernel: Callable[..., Any], *arguments: Any) -> int:
    """kernel(*arguments, begin, end) for ranges that make up range(n); returns flags. A kernel returns True for an overflow.

    `additions` estimates the whole work, which is shared out over up to torch.get_num_threads() threads.
    """
    n_parts = min(torch.get_num_threads(), n, additions // SMALLEST_SHARE)
    if n_parts <= 1:
        return OVERFLOW if kernel(*arguments, 0, n) else 0
    in_parts = getattr(kernel, "in_parts", None)
    if in_parts is not None and (address := openmp()):
        return in_parts(arguments, n, n_parts, address)
    return _through_python(n, n_parts, kernel, arguments)


def _through_python(n: int, n_parts: int, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    """Threads that come back to Python for each range."""
    kernel(*arguments, 0, 0)  # should it need compiling, then here: the stack of another thread may be small
    ranges = iter([(n * part // n_parts, n * (part + 1) // n_parts) for part in range(n_parts)])
    results: list[Any] = []
    errors: list[BaseException] = []

    def work(_: Any = None) -> None:
        try:
            for part in ranges:  # one iterator for all: however many threads the runtime grants, every range is done once
                results.append(kernel(*arguments, *part))
        except BaseException as error:
            errors.append(error)

    if openmp():
        body = Body(work)
        launch(ctypes.cast(body, ctypes.c_void_p).value or 0, 0, n_parts)
    else:
        for future in [pool().submit(work) for _ in range(n_parts)]:
            future.result()
    if errors:
        raise errors[0]
    return OVERFLOW if any(results) else 0


def raise_if(flags: int, sums: Sums = FLOAT) -> None:
    """Raise what a kernel's flags stand for."""
    if flags & OUT_OF_MEMORY:
        raise MemoryError("a compiled kernel ran out of memory for its sums")
    if flags:
        raise_overflow(sums)

"""Running a compiled kernel over a range, on the threads torch already has.

Why not numba's `parallel=True`: its `workqueue` layer ends the process when two Python threads launch at once, its `omp` layer
ends it in a forked child, it takes several times as long to compile, and a second team of threads competes with torch's, which
keeps spinning for milliseconds after each operation. So kernels are compiled serial, without the GIL and for a range, and run

- on the OpenMP threads of torch, through `GOMP_parallel`, which the GNU, LLVM and Intel runtimes all export on Linux;
- elsewhere, and in a forked child, which has none of its parent's threads, on a small pool of Python threads.

A kernel k(*arguments, begin, end) may have a companion beside it, k_in_parts(arguments, n, n_parts, launch), made with
`numba_basics.run_in_parts`: then the launch is compiled too and takes 2 µs; through Python it takes 50 to 100.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

SMALLEST_SHARE = 100_000  # additions that take about 10 µs: less than it takes to wake a thread that has gone to sleep
OVERFLOW, OUT_OF_MEMORY = 1, 2  # flags: what went wrong in a kernel
Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
forked = False


def over(n: int, additions: int, kernel: Callable[..., Any], *arguments: Any) -> int:
    """kernel(*arguments, begin, end) for ranges that make up range(n); returns flags. A kernel returns True for an overflow.

    `additions` estimates the whole work, which is shared out over up to torch.get_num_threads() threads.
    """
    n_parts = min(torch.get_num_threads(), n, additions // SMALLEST_SHARE)
    if n_parts <= 1:
        return OVERFLOW if kernel(*arguments, 0, n) else 0
    launch, companion = openmp(), in_parts(kernel)
    if launch and companion is not None:
        return companion(arguments, n, n_parts, launch)
    return _through_python(n, n_parts, kernel, arguments)


@cache
def in_parts(kernel: Callable[..., Any]) -> Callable[..., int] | None:
    """The kernel with its launch compiled, where its module has it."""
    return getattr(sys.modules.get(kernel.__module__), f"{kernel.__name__}_in_parts", None)


def openmp() -> int:
    """The address of GOMP_parallel in the runtime that torch has loaded; 0 where there is none, or none of its threads."""
    return 0 if forked else _gomp_parallel()


@cache
def _gomp_parallel() -> int:
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value or 0
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no namespace of all symbols
        return 0


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

    if launch := openmp():
        parallel = ctypes.CFUNCTYPE(None, Body, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(launch)
        parallel(Body(work), None, n_parts, 0)
    else:
        for future in [_pool().submit(work) for _ in range(n_parts)]:
            future.result()
    if errors:
        raise errors[0]
    return OVERFLOW if any(results) else 0


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="lutetia")  # starts threads as they are needed


def _after_fork() -> None:
    """OpenMP in a child would wait for ever for threads that only the parent has; so would the pool."""
    global forked
    forked = True
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""Running one compiled kernel over disjoint ranges, on the threads torch already has.

Why not numba's `parallel=True`: its `workqueue` layer ends the process when two Python threads launch at once, its `omp` layer
ends it in a forked child, and either brings a second team of threads that competes with torch's, which keeps spinning for
milliseconds after an operation (on two cores a kernel right after a torch operation took twice as long). It also multiplies
compile time. So kernels here are compiled serial and without the GIL, take a range, and this module hands out the ranges:

- on the OpenMP runtime torch loaded, through `GOMP_parallel`, which GNU, LLVM and Intel runtimes all export on Linux;
- elsewhere, and in a forked child, where OpenMP's threads are gone, on a small pool of Python threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

SMALLEST_SHARE = 200_000  # additions that take about 40 µs: waking a thread takes as long
Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def over(n: int, additions: int, kernel: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What kernel(*arguments, begin, end) returned for each of the ranges that make up range(n).

    `additions` estimates the whole work. The ranges run at once on up to torch.get_num_threads() threads; a kernel does
    nothing for the range from 0 to 0.
    """
    n_parts = min(torch.get_num_threads(), n, additions // SMALLEST_SHARE)
    if n_parts <= 1:
        return [kernel(*arguments, 0, n)]
    kernel(*arguments, 0, 0)  # should it need compiling, then here: the stack of another thread may be small
    ranges = [(n * part // n_parts, n * (part + 1) // n_parts) for part in range(n_parts)]
    results: list[Any] = []
    errors: list[BaseException] = []

    def work(_: Any = None) -> None:
        # Ranges are popped, not dealt out: whatever number of threads the runtime grants, all are done.
        try:
            while (part := _pop(ranges)) is not None:
                results.append(kernel(*arguments, *part))
        except BaseException as error:
            errors.append(error)

    team()(work, n_parts)
    if errors:
        raise errors[0]
    return results


def _pop(ranges: list[tuple[int, int]]) -> tuple[int, int] | None:
    try:
        return ranges.pop()
    except IndexError:
        return None


@cache
def team() -> Callable[[Callable[..., None], int], None]:
    """What runs a function on so many threads at once, and waits for them."""
    return _openmp_team() or _python_team


def _openmp_team() -> Callable[[Callable[..., None], int], None] | None:
    """The team of the OpenMP runtime that torch has loaded, if there is one."""
    try:
        launch = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no global namespace of symbols
        return None
    launch.argtypes, launch.restype = [Body, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return lambda work, n_threads: launch(Body(work), None, n_threads, 0)


def _python_team(work: Callable[..., None], n_threads: int) -> None:
    futures = [_pool().submit(work) for _ in range(n_threads - 1)]
    work()
    for future in futures:
        future.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="lutetia")  # starts threads as they are needed


def _after_fork() -> None:
    """A forked child has none of its parent's threads: start over, without OpenMP, which would wait for them for ever."""
    global team
    _pool.cache_clear()
    team = cache(lambda: _python_team)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

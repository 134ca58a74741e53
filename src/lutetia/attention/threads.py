"""Running a compiled function on several threads at once, on those torch already has.

A second team of threads, as numba's own, would compete with torch's, which keep spinning for a while after each operation. So the
function runs through `GOMP_parallel`, which the GNU, LLVM and Intel runtimes all export on Linux. Elsewhere, and in a forked
child, which has none of its parent's threads, it runs on a small pool of Python threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

_forked = False


def run(body: Callable[[], Any], work: Callable[[np.ndarray], None], plan: np.ndarray, threads: int) -> None:
    """work(plan) on each of so many threads; `body` makes a C function of it: plan is int64 [n]."""
    parallel = None if _forked or threads == 1 else _gomp_parallel()
    if threads <= 1:
        work(plan)
    elif parallel is not None:
        parallel(body().address, plan.ctypes.data, threads, 0)
    else:
        work(np.where(np.arange(len(plan)) == 0, 0, plan))  # no items: should it need compiling, then here
        for future in [_pool().submit(work, plan) for _ in range(threads)]:
            future.result()


@cache
def _gomp_parallel() -> Callable[[int, int, int, int], None] | None:
    """The function of the runtime that torch has loaded; ctypes lets go of the GIL around it."""
    try:
        found = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no namespace of all symbols
        return None
    found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return found


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="lutetia")  # starts threads as they are needed


def _after_fork() -> None:
    """OpenMP in a child would wait for ever for threads that only the parent has; so would the pool."""
    global _forked
    _forked = True
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

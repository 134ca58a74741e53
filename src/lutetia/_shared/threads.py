"""The threads that compiled loops run on: those torch already has.

numba's own parallel loops would start a second team, which competes with torch's threads: these spin for milliseconds after each
operation. Its `workqueue` layer ends the process when two Python threads launch at once, its `omp` layer ends it in a forked
child, and either takes several times as long to compile. So a kernel is compiled serial and without the GIL, and loops run
through GOMP_parallel, which the GNU, LLVM and Intel runtimes all export on Linux; elsewhere, and in a forked child, which has
none of its parent's threads, on a small pool of Python threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

OVERFLOW, OUT_OF_MEMORY = 1, 2  # flags: what went wrong in a kernel
Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

forked = False


def openmp() -> int:
    """The address of GOMP_parallel in the runtime that torch has loaded; 0 where there is none, or none of its threads."""
    return 0 if forked else _gomp_parallel()


@cache
def _gomp_parallel() -> int:
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value or 0
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no namespace of all symbols
        return 0


def launch(body: int, data: int, threads: int) -> None:
    """Run the C function at an address, void body(void *data), on each of that many OpenMP threads; the GIL is released."""
    _parallel(openmp())(body, data, threads, 0)


@cache
def _parallel(address: int) -> Callable[[int, int, int, int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(address)


@cache
def pool() -> ThreadPoolExecutor:
    """Python threads for systems without OpenMP, started as needed."""
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="lutetia")


SMALLEST_SHARE = 100_000  # additions that take about 10 µs: less than it takes to wake a thread that has gone to sleep


def over(n: int, additions: int, kernel: Callable[..., Any], *arguments: Any) -> int:
    """`spread` over as many of torch's threads as pay: `additions` estimates the whole work."""
    return spread(min(torch.get_num_threads(), additions // SMALLEST_SHARE), n, kernel, *arguments)


def spread(threads: int, n: int, kernel: Callable[..., Any], *arguments: Any) -> int:
    """kernel(*arguments, begin, end), which releases the GIL, for range(n) divided into as many ranges as there are threads.

    Returns flags: `OVERFLOW` where a kernel returned True, `OUT_OF_MEMORY`. A kernel with `in_parts` (see `in_parts.kernel`) is
    launched in 2 µs; others return to Python for each range, which takes 50 to 100.
    """
    parts = min(threads, n)
    if parts <= 1:
        return OVERFLOW if kernel(*arguments, 0, n) else 0
    in_parts = getattr(kernel, "in_parts", None)
    if in_parts is not None and (address := openmp()):
        return in_parts(arguments, n, parts, address)
    return _through_python(n, parts, kernel, arguments)


def _through_python(n: int, n_parts: int, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    """Threads that return to Python for each range."""
    kernel(*arguments, 0, 0)  # should it need compiling, then here: the stack of another thread may be small
    ranges = iter([(n * part // n_parts, n * (part + 1) // n_parts) for part in range(n_parts)])
    results: list[Any] = []
    errors: list[BaseException] = []

    def work(_: object = None) -> None:
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


def _after_fork() -> None:
    """OpenMP in a child would wait forever for threads that only the parent has; so would the pool."""
    global forked
    forked = True
    pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

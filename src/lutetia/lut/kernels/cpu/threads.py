"""Running the compiled loops over a range, on the threads torch already has.

Why not numba's `parallel=True`: its `workqueue` layer ends the process when two Python threads launch at once, its `omp` layer
ends it in a forked child, and it takes several times as long to compile. So a kernel k(*arguments, begin, end) is compiled
serial and without the GIL, and runs on the threads of `_shared.threads`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from lutetia._shared.threads import OUT_OF_MEMORY, spread
from lutetia.errors import require
from lutetia.lut.sums import FLOAT, Sums, raise_overflow

SMALLEST_SHARE = 100_000  # additions that take about 10 µs: less than it takes to wake a thread that has gone to sleep


@cache
def loop(module: str, name: str) -> Callable[..., Any]:
    """A compiled loop; numba is first imported here."""
    require("numba", "the cpu backend of lutetia.lut")
    return getattr(import_module(f"lutetia.lut.kernels.cpu.loops.{module}"), name)


def over(n: int, additions: int, kernel: Callable[..., Any], *arguments: Any) -> int:
    """kernel(*arguments, begin, end) for ranges that make up range(n); returns flags. `additions` estimates the whole work."""
    return spread(min(torch.get_num_threads(), additions // SMALLEST_SHARE), n, kernel, *arguments)


def raise_if(flags: int, sums: Sums = FLOAT) -> None:
    """Raise what a kernel's flags stand for."""
    if flags & OUT_OF_MEMORY:
        raise MemoryError("a compiled kernel ran out of memory for its sums")
    if flags:
        raise_overflow(sums)

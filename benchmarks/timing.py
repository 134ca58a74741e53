"""Timing on a CPU, for the benchmarks beside this file."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def seconds(call: Callable[[], Any]) -> float:
    """How long one call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def in_turns(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each call, the calls taking turns; the first call of each compiles and is not counted."""
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            taken[name].append(1e3 * seconds(call))
    return {name: statistics.median(times) for name, times in taken.items()}

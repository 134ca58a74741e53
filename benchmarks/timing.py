"""Timing on a CPU, for the benchmarks beside this file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any


def seconds(call: Callable[[], Any]) -> float:
    """How long one call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def in_turns(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each call, the calls taking turns; the first call of each compiles and is not counted."""
    return {name: wall for name, (wall, _) in on_two_clocks(calls, repeats).items()}


def on_two_clocks(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, tuple[float, float]]:
    """As `in_turns`: median milliseconds of each call on the wall clock, and of processor time."""
    for call in calls.values():
        call()
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            processor = time.process_time()
            wall = 1e3 * seconds(call)
            taken[name].append((wall, 1e3 * (time.process_time() - processor)))
    return {name: (median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)) for name, pairs in taken.items()}


def peak_of(*words: str) -> float:
    """The number that a Python program prints last, which it measured by `peak_beyond` in a process of its own."""
    # Large blocks go back at once, so that what was freed does not count.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    return float(
        subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=True).stdout.split()[-1]
    )


def peak_beyond(call: Callable[[], Any]) -> float:
    """How much memory a call reaches beyond what this process has, in MiB (Linux only)."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    """A number of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

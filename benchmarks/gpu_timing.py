"""Timing on a CUDA device, for the benchmarks beside this file."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
import triton


def replayed(call: Callable[[], Any], calls: int = 20, repeats: int = 11) -> float:
    """Median ms of one call out of `calls` in one CUDA graph."""
    call()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    graph.replay()
    return statistics.median(timed(graph.replay) / calls for _ in range(repeats))


def eager(call: Callable[[], Any], calls: int = 20, repeats: int = 7) -> float:
    """Median ms of one call, launched one after the other from Python."""

    def several() -> None:
        for _ in range(calls):
            call()

    several()
    return statistics.median(timed(several) / calls for _ in range(repeats))


def timed(call: Callable[[], Any]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def machine() -> dict[str, str]:
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
    }

"""Timing on a CUDA device, for the benchmarks beside this file."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


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


def step_times(forward: Callable[[], Tensor], learned: Sequence[Tensor], grad: Tensor, calls: int = 20) -> dict[str, float]:
    """Median ms by "step, mode" of an eval and of a training step, which ends with the gradients of `learned`.

    The modes: *eager*, called from Python; *compiled*, the same with `torch.compile` around the forward pass; *graph*, replayed
    from a CUDA graph.
    """
    torch.compiler.reset()  # else the shapes of one benchmark share one limit of compilations, and the last ones run eagerly
    times = {}
    for mode, call in (("eager", forward), ("compiled", torch.compile(forward)), ("graph", forward)):
        time = replayed if mode == "graph" else eager
        times[f"eval, {mode}"] = time(lambda call=call: without_gradient(call), calls)
        times[f"train, {mode}"] = time(lambda call=call: torch.autograd.grad(call(), learned, grad), calls)
    return times


@torch.no_grad()
def without_gradient(call: Callable[[], Tensor]) -> Tensor:
    return call()

"""Timing on a CUDA device, for the benchmarks beside this file."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from empty_graph import empty_step

MODES = ("eager", "compiled", "graph")
# Eager steps are slower in a process that has compiled something: benchmarks take the first two of all shapes, then the third.
PASSES = (("eager", "graph"), ("compiled",))
ROUNDS = 15
Key = TypeVar("Key")


def replayed(call: Callable[[], Any], calls: int = 20, repeats: int = 11) -> float:
    """Median ms of one call out of `calls` in one CUDA graph."""
    replay = captured(call, calls)
    return statistics.median(timed(replay, replay) / calls for _ in range(repeats))


def captured(call: Callable[[], Any], calls: int) -> Callable[[], None]:
    """What replays so many calls from one CUDA graph; replayed once."""
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
    return graph.replay


def several(call: Callable[[], Any], calls: int) -> Callable[[], None]:
    """So many calls, one after the other; called once."""

    def run() -> None:
        for _ in range(calls):
            call()

    run()
    return run


def in_turns(runs: Mapping[Key, Callable[[], Any]], calls: int, rounds: int) -> dict[Key, float]:
    """Median ms of one of the `calls` of each run, timed right behind one that is not. They take turns: what slows the host down
    for a while slows all of them."""
    times: dict[Key, list[float]] = {key: [] for key in runs}
    for _ in range(rounds):
        for key, run in runs.items():
            times[key].append(timed(run, run) / calls)
    return {key: statistics.median(each) for key, each in times.items()}


def timed(call: Callable[[], Any], before: Callable[[], Any] | None = None) -> float:
    """ms from the end of what is called before, or from now, to the end of the call: behind another replay, launching a graph
    takes no time, and nothing is measured by what somebody else left in the caches."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    if before is not None:
        before()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def step_times(
    forward: Callable[[], Tensor],
    learned: Sequence[Tensor],
    grad: Tensor,
    modes: Sequence[str] = MODES,
    calls: int = 20,
    constants: Sequence[Tensor] = (),
) -> dict[str, float]:
    """Median ms by "step, mode" of an eval and of a training step, which ends with the gradients of `learned`. The eval steps of
    a run are in one `no_grad`.

    The modes: *eager*, called from Python; *compiled*, the same with `torch.compile` around the forward pass; *reduce-overhead*,
    that with this mode; *graph*, replayed from a CUDA graph. Without a graph small steps depend on the host: on an H200 machine
    one layer took 270 µs while the thread of backward passes ran on the caller's core, and up to 890 µs elsewhere.

    Beside *compiled* stands *empty graph*: compiled steps that compute nothing from the learned tensors and the constants.
    """
    if "compiled" not in modes:
        return in_turns(step_runs(lambda mode: compiled_as(mode, forward), learned, grad, calls, modes), calls, ROUNDS)
    torch.compiler.reset()  # else the shapes of one benchmark share one limit of compilations, and the last ones run eagerly
    runs = step_runs(lambda mode: compiled_as(mode, forward), learned, grad, calls, modes)
    empty = compiled_as("compiled", empty_step((*learned, *constants), grad))
    runs |= step_runs(lambda _: empty, learned, grad, calls, ["empty graph"])
    return in_turns(runs, calls, ROUNDS)


def compiled_as(mode: str, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function or module as it is called in a mode."""
    if mode not in ("compiled", "reduce-overhead"):
        return call
    return torch.compile(call, mode=None if mode == "compiled" else mode)


def step_runs(
    forward_in: Callable[[str], Callable[[], Tensor]], learned: Sequence[Tensor], grad: Tensor, calls: int, modes: Sequence[str]
) -> dict[str, Callable[[], Any]]:
    """By "step, mode" what runs so many steps, with the forward pass of each mode."""
    runs: dict[str, Callable[[], Any]] = {}
    for mode in modes:
        call, make = forward_in(mode), captured if mode == "graph" else several
        with torch.no_grad():
            runs[f"eval, {mode}"] = torch.no_grad()(make(call, calls))
        runs[f"train, {mode}"] = make(lambda call=call: torch.autograd.grad(call(), learned, grad), calls)
    return runs

"""Timing on a CUDA device, for the benchmarks beside this file."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from empty_graph import empty_step

MODES = ("eager", "compiled", "graph")
# Eager steps are slower in a process that has compiled something: the third has one of its own.
PASSES = (("eager", "graph"), ("compiled",))
ROUNDS = 15
WARM = 0.01  # s that a run goes on before it is timed: a process that waited for its turn begins slowly
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
Key = TypeVar("Key")
Runs = dict[str, Callable[[], Any]]
own_processes = True  # or all in this one, where a test pretends to have a GPU


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


class Steps(NamedTuple):
    """A forward pass, what it learns, the gradient of its output, and other tensors that it is given."""

    forward: Callable[[], Tensor]
    learned: Sequence[Tensor]
    grad: Tensor
    constants: Sequence[Tensor] = ()
    calls: int = 20  # of one run

    def runs(self, modes: Sequence[str]) -> Runs:
        """By "step, mode" what runs an eval and a training step, which ends with the gradients of what is learned.

        The modes: *eager*, called from Python; *compiled*, the same with `torch.compile` around the forward pass;
        *reduce-overhead*, that with this mode; *graph*, replayed from a CUDA graph. Beside *compiled* stands *empty graph*:
        compiled steps that compute nothing from the same tensors. The eval steps of a run are in one `no_grad`.
        """
        call, given = self.forward, (self.learned, self.grad, self.calls)
        if "compiled" not in modes:
            return step_runs(lambda mode: compiled_as(mode, call), *given, modes)
        torch.compiler.reset()  # else the shapes of one benchmark share one limit of compilations, and the last ones run eagerly
        runs = step_runs(lambda mode: compiled_as(mode, call), *given, modes)
        empty = compiled_as("compiled", empty_step((*self.learned, *self.constants), self.grad))
        return runs | step_runs(lambda _: empty, *given, ["empty graph"])


def in_processes(make: Callable[[Any, Sequence[str]], tuple[Runs, int]], cases: Sequence[Any]) -> list[dict[str, float]]:
    """For each case the median ms of its runs: make(case, modes) gives those in these modes, and the calls of each.

    Eager and compiled calls have a process each, on the same two cores, and take turns: what slows the host down for a while
    slows both. Without a graph small steps depend on it: on an H200 machine one layer took 270 µs while the thread of backward
    passes ran on the caller's core, and up to 890 µs elsewhere; and a whole run may take twice as long as the one before.
    """
    workers = [_Worker(make, modes) for modes in PASSES]
    try:
        return [_case_in_turns(workers, case) for case in cases]
    finally:
        for worker in workers:
            worker.close()


def _case_in_turns(workers: Sequence[_Worker], case: Any) -> dict[str, float]:
    for worker in workers:
        worker.ask(case)
    rounds = [{name: ms for worker in workers for name, ms in worker.ask(None).items()} for _ in range(ROUNDS)]
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


class _Worker:
    """A process that prepares the runs of a case, or times each of them once."""

    def __init__(self, make: Callable[..., Any], modes: Sequence[str]) -> None:
        self.here = None if own_processes else _answers(make, modes)
        if self.here is not None:
            next(self.here)
            return
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, make, modes), daemon=True)
        self.process.start()
        other.close()

    def ask(self, case: Any) -> dict[str, float]:
        if self.here is not None:
            return self.here.send(case)
        self.pipe.send(case)
        return self.pipe.recv()  # EOFError where it has died: its own error stands above

    def close(self) -> None:
        if self.here is None:
            self.pipe.close()
            self.process.join()


def _serve(pipe: Connection, make: Callable[..., Any], modes: Sequence[str]) -> None:
    os.sched_setaffinity(0, two_cores())
    with closing(pipe):
        answers = _answers(make, modes)
        next(answers)
        try:
            while True:
                pipe.send(answers.send(pipe.recv()))
        except EOFError:
            pass


def two_cores() -> list[int]:
    """Two cores of this machine that are not one with two threads; fewer where there are no more."""
    cores: dict[str, int] = {}
    for number in sorted(os.sched_getaffinity(0)):
        siblings = Path(SIBLINGS.format(number))
        cores[siblings.read_text() if siblings.exists() else str(number)] = number
    return list(cores.values())[-2:]


def _answers(make: Callable[..., Any], modes: Sequence[str]) -> Any:
    """A generator that is sent a case, or None for a turn, and gives the ms of each run of the latest case."""
    runs, calls, case = {}, 1, (yield {})
    while True:
        if case is not None:
            runs = {}  # and their memory
            runs, calls = make(case, modes)
        case = yield {} if case is not None else {name: warm(run) / calls for name, run in runs.items()}


def warm(run: Callable[[], Any]) -> float:
    """ms of a run, after it has gone on for a while."""
    end = time.perf_counter() + WARM
    while time.perf_counter() < end:
        run()
        torch.cuda.synchronize()  # a graph takes no time to launch, and many would wait in line
    return timed(run, run)


def compiled_as(mode: str, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function or module as it is called in a mode."""
    if mode not in ("compiled", "reduce-overhead"):
        return call
    return torch.compile(call, mode=None if mode == "compiled" else mode)


def step_runs(
    forward_in: Callable[[str], Callable[[], Tensor]], learned: Sequence[Tensor], grad: Tensor, calls: int, modes: Sequence[str]
) -> Runs:
    """By "step, mode" what runs so many steps, with the forward pass of each mode."""
    runs: Runs = {}
    for mode in modes:
        call, make = forward_in(mode), captured if mode == "graph" else several
        with torch.no_grad():
            runs[f"eval, {mode}"] = torch.no_grad()(make(call, calls))
        runs[f"train, {mode}"] = make(lambda call=call: torch.autograd.grad(call(), learned, grad), calls)
    return runs

"""The recorder: what a step tells, recordings within recordings, threads, and how long steps take."""

from __future__ import annotations

import ast
import gc
import importlib
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lutetia
import warm
from lutetia import flow
from lutetia.flow import Step, clock

recorder = importlib.import_module("lutetia.flow.record")  # `flow.record` is the function


def run_step(name: str, inputs: Mapping[str, Any] | None = None, /, **outputs: Any) -> None:
    with flow.step(name, inputs=inputs) as step:
        step.outputs(**outputs)


def source_path() -> dict[str, str]:
    """The environment in which another Python finds this lutetia."""
    return {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parents[1])}


def links(run: flow.Flow) -> list[tuple[str, str, str, str, str]]:
    steps = run.steps
    return [(steps[e.source].name, e.output, steps[e.target].name, e.input, e.kind) for e in run.edges]


# What a step tells


def test_a_step_tells_what_it_did() -> None:
    x, indices = torch.zeros(5, 3, dtype=torch.float64), torch.zeros(5, 7, 2, dtype=torch.int16)
    with flow.record() as run, flow.step("look_up", part="lut", inputs={"x": x.T}, tables=7) as step:
        step.outputs(indices=indices)
        step.note(algorithm="cells")
    (found,) = run.steps
    assert (found.id, found.name, found.part, found.parent, found.thread) == (0, "look_up", "lut", None, 0)
    assert found.device == "cpu"
    assert not found.failed
    assert found.attributes == {"tables": 7, "algorithm": "cells"}
    (before,), (after,) = found.inputs, found.outputs
    assert (before.name, before.shape, before.dtype, before.bytes, before.device) == ("x", (3, 5), "float64", 120, "cpu")
    assert (after.name, after.shape, after.dtype, after.bytes) == ("indices", (5, 7, 2), "int16", 140)
    assert before.producer is None
    assert after.producer == 0
    assert found.duration is not None
    assert found.duration >= 0 <= found.start


def test_bytes_are_those_of_the_view() -> None:
    with flow.record() as run:
        run_step("a", {"column": torch.zeros(10, 10)[:, 3], "empty": torch.zeros(0, 4), "scalar": torch.tensor(1.0)})
    assert [(t.shape, t.bytes) for t in run.steps[0].inputs] == [((10,), 40), ((0, 4), 0), ((), 4)]


def test_attributes_are_plain_values() -> None:
    with flow.record() as run, flow.step("a", flag=np.bool_(True), count=np.int64(3), x=np.float32(0.5)) as step:
        step.note(nan=float("nan"), infinite=-np.inf, dtype=torch.int8, nothing=None, tensor=torch.zeros(2), shape=(1, 2))
    assert run.steps[0].attributes == {
        "flag": True,
        "count": 3,
        "x": 0.5,
        "nan": "nan",
        "infinite": "-inf",
        "dtype": "torch.int8",
        "nothing": None,
        "tensor": "float32 [2] on cpu",
        "shape": "(1, 2)",
    }
    assert [type(value) for value in run.steps[0].attributes.values()][:3] == [bool, int, float]


def test_attributes_may_have_any_name() -> None:
    with flow.record() as run, flow.step("a", name="n", self="s") as step:
        step.note(name="m")
        step.outputs(self=torch.zeros(1), name=torch.zeros(1))
    assert run.steps[0].attributes == {"name": "m", "self": "s"}
    assert [tensor.name for tensor in run.steps[0].outputs] == ["self", "name"]


def test_nothing_is_made_when_nothing_records() -> None:
    idle = flow.step("a", part="lut", inputs={"x": torch.zeros(1)})
    assert idle is flow.step("b")
    with idle as step:
        step.outputs(y=torch.zeros(1))
        step.note(k=1)
    assert not flow.recording()
    with flow.record() as run:
        assert flow.recording()
        made = flow.step("c")
        made.outputs(y=torch.zeros(1))
        made.note(k=1)
        assert made is not idle
    assert not flow.recording()
    assert len(run) == 0  # made, but never entered


def test_reporting_loads_nothing_that_draws() -> None:
    code = "import sys, lutetia.flow; print([m for m in sys.modules if m.startswith('lutetia.flow.')])"
    done = warm.run(["-c", code], warm.Plain, env=source_path())
    assert done.returncode == 0, done.stderr
    assert set(ast.literal_eval(done.stdout)) == {f"lutetia.flow.{name}" for name in ("model", "record", "clock", "values")}


def test_an_exception_passes_through_and_is_marked() -> None:
    def fail() -> None:
        run_step("fine")
        with flow.step("inner") as step:
            step.outputs(y=torch.zeros(1))
            raise KeyError("lost")

    with flow.record() as run:
        with pytest.raises(KeyError, match="lost"), flow.step("outer"):
            fail()
        run_step("after")
    assert [(s.name, s.failed, s.parent) for s in run.steps] == [
        ("outer", True, None),
        ("fine", False, 0),
        ("inner", True, 0),
        ("after", False, None),
    ]
    assert len(run.steps[2].outputs) == 1
    assert all(step.duration is not None for step in run.steps)


def test_recording_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), flow.record() as run, flow.step("a"):
        _ = 1 / 0
    assert not flow.recording()
    assert run.steps[0].failed


def test_a_flow_can_be_read_while_it_is_recorded() -> None:
    with flow.record() as run:
        with flow.step("a"):
            assert [step.name for step in run.steps] == ["a"]
            assert run.steps[0].duration is None
        assert run.steps[0].duration is not None
        run_step("b")
    assert [step.name for step in run.steps] == ["a", "b"]
    assert run.part("user") == run.steps
    assert run.part("lut") == []


def test_a_step_that_outlives_the_recording_changes_nothing() -> None:
    recording = flow.record()
    run = recording.__enter__()
    with flow.step("a") as step:
        recording.__exit__(None, None, None)
        before = run.to_json()
        step.outputs(y=torch.zeros(1))
        step.note(late=True)
    assert run.to_json() == before
    assert run.steps[0].duration is None


# Recordings inside recordings, and threads


def test_inner_recordings_see_their_own_steps() -> None:
    x = torch.zeros(3)
    with flow.record() as outer:
        run_step("before", x=x)
        with flow.step("around"):
            with flow.record() as inner, flow.step("outer_child", inputs={"x": x}) as step:
                run_step("grandchild", {"x": x})
                step.outputs(y=x)
            run_step("last", {"x": x})
    assert [(s.id, s.name, s.parent) for s in outer.steps] == [
        (0, "before", None),
        (1, "around", None),
        (2, "outer_child", 1),
        (3, "grandchild", 2),
        (4, "last", 1),
    ]
    assert [(s.id, s.name, s.parent) for s in inner.steps] == [(0, "outer_child", None), (1, "grandchild", 0)]
    assert inner.edges == []  # `before` is unknown to it
    assert [(e.source, e.target) for e in outer.edges] == [(0, 2), (0, 3), (2, 4)]


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads take turns as often as they can, which brings out what a missing lock would do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
def test_threads_lose_nothing() -> None:
    threads, rounds = 8, 100
    ready = threading.Barrier(threads)

    def work(number: int) -> None:
        ready.wait()
        for index in range(rounds):
            with flow.step("outer", inputs={"x": torch.zeros(2)}, key=f"{number}:{index}") as outer:
                with flow.step("inner", key=f"{number}:{index}") as step:
                    y = torch.zeros(3)
                    step.outputs(y=y)
                run_step("reader", {"y": y})
                outer.outputs(y=y)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    with flow.record() as run:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    steps = run.steps
    assert [step.id for step in steps] == list(range(threads * rounds * 3))
    assert {step.thread for step in steps} == set(range(threads))
    assert all(a.start <= b.start for a, b in itertools.pairwise(steps))
    keys = [str(step.attributes["key"]) for step in steps if step.name == "outer"]
    assert sorted(keys) == sorted(f"{number}:{index}" for number in range(threads) for index in range(rounds))
    for step in steps:
        if step.name == "inner":
            assert step.parent is not None
            assert steps[step.parent].attributes["key"] == step.attributes["key"]
            assert steps[step.parent].thread == step.thread
    # every reader got its own thread's tensor, and nobody else's
    assert len(run.edges) == threads * rounds
    assert all(steps[e.source].parent == steps[e.target].parent and steps[e.target].name == "reader" for e in run.edges)


def test_a_thread_number_is_not_used_again() -> None:
    with flow.record() as run:
        for _ in range(3):
            worker = threading.Thread(target=run_step, args=("a",))
            worker.start()
            worker.join()
    assert [step.thread for step in run.steps] == [0, 1, 2]


def test_backward_is_recorded() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            with flow.step("double", inputs={"x": x}) as step:
                y = x * 2
                step.outputs(y=y)
            return y

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            with flow.step("double_backward", inputs={"grad": grad}) as step:
                made = grad * 2
                step.outputs(x_grad=made)
            return made

    x = torch.ones(3, requires_grad=True)
    with flow.record() as run:
        Double.apply(Double.apply(x)).sum().backward()
    assert [step.name for step in run.steps] == ["double", "double", "double_backward", "double_backward"]
    assert links(run) == [
        ("double", "y", "double", "x", "data"),
        ("double_backward", "x_grad", "double_backward", "grad", "data"),
    ]


def test_the_flow_lets_go_of_the_recorder() -> None:
    with flow.record() as run, flow.step("a") as step:
        step.outputs(x=torch.zeros(1))
        watched, memory = weakref.ref(recorder._recorders[-1]), weakref.ref(recorder._recorders[-1]._memory)
    gc.collect()
    assert memory() is None  # though `step` is still at hand
    assert run._settle is None
    assert watched() is not None
    del step
    gc.collect()
    assert watched() is None


def test_a_recorder_that_has_closed_begins_nothing() -> None:
    closed = recorder._Recorder()
    closed.close()
    assert closed.begin(Step(-1, "late", "user"), [], None, 0) is None
    assert len(closed.flow) == 0


# Durations that a device owes


class Event:
    """Stands in for a CUDA event that is done after 2 ms."""

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return 2.0


def owe(monkeypatch: pytest.MonkeyPatch, event: Any) -> None:
    monkeypatch.setattr(clock.Clock, "stop", lambda *_: clock.Pending(event, event))


def test_owed_durations_are_read_when_asked_for_or_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    owe(monkeypatch, Event())
    with flow.record() as run:
        run_step("a")
        assert run._steps[0].duration is None
        assert run.steps[0].duration == 0.002
        run_step("b")
    assert run._steps[1].duration == 0.002


def test_owed_durations_wait_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    owe(monkeypatch, Event())
    monkeypatch.setattr(recorder, "capturing", lambda: True)
    with flow.record() as run:
        run_step("a")
        assert run.steps[0].duration is None
    assert run.steps[0].duration is None
    monkeypatch.setattr(recorder, "capturing", lambda: False)
    assert run.steps[0].duration == 0.002
    assert run._settle is None


def test_a_device_that_failed_owes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Event):
        def synchronize(self) -> None:
            raise RuntimeError("the device is gone")

    owe(monkeypatch, Broken())
    with flow.record() as run:
        run_step("a")
    assert run.steps[0].duration is None


@pytest.mark.gpu
def test_cuda_steps_are_timed_on_the_device() -> None:
    x = torch.zeros(64, 64, device="cuda")
    torch.cuda.synchronize()
    with flow.record() as run:
        with flow.step("sleep", inputs={"x": x}) as step:
            torch.cuda._sleep(200_000_000)  # cycles: about a tenth of a second, which no launch takes
            step.outputs(y=x + 1)
        with flow.step("upload", inputs={"x": torch.zeros(8)}) as step:
            step.outputs(y=torch.zeros(8).cuda())
        run_step("host", {"x": torch.zeros(3)})
        assert run._steps[0].duration is None  # nobody waited for it yet
    assert [step.device for step in run.steps] == ["cuda:0", "cuda:0", "cpu"]
    durations = [step.duration for step in run.steps if step.duration is not None]
    assert len(durations) == 3
    assert durations[0] > 0.03 > durations[2]


@pytest.mark.gpu
def test_steps_in_a_captured_graph_have_no_duration() -> None:
    x = torch.zeros(64, device="cuda")
    before = torch.cuda.Event()
    before.record()
    graph = torch.cuda.CUDAGraph()
    with flow.record() as outside:
        run_step("eager", {"x": x}, y=x * 2)
        with torch.cuda.graph(graph):
            with flow.record() as inside, flow.step("captured", inputs={"x": x}) as step:
                y = x + 1
                step.outputs(y=y)
            assert outside.steps[1].duration is None
            run_step("host", {"n": torch.zeros(1)})
        run_step("after", {"y": y})
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [1.0] * 64
    assert [(s.name, s.duration is None) for s in outside.steps] == [
        ("eager", False),
        ("captured", True),
        ("host", False),
        ("after", False),
    ]
    assert inside.steps[0].duration is None
    assert [(e.source, e.target) for e in outside.edges] == [(1, 3)]


@pytest.mark.gpu
def test_cuda_backward_runs_on_another_thread() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            with flow.step("backward", inputs={"grad": grad}) as step:
                made = grad * 2
                step.outputs(made=made)
            return made

    x = torch.ones(3, device="cuda", requires_grad=True)
    with flow.record() as run, flow.step("main"):
        Double.apply(x).sum().backward()
    assert [(step.name, step.thread, step.parent) for step in run.steps] == [("main", 0, None), ("backward", 1, None)]
    assert run.steps[1].duration is not None


def test_bytes_of_nested_steps_are_counted_once() -> None:
    x = torch.ones(256)
    with flow.record() as run, flow.step("outer", inputs={"x": x}) as outer:
        run_step("inner", {"x": x}, y=x + 1)
        outer.outputs(y=x + 1)
    assert run.bytes_moved == 2 * 1024  # what the inner step read and wrote

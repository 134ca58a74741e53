"""Lanes: coroutines that take turns on one thread keep their steps apart."""

from __future__ import annotations

from collections.abc import Iterator

from lutetia import flow
from lutetia.flow import Flow


def work(lane: str | None) -> Iterator[None]:
    with flow.step("outer", lane=lane):
        yield
        with flow.step("inner", lane=lane):
            yield
    with flow.step("after", lane=lane):
        yield


def interleaved(*lanes: str | None) -> Flow:
    with flow.record() as run, flow.step("all"):
        programs = [work(lane) for lane in lanes]
        for turns in zip(*programs, strict=True):
            assert len(turns) == len(lanes)
        for program in programs:
            assert next(program, "ended") == "ended"
    return run


def test_a_step_is_inside_the_steps_of_its_own_lane() -> None:
    run = interleaved("a", "b", "c")
    assert len(run) == 10
    for step in run.steps[1:]:
        assert step.parent is not None
        parent = run.steps[step.parent]
        assert parent.name == ("outer" if step.name == "inner" else "all")
        assert parent.lane in (None, step.lane)
    assert {step.lane for step in run.steps} == {None, "a", "b", "c"}


def test_a_step_of_no_lane_is_inside_the_innermost() -> None:
    with flow.record() as run, flow.step("a", lane="x"), flow.step("b"), flow.step("c", lane="x"), flow.step("d", lane="y"):
        pass
    assert [step.parent for step in run.steps] == [None, 0, 1, 1]


def test_a_lane_survives_json() -> None:
    run = interleaved("a", "b")
    again = Flow.from_json(run.to_json())
    assert again == run
    assert [step.lane for step in again.steps] == [step.lane for step in run.steps]

"""Flows as JSON and as files: what goes out comes back the same, and nothing else comes in."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lutetia import flow
from lutetia.errors import ArgumentError, DataError, LutetiaError
from lutetia.flow import Edge, Flow, Step, TensorInfo


def recorded() -> Flow:
    x = torch.zeros(3, 5)
    with flow.record() as run:
        with flow.step("outer", part="lut", inputs={"x": x}, note="ü \U0001f409 \"'<>&") as outer:
            with flow.step("inner", inputs={"x": x[1:]}, rate=0.1, count=2**70, flag=False, none=None) as step:
                step.outputs(x=x)
            outer.outputs(y=torch.zeros(()), empty=torch.zeros(0, 2, dtype=torch.bool))
        with pytest.raises(ValueError, match="no"), flow.step("bad", inputs={"x": x}):
            raise ValueError("no")
    return run


counts = st.integers(0, 2**40)
seconds = st.floats(0, 1e6)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    count = draw(st.integers(0, 5))
    ids = st.integers(0, count - 1) if count else st.nothing()
    tensors = st.lists(
        st.builds(
            TensorInfo,
            name=st.text(),
            shape=st.lists(st.integers(-1, 2**40), max_size=4).map(tuple),
            dtype=st.text(),
            bytes=counts,
            device=st.text(),
            value=counts,
            producer=st.none() | ids,
        ),
        max_size=3,
    ).map(tuple)
    steps = [
        Step(
            id=index,
            name=draw(st.text()),
            part=draw(st.text()),
            inputs=draw(tensors),
            outputs=draw(tensors),
            parent=draw(st.none() | st.integers(0, index - 1)) if index else None,
            device=draw(st.text()),
            start=draw(seconds),
            duration=draw(st.none() | seconds),
            thread=draw(counts),
            failed=draw(st.booleans()),
            attributes=draw(st.dictionaries(st.text(), scalars, max_size=3)),
        )
        for index in range(count)
    ]
    kinds = st.sampled_from(["data", "in_place"])
    edges = st.builds(Edge, source=ids, target=ids, output=st.text(), input=st.text(), value=counts, kind=kinds)
    return Flow(steps, draw(st.lists(edges, max_size=4)) if count else [])


@settings(max_examples=100)
@given(flows())
def test_every_flow_comes_back_the_same(run: Flow) -> None:
    text = run.to_json()
    back = Flow.from_json(text)
    assert back == run
    assert back.to_json() == text
    for before, after in zip(run.steps, back.steps, strict=True):
        assert {k: type(v) for k, v in before.attributes.items()} == {k: type(v) for k, v in after.attributes.items()}


def test_a_recorded_flow_comes_back_the_same(tmp_path: Path) -> None:
    run = recorded()
    assert Flow.from_json(run.to_json()) == run
    run.save(tmp_path / "run.json")
    assert Flow.load(tmp_path / "run.json") == run
    assert Flow.load(str(tmp_path / "run.json")).steps[1].attributes["count"] == 2**70


def test_the_schema() -> None:
    x = torch.zeros(2, 3, dtype=torch.int16)
    with flow.record() as run:
        with flow.step("make", part="lut", tables=4) as step:
            step.outputs(indices=x)
        with flow.step("update", inputs={"i": x}) as step:
            step.outputs(i=x)
    data = json.loads(run.to_json())
    for step in data["steps"]:
        assert step.pop("start") >= 0
        assert step.pop("duration") >= 0
    tensor = {"shape": [2, 3], "dtype": "int16", "bytes": 12, "device": "cpu"}
    common = {"parent": None, "device": "cpu", "thread": 0, "failed": False}
    assert data == {
        "format": "lutetia.flow",
        "version": 1,
        "steps": [
            {
                "id": 0,
                "name": "make",
                "part": "lut",
                "inputs": [],
                "outputs": [{"name": "indices", **tensor, "value": 0, "producer": 0}],
                "attributes": {"tables": 4},
                **common,
            },
            {
                "id": 1,
                "name": "update",
                "part": "user",
                "inputs": [{"name": "i", **tensor, "value": 0, "producer": 0}],
                "outputs": [{"name": "i", **tensor, "value": 1, "producer": 1}],
                "attributes": {},
                **common,
            },
        ],
        "edges": [{"source": 0, "target": 1, "output": "indices", "input": "i", "value": 0, "kind": "in_place"}],
    }


def test_flows_are_equal_when_they_say_the_same() -> None:
    run = recorded()
    other = Flow.from_json(run.to_json())
    other.steps[0].name = "another"
    assert other != run
    assert run != run.to_json()
    assert Flow(run.steps, []) != run
    with pytest.raises(TypeError):
        hash(run)


def put(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of `data` with one field set, or taken away."""
    data = copy.deepcopy(data)
    *way, last = (int(key) if key.isdigit() else key for key in path.split("/"))
    place: Any = data
    for key in way:
        place = place[key]
    if value is REMOVED:
        del place[last]
    else:
        place[last] = value
    return data


REMOVED = object()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "lutetia.table", r"format is 'lutetia.table', expected 'lutetia.flow'"),
        ("format", REMOVED, r"format is None"),
        ("version", 2, r"version is 2, expected 1"),
        ("version", True, r"version is True, expected 1"),
        ("version", 1.0, r"version is 1.0, expected 1"),
        ("steps", REMOVED, r"flow has no field 'steps'"),
        ("steps", {}, r"flow.steps is {}, expected a list"),
        ("extra", 1, r"flow has a field 'extra' that version 1 does not know"),
        ("edges", None, r"flow.edges is None, expected a list"),
        ("steps/1", 7, r"flow.steps\[1\] is 7, expected an object"),
        ("steps/1/id", 2, r"steps\[1\].id is 2, expected 1, its position"),
        ("steps/1/id", True, r"steps\[1\].id is True"),
        ("steps/1/name", None, r"steps\[1\].name is None, expected a text"),
        ("steps/1/part", 3, r"steps\[1\].part is 3"),
        ("steps/1/color", "red", r"steps\[1\] has a field 'color'"),
        ("steps/1/device", REMOVED, r"steps\[1\] has no field 'device'"),
        ("steps/1/parent", 1, r"steps\[1\].parent is 1, expected an earlier step"),
        ("steps/1/parent", -1, r"steps\[1\].parent is -1"),
        ("steps/1/start", "0", r"steps\[1\].start is '0', expected a number of seconds"),
        ("steps/1/start", -1.0, r"steps\[1\].start is -1.0"),
        ("steps/1/start", None, r"steps\[1\].start is None"),
        ("steps/1/start", 10**400, r"steps\[1\].start is 1000"),
        ("steps/1/duration", float("inf"), r"steps\[1\].duration is inf"),
        ("steps/1/duration", float("nan"), r"steps\[1\].duration is nan"),
        ("steps/1/thread", -1, r"steps\[1\].thread is -1"),
        ("steps/1/failed", 0, r"steps\[1\].failed is 0, expected true or false"),
        ("steps/1/attributes", [], r"steps\[1\].attributes is \[\], expected an object"),
        ("steps/1/attributes/rate", [1], r"steps\[1\].attributes.rate is \[1\], expected a text, number, flag or null"),
        ("steps/1/attributes/rate", float("nan"), r"steps\[1\].attributes.rate is nan, expected a finite number"),
        ("steps/1/inputs", None, r"steps\[1\].inputs is None, expected a list"),
        ("steps/1/inputs/0/shape", [1, "2"], r"steps\[1\].inputs\[0\].shape\[1\] is '2', expected a size"),
        ("steps/1/inputs/0/shape", [-2], r"inputs\[0\].shape\[0\] is -2"),
        ("steps/1/inputs/0/shape", 3, r"inputs\[0\].shape is 3, expected a list"),
        ("steps/1/inputs/0/bytes", 1.5, r"inputs\[0\].bytes is 1.5, expected a whole number"),
        ("steps/1/inputs/0/value", None, r"inputs\[0\].value is None"),
        ("steps/1/inputs/0/producer", 3, r"steps\[1\].inputs\[0\].producer is 3, expected one of the 3 steps"),
        ("steps/1/outputs/0/dtype", REMOVED, r"steps\[1\].outputs\[0\] has no field 'dtype'"),
        ("edges/0/source", 3, r"edges\[0\].source is 3, expected one of the 3 steps"),
        ("edges/0/target", 9, r"edges\[0\].target is 9"),
        ("edges/0/target", None, r"edges\[0\].target is None"),
        ("edges/0/kind", "magic", r"edges\[0\].kind is 'magic', expected 'data' or 'in_place'"),
        ("edges/0/value", -1, r"edges\[0\].value is -1"),
        ("edges/0/output", 5, r"edges\[0\].output is 5"),
    ],
)
def test_anything_else_is_refused_by_name(path: str, value: Any, message: str) -> None:
    data = json.loads(recorded().to_json())
    assert Flow.from_json(json.dumps(data))
    with pytest.raises(DataError, match=message):
        Flow.from_json(json.dumps(put(data, path, value)))


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "3", '"lutetia.flow"', "<html>", "[" * 100_000, "1" * 5000, "{}\x00"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        Flow.from_json(text)


def test_truncated_text_is_refused() -> None:
    text = recorded().to_json()
    for end in range(0, len(text), 7):
        with pytest.raises(DataError):
            Flow.from_json(text[:end])


@settings(max_examples=100)
@given(st.data())
def test_damaged_text_never_surprises(data: st.DataObject) -> None:
    text = Flow([Step(0, "a", "lut", attributes={"k": 1.5}), Step(1, "b", "lut", parent=0)], [Edge(0, 1, "y", "x", 0)]).to_json()
    place = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:place] + data.draw(st.text(max_size=3)) + text[place + data.draw(st.integers(0, 3)) :]
    try:
        back = Flow.from_json(damaged)
    except DataError:
        return
    assert Flow.from_json(back.to_json()) == back


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ArgumentError, match="JSON"):
        Flow([Step(0, "a", "lut", duration=float("nan"))]).to_json()
    with pytest.raises(ArgumentError, match="JSON"):
        Flow([Step(0, "a", "lut", attributes={"k": object()})]).to_json()  # type: ignore[dict-item]
    with pytest.raises(ArgumentError, match=r"text is b'\{\}'"):
        Flow.from_json(b"{}")  # type: ignore[arg-type]


# Files


def test_the_suffix_says_what_is_written(tmp_path: Path) -> None:
    run = recorded()
    run.save(tmp_path / "run.mmd")
    run.save(tmp_path / "run.JSON")
    run.save(tmp_path / "run.html")
    assert (tmp_path / "run.mmd").read_text(encoding="utf-8") == run.mermaid()
    assert (tmp_path / "run.JSON").read_text(encoding="utf-8") == run.to_json()
    assert (tmp_path / "run.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("name", ["run.svg", "run", "json", ".json", "run.json.gz", ""])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match=r"\.html, \.json or \.mmd"):
        recorded().save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="a directory that exists"):
        recorded().save(tmp_path / "none" / "run.json")


def test_files_are_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    recorded().save(path)
    whole = path.read_text()
    assert Flow.from_json(whole) is not None

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("lutetia.files.os.replace", fail)
    with pytest.raises(DataError, match=r"run\.json cannot be written: the disk is full"):
        Flow().save(path)
    assert path.read_text() == whole
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_loading_says_which_file_was_wrong(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.json does not exist"):
        Flow.load(tmp_path / "missing.json")
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"bad\.json is not UTF-8"):
        Flow.load(tmp_path / "bad.json")
    (tmp_path / "other.json").write_text('{"format": "x"}')
    with pytest.raises(LutetiaError, match=r"other\.json is not a recorded flow: format is 'x'"):
        Flow.load(tmp_path / "other.json")

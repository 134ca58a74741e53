"""A flow as JSON and as files. The tables below are the schema, for writing and for checking what is read."""

from __future__ import annotations

import json
import math
import os
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from lutetia.errors import ArgumentError, DataError, fail
from lutetia.files import read_text, write_atomically
from lutetia.flow.model import Edge, Flow, Step, TensorInfo

FORMAT = "lutetia.flow"
VERSION = 1

Read = Callable[[str, Any], Any]  # takes the path of a value and the value; returns the value, or raises DataError


def to_json(flow: Flow) -> str:
    """The flow as compact ASCII JSON."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "steps": [_plain(step, STEP) for step in flow.steps],
        "edges": [_plain(edge, EDGE) for edge in flow.edges],
    }
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"the flow holds a value that JSON cannot represent: {error}") from error


def from_json(text: str) -> Flow:
    """The flow that `to_json` wrote."""
    if not isinstance(text, str):
        fail("text", text, "a str of JSON")
    try:
        data = json.loads(text)
    except RecursionError:
        raise DataError("the text is nested too deeply to be a recorded flow") from None
    except ValueError as error:
        raise DataError(f"the text is not whole JSON: {error}") from error
    if not isinstance(data, dict):
        _bad("the top level", data, "an object")
    for name, wanted in (("format", FORMAT), ("version", VERSION)):
        if type(data.get(name)) is not type(wanted) or data[name] != wanted:
            _bad(name, data.get(name), repr(wanted))
    flow = Flow(**_object("flow", {key: data[key] for key in data if key not in ("format", "version")}, FLOW))
    _check_references(flow)
    return flow


def save(flow: Flow, path: str | os.PathLike[str]) -> None:
    """Write a flow in the format that the suffix names."""
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix == ".json":
        text = to_json(flow)
    elif suffix == ".mmd":
        text = flow.mermaid()
    elif suffix == ".html":
        from lutetia.flow.html import flow_page

        text = flow_page(flow)
    else:
        fail("path", str(path), "a name that ends in .html, .json or .mmd")
    if not target.parent.is_dir():
        fail("path", str(path), "a file in a directory that exists")
    with write_atomically(target) as file:
        file.write(text.encode("utf-8", errors="replace"))


def load(path: str | os.PathLike[str]) -> Flow:
    """Read what `save` wrote as JSON."""
    text = read_text(path, "a recorded flow", most=None)
    try:
        return from_json(text)
    except DataError as error:
        raise DataError(f"{os.fspath(path)} is not a recorded flow: {error}") from error


def _plain(thing: object, fields: Mapping[str, Read]) -> dict[str, Any]:
    plain = {name: getattr(thing, name) for name in fields}
    for name in ("inputs", "outputs"):
        if name in plain:
            plain[name] = [_plain(tensor, TENSOR) for tensor in plain[name]]
    return plain


def _bad(where: str, value: object, expected: str) -> NoReturn:
    raise DataError(f"{where} is {reprlib.repr(value)}, expected {expected}")


def _object(where: str, data: object, fields: Mapping[str, Read]) -> dict[str, Any]:
    """An object with exactly these fields."""
    if not isinstance(data, dict):
        _bad(where, data, "an object")
    for name in fields:
        if name not in data:
            raise DataError(f"{where} has no field {name!r}")
    for name in data:
        if name not in fields:
            raise DataError(f"{where} has a field {reprlib.repr(name)} that version {VERSION} does not know")
    return {name: read(f"{where}.{name}", data[name]) for name, read in fields.items()}


def _string(where: str, value: object) -> str:
    return value if isinstance(value, str) else _bad(where, value, "a text")


def _flag(where: str, value: object) -> bool:
    return value if isinstance(value, bool) else _bad(where, value, "true or false")


def _count(where: str, value: object) -> int:
    return value if type(value) is int and value >= 0 else _bad(where, value, "a whole number from 0")


def _size(where: str, value: object) -> int:
    return value if type(value) is int and value >= -1 else _bad(where, value, "a size, or -1 where it is not known")


def _seconds(where: str, value: Any) -> float:
    number = type(value) in (int, float) and 0 <= value <= 1e300  # so that float() of a long int cannot fail
    return float(value) if number else _bad(where, value, "a number of seconds")


def _kind(where: str, value: object) -> str:
    return value if value in ("data", "in_place") else _bad(where, value, "'data' or 'in_place'")


def _attribute(where: str, value: object) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        _bad(where, value, "a finite number")
    return value if value is None or isinstance(value, str | int | float) else _bad(where, value, "a text, number, flag or null")


def _attributes(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        _bad(where, value, "an object")
    return {name: _attribute(f"{where}.{name}", item) for name, item in value.items()}


def _or_null(read: Read) -> Read:
    return lambda where, value: None if value is None else read(where, value)


def _each(read: Read, made: Callable[..., Any] = list) -> Read:
    def read_each(where: str, value: object) -> Any:
        if not isinstance(value, list):
            _bad(where, value, "a list")
        return made(read(f"{where}[{index}]", item) for index, item in enumerate(value))

    return read_each


TENSOR: dict[str, Read] = {
    "name": _string,
    "shape": _each(_size, tuple),
    "dtype": _string,
    "bytes": _count,
    "device": _string,
    "value": _count,
    "producer": _or_null(_count),
}
_TENSORS = _each(lambda where, value: TensorInfo(**_object(where, value, TENSOR)), tuple)
STEP: dict[str, Read] = {
    "id": _count,
    "name": _string,
    "part": _string,
    "inputs": _TENSORS,
    "outputs": _TENSORS,
    "parent": _or_null(_count),
    "device": _string,
    "start": _seconds,
    "duration": _or_null(_seconds),
    "thread": _count,
    "failed": _flag,
    "attributes": _attributes,
}
EDGE: dict[str, Read] = {
    "source": _count,
    "target": _count,
    "output": _string,
    "input": _string,
    "value": _count,
    "kind": _kind,
}
FLOW: dict[str, Read] = {
    "steps": _each(lambda where, value: Step(**_object(where, value, STEP))),
    "edges": _each(lambda where, value: Edge(**_object(where, value, EDGE))),
}


def _check_references(flow: Flow) -> None:
    """Every id is the id of a step, and every step is inside an earlier one."""
    count = len(flow.steps)
    for index, step in enumerate(flow.steps):
        if step.id != index:
            _bad(f"steps[{index}].id", step.id, f"{index}, its position")
        if step.parent is not None and step.parent >= index:
            _bad(f"steps[{index}].parent", step.parent, "an earlier step")
        for side, tensors in (("inputs", step.inputs), ("outputs", step.outputs)):
            for place, tensor in enumerate(tensors):
                if tensor.producer is not None and tensor.producer >= count:
                    _bad(f"steps[{index}].{side}[{place}].producer", tensor.producer, f"one of the {count} steps")
    for index, edge in enumerate(flow.edges):
        for end in ("source", "target"):
            if getattr(edge, end) >= count:
                _bad(f"edges[{index}].{end}", getattr(edge, end), f"one of the {count} steps")

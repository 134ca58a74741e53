"""Recording: `record` opens a recording, `step` is how every part reports to it.

Recordings are process-wide, since autograd runs backward on its own threads; the nesting of steps is per thread.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch

from lutetia.errors import describe
from lutetia.flow.clock import Clock, Pending, capturing
from lutetia.flow.model import Attribute, Edge, Flow, Step, TensorInfo
from lutetia.flow.values import Memory, Piece, TensorFacts, WrittenBytes, look, overlap, text

_recorders: tuple[_Recorder, ...] = ()  # replaced as a whole, so a step may read it without the lock
_lock = threading.Lock()
_threads = itertools.count()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.number = next(_threads)  # unlike thread idents, never reused after a thread ends
        self.open: list[_Reporting] = []  # the steps this thread is inside of, innermost last
        self.spent = 0.0  # seconds that this thread spent recording


_thread = _Thread()


def recording() -> bool:
    """Whether a recording is active: skip costly descriptions if not."""
    return len(_recorders) > 0  # bool() of such a tuple stops the compiler of torch 2.11


@contextmanager
def record() -> Iterator[Flow]:
    """Record every step that runs in the block, on all threads; the flow may be read inside it too."""
    global _recorders
    recorder = _Recorder()
    with _lock:
        _recorders = (*_recorders, recorder)
    try:
        yield recorder.flow
    finally:
        with _lock:
            _recorders = tuple(other for other in _recorders if other is not recorder)
        recorder.close()


def step(name: str, /, *, part: str = "user", inputs: Mapping[str, Any] | None = None, **attributes: Any) -> Reporter:
    """Report one step: `with flow.step("lookup", part="lut", inputs={"x": x}) as step: ...`.

    `inputs` names tensors of any shape; lists of tensors are opened, and what is not a tensor is left out.
    Call `step.outputs(y=y)` for what it made and `step.note(k=v)` for what is worth knowing. Coroutines that take turns on one
    thread each give their steps a `lane`, a name: a step of a lane is never inside a step of another.
    """
    if not _recorders:
        return _NOTHING
    return _Reporting(name, part, inputs or {}, attributes)


class Reporter:
    """What `with flow.step(...) as step` gives; this one does nothing, and is shared while nothing records."""

    __slots__ = ()

    def outputs(self, /, **tensors: Any) -> None:
        """Name what the step made, or updated in place: tensors of any shape. May be called several times."""

    def note(self, /, **attributes: Any) -> None:
        """Add attributes: numbers, texts, flags."""

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


_NOTHING = Reporter()


class _Reporting(Reporter):
    """A step that is being recorded, by one recorder or several."""

    __slots__ = ("_attributes", "_clock", "_devices", "_inputs", "_lane", "_name", "_opened", "_part")

    def __init__(self, name: str, part: str, inputs: Mapping[str, Any], attributes: dict[str, Any]) -> None:
        self._name, self._part, self._inputs, self._attributes = name, part, inputs, attributes
        self._lane = attributes.get("lane")
        self._opened: dict[_Recorder, _Opened] = {}
        self._devices: dict[str, None] = {}  # in order of appearance

    def holds(self, lane: object) -> bool:
        """Whether a step of this lane may be nested in this one; None means no lane."""
        return lane is None or self._lane is None or self._lane == lane

    def __enter__(self) -> Reporter:
        arrived = perf_counter()
        thread, lane = _thread, self._lane
        inputs, attributes = look(self._inputs), self._attributes
        self._inputs, self._attributes = {}, {}  # from here on only facts are kept, no tensors
        self._devices.update(dict.fromkeys(seen.device for seen in inputs))
        for recorder in _recorders:
            around = (
                outer._opened[recorder] for outer in reversed(thread.open) if recorder in outer._opened and outer.holds(lane)
            )
            parent = next(around, None)
            opened = recorder.begin(Step(-1, text(self._name), text(self._part)), inputs, parent, thread.number)
            if opened is not None:
                self._opened[recorder] = opened
        self.note(**attributes)
        thread.open.append(self)
        thread.spent += perf_counter() - arrived
        self._clock = Clock(self._devices, thread.spent)
        return self

    def outputs(self, /, **tensors: Any) -> None:
        arrived = perf_counter()
        made = look(tensors)
        self._devices.update(dict.fromkeys(seen.device for seen in made))
        for recorder, opened in self._opened.items():
            recorder.made(opened, made)
        _thread.spent += perf_counter() - arrived

    def note(self, /, **attributes: Any) -> None:
        known = {text(name): _attribute(value) for name, value in attributes.items()}
        for recorder, opened in self._opened.items():
            recorder.note(opened, known)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        thread = _thread
        took = self._clock.stop(self._devices, thread.spent)
        arrived = perf_counter()
        if self in thread.open:
            thread.open.remove(self)
        device = next((device for device in self._devices if device != "cpu"), "cpu")
        for recorder, opened in self._opened.items():
            recorder.end(opened, took, device, kind is not None)
        thread.spent += perf_counter() - arrived


class _Opened(NamedTuple):
    """One step in one recording, between its begin and its end."""

    step: Step
    reads: list[tuple[int, TensorFacts, WrittenBytes]]  # per edge into it: its index, the input, and the write it came from


class _Recorder:
    """One recording: its flow, who wrote what, and the durations that devices still owe."""

    def __init__(self) -> None:
        self.flow = Flow()
        self._steps, self._edges = self.flow.steps, self.flow.edges
        self.flow._settle = self._settle
        self._memory = Memory()
        self._threads: dict[int, int] = {}
        self._pending: list[tuple[Step, Pending]] = []
        self._closed = False
        # Re-entrant: the garbage collector may run a finaliser that reports a step while we hold it.
        self._lock = threading.RLock()
        self._began = perf_counter()

    def begin(self, step: Step, inputs: Sequence[TensorFacts], parent: _Opened | None, thread: int) -> _Opened | None:
        with self._lock:
            if self._closed:
                return None
            step.id = len(self._steps)
            step.start = perf_counter() - self._began
            step.parent = parent.step.id if parent else None
            step.thread = self._threads.setdefault(thread, len(self._threads))
            self._steps.append(step)
            opened = _Opened(step, [])
            step.inputs = tuple(self._read(opened, seen) for seen in inputs)
            return opened

    def _read(self, opened: _Opened, seen: TensorFacts) -> TensorInfo:
        writers = self._memory.writers(seen.pieces)
        if not writers:
            return _info(seen, self._memory.outside(seen.pieces), None)
        for writer in writers:
            opened.reads.append((len(self._edges), seen, writer))
            self._edges.append(Edge(writer.step, opened.step.id, writer.name, seen.name, writer.value))
        return _info(seen, writers[-1].value, writers[-1].step)

    def made(self, opened: _Opened, outputs: Sequence[TensorFacts]) -> None:
        with self._lock:
            if self._closed:
                return
            for seen in outputs:
                value, maker = self._memory.write(seen.pieces, opened.step.id, seen.name)
                opened.step.outputs += (_info(seen, value, maker),)
            for index, read, writer in opened.reads:
                if any(_share(out.pieces, read.pieces) and _share(out.pieces, [writer.piece]) for out in outputs):
                    self._edges[index] = replace(self._edges[index], kind="in_place")

    def note(self, opened: _Opened, attributes: Mapping[str, Attribute]) -> None:
        with self._lock:
            if not self._closed:
                opened.step.attributes.update(attributes)

    def end(self, opened: _Opened, took: float | Pending | None, device: str, failed: bool) -> None:
        with self._lock:
            if self._closed:
                return
            opened.step.device, opened.step.failed = device, failed
            if isinstance(took, Pending):
                self._pending.append((opened.step, took))
            else:
                opened.step.duration = took

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._memory = Memory()  # lets go of the weak references
        self._settle()

    def _settle(self) -> None:
        """Fill in the durations that devices owe; not during a capture, which waiting would break."""
        if self._pending and capturing():
            return
        with self._lock:
            pending, self._pending = self._pending, []
            closed = self._closed
        for step, took in pending:
            step.duration = took.seconds()
        if closed:
            self.flow._settle = None


def _info(seen: TensorFacts, value: int, producer: int | None) -> TensorInfo:
    return TensorInfo(seen.name, seen.shape, seen.dtype, seen.bytes, seen.device, value, producer)


def _share(some: Sequence[Piece], others: Sequence[Piece]) -> bool:
    return any(overlap(one, other) for one in some for other in others)


def _attribute(value: object) -> Attribute:
    """A value that JSON can hold and give back; what is not a number, text or flag is described in words."""
    if isinstance(value, torch.Tensor):
        return describe(value)  # its elements may be on a device, still to be computed
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    return text(value)

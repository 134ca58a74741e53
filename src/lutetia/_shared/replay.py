"""Functions that launch the same kernels again: recorded twice, then replayed without the Python around the launches.

A function of tensors that allocates, launches kernels and calls torch takes the same steps whenever its tensors have the same
sizes. Deciding on the steps takes Python longer than many of the kernels run. So the second and the third call of a kind are
recorded, step by step; if both did the same, a function made of just these steps serves all later ones.

Steps are allocations, launches through `launches.planned` and `nvrtc.Kernel`, and ops of torch. A call with a step whose result
depends on data, such as a number that is read back, is never replayed. Tensors that were neither given nor made by a step must be
the same in both recordings: layouts, which are computed once and kept, are; memory taken behind torch's back is not.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from lutetia._shared.direct import PLAIN, is_quiet
from lutetia._shared.prepared import allocator, current_device

MOST = 1024  # kinds of calls of one function, before all are forgotten
aten = torch.ops.aten
EMPTY = (aten.empty.memory_format, aten.new_empty.default, aten.empty_like.default, aten.empty_strided.default)
ZEROS = (aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default)
SAME = (aten.alias.default, aten.detach.default, aten.slice.Tensor, aten.view.default)  # where they give back all, as it is
UNSEEN = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)  # ops that look at data
WORD = re.compile(r"\b\w+\b")
on_cpu = False  # whether calls of CPU tensors are replayed: by tests, whose kernels run under Triton's interpreter


class Current(threading.local):
    """What records the calls of this thread, if anything does."""

    recorder: Recorder | None = None


current = Current()


class Kind:
    """Calls that are alike: their first recording, or what replays it."""

    __slots__ = ("first", "refused", "seen", "steps")

    def __init__(self) -> None:
        self.first: Recorder | None = None
        self.steps: Callable[..., Any] | None = None
        self.refused = False  # whether two recordings differed, or one had a step that cannot be replayed
        self.seen: list[Any] = []  # weak references to the constants

    def record(self, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """run(*arguments), and what was learned from it."""
        recorder = Recorder(arguments)
        result = recorder.record(run, arguments)
        if not recorder.complete or (self.first is not None and not recorder.is_like(self.first)):
            self.refused = True
        elif self.first is not None:
            self.steps = recorder.function()
        self.first = recorder if self.first is None and not self.refused else None
        return result


def replayed(run: Callable[..., Any], constants: Sequence[int], watched: Callable[[], bool]) -> Callable[..., Any]:
    """`run`, which takes tensors, numbers, text and dtypes, all by position; its steps are recorded and replayed.

    The values of the tensors at the places `constants` may decide on the steps: calls are alike if these are the same, unchanged.
    While `watched()`, nothing is recorded or replayed.
    """
    calls: dict[tuple[Any, ...], Kind] = {}

    @wraps(run)
    def call(*arguments: Any) -> Any:
        if not (arguments[0].is_cuda or on_cpu) or watched() or not is_quiet():
            return run(*arguments)
        key = _key(arguments, constants)
        if key is None:
            return run(*arguments)
        kind = calls.get(key)
        if kind is None:
            if len(calls) >= MOST:
                calls.clear()
            kind = calls[key] = Kind()
            given = [arguments[place] for place in constants if place < len(arguments) and arguments[place] is not None]
            kind.seen = [weakref.ref(each, lambda _: calls.pop(key, None)) for each in given]
            return run(*arguments)
        if kind.steps is not None:
            try:
                return kind.steps(*arguments)
            except torch.OutOfMemoryError:  # the steps were chosen when there was more of it
                calls.pop(key, None)
                return run(*arguments)
        if kind.refused or (arguments[0].is_cuda and torch.cuda.is_current_stream_capturing()):
            return run(*arguments)
        return kind.record(run, arguments)

    call.kinds = calls  # type: ignore[attr-defined]
    return call


def _key(arguments: tuple[Any, ...], constants: Sequence[int]) -> tuple[Any, ...] | None:
    """What two calls must share to have the same steps; None where that cannot be told."""
    found: list[Any] = [device := arguments[0].get_device()]
    first: dict[int, int] = {}  # where each tensor is given first: a step names one that is given twice by one of its places
    for place, each in enumerate(arguments):
        kind = type(each)
        if kind in PLAIN:
            found += each.shape, each.stride(), each.dtype, each.data_ptr() & 15, first.setdefault(id(each), place)
            if each.get_device() != device:
                return None
        elif kind is list:
            found.append(tuple(each))
        elif isinstance(each, Tensor):
            return None
        else:
            found.append(each)
    for place in constants:
        if place < len(arguments) and (each := arguments[place]) is not None:
            if each.is_inference():  # does not count its changes
                return None
            found += id(each), each._version
    return tuple(found) if device < 0 or device == current_device() else None


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class Recorder(TorchDispatchMode):
    """The steps of one call, as lines of a function. A tensor has a name as long as it lives: then its id may be another's."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.given = [f"a{place}" for place in range(len(arguments))]
        self.names: dict[int, str] = {}
        self.seen: dict[int, Any] = {}  # weak references
        self.made: set[str] = set()  # the names of what steps made
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {"empty": allocator(arguments[0])}
        self.addresses: dict[str, str] = {}
        self.complete = True
        for name, each in zip(self.given, arguments, strict=True):
            if isinstance(each, Tensor):
                self.call(each, name)

    def record(self, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """run(*arguments), every step of it written down."""
        current.recorder = self
        try:
            with self:
                result = run(*arguments)
        finally:
            current.recorder = None
        self.lines.append(f"return {self.text(result)}")
        self.seen.clear()
        return result

    def is_like(self, other: Recorder) -> bool:
        """Whether both did the same, with the same constants."""
        if not self.complete or self.lines != other.lines or self.constants.keys() != other.constants.keys():
            return False
        pairs = ((value, other.constants[name]) for name, value in self.constants.items())
        return all(a is b if isinstance(a, Tensor) or isinstance(b, Tensor) else a == b for a, b in pairs)

    def function(self) -> Callable[..., Any]:
        """What was recorded, as a function, which lets go of each tensor after the last step that needs it."""
        owners = {address: name for name, address in self.addresses.items()}
        last: dict[str, int] = {}
        for number, line in enumerate(self.lines[:-1]):
            for word in WORD.findall(line):
                last[owners.get(word, word)] = number
        kept = {*WORD.findall(self.lines[-1])}
        lines = list(self.lines)
        for name, number in last.items():
            if name in self.made and name not in kept:
                lines[number] += f"; del {name}"
        source = "\n    ".join([f"def steps({', '.join(self.given)}):", *lines])
        names = dict(self.constants)
        exec(compile(source, "<recorded steps>", "exec"), names)
        return names["steps"]

    # ---- steps

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """One op of torch."""
        output = func(*args, **(kwargs or {}))
        if func.namespace != "aten" or any(tag in func.tags for tag in UNSEEN):
            self.complete = False
        elif func in SAME and _layout(output) == _layout(args[0]):
            self.call(output, self.text(args[0]))
        elif func in EMPTY or func in ZEROS:
            size, stride, dtype = tuple(output.shape), tuple(output.stride()), self.constant(output.dtype)
            self.lines.append(f"{self.new(output)} = empty({size}, {stride}, {dtype})")
            if func in ZEROS:
                self.lines.append(f"{self.names[id(output)]}.zero_()")
        else:
            options = "".join(f", {name}={self.text(value)}" for name, value in (kwargs or {}).items())
            line = f"{self.constant(func)}({', '.join(map(self.text, args))}{options})"
            if isinstance(output, Tensor):
                self.lines.append(f"{self.new(output)} = {line}")
            elif output is None:
                self.lines.append(line)
            else:
                self.lines.append(f"{', '.join(map(self.new, output))}, = {line}")
        return output

    def add_launch(self, launch: Any, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
        """A `launches.Launch`; of a compiled kernel, by addresses."""
        with _disable_current_modes():
            launch(*arguments, *constants)
        name, compiled = self.constant(launch), launch.ready()
        given = ", ".join(map(self.address if compiled else self.text, arguments))
        self.lines.append(f"{name}{'.again' if compiled else ''}({given}, *{self.constant(constants)})")

    def add_kernel(self, kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], bits: list[int]) -> None:
        """An `nvrtc.Kernel`; bits are the arguments as it takes them, tensors by address."""
        given = [self.address(each) if isinstance(each, Tensor) else str(bit) for each, bit in zip(arguments, bits, strict=True)]
        self.lines.append(f"{self.constant(kernel)}.launch({grid}, [{', '.join(given)}])")

    # ---- values

    def new(self, tensor: Tensor) -> str:
        """The name of a tensor that a step gave: a new one, unless it gave back what it took."""
        if id(tensor) not in self.names:
            self.made.add(self.call(tensor, f"t{len(self.made)}"))
        return self.names[id(tensor)]

    def call(self, tensor: Tensor, name: str) -> str:
        """Call a tensor by this name from now on."""
        key = id(tensor)
        self.names[key], self.seen[key] = name, weakref.ref(tensor, lambda _: self.names.pop(key, None))
        return name

    def constant(self, value: Any) -> str:
        """The name of a value that every call has."""
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def text(self, value: Any) -> str:
        """A value as it stands in a line."""
        if isinstance(value, Tensor):
            return self.names[id(value)] if id(value) in self.names else self.call(value, self.constant(value))
        if isinstance(value, tuple | list):
            parts = ", ".join(map(self.text, value))
            if type(value) is list:
                return f"[{parts}]"
            named = hasattr(value, "_fields")
            return f"{self.constant(type(value))}({parts})" if named else f"({parts}{',' if value else ''})"
        return repr(value) if value is None or type(value) in (bool, int, str) else self.constant(value)

    def address(self, value: Any) -> str:
        """The same, where a kernel takes addresses of tensors."""
        if isinstance(value, tuple):
            return f"({', '.join(map(self.address, value))}{',' if value else ''})"
        name = self.text(value)
        if not isinstance(value, Tensor):
            return name
        if name not in self.addresses:
            self.addresses[name] = f"p{len(self.addresses)}"
            self.lines.append(f"{self.addresses[name]} = {name}.data_ptr()")
        return self.addresses[name]

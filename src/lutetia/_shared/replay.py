"""Functions that launch the same kernels again: recorded twice, then replayed without the Python around the launches.

A function of tensors that allocates, launches kernels and calls torch takes the same steps whenever its tensors have the same
sizes. Deciding on the steps takes Python longer than many of the kernels run. So the second and the third call of a kind are
recorded, step by step; if both did the same, a function made of just these steps serves all later ones.

Steps are allocations, launches through `launches.planned` and `nvrtc.Kernel`, and ops of torch. Launches that follow each other
are one `volley.Volley`. A view is no step: a kernel
takes an address in the tensor that it is a view of, and a tensor is made of it only for an op or for the caller. A call with a
step whose result depends on data, such as a number that is read back, is never replayed. Tensors that were neither given nor
made by a step must be the same in both recordings: layouts, which are computed once and kept, are; memory taken behind torch's
back is not.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from lutetia._shared.direct import PLAIN, is_quiet
from lutetia._shared.dtypes import without_rounding
from lutetia._shared.prepared import allocator, current_device
from lutetia._shared.steps import Make, Parameter, Shot, Step, Zeros, function_of

MOST = 1024  # kinds of calls of one function, before all are forgotten
MOST_GUARDS = 4  # of one kind
aten = torch.ops.aten
EMPTY = (aten.empty.memory_format, aten.new_empty.default, aten.empty_like.default, aten.empty_strided.default)
ZEROS = (aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default)
UNSEEN = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)  # ops that look at data
on_cpu = False  # whether calls of CPU tensors are replayed: by tests, whose kernels run under Triton's interpreter


class Current(threading.local):
    """What records the calls of this thread, if anything does."""

    recorder: Recorder | None = None


current = Current()


class Guard:
    """Whether a call is like an earlier one, by torch's own check of many tensors: in a fifth of the time of `_key`.

    A tensor that was given twice may be two tensors now, and is not for a guard.
    """

    __slots__ = ("aligned", "constants", "device", "other", "others", "same", "tensors")

    def __init__(self, arguments: tuple[Any, ...], constants: Sequence[int]) -> None:
        places = [place for place, each in enumerate(arguments) if isinstance(each, Tensor)]
        rest = [place for place in range(len(arguments)) if place not in places]
        self.tensors, self.others = _taking(places), _taking(rest)
        tensors, self.other = self.tensors(arguments), self.others(arguments)
        sizes, strides = ([list(of(each)) for each in tensors] for of in (Tensor.size, Tensor.stride))
        guards: Any = torch._C._dynamo.guards
        self.same = guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        self.aligned = [each.data_ptr() & 15 for each in tensors]
        kept = [place for place in constants if place in places]
        self.constants = [(place, weakref.ref(arguments[place]), arguments[place]._version) for place in kept]
        self.device = arguments[0].get_device()

    def fits(self, arguments: tuple[Any, ...]) -> bool:
        """Whether it is."""
        if len(arguments) != len(self.aligned) + len(self.other):  # those with a default may be left out
            return False
        tensors = self.tensors(arguments)
        if self.others(arguments) != self.other or not self.same(*tensors):
            return False
        if [each.data_ptr() & 15 for each in tensors] != self.aligned:
            return False
        for place, constant, version in self.constants:
            if arguments[place] is not constant() or arguments[place]._version != version:
                return False
        return self.device < 0 or self.device == current_device()


def _taking(places: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What takes the values at these places, as a tuple."""
    if len(places) < 2:
        return lambda values: tuple(values[place] for place in places)
    return itemgetter(*places)


class Kind:
    """Calls that are alike: their first recording, or what replays it."""

    __slots__ = ("first", "forget", "guards", "refused", "seen", "steps")

    def __init__(self, forget: Callable[[], None]) -> None:
        self.forget = forget
        self.guards: list[Guard] = []  # several: an eager call and one of a graph differ in more than counts here
        self.first: Recorder | None = None
        self.steps: Callable[..., Any] | None = None
        self.refused = False  # whether two recordings differed, or one had a step that cannot be replayed
        self.seen: list[Any] = []  # weak references to the constants

    def watch(self, arguments: tuple[Any, ...], constants: Sequence[int]) -> bool:
        """Know the next call like this one by a guard, if one can be made."""
        given = [id(each) for each in arguments if isinstance(each, Tensor)]
        if len({*given}) < len(given):
            return False
        self.guards = [Guard(arguments, constants), *self.guards[: MOST_GUARDS - 1]]
        return True

    def knows(self, arguments: tuple[Any, ...]) -> bool:
        """Whether a call is of this kind, by its guards."""
        return any(guard.fits(arguments) for guard in self.guards)

    def record(self, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """run(*arguments), and what was learned from it."""
        recorder = Recorder(arguments)
        result, first = recorder.record(run, arguments), self.first
        if not recorder.complete or (first is not None and not recorder.is_like(first)):
            self.refused = True
        elif first is not None:
            self.steps = function_of(recorder.given, recorder.steps, recorder.made, recorder.constants)
        self.first = recorder if first is None and not self.refused else None
        return result


class Replayed:
    """`run`, which takes tensors, numbers, text and dtypes, all by position; its steps are recorded and replayed.

    The values of the tensors at the places `constants` may decide on the steps: calls are alike if these are the same, unchanged.
    While `watched()`, nothing is recorded or replayed.
    """

    def __init__(self, run: Callable[..., Any], constants: Sequence[int], watched: Callable[[], bool]) -> None:
        self.run, self.constants, self.watched = run, constants, watched
        self.kinds: dict[tuple[Any, ...], Kind] = {}
        self.latest: dict[tuple[Any, ...], Kind] = {}  # with a guard, by the first of the constants and the shape of x
        update_wrapper(self, run)

    def __call__(self, *arguments: Any) -> Any:
        if not (arguments[0].is_cuda or on_cpu) or self.watched() or not is_quiet():
            return self.run(*arguments)
        place = (self.mark(arguments), arguments[0].shape)
        kind = self.latest.get(place)
        if kind is None or not kind.knows(arguments):
            kind = self._find(arguments, place)
            if kind is None:
                return self.run(*arguments)
        if kind.steps is None:
            return kind.record(self.run, arguments)
        try:
            if not torch._C._is_any_autocast_enabled():  # asked here: an empty context takes longer
                return kind.steps(*arguments)
            with without_rounding():  # what autocast did as they were recorded is among the steps
                return kind.steps(*arguments)
        except torch.OutOfMemoryError:  # the steps were chosen when there was more of it
            kind.forget()
        return self.run(*arguments)  # here, where the error no longer holds what the steps had made

    def mark(self, arguments: tuple[Any, ...]) -> int:
        """What tells calls of different layers apart: their first constant."""
        constants = self.constants
        return id(arguments[constants[0]]) if constants and constants[0] < len(arguments) else 0

    def kind_of(self, arguments: tuple[Any, ...]) -> Kind | None:
        """What replays a call, if a call like it was replayed just now."""
        kind = self.latest.get((self.mark(arguments), arguments[0].shape))
        return kind if kind is not None and kind.steps is not None and kind.knows(arguments) else None

    def _find(self, arguments: tuple[Any, ...], place: tuple[Any, ...]) -> Kind | None:
        """What replays or records this call, if anything should."""
        key = _key(arguments, self.constants)
        if key is None:
            return None
        kind = self.kinds.get(key)
        if kind is None:
            if len(self.kinds) >= MOST:
                self.kinds.clear()
                self.latest.clear()
            forget = partial(self._forget, key, place)
            kind = self.kinds[key] = Kind(forget)
            given = [arguments[number] for number in self.constants if number < len(arguments) and arguments[number] is not None]
            kind.seen = [weakref.ref(each, lambda _: forget()) for each in given]
            return None
        if kind.steps is not None:
            if kind.watch(arguments, self.constants):
                self.latest[place] = kind
            return kind
        return None if kind.refused or (arguments[0].is_cuda and torch.cuda.is_current_stream_capturing()) else kind

    def _forget(self, key: tuple[Any, ...], place: tuple[Any, ...]) -> None:
        self.kinds.pop(key, None)
        self.latest.pop(place, None)


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


class View(NamedTuple):
    """Where a tensor lies in another."""

    whole: str  # the name of the other
    size: tuple[int, ...]
    stride: tuple[int, ...]
    start: int  # in elements
    item: int  # bytes of one


def _is_view(func: Any, output: Any, given: Any) -> bool:
    """Whether an op gave a part of the tensor that it was given, or all of it, and changed nothing."""
    if not isinstance(output, Tensor) or not isinstance(given, Tensor) or func._schema.is_mutable:
        return False
    return output.dtype == given.dtype and output.untyped_storage()._cdata == given.untyped_storage()._cdata


class Recorder(TorchDispatchMode):
    """The steps of one call, as lines of a function. A tensor has a name as long as it lives: then its id may be another's."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.given = [f"a{place}" for place in range(len(arguments))]
        self.names: dict[int, str] = {}
        self.seen: dict[int, Any] = {}  # weak references
        self.made: set[str] = set()  # the names of what steps made
        self.views: dict[str, View] = {}  # by name
        self.places: dict[str, tuple[Any, ...]] = {}  # of what has views: where it begins in memory, size and stride
        self.steps: list[Step] = []
        makers: Any = torch._C._dynamo.guards
        self.constants: dict[str, Any] = {"empty": allocator(arguments[0]), "view": makers._reinterpret_tensor}
        self.complete, self.device = True, arguments[0].device
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
        self.add(f"return {self.text(result)}")
        self.seen.clear()
        return result

    def is_like(self, other: Recorder) -> bool:
        """Whether both did the same, with the same constants."""
        if not self.complete or self.steps != other.steps or self.constants.keys() != other.constants.keys():
            return False
        pairs = ((value, other.constants[name]) for name, value in self.constants.items())
        return all(a is b if isinstance(a, Tensor) or isinstance(b, Tensor) else a == b for a, b in pairs)

    # ---- steps

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """One op of torch."""
        output = func(*args, **(kwargs or {}))
        outputs = output if isinstance(output, tuple | list) else (output,)
        if func.namespace != "aten" or any(tag in func.tags for tag in UNSEEN) or self.leaves(args, outputs):
            self.complete = False
        elif args and outputs and all(_is_view(func, each, args[0]) for each in outputs):
            for each in outputs:
                self.add_view(each, args[0])
        elif (func in EMPTY or func in ZEROS) and output.device == self.device:
            size, stride, dtype = tuple(output.shape), tuple(output.stride()), self.constant(output.dtype)
            name, n_bytes = self.new(output), output.untyped_storage().nbytes()
            self.add(f"{name} = empty({size}, {stride}, {dtype})", Make(name, n_bytes))
            if func in ZEROS:
                self.add(f"{name}.zero_()", Zeros(name, n_bytes) if output.is_cuda else None)
        else:
            options = "".join(f", {name}={self.text(value)}" for name, value in (kwargs or {}).items())
            line = f"{self.constant(func)}({', '.join(map(self.text, args))}{options})"
            if isinstance(output, Tensor):
                self.add(f"{self.new(output)} = {line}")
            elif output is None:
                self.add(line)
            else:
                self.add(f"{', '.join(map(self.new, output))}, = {line}")
        return output

    def leaves(self, given: tuple[Any, ...], outputs: Any) -> bool:
        """Whether an op copies to another device, such as a CPU, where its values can be read without an op."""
        away = any(isinstance(each, Tensor) and each.device != self.device for each in outputs)
        return away and any(isinstance(each, Tensor) and each.device == self.device for each in given)

    def add(self, text: str, does: Shot | Zeros | Make | None = None) -> None:
        """One more step."""
        self.steps.append(Step(text, does))

    def add_launch(self, launch: Any, arguments: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
        """A `launches.Launch`; of a compiled kernel, by addresses."""
        with _disable_current_modes():
            launch(*arguments, *constants)
        name, compiled = self.constant(launch), launch.ready()
        given = ", ".join(map(self.address if compiled else self.text, arguments))
        text = f"{name}{'.again' if compiled else ''}({given}, *{self.constant(constants)})"
        self.add(text, self.aimed(launch.shot(*arguments, *constants) if compiled else None))

    def add_kernel(self, kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...], bits: list[int]) -> None:
        """An `nvrtc.Kernel`; bits are the arguments as it takes them, tensors by address."""
        pairs = list(zip(arguments, bits, strict=True))
        given = [self.address(each) if isinstance(each, Tensor) else str(bit) for each, bit in pairs]
        shot = kernel.shot(grid, tuple(each if isinstance(each, Tensor) else bit for each, bit in pairs))
        self.add(f"{self.constant(kernel)}.launch({grid}, [{', '.join(given)}])", self.aimed(shot))

    def aimed(self, shot: Shot | None) -> Shot | None:
        """A launch with names in the place of tensors."""
        return shot and shot._replace(given=tuple(self.parameter(x) if isinstance(x, Tensor) else x for x in shot.given))

    def add_view(self, view: Tensor, given: Tensor) -> None:
        """A tensor that lies in a given one; no step before it is needed."""
        name = self.name(given)
        whole = self.views[name].whole if name in self.views else name
        if whole not in self.places:
            self.places[whole] = given.storage_offset(), given.shape, given.stride()
        start, size, stride = self.places[whole]
        if (view.storage_offset(), view.shape, view.stride()) == (start, size, stride):
            self.call(view, whole)
            return
        place = View(whole, tuple(view.shape), tuple(view.stride()), view.storage_offset() - start, view.element_size())
        self.views[self.new(view)] = place

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

    def name(self, tensor: Tensor) -> str:
        """The name of a tensor: that of a constant, if no step and no caller gave it."""
        return self.names[id(tensor)] if id(tensor) in self.names else self.call(tensor, self.constant(tensor))

    def text(self, value: Any) -> str:
        """A value as it stands in a line."""
        if isinstance(value, Tensor):
            name = self.name(value)
            if name in self.views:  # needed as a tensor after all, from now on
                whole, size, stride, start, _ = self.views.pop(name)
                self.places[name] = value.storage_offset(), value.shape, value.stride()
                self.add(f"{name} = view({whole}, {size}, {stride}, {start})")
            return name
        if isinstance(value, tuple | list):
            parts = ", ".join(map(self.text, value))
            if type(value) is list:
                return f"[{parts}]"
            named = hasattr(value, "_fields")
            return f"{self.constant(type(value))}({parts})" if named else f"({parts}{',' if value else ''})"
        return repr(value) if value is None or type(value) in (bool, int, str) else self.constant(value)

    def parameter(self, value: Tensor) -> Parameter:
        """A tensor by its name and the bytes from there on."""
        name = self.name(value)
        if name not in self.views:
            return Parameter(name, 0)
        view = self.views[name]
        return Parameter(view.whole, view.start * view.item)

    def address(self, value: Any) -> str:
        """A value as it stands in a line, where a kernel takes addresses of tensors."""
        if isinstance(value, tuple):
            return f"({', '.join(map(self.address, value))}{',' if value else ''})"
        if not isinstance(value, Tensor):
            return self.text(value)
        name, start = self.parameter(value)
        return f"{name}.data_ptr() + {start}" if start else f"{name}.data_ptr()"

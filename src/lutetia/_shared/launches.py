"""Triton launches that ask Triton only once: a compiled kernel is kept and launched again without its just-in-time front end.

At every call Triton determines which compiled kernel fits the types, alignments and constants of the arguments. That takes longer
than a small kernel. A `Launch` does it at its first call only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs

from lutetia._shared import driver
from lutetia._shared.nvrtc import FLOAT
from lutetia._shared.replay import current
from lutetia._shared.steps import MOST_PARAMETERS, Shot


class Launch:
    """One kernel, one grid, one signature.

    The caller promises that every call has arguments of the same types, the same constants, pointers aligned alike (to 16 bytes
    or not) and, where Triton specialises on them, integers alike; all positional, in the order of the kernel's parameters.
    """

    __slots__ = ("compiled", "device", "grid", "kernel", "options")

    def __init__(self, kernel: Any, grid: tuple[int, ...], device: torch.device, **options: Any) -> None:
        self.kernel, self.grid, self.options, self.device = kernel, (*grid, 1, 1)[:3], options, device.index
        self.compiled: Any = None  # until the first call, and always under the interpreter

    def __call__(self, *arguments: Any) -> None:
        """Launch on the current stream."""
        if self.ready():
            self.again(*arguments)
            return
        compiled = self.kernel[self.grid](*arguments, **self.options)
        if compiled is not None and torch.cuda.current_device() == self.device:  # one of another device would not run here
            self.compiled = compiled

    def ready(self) -> bool:
        """Whether a call would be launched at once, by `again`."""
        return self.compiled is not None and not watched() and torch._C._cuda_getDevice() == self.device

    def again(self, *arguments: Any) -> None:
        """Launch what was compiled, on the current stream; addresses may be numbers, which cost less than tensors."""
        kernel = self.compiled
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        kernel.run(*self.grid, stream, kernel.function, kernel.packed_metadata, None, None, None, *arguments)

    def shot(self, *arguments: Any) -> Shot | None:
        """The launch, to be made among others; None where Triton must make it: the kernel needs more than its arguments."""
        kernel, given = self.compiled, []
        meta = kernel.metadata
        needs = [getattr(meta, name, 0) for name in ("global_scratch_size", "profile_scratch_size", "launch_pdl")]
        if any(needs) or getattr(meta, "launch_cooperative_grid", False) or meta.num_ctas != 1:
            return None
        leaves = [pair for pair in _leaves(tuple(kernel.src.signature.values()), arguments) if pair[0] != "constexpr"]
        for kind, value in leaves:
            if kind.startswith("*"):
                given.append(0 if value is None else value)
            elif kind == "fp32":
                given.append(int.from_bytes(FLOAT.pack(value), "little"))
            elif kind[1:].isdigit() and kind[0] in "iu":
                given.append(int(value) & 0xFFFFFFFFFFFFFFFF)
            else:
                return None
        sizes = driver.parameter_sizes(kernel.function)
        widths = [8 if kind.startswith("*") or kind.endswith("64") else 4 for kind, _ in leaves]
        if sizes is None or len(sizes) > MOST_PARAMETERS or widths != sizes[: len(leaves)]:
            return None
        given += [0] * (len(sizes) - len(leaves))  # memory that a kernel may ask for, and this one does not
        return Shot(kernel.function, self.grid, 32 * meta.num_warps, meta.shared, tuple(given))  # type: ignore[arg-type]


def _leaves(kinds: Any, values: Any) -> Iterator[tuple[str, Any]]:
    """The kind of each argument of a kernel and its value, tuples taken apart."""
    for kind, value in zip(kinds, values, strict=True):
        if isinstance(kind, tuple):
            yield from _leaves(kind, value)
        else:
            yield kind, value


MOST = 8192  # launches that are known, before all are forgotten


class Planned(NamedTuple):
    """A launch, and the constants that follow its arguments."""

    launch: Launch
    constants: tuple[Any, ...]


_known: dict[tuple[Any, ...], Planned] = {}


def planned(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Planned]:
    """kernel[grid], where Triton's lookup runs once per kind of arguments; constants and options are keywords."""
    return partial(_run, kernel, grid)


def _run(kernel: Any, grid: tuple[int, ...], *arguments: Any, **keywords: Any) -> Planned:
    key = (id(kernel), grid, _signature(arguments), *keywords.values())
    known = _known.get(key)
    if known is None:
        names = kernel.arg_names[len(arguments) :]
        options = {name: value for name, value in keywords.items() if name not in names}
        if len(_known) >= MOST:
            _known.clear()
        launch = Launch(kernel, grid, _device(arguments), **options)
        known = _known[key] = Planned(launch, tuple(keywords[name] for name in names))
    if current.recorder is not None:
        current.recorder.add_launch(known.launch, arguments, known.constants)
    else:
        known.launch(*arguments, *known.constants)
    return known


def _signature(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What Triton specialises on, and more: integers count by value, floats only by type."""
    found: list[Any] = []
    for each in arguments:  # tensors last: whether something is one takes longest to find out
        if each is None or type(each) is int:
            found.append(each)
        elif isinstance(each, tuple):
            found.append(_signature(each))
        elif isinstance(each, float):
            found.append(float)
        elif isinstance(each, Tensor):
            found += each.dtype, each.data_ptr() & 15, each.get_device()
        else:
            found.append(each)
    return tuple(found)


def _device(arguments: tuple[Any, ...]) -> torch.device:
    """Where the first tensor is."""
    flat: list[Any] = list(arguments)
    for each in flat:
        if isinstance(each, Tensor):
            return each.device
        flat += each if isinstance(each, tuple) else ()
    raise AssertionError("a kernel without tensors")


def watched() -> bool:
    """Whether a profiler listens to launches."""
    hook = knobs.runtime.launch_enter_hook
    return bool(getattr(hook, "calls", hook))

"""The steps of a recorded call, and a function made of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

import torch

WORD = re.compile(r"\b\w+\b")
ROOM = "room"  # the name of what several tensors share
MOST_PARAMETERS = 96  # of a launch among others


class Parameter(NamedTuple):
    """An address that a kernel is given: so many bytes after that of a named tensor."""

    name: str
    n_bytes: int


class Shot(NamedTuple):
    """A launch: the driver's handle of a kernel, grid, threads of a block and bytes that they share, and what it is given, each
    a `Parameter` or a number of 64 bits; as it is recorded, a tensor."""

    function: int
    grid: tuple[int, int, int]
    threads: int
    shared: int
    given: tuple[Any, ...]


class Zeros(NamedTuple):
    """Memory on a GPU that is set to zero."""

    name: str
    n_bytes: int


class Make(NamedTuple):
    """Memory that is allocated."""

    name: str
    n_bytes: int


class Step(NamedTuple):
    """A line of a function, and what it does, unless that is an op of torch."""

    text: str
    does: Shot | Zeros | Make | None = None

    def names(self) -> list[str]:
        """The words of the line, or the tensors whose addresses it needs."""
        if self.does is None:
            return WORD.findall(self.text)
        if not isinstance(self.does, Shot):
            return [self.does.name]
        return [each.name for each in self.does.given if isinstance(each, Parameter)]


def function_of(given: list[str], steps: list[Step], made: set[str], constants: dict[str, Any]) -> Callable[..., Any]:
    """A function of the given names that takes these steps, the last of which returns; `made` are the names that they give to
    tensors, each of which is let go after the last step that needs it."""
    last = {name: number for number, step in enumerate(steps) for name in step.names()}
    lines, names = [], dict(constants)
    for is_text, numbers in groupby(range(len(steps)), lambda number: steps[number].does is None):
        part = list(numbers)
        if is_text:
            for number in part:
                gone = sorted(name for name in made if last.get(name) == number)
                lines.append(_let_go(steps[number].text, gone if number + 1 < len(steps) else []))
        else:
            ending = {name for name in made if part[0] <= last.get(name, -1) <= part[-1]}  # a view need not be anywhere
            lines += _launched([steps[number] for number in part], ending, names)
    source = "\n    ".join([f"def steps({', '.join(given)}):", *lines])
    exec(compile(source, "<recorded steps>", "exec"), names)
    return names["steps"]


def _let_go(line: str, gone: list[str]) -> str:
    return "; del ".join([line, *gone])


def _launched(steps: list[Step], ending: set[str], names: dict[str, Any]) -> list[str]:
    """Allocations and launches that follow each other, as lines: what is made and `ending` here is one allocation."""
    makes = {step.does.name: step.does.n_bytes for step in steps if isinstance(step.does, Make)}
    items = [step.does for step in steps if isinstance(step.does, Shot | Zeros)]
    own = makes.keys() & ending if items else set()
    lines = [step.text for step in steps if isinstance(step.does, Make) and step.does.name not in own]
    if not items:
        return [*lines[:-1], _let_go(lines[-1], sorted(ending))]
    from lutetia._shared import volley  # loads numba

    uses = {name: [number for number, step in enumerate(steps) if name in step.names()] for name in own}
    places, n_bytes = volley.share({name: volley.Room(makes[name], each[0], each[-1]) for name, each in uses.items()})
    if own:
        names["byte"] = torch.uint8
        lines.append(f"{ROOM} = empty(({n_bytes},), (1,), byte)")
    needed = [name for step in steps if not isinstance(step.does, Make) for name in step.names()]
    bases = list(dict.fromkeys(ROOM if name in own else name for name in needed))
    launch = f"volley{len(names)}"
    begins = {name: (bases.index(ROOM), places[name]) if name in own else (bases.index(name), 0) for name in needed}
    names[launch] = volley.Volley(items, begins)
    line = f"{launch}({', '.join(f'{name}.data_ptr()' for name in bases)})"
    return [*lines, _let_go(line, [*sorted(ending - own), *([ROOM] if own else [])])]

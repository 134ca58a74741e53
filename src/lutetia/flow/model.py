"""The parts of a recorded run: tensors, steps, edges, and the flow that holds them.

These are plain values: names, shapes and numbers. No tensor is ever kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Attribute: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as one step saw it."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # "float32"
    bytes: int  # elements × element size; excludes the rest of the storage beyond the view
    device: str  # "cpu", "cuda:0"
    value: int  # a number per value: the same for views of it, a new one after an in-place update
    producer: int | None  # id of the step that made the value, None when it came from outside


@dataclass(slots=True)
class Step:
    """One thing that happened: a kernel call, a message, a promise, a table emitted."""

    id: int  # position in Flow.steps
    name: str
    part: str  # "lut", "attention", "relevance", "precompute", "user"
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    parent: int | None = None  # the step this one ran inside
    device: str = "cpu"
    start: float = 0.0  # seconds since the recording began
    duration: float | None = None  # seconds; None when it could not be measured (inside a CUDA graph capture)
    thread: int = 0  # small numbers in order of appearance
    failed: bool = False  # an exception left the step
    attributes: dict[str, Attribute] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The sizes of all inputs and outputs."""
        return sum(tensor.bytes for tensor in (*self.inputs, *self.outputs))

    @property
    def lane(self) -> str | None:
        """Which of several coroutines on one thread ran it, such as "core 0"; kept among the attributes."""
        lane = self.attributes.get("lane")
        return None if lane is None else str(lane)


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that left one step and entered another."""

    source: int  # step ids
    target: int
    output: str  # its name where it was made
    input: str  # its name where it was used
    value: int
    kind: Literal["data", "in_place"] = "data"  # in_place: the target overwrote it


class Flow:
    """A recorded run: what happened, in the order in which it began, and what flowed from where to where.

    Two flows are equal when their steps and edges are.
    """

    __slots__ = ("_edges", "_settle", "_steps")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, steps: Iterable[Step] = (), edges: Iterable[Edge] = ()) -> None:
        self._steps = list(steps)
        self._edges = list(edges)
        self._settle: Callable[[], None] | None = None  # set by the recorder while durations are missing

    @property
    def steps(self) -> list[Step]:
        """Every step; `steps[i].id == i`. Waits for the CUDA device if a duration is still missing."""
        if self._settle is not None:
            self._settle()
        return self._steps

    @property
    def edges(self) -> list[Edge]:
        """What flowed, in the order in which it was used."""
        return self._edges

    def part(self, name: str) -> list[Step]:
        """The steps of one part, such as "lut"."""
        return [step for step in self.steps if step.part == name]

    def leaves(self) -> list[Step]:
        """The innermost steps, those that did the work; a step with steps inside is not one of them."""
        outer = {step.parent for step in self.steps}
        return [step for step in self.steps if step.id not in outer]

    @property
    def bytes_moved(self) -> int:
        """The bytes of all tensors that the innermost steps read or wrote; a step with inner steps adds nothing itself."""
        return sum(step.bytes for step in self.leaves())

    def __len__(self) -> int:
        return len(self._steps)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Flow):
            return NotImplemented
        return self.steps == other.steps and self.edges == other.edges

    def __repr__(self) -> str:
        return f"Flow({len(self._steps)} steps, {len(self._edges)} edges)"

    def mermaid(
        self,
        direction: str = "TD",
        parts: str | Iterable[str] | None = None,
        symbols: Mapping[str, int] | None = None,
        limit: int = 200,
    ) -> str:
        """The flow as a Mermaid flowchart.

        `parts` keeps only the steps of those parts. `symbols`, such as `{"B": 64}`, shows sizes by name where a name is certain:
        a size that two names share stays a number, unless the layout of the tensor is known. Beyond `limit` steps, similar steps
        are drawn as one, with a count.
        """
        from lutetia.flow.mermaid import mermaid

        return mermaid(self, direction, parts, symbols, limit)

    def to_json(self) -> str:
        """The flow as JSON text, from which `Flow.from_json` makes an equal flow."""
        from lutetia.flow.serialize import to_json

        return to_json(self)

    @staticmethod
    def from_json(text: str) -> Flow:
        """The flow that `to_json` wrote; DataError, naming the field, when the text is anything else."""
        from lutetia.flow.serialize import from_json

        return from_json(text)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the flow as a page, as data or as a diagram: `.html`, `.json` or `.mmd`."""
        from lutetia.flow.serialize import save

        save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Flow:
        """Read a `.json` file that `save` wrote; DataError when it is missing or damaged."""
        from lutetia.flow.serialize import load

        return load(path)

"""A flow as a Mermaid flowchart: square boxes are tensors, round green boxes are steps, frames are steps with steps inside.

Drawn in three passes: group steps and values into boxes (one each, or one for similar ones), find the arrows between boxes,
and write the text. Names come from outside, so ids are made here and every label is escaped.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from lutetia.errors import check_choice, check_range, fail
from lutetia.flow.axes import axis_names, size_name
from lutetia.flow.model import Flow, Step, TensorInfo

DIRECTIONS = ("TD", "TB", "BT", "LR", "RL")
# Mermaid's default limit; only the page around a diagram can raise it.
MOST_ARROWS = 500
MERMAID_LIMIT = 50_000
LONGEST_NAME = 60

STYLES = {
    "tensor": "fill:#ffffff,stroke:#757575,color:#000000",
    "step": "fill:#81c784,stroke:#519657,color:#000000",
    "failed": "fill:#e57373,stroke:#af4448,color:#000000",
}


def mermaid(
    flow: Flow,
    direction: str = "TD",
    parts: str | Iterable[str] | None = None,
    symbols: Mapping[str, int] | None = None,
    limit: int = 200,
) -> str:
    """The flow as the text of a Mermaid flowchart; see `Flow.mermaid`."""
    check_choice("direction", direction, DIRECTIONS)
    check_range("limit", limit, low=1)
    names = _checked(symbols)
    wanted = None if parts is None else {parts} if isinstance(parts, str) else set(parts)
    steps = [step for step in flow.steps if wanted is None or step.part in wanted]
    for alike, most in _plans(min(int(limit), len(steps))):
        drawing = _Drawing(flow, steps, alike, most)
        if drawing.left_out and alike is not _same_name:
            continue
        text = "".join((f"flowchart {direction}\n", *drawing.lines(names)))
        if len(drawing.arrows) <= MOST_ARROWS and len(text) <= MERMAID_LIMIT:
            break
    return text


def _plans(limit: int) -> Iterator[tuple[Callable[[Step], Hashable], int]]:
    """What to merge into one box, and the maximum number of boxes: from everything to what still fits."""
    yield _itself, limit
    yield _same_shapes, limit
    yield _same_name, limit
    while limit > 1:
        limit //= 2
        yield _same_name, limit


def _itself(step: Step) -> Hashable:
    return step.id


def _same_shapes(step: Step) -> Hashable:
    tensors = tuple((tensor.name, tensor.shape, tensor.dtype) for tensor in (*step.inputs, *step.outputs))
    return step.name, step.part, step.failed, len(step.inputs), tensors


def _same_name(step: Step) -> Hashable:
    return step.name, step.part, step.failed


@dataclass(slots=True)
class _StepBox:
    id: str
    steps: list[Step]
    path: list[str]  # the frames it is drawn in, outermost first
    frame: bool = False  # whether others are drawn inside it


@dataclass(slots=True)
class _TensorBox:
    id: str
    names: list[str]
    part: str  # of the step where it was first seen
    shapes: dict[tuple[int, ...], None] = field(default_factory=dict)
    path: list[str] | None = None  # the frames that all the steps it touches are in


class _Origin(NamedTuple):
    """Where a value first appears: the step that made it, or the first that used it."""

    step: Step
    made: bool
    tensors: list[TensorInfo]


class _Drawing:
    """The boxes and arrows of one diagram."""

    def __init__(self, flow: Flow, steps: Sequence[Step], alike: Callable[[Step], Hashable], most: int) -> None:
        self._flow, self._alike = flow, alike
        self.arrows: dict[tuple[str, str], None] = {}  # ids, in order
        self.left_out = 0
        self._boxes: dict[Hashable, _StepBox] = {}
        self._box_of: dict[int, _StepBox] = {}
        self._tensors: dict[Hashable, _TensorBox] = {}
        self._order: dict[str, _StepBox | _TensorBox] = {}  # in data-flow order, which gives a good layout
        for step in steps:
            self._gather(step, most)
        self._origins = _origins(flow)
        self._point([step for step in steps if step.id in self._box_of])

    def _ancestors(self, step: Step) -> Iterator[int]:
        while step.parent is not None:
            yield step.parent
            step = self._flow.steps[step.parent]

    def _gather(self, step: Step, most: int) -> None:
        outer = next((self._box_of[above] for above in self._ancestors(step) if above in self._box_of), None)
        key = (outer.id if outer else None, self._alike(step))
        box = self._boxes.get(key)
        if box is None:
            if len(self._boxes) == most:
                self.left_out += 1
                return
            box = self._boxes[key] = _StepBox(f"s{step.id}", [], [*outer.path, outer.id] if outer else [])
            if outer:
                outer.frame = True
        box.steps.append(step)
        self._box_of[step.id] = box

    def _point(self, steps: Sequence[Step]) -> None:
        """Arrows from tensors to steps to tensors; a frame leaves them to its inner steps where possible."""
        used: dict[int, dict[int, None]] = {step.id: dict.fromkeys(tensor.value for tensor in step.inputs) for step in steps}
        made: dict[int, dict[int, None]] = {step.id: dict.fromkeys(tensor.value for tensor in step.outputs) for step in steps}
        for edge in self._flow.edges:
            if edge.target in used and edge.value in self._origins:
                used[edge.target][edge.value] = None
        used_inside: dict[int, set[int]] = defaultdict(set)
        made_inside: dict[int, set[int]] = defaultdict(set)
        for step in steps:
            for above in self._ancestors(step):
                used_inside[above].update(used[step.id])
                made_inside[above].update(made[step.id])
        for step in steps:
            box = self._box_of[step.id]
            # A frame touches all values it names, which keeps their boxes outside, but draws only what no inner step draws.
            sources = {value: self._touch(value, box) for value in used[step.id]}
            self._order.setdefault(box.id, box)
            targets = {value: self._touch(value, box) for value in made[step.id]}
            self.arrows.update({(t.id, box.id): None for value, t in sources.items() if value not in used_inside[step.id]})
            self.arrows.update({(box.id, t.id): None for value, t in targets.items() if value not in made_inside[step.id]})

    def _touch(self, value: int, box: _StepBox) -> _TensorBox:
        """The box of a value, now known to be used or made by a step's box."""
        origin = self._origins[value]
        names = list(dict.fromkeys(tensor.name for tensor in origin.tensors))
        if self._alike is _same_name:
            names = list(dict.fromkeys(re.sub(r"(\.\d+)+$", "", name) for name in names))
        first = self._box_of.get(origin.step.id)
        group = first.id if first else self._alike(origin.step)
        key = value if self._alike is _itself else (origin.made, group, *names)
        tensor = self._tensors.setdefault(key, _TensorBox(f"t{value}", names, origin.step.part))
        tensor.shapes.update(dict.fromkeys(tensor.shape for tensor in origin.tensors[:1]))
        tensor.path = box.path if tensor.path is None else _common(tensor.path, box.path)
        self._order.setdefault(tensor.id, tensor)
        return tensor

    def lines(self, symbols: Mapping[str, int]) -> Iterator[str]:
        """Boxes, each within its frame, then arrows: an arrow inside a frame would pull its ends in."""
        contents: dict[str, list[_StepBox | _TensorBox]] = defaultdict(list)
        for box in self._order.values():
            contents[box.path[-1] if box.path else ""].append(box)
        inside = [iter(contents[""])]
        while inside:
            indent = "    " * len(inside)
            item = next(inside[-1], None)
            if item is None:
                inside.pop()
                if inside:
                    yield f"{indent[4:]}end\n"
            elif isinstance(item, _TensorBox):
                yield f'{indent}{item.id}["{_title(item.names)}<br/>{_shape(item, symbols)}"]:::tensor\n'
            elif item.frame:
                yield f'{indent}subgraph {item.id}["{_step_label(item)}"]\n'
                inside.append(iter(contents[item.id]))
            else:
                yield f'{indent}{item.id}("{_step_label(item)}"):::{"failed" if item.steps[0].failed else "step"}\n'
        if self.left_out:
            yield f'    more("… {self.left_out} more steps"):::step\n'
        for source, target in self.arrows:
            yield f"    {source} --> {target}\n"
        for name, style in STYLES.items():
            if name != "failed" or any(box.steps[0].failed for box in self._boxes.values()):
                yield f"    classDef {name} {style}\n"


def _common(a: Sequence[str], b: Sequence[str]) -> list[str]:
    return [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))]


def _origins(flow: Flow) -> dict[int, _Origin]:
    """Where every value first appears."""
    origins: dict[int, _Origin] = {}
    for made in (True, False):  # the step that made a value knows it best
        for step in flow.steps:
            for tensor in step.outputs if made else step.inputs:
                if made and tensor.producer != step.id:
                    continue  # passed on by an outer step, made by an inner one
                origin = origins.setdefault(tensor.value, _Origin(step, made, []))
                if origin.step is step and origin.made == made:
                    origin.tensors.append(tensor)
    for step in flow.steps:  # possible in a hand-written flow: a value that its maker does not list
        for tensor in step.outputs:
            origins.setdefault(tensor.value, _Origin(step, True, [tensor]))
    return origins


def _checked(symbols: Mapping[str, int] | None) -> Mapping[str, int]:
    """The names of sizes that were given, or an error that says what is wrong with them."""
    if not isinstance(symbols, Mapping | None):
        fail("symbols", symbols, 'a mapping of names to sizes, such as {"B": 64}')
    for name, size in (symbols or {}).items():
        if not isinstance(name, str) or type(size) is not int:
            fail("symbols", {name: size}, 'names with whole numbers, such as {"B": 64}')
    return symbols or {}


def _step_label(box: _StepBox) -> str:
    step = box.steps[0]
    lines = [mermaid_label(step.name)]
    if len(box.steps) > 1:
        lines.append(f"× {len(box.steps)}")
    if step.failed:
        lines.append("failed")
    return (" " if box.frame else "<br/>").join(lines)


def _title(names: Sequence[str]) -> str:
    """Names as words: `min_delta` becomes Min Delta; views of one value are listed side by side."""
    shown = [_words(name) if re.fullmatch(r"[\w.]+", name) else name for name in names[:3]]
    return " / ".join(map(mermaid_label, shown)) + (" / …" if len(names) > 3 else "")


def _words(name: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in name.split("_") if word) or name


def _shape(box: _TensorBox, symbols: Mapping[str, int]) -> str:
    """[64 × 16], with names for known sizes and … where tensors drawn as one differ."""
    shapes = list(box.shapes)
    if len({len(shape) for shape in shapes}) != 1:
        return "[…]"
    if not shapes[0]:
        return "scalar"
    axes = axis_names(box.part, box.names, len(shapes[0])) or (None,) * len(shapes[0])
    shown = []
    for column, axis in zip(zip(*shapes, strict=True), axes, strict=True):
        name = size_name(column[0], symbols, axis)
        own = "?" if column[0] < 0 else str(column[0])
        shown.append("…" if len(set(column)) > 1 else own if name is None else mermaid_label(name))
    return f"[{' × '.join(shown)}]"


def mermaid_label(name: str) -> str:
    """A name as a label between double quotes, where it can be neither Mermaid nor HTML nor Markdown."""
    name = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in name)
    name = " ".join(name.replace("ﬂ", "fl").split())  # Mermaid writes its own entities with this ligature
    if len(name) > LONGEST_NAME:
        name = name[:LONGEST_NAME] + "…"
    shown = []
    for index, char in enumerate(name):
        inside_word = char in "_.-" and name[index - 1 : index].isalnum() and name[index + 1 : index + 2].isalnum()
        shown.append(char if char.isalnum() or char == " " or inside_word else f"#{ord(char)};")
    return "".join(shown) or "unnamed"

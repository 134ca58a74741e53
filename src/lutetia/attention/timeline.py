"""A run of the core model as a drawing: a lane for each core, time downwards, messages as arrows with their bytes.

`sequence` writes a Mermaid sequence diagram, `html` a self-contained page, both from a recorded flow. The tick of a step is how
many steps its core did before it; a message sets the clocks of both cores to the later one, so steps on one line may happen at
the same time, and a gap is a core that waits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from lutetia.errors import check_range, fail
from lutetia.files import write_atomically
from lutetia.flow import MERMAID_LIMIT, Flow, Step, mermaid_label

MOST_ROWS = 400  # of a page, before equal tiles are drawn as one


class Cell(NamedTuple):
    """A step of one core."""

    name: str
    frames: tuple[str, ...]  # the steps it is part of, outermost first
    detail: str = ""  # what it made


class Arrow(NamedTuple):
    """A message."""

    source: int  # lanes
    target: int
    what: str
    bytes: int
    round: int


@dataclass(frozen=True)
class Row:
    """What happens at one tick; lanes that do nothing wait."""

    tick: int
    tile: int | None = None  # the tile that cores are in
    cells: dict[int, Cell] = field(default_factory=dict)  # by lane
    arrows: tuple[Arrow, ...] = ()
    note: str = ""  # represents several messages


class Segment(NamedTuple):
    """Rows of one tile, or rows outside the loop; `tiles` equal ones are drawn once."""

    rows: list[Row]
    first_tile: int | None
    tiles: int = 1


class CoreRun(NamedTuple):
    """One call on the core model."""

    root: Step | None  # its `attention_tkg`
    lanes: list[str]
    rows: list[Row]

    @property
    def arrows(self) -> list[tuple[int, Arrow]]:
        """Every message with its tick."""
        return [(row.tick, arrow) for row in self.rows for arrow in row.arrows]


def sequence(flow: Flow) -> str:
    """The recorded runs of the core model as a Mermaid sequence diagram; equal tiles are drawn once, in a loop."""
    found = runs(flow)
    lanes = max((run.lanes for run in found), key=len)
    for brief in (False, True):
        lines = ["sequenceDiagram", *(f"    participant c{k} as {mermaid_label(name)}" for k, name in enumerate(lanes))]
        for run in found:
            if len(found) > 1:
                lines.append(f"    Note over {_over(range(len(lanes)))}: {mermaid_label(title(run))}")
            rows = briefly(run.rows) if brief else run.rows
            for segment in fold(segments(rows)):
                lines += _segment_lines(segment, len(run.lanes))
        text = "\n".join(lines) + "\n"
        if len(text) <= MERMAID_LIMIT:
            break
    return text


def save(flow: Flow, path: str | os.PathLike[str]) -> None:
    """Write the timeline as a page or as a diagram: `.html` or `.mmd`."""
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in (".html", ".mmd"):
        fail("path", str(path), "a name that ends in .html or .mmd")
    if not target.parent.is_dir():
        fail("path", str(path), "a file in a directory that exists")
    text = html(flow) if suffix == ".html" else sequence(flow)
    with write_atomically(target) as file:
        file.write(text.encode("utf-8", errors="replace"))


def html(flow: Flow) -> str:
    """The recorded runs of the core model as one page, to be written as UTF-8; it loads nothing and runs no script."""
    from lutetia.attention.timeline_page import page

    return page(runs(flow))


# ---- from steps to rows ----------------------------------------------------------------------------------------------


def runs(flow: Flow) -> list[CoreRun]:
    """The calls on the core model that a flow holds, in order; ArgumentError where there is none."""
    if not hasattr(flow, "steps"):
        fail("flow", flow, "a Flow")
    steps = flow.steps
    inside = [step for step in steps if step.lane is not None]
    if not inside:
        fail("flow", flow, 'a recorded run on the core model (backend="cores"), whose steps have lanes')
    parents = {step.parent for step in inside}
    grouped: dict[int | None, list[Step]] = {}
    for step in inside:
        grouped.setdefault(_root(steps, step), []).append(step)
    return [_run(steps, root, own, parents) for root, own in grouped.items()]


def _root(steps: Sequence[Step], step: Step) -> int | None:
    """The nearest enclosing step without a lane."""
    while step.lane is not None:
        if step.parent is None:
            return None
        step = steps[step.parent]
    return step.id


def _run(steps: Sequence[Step], root: int | None, own: Sequence[Step], parents: set[int | None]) -> CoreRun:
    lanes = list(dict.fromkeys(str(step.lane) for step in own))
    at: dict[int, Row] = {}
    for step in own:
        if step.id in parents:
            continue  # made of steps, which are drawn in its frame
        tick, tile = _number(step, "at"), step.attributes.get("tile")
        row = at.get(tick, Row(tick))
        if isinstance(tile, int):
            row = replace(row, tile=tile if row.tile is None else min(row.tile, tile))
        lane = lanes.index(str(step.lane))
        if step.name == "sendrecv":
            row = replace(row, arrows=(*row.arrows, _arrow(step, lane, lanes, tile)))
        else:
            row = replace(row, cells={**row.cells, lane: Cell(step.name, _frames(steps, step), _detail(step))})
        at[tick] = row
    rows = [replace(at[tick], arrows=tuple(sorted(at[tick].arrows))) for tick in sorted(at)]
    return CoreRun(None if root is None else steps[root], lanes, rows)


def _number(step: Step, name: str) -> int:
    value = step.attributes.get(name, 0)
    check_range(f"{name} of step {step.id}", value, 0)
    return int(value)  # type: ignore[arg-type]


def _arrow(step: Step, lane: int, lanes: Sequence[str], tile: object) -> Arrow:
    target = f"core {_number(step, 'to')}"
    what = str(step.attributes.get("tag", "")).removesuffix(f" of tile {tile}")
    return Arrow(lane, lanes.index(target) if target in lanes else lane, what, _number(step, "bytes"), _number(step, "round"))


def _frames(steps: Sequence[Step], step: Step) -> tuple[str, ...]:
    names: list[str] = []
    while step.parent is not None and steps[step.parent].lane is not None:
        step = steps[step.parent]
        names.insert(0, step.name)
    return tuple(names)


def _detail(step: Step) -> str:
    return ", ".join(f"{made.name} {made.dtype} {list(made.shape)}, {made.bytes:,} bytes" for made in step.outputs)


def title(run: CoreRun) -> str:
    """attention_tkg: 2 cores, sequence, lockstep."""
    if run.root is None:
        return f"{len(run.lanes)} cores"
    known = run.root.attributes
    words = [f"{len(run.lanes)} core{'s' * (len(run.lanes) > 1)}"]
    if len(run.lanes) > 1:
        words += [f"{known['shard']} sharding"] if "shard" in known else []
        words += [f"sync {known['sync']}"] if known.get("shard") == "sequence" and "sync" in known else []
    return f"{run.root.name}: {', '.join(words)}"


# ---- loops -----------------------------------------------------------------------------------------------------------


def segments(rows: Sequence[Row]) -> list[Segment]:
    """Rows cut where a tile begins or ends."""
    return [Segment(list(group), tile) for tile, group in groupby(rows, key=lambda row: row.tile)]


def fold(parts: Sequence[Segment]) -> list[Segment]:
    """Equal tiles that follow each other, as one."""
    folded: list[Segment] = []
    for part in parts:
        last = folded[-1] if folded else None
        if last is not None and None not in (part.first_tile, last.first_tile) and _looks(part) == _looks(last):
            folded[-1] = last._replace(tiles=last.tiles + part.tiles)
        else:
            folded.append(part)
    return folded


def _looks(part: Segment) -> list[object]:
    """What a drawing shows of it, except which tile it is."""
    return [({k: (c.name, c.frames) for k, c in row.cells.items()}, row.arrows, row.note) for row in part.rows]


def briefly(rows: Sequence[Row]) -> list[Row]:
    """The messages of one exchange, as a note."""
    shorter: list[Row] = []
    for what, group in groupby(rows, key=lambda row: (row.tile, row.arrows[0].what) if row.arrows else None):
        some = list(group)
        if what is None:
            shorter += some
            continue
        count, size = sum(len(row.arrows) for row in some), sum(arrow.bytes for row in some for arrow in row.arrows)
        shorter.append(replace(some[0], arrows=(), note=f"{what[1]}: {count:,} messages, {size:,} B"))
        shorter += [replace(row, arrows=()) for row in some if row.cells]
    return shorter


# ---- Mermaid ---------------------------------------------------------------------------------------------------------


def _segment_lines(segment: Segment, lanes: int) -> Iterator[str]:
    first = segment.first_tile
    indent = "    "
    if first is not None:
        last = first + segment.tiles - 1
        over = f"for fa_tile_idx in range({last + 1})" if first == 0 else f"for fa_tile_idx in range({first}, {last + 1})"
        yield f"    loop {over}"
        indent *= 2
    for key, group in groupby(segment.rows, key=lambda row: (_same(row, lanes), bool(row.arrows), row.note)):
        same, talks, note = key
        rows = list(group)
        if note:
            yield f"{indent}Note over {_over(range(lanes))}: {mermaid_label(note)}"
        if same:
            names = "<br/>".join(_label(next(iter(row.cells.values()))) for row in rows)
            yield f"{indent}Note over {_over(range(lanes))}: {names}"
        else:
            for lane in range(lanes):
                names = "<br/>".join(_label(row.cells[lane]) for row in rows if lane in row.cells)
                if names:
                    yield f"{indent}Note over {_over([lane])}: {names}"
        for row in rows if talks else []:
            for arrow in row.arrows:
                turn = f", round {arrow.round}" if lanes > 2 else ""
                yield f"{indent}c{arrow.source}->>c{arrow.target}: {mermaid_label(arrow.what)}{turn}, {arrow.bytes:,} B"
    if first is not None:
        yield "    end"


def _same(row: Row, lanes: int) -> bool:
    """Whether all cores do the same."""
    return len(row.cells) == lanes and len({(cell.name, cell.frames) for cell in row.cells.values()}) == 1


def _label(cell: Cell) -> str:
    return ": ".join(map(mermaid_label, (*cell.frames, cell.name)))


def _over(lanes: Sequence[int]) -> str:
    return ",".join(dict.fromkeys(f"c{lane}" for lane in (lanes[0], lanes[-1])))

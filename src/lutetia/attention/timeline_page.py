"""The timeline as a page: pictures in SVG and a table of messages, in HTML that runs no script and loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from lutetia._shared.markup import Html
from lutetia._shared.pages import Page, asset, document
from lutetia.attention.timeline import MOST_ROWS, Arrow, Cell, CoreRun, Row, Segment, briefly, fold, segments, title

GUTTER = 44  # where the ticks are
LANE = 236
GAP = 170  # between lanes, where the messages of neighbours are
BOX, LINE = 24, 28  # height of a step, and of its line
ARROW = 26  # height of the line of a message
HEAD = 20  # of a frame
LOOP = 30  # of a loop, for its name
MOST_MESSAGES = 2000  # drawn as arrows, and listed
TITLE = "Timeline of the cores"
ABOUT = "Time runs downwards, one line per step. An arrow is a message; a dotted line is a core that waits."


class PlacedRow(NamedTuple):
    """A row with its place on the page."""

    row: Row
    y: int  # of its steps
    arrows_y: int  # of its first message
    bottom: int


class PlacedSegment(NamedTuple):
    """A segment with its place on the page."""

    segment: Segment
    top: int
    places: list[PlacedRow]
    bottom: int


def page(runs: Sequence[CoreRun]) -> str:
    """The whole page."""
    head = f"<header><h1>{TITLE}</h1><p>{ABOUT}</p></header>"
    body = Html(f"{head}\n<main>{''.join(map(_section, runs))}</main>")
    return document(Page(TITLE, body, [asset("tokens.css"), asset("timeline.css", "lutetia.attention")]))


def _section(run: CoreRun) -> str:
    messages = run.arrows
    facts = {
        "cores": f"{len(run.lanes):,}",
        "tiles": f"{len({row.tile for row in run.rows if row.tile is not None}):,}",
        "messages": f"{len(messages):,}",
        "bytes sent": f"{sum(arrow.bytes for _, arrow in messages):,}",
        "bytes sent by each core": _each_core(run),
    }
    shown = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f"<section><h2>{escape(title(run))}</h2><dl>{shown}</dl>{_heads(run)}{_picture(run)}{_table(run)}</section>"


def _each_core(run: CoreRun) -> str:
    sent = [sum(arrow.bytes for _, arrow in run.arrows if arrow.source == lane) for lane in range(len(run.lanes))]
    low, high = min(sent), max(sent)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _table(run: CoreRun) -> str:
    if not run.arrows:
        return ""
    rows = [
        f'<tr><td class="number">{tick}</td><td>{escape(run.lanes[arrow.source])}</td><td>{escape(run.lanes[arrow.target])}</td>'
        f'<td>{escape(arrow.what)}</td><td class="number">{arrow.round}</td><td class="number">{arrow.bytes:,}</td></tr>'
        for tick, arrow in run.arrows[:MOST_MESSAGES]
    ]
    more = len(run.arrows) - len(rows)
    rows += [f'<tr><td colspan="6">… and {more:,} more</td></tr>'] if more else []
    names = ("tick", "from", "to", "what", "round", "bytes")
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<details><summary>All messages</summary>{table}</details>"


# ---- the picture -----------------------------------------------------------------------------------------------------


def _x(lane: int) -> int:
    return GUTTER + 24 + lane * (LANE + GAP)


def _width(run: CoreRun) -> int:
    return _x(len(run.lanes) - 1) + LANE + 24


def _heads(run: CoreRun) -> str:
    names = "".join(
        f'<text x="{_x(lane) + LANE // 2}" y="20" text-anchor="middle">{escape(name)}</text>'
        for lane, name in enumerate(run.lanes)
    )
    width = _width(run)
    line = f'<line x1="0" x2="{width}" y1="31.5" y2="31.5"/>'
    return f'<div class="heads"><svg width="{width}" height="32" aria-hidden="true">{names}{line}</svg></div>'


def _picture(run: CoreRun) -> str:
    rows = briefly(run.rows) if len(run.arrows) > MOST_MESSAGES else run.rows
    parts = segments(rows)
    if len(rows) > MOST_ROWS:
        parts = fold(parts)
    blocks, height = _layout(parts)
    width = _width(run)
    pieces = [*_loops(blocks, width), *_lanes(run, height)]
    for block in blocks:
        inside = ' class="inside"' if block.segment.first_tile is not None else ""
        pieces.append(f"<g{inside}>{''.join(_block(block, run, width))}</g>")
    label = escape(f"{title(run)}, a lane for each core", quote=True)
    return f'<svg class="picture" width="{width}" height="{height}" role="img" aria-label="{label}">{"".join(pieces)}</svg>'


def _layout(parts: Sequence[Segment]) -> tuple[list[PlacedSegment], int]:
    """Give every row its place; a line is as tall as its tallest core."""
    y = 10
    blocks = []
    for number, part in enumerate(parts):
        top = y
        inside, was = part.first_tile is not None, number > 0 and parts[number - 1].first_tile is not None
        if inside:
            y += LOOP
        elif was:
            y += 12
        places = []
        before: Row | None = None
        for row in part.rows:
            heads = max((_new_frames(row, before, lane) for lane in row.cells), default=0)
            left = before is not None and any(cell.frames for cell in before.cells.values())
            y += heads * HEAD + (6 if heads or (left and not any(cell.frames for cell in row.cells.values())) else 0)
            steps = LINE if row.cells else 0
            talk = ARROW * len(row.arrows) + (ARROW if row.note else 0)
            places.append(PlacedRow(row, y, y + steps, y + steps + talk))
            y, before = y + steps + talk, row
        y += 8
        blocks.append(PlacedSegment(part, top, places, y))
    return blocks, y + 8


def _new_frames(row: Row, before: Row | None, lane: int) -> int:
    """How many frames begin at this row in a lane; a message between two steps does not end the frame they are in."""
    frames = row.cells[lane].frames
    if before is None:
        return len(frames)
    old = before.cells[lane].frames if lane in before.cells else frames if before.arrows or before.note else ()
    return 0 if frames == old else len(frames)


def _loops(blocks: Sequence[PlacedSegment], width: int) -> Iterator[str]:
    """A background for each run of consecutive tiles, and a named line above each tile."""
    started: PlacedSegment | None = None
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.segment.first_tile is None:
            continue
        started = started or block
        if after is None or after.segment.first_tile is None:
            size = f'x="{GUTTER}" y="{started.top}" width="{width - GUTTER - 4}" height="{block.bottom - started.top}"'
            yield f'<rect class="loop" {size} rx="10"/>'
            started = None
    for block in blocks:
        first, tiles = block.segment.first_tile, block.segment.tiles
        if first is not None:
            name = f"fa_tile_idx {first}" if tiles == 1 else f"fa_tile_idx {first} to {first + tiles - 1}: {tiles} equal tiles"
            yield f'<text class="loop-name" x="{GUTTER + 12}" y="{block.top + 20}">{name}</text>'


def _lanes(run: CoreRun, height: int) -> Iterator[str]:
    for lane in range(len(run.lanes)):
        x = _x(lane) + LANE // 2
        yield f'<line class="lane" x1="{x}" x2="{x}" y1="0" y2="{height}"/>'


def _block(block: PlacedSegment, run: CoreRun, width: int) -> Iterator[str]:
    for lane in range(len(run.lanes)):
        yield from _frames(block.places, lane)
    for place in block.places:
        yield f'<text class="tick" x="{GUTTER - 10}" y="{place.y + 17}">{place.row.tick}</text>'
        for lane, cell in place.row.cells.items():
            yield _box(cell, lane, place.y)
        for number, arrow in enumerate(place.row.arrows):
            yield _arrow(arrow, run, place.arrows_y + number * ARROW + 18)
        if place.row.note:
            yield f'<g class="note"><text x="{width // 2}" y="{place.arrows_y + 16}">{escape(place.row.note)}</text></g>'


def _frames(places: Sequence[PlacedRow], lane: int) -> Iterator[str]:
    """A frame around the steps of a lane that are part of one."""
    held: list[PlacedRow] = []
    for place in [*places, None]:
        cell = None if place is None else place.row.cells.get(lane)
        between = place is not None and cell is None and (place.row.arrows or place.row.note)
        if held and not between and (cell is None or cell.frames != held[0].row.cells[lane].frames):
            yield from _frame(held, lane)
            held = []
        if place is not None and cell is not None and cell.frames:
            held.append(place)


def _frame(held: Sequence[PlacedRow], lane: int) -> Iterator[str]:
    x, top, bottom = _x(lane) - 8, held[0].y - HEAD, held[-1].y + LINE
    names = " › ".join(held[0].row.cells[lane].frames)
    yield f'<rect class="frame" x="{x}" y="{top}" width="{LANE + 16}" height="{bottom - top}" rx="9"/>'
    yield f'<text class="frame-name" x="{x + 10}" y="{top + 14}">{escape(_cut(names))}</text>'


def _box(cell: Cell, lane: int, y: int) -> str:
    x = _x(lane)
    about = f"{cell.name}: {cell.detail}" if cell.detail else cell.name
    return (
        f'<g class="step"><title>{escape(about)}</title><rect x="{x}" y="{y}" width="{LANE}" height="{BOX}" rx="6"/>'
        f'<text x="{x + 10}" y="{y + 16}">{escape(_cut(cell.name))}</text></g>'
    )


def _arrow(arrow: Arrow, run: CoreRun, y: int) -> str:
    """From the middle of one lane to the middle of the other, named in the first gap it crosses."""
    start, end = (_x(lane) + LANE // 2 for lane in (arrow.source, arrow.target))
    way = 1 if end > start else -1
    turn = f", round {arrow.round}" if len(run.lanes) > 2 else ""
    text = escape(f"{_cut(arrow.what, 24)}{turn}, {arrow.bytes:,} B")
    middle = start + way * (LANE + GAP) // 2
    tip = end - way * 2
    return (
        f'<g class="message"><title>{escape(f"{run.lanes[arrow.source]} → {run.lanes[arrow.target]}: ")}{text}</title>'
        f'<circle cx="{start}" cy="{y}" r="3.5"/><line x1="{start}" x2="{tip - way * 7}" y1="{y}" y2="{y}"/>'
        f'<path d="M{tip} {y}l{-way * 9} -4.5v9z"/><text x="{middle}" y="{y - 6}">{text}</text></g>'
    )


def _cut(text: str, most: int = 34) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

"""Curves as pictures in SVG, and a page of them that needs no script: steps of numbers with the rows below them, categories as
bars, pairs as maps. Each has its numbers in a table that can be opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lutetia._shared.markup import Html, number, tag, text
from lutetia._shared.numbers import short_number
from lutetia._shared.pages import Article, Section, article, asset
from lutetia.files import write_atomically
from lutetia.report.curves import Curve, Curves, Map
from lutetia.report.drawing import ticks

Array = np.ndarray[Any, Any]
MOST_CURVES, MOST_MAPS = 60, 12  # on a page
MOST_LINES = 4  # of outputs in a picture: those that move most
MOST_BARS = 24
WIDTH, LEFT, RIGHT, TOP = 560, 64, 14, 10
TALL, GROUND, FLOOR = 170, 34, 24  # of a curve, of the rows below it, of their labels
MISSING_WIDTH = 62
BAR, NAMES = 16, 150
CELLS, CELL, NARROWEST = 24, 14, 168  # of a side of a map
PACKAGE = "lutetia.report"


def write_curves(path: str | os.PathLike[str], shown: Curves, title: str) -> None:
    """Write the page; the file appears whole or not at all."""
    with write_atomically(Path(path)) as file:
        file.write(curves_page(shown, title).encode("utf-8", errors="replace"))


def curves_page(shown: Curves, title: str) -> str:
    """The page as text."""
    told = [shown.said(), f"Curves show what a column adds to {_listed(shown.outputs)}, 0 on average over {shown.n_rows:,} rows."]
    sections = [Section("columns", "Columns", text(_figures(shown)))]
    if shown.maps:
        said = "What two columns add together, beyond their curves: orange more, blue less."
        sections.append(Section("pairs", "Pairs", text(tag("p", said, class_="said"), _map_figures(shown))))
    averages = zip(shown.outputs, shown.average.tolist(), strict=True)
    facts = {f"average of {name}": _with_unit(value, shown.unit) for name, value in averages} if len(shown.outputs) < 3 else {}
    content = Article(title, " ".join(told), facts, sections, "No column changes a prediction.")
    return article(content, [asset("page.css", PACKAGE), asset("curves.css", PACKAGE)])


def piece(shown: Curves) -> Html:
    """The curves and maps without a page around them."""
    style = tag("style", Html(asset("tokens.css") + asset("page.css", PACKAGE) + asset("curves.css", PACKAGE)))
    return tag("div", style, tag("p", shown.said()), _figures(shown), _map_figures(shown))


def _figures(shown: Curves) -> Html:
    drawn = [_figure(curve, shown) for curve in shown.curves[:MOST_CURVES]]
    return text(tag("div", drawn, class_="curves"), _more(len(shown.curves) - len(drawn), "columns"))


def _map_figures(shown: Curves) -> Html:
    drawn = [_map_figure(each, shown) for each in shown.maps[:MOST_MAPS]]
    return text(tag("div", drawn, class_="curves"), _more(len(shown.maps) - len(drawn), "pairs"))


def _more(count: int, what: str) -> Html | None:
    return tag("p", f"{count:,} more {what} move it less.", class_="said") if count > 0 else None


def _figure(curve: Curve, shown: Curves) -> Html:
    """One curve: its name, its picture, the keys of its lines, and its numbers."""
    outputs = _loudest(curve.values, curve.share)
    moves = f"moves it by {_with_unit(curve.importance, shown.unit)} on average"
    moves += "" if shown.is_whole or curve.name not in shown.averaged else "; a mean over rows"
    drawn = _steps(curve, outputs, shown) if curve.edges is not None else _bars(curve, outputs, shown)
    return tag(
        "figure", tag("h3", curve.name, tag("span", moves, class_="small")), drawn, _keys(outputs, shown), _numbers(curve, shown)
    )


def _loudest(values: Array, share: Array) -> list[int]:
    """The outputs that are drawn, in their order."""
    order = np.argsort(-(share @ np.abs(values)), kind="stable")[:MOST_LINES]
    return sorted(order.tolist())


def _keys(outputs: Sequence[int], shown: Curves) -> Html | None:
    if len(shown.outputs) == 1:
        return None
    keys = [tag("li", tag("i", class_=f"key c{place}"), shown.outputs[output]) for place, output in enumerate(outputs)]
    left = len(shown.outputs) - len(outputs)
    return tag(
        "figcaption",
        tag("ul", keys, class_="keys"),
        tag("span", f"and {left} more in the table", class_="small") if left else None,
    )


def _numbers(curve: Curve, shown: Curves) -> Html:
    """All steps as a table, behind a button."""
    head = tag("tr", [tag("th", each, scope="col") for each in (curve.name, "rows", *shown.outputs)])
    rows = [
        tag("tr", tag("th", label, scope="row"), tag("td", f"{share:.1%}"), [tag("td", _signed(each)) for each in own])
        for label, share, own in zip(curve.labels, curve.share, curve.values.tolist(), strict=True)
    ]
    table = tag(
        "div",
        tag("table", tag("thead", head), tag("tbody", rows)),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=f"Numbers of {curve.name}",
    )
    return tag("details", tag("summary", f"Numbers of {curve.name}"), table)


def _steps(curve: Curve, outputs: Sequence[int], shown: Curves) -> Html:
    """Exact steps of a number; what is missing stands apart on the left, and the rows below."""
    assert curve.edges is not None
    low, high = curve.ends
    left = LEFT + (MISSING_WIDTH if curve.is_missing else 0)
    scale, grid = _height(curve.values[:, outputs], left)
    floor = TOP + TALL

    def at(value: float) -> float:
        share = 0.5 if high <= low else (min(max(value, low), high) - low) / (high - low)
        return left + share * (WIDTH - RIGHT - left)

    first = int(curve.is_missing)
    ends = [at(low) if high > low else left, *map(at, curve.edges.tolist()), at(high) if high > low else WIDTH - RIGHT]
    drawn = [*grid, *_ground(curve, left)]
    for place, output in enumerate(outputs):
        own = curve.values[:, output]
        steps = enumerate(own[first:].tolist())
        parts = [f"{ends[at]:.1f} {scale(value):.1f}H{ends[at + 1]:.1f}" for at, value in steps if ends[at + 1] > ends[at]]
        drawn.append(tag("path", d=f"M{'L'.join(parts)}", class_=f"curve c{place}"))
        if first:
            y, x = scale(own[0]), LEFT + 8 + 8 * place
            drawn.append(tag("circle", tag("title", f"missing: {_signed(own[0])}"), cx=x, cy=y, r=4, class_=f"dot c{place}"))
    for step, label in enumerate(curve.labels[first:]):
        told = f"{label}: {', '.join(_signed(curve.values[step + first, output]) for output in outputs)}"
        width = ends[step + 1] - ends[step]
        if width > 0:
            drawn.append(tag("rect", tag("title", told), x=ends[step], y=TOP, width=width, height=TALL + GROUND, class_="hover"))
    labels = [tag("text", "missing", x=LEFT - 2, y=floor + GROUND + 17, class_="tick")] if first else []
    labels += [
        tag("text", curve.end_labels[0], x=left, y=floor + GROUND + 17, class_="tick" + (" indent" if first else "")),
        tag("text", curve.end_labels[1], x=WIDTH - RIGHT, y=floor + GROUND + 17, class_="tick end"),
    ]
    return _svg([*drawn, *labels], floor + GROUND + FLOOR, curve, shown)


def _height(values: Array, left: float) -> tuple[Any, list[Html]]:
    """Where a value stands, and the lines of round numbers."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    marks = ticks(low, high)
    low, high = min(low, *marks), max(high, *marks)

    def scale(value: float) -> float:
        return TOP + TALL - (value - low) / ((high - low) or 1.0) * TALL

    drawn = []
    for mark in marks:
        drawn += [
            tag(
                "line", x1=LEFT, x2=WIDTH - RIGHT, y1=scale(mark), y2=scale(mark), class_="grid" + (" zero" if mark == 0 else "")
            ),
            tag("text", number(mark), x=LEFT - 8, y=scale(mark) + 4, class_="tick end"),
        ]
    return scale, drawn


def _ground(curve: Curve, left: float) -> list[Html]:
    """How many rows lie in each part of the range."""
    most, width = max(curve.rows, default=0) or 1, (WIDTH - RIGHT - left) / max(1, len(curve.rows))
    floor = TOP + TALL + GROUND
    return [
        tag("rect", x=left + at * width, y=floor - GROUND * 0.8 * count / most, width=max(0.5, width - 0.5),
            height=GROUND * 0.8 * count / most, class_="ground")
        for at, count in enumerate(curve.rows)
        if count
    ]  # fmt: skip


def _bars(curve: Curve, outputs: Sequence[int], shown: Curves) -> Html:
    """A row for each category, with bars to the right of zero or to the left: the categories of the most rows, in their order."""
    kept = np.sort(np.argsort(-curve.share, kind="stable")[:MOST_BARS]).tolist()
    most = float(np.abs(curve.values[kept][:, outputs]).max(initial=0.0)) or 1.0
    tall = max(BAR, 7 * len(outputs)) + 6
    middle, scale = (NAMES + WIDTH - 50) / 2, (WIDTH - 50 - NAMES) / 2 / most
    drawn = [tag("line", x1=middle, x2=middle, y1=TOP, y2=TOP + tall * len(kept), class_="grid zero")]
    for row, step in enumerate(kept):
        y = TOP + tall * row
        drawn += [
            tag("text", _cut(curve.labels[step]), x=NAMES - 8, y=y + tall / 2 + 1, class_="end"),
            tag("text", f"{curve.share[step]:.1%}", x=WIDTH - 4, y=y + tall / 2 + 1, class_="tick end"),
        ]
        for place, output in enumerate(outputs):
            value, thick = float(curve.values[step, output]), (tall - 6) / len(outputs)
            told = tag("title", f"{curve.labels[step]}: {_signed(value)}")
            x = middle + min(0.0, value * scale)
            drawn.append(
                tag(
                    "rect",
                    told,
                    x=x,
                    y=y + place * thick,
                    width=max(0.5, abs(value) * scale),
                    height=thick - 1,
                    class_=f"bar c{place}",
                )
            )
    height = TOP + tall * len(kept) + FLOOR
    drawn += [
        tag("text", _signed(value), x=x, y=height - 6, class_=f"tick {side}")
        for value, x, side in ((-most, NAMES, "indent"), (0.0, middle, "middle"), (most, WIDTH - 50, "end"))
    ]
    return _svg(drawn, height, curve, shown)


def _svg(drawn: Sequence[Html], height: float, curve: Curve, shown: Curves) -> Html:
    output = int(np.argmax(curve.share @ np.abs(curve.values)))
    own = curve.values[:, output]
    ends = (f"{_signed(own[at])} at {curve.labels[at]}" for at in (own.argmin(), own.argmax()))
    said = f"What {curve.name} adds to {shown.outputs[output]}: from {' to '.join(ends)}"
    return tag("svg", drawn, viewBox=f"0 0 {WIDTH} {height:g}", class_="chart", role="img", aria_label=said)


def _map_figure(own: Map, shown: Curves) -> Html:
    """A map of the output that the pair moves most; long sides are averaged over neighbouring steps."""
    output = int(np.argmax(np.abs(own.values).mean((0, 1))))
    down, across = (_parts(size) for size in own.values.shape[:2])
    wide, high = (max(CELL, NARROWEST / len(side)) for side in (across, down))
    cells = np.array([[own.values[a:b, c:d, output].mean() for c, d in across] for a, b in down])
    most = float(np.abs(cells).max()) or 1.0
    drawn = []
    for (row, column), value in np.ndenumerate(cells):
        told = f"{_of(own.labels[0], down[row])} and {_of(own.labels[1], across[column])}: {_signed(value)}"
        place = {"x": column * wide, "y": row * high, "width": wide, "height": high}
        kind = "more" if value > 0 else "less"
        drawn.append(tag("rect", tag("title", told), **place, class_=kind, fill_opacity=f"{abs(value) / most:.2f}"))
    wide, high = len(across) * wide, len(down) * high
    drawn.append(tag("rect", x=0, y=0, width=wide, height=high, class_="frame"))
    name = " and ".join(own.names)
    said = f"What {name} add together to {shown.outputs[output]}: from {_signed(cells.min())} to {_signed(cells.max())}"
    sizes = {"viewBox": f"-1 -1 {wide + 2} {high + 2}", "width": wide + 2, "height": high + 2}
    picture = tag("svg", drawn, **sizes, class_="map", role="img", aria_label=said)
    sides = [
        f"{title}, {way} ({labels[0]}) to" for title, way, labels in zip(own.names, ("top", "left"), own.labels, strict=True)
    ]
    told = f"{sides[0]} bottom ({own.labels[0][-1]}); {sides[1]} right ({own.labels[1][-1]})."
    is_shorter = (len(down), len(across)) < own.values.shape[:2]
    told += " Neighbouring steps are averaged." if is_shorter else ""
    head = tag("h3", name, tag("span", f"moves it by {_with_unit(own.importance, shown.unit)} on average", class_="small"))
    region = tag("div", picture, class_="scroll", tabindex=0, role="region", aria_label=f"Map of {name}")
    return tag("figure", head, region, tag("p", told, class_="small"))


def _parts(size: int) -> list[tuple[int, int]]:
    """Ranges of steps, at most CELLS of them."""
    return list(pairwise(size * at // min(size, CELLS) for at in range(min(size, CELLS) + 1)))


def _of(labels: Sequence[str], part: tuple[int, int]) -> str:
    begin, end = part
    return labels[begin] if end - begin == 1 else f"{labels[begin]} … {labels[end - 1]}"


def _signed(value: float) -> str:
    return short_number(float(value), 3, sign=True)


def _with_unit(value: float, unit: str) -> str:
    return f"{short_number(float(value), 3)} {unit}".strip()


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} outputs"


def _cut(name: str, most: int = 22) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"

"""A page that puts methods beside each other: a verdict, how far each is from ours and what chance explains of that, a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lutetia._shared.markup import Html, number, tag, text
from lutetia._shared.pages import Article, Section, article, asset
from lutetia.files import write_atomically
from lutetia.report.sections import table
from lutetia.report.story import CellTable

WIDTH, ROW, LEFT, RIGHT, TOP, BOTTOM = 640, 30, 170, 24, 8, 44
LONGEST = 24  # characters of a name beside a line
DOT = 5


@dataclass(frozen=True)
class Gap:
    """How far a method is from ours: the mean of the differences, positive if ours is better, and what chance explains."""

    name: str
    mean: float
    chance: float


@dataclass(frozen=True)
class Standings:
    """What the page shows; `unit` says what the gaps are."""

    title: str
    verdict: str
    gaps: Sequence[Gap]
    unit: str
    table: CellTable
    notes: Sequence[str] = ()


def write_standings(path: str | os.PathLike[str], shown: Standings) -> None:
    """Write the page; the file appears whole or not at all."""
    content = standings_page(shown).encode("utf-8", errors="replace")
    with write_atomically(Path(path)) as file:
        file.write(content)


def standings_page(shown: Standings) -> str:
    """The page as text."""
    notes = tag("ul", [tag("li", note) for note in shown.notes])
    sections = [Section("methods", "Methods", text(table(shown.table), tag("div", notes, class_="card small")))]
    if shown.gaps:
        sections.insert(0, Section("differences", "Differences", tag("figure", gap_chart(shown.gaps, shown.unit))))
    return article(Article(shown.title, shown.verdict, sections=sections), [asset("page.css", "lutetia.report")])


def gap_chart(gaps: Sequence[Gap], unit: str) -> Html:
    """A dot per method, right of zero if ours is better, and a line as long as what chance explains."""
    most = max(abs(gap.mean) + gap.chance for gap in gaps) or 1.0
    height = TOP + ROW * len(gaps) + BOTTOM
    middle, scale = (LEFT + WIDTH - RIGHT) / 2, (WIDTH - RIGHT - LEFT) / 2 / most

    def at(value: float) -> float:
        return middle + value * scale

    floor = height - BOTTOM
    drawn = [tag("line", x1=at(0), x2=at(0), y1=TOP, y2=floor, class_="curve raw")]
    for value in (-most, 0.0, most):
        drawn.append(tag("text", number(value), x=at(value), y=floor + 16, class_="tick middle"))
    drawn.append(
        tag("text", f"← the other is better · {unit} · Lutetia is better →", x=middle, y=floor + 36, class_="tick middle")
    )
    for place, gap in enumerate(gaps):
        y = TOP + ROW * (place + 0.5)
        name = gap.name if len(gap.name) <= LONGEST else f"{gap.name[: LONGEST - 1]}…"
        said = f"{gap.name}: {number(gap.mean)}, chance explains ±{number(gap.chance)}"
        drawn += [
            tag("text", name, x=LEFT - 12, y=y + 4, class_="end"),
            tag(
                "line", tag("title", said), x1=at(gap.mean - gap.chance), x2=at(gap.mean + gap.chance), y1=y, y2=y, class_="curve"
            ),
            tag("circle", tag("title", said), cx=at(gap.mean), cy=y, r=DOT, fill="currentColor"),
        ]
    said = f"{unit}, by which Lutetia is better: " + "; ".join(f"{gap.name} {number(gap.mean)}" for gap in gaps)
    return tag("svg", drawn, viewBox=f"0 0 {WIDTH} {height}", class_="chart", role="img", aria_label=said)

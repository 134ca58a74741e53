"""Reasons as tables with bars, orange for and blue against: a piece of HTML for a notebook or a page."""

from __future__ import annotations

from collections.abc import Sequence

from lutetia._shared.markup import Html, tag
from lutetia._shared.numbers import short_number
from lutetia.report.comparisons import Comparison
from lutetia.report.marked import MarkedText

FOR, AGAINST = "#d2540f", "#2563c9"
MOST = 8  # lines of a table


def reasons(columns: Sequence[tuple[str, float]], comparisons: Sequence[Comparison], texts: Sequence[MarkedText] = ()) -> Html:
    """What each column contributed, the most first, beside the comparisons that mattered most; above them marked texts."""
    order = sorted(columns, key=lambda each: -abs(each[1]))[:MOST]
    asked = [(each.text, each.effect) for each in comparisons[:MOST]]
    beside = "display:flex;flex-wrap:wrap;gap:2em;align-items:flex-start"
    tables = tag("div", bars("column", order), bars("comparison", asked) if asked else None, style=beside)
    return Html("".join([*(each.to_html() for each in texts), tables]))


def bars(title: str, values: Sequence[tuple[str, float]]) -> Html:
    """Names, numbers and bars, a table."""
    most = max((abs(value) for _, value in values), default=0.0) or 1.0
    left, right = "text-align:left", "text-align:right"
    head = tag("tr", tag("th", title, style=left), tag("th", "effect", style=right), tag("th", ""))
    rows = []
    for name, value in values:
        width = f"{6 * abs(value) / most:.2f}em"
        bar = tag("div", "", style=f"height:.7em;width:{width};background:{FOR if value >= 0 else AGAINST}")
        cells = tag("td", name, style=left), tag("td", short_number(value, 3, sign=True), style=right), tag("td", bar, style=left)
        rows.append(tag("tr", *cells))
    return tag("table", tag("thead", head), tag("tbody", rows))

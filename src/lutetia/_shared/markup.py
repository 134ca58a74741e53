"""HTML and SVG built from elements: text is always escaped, and markup has its own type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any


class Html(str):
    """Text that is already markup."""

    __slots__ = ()


SVG_EMPTY = {"circle", "line", "path", "rect"}  # elements without content; SVG's own close themselves
EMPTY = SVG_EMPTY | {"br", "col", "input", "meta"}


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """An element: `tag("p", "1 < 2", class_="small")`. None and False leave an attribute or a child out."""
    given = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None and value is not False)
    inside = text(*children)
    if name in EMPTY and not inside:
        return Html(f"<{name}{given}/>" if name in SVG_EMPTY else f"<{name}{given}>")
    return Html(f"<{name}{given}>{inside}</{name}>")


def text(*children: Any) -> Html:
    """Children one after the other: markup as it is, anything else escaped, lists opened."""
    parts = []
    for child in children:
        if child is None or child is False:
            continue
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, list | tuple):
            parts.append(text(*child))
        else:
            parts.append(Html(escape(number(child) if isinstance(child, float) else str(child))))
    return Html("".join(parts))


def facts(values: Mapping[str, str], class_: str = "facts") -> Html | None:
    """Names and values, side by side; nothing when there are none."""
    if not values:
        return None
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in values.items()], class_=class_)


def number(value: float) -> str:
    """A number for readers: four digits, thousands separated."""
    if not math.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _attribute(name: str, value: object) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(shown, quote=False).replace(chr(34), "&quot;")}"'

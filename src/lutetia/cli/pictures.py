"""Relevance in a terminal: a heat map, bars, or a strip of tokens; in colour where the terminal has it, else in signs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from lutetia._shared.numbers import short_number

FOR, AGAINST = (224, 90, 20), (45, 105, 215)
PAPER = (243, 240, 230)
SHOWN = 16  # features, and tokens in words
SIGNS = " .:+#"  # from nothing to most; against is marked by another sign
BAR = 24


def heat_map(console: Console, values: Sequence[float], height: int, width: int, ink: Sequence[bool] | None = None) -> Text:
    """Two characters for each pixel, so that it is square: values [height · width], row by row.

    `ink` [height · width] says which pixels belong to what the image shows: its outline is drawn over the colours; without
    colours the image itself is printed beside the heat map.
    """
    most = max(map(abs, values), default=0.0) or 1.0
    picture = Text()
    if not _has_colour(console):
        for y in range(height):
            row = slice(y * width, (y + 1) * width)
            shown = "" if ink is None else "".join("##" if each else " ." for each in ink[row]) + "   "
            picture.append(shown + "".join(sign(value / most) * 2 for value in values[row]) + "\n")
        return picture
    inside = (lambda x, y: False) if ink is None else lambda x, y: 0 <= x < width and 0 <= y < height and ink[y * width + x]
    if any(inside(x, 0) for x in range(width)):
        picture.append("".join("▁▁" if inside(x, 0) else "  " for x in range(width)) + "\n")
    for y in range(height):
        for x in range(width):
            own = inside(x, y)
            cell = ("▏" if own and not x else " ") + ("▕" if own != inside(x + 1, y) else " ")
            edge = "underline " if own != inside(x, y + 1) else ""
            ground = ",".join(map(str, tint(values[y * width + x] / most)))
            picture.append(cell, style=f"{edge}rgb(20,24,18) on rgb({ground})")
        picture.append("\n")
    return picture


def tint(share: float) -> tuple[int, int, int]:
    """A share from -1 to 1 as a colour between the paper and one of the two ends."""
    end = FOR if share > 0 else AGAINST
    red, green, blue = (round(p + (e - p) * min(1.0, abs(share)) ** 0.75) for p, e in zip(PAPER, end, strict=True))
    return red, green, blue


def sign(share: float) -> str:
    """A share from -1 to 1 as a sign: dots to # for, = and - against."""
    size = min(4, round(4 * abs(share)))
    return SIGNS[size] if share >= 0 else " --=="[size]


def _has_colour(console: Console) -> bool:
    return console.color_system is not None and not console.no_color


def bars(console: Console, names: Sequence[str], values: Sequence[float], shown: int = SHOWN, limit: float | None = None) -> Text:
    """The largest values by name, each with a bar; `limit` is the magnitude of the longest, by default the largest."""
    most = limit or max(map(abs, values), default=0.0) or 1.0
    order = sorted(range(len(values)), key=lambda at: -abs(values[at]))[:shown]
    width = max((cell_len(names[at]) for at in order), default=0)
    block, picture = "#" if console.options.ascii_only else "█", Text()
    for at in order:
        colour = f"rgb({','.join(map(str, FOR if values[at] >= 0 else AGAINST))})"
        picture.append(f"{set_cell_size(names[at], width)}  {short_number(values[at]):>10}  ")
        picture.append(block * math.ceil(BAR * min(1.0, abs(values[at]) / most)), style=colour)
        picture.append("\n")
    return picture


def _quoted(token: str) -> str:
    """A token in quotes; one that is the escape of a byte keeps its single backslash."""
    return f"'{token}'" if "\\" in token and token.isprintable() else repr(token)


def token_strip(
    console: Console, tokens: Sequence[str], values: Sequence[float], special: Sequence[int] = (), limit: float | None = None
) -> Text:
    """Tokens on a background of their colour; without colours the largest as bars, with their positions.

    `limit` is the magnitude of full colour, by default the largest. The `special` places are shown with their numbers.
    """
    if not _has_colour(console):
        return bars(console, [f"{at:>4} {_quoted(token)}" for at, token in enumerate(tokens)], values, limit=limit)
    most = limit or max(map(abs, values), default=0.0) or 1.0
    strip = Text()
    for at, (token, value) in enumerate(zip(tokens, values, strict=True)):
        ground = ",".join(map(str, tint(value / most)))
        shown = token if token.isprintable() else "↵" if token == "\n" else "→" if token == "\t" else repr(token)[1:-1]
        strip.append(f"{shown} {value:+.3g} " if at in special else shown, style=f"rgb(20,24,18) on rgb({ground})")
        if token == "\n":
            strip.append("\n")
    strip.append("\n")
    return strip

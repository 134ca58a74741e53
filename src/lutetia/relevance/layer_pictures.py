"""Pictures of tokens and their relevance, with a row per layer: as HTML, for a terminal, as PNG. And heat over an image."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import check_range, fail
from lutetia.relevance.pictures import _grey, _ink, _legend, _limit, _numbers, _pixels, _write, colours

if TYPE_CHECKING:
    from rich.text import Text

NARROWEST = 4  # characters of a column in the terminal: +100
WIDEST = 160.0  # inches: a PNG of more pixels cannot be drawn


def layer_strips(tokens: Sequence[str], rows: Mapping[str, Tensor], caption: str = "", limit: float | None = None) -> str:
    """A table as a piece of HTML: a column per token, a row per layer, on one scale of colours.

    `rows`: by name, such as `{"input": r[tokens], **r.layers}`: relevance [S], or [S, ...] and [1, S, ...], added up by token.
    `limit`: the magnitude of full colour, by default the largest.
    """
    values, limit = _rows(tokens, rows, limit)
    head = "".join(
        f'<th style="font-weight:normal;white-space:pre;text-align:center">{escape(token)}</th>' for token in _shown(tokens)
    )
    lines = [f"<tr><th></th>{head}</tr>"]
    for name, row in zip(rows, values, strict=True):
        cells = []
        for value, colour in zip(row.tolist(), colours(row, limit), strict=True):
            style = f"background:rgb({colour[0]},{colour[1]},{colour[2]});color:{_ink(colour)};min-width:2em"
            cells.append(f'<td style="{style}" title="{value:.4g}"></td>')
        lines.append(
            f'<tr><th style="text-align:right;font-weight:normal;white-space:nowrap">{escape(name)}</th>{"".join(cells)}</tr>'
        )
    table = f'<table style="font-family:monospace;border-spacing:1px">{"".join(lines)}</table>'
    scrolls = f'<div style="overflow-x:auto" tabindex="0">{table}</div>'
    return f"<figure>{scrolls}<figcaption>{escape(caption)} {_legend(limit)}</figcaption></figure>"


def layer_text(tokens: Sequence[str], rows: Mapping[str, Tensor], limit: float | None = None) -> Text:
    """The same for the terminal, in percent of `limit`: print it with rich. Control characters are shown as escapes."""
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    values, limit = _rows(tokens, rows, limit)
    shown = _shown(tokens)
    percents = [[f"{round(100 * value / (limit or 1.0)):+d}" for value in row] for row in values.tolist()]
    widths = [max(NARROWEST, cell_len(token), *map(len, below)) for token, *below in zip(shown, *percents, strict=True)]
    margin = max(map(len, rows))
    text = Text(" " * margin, no_wrap=True)
    for token, width in zip(shown, widths, strict=True):
        text.append(" " + set_cell_size(token, width))
    for name, row, numbers in zip(rows, values, percents, strict=True):
        text.append("\n" + name.rjust(margin))
        for number, width, colour in zip(numbers, widths, colours(row, limit), strict=True):
            ink = "#000000" if _ink(colour) == "black" else "#ffffff"
            text.append(" ")
            text.append(number.rjust(width), style=f"{ink} on #{bytes(colour.tolist()).hex()}")
    return text


def layer_picture(
    tokens: Sequence[str],
    rows: Mapping[str, Tensor],
    *,
    path: str | Path | None = None,
    title: str = "",
    limit: float | None = None,
) -> bytes:
    """The same as a PNG, `rows` as above; returns the bytes, and writes them to `path` if given."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    values, limit = _rows(tokens, rows, limit)
    limit = limit or 1.0
    size = (2.5 + min(0.32 * len(tokens), WIDEST), 1.4 + 0.28 * len(values))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    scale = ListedColormap(colours(torch.linspace(-1, 1, 255)) / 255.0)
    drawn = axes.imshow(_numbers(values), cmap=scale, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    axes.set_xticks(range(len(tokens)), _drawn(_shown(tokens)), rotation=90, fontsize=8, parse_math=False)
    axes.set_yticks(range(len(values)), _drawn(list(rows)), fontsize=8, parse_math=False)
    axes.xaxis.tick_top()
    figure.colorbar(drawn, ax=axes, shrink=0.8)
    if title:
        figure.suptitle(_drawn([title])[0], parse_math=False)
    made = io.BytesIO()
    figure.savefig(made, format="png", dpi=120)
    if path is not None:
        _write(path, made.getvalue())
    return made.getvalue()


def overlay(
    relevance: Tensor, image: Tensor, *, path: str | Path | None = None, limit: float | None = None, strength: float = 0.8
) -> bytes:
    """Heat over a grey image, pixel for pixel in its own size: relevance and image [H, W] or [C, H, W]; the bytes of a PNG.

    `limit`: the magnitude of full colour, by default the largest. `strength`: how much full colour hides of the image.
    """
    check_range("strength", strength, low=0, high=1)
    heat = _pixels(relevance)
    values = _numbers(heat)
    limit = _limit(values, limit)
    cover = strength * np.sqrt(np.clip(np.abs(values) / limit, 0, 1)) if limit else np.zeros_like(values)
    grey = 0.25 + 0.75 * _grey(image, heat)
    mixed = (1 - cover)[..., None] * grey[..., None] + cover[..., None] * colours(heat, limit) / 255.0
    from matplotlib.image import imsave

    made = io.BytesIO()
    imsave(made, (255 * mixed).round().astype(np.uint8), format="png")
    if path is not None:
        _write(path, made.getvalue())
    return made.getvalue()


def _shown(tokens: Sequence[str]) -> list[str]:
    """Tokens in one line each: line ends and other control characters as escapes."""
    return [token if token.isprintable() else repr(token)[1:-1] for token in tokens]


def _drawn(texts: Sequence[str]) -> list[str]:
    """Texts for matplotlib: characters that its font does not have, such as Chinese and some emoji, as U+4F60."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    known = get_font(findfont(FontProperties())).get_charmap()
    return ["".join(each if each == "\n" or ord(each) in known else f"U+{ord(each):04X}" for each in text) for text in texts]


def _rows(tokens: Sequence[str], rows: Mapping[str, Tensor], limit: float | None) -> tuple[Tensor, float]:
    """The relevance of each token in each row, [rows, S], and the magnitude of full colour: the largest, if none is given."""
    if isinstance(tokens, str) or not all(isinstance(token, str) for token in tokens):
        fail("tokens", tokens, "a list of strings, one per relevance")
    if not rows:
        fail("rows", rows, "at least one row of relevance by name")
    values = torch.stack([_by_token(name, row, len(tokens)) for name, row in rows.items()])
    return values, _limit(_numbers(values), limit)


def _by_token(name: str, row: object, count: int) -> Tensor:
    if not isinstance(row, Tensor) or not row.dim():
        fail(f"the row {name!r}", row, "a tensor of relevance")
    values = row.detach().double().cpu()
    if values.dim() > 1 and values.shape[0] == 1 and (values.shape[1] == count or count != 1):
        values = values[0]
    if values.shape[0] != count:
        fail(f"the row {name!r}", row, f"the relevance of {count} tokens: [{count}], [{count}, ...] or [1, {count}, ...]")
    return values.flatten(1).sum(1) if values.dim() > 1 else values

"""Relevance to look at: heat maps of images, strips of tokens for a page and for the terminal.

One scale: white is zero, red is for the output, blue is against it, and full colour is the largest magnitude.
If the image is given, its outline is drawn over the heat map.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.markup import Html, tag, text
from lutetia._shared.pages import Page, asset, document
from lutetia.errors import check_range, check_tensor, fail
from lutetia.files import write_atomically

if TYPE_CHECKING:
    from rich.text import Text

# Anchors of the scale from -1 to 1: dark and light blue, white, light and dark red; readable for the colour-blind.
SCALE = np.array([[5, 48, 97], [67, 147, 195], [255, 255, 255], [214, 96, 77], [103, 0, 31]], dtype=np.float64)
DARK = 140.0  # text on a colour darker than this is white


def colours(relevance: Tensor, limit: float | None = None) -> np.ndarray[Any, Any]:
    """Relevance of any shape as colours, uint8 [..., 3]. `limit`: the magnitude of full colour, by default the largest."""
    values = _numbers(relevance)
    limit = _limit(values, limit)
    places = np.clip(values / limit, -1, 1) if limit else np.zeros_like(values)
    anchors = np.linspace(-1, 1, len(SCALE))
    channels = [np.interp(places, anchors, SCALE[:, channel]) for channel in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)


def heat_map(
    relevance: Tensor, image: Tensor | None = None, *, path: str | Path | None = None, limit: float | None = None, title: str = ""
) -> bytes:
    """A PNG of relevance [H, W] or [C, H, W] (summed over channels), next to the `image` of that size, if given.

    Returns the bytes, and writes them to `path` if given. The image is scaled to its own range, and its outline is drawn over
    the heat map.
    """
    heat = _pixels(relevance)
    values = _numbers(heat)
    limit = _limit(values, limit)
    shown = None if image is None else _picture(image, heat)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 if shown is None else 8.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 1 if shown is None else 2, squeeze=False)[0]
    if shown is not None:
        axes[0].imshow(shown, cmap="gray", interpolation="nearest")
        axes[0].set_title("input", fontsize=10)
        axes[1].set_title("relevance", fontsize=10)
    drawn = draw_heat(axes[-1], heat, image, limit=limit)
    for each in axes:
        each.set_axis_off()
    figure.colorbar(drawn, ax=axes[-1], shrink=0.8)
    if title:
        figure.suptitle(title.replace("$", r"\$"))
    made = io.BytesIO()
    figure.savefig(made, format="png", dpi=120)
    if path is not None:
        _write(path, made.getvalue())
    return made.getvalue()


def draw_heat(axes: Any, relevance: Tensor, image: Tensor | None = None, *, limit: float | None = None) -> Any:
    """Draw relevance [H, W] or [C, H, W] on matplotlib axes, with the outline of the `image` over it; what imshow returns."""
    from matplotlib.colors import ListedColormap

    heat = _pixels(relevance)
    values = _numbers(heat)
    limit = _limit(values, limit) or 1.0
    steps = colours(torch.linspace(-1, 1, 255)) / 255.0
    drawn = axes.imshow(values, cmap=ListedColormap(steps), vmin=-limit, vmax=limit, interpolation="nearest")
    shape = None if image is None else _grey(image, heat)
    edge = None if shape is None else edge_of(shape)
    if edge is not None and shape is not None:
        ground, level = edge
        framed = np.pad(shape, 1, constant_values=ground)  # closes the outline of what touches the border
        down, right = (np.arange(-1, size + 1) for size in shape.shape)
        for colour, width in (("white", 3.2), ("black", 1.4)):
            axes.contour(right, down, framed, levels=[level], colors=[colour], linewidths=width)
        axes.set(xlim=(-0.5, shape.shape[1] - 0.5), ylim=(shape.shape[0] - 0.5, -0.5))
    return drawn


def edge_of(image: np.ndarray[Any, Any]) -> tuple[float, float] | None:
    """The background of an image [H, W] and the level at which what it shows begins; None for an image of one shade."""
    low, high = float(image.min()), float(image.max())
    if high == low:
        return None
    ground = sorted(float(image[y, x]) for y in (0, -1) for x in (0, -1))[1]
    far = high if high - ground > ground - low else low
    return ground, ground + 0.4 * (far - ground)


def heat_map_html(relevance: Tensor, caption: str = "", limit: float | None = None) -> str:
    """A heat map as a piece of HTML, a pixel per value: relevance [H, W] or [C, H, W]."""
    heat = _pixels(relevance)
    limit = _limit(_numbers(heat), limit)
    from matplotlib.image import imsave

    made = io.BytesIO()
    imsave(made, colours(heat, limit), format="png")
    data = base64.b64encode(made.getvalue()).decode()
    width = max(160, min(480, 4 * heat.shape[1]))
    style = f"width:{width}px;image-rendering:pixelated;border:1px solid #ccc"
    picture = f'<img alt="relevance" style="{style}" src="data:image/png;base64,{data}">'
    return f"<figure>{picture}<figcaption>{escape(caption)} {_legend(limit)}</figcaption></figure>"


def token_strip(tokens: Sequence[str], relevance: Tensor, caption: str = "", limit: float | None = None) -> str:
    """Tokens on the colours of their relevance [S], as a piece of HTML; hovering over a token shows its number."""
    values, painted, limit = _of_tokens(tokens, relevance, limit)
    spans = []
    for token, value, colour in zip(tokens, values, painted, strict=True):
        style = f"background:rgb({colour[0]},{colour[1]},{colour[2]});color:{_ink(colour)};padding:1px 2px;border-radius:3px"
        spans.append(f'<span style="{style};white-space:pre-wrap" title="{value:.4g}">{escape(token)}</span>')
    words = f'<p style="line-height:2;font-family:monospace">{" ".join(spans)}</p>'
    return f"<figure>{words}<figcaption>{escape(caption)} {_legend(limit)}</figcaption></figure>"


def token_text(tokens: Sequence[str], relevance: Tensor, limit: float | None = None) -> Text:
    """Tokens on the colours of their relevance [S], for the terminal: print it with rich."""
    from rich.text import Text

    _, painted, _ = _of_tokens(tokens, relevance, limit)
    text = Text()
    for place, (token, colour) in enumerate(zip(tokens, painted, strict=True)):
        ink = "#000000" if _ink(colour) == "black" else "#ffffff"
        text.append(" " if place else "")
        text.append(token, style=f"{ink} on #{colour[0]:02x}{colour[1]:02x}{colour[2]:02x}")
    return text


def page(*pieces: str, title: str = "Relevance", path: str | Path | None = None) -> str:
    """Pieces of HTML from the functions above as one page, written to `path` if it is given."""
    body = text(tag("header", tag("h1", title)), tag("main", Html("".join(pieces))))
    whole = document(Page(title, body, [asset("tokens.css"), asset("article.css")], inline=True))
    if path is not None:
        _write(path, whole.encode())
    return whole


def _write(path: str | Path, data: bytes) -> None:
    with write_atomically(path) as file:
        file.write(data)


def _numbers(relevance: Tensor) -> np.ndarray[Any, Any]:
    check_tensor("relevance", relevance)
    values = relevance.detach().double().cpu().numpy()
    if not np.isfinite(values).all():
        fail("relevance", relevance, "finite numbers")
    return values


def _limit(values: np.ndarray[Any, Any], limit: float | None) -> float:
    if limit is None:
        return float(np.abs(values).max(initial=0.0))
    check_range("limit", limit, low=0)
    return float(limit)


def _pixels(relevance: Tensor) -> Tensor:
    check_tensor("relevance", relevance)
    if relevance.dim() not in (2, 3) or not relevance.numel():
        fail("relevance", relevance, "that of one image, [H, W] or [C, H, W]")
    return relevance if relevance.dim() == 2 else relevance.sum(0)


def _picture(image: Tensor, heat: Tensor) -> np.ndarray[Any, Any]:
    """An image [H, W], [1, H, W] or [3, H, W] as numbers from 0 to 1, the last dimension its colours."""
    check_tensor("image", image)
    if image.dim() not in (2, 3) or image.shape[-2:] != heat.shape or (image.dim() == 3 and image.shape[0] not in (1, 3)):
        fail("image", image, f"an image of {list(heat.shape)} pixels in one or three channels")
    pixels = image.detach().double().cpu()
    low, high = float(pixels.min()), float(pixels.max())
    pixels = (pixels - low) / ((high - low) or 1.0)
    return (pixels if pixels.dim() == 2 else pixels.squeeze(0) if pixels.shape[0] == 1 else pixels.movedim(0, -1)).numpy()


def _grey(image: Tensor, heat: Tensor) -> np.ndarray[Any, Any]:
    """An image as one number per pixel, from 0 to 1: [H, W]."""
    shown = _picture(image, heat)
    return shown if shown.ndim == 2 else shown.mean(-1)


def _of_tokens(tokens: Sequence[str], relevance: Tensor, limit: float | None) -> tuple[Any, Any, float]:
    check_tensor("relevance", relevance, ["S"])
    if isinstance(tokens, str) or not all(isinstance(token, str) for token in tokens) or len(tokens) != relevance.shape[0]:
        fail("tokens", tokens, f"a list of {relevance.shape[0]} strings, one per relevance")
    values = _numbers(relevance)
    limit = _limit(values, limit)
    return values, colours(relevance, limit), limit


def _ink(colour: Any) -> str:
    red, green, blue = (float(channel) for channel in colour)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > DARK else "white"


def _legend(limit: float) -> str:
    return f'<small style="white-space:nowrap">blue −{limit:.3g} · white 0 · red {limit:.3g}</small>'

"""Pictures: one symmetric scale, text that stays text, files that are what they say."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from rich.console import Console

from lutetia import relevance
from lutetia.errors import ArgumentError
from lutetia.relevance import pictures

RED, WHITE, BLUE = [103, 0, 31], [255, 255, 255], [5, 48, 97]


def test_the_scale_is_symmetric() -> None:
    painted = pictures.colours(torch.tensor([2.0, 0.0, -2.0, 1.0, -1.0]))
    assert painted[:3].tolist() == [RED, WHITE, BLUE]
    assert painted[3].tolist() == [214, 96, 77]  # half way
    assert painted[4].tolist() == [67, 147, 195]
    # The larger side sets the scale for both: a little against is a light blue.
    assert pictures.colours(torch.tensor([10.0, -0.1]))[1].tolist() == [
        251,
        253,
        254,
    ]  # 1/50 of the way from white to [67, 147, 195]
    assert pictures.colours(torch.tensor([1.0, -3.0]), limit=1.0).tolist() == [RED, BLUE]
    assert pictures.colours(torch.zeros(3)).tolist() == [WHITE] * 3
    assert pictures.colours(torch.zeros(0)).shape == (0, 3)


def test_a_heat_map_is_a_png(tmp_path: Path) -> None:
    heat = torch.zeros(3, 5, 7)
    heat[0, 1, 2], heat[1, 1, 2], heat[2, 4, 6] = 1.0, 1.0, -2.0
    path = tmp_path / "heat.png"
    made = pictures.heat_map(heat, torch.rand(3, 5, 7), path=path, title="what it saw: $5")
    assert path.read_bytes() == made
    pixels = imread(io.BytesIO(made), format="png")
    assert pixels.shape[0] > 300
    assert pixels.shape[1] > pixels.shape[0]  # the image and the map, side by side
    found = {tuple(colour) for colour in (pixels[..., :3] * 255).round().astype(int).reshape(-1, 3)}
    assert {tuple(RED), tuple(BLUE), (255, 255, 255)} <= found
    for image in (None, torch.rand(5, 7), torch.rand(1, 5, 7), torch.zeros(3, 5, 7)):
        assert pictures.heat_map(heat[0], image)[:4] == b"\x89PNG"


def test_a_heat_map_on_a_page_has_a_pixel_per_value() -> None:
    heat = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    piece = pictures.heat_map_html(heat, "<b>cat</b>")
    data = re.search(r"base64,([^\"]+)", piece)
    assert data
    pixels = imread(io.BytesIO(base64.b64decode(data[1])), format="png")
    assert (pixels[..., :3] * 255).round().astype(int).tolist() == [[RED, WHITE], [WHITE, BLUE]]
    assert "<b>" not in piece
    assert "&lt;b&gt;cat" in piece


def test_tokens_are_text_and_nothing_else(tmp_path: Path) -> None:
    tokens = ["<script>alert(1)</script>", 'a"b', "good", "&amp;"]
    piece = pictures.token_strip(tokens, torch.tensor([0.5, 0.0, 1.0, -1.0]), caption="x < y")
    assert "<script>" not in piece
    assert "&lt;script&gt;" in piece
    assert "a&quot;b" in piece
    assert "&amp;amp;" in piece
    assert "x &lt; y" in piece
    backgrounds = re.findall(r"background:rgb\((\d+),(\d+),(\d+)\);color:(\w+)", piece)
    assert [list(map(int, b[:3])) for b in backgrounds] == [[214, 96, 77], WHITE, RED, BLUE]
    assert [b[3] for b in backgrounds] == ["white", "black", "white", "white"]
    path = tmp_path / "page.html"
    whole = pictures.page(piece, title="<i>", path=path)
    assert path.read_text(encoding="utf-8") == whole
    assert "<title>&lt;i&gt;</title>" in whole


def test_tokens_in_the_terminal() -> None:
    text = pictures.token_text(["[bold]not", "bad"], torch.tensor([-1.0, 1.0]))
    assert text.plain == "[bold]not bad"
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=60)
    console.print(text)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "48;2;5;48;97" in written
    assert "48;2;103;0;31" in written


def test_of_a_model() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(12, 2))
    tokens = torch.tensor([[1, 2, 3]])
    r = relevance.attribute(model, tokens)
    assert pictures.token_strip(["a", "b", "c"], r[tokens][0]).count("<span") == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda: pictures.heat_map(torch.zeros(2, 2, 2, 2)),
        lambda: pictures.heat_map(torch.zeros(0, 4)),
        lambda: pictures.heat_map(torch.zeros(4, 4), torch.zeros(3, 5, 4)),
        lambda: pictures.heat_map(torch.zeros(4, 4), torch.zeros(2, 4, 4)),
        lambda: pictures.heat_map_html(torch.full((2, 2), float("nan"))),
        lambda: pictures.colours(np.zeros(3)),  # type: ignore[arg-type]
        lambda: pictures.colours(torch.zeros(3), limit=-1.0),
        lambda: pictures.token_strip("abc", torch.zeros(3)),
        lambda: pictures.token_strip(["a"], torch.zeros(3)),
        lambda: pictures.token_text(["a", 3], torch.zeros(2)),  # type: ignore[list-item]
        lambda: pictures.token_text(["a"], torch.zeros(1, 1)),
    ],
)
def test_wrong_arguments(call: Any) -> None:
    with pytest.raises(ArgumentError):
        call()


def test_the_outline_of_the_image_is_drawn_over_the_heat() -> None:
    image = torch.zeros(8, 8)
    image[2:6, 3:5] = 1.0
    without, over = (imread(io.BytesIO(pictures.heat_map(torch.zeros(8, 8), image=each)), format="png") for each in (None, image))
    black = lambda pixels: int((pixels[..., :3].max(-1) < 0.1).sum())  # noqa: E731
    right = over[:, over.shape[1] // 2 :]
    assert black(right) > black(without) + 200
    assert pictures.edge_of(image.numpy()) == (0.0, pytest.approx(0.4))
    assert pictures.edge_of(1 - image.numpy()) == (1.0, pytest.approx(0.6))  # dark on light
    assert pictures.edge_of(np.ones((2, 2))) is None
    assert pictures.heat_map(torch.zeros(8, 8), torch.ones(8, 8))[:4] == b"\x89PNG"  # nothing to outline

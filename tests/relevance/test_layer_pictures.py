"""Token strips with layers below, for a page, a terminal and as PNG; heat over an image in its own size."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.relevance.layer_pictures import layer_picture, layer_strips, layer_text, overlay

TOKENS = ["<b>", "two", "\n"]
ROWS = {"input": torch.tensor([1.0, -0.5, 0.0]), "layers.<0>": torch.tensor([[[0.5, 0.5], [0.0, -0.25], [0.0, 0.0]]])}


def test_a_page_has_a_row_for_each_layer() -> None:
    html = layer_strips(TOKENS, ROWS, "a & b")
    assert "<b>" not in html
    assert "&lt;b&gt;" in html
    assert "layers.&lt;0&gt;" in html
    assert "a &amp; b" in html
    assert ">\\n</th>" in html  # a line end as two characters
    cells = re.findall(r'background:(rgb\([\d,]+\));[^>]*title="([^"]*)"', html)
    assert [float(number) for _, number in cells] == [1.0, -0.5, 0.0, 1.0, -0.25, 0.0]
    assert cells[0][0] == cells[3][0] == "rgb(103,0,31)"  # one scale: the same relevance, the same colour
    assert cells[2][0] == "rgb(255,255,255)"


def test_a_terminal_shows_the_same() -> None:
    lines = layer_text(TOKENS, ROWS).plain.splitlines()
    assert len(lines) == 3
    assert "\\n" in lines[0]
    assert lines[1].split() == ["input", "+100", "-50", "+0"]  # percent of the largest
    assert lines[2].split() == ["layers.<0>", "+100", "-25", "+0"]
    assert len({len(line.rstrip("\n")) for line in lines[1:]}) == 1


def test_columns_of_wide_characters_stand_below_each_other() -> None:
    from rich.cells import cell_len

    lines = layer_text(["你好吗", "😀", "e"], ROWS).plain.splitlines()
    assert {cell_len(line) for line in lines} == {len("layers.<0>") + 7 + 5 + 5}
    large = layer_text(TOKENS, {"input": torch.tensor([100.0, 1.0, 0.0]), "x": torch.zeros(3)}, 1.0).plain.splitlines()
    assert large[1].split() == ["input", "+10000", "+100", "+0"]
    assert len(large[1]) == len(large[2])


def test_a_limit_sets_the_scale() -> None:
    cells = re.findall(r"background:(rgb\([\d,]+\))", layer_strips(TOKENS, ROWS, limit=0.5))
    assert cells[:3] == ["rgb(103,0,31)", "rgb(5,48,97)", "rgb(255,255,255)"]  # full colour from 0.5 on
    assert layer_picture(TOKENS, ROWS, limit=0.5) != layer_picture(TOKENS, ROWS)


@pytest.mark.filterwarnings("error")
def test_characters_that_the_font_lacks_are_written_as_numbers() -> None:
    made = layer_picture(["你", "é", "c"], ROWS, title="你")
    assert made == layer_picture(["U+4F60", "é", "c"], ROWS, title="U+4F60")


def test_a_picture(tmp_path: Path) -> None:
    made = layer_picture(["$a", "b", "c"], ROWS, path=tmp_path / "layers.png", title="$x")
    assert made.startswith(b"\x89PNG")
    assert (tmp_path / "layers.png").read_bytes() == made


def test_heat_lies_over_the_image_in_its_own_size(tmp_path: Path) -> None:
    from matplotlib.image import imread

    relevance, image = torch.zeros(3, 7, 9), torch.rand(3, 7, 9)
    relevance[:, 2, 3], relevance[0, 5, 8] = 1.0, -3.0
    pixels = imread(io.BytesIO(overlay(relevance, image, path=tmp_path / "heat.png", strength=1.0)))
    assert pixels.shape[:2] == (7, 9)
    assert tuple((pixels[2, 3, :3] * 255).round()) == (103, 0, 31)
    assert tuple((pixels[5, 8, :3] * 255).round()) == (5, 48, 97)
    assert pixels[0, 0, 0] == pixels[0, 0, 1] == pixels[0, 0, 2]  # the image itself, grey


@pytest.mark.parametrize(
    "rows", [{}, {"a": torch.zeros(4)}, {"a": torch.zeros(2, 3)}, {"a": 3.0}, {"a": torch.full((3,), torch.nan)}]
)
def test_what_cannot_be_drawn(rows: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ArgumentError):
        layer_strips(TOKENS, rows)

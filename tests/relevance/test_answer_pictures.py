"""The page of an answer: text cannot become markup, and choosing a token colours what stands before it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.relevance.answer_pictures import AnsweredText, answer_page
from lutetia.relevance.pictures import colours

if TYPE_CHECKING:
    from browser import OpenPage

pytest_plugins = ["browser"]

PROMPT, ANSWER = ["<b>", "two\n", "</script>"], [" x", "\x1b[0m"]
VALUES = torch.tensor([[1.0, -2.0, 0.5, 0.0, 0.0], [0.25, 0.0, 0.0, -1.0, 0.0]])


def shown(**changes: Any) -> AnsweredText:
    return AnsweredText(PROMPT, ANSWER, VALUES, ["first note", "second note"], "all of it")._replace(**changes)


def test_text_is_escaped_and_the_numbers_are_in_the_page(tmp_path: Path) -> None:
    page = answer_page(shown(), title="Why <i>", path=tmp_path / "why.html")
    assert (tmp_path / "why.html").read_text("utf-8") == page
    assert "<b>" not in page.replace("<body>", "")
    assert "<i>" not in page
    assert "\x1b" not in page
    assert page.count("</script>") == 2  # its own two
    data = re.search(r'id="answer-data">(.*?)</script>', page)
    assert data is not None
    told = json.loads(data[1])
    assert [row["shares"] for row in told["rows"]] == [[64, -127, 32], [32, 0, 0, -127]]
    assert [row["most"] for row in told["rows"]] == [2, 1]
    assert told["total"]["most"] == 2


def test_what_does_not_fit_is_refused() -> None:
    for changes, reason in (({"relevance": VALUES[:, :4]}, "relevance"), ({"notes": ["one"]}, "notes"), ({"answer": []}, "row")):
        with pytest.raises(ArgumentError, match=reason):
            answer_page(shown(**changes))


SINK = torch.tensor([[40.0, -2.0, 0.5, 0.0, 0.0], [60.0, 1.0, 0.0, -1.0, 0.0]])


def test_a_special_token_does_not_set_the_scale() -> None:
    page = answer_page(shown(relevance=SINK, special=[0]))
    data = re.search(r'id="answer-data">(.*?)</script>', page)
    assert data is not None
    told = json.loads(data[1])
    assert [row["most"] for row in told["rows"]] == [2, 1]
    assert told["total"]["most"] == 1
    assert told["total"]["shares"] == [12700, -127, 64]
    assert "<small> +100</small>" in page  # without scripts, too
    assert page.count("rgb(5,48,97)") == 1  # -1 of 1 has the full colour
    assert "blue −2 · white 0 · red 2" in page
    alone = answer_page(shown(relevance=SINK * torch.tensor([1.0, 0, 0, 0, 0]), special=[0]))
    assert "blue −60 · white 0 · red 60" in alone  # where the others have nothing, it does
    with pytest.raises(ArgumentError, match="special"):
        answer_page(shown(special=[5]))


def test_the_number_beside_a_special_token_follows_the_choice(open_page: OpenPage) -> None:
    opened = open_page(answer_page(shown(relevance=SINK, special=[0])))
    page = opened.page
    assert opened.problems == []

    def seen() -> tuple[str, str]:
        first = page.locator("[data-at='0']")
        return first.locator("small").inner_text().strip(), first.evaluate("e => e.style.background")

    assert seen() == ("+100", "rgb(103, 0, 31)")
    page.locator("[data-row='0']").click()
    assert seen() == ("+40", "rgb(103, 0, 31)")
    assert page.locator("[data-at='2']").get_attribute("title") == "+0.504"  # 32 of 127 parts of 2


@pytest.mark.parametrize("width", [1200, 390])
def test_a_chosen_token_colours_what_stands_before_it(open_page: OpenPage, width: int) -> None:
    opened = open_page(answer_page(shown()), width=width)
    page = opened.page
    assert opened.problems == []
    assert len(opened.requests) == 1

    def painted(row: torch.Tensor) -> list[str]:
        steps = (row * 127 / row.abs().max()).round()  # as fine as the page keeps them
        return [f"rgb({red}, {green}, {blue})" for red, green, blue in colours(steps, 127).tolist()]

    def seen(count: int) -> list[str]:
        return page.eval_on_selector_all("[data-at]", "all => all.map(e => e.style.background)")[:count]

    assert seen(3) == painted(VALUES[:, :3].sum(0))
    assert page.locator("#said").inner_text() == "all of it"
    page.locator("[data-row='1']").click()
    assert page.locator("#said").inner_text() == "second note"
    page.mouse.move(0, 0)
    assert page.locator("#said").inner_text() == "second note"  # it stays chosen
    assert seen(5)[4] == ""
    assert seen(4)[3] == painted(VALUES[1, :4])[3]
    page.locator("#whole").click()
    assert page.locator("#said").inner_text() == "all of it"
    assert page.evaluate("document.documentElement.scrollWidth") <= width

"""The report as a file: what is in it, what may be left out, what is refused. No browser is needed."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import stories

from lutetia import report
from lutetia.errors import ArgumentError, DataError


@pytest.fixture(scope="module")
def story() -> report.Story:
    return stories.real()


def data_of(page: str) -> dict[str, Any]:
    """What the page's script reads."""
    found = re.search(r'<script type="application/json" id="story">(.*?)</script>', page, re.S)
    assert found
    assert found[1].isascii()
    return dict(json.loads(found[1], parse_constant=pytest.fail))


def test_the_page_is_whole_small_and_asks_for_nothing(story: report.Story, tmp_path: Path) -> None:
    report.write(tmp_path / "report.html", story)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 300_000
    assert os.listdir(tmp_path) == ["report.html"]
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    assert page.count("</script") == 2
    titles = re.findall(r"<h2[^>]*>([^<]+)", page)
    assert titles == [
        "How a lookup table reads",
        "Training", "Right and wrong", "Generated text", "Why it decided",
        "A table of data", "The circuit", "Data flow", "Speed", "This machine",
    ]  # fmt: skip


@pytest.mark.parametrize("left_out", [field.name for field in fields(report.Story)])
def test_any_section_may_be_left_out(left_out: str, story: report.Story) -> None:
    empty = getattr(report.Story(), left_out)
    page = report.html(replace(story, **{left_out: empty}))
    assert len(page) < len(report.html(story))
    assert page.count("<section") == 10 - (
        left_out in ("reading", "trained", "evaluated", "wrote", "circuit", "flows", "speed", "machine", "data")
    )


@pytest.mark.parametrize("kept", [field.name for field in fields(report.Story)])
def test_any_section_may_stand_alone(kept: str, story: report.Story) -> None:
    page = report.html(report.Story(**{kept: getattr(story, kept)}))
    assert page.count("<section") == (kept not in ("title", "said", "figures"))


def test_an_empty_story_says_so() -> None:
    assert "There is nothing to show yet." in report.html(report.Story())


def test_numbers_of_the_story_are_those_of_the_page(story: report.Story) -> None:
    data = data_of(report.html(story))
    assert story.decided is not None
    for told, item in zip(data["why"]["items"], story.decided.items, strict=True):
        assert told["scores"] == pytest.approx(item.scores, rel=1e-4)
        assert told["heat"]["epsilon"] == pytest.approx(item.heat["epsilon"], rel=1e-4)
        assert [each["number"] for each in told["detectors"]] == [each.number for each in item.detectors]
    assert data["strips"][0]["tokens"][-2:] == ["\\xc3", "\\xa9"]
    assert len(data["flows"]) == 2
    assert json.loads(data["flows"][0][1])["steps"]


def test_what_is_no_number_is_shown_all_the_same() -> None:
    curve = report.Curve("loss", [1, 2, 3, 4], [float("nan"), 2.0, float("inf"), 1.0])
    decision = report.Decision([float("nan"), 1.0], 0, [float("inf"), 0.0], {"epsilon": [float("-inf"), 1.0]})
    told = report.Story(trained=[report.Training("t", [curve])], decided=report.Decisions((2,), [decision]))
    page = report.html(told)
    assert data_of(page)["why"]["items"][0]["values"] == [0.0, 1.0]
    assert not re.search(r'd="[^"]*(?:nan|inf)', page)


@pytest.mark.parametrize("values", [[], [float("nan")], [1.0], [1.0, 1.0, 1.0], [0.0, -1.0], [1e-12, 1e12]])
def test_odd_curves_are_drawn(values: list[float]) -> None:
    training = report.Training("t", [report.Curve("loss", range(len(values)), values)])
    page = report.html(report.Story(trained=[training]))
    assert not re.search(r"=\"[^\"]*\b(?:nan|inf)\b", page)


@pytest.mark.parametrize(
    ("story", "message"),
    [
        (report.Story(trained=[report.Training("t", [report.Curve("c", [1, 2], [1.0])])]), "a curve's values is '1 long'"),
        (report.Story(trained=[report.Training("t", confusion=[[1, 2]])]), "a row of the confusion matrix is '2 long'"),
        (
            report.Story(evaluated=report.Evaluation([[1, 0], [0, 2]], ["a"], report.CellTable((), []))),
            "the labels of a confusion matrix is '1 long'",
        ),
        (report.Story(decided=report.Decisions((3,), [report.Decision([1.0], 0, [1.0], {})])), "the values of a decision is"),
        (report.Story(strips=[report.Strip("s", ["a", "b"], {2: [1.0, 2.0]})]), "a place of a strip is 2, expected 1 to 1"),
        (report.Story(strips=[report.Strip("s", ["a", "b"], {1: []})]), "the relevance for the token at 1 is '0 long'"),
        (report.Story(speed=[report.CellTable(("a",), [("b", 2)])]), "a row of a table is '2 long', expected a length of 1"),
        (report.Story(circuit=report.Circuit([report.Part("sum", sources=(0,))])), r"the sources of part 0 is \(0,\)"),
    ],
)
def test_numbers_that_do_not_belong_together_are_refused(story: report.Story, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        report.write(tmp_path / "report.html", story)
    assert os.listdir(tmp_path) == []


class Elements(HTMLParser):
    """The tags of a page, the names of their attributes, and its words outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.words += data


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "</script><b onclick='x'>",
        "\"'><img src=x onerror=alert(1)>",
        "--></style><!-- &lt;",
        "$data ${title}",
    ],
)
def test_texts_of_others_add_no_markup(text: str) -> None:
    plain, hostile = (Elements(report.html(stories.hostile(each))) for each in ("plain", text))
    assert hostile.tags == plain.tags
    assert hostile.attributes == plain.attributes
    assert hostile.words.count(text) > 50  # shown as it is; drawings cut a few of their labels


def test_what_is_no_story_is_refused() -> None:
    with pytest.raises(ArgumentError, match="story is 3, expected a Story"):
        report.html(3)  # type: ignore[arg-type]


def test_places_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="is a folder, expected a name for the page"):
        report.write(tmp_path, report.Story())
    with pytest.raises(DataError, match="does not exist, expected a folder"):
        report.write(tmp_path / "none" / "report.html", report.Story())
    (tmp_path / "report.html").write_text("the old one")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"report\.html cannot be written: No space left on device"):
        report.write(tmp_path / "report.html", report.Story())
    assert os.listdir(tmp_path) == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "the old one"


def test_trainings_with_nothing_but_a_chart_stand_side_by_side() -> None:
    chart = [report.Curve("loss", [1, 2], [2.0, 1.0])]
    matrix, plain = report.Training("m", chart, confusion=[[1]]), report.Training("p", chart)
    assert report.html(report.Story(trained=[matrix, plain, plain])).count('<div class="columns"><article') == 1
    assert report.html(report.Story(trained=[matrix, plain])).count('<div class="columns"><article') == 0

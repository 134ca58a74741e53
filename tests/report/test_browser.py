"""The report in a real browser: what it shows, how it is used by hand and by keyboard, and what it must never do."""

from __future__ import annotations

import importlib.resources
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stories
import torch

from lutetia import report
from lutetia import sklearn as estimators
from lutetia.models import LUTClassifier
from tools import require_module

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from browser import OpenPage

pytest_plugins = ["browser"]

WIDE = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def story() -> report.Story:
    return stories.real()


@pytest.fixture(scope="module")
def text(story: report.Story) -> str:
    return report.html(story)


def pixels(page: Page, selector: str) -> list[int]:
    script = "e => [...e.getContext('2d').getImageData(0, 0, e.width, e.height).data]"
    return list(page.locator(selector).first.evaluate(script))


def show_flow(page: Page, number: int = 0) -> Any:
    page.locator(f"[data-flow='{number}']").scroll_into_view_if_needed()
    frame = page.frame_locator(f"[data-flow='{number}'] iframe")
    frame.locator("#canvas .box").first.wait_for()
    return frame


def test_it_opens_from_disk_and_asks_for_nothing(open_page: OpenPage, text: str) -> None:
    page, requests, problems = open_page(text)
    assert page.title() == "A story of tables"
    show_flow(page)
    # The frame's own document is in the page itself.
    assert [each for each in requests if not each.startswith("about:")] == [page.url]
    assert problems == []


def test_policy_stops_what_the_page_did_not_bring(open_page: OpenPage, text: str) -> None:
    page, _, problems = open_page(text)
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
    assert page.evaluate("window.ran") is None
    assert "Content Security Policy" in problems[0]


def test_pick_an_input_and_see_why(open_page: OpenPage, text: str, story: report.Story) -> None:
    page, _, problems = open_page(text)
    assert story.decided is not None
    for at in (0, 3, 9):
        item = story.decided.items[at]
        page.locator(".picker input").nth(at).check()
        said = page.locator(".verdict").inner_text()
        assert said.splitlines()[0] == f"Read as {item.prediction}"
        chances = sorted(torch.tensor(item.scores).softmax(0).tolist(), reverse=True)
        odds, _, known = said.splitlines()[1].partition("; ")
        assert re.fullmatch(rf"{100 * chances[0]:.1f}%, then \d with {100 * chances[1]:.1f}%", odds)
        assert known == (f"but it is {item.label}" if at == 3 else "correct")
        numbers = page.locator(".detectors button").evaluate_all("l => l.map(e => e.firstChild.textContent)")
        assert numbers == [f"#{each.number}" for each in item.detectors]
    assert page.locator(".picker .wrong").count() == 1
    assert problems == []


def test_shares_of_probabilities_are_shown_as_they_are(open_page: OpenPage) -> None:
    item = report.Decision([0.5], 1, [0.25, 0.5, 0.0], {"decisive": [1.0]})
    decided = report.Decisions((1,), [item], ["low", "middle", "high"], shares=True)
    page, _, problems = open_page(report.html(report.Story("A row", decided=decided)))
    assert page.locator(".verdict").inner_text().splitlines()[1] == "66.7%, then low with 33.3%"
    assert problems == []


def test_a_row_of_a_table_of_data_shows_what_was_compared(open_page: OpenPage) -> None:
    rows = np.random.default_rng(0).random((120, 3))
    names = np.array(["small", "a class with a rather long name", "large"])
    estimator = estimators.LUTClassifier(n_tables=12, n_anchors=3, random_state=0).fit(rows, names[(3 * rows[:, 0]).astype(int)])
    x = torch.from_numpy(rows[:1])
    decided = report.decisions(estimator.model_, x, rules=["decisive"])
    (item,) = decided.items
    page, _, problems = open_page(report.html(report.Story("A row", decided=decided)), 1280)
    shown = page.locator(".looking > div:nth-child(2) .bars li > span:first-child").all_inner_texts()
    assert shown == [each.text for each in item.comparisons]
    assert item.comparisons[0].feature == "x0"
    assert page.locator(".looking > div:first-child .bars li").first.inner_text().startswith(f"x0 = {rows[0, 0]:.6g}")
    starts = page.locator(".looking > div:last-child .bar").evaluate_all("l => l.map(e => e.getBoundingClientRect().left)")
    assert len(starts) == 3
    assert len(set(starts)) == 1  # bars of classes with names of different lengths begin at one line
    assert problems == []


@pytest.mark.parametrize(
    ("number", "contribution", "value"),
    [
        (29147.3, "29,150", "29,147.3"), (-29147.3, "−29,150", "−29,147.3"), (1234.5, "1235", "1235"),
        (12345678, "12,350,000", "12,345,680"), (2e20, "2.0e+20", "2.000e+20"), (3.14159, "3.14", "3.142"),
        (0.5, "0.500", "0.5"), (0.00002, "2.0e−5", "2.000e−5"), (0, "0", "0"),
    ],
)  # fmt: skip
def test_large_numbers_are_written_out(open_page: OpenPage, number: float, contribution: str, value: str) -> None:
    source = (Path(report.__file__).parent / "page" / "numbers.js").read_text()
    page = open_page("<title>numbers</title>").page
    written = page.evaluate(f"number => {{ {source}; return [show(number), showValue(number)]; }}", number)
    assert written == [contribution, value]


def test_each_rule_paints_its_own_heat(open_page: OpenPage, text: str, story: report.Story) -> None:
    page = open_page(text).page
    assert story.decided is not None
    heat = story.decided.items[0].heat
    seen = []
    titles = {"input": "The input alone", **story.decided.titles}
    for name in ("input", "decisive", "epsilon", "gradient", "occlusion"):
        page.locator(".segments").get_by_label(f"{titles[name]} ({name})", exact=True).check()
        assert ("rule “" in page.locator(".looking .small").first.inner_text()) == (name != "input")
        seen.append(pixels(page, ".picture canvas"))
        if name != "input":  # what speaks most for is the warmest pixel, most against the coldest
            warmth = [seen[-1][4 * at] - seen[-1][4 * at + 2] for at in range(35)]
            values = heat[name]
            assert warmth.index(max(warmth)) == values.index(max(values))
            assert warmth.index(min(warmth)) == values.index(min(values))
    assert len({tuple(each) for each in seen}) == 5


def test_the_outline_of_the_image_lies_over_its_heat_map(open_page: OpenPage, text: str) -> None:
    page = open_page(text).page
    assert page.locator(".picture .outline").count() == 1
    path = page.locator(".picture .outline").get_attribute("d") or ""
    assert path.count("M") > 5
    numbers = [float(each) for each in path.replace("M", " ").replace("L", " ").split()]
    assert min(numbers) >= -0.5
    assert max(numbers) <= 7.5
    page.locator(".segments label").last.click()  # the input alone
    assert page.locator(".picture .outline").count() == 0


def test_the_byte_view_says_that_it_can_be_clicked(open_page: OpenPage, text: str, story: report.Story) -> None:
    page = open_page(text).page
    assert "Click or tap any underlined letter" in page.locator("article:has(.strip)").inner_text()
    pressed = page.locator(".tokens [aria-pressed=true]")
    assert pressed.inner_text() == story.strips[0].tokens[story.strips[0].opened or -1]


def test_pointing_at_a_detector_shows_its_anchors_and_row(open_page: OpenPage, text: str, story: report.Story) -> None:
    page = open_page(text).page
    assert story.decided is not None
    item = story.decided.items[0]
    page.locator(".detectors button").nth(2).hover()
    detector = item.detectors[2]
    detail = page.locator(".looking > div").nth(2)
    assert f"What table #{detector.number} compared" in detail.inner_text()
    # The highest bit first, here and in the button, so that they read as the row's number.
    bits = f"{detector.row:0{len(detector.bits)}b}"
    assert f"Bits {bits} are row {detector.row}: what it adds, by class" in detail.inner_text()
    assert page.locator(".detectors button code").nth(2).inner_text() == bits
    weights = [1 << r for r in reversed(range(len(bits)))]
    assert detail.locator(".pairs code").all_inner_texts() == [
        f"{bit} × {weight}" for bit, weight in zip(bits, weights, strict=True)
    ]
    dots = page.locator(".picture circle").evaluate_all("l => l.map(e => [+e.getAttribute('cx'), +e.getAttribute('cy')])")
    assert dots == [[at % 7 + 0.5, at // 7 + 0.5] for pair in detector.anchors for at in pair]
    more = page.locator(".picture circle").evaluate_all("l => l.map(e => e.classList.contains('more'))")
    assert more == [side for bit in detector.bits for side in (bool(bit), not bit)]
    # The first one is back when the pointer leaves, until another is clicked.
    page.mouse.move(5, 5)
    assert f"#{item.detectors[0].number} " in detail.inner_text()
    page.locator(".detectors button").nth(2).click()
    page.mouse.move(5, 5)
    page.evaluate("document.activeElement.blur()")
    assert f"#{detector.number} " in detail.inner_text()


def test_a_token_shows_what_made_it(open_page: OpenPage, text: str, story: report.Story) -> None:
    page, _, problems = open_page(text)
    strip = story.strips[0]
    buttons = page.locator(".tokens button")
    assert buttons.count() == len(strip.relevance) == len(strip.tokens) - 4
    buttons.nth(2).hover()
    at = 4 + 2
    row = strip.relevance[at]
    best = max(range(at), key=lambda i: abs(row[i]))
    assert page.locator(".strip [role=status]").inner_text().startswith(f'"{strip.tokens[at]}" was predicted mostly from')
    grounds = page.locator(".tokens > span, .tokens > button").evaluate_all("l => l.map(e => e.style.background)")
    assert [bool(ground) for ground in grounds[at:]] == [False] * (len(strip.tokens) - at)
    assert ("--cold" if row[best] < 0 else "--warm") in grounds[best]
    assert " 55%" in grounds[best]
    assert problems == []


def test_keyboard_alone(open_page: OpenPage, text: str) -> None:
    page, _, problems = open_page(text)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.focus(".picker input")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("input 2, ")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.locator(".segments input:checked").get_attribute("aria-label") == "What took part (epsilon)"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    name = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert name.startswith("table ")
    assert f"#{name.split(',')[0].split()[1]} " in page.locator(".looking > div").nth(2).inner_text()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    page.focus(".tokens button[tabindex='0']")
    page.keyboard.press("Home")
    assert page.locator(".tokens button").first.get_attribute("aria-pressed") == "true"
    page.keyboard.press("ArrowRight")
    assert page.locator(".tokens button").nth(1).get_attribute("aria-pressed") == "true"
    page.focus("[role=tab]")
    page.keyboard.press("ArrowRight")
    assert page.locator("[role=tab]").nth(1).get_attribute("aria-selected") == "true"
    assert page.locator("[role=tabpanel]:visible").get_attribute("id") == "flow-1"
    for selector in (".picker input", "[role=tab][tabindex='0']", ".tokens button[tabindex='0']", "#theme"):
        page.focus(selector)
        page.keyboard.press("Shift")  # so that the focus counts as one by keyboard
        around = "(e.closest('label') ?? e)"
        width = page.locator(selector).first.evaluate(f"e => getComputedStyle({around}).outlineWidth")
        assert float(width.removesuffix("px")) >= 2, selector
    assert problems == []


def test_the_flow_is_drawn_and_explored_on_demand(open_page: OpenPage, text: str) -> None:
    page, _, problems = open_page(text)
    frame = show_flow(page)
    assert "check_detectors" in (frame.locator("#canvas .box").first.get_attribute("aria-label") or "")
    assert page.locator("[data-flow='0'] iframe").evaluate("e => e.inert")
    page.get_by_role("button", name="Explore the drawing of one input").click()
    frame.locator("#canvas .box").first.click()
    assert frame.locator("#panel h2").inner_text().startswith("check_detectors")
    page.get_by_role("tab", name="three bytes").click()
    second = show_flow(page, 1)
    assert second.locator("#canvas .box").count() > 0
    page.click("#theme")
    themes = [each.locator("html").get_attribute("data-theme") for each in (frame, second)]
    assert themes == ["dark", "dark"]
    assert problems == []


def test_light_and_dark(open_page: OpenPage, text: str) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = open_page(text, scheme="light").page, open_page(text, scheme="dark").page
    by_day, by_night = light.evaluate(background), dark.evaluate(background)
    painted = pixels(light, ".picker canvas"), pixels(dark, ".picker canvas")
    assert by_day != by_night
    assert painted[0] != painted[1]
    for page, other, canvas in [(light, by_night, painted[1]), (dark, by_day, painted[0])]:
        page.click("#theme")
        assert page.evaluate(background) == other
        assert pixels(page, ".picker canvas") == canvas


@pytest.mark.parametrize("width", [320, 360, 768])
def test_nothing_is_wider_than_the_window(open_page: OpenPage, text: str, width: int) -> None:
    page, _, problems = open_page(text, width, 700)
    assert page.evaluate(WIDE) == width
    page.locator(".detectors button").first.click()
    assert page.locator(".looking > div").nth(2).is_visible()
    show_flow(page)
    assert page.evaluate(WIDE) == width
    sizes = page.locator("button:visible, .picker label, .segments label, nav a").evaluate_all(
        "l => l.map(e => [e.getBoundingClientRect().height, e.closest('.tokens') !== null])"
    )
    assert all(height >= 24 for height, token in sizes if not token)
    assert problems == []


def test_on_a_phone_the_picture_stays_in_sight_of_the_detectors(open_page: OpenPage, text: str) -> None:
    page = open_page(text, 360, 640).page
    button = page.locator(".detectors button").nth(8)
    button.tap()
    place = page.locator(".picture").bounding_box()
    assert place is not None
    assert place["y"] >= 40
    assert place["y"] + place["height"] <= 640
    assert button.get_attribute("aria-pressed") == "true"


HOSTILE = [
    "<script>window.hacked = 1; alert(1)</script>",
    "</script><script>window.hacked = 1</script>",
    '"><img src=x onerror=window.hacked=1>',
    "</title></style><!--<script>",
    "${window.hacked = 1} $data $script",
    "a\u2028b\u2029c\ud800 \x00 & &lt; \\u003c javascript:window.hacked=1",
]


def plain(text: str) -> str:
    """Without what no page can show: NUL, and half of a pair of surrogates."""
    return "".join(char for char in text if char not in "\x00\ud800\ufffd?")


@pytest.mark.parametrize("hostile", HOSTILE)
def test_texts_are_only_ever_text(open_page: OpenPage, hostile: str) -> None:
    page, requests, problems = open_page(report.html(stories.hostile(hostile)).encode("utf-8", "replace").decode())
    show_flow(page)
    page.locator(".picker input").nth(1).check()
    page.locator(".detectors button").hover()
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.querySelector('iframe').contentWindow.hacked") is None
    assert page.locator("img, main script, header script").count() == 0
    for selector in ("h1", "pre b", ".segments label:nth-child(1)", ".tokens span", ".looking > div:last-child .bars span"):
        assert plain(page.locator(selector).first.evaluate("e => e.textContent")) == plain(hostile), selector
    assert [each for each in requests if not each.startswith("about:")] == [page.url]
    assert problems == []


def violations(page: Page) -> list[str]:
    """What axe-core finds serious or critical, with the element."""
    source = importlib.resources.files(require_module("axe_playwright_python")).joinpath("axe.min.js")
    page.evaluate(source.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    return [
        f"{each['impact']} {each['id']}: {each['nodes'][0]['html'][:120]} {each['nodes'][0].get('failureSummary', '')[:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1280, "light"),
        (360, "dark"),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in ((1280, "dark"), (360, "light"))),
    ],
)
def test_axe_finds_no_serious_fault(open_page: OpenPage, text: str, width: int, scheme: str) -> None:
    page = open_page(text, width, 800, scheme).page
    show_flow(page)
    page.evaluate("scrollTo(0, 0)")
    assert violations(page) == []


def test_axe_finds_a_fault_where_there_is_one(open_page: OpenPage) -> None:
    page = open_page("<!doctype html><html lang=en><title>t</title><body><button></button><img src=data:,>").page
    assert [each.split(":")[0] for each in violations(page)] == ["critical button-name", "critical image-alt"]


def test_headings_go_down_one_by_one(open_page: OpenPage, text: str) -> None:
    page = open_page(text).page
    levels = page.locator("h1, h2, h3, h4").evaluate_all("l => l.map(e => +e.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_columns_are_named_in_full_with_their_values(open_page: OpenPage) -> None:
    model = LUTClassifier(input_shape=(3,), n_classes=2, readout="lut", initial_noise=1.0, seed=0).eval()
    model.metadata = {"features": ["od280/od315_of_diluted_wines", "proline", "<b>ash"]}
    decided = report.decisions(model, torch.tensor([[3.92, 1065.0, 0.28]]))
    page, _, problems = open_page(report.html(report.Story("Wine", "", decided=decided)), 1200)
    names = page.locator(".features li > span:first-child")
    assert sorted(names.all_text_contents()) == ["<b>ash = 0.28", "od280/od315_of_diluted_wines = 3.92", "proline = 1065"]
    assert all(names.evaluate_all("each => each.map((e) => e.scrollWidth <= e.clientWidth)"))  # nothing is cut off
    assert problems == []

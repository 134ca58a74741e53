"""The page that draws a flow, looked at in a real browser: what it shows, how it is used, what it must never do."""

from __future__ import annotations

import json
import math
import re
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import pytest

from lutetia.errors import ArgumentError
from lutetia.flow import flow_page
from lutetia.flow.model import Attribute, Edge, Flow, Step, TensorInfo

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from browser import OpenPage

pytest_plugins = ["browser"]

MOST_ELEMENTS = 600  # in the picture, however long the flow
BOXES = "#canvas .box"


class Sketch:
    """Writes a flow by hand, step by step."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.edges: list[Edge] = []
        self.values = 0

    def tensor(self, name: str, *shape: int, producer: int | None = None) -> TensorInfo:
        self.values += 1
        return TensorInfo(name, shape, "float32", 4 * math.prod(shape), "cpu", self.values, producer)

    def step(self, name: str, inputs: list[TensorInfo], *outputs: tuple[Any, ...], **fields: Any) -> list[TensorInfo]:
        number = len(self.steps)
        made = [self.tensor(*output, producer=number) for output in outputs]
        fields = {"part": "lut", "start": number / 1000, "duration": (1 + number * 7 % 11) / 1000, **fields}
        self.steps.append(Step(id=number, name=name, inputs=tuple(inputs), outputs=tuple(made), **fields))
        for tensor in inputs:
            if tensor.producer is not None:
                self.edges.append(Edge(tensor.producer, number, tensor.name, tensor.name, tensor.value))
        return made

    def flow(self) -> Flow:
        return Flow(self.steps, self.edges)


def training(layers: int = 1) -> Flow:
    """Lookup layers forward, a loss, and the same layers backward."""
    sketch, saved = Sketch(), []
    x = sketch.tensor("input", 3, 5)
    for _ in range(layers):
        anchors, weight = sketch.tensor("anchors", 7, 2, 2), sketch.tensor("weight", 7, 4, 5)
        indices, deltas = sketch.step(
            "check_detectors", [x, anchors], ("indices", 3, 7), ("min_deltas", 3, 7), attributes={"tables": 7}
        )
        (x,) = sketch.step("fill_outputs", [indices, weight], ("output", 3, 5))
        saved.append((indices, deltas, anchors, weight))
    _, gradient = sketch.step("loss", [x, sketch.tensor("target", 3, 5)], ("loss",), ("output_gradients", 3, 5), part="user")
    for indices, deltas, anchors, weight in reversed(saved):
        (before,) = sketch.step("gather_x_gradients", [gradient, indices, weight], ("main_gradients", 3, 7))
        sketch.step("gather_w_gradients", [gradient, indices], ("weight_gradients", 7, 4, 5))
        (gradient,) = sketch.step("propagate_through_detectors", [before, deltas, anchors], ("input_gradients", 3, 5))
    return sketch.flow()


def chain(names: list[str]) -> Flow:
    sketch = Sketch()
    x = sketch.tensor("x", 2, 3)
    for name in names:
        (x,) = sketch.step(name, [x], ("y", 2, 3))
    return sketch.flow()


def box(page: Page, label: str) -> Any:
    return page.locator(f'{BOXES}[aria-label^="{label}"]').first


def elements(page: Page) -> int:
    return page.locator("#canvas *").count()


def total(page: Page, name: str) -> str:
    return page.locator("#totals div", has_text=name).locator("dd").inner_text()


def rectangles(page: Page, selector: str) -> list[dict[str, float]]:
    return page.eval_on_selector_all(selector, "list => list.map(e => e.getBoundingClientRect().toJSON())")


def apart(a: dict[str, float], b: dict[str, float]) -> bool:
    return a["right"] <= b["left"] or b["right"] <= a["left"] or a["bottom"] <= b["top"] or b["bottom"] <= a["top"]


def test_page_opens_from_disk_asks_for_nothing_and_shows_totals(open_page: OpenPage) -> None:
    flow = training()
    page, requests, problems = open_page(flow_page(flow))
    assert page.locator(BOXES).count() == len(flow.steps) == 6
    assert total(page, "Steps") == "6"
    moved = sum(tensor.bytes for step in flow.steps for tensor in step.inputs + step.outputs)
    assert total(page, "Bytes read and written") == f"{moved / 1024:.2f} KiB"
    assert total(page, "Total time") == f"{sum(step.duration or 0 for step in flow.steps) * 1000:.0f} ms"
    assert total(page, "Device") == "cpu"
    assert requests == [page.url]
    assert problems == []


def test_policy_stops_what_the_page_did_not_bring(open_page: OpenPage) -> None:
    page, _, problems = open_page(flow_page(training()))
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
    page.evaluate("new Promise(done => Object.assign(new Image(), {onload: done, onerror: done, src: 'data:image/gif,'}))")
    assert page.evaluate("window.ran") is None
    assert len(problems) == 2
    assert all("Content Security Policy" in problem for problem in problems)


def test_code_is_small_and_cannot_be_ended_early() -> None:
    page = flow_page(Flow())
    assert len(page.encode()) < 60_000
    assert page.count("</script") == 2  # the data's and the code's own
    assert "<!--" not in page


def test_drawing_goes_down_and_nothing_overlaps(open_page: OpenPage) -> None:
    flow = training(layers=2)
    page = open_page(flow_page(flow), 1600, 1400).page
    assert page.locator(BOXES).count() == len(flow.steps)
    boxes, labels = rectangles(page, f"{BOXES} > rect:last-of-type"), rectangles(page, "#canvas .labels text")
    assert len(labels) >= sum(len(step.outputs) for step in flow.steps)
    assert all(apart(a, b) for a, b in combinations(boxes + labels, 2))
    assert all(boxes[edge.source]["bottom"] < boxes[edge.target]["top"] for edge in flow.edges)


def test_click_shows_the_tensors_and_links_lead_on(open_page: OpenPage) -> None:
    page, _, problems = open_page(flow_page(training()))
    box(page, "check_detectors").click()
    panel = page.locator("#panel")
    assert panel.locator("h2").inner_text() == "check_detectors"
    inputs, outputs = panel.locator("section:has(h3:text('Inputs'))"), panel.locator("section:has(h3:text('Outputs'))")
    assert inputs.locator("strong").all_inner_texts() == ["input", "anchors"]
    assert outputs.locator("strong").all_inner_texts() == ["indices", "min_deltas"]
    first = outputs.locator("li").first.inner_text()
    assert "float32 [3 × 7]" in first
    assert "84 B · cpu" in first
    assert outputs.locator("li").first.locator(".link").all_inner_texts() == [
        "fill_outputs #1",
        "gather_x_gradients #3",
        "gather_w_gradients #4",
    ]
    assert "from outside" in inputs.inner_text()
    assert re.search(r"tables\s+7", panel.inner_text())
    panel.get_by_role("button", name="gather_x_gradients #3").click()
    assert panel.locator("h2").inner_text() == "gather_x_gradients"
    assert "selected" in (box(page, "gather_x_gradients").get_attribute("class") or "")
    panel.locator("section:has(h3:text('Inputs'))").get_by_role("button", name="check_detectors #0").click()
    assert panel.locator("h2").inner_text() == "check_detectors"
    panel.get_by_role("button", name="Close").click()
    assert panel.is_hidden()
    assert problems == []


def test_keyboard_alone(open_page: OpenPage) -> None:
    page, _, problems = open_page(flow_page(training()))
    page.focus("#canvas")
    focused = "document.activeElement.getAttribute('aria-label')"
    order = []
    for _ in range(6):
        page.keyboard.press("Tab")
        order.append(page.evaluate(focused).split()[0])
    assert order == [step.name for step in training().steps]
    page.keyboard.press("Enter")
    assert page.locator("#panel h2").inner_text() == "propagate_through_detectors"
    assert page.evaluate("document.activeElement.id") == "panel-name"
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden()
    assert page.evaluate(focused).startswith("propagate_through_detectors")
    stroke = page.locator(f"{BOXES}:focus rect").evaluate("e => getComputedStyle(e).strokeWidth")
    assert float(stroke.removesuffix("px")) >= 3

    def view() -> list[float]:
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return [float(n) for n in re.findall(r"-?[\d.]+", page.locator("#canvas > g").get_attribute("transform") or "")]

    start = view()
    page.keyboard.press("ArrowDown")
    assert view() == pytest.approx([start[0], start[1] - 60, start[2]])
    page.keyboard.press("+")
    assert view()[2] == pytest.approx(1.25 * start[2])
    page.keyboard.press("-")
    page.keyboard.press("0")
    assert view() == pytest.approx(start, abs=1)
    assert problems == []


def test_list_sorts_filters_and_opens_steps(open_page: OpenPage) -> None:
    flow = training(layers=12)
    page = open_page(flow_page(flow)).page
    names, ids = page.locator("tbody .step"), page.locator("tbody tr:not([aria-hidden]) td:first-child")
    assert ids.all_inner_texts()[:3] == ["0", "1", "2"]
    page.get_by_role("button", name="Time", exact=True).click()
    slowest = sorted(flow.steps, key=lambda step: (-(step.duration or 0), step.id))
    assert ids.all_inner_texts()[:8] == [str(step.id) for step in slowest[:8]]
    page.get_by_role("button", name="Bytes", exact=True).click()
    heaviest = sorted(flow.steps, key=lambda step: (-sum(t.bytes for t in step.inputs + step.outputs), step.id))
    assert ids.all_inner_texts()[:8] == [str(step.id) for step in heaviest[:8]]
    page.fill("#filter", "PROPAGATE lut")
    assert page.locator("#found").inner_text() == f"12 of {len(flow.steps)} steps"
    assert set(names.all_inner_texts()) == {"propagate_through_detectors"}
    page.focus("tbody [tabindex='0']")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("#panel .tags").inner_text().split()[-1] == ids.all_inner_texts()[1]
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent") == "propagate_through_detectors"


def test_repeated_steps_fold_and_open(open_page: OpenPage) -> None:
    page, _, problems = open_page(flow_page(training(layers=24)))
    assert [label.split()[0] for label in page.locator(BOXES).evaluate_all("l => l.map(e => e.getAttribute('aria-label'))")] == [
        "check_detectors",
        "loss",
        "gather_x_gradients",
    ]
    group = box(page, "check_detectors")
    assert "× 24" in (group.text_content() or "")
    assert group.get_attribute("aria-expanded") == "false"
    group.focus()
    page.keyboard.press("Enter")
    assert box(page, "check_detectors → …").get_attribute("aria-expanded") == "true"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("check_detectors → …")
    assert box(page, "round 1 of 24").get_attribute("aria-expanded") == "true"
    assert box(page, "fill_outputs").is_visible()
    box(page, "round 2 of 24").click()
    page.locator(f"{BOXES}[aria-label$='step 3']").click()  # the second layer's lookup
    assert page.locator("#panel h2").inner_text() == "fill_outputs"
    page.keyboard.press("Escape")
    page.click("#fold-all")
    assert page.locator(BOXES).count() == 3
    assert problems == []


def test_runs_of_runs_fold_too(open_page: OpenPage) -> None:
    names = (["a"] * 9 + ["b"] * 40 + ["c"]) * 7
    page = open_page(flow_page(chain(names))).page
    assert page.locator(BOXES).count() == 1
    box(page, "a").click()
    assert box(page, "round 1 of 7").get_attribute("aria-expanded") == "true"
    inside = page.locator(BOXES).evaluate_all("l => l.map(e => e.getAttribute('aria-label'))")
    assert [label for label in inside if "× 9" in label]
    assert [label for label in inside if "× 40" in label]


def test_a_failed_step_is_not_folded_away(open_page: OpenPage) -> None:
    flow = chain(["a"] * 60)
    flow.steps[33].failed = True
    page = open_page(flow_page(flow)).page
    labels = page.locator(BOXES).evaluate_all("l => l.map(e => e.getAttribute('aria-label'))")
    assert ["× 33" in labels[0], "failed" in labels[1], "× 26" in labels[2]] == [True] * 3
    assert len(labels) == 3
    assert total(page, "Failed") == "1"


@pytest.mark.parametrize("kind", ["repeated", "distinct", "apart"])
def test_five_thousand_steps(open_page: OpenPage, kind: str) -> None:
    if kind == "apart":
        flow = Flow([Step(i, f"table {i}", "precompute", duration=None) for i in range(5000)])
    else:
        flow = chain([f"step {i % 5 if kind == 'repeated' else i}" for i in range(5000)])
    page, requests, problems = open_page(flow_page(flow))
    assert 0 < page.locator(BOXES).count() <= 64
    assert elements(page) < MOST_ELEMENTS
    page.locator(f"{BOXES}[aria-expanded='false']").first.click()
    assert page.locator(f"{BOXES}[aria-expanded='true']").count() > 0
    assert elements(page) < MOST_ELEMENTS
    page.click("#zoom-fit")
    assert elements(page) < MOST_ELEMENTS
    assert page.locator("tbody tr").count() < 100
    assert page.locator("table").get_attribute("aria-rowcount") == "5001"
    page.fill("#filter", flow.steps[4321].name)
    found = [step for step in flow.steps if flow.steps[4321].name in step.name]
    assert page.locator("#found").inner_text() == f"{len(found):,} of 5,000 steps"
    page.locator("tbody .step").first.click()
    assert page.locator("#panel .tags").inner_text().split()[-1] == str(found[0].id)
    assert page.locator(f"{BOXES}.selected").get_attribute("aria-label", timeout=2000).endswith(f"step {found[0].id}")  # type: ignore[union-attr]
    assert elements(page) < MOST_ELEMENTS
    assert len(requests) == 1
    assert problems == []


def test_a_large_window_full_of_steps_stays_within_bounds(open_page: OpenPage) -> None:
    sketch = Sketch()
    for i in range(120):
        sketch.step(f"table {i}", [], ("rows", 2, i + 1))
    page = open_page(flow_page(sketch.flow()), 1960, 3600).page
    assert page.locator(BOXES).count() == 120
    assert elements(page) < MOST_ELEMENTS


def test_inner_steps_stand_in_their_parent(open_page: OpenPage) -> None:
    sketch = Sketch()
    x = sketch.tensor("x", 2)
    for _ in range(3):
        parent = len(sketch.steps)
        sketch.step("block", [x], part="user", duration=0.5)
        (hidden,) = sketch.step("inner", [x], ("hidden", 2), parent=parent)
        (x,) = sketch.step("outer", [hidden], ("y", 2), parent=parent)
    page = open_page(flow_page(sketch.flow()), 1280, 1400).page
    assert total(page, "Total time") == "1.5 s"  # what runs inside is not counted twice
    assert total(page, "Bytes read and written") == "96 B"
    assert page.locator(f"{BOXES}[aria-expanded='true']").count() == 3
    box(page, "inner").click()
    panel = page.locator("#panel")
    assert re.search(r"Inside\s+block #0", panel.inner_text())
    panel.get_by_role("button", name="block #0").click()
    assert re.search(r"Contains\s+2 steps", panel.inner_text())
    box(page, "block").focus()
    page.keyboard.press("Space")
    assert box(page, "block").get_attribute("aria-expanded") == "false"
    assert page.locator(BOXES).count() == 7


def test_a_buffer_of_several_writers_names_them_all(open_page: OpenPage) -> None:
    half, whole = TensorInfo("half", (4,), "float32", 16, "cpu", 1, 0), TensorInfo("buffer", (-1,), "float32", 32, "cpu", 2, 1)
    steps = [
        Step(0, "left", "user", outputs=(half,)),
        Step(1, "right", "user", outputs=(TensorInfo("half", (4,), "float32", 16, "cpu", 2, 1),)),
        Step(2, "scale", "user", inputs=(whole,), outputs=(TensorInfo("buffer", (8,), "float32", 32, "cpu", 3, 2),)),
    ]
    edges = [Edge(0, 2, "half", "buffer", 1, "in_place"), Edge(1, 2, "half", "buffer", 2, "in_place")]
    page = open_page(flow_page(Flow(steps, edges))).page
    box(page, "scale").click()
    item = page.locator("#panel section:has(h3:text('Inputs')) li")
    assert item.locator(".link").all_inner_texts() == ["left #0", "right #1"]
    assert "overwritten in place" in item.inner_text()
    assert "float32 [?]" in item.inner_text()
    assert "not timed" in page.locator("#panel").inner_text()


HOSTILE = [
    "<script>window.hacked = 1; alert(1)</script>",
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror=window.hacked=1>",
    "</script bye",
    "<!--<script>",
    "${window.hacked = 1}",
    "a\u2028b\u2029c\ud800 \x00 & &lt; $data \\u003c",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_names_are_only_ever_text(open_page: OpenPage, text: str) -> None:
    tensor = TensorInfo(text, (1,), text, 4, text, 0, None)
    step = Step(0, text, text, (tensor,), (tensor,), device=text, attributes={text: text, "__proto__": text})
    page, requests, problems = open_page(flow_page(Flow([step])))
    page.locator(BOXES).click()
    shown = page.locator("#panel h2").evaluate("e => e.textContent")
    assert shown == text
    page.locator("#canvas").hover(position={"x": 400, "y": 300})
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, main script").count() == 0
    assert requests == [page.url]
    assert problems == []


def test_data_keeps_every_number_that_json_cannot() -> None:
    attributes: dict[str, Attribute] = {"nan": math.nan, "big": 2**63 + 1, "none": None, "flag": True}
    text = flow_page(Flow([Step(0, "s", "user", start=math.inf, duration=math.nan, attributes=attributes)]))
    found = re.search(r'<script type="application/json" id="flow">(.*?)</script>', text, re.S)
    assert found
    assert found[1].isascii()
    (step,) = json.loads(found[1], parse_constant=pytest.fail)["steps"]
    assert step[-1] == [["nan", "nan"], ["big", "9223372036854775809"], ["none", "None"], ["flag", "True"]]


def test_light_and_dark(open_page: OpenPage) -> None:
    text = flow_page(training())
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = open_page(text, scheme="light").page, open_page(text, scheme="dark").page
    by_day, by_night = light.evaluate(background), dark.evaluate(background)
    assert by_day != by_night
    for page, other in [(light, by_night), (dark, by_day)]:
        page.click("#theme")
        assert page.evaluate(background) == other
    fill = f"getComputedStyle(document.querySelector('{BOXES} rect')).fill"
    assert light.evaluate(fill) != dark.evaluate(fill)


def test_phone(open_page: OpenPage) -> None:
    page, _, problems = open_page(flow_page(training(layers=24)), 390, 844)
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) == 390
    box(page, "loss").tap()
    assert page.locator("#panel").is_visible()
    assert box(page, "loss").is_visible()
    assert page.evaluate(wide) == 390
    page.get_by_role("button", name="Steps", exact=True).click()
    assert page.locator("#picture").is_hidden()
    assert page.locator("tbody .step").first.is_visible()
    assert page.evaluate(wide) == 390
    assert problems == []


def test_wheel_zooms_and_dragging_pans_without_selecting(open_page: OpenPage) -> None:
    page = open_page(flow_page(training())).page
    rect = rectangles(page, BOXES)[0]
    x, y = rect["left"] + 20, rect["top"] + 20
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 70, y + 40, steps=4)
    page.mouse.up()
    page.wait_for_function(
        "x => Math.abs(document.querySelector('#canvas .box').getBoundingClientRect().left - x) < 2", arg=rect["left"] + 70
    )
    assert page.locator("#panel").is_hidden()
    before = rectangles(page, BOXES)[0]
    page.mouse.wheel(0, -300)
    page.wait_for_function(
        "w => document.querySelector('#canvas .box').getBoundingClientRect().width > 1.2 * w", arg=before["width"]
    )


@pytest.mark.parametrize("steps", [1, 40, 41])
def test_few_steps_are_all_drawn_many_are_folded(open_page: OpenPage, steps: int) -> None:
    page = open_page(flow_page(chain(["same"] * steps))).page
    page.click("#zoom-fit")
    assert page.locator(BOXES).count() == (steps if steps <= 40 else 1)
    tops = [rect["top"] for rect in rectangles(page, BOXES)]
    assert all(a < b for a, b in pairwise(tops))


def test_empty_flow_says_so(open_page: OpenPage) -> None:
    page, requests, problems = open_page(flow_page(Flow()))
    assert page.get_by_text("No steps were recorded.").is_visible()
    assert total(page, "Steps") == "0"
    page.keyboard.press("Escape")
    page.click("#zoom-fit")
    assert requests == [page.url]
    assert problems == []


def test_what_is_not_a_flow_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"flow is \[\], expected a Flow"):
        flow_page([])  # type: ignore[arg-type]

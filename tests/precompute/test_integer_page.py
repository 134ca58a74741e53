"""The page that runs a whole-number model, in a real browser: the same numbers, by touch, mouse and keyboard, light and dark."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from category_trees import CODES, WORDS, category_trees
from interval_trees import interval_trees
from whole import PROMPTS, classifiers, forest, language, languages, numbers, voting_columns

from lutetia.cli import main
from lutetia.cli.explain import ExplainRequest, explain
from lutetia.models import Tabular, chances, load
from lutetia.models.encoding import Encoding
from lutetia.precompute import integer_model
from lutetia.precompute.integer.pages import _columns, page
from lutetia.report import Comparison
from tools import require_module

if TYPE_CHECKING:
    from browser import OpenPage

require_module("typer")
pytest_plugins = ["browser"]

KINDS = classifiers()
WRITE = "([prompt, n, seed]) => Array.from(lutetia.generate(Uint8Array.from(prompt), n, seed))"
CLASSIFY = "(rows) => rows.map((row) => lutetia.classify(Int32Array.from(row)))"
CHANCES = "(rows) => rows.map((row) => lutetia.chances(Int32Array.from(row)))"
FAILS = "(call) => { try { eval(call); return ''; } catch (error) { return error.message; } }"


def violations(opened: Any) -> list[str]:
    source = importlib.resources.files(require_module("axe_playwright_python")).joinpath("axe.min.js")
    opened.evaluate(source.read_text(encoding="utf-8"))
    found = opened.evaluate("axe.run()")["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found if each["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("number", range(3))
def test_writes_what_python_writes(open_page: OpenPage, number: int) -> None:
    whole = integer_model(languages()[number])
    opened = open_page(page(whole, "a model"))
    for prompt in PROMPTS:
        assert bytes(opened.page.evaluate(WRITE, [list(prompt), 60, None])) == whole.generate(prompt, 60)
        assert bytes(opened.page.evaluate(WRITE, [list(prompt), 30, 9])) == whole.generate(prompt, 30, seed=9)
    assert opened.requests == [opened.page.url]
    assert opened.problems == []


@pytest.mark.slow
def test_writes_a_thousand_bytes(open_page: OpenPage) -> None:
    for model in (language(context=64, width=32), language(n_layers=3, seed=5), language(width=6, seed=6)):
        whole = integer_model(model)
        opened = open_page(page(whole, "a model"))
        for prompt in PROMPTS:
            assert bytes(opened.page.evaluate(WRITE, [list(prompt), 1000, None])) == whole.generate(prompt, 1000)


@pytest.mark.parametrize("kind", KINDS)
def test_classifies_as_python_does(open_page: OpenPage, kind: str) -> None:
    whole = integer_model(KINDS[kind])
    opened = open_page(page(whole, kind))
    x = numbers(whole.n_inputs, whole.input_bits, 1000)
    assert opened.page.evaluate(CLASSIFY, x.tolist()) == whole(x).tolist()
    assert opened.problems == []


@pytest.mark.parametrize("make", [forest, voting_columns, *(partial(KINDS.get, kind) for kind in ("votes", "gates", "tabular"))])
def test_probabilities_are_those_of_the_model(open_page: OpenPage, make: Callable[[], Any]) -> None:
    model = make()
    whole = integer_model(model, weight_bits=24) if isinstance(model, Tabular) else integer_model(model)
    opened = open_page(page(whole, "chances"))
    x = torch.rand(50, *model.config.input_shape, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        wanted = chances(model, model(x))
    np.testing.assert_allclose(opened.page.evaluate(CHANCES, whole.quantise(x).tolist()), wanted, atol=1e-6)
    assert wanted.amax() - wanted.amin() > 0.2


def test_reasons_of_a_row_are_those_of_explain(open_page: OpenPage, tmp_path: Path) -> None:
    """Numbers, pairs, categories and missing cells: every comparison, in words and effect."""
    random = np.random.default_rng(3)
    lines = ["size,weight,colour,kind"]
    for _ in range(120):
        size, weight, colour = random.normal(0, 1), random.normal(0, 1), random.choice(["red", "green", "blue"])
        kind = "abc"[int(size > weight) + int(colour == "red")]
        lines.append(f"{size:.3f},{'' if random.random() < 0.1 else f'{weight:.3f}'},{colour},{kind}")
    data = tmp_path / "data.csv"
    data.write_text("\n".join(lines) + "\n")
    fit = ["--set", "fit.n_tables=12", "--set", "fit.n_anchors=3", "--set", "fit.pairs=0.5"]
    assert main(["train", str(data), "--out", str(tmp_path / "run"), *fit, "--json"]) == 0
    opened = open_page(page(integer_model(load(tmp_path / "run"), weight_bits=24), "data")).page
    opened.locator("#value0").fill("0.25")
    opened.locator("select").select_option("red")
    opened.locator("#value1").fill("-0.5")
    (tmp_path / "row.csv").write_text("size,weight,colour\n0.25,-0.5,red\n")
    told = explain(tmp_path / "run", str(tmp_path / "row.csv"), ExplainRequest("decisive", None, 0, None, None), show=False)
    wanted: Counter[str] = Counter()
    for each in told["comparisons"]:  # red is one of two sets of categories, or not one of the others
        text = Comparison(**each).text.replace("<=", "≤")
        wanted["colour is red" if text.startswith("colour") else text] += each["effect"]
    found = opened.evaluate("lutetia.reasons()")
    assert dict(found) == pytest.approx(wanted, abs=2e-5)
    assert all(any(part in text for text in wanted) for part in ("colour is", " by rank", "weight ≤", "size >"))
    assert sorted(found, key=lambda each: -abs(each[1])) == found
    shown = opened.locator("#reasons li").first.locator("span").first.text_content()
    assert shown == found[0][0]


def test_bad_calls_are_refused(open_page: OpenPage) -> None:
    whole = integer_model(language(vocab=100))
    opened = open_page(page(whole, "text")).page
    for call, message in (
        ("lutetia.generate(new Uint8Array(0), 3)", "the prompt is empty"),
        ("lutetia.generate('a', 3)", "not a Uint8Array"),
        ("lutetia.generate(Uint8Array.of(200), 3)", "has the byte 200, expected 0 to 99"),
        ("lutetia.generate(Uint8Array.of(1), -1)", "n is -1"),
        ("lutetia.classify(Int32Array.of(1))", "cannot classify"),
    ):
        assert message in opened.evaluate(FAILS, call)
    assert bytes(opened.evaluate(WRITE, [[1, 2], 9, None])) == whole.generate(b"\1\2", 9)  # nothing is left of what was refused
    opened = open_page(page(integer_model(KINDS["votes"]), "votes")).page
    for call, message in (
        ("lutetia.classify(new Int32Array(8))", "has 8 numbers, expected 9"),
        ("lutetia.classify(new Int32Array(9).fill(256))", "has 256, expected 0 to 255"),
        ("lutetia.classify([1])", "not an Int32Array"),
        ("lutetia.generate(Uint8Array.of(1), 1)", "cannot write"),
    ):
        assert message in opened.evaluate(FAILS, call)


def test_writes_while_you_type_and_says_what_it_looked_at(open_page: OpenPage) -> None:
    whole = integer_model(language())
    opened = open_page(page(whole, "text"))
    box, text = opened.page.locator("#prompt"), opened.page.locator("#text")
    box.fill("ab")
    opened.page.locator("#said", has_text="bytes per second").wait_for()
    assert text.locator("span").count() == 2 + 240
    shown = "Array.from(document.getElementById('text').children, (each) => each.textContent)"
    wrote = [chr(each) if 32 <= each < 127 else None for each in whole.generate(b"ab", 240)]
    assert all(want in (None, got) for want, got in zip(wrote, opened.page.evaluate(shown)[2:], strict=True))
    text.locator("span").nth(5).click()
    told = opened.page.locator("#looked").text_content()
    assert re.search(r"the model read .+ before it and looked back most at .+ \(\d bytes earlier\)", told)
    assert opened.page.locator("#text .chosen").count() == 1
    text.focus()
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.locator("#text .chosen").evaluate("e => Array.prototype.indexOf.call(e.parentNode.children, e)") == 6
    best = text.text_content()
    opened.page.locator("#again").click()
    text.locator("span").nth(241).wait_for()
    assert opened.page.locator("#drawn").is_checked()
    assert text.text_content() != best
    box.fill("")
    assert "Type something" in opened.page.locator("#said").text_content()
    assert opened.problems == []


@pytest.mark.parametrize("way", ["mouse", "touch", "keyboard"])
def test_answers_while_you_draw(open_page: OpenPage, way: str) -> None:
    whole = integer_model(KINDS["stacked"])
    opened = open_page(page(whole, "digits"), 390 if way == "touch" else 1280)
    canvas = opened.page.locator("#image")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    blank = canvas.evaluate("e => e.toDataURL()")
    if way == "mouse":
        opened.page.mouse.move(box["x"] + 20, box["y"] + 20)
        opened.page.mouse.down()
        opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=5)
        opened.page.mouse.up()
    elif way == "touch":
        opened.page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    else:
        canvas.focus()
        opened.page.keyboard.press("ArrowUp")
        opened.page.keyboard.press("Space")
        opened.page.keyboard.press("Shift+ArrowLeft")
    assert canvas.evaluate("e => e.toDataURL()") != blank
    drawn = opened.page.evaluate("lutetia.sample()")
    assert max(drawn) == 255
    assert opened.page.locator("#answer").text_content() == str(whole(torch.tensor([drawn])).item())
    assert opened.page.locator("#scores li").count() == 5
    opened.page.locator("#loud li").first.wait_for()
    opened.page.locator("#clear").click()
    assert max(opened.page.evaluate("lutetia.sample()")) == 0
    assert opened.problems == []


def test_a_model_of_images_by_class_is_drawn_on(open_page: OpenPage, tmp_path: Path) -> None:
    """Its inputs are ranks of pixels, each among edges of its own; reasons are told in the unit of the data."""
    images = np.random.default_rng(0).integers(17, size=(40, 4, 5)).astype(np.float64)
    np.savez(tmp_path / "x.npz", x=images, y=(images[:, 1, 2] > 8).astype(int))
    assert main(["train", str(tmp_path / "x.npz"), "--out", str(tmp_path / "run"), "--set", "fit.n_tables=3", "--json"]) == 0
    model = load(tmp_path / "run")
    opened = open_page(page(integer_model(model), "images"))
    blank = model.encode(torch.full((1, 4, 5), 0.0))[0].tolist()
    assert opened.page.evaluate("lutetia.sample()") == blank
    opened.page.locator("#image").focus()
    opened.page.keyboard.press("Space")
    drawn = opened.page.evaluate("lutetia.sample()")
    full = model.encode(torch.full((1, 4, 5), 16.0))[0].tolist()
    assert drawn != blank
    assert drawn[2 * 5 + 2] == full[2 * 5 + 2]  # below the pen, in the middle
    opened.page.locator("#loud p").first.wait_for()
    constants = re.findall(r"[>≤] ([\d.]+)", " ".join(opened.page.locator("#loud p").all_text_contents()))
    edges = {f"{edge:.7g}" for edge in model.encoding.edges.flatten().tolist()}
    assert constants
    assert set(constants) <= edges
    opened.page.locator("#clear").click()
    assert opened.page.evaluate("lutetia.sample()") == blank
    assert opened.problems == []


def test_a_model_of_colour_images_is_drawn_on_in_colour(open_page: OpenPage, tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((40, 3, 4, 5))
    np.savez(tmp_path / "x.npz", x=images, y=(images[:, 0, 2, 2] > images[:, 1, 2, 2]).astype(int))
    assert main(["train", str(tmp_path / "x.npz"), "--out", str(tmp_path / "run"), "--set", "fit.n_tables=3", "--json"]) == 0
    model = load(tmp_path / "run")
    opened = open_page(page(integer_model(model), "images"))
    opened.page.locator("#tint").fill("#ff0000")
    opened.page.locator("#image").focus()
    opened.page.keyboard.press("Space")
    drawn = torch.tensor(opened.page.evaluate("lutetia.sample()")).reshape(3, 4, 5)
    low, high = (torch.full((1, 3, 4, 5), float(model.metadata[key])) for key in ("input_low", "input_high"))
    full, blank = (model.encode(each)[0].reshape(3, 4, 5) for each in (high, low))
    assert [plane[2, 2] for plane in drawn] == [full[0, 2, 2], blank[1, 2, 2], blank[2, 2, 2]]
    opened.page.locator("#loud p").first.wait_for()
    assert all(" of pixel " in text for text in opened.page.locator("#loud p").all_text_contents())
    assert opened.problems == []
    assert violations(opened.page) == []


def test_the_loudest_detectors_are_those_that_matter(open_page: OpenPage) -> None:
    """Of one layer the points are the row's less the mean row's, for the winner less the runner-up at its own best."""
    whole = integer_model(KINDS["tabular"])
    opened = open_page(page(whole, "columns"))
    sample = opened.page.evaluate("lutetia.sample()")
    stage = whole.stages[0]
    bits = [int(sample[a] > c) for a, c in zip(stage.left.tolist(), stage.constant.tolist(), strict=True)]
    scores = stage.bias.astype(float)
    parts = []
    for lanes, flip, contents, targets in zip(stage.lanes, stage.flip, stage.contents, stage.targets, strict=True):
        row = int("".join(str(bits[lane]) for lane in lanes), 2) ^ int(flip)
        change = scores * 0
        change[targets] = contents.mean(0) - contents[row]
        scores[targets] += contents[row]
        parts.append(change)

    def lead(values: Any) -> float:
        best = int(scores.argmax())
        return float(values[best] - max(value for number, value in enumerate(values) if number != best))

    losses = [lead(scores) - lead(scores + change) for change in parts]
    wanted = sorted((abs(loss) for loss in losses if loss), reverse=True)[:6]
    opened.page.locator("#loud li").first.wait_for()
    assert opened.page.evaluate("lutetia.loudest().map(({ loss }) => Math.abs(loss))") == pytest.approx(wanted)
    button = opened.page.locator("#loud button").first
    button.click()
    assert button.get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_the_tables_of_a_number_speak_in_its_unit(open_page: OpenPage, loss: str) -> None:
    """Three tables of two comparisons, whose rows rise by 0.1 and 1: both hold, or none. Counts: to a logarithm."""
    model = Tabular(input_shape=(2,), n_classes=1, n_tables=3, n_anchors=2, n_encoded=2, n_edges=5, loss=loss, seed=0)
    rows = torch.tensor([[0.0, 0.1, 0.2, 0.3], [0.0, 1.0, 2.0, 3.0], [0.5, 0.5, 0.5, 0.5]])[:, :, None]
    model.set_tables(torch.tensor([0, 2 + 100]).expand(3, 2, 2), rows)
    opened = open_page(page(integer_model(model), "number"))
    opened.page.locator("#loud li").first.wait_for()
    shown = opened.page.locator("#loud button span:last-child").all_text_contents()
    sign = 1 if opened.page.evaluate("lutetia.sample()")[0] > 100 else -1
    assert [float(each.replace("−", "-")) for each in shown] == pytest.approx([1.5 * sign, 0.15 * sign], rel=0.03)
    wanted = 3.8 if sign > 0 else 0.5
    answer = float(opened.page.locator("#answer").text_content())
    assert answer == pytest.approx(wanted if loss == "squared_error" else np.exp(wanted), rel=0.03)


def test_sliders_answer_in_the_unit_of_the_data(open_page: OpenPage) -> None:
    model = classifiers()["thresholds"]
    model.metadata = {
        "classes": [f"<b>{n}" for n in range(5)],
        "features": ["a", "b", "c", "d"],
        "input_low": 0.0,
        "input_high": 51.0,
    }
    whole = integer_model(model)
    opened = open_page(page(whole, "<i>flowers"))
    opened.page.locator("#input0").fill("255")
    assert opened.page.locator("#sliders output").first.text_content() == "51"
    sample = opened.page.evaluate("lutetia.sample()")
    assert sample == [255, 127, 127, 127]
    assert opened.page.locator("#answer").text_content() == f"<b>{whole(torch.tensor([sample])).item()}"
    assert opened.page.locator("h1").text_content() == "<i>flowers"
    assert opened.page.locator("#sliders label").all_text_contents() == ["a", "b", "c", "d"]


def test_a_column_of_names_is_compared_by_name(open_page: OpenPage, tmp_path: Path) -> None:
    rows = [f"{city},{'yes' if city in ('Nice', 'Metz') else 'no'}" for city in ("Paris", "Lyon", "Nice", "Metz") * 10]
    (tmp_path / "x.csv").write_text("city,buys\n" + "\n".join(rows) + "\n")
    assert main(["train", str(tmp_path / "x.csv"), "--out", str(tmp_path / "run"), "--set", "fit.n_tables=1", "--json"]) == 0
    opened = open_page(page(integer_model(load(tmp_path / "run")), "cities")).page
    said = set()
    for city in ("Paris", "Lyon", "Nice", "Metz"):
        opened.locator("#input0").select_option(city)
        assert opened.locator("#answer").text_content() == ("yes" if city in ("Nice", "Metz") else "no")
        opened.wait_for_timeout(100)
        for each in opened.locator("#loud p").first.text_content().split(", city"):
            assert re.fullmatch(rf"(city)? is (known|.*\b{city}\b.*)", each)  # every comparison lets the chosen city through
            said.add(each)
    assert any(" or " in each for each in said)


def test_a_column_of_categories_is_one_list(open_page: OpenPage) -> None:
    """Its encoding makes an input for each class of it, which only go together."""
    encoding = Encoding(4, 3, 3)
    encoding.source.copy_(torch.tensor([0, 1, 1, 1]))
    encoding.edges[0] = torch.tensor([1.5, 22345.5, 44444.0])
    encoding.ranks[1:] = torch.tensor([[1, 2, 3], [3, 1, 2], [2, 3, 1]])
    sizes = {"n_tables": 2, "n_anchors": 2, "n_encoded": 4, "n_edges": 3, "n_categories": 3}
    model = Tabular(input_shape=(2,), n_classes=3, core="tables", **sizes)
    model.encoding = encoding
    model.metadata = {"features": ["size", "colour"], "categories": {"1": ["red", "green", "blue"]}}
    anchors = torch.tensor([[[1, 4 + 1], [2, 3]], [[0, 4 + 2], [3, 0]]], dtype=torch.int32)
    model.set_tables(anchors, torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)))
    whole = integer_model(model.eval())
    opened = open_page(page(whole, "paints"))
    assert opened.page.locator("#sliders label").all_text_contents() == ["size", "colour"]
    value = float(opened.page.locator("#value0").input_value())
    assert 1.5 < value <= 22345.5
    assert opened.page.evaluate("lutetia.sample()")[0] == 2
    wanted = {
        "missing": ["colour is missing or red", "colour is missing or green"],
        "red": ["colour is red", "colour is red or blue"],
        "blue": ["colour is green or blue", "colour is red or blue"],
    }
    for category, texts in wanted.items():
        opened.page.locator("select").select_option(category)
        codes = [0.0, *(encoding.ranks[1:, ["red", "green", "blue"].index(category)] if category != "missing" else [0] * 3)]
        sample = opened.page.evaluate("lutetia.sample()")
        assert sample[1:] == [int(code) for code in codes[1:]]
        assert opened.page.locator("#answer").text_content() == str(whole(torch.tensor([sample])).item())
        opened.page.wait_for_timeout(60)
        told = ", ".join(opened.page.locator("#loud p").all_text_contents()).split(", ")
        assert set(texts) <= set(told)
        assert {"colour > size by rank", "colour ≤ size by rank"} & set(told)
    assert opened.problems == []


def test_of_several_bounds_of_a_number_the_nearest_are_shown(open_page: OpenPage) -> None:
    encoding = Encoding(1, 4, 0)
    encoding.edges[0] = torch.tensor([1.5, 2.5, 3.5, 4.5])
    model = Tabular(input_shape=(1,), n_classes=2, core="tables", n_tables=1, n_anchors=4, n_encoded=1, n_edges=4)
    model.encoding, model.metadata = encoding, {"features": ["size"]}
    anchors = torch.tensor([[[0, 1 + 1], [0, 1 + 3], [0, 1 + 2], [0, 1 + 4]]], dtype=torch.int32)
    model.set_tables(anchors, torch.randn(1, 16, 2, generator=torch.Generator().manual_seed(0)))
    opened = open_page(page(integer_model(model.eval()), "sizes")).page
    for place, text in ((1, "size ≤ 1.5"), (3, "size > 2.5, size ≤ 3.5"), (5, "size > 4.5")):
        opened.locator("#input0").fill(str(place))
        opened.wait_for_timeout(60)
        assert opened.locator("#loud p").text_content() == text


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
@pytest.mark.parametrize("kind", ["text", "stacked", "tabular"])
def test_fits_a_phone_and_has_no_serious_fault(open_page: OpenPage, kind: str, width: int, scheme: str) -> None:
    whole = integer_model(language() if kind == "text" else KINDS[kind])
    opened = open_page(page(whole, kind), width, 800, scheme)
    opened.page.wait_for_timeout(100)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(opened.page) == []
    assert opened.problems == []


def test_page_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    language().save_pretrained(tmp_path / "text")
    assert main(["page", str(tmp_path / "text"), "--out", str(tmp_path / "a.html"), "--title", "My <b>", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    content = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert told == {"out": str(tmp_path / "a.html"), "kind": "language", "bytes": len(content.encode()), "large": False}
    assert "My &lt;b&gt;" in content
    assert "Content-Security-Policy" in content
    assert main(["page", str(tmp_path / "text"), "--out", str(tmp_path / "a.txt")]) == 2
    assert main(["page", str(tmp_path / "text"), "--out", str(tmp_path / "no" / "a.html")]) == 1
    language(gains=False, attention="softmax", n_heads=2).save_pretrained(tmp_path / "soft")
    assert main(["page", str(tmp_path / "soft"), "--out", str(tmp_path / "b.html")]) == 1
    assert "blocks.0.attention is softmax attention" in capsys.readouterr().err
    assert not (tmp_path / "b.html").exists()


def test_a_column_of_several_inputs_has_one_slider(open_page: OpenPage) -> None:
    """Of imported trees whose paths have intervals: each stop of the slider is what Python makes of a value there."""
    model = interval_trees()
    opened = open_page(page(integer_model(model), "trees"))
    assert opened.page.locator("input[type=range]").count() == 2
    slider = opened.page.locator("input[type=range]").first
    field = opened.page.locator("#sliders input[type=number]").first
    rest, own = opened.page.evaluate("lutetia.sample()"), (model.encoding.source == 0).tolist()

    def check(value: float) -> None:
        codes = model.encoding.codes(np.array([[value, 0.0]]))[:, 0].tolist()
        wanted = [code if is_own else other for code, is_own, other in zip(codes, own, rest, strict=True)]
        assert opened.page.evaluate("lutetia.sample()") == wanted, value

    ends = [-np.inf, 1, 2, 3, 4, np.inf]
    for place in range(6):
        slider.evaluate(f"(own) => {{ own.value = {place}; own.dispatchEvent(new Event('input')); }}")
        told = field.input_value()
        check(float(told or "nan"))
        assert ends[place - 1] < float(told) <= ends[place] if place else told == ""
    for value, place in ((1, 1), (np.nextafter(1, 2), 2), (2.5, 3), (4, 4), (4.0001, 5), (-1e9, 1)):
        field.fill(repr(float(value)))
        check(value)
        assert slider.input_value() == str(place)
    field.fill("")
    check(np.nan)
    assert slider.input_value() == "0"
    opened.page.locator("#loud p").first.wait_for()
    slider.evaluate("(own) => { own.value = 2; own.dispatchEvent(new Event('input')); }")
    opened.page.get_by_text("x0 in (1, 2]").first.wait_for()
    assert opened.problems == []


def test_a_page_knows_the_codes_of_categories() -> None:
    model = category_trees()
    columns = {each["name"]: each for each in _columns(model, ["size", "colour", "code"])}
    assert [name for name, _ in columns["colour"]["categories"]] == ["missing", *WORDS]
    assert [name for name, _ in columns["code"]["categories"]] == ["missing", *map(str, CODES)]
    for number, name in ((1, "colour"), (2, "code")):
        told = columns[name]
        values = [np.nan, *(range(len(WORDS)) if number == 1 else CODES)]
        codes = model.encoding.codes(np.repeat(np.array(values, float)[:, None], 3, 1))
        assert [each for _, each in told["categories"]] == codes[told["inputs"]].T.tolist()

"""A file of rows that is opened on the page of a model: its cells and its answers are those of Python."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lutetia.cli import main
from lutetia.models import DATE_ORDERS, load
from lutetia.precompute import integer_model, model_page
from precompute.odd_cells import UNIT, Texts, by_python
from tools import require_module

if TYPE_CHECKING:
    from browser import OpenPage

require_module("typer")
pytest_plugins = ["browser"]

NUMBERS = "([unit, cells]) => cells.map((cell) => lutetia.number(cell, unit)).map((each) => Number.isNaN(each) ? null : each)"
DATES = "(cells) => cells.map(([order, cell]) => lutetia.date(cell, order)).map((each) => Number.isNaN(each) ? null : each)"
PREDICT = "(bytes) => lutetia.predict(Uint8Array.from(bytes))"
FAILS = "(bytes) => { try { lutetia.predict(Uint8Array.from(bytes)); } catch (error) { return error.message; } }"
SHOPS = ("Köln", "Bonn; Süd", 'Ulm "Ost"')


def rows(count: int, seed: int) -> list[list[str]]:
    """A day and a time, a shop, a weight in kg, a price with a decimal comma, a remark; whether it was returned, and days."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        shop, weight, price = draw.choice(SHOPS), draw.gauss(5, 2), draw.lognormvariate(4, 1)
        month, hour = draw.randint(1, 12), draw.randint(0, 23)
        remark = draw.choice(["too small", "too large", "broken, sadly", "very nice", "nice colour"])
        score = weight / 2 + (shop == SHOPS[2]) + ("too" in remark) + (hour > 12) - month / 6
        cells = [
            f"{draw.randint(1, 28):02}.{month:02}.2024 {hour:02}:30",
            shop,
            f"{weight:.2f} kg",
            f"{price:.2f}".replace(".", ","),
        ]
        lost = draw.random()
        cells[1 if lost < 0.05 else 2] = "n/a" if lost < 0.1 else cells[1 if lost < 0.05 else 2]
        made.append([*cells, remark, "yes" if score + draw.gauss(0, 0.3) > 2.2 else "no", f"{10 * score + 20:.1f} days"])
    return made


def write(path: Path, found: list[list[str]], *header: str, mark: str = ";") -> Path:
    text = io.StringIO()
    csv.writer(text, delimiter=mark, lineterminator="\n").writerows([header, *found])
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


HEADER = ("sold", "shop", "weight", "price, net", "remark", "returned", "took")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that predicts a class, and one that predicts a number, of the same rows."""
    folder = tmp_path_factory.mktemp("rows")
    data = write(folder / "data.csv", rows(240, 0), *HEADER)
    fit = ["--set", "fit.n_tables=25", "--set", 'data.text=["remark"]', "--json"]
    for target, other in (("returned", "took"), ("took", "returned")):
        out = ["--target", target, "--out", str(folder / target), "--set", f'data.leave_out=["{other}"]']
        assert main(["train", str(data), *out, *fit]) == 0
    return folder


def opened_run(open_page: OpenPage, run: Path) -> Any:
    return open_page(model_page(integer_model(load(run), weight_bits=24), "rows"))


def test_cells_are_read_as_python_reads_them(open_page: OpenPage, runs: Path) -> None:
    page, texts = opened_run(open_page, runs / "returned").page, Texts(11)
    cells = [(0, texts.number()) if number % 2 else (texts.random.randint(1, 3), texts.date()) for number in range(8000)]
    cells = [(column, spoilt) for column, cell in cells if (spoilt := texts.spoilt(cell))]
    numbers, dates = ([each for each in cells if bool(each[0]) == is_date] for is_date in (False, True))
    found = page.evaluate(NUMBERS, [UNIT, [cell for _, cell in numbers]])
    found += page.evaluate(DATES, [[DATE_ORDERS[order - 1], cell] for order, cell in dates])
    found = [None if each is None else float(each) for each in found]  # which come as whole numbers of any size
    wanted = [by_python(*cell) for cell in numbers + dates]
    assert [each for each in zip(numbers + dates, found, wanted, strict=True) if each[1] != each[2]] == []
    assert 0.2 < sum(each is not None for each in wanted) / len(wanted) < 0.9


@pytest.mark.parametrize("target", ["returned", "took"])
def test_answers_are_those_of_predict(open_page: OpenPage, runs: Path, target: str, tmp_path: Path) -> None:
    new = rows(60, 1)
    new[3][1], new[4][0], new[5][3] = "BONN; SÜD", "NaT", "1.234,50"
    new[6][4] = ""
    data = write(tmp_path / "new.csv", new, *HEADER)
    opened = opened_run(open_page, runs / target)
    found = list(csv.reader(io.StringIO(opened.page.evaluate(PREDICT, list(data.read_bytes())))))
    assert main(["predict", str(runs / target), str(data), "--csv", str(tmp_path / "out.csv"), "--keep", "--json"]) == 0
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        wanted = list(csv.reader(file))
    assert found[0] == wanted[0]
    n = len(HEADER) + (target == "returned")
    assert [row[:n] for row in found] == [row[:n] for row in wanted]  # the file, and the class
    values = [np.array([row[n:] for row in each[1:]], float) for each in (found, wanted)]
    np.testing.assert_allclose(*values, rtol=2e-5, atol=2e-6)
    assert opened.problems == []
    assert opened.requests == [opened.page.url]


def test_what_a_file_lacks_is_said(open_page: OpenPage, runs: Path, tmp_path: Path) -> None:
    page = opened_run(open_page, runs / "returned").page
    good = rows(3, 2)
    for column, cell, said in (
        (1, "<b>Rom", 'line 3, column “shop”: “<b>Rom”, expected one of Bonn; Süd, Köln, Ulm "Ost"'),
        (2, "5 lbs", "line 3, column “weight”: “5 lbs”, expected a number in kg"),
        (0, "31.02.2024", "line 3, column “sold”: “31.02.2024”, expected a date, day first"),
    ):
        bad = [list(each) for each in good]
        bad[1][column] = cell
        assert page.evaluate(FAILS, list(write(tmp_path / "x.csv", bad, *HEADER).read_bytes())) == said
    lacking = write(tmp_path / "x.csv", good, "sold", "store", *HEADER[2:]).read_bytes()
    assert page.evaluate(FAILS, list(lacking)) == "there is no column “shop”, which the model was fitted to"


def test_a_file_is_opened_looked_at_and_saved(
    open_page: OpenPage, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened, new = opened_run(open_page, runs / "returned"), rows(30, 3)
    data, page = write(tmp_path / "new rows.csv", new, *HEADER), opened.page
    assert main(["predict", str(runs / "returned"), str(data), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["predictions"]
    right = sum(each["class"] == row[5] for each, row in zip(told, new, strict=True))
    assert page.locator("#rows").is_hidden()
    page.locator("#table").set_input_files(data)
    page.get_by_text("new rows.csv: 30 rows").wait_for()
    assert f" {right} of 30 have the class" in (page.locator("#opened").text_content() or "")
    assert page.locator("#earlier").is_disabled()
    for number in (1, 2, 29):
        page.locator("#later").click() if number < 3 else page.locator("#row").fill("29")
        page.locator("#row").press("Tab")
        assert page.locator("#answer").text_content() == told[number]["class"]
        best = max(told[number]["probabilities"])
        assert (page.locator("#scores .best").text_content() or "").endswith(f"{best:.1%}")
        weight = page.locator("#sliders input[type=number]").first.input_value()
        assert weight == ("" if new[number][2] == "n/a" else str(float(new[number][2].removesuffix(" kg"))))
        assert page.locator("textarea").input_value() == new[number][4]
    assert page.locator("#later").is_disabled()
    with page.expect_download() as waiting:
        page.locator("#save").click()
    assert waiting.value.suggested_filename == "new rows with answers.csv"
    assert Path(waiting.value.path()).read_text(encoding="utf-8") == page.evaluate(PREDICT, list(data.read_bytes()))
    page.locator("#table").set_input_files({"name": "bad.csv", "mimeType": "text/csv", "buffer": b"shop\nRom\n"})
    page.get_by_text("bad.csv: there is no column").wait_for()
    assert page.locator("#answer").text_content() == told[29]["class"]  # as before
    assert opened.problems == []

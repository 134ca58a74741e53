"""Curves and maps of models of tables, beside what the models themselves predict, row by row."""

from __future__ import annotations

import importlib.resources
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas
import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.models import Tabular
from lutetia.report import find_curves
from lutetia.report.curve_pictures import MOST_BARS, curves_page
from lutetia.report.curves import Curve, Curves, Map
from lutetia.sklearn import LUTClassifier, LUTRegressor
from tools import require_module

if TYPE_CHECKING:
    from browser import OpenPage

pytest_plugins = ["browser"]

Array = np.ndarray[Any, Any]


def frame(n: int = 400) -> tuple[pandas.DataFrame, Array]:
    """A number with missing values, a number, categories and a date, whose effects meet."""
    random = np.random.default_rng(0)
    x = pandas.DataFrame(
        {
            "age": np.where(random.random(n) < 0.1, np.nan, random.integers(20, 70, n)),
            "size <m>": random.normal(100, 30, n).round(1),
            "town": pandas.Categorical(np.array(["Lyon", "Nice", "Paris"])[random.integers(0, 3, n)]),
            "sold": pandas.Timestamp("2023-01-01") + pandas.to_timedelta(random.integers(0, 700, n), "D"),
        }
    )
    signal = np.nan_to_num(x["age"], nan=90) / 10 + (x["town"] == "Paris") * (x["size <m>"] > 100) * 3
    return x, signal.to_numpy() + (x["sold"].dt.month > 6) + 0.3 * random.normal(size=n)


def at(curve: Curve, value: Any) -> Array:
    """What a curve adds at a value of a column of numbers, by its edges alone."""
    first = int(curve.is_missing)
    if np.isnan(value):
        return curve.values[0]
    assert curve.edges is not None
    return curve.values[first + int((curve.edges < value).sum())]


def scores(model: Any, x: pandas.DataFrame) -> Array:
    """What curves add up to, from the model's own predictions."""
    if isinstance(model, LUTRegressor):
        return model.predict(x)[:, None]
    found = model.decision_function(x)
    return found[:, None] if found.ndim == 1 else found - found.mean(1, keepdims=True)


@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_the_curves_of_a_sum_are_the_whole_model(n_classes: int) -> None:
    x, y = frame()
    x = x.drop(columns="sold")
    if n_classes > 1:
        model: Any = LUTClassifier(80, 3, interaction_cst="no_interactions", random_state=0)
        y = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
    else:
        model = LUTRegressor(80, 3, interaction_cst="no_interactions", random_state=0)
    found = model.fit(x, y).curves(x)
    assert (found.is_whole, found.most_columns, found.maps) == (True, 1, [])
    own = {curve.name: curve for curve in found.curves}
    towns = dict(zip(own["town"].labels, own["town"].values, strict=True))
    total = found.average + np.array([at(own["age"], age) for age in x["age"]])
    total = (
        total + np.array([at(own["size <m>"], size) for size in x["size <m>"]]) + np.array([towns[town] for town in x["town"]])
    )
    np.testing.assert_allclose(total, scores(model, x), atol=2e-5)
    assert np.ptp(total) > 1
    for curve in found.curves:
        np.testing.assert_allclose(curve.share.sum(), 1)
        np.testing.assert_allclose(curve.share @ curve.values, 0, atol=1e-9)
        if curve.edges is not None:  # no step that makes no difference
            assert (np.abs(np.diff(curve.values[int(curve.is_missing) :], axis=0)).max(1) > 0).all()
    assert [curve.importance for curve in found.curves] == sorted((curve.importance for curve in found.curves), reverse=True)
    assert own["age"].is_missing
    assert not own["size <m>"].is_missing
    assert own["age"].share[0] == pytest.approx(x["age"].isna().mean())
    assert own["town"].share[own["town"].labels.index("Nice")] == pytest.approx((x["town"] == "Nice").mean())


def test_curves_and_pairs_are_the_whole_model() -> None:
    x, y = frame()
    model = LUTRegressor(80, 4, pairs=0.5, interaction_cst="pairwise", random_state=0).fit(x[["age", "size <m>", "town"]], y)
    rows = x[["age", "size <m>", "town"]]
    found = model.curves(rows)
    assert (found.is_whole, found.most_columns) == (True, 2)
    curves, maps = {each.name: each for each in found.curves}, {each.names: each for each in found.maps}
    predicted = model.predict(rows)
    for number in range(0, 400, 9):
        row = rows.iloc[number]
        total = found.average[0] + at(curves["age"], row["age"])[0] + at(curves["size <m>"], row["size <m>"])[0]
        total += curves["town"].values[curves["town"].labels.index(row["town"]), 0]
        for names, each in maps.items():
            places = [step_of(labels, row[name]) for name, labels in zip(names, each.labels, strict=True)]
            total += each.values[places[0], places[1], 0]
        assert total == pytest.approx(predicted[number], abs=3e-5)
    assert set(maps) == {("age", "size <m>"), ("age", "town"), ("size <m>", "town")}
    assert found.maps[0].names == ("size <m>", "town")  # the pair that was made


def step_of(labels: list[str], value: Any) -> int:
    """The step of a value, read from the labels as a person would."""
    if isinstance(value, str):
        return labels.index(value)
    if np.isnan(value):
        return labels.index("missing")
    for number, label in enumerate(labels):
        low, _, high = label.partition(" to ")
        if label.startswith("up to ") and value <= float(label[6:]):
            return number
        if label.startswith("above ") and value > float(label[6:]):
            return number
        if high and not label.startswith("up") and float(low) < value <= float(high):
            return number
    raise AssertionError((labels, value))


def test_without_limits_a_curve_is_the_mean_over_rows() -> None:
    x, y = frame(120)
    model = LUTRegressor(40, 5, random_state=0).fit(x, y)
    found = model.curves(x)
    assert not found.is_whole
    assert (found.n_rows, found.n_others, found.maps) == (120, 120, [])
    own = {curve.name: curve for curve in found.curves}
    for column, values in {"age": [25.0, 44.0, 66.0, np.nan], "town": ["Lyon", "Paris"]}.items():
        means = []
        for value in values:
            changed = x.copy()
            changed[column] = pandas.Categorical([value] * len(x), x["town"].cat.categories) if column == "town" else value
            means.append(model.predict(changed).mean())
        curve = own[column]
        steps = [at(curve, value)[0] if column == "age" else curve.values[curve.labels.index(value), 0] for value in values]
        np.testing.assert_allclose(np.diff(steps), np.diff(means), atol=2e-5)
        assert np.ptp(steps) > 0.1
    assert "not the whole model" in found.said()
    assert {"sold", "sold: month"} <= set(own)
    assert found.average[0] == pytest.approx(model.predict(x).mean(), abs=1e-4)


def test_the_parts_of_a_date_have_curves_of_their_own() -> None:
    days = pandas.DataFrame({"sold": pandas.date_range("2023-01-01", periods=400)})
    units = 10 + 5.0 * (days["sold"].dt.day_of_week > 4)
    model = LUTRegressor(40, 1, candidates=200, interaction_cst="no_interactions", random_state=0).fit(days, units)
    found = model.curves(days)
    assert found.curves[0].name == "sold: weekday"
    weekday = dict(zip(found.curves[0].labels, found.curves[0].values[:, 0], strict=True))
    assert max(weekday, key=weekday.__getitem__) == "above Friday"
    assert found.is_whole


def test_parts_of_a_date_that_meet_are_said_to_be_means() -> None:
    """A table of one column may compare a date with its month, and its curves are then no more than means."""
    x, y = frame()
    model = LUTRegressor(60, 4, interaction_cst="no_interactions", random_state=0).fit(x, y)
    found = model.curves(x)
    assert (found.most_columns, found.is_whole) == (1, False)
    assert {"sold", "sold: month"} <= found.averaged
    assert not {"age", "town", "size <m>"} & found.averaged
    assert found.said().startswith("This is the whole model, but for what is made of one date or one text")
    assert "sold, sold: day, sold: month, sold: weekday, sold: year are averages" in found.said()
    many = replace(found, averaged=frozenset(f'said: "{number}"' for number in range(40)))
    assert 'said: "11", said: "12", 35 more are averages' in many.said()
    page = curves_page(found, "Flats")
    assert page.count("; a mean over rows") == len(found.averaged)
    ages = {curve.name: curve for curve in found.curves}["age"]
    changed = [model.predict(x.assign(age=age)) for age in (25.0, 66.0)]
    np.testing.assert_allclose(changed[1] - changed[0], (at(ages, 66.0) - at(ages, 25.0))[0], atol=2e-5)


def test_what_is_given_is_checked() -> None:
    x, y = frame(60)
    model = LUTRegressor(5, random_state=0).fit(x, y)
    with pytest.raises(ArgumentError, match="x has no rows"):
        find_curves(model.model_, torch.zeros(0, 4))
    with pytest.raises(ArgumentError, match=r"expected shape \[n, 4\]"):
        find_curves(model.model_, torch.zeros(3, 5))


def made(n_outputs: int = 2, n_categories: int = 30) -> Curves:
    """Curves that were not fitted: awkward names, missing values, many categories, more outputs than lines."""
    random = np.random.default_rng(0)
    outputs = [f"the score of <{number}>" for number in range(n_outputs)]
    steps = Curve("</script><b>age", random.normal(size=(4, n_outputs)), ["missing", "up to 3", "3 to 5", "above 5"],
                  np.array([0.1, 0.2, 0.3, 0.4]), True, np.array([3.0, 5.0]), (1.0, 9.0), [3, 0, 2], ("1", "9"))  # fmt: skip
    labels = [f"town {number}" for number in range(n_categories)]
    towns = Curve("town", random.normal(size=(n_categories, n_outputs)), labels, np.full(n_categories, 1 / n_categories), False)
    maps = [Map(("age", "town"), (["up to 3", "above 3"], labels), random.normal(size=(2, n_categories, n_outputs)), 0.5)]
    return Curves([steps, towns], maps, outputs, np.zeros(n_outputs), 2, 2, 1234, 128, "EUR")


@pytest.mark.parametrize("n_outputs", [1, 2, 6])
def test_a_page_shows_them_all(open_page: OpenPage, n_outputs: int) -> None:
    page = open_page(curves_page(made(n_outputs), "Rent & <more>")).page
    assert page.locator("h1").inner_text() == "Rent & <more>"
    assert page.locator(".curves h3").nth(0).inner_text().startswith("</script><b>age")
    assert page.locator("svg[role=img]").count() == 3
    assert page.locator("path.curve").count() == min(4, n_outputs)
    assert page.locator("rect.bar").count() == MOST_BARS * min(4, n_outputs)
    summary = page.locator("details summary").first
    page.keyboard.press("Tab")
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("details[open] tbody tr").count() == 4
    shown = page.locator("details[open] tbody tr").nth(1).locator("td").all_inner_texts()
    assert shown[0] == "20.0%"
    assert len(shown) == 1 + n_outputs
    assert page.locator(".map rect").count() == 1 + 2 * 24


def test_the_picture_has_the_steps_where_they_are(open_page: OpenPage) -> None:
    """Read back from the path: widths as the edges say, heights as the values, with the sign turned."""
    shown = made(1)
    page = open_page(curves_page(shown, "Rent")).page
    path = page.locator("path.curve").get_attribute("d")
    assert path is not None
    parts = [part.split("H") for part in path.removeprefix("M").split("L")]
    begins = [(float(part[0].split()[0]), float(part[0].split()[1]), float(part[1])) for part in parts]
    widths = np.array([end - begin for begin, _, end in begins])
    np.testing.assert_allclose(widths / widths.sum(), np.array([2, 2, 4]) / 8, atol=1e-3)
    heights, values = np.array([y for _, y, _ in begins]), shown.curves[0].values[1:, 0]
    np.testing.assert_allclose(np.diff(heights) / np.ptp(heights), -np.diff(values) / np.ptp(values), atol=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_on_the_page_is_hard_to_read(open_page: OpenPage, scheme: Any) -> None:
    page = open_page(curves_page(made(6), "Rent"), 700, 800, scheme).page
    page.locator("details summary").first.click()
    source = importlib.resources.files(require_module("axe_playwright_python")).joinpath("axe.min.js")
    page.evaluate(source.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    assert [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 700


def test_pieces_for_a_notebook_escape_names() -> None:
    found = made()
    piece = found._repr_html_()
    assert "</script><b>age" not in piece
    assert "&lt;/script&gt;" in piece
    assert found.to_dict()["curves"][0]["column"] == "</script><b>age"
    assert "town" in found.to_text()


def test_gates_have_no_curves() -> None:
    gates = Tabular(input_shape=(3,), core="gates", n_tables=4, n_anchors=2, n_encoded=3, gate_codes=(5,), seed=0)
    with pytest.raises(ArgumentError, match="gates, expected tables of columns"):
        find_curves(gates, torch.zeros(2, 3))

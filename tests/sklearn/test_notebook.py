"""Explanations in a notebook: a short text in a terminal, tables with bars as HTML."""

from html.parser import HTMLParser

import numpy as np
import pandas
import pytest
import torch
from sklearn.datasets import load_wine

from lutetia.precompute import Build
from lutetia.relevance import pictures
from lutetia.sklearn import LUTClassifier, LUTRegressor


class Cells(HTMLParser):
    """The texts of a piece of HTML, and its elements."""

    def __init__(self, piece: str) -> None:
        super().__init__()
        self.texts, self.tags = [], []
        self.feed(piece)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def wine() -> tuple[pandas.DataFrame, np.ndarray]:
    data = load_wine(as_frame=True)
    return data.data.rename(columns={"proline": "<b>proline</b>"}), np.array(["red", "<i>white</i>", "rosé"])[data.target]


def test_the_repr_of_an_explanation_is_one_line(wine):
    x, y = wine
    explained = LUTClassifier(n_tables=5, random_state=0).fit(x, y).explain(x[:3])
    assert repr(explained) == "<Explanation of 3 samples by 13 columns: to_text(0) for the first>"


def test_a_notebook_shows_the_class_the_columns_and_the_comparisons(wine, tmp_path):
    x, y = wine
    model = LUTClassifier(n_tables=5, random_state=0).fit(x, y)
    explained = model.explain(x)
    cells = Cells(explained._repr_html_())
    # names are escaped: nothing that a column or class is called becomes an element
    assert set(cells.tags) == {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert "<b>proline</b>" in cells.texts
    assert cells.texts[0] == f"sample 0: {model.predict(x[:1])[0]}"
    best = int(np.abs(explained.relevance[0]).argmax())
    assert cells.texts[3] == explained.features[best]
    assert cells.texts.count("comparison") == 5
    assert explained.comparisons[0][0].text in cells.texts
    assert cells.texts[-1] == "and 173 more: to_text(5) is the next"
    written = pictures.page(explained.to_html(1), title="Why", path=tmp_path / "why.html")
    assert explained.to_html(1) in written


def test_a_regression_has_no_class_in_a_notebook(wine):
    x, _ = wine
    model = LUTRegressor(n_tables=5, random_state=0).fit(x, x["alcohol"])
    assert Cells(model.explain(x[:1])._repr_html_()).texts[0] == "sample 0"
    assert model.explain(x[:1]).classes == []


def test_circuits_are_told_in_a_line(wine):
    x, y = wine
    model = LUTClassifier(n_tables=2, n_anchors=2, random_state=0).fit(x, y)
    assert repr(model.model_.network()).startswith("<LUTNetwork of a Tabular, 8 bits per input: Graph(13 -> 1 channels; 1 input")
    build = Build(model.model_.network().graph, samples=torch.zeros(500, 13))
    assert repr(build).endswith("argmax): not simulated, not proved, not synthesised; see .report and .hardware>")
    build.report |= {"simulated": {"samples": 64}, "proof": {"said": "the whole net proved in 3 parts"}}
    build.report["synthesis"] = {"luts": 1234, "target": "ice40"}
    assert ": 64 samples simulated, the whole net proved in 3 parts, 1,234 LUTs for ice40; see" in repr(build)

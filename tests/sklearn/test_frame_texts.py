"""Estimators on frames with columns of text: found, listed, saved, explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
from sklearn.base import clone

from lutetia.sklearn import LUTClassifier, LUTRanker, LUTRegressor

SMALL: dict[str, Any] = {"n_tables": 30, "n_anchors": 4, "random_state": 0}


@pytest.fixture(scope="module")
def frame() -> pandas.DataFrame:
    random = np.random.default_rng(0)
    words = random.choice(["fine", "awful", "broken", "nice"], 400)
    texts = [f"this one is {word} and number {row} of all" for row, word in enumerate(words)]
    shop = pandas.Categorical(random.choice(["a", "b"], 400))
    made = pandas.DataFrame({"text": texts, "shop": shop, "price": random.normal(size=400)})
    made.loc[::40, "text"] = None
    return made.assign(y=np.where(np.isin(words, ["fine", "nice"]), "keep", "return"))


def test_a_column_of_text_is_found_saved_and_explained(frame: pandas.DataFrame, tmp_path: Path) -> None:
    x, y = frame[["text", "shop", "price"]], frame["y"]
    model = LUTClassifier(**SMALL).fit(x[:300], y[:300])
    assert model.texts_ == [0]
    assert model.categories_ == {1: ["a", "b"]}
    assert model.n_features_in_ == 3
    assert model.score(x[300:], y[300:]) > 0.93
    model.save(tmp_path / "m")
    again = LUTClassifier.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    assert (again.texts_, again.categories_) == (model.texts_, model.categories_)
    assert again.feature_names_in_.tolist() == ["text", "shop", "price"]
    why = model.explain(x[300:305])
    assert why.features == ["text", "shop", "price"]
    assert why.relevance.shape == (5, 3)
    for row, marked in enumerate(why.texts):
        for own in marked:
            total = sum(share for _, _, share in own.words) + own.rest
            np.testing.assert_allclose(total, why.relevance[row, 0], atol=1e-9)
    assert "in text: " in why.to_text(1)
    assert "<span" in why.to_html()
    assert len(model.to_c()["columns.c"]) > 1000


def test_polars_and_arrays_give_the_same(frame: pandas.DataFrame) -> None:
    x, y = frame[["text", "price"]], frame["y"].to_numpy()
    wanted = LUTClassifier(**SMALL).fit(x, y).predict_proba(x)
    other = polars.DataFrame(
        {"text": [text if isinstance(text, str) else None for text in frame["text"]], "price": frame["price"].to_numpy()}
    )
    np.testing.assert_array_equal(LUTClassifier(**SMALL).fit(other, y).predict_proba(other), wanted)
    objects = x.to_numpy(dtype=object)
    listed = LUTClassifier(**SMALL, text_features=[0]).fit(objects, y)
    np.testing.assert_array_equal(listed.predict_proba(objects), wanted)
    with pytest.raises(ValueError, match="expected texts"):
        listed.predict(np.zeros((2, 2)))


def test_rows_without_any_text_are_predicted(frame: pandas.DataFrame) -> None:
    x, y = frame[["text", "price"]], frame["y"]
    model = LUTClassifier(**SMALL).fit(x, y)
    wanted = model.predict_proba(x[::40])
    nowhere = x[::40].assign(text=np.nan)  # numbers, as pandas makes it of a file without texts
    assert nowhere["text"].dtype == float
    np.testing.assert_array_equal(model.predict_proba(nowhere), wanted)
    empty = polars.DataFrame({"text": [None] * 10, "price": x["price"][::40].to_numpy()})
    np.testing.assert_array_equal(model.predict_proba(empty), wanted)
    named = model.explain(x[:1].assign(text="n/a"))  # no text, so there are no words to mark
    assert named.texts == [[]]
    with pytest.raises(ValueError, match="expected texts"):
        model.predict(x[::40].assign(text=1.0))


def test_a_long_name_of_a_column_is_kept(frame: pandas.DataFrame, tmp_path: Path) -> None:
    name = "text" * 250  # with its words it is too long for the name of an input
    x, y = frame[["text", "price"]].rename(columns={"text": name}), frame["y"]
    model = LUTClassifier(**SMALL).fit(x, y)
    model.save(tmp_path / "m")
    assert LUTClassifier.load(tmp_path / "m").feature_names_in_.tolist() == [name, "price"]


def test_text_features_lists_columns_or_none(frame: pandas.DataFrame) -> None:
    x, y = frame[["text", "shop", "price"]], frame["y"]
    assert LUTClassifier(**SMALL, text_features=["text"]).fit(x, y).texts_ == [0]
    with pytest.raises(ValueError, match="text_features"):
        LUTClassifier(**SMALL, text_features=None).fit(x, y)
    for wrong, told in (("all", '"auto", None or a list'), (["title"], "'title'"), (["shop"], "categories or dates"), ([7], "7")):
        with pytest.raises(ValueError, match=told):
            LUTClassifier(**SMALL, text_features=wrong).fit(x, y)
    with pytest.raises(ValueError, match="Columns of text cannot have monotonic"):
        LUTClassifier(**SMALL, monotonic_cst={"text": 1}).fit(x, y)
    assert clone(LUTClassifier(text_features=["text"])).text_features == ["text"]
    rising = LUTClassifier(**SMALL, monotonic_cst={"price": 1}).fit(x, y)
    assert [sign for sign in rising.model_.config.monotone if sign] == [1]
    assert rising.model_.config.monotone[1] == 1


def test_numbers_and_rankings_of_texts(frame: pandas.DataFrame) -> None:
    x, good = frame[["text", "price"]], (frame["y"] == "keep").astype(int).to_numpy()
    y = good * 4 + np.random.default_rng(0).normal(0, 0.3, 400)
    model = LUTRegressor(**SMALL, intervals=True).fit(x[:300], y[:300])
    assert model.score(x[300:], y[300:]) > 0.8
    ends = model.predict_interval(x[300:])
    assert 0.75 < ((ends[:, 0] <= y[300:]) & (y[300:] <= ends[:, 1])).mean() <= 1
    held = LUTRegressor(**SMALL).fit(x[:200], y[:200], eval_set=(x[200:300], y[200:300]))
    assert held.score(x[300:], y[300:]) > 0.8
    query = np.arange(400) // 8
    assert LUTRanker(**SMALL).fit(x, good, qid=query).score(x, good, qid=query) > 0.95
    circuit = LUTClassifier(**SMALL).fit(x, good).to_circuit(x, good, n_tables=4, prove=False)
    assert "refit" not in circuit.report  # its words were weighed by the same rows

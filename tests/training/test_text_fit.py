"""What a fit learns from texts: naive Bayes by another library, tallies that do not know their row, words of its rows alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.naive_bayes import MultinomialNB

from lutetia.models import text_columns
from lutetia.training.boosting import Boosting
from lutetia.training.importance import word_importance
from lutetia.training.tabular import Shape, TabularRows, fit_tabular
from lutetia.training.texts import UNIT, fit_texts, looks_like_text, read_texts, with_texts

WORDS = ["good", "bad", "fine", "dull", "film", "plot", "not", "very", "the", "a"]
SMALL = Boosting(n_tables=20, n_anchors=3)


def some_rows(n: int = 120, seed: int = 0, **fields: object) -> TabularRows:
    random = np.random.default_rng(seed)
    texts = [" ".join(random.choice(WORDS, 6)) for _ in range(n)]
    y = np.array([text.count("good") > text.count("bad") for text in texts]).astype(np.int64)
    own = read_texts([None if row % 17 == 5 else text for row, text in enumerate(texts)], "review", 1)
    return TabularRows(random.normal(size=(n, 1)), y, np.ones(n, np.float32), texts=(own,), **fields)  # type: ignore[arg-type]


def counts(rows: TabularRows, grams: list[str]) -> np.ndarray:
    (own,) = rows.texts
    order = {gram: number for number, gram in enumerate(grams)}
    found = np.zeros((len(rows.y), len(grams)))
    for row, number in zip(own.rows, own.numbers, strict=True):
        if own.known[number] in order:
            found[row, order[own.known[number]]] = 1
    return found


@pytest.mark.parametrize(("over", "place"), [("words", 0), ("pairs", 1)])
def test_weights_are_those_of_naive_bayes(over: str, place: int) -> None:
    rows = some_rows()
    (column,), _ = fit_texts(rows, Shape(2, (0,), (1,)), 0)
    own = [gram for gram in column.grams if (" " in gram) == (over == "pairs")]
    peer = MultinomialNB(alpha=1.0).fit(counts(rows, own), rows.y).feature_log_prob_
    found = [column.weights[place, list(column.grams).index(gram)] for gram in own]
    np.testing.assert_array_equal(found, np.rint(UNIT * (peer[1] - peer[0])))
    assert not any(column.weights[place, number] for number, gram in enumerate(column.grams) if gram not in own)


def test_a_row_does_not_decide_its_own_tallies() -> None:
    rows = some_rows()
    shape = Shape(2, (0,), (1,))
    _, before = fit_texts(rows, shape, 0)
    for row in (0, 50, 119):
        y = rows.y.copy()
        y[row] = 1 - y[row]
        changed = TabularRows(rows.x, y, rows.weight, texts=rows.texts)
        _, after = fit_texts(changed, shape, 0)
        np.testing.assert_array_equal(before[row, :2], after[row, :2])
        assert (before[:, :2] != after[:, :2]).any()


def test_words_come_from_the_rows_of_the_fit_alone() -> None:
    n = 60
    texts = ["seen word here" if row % 2 else "another word there" for row in range(n)] + ["unseen token"] * n
    rows = TabularRows(np.zeros((2 * n, 0)), np.arange(2 * n) % 2, np.ones(2 * n, np.float32), texts=(read_texts(texts, "t", 0),))
    model, _ = fit_tabular(rows.at(np.arange(n)), Shape(2, (), (0,)), SMALL)
    (column,) = text_columns(model.metadata)
    assert "seen" in column.grams
    assert not {"unseen", "token", "unseen token"} & {*column.grams, *column.words}
    zero = rows.at(np.arange(2 * n))
    zero.weight[n:] = 0  # rows that do not count are as if they were not there
    (column,), _ = fit_texts(zero, Shape(2, (), (0,)), 0)
    assert "seen" in column.grams
    assert "unseen" not in column.grams


@pytest.mark.parametrize("kind", ["number", "classes", "ranking"])
def test_other_targets_have_tallies_of_their_own(kind: str) -> None:
    rows = some_rows(200)
    good = counts(rows, ["good"])[:, 0]
    if kind == "classes":
        rows = TabularRows(rows.x, (good + counts(rows, ["dull"])[:, 0]).astype(np.int64), rows.weight, texts=rows.texts)
        shape, settings, tallies = Shape(3, (0,), (1,)), SMALL, 6
    else:
        query = np.arange(200) // 10 if kind == "ranking" else None
        y = good if kind == "ranking" else good + np.random.default_rng(0).normal(0, 0.1, 200)
        rows = TabularRows(rows.x, y, rows.weight, query=query, texts=rows.texts)
        settings = Boosting(n_tables=20, n_anchors=3, loss="lambdarank" if kind == "ranking" else "squared_error")
        shape, tallies = Shape(1, (0,), (1,)), 2 if kind == "ranking" else 6
    model, _ = fit_tabular(rows, shape, settings)
    (column,) = text_columns(model.metadata)
    assert len(column.tallies) == tallies
    assert "good" in column.words
    x = with_texts(rows, [column]).x
    assert x.shape == (200, model.n_columns)
    scores = model(torch.from_numpy(x)).detach().numpy()
    if kind != "classes":
        assert np.corrcoef(scores[:, 0], good)[0, 1] > 0.8
    else:
        assert (scores.argmax(1) == rows.y).mean() > 0.8


@pytest.mark.parametrize("texts", [[None], [""], ["a lone word in each text"]])
@pytest.mark.parametrize("n_classes", [1, 2])
def test_a_fit_takes_texts_and_targets_that_say_nothing(texts: list[str | None], n_classes: int) -> None:
    own, y = read_texts(texts * 20, "t", 0), np.zeros(20) if n_classes == 1 else np.arange(20) % 2
    rows = TabularRows(np.zeros((20, 0)), y, np.ones(20, np.float32), texts=(own,))
    model, _ = fit_tabular(rows, Shape(n_classes, (), (0,)), SMALL)
    (column,) = text_columns(model.metadata)
    assert len(column.tallies) == (0 if n_classes == 1 else 2)  # no number is above all others
    assert len(column.grams) == 0
    scores = model(torch.from_numpy(with_texts(rows, [column]).x)).detach().numpy()
    np.testing.assert_allclose(scores, np.zeros_like(scores), atol=1e-6)


def test_tables_ask_of_words_only_whether_they_occur() -> None:
    model, _ = fit_tabular(some_rows(), Shape(2, (0,), (1,)), SMALL)
    (column,) = text_columns(model.metadata)
    anchors = model.tables.anchors.reshape(-1, 2).numpy()
    asked = anchors[anchors[:, 0] >= column.asked]
    assert len(asked)
    assert (asked[:, 1] == model.config.n_encoded + 1).all()
    assert set(range(column.asked, model.n_columns)) == set(asked[:, 0].tolist())  # words that no table asks for are gone


def test_a_text_column_is_told_from_categories_and_names() -> None:
    texts = [f"this is review number {row} of a film" for row in range(40)]
    assert looks_like_text(texts)
    assert looks_like_text([*texts, None, "n/a"])
    assert not looks_like_text(texts[:20])  # as few as a rating has steps
    assert not looks_like_text(["some college, no degree", "bachelor of arts"] * 500)
    assert not looks_like_text([f"city{row}" for row in range(40)])
    assert not looks_like_text([f"{row} kg" for row in range(40)])
    assert looks_like_text([f"the {row % 1200} th of many titles" for row in range(12_000)])


def test_words_matter_by_what_is_lost_without_them() -> None:
    rows = some_rows(300)
    model, _ = fit_tabular(rows, Shape(2, (0,), (1,)), SMALL)
    (column,) = text_columns(model.metadata)
    x = with_texts(rows, [column]).x
    found = {word: rise for _, word, rise in word_importance(model, x, rows.y)}
    with torch.no_grad():
        truth = torch.nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(rows.y))
    for word in column.words[:5]:  # as if the weight of the word were 0 and no text had it
        number, place = list(column.grams).index(word), list(column.words).index(word)
        changed = x.copy()
        has = x[:, column.asked + place] == 1
        changed[has, column.asked + place] = 0
        for tally in range(len(column.tallies)):
            changed[has, column.first + tally] -= column.weights[tally, number]
        with torch.no_grad():
            after = torch.nn.functional.cross_entropy(model(torch.from_numpy(changed)), torch.from_numpy(rows.y))
        assert abs(found[word] - float(after - truth)) < 1e-5
    assert max(found, key=lambda word: found[word]) in ("good", "bad")

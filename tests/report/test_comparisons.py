"""What the tables of a model of columns ask, said once."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch

from lutetia.models import Tabular
from lutetia.report.attribution import ROWS_AT_ONCE, attribute_class, contrast
from lutetia.report.comparisons import Questions
from lutetia.sklearn import LUTClassifier
from precompute.category_trees import as_inputs, category_trees


@pytest.mark.parametrize(
    ("codes", "wanted"),
    [([3, 7], [("b", ">", "a by rank", -11.0)]), ([7, 3], [("a", ">", "b by rank", 11.0)])],
)
def test_two_columns_are_compared_once(codes: list[int], wanted: list[tuple[str, str, str, float]]) -> None:
    """One table asks a > b, the other b > a; the first gives 10 for yes, the second 1 for no."""
    model = two_tables()
    found = Questions(model, ["a", "b"])(np.array(codes, np.uint8), np.ones(1))
    assert [tuple(each) for each in found] == wanted


def test_equal_ranks_answer_both_questions_with_no() -> None:
    found = Questions(two_tables(), ["a", "b"])(np.array([5, 5], np.uint8), np.ones(1))
    assert [str(each) for each in found] == ["a <= b by rank (-10)", "b <= a by rank (+1)"]


def two_tables() -> Tabular:
    model = Tabular(input_shape=(2,), n_classes=1, n_tables=2, n_anchors=1, n_encoded=2, n_edges=5, seed=0)
    model.encoding.source.copy_(torch.arange(2))
    model.set_tables(torch.tensor([[[0, 1]], [[1, 0]]]), torch.tensor([[0.0, 10.0], [1.0, 0.0]])[:, :, None])
    return model


def slow(model: Tabular, codes: np.ndarray, contrast: np.ndarray, names: list[str]) -> list[tuple[str, str, float]]:
    """The same one anchor at a time: input, operator and effect."""
    source, effects = model.encoding.source.tolist(), {}
    known = [*codes.tolist(), *range(256)]
    anchors, weight = model.tables.anchors.tolist(), model.tables.weight.detach().double().numpy() @ contrast
    for table, own in enumerate(anchors):
        cell = sum((known[left] > known[right]) << place for place, (left, right) in enumerate(own))
        for place, (left, right) in enumerate(own):
            if right == len(source):
                left = source.index(source[left])
            elif right < len(source) and source[left] != source[right] and known[left] < known[right]:
                left, right = right, left
            effects[left, right] = effects.get((left, right), 0.0) + weight[table, cell] - weight[table, cell ^ (1 << place)]
    told = sorted(effects.items(), key=lambda item: -abs(item[1]))
    return [
        (model.input_name(left, names), ">" if known[left] > known[right] else "<=", effect) for (left, right), effect in told
    ]


def test_many_rows_are_compared_and_attributed_as_one_by_one() -> None:
    random = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "a": random.integers(0, 9, 300).astype(float),
            "city": pandas.Categorical(random.choice(["x", "y", "z", "u", "v"], 300)),
            "b": random.integers(0, 9, 300).astype(float),
            "day": pandas.date_range("2024-01-01", periods=300),
        }
    )
    frame.loc[::7, "a"] = np.nan
    y = (frame["a"] > frame["b"]).astype(int) + (frame["city"] == "x")
    estimator = LUTClassifier(n_tables=30, pairs=0.6, random_state=0).fit(frame, y)
    model, x = estimator.model_, torch.from_numpy(estimator._matrix(frame))
    explained = estimator.explain(frame)
    assert len(explained) > ROWS_AT_ONCE
    with torch.no_grad():
        scores = model(x)
    for row in range(0, 300, 23):
        wanted = explained.targets[row]
        alone = attribute_class(model, x[row], wanted, "decisive").relevance.double().numpy()
        np.testing.assert_allclose(explained.relevance[row], alone, rtol=1e-4, atol=1e-6)
        asked = slow(model, model.encoding.codes(x.numpy())[:, row], contrast(scores[row], wanted).double().numpy(), list(frame))
        assert [(each.feature, each.operator) for each in explained.comparisons[row]] == [each[:2] for each in asked]
        assert [each.effect for each in explained.comparisons[row]] == pytest.approx([each[2] for each in asked], abs=1e-12)


def test_a_set_of_categories_is_told_by_the_fewer_words() -> None:
    model = category_trees()
    x = as_inputs([(1.0, "green", 2.0), (1.0, None, 5.0)])
    asked = [Questions(model, ["size", "colour", "code"])(codes, np.ones(1)) for codes in model.encoding.codes(x).T]
    texts = [{each.text for each in found} for found in asked]
    assert {"colour in [red, green]", "code in [2, 6]", "size <= 1.5"} <= texts[0]
    assert {"colour not in [red, green]", "code not in [2, 6]"} <= texts[1]
    assert model.set_text(0, 2) is None
    others = LUTClassifier(n_tables=4, random_state=0, categorical_features=[0]).fit([[0], [1]] * 60, [0, 1] * 60).model_
    assert all(others.set_text(each, 1) is None for each in range(others.config.n_encoded))

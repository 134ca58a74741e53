"""`LUTRanker`: queries as users of LightGBM and XGBoost give them, scores, NDCG, reasons, folders and circuits."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import ndcg_score
from sklearn.model_selection import GroupKFold, cross_val_score

import sklearn
from lutetia.errors import DataError
from lutetia.models import load
from lutetia.sklearn import LUTRanker, LUTRegressor
from lutetia.sklearn.ranker import row_weights

SMALL = {"n_tables": 30, "n_anchors": 3, "candidates": 16, "random_state": 0, "n_jobs": 1}


def searches(n_queries: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of 2 to 12 per query; a level that all rows of a query share hides what their order depends on."""
    random = np.random.default_rng(seed)
    query = np.repeat(np.arange(n_queries), random.integers(2, 13, n_queries))
    level = random.normal(size=n_queries)[query] * 3
    x = np.column_stack([random.normal(size=(len(query), 2)), level])
    return x, np.clip(np.round(x[:, 0] + level), 0, 4), query


@pytest.fixture(scope="module")
def fitted() -> LUTRanker:
    x, y, query = searches()
    return LUTRanker(**SMALL).fit(x, y, qid=query)


def test_new_queries_are_ordered(fitted: LUTRanker) -> None:
    x, y, query = searches(40, 1)
    expected = [
        ndcg_score([2.0 ** y[query == each] - 1], [fitted.predict(x[query == each])], k=5)
        for each in range(40)
        if y[query == each].any()
    ]
    assert fitted.score(x, y, qid=query, at=5) == pytest.approx(np.mean(expected))
    flat = [ndcg_score([2.0 ** y[query == each] - 1], [np.zeros((query == each).sum())], k=5) for each in range(40)]
    assert np.mean(expected) > np.mean(flat) + 0.15


def test_groups_are_queries(fitted: LUTRanker) -> None:
    """Sizes as LightGBM has them, the query of each row as XGBoost has it, of any kind and in any order: one model."""
    x, y, query = searches()
    sizes = np.bincount(query)
    same = fitted.predict(x)
    np.testing.assert_array_equal(LUTRanker(**SMALL).fit(x, y, group=sizes).predict(x), same)
    np.testing.assert_array_equal(LUTRanker(**SMALL).fit(x, y, qid=[f"{each:03}" for each in query]).predict(x), same)
    names = np.array([f"{each:03}" for each in query], dtype=object)
    np.testing.assert_array_equal(LUTRanker(**SMALL).fit(x, y, qid=names).predict(x), same)
    assert fitted.score(x, y, group=sizes) == fitted.score(x, y, qid=query)
    order = np.random.default_rng(0).permutation(len(y))
    assert fitted.score(x[order], y[order], qid=query[order]) == pytest.approx(fitted.score(x, y, qid=query))


def test_an_eval_set_decides_when_to_stop() -> None:
    x, y, query = searches()
    others = searches(20, 2)
    sizes = np.bincount(others[2])
    own = {**SMALL, "n_tables": 300, "n_iter_no_change": 1}
    one = LUTRanker(**own).fit(x, y, qid=query, eval_set=[others[:2]], eval_qid=[others[2]])
    two = LUTRanker(**own).fit(x, y, qid=query, eval_set=others[:2], eval_group=sizes)
    assert one.n_tables_ == two.n_tables_ < 300
    least = one.losses_["valid"][one.n_tables_ // 10 - 1]
    assert least == min(one.losses_["valid"]) == pytest.approx(1 - one.score(*others[:2], qid=others[2]))
    with pytest.raises(ValueError, match="eval_qid is given without eval_set"):
        LUTRanker(**SMALL).fit(x, y, qid=query, eval_qid=others[2])
    with pytest.raises(ValueError, match="eval_group and eval_qid are neither given"):
        LUTRanker(**SMALL).fit(x, y, qid=query, eval_set=others[:2])


def test_few_queries_are_all_fitted() -> None:
    x, y, query = searches(20)
    assert LUTRanker(**SMALL).fit(x, y, qid=query).losses_["valid"] == []
    assert LUTRanker(**SMALL, early_stopping=True).fit(x, y, qid=query).losses_["valid"] != []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "group and qid are neither given, expected one"),
        ({"group": [3], "qid": [1, 1, 2]}, "group and qid are both given"),
        ({"group": [2, 2]}, r"group is \[2, 2\], expected whole numbers above 0 whose sum is 3"),
        ({"group": [3, 0]}, "expected whole numbers above 0"),
        ({"group": [1.5, 1.5]}, "expected whole numbers above 0"),
        ({"group": [1, 1, 1]}, "every row has a query of its own, expected rows that share one"),
        ({"qid": [1, 2]}, "qid holds 2 rows, expected 3"),
        ({"qid": [1, 2, np.nan]}, "qid holds a missing value"),
    ],
)
def test_queries_are_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LUTRanker(**SMALL).fit([[1.0], [2], [3]], [0, 1, 2], **given)


def test_relevances_are_checked() -> None:
    for bad, message in ((-1, "holds -1"), (40, "holds 40"), (np.nan, "NaN")):
        with pytest.raises(ValueError, match=message):
            LUTRanker(**SMALL).fit([[1.0], [2], [3]], [0, 1, bad], group=[3])


def test_weights_count(fitted: LUTRanker) -> None:
    x, y, query = searches()
    same = LUTRanker(**SMALL).fit(x, y, np.ones(len(y)), qid=query)
    np.testing.assert_array_equal(same.predict(x), fitted.predict(x))
    other = LUTRanker(**SMALL).fit(x, y, np.where(query < 30, 1.0, 0.0), qid=query)
    assert np.abs(other.predict(x) - fitted.predict(x)).max() > 0.1
    own = np.where(np.arange(60) < 30, 1.0, 0.0)  # of queries, as XGBoost has them
    np.testing.assert_array_equal(LUTRanker(**SMALL).fit(x, y, own, group=np.bincount(query)).predict(x), other.predict(x))
    held = query < 30
    halves = [fitted.score(x[part], y[part], qid=query[part]) for part in (held, ~held)]
    assert fitted.score(x, y, own, qid=query) == fitted.score(x, y, own[query], qid=query) == pytest.approx(halves[0])
    assert abs(halves[0] - halves[1]) > 1e-4
    with pytest.raises(ValueError, match="sample_weight"):
        LUTRanker(**SMALL).fit(x, y, own[1:], qid=query)


def test_weights_of_queries_are_in_the_order_in_which_they_come() -> None:
    query = np.array([5, 2, 5, 9, 2])
    assert row_weights([1.0, 2.0, 3.0], np.unique(query, return_inverse=True)[1]).tolist() == [1, 2, 1, 3, 2]
    assert row_weights([1.0] * 5, query) == [1.0] * 5


def test_an_eval_set_has_weights_too() -> None:
    """The loss that decides when to stop is that of the queries that count."""
    x, y, query = searches()
    others = searches(20, 2)
    own = np.where(np.arange(20) < 10, 1.0, 0.0)
    ranker = LUTRanker(**SMALL).fit(x, y, qid=query, eval_set=(*others[:2], own), eval_qid=others[2])
    held = others[2] < 10
    least = min(ranker.losses_["valid"])
    assert least == pytest.approx(1 - ranker.score(others[0][held], others[1][held], qid=others[2][held]))


def test_constraints_hold() -> None:
    """Scores never fall as the first column rises, though relevances do in places."""
    x, y, query = searches()
    y = np.where((x[:, 0] > 0.2) & (x[:, 0] < 0.7), 0, y)
    steps = np.column_stack([np.linspace(-3, 3, 100), np.zeros((100, 2))])
    free, bound = (LUTRanker(**SMALL, monotonic_cst=signs).fit(x, y, qid=query) for signs in (None, [1, 0, 0]))
    assert np.diff(free.predict(steps)).min() < 0 <= np.diff(bound.predict(steps)).min()


def test_reasons_add_up_to_the_score(fitted: LUTRanker) -> None:
    x = searches()[0][:20]
    np.testing.assert_allclose(fitted.explain(x).relevance.sum(1), fitted.predict(x), atol=1e-5)


def test_it_is_saved_and_copied(fitted: LUTRanker, tmp_path: Path) -> None:
    x = searches()[0]
    fitted.save(tmp_path / "ranker")
    again = LUTRanker.load(tmp_path / "ranker")
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))
    assert again.get_params() == fitted.get_params()
    model = load(tmp_path / "ranker")
    assert (model.metadata["task"], model.config.loss) == ("ranking", "lambdarank")
    with pytest.raises(DataError, match="holds LUTRanker, expected a LUTRegressor"):
        LUTRegressor.load(tmp_path / "ranker")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(x), fitted.predict(x))
    assert clone(fitted).get_params() == fitted.get_params()


def test_folds_are_whole_queries() -> None:
    """scikit-learn hands queries on, where they are asked for."""
    x, y, query = searches()
    with sklearn.config_context(enable_metadata_routing=True):
        ranker = LUTRanker(**SMALL).set_fit_request(qid=True).set_score_request(qid=True)
        found = cross_val_score(ranker, x, y, params={"qid": query, "groups": query}, cv=GroupKFold(3))
    assert found.min() > 0.9


def test_a_circuit_of_the_first_tables(fitted: LUTRanker) -> None:
    x, y, query = searches()
    build = fitted.to_circuit(x, y, qid=query, n_tables=5, prove=False)
    assert build.report["refit"]["measure"] == "ndcg_10"
    tried = build.report["refit"]
    assert tried["kept"] == ("again" if tried["again"] >= tried["cut"] else "cut")
    with pytest.raises(ValueError, match="group and qid are neither given"):
        fitted.to_circuit(x, y, n_tables=5)


def test_c_gives_the_scores(fitted: LUTRanker) -> None:
    assert "lutetia_answer" in fitted.to_c()["model.c"]
    assert "lutetia_half_width" not in fitted.to_c()["model.h"]

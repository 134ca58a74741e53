"""Rankings: NDCG beside scikit-learn's, and the pull on each score beside a slow loop over all pairs of rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from lutetia._shared.losses import OWN, RANKING, Loss
from lutetia._shared.rankings import check_relevance, mean_ndcg, ndcg, queries_of, ranks_in
from lutetia.errors import ArgumentError, DataError
from lutetia.training.boosting import Boosting, boost, score
from lutetia.training.goals import Step
from lutetia.training.queries import split_queries
from lutetia.training.ranking import Rankings, measure_ranking
from lutetia.training.splits import RANDOM, Split
from lutetia.training.tabular import TabularRows


def drawn(seed: int, n: int = 120, queries: int = 9, levels: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Relevances, scores of which many are equal, and queries whose rows do not lie together."""
    random = np.random.default_rng(seed)
    return random.integers(0, levels, n).astype(float), random.integers(-6, 6, n) / 3, random.integers(0, queries, n) * 7 - 3


@pytest.mark.parametrize("at", [1, 5, 10, None])
def test_ndcg_is_that_of_scikit_learn(at: int | None) -> None:
    """Its relevances are gains, and rows of equal scores share their places."""
    for seed in range(5):
        y, scores, query = drawn(seed)
        for each, found in zip(np.unique(query), ndcg(y, scores, queries_of(query), at), strict=True):
            own = query == each
            expected = ndcg_score([2.0 ** y[own] - 1], [scores[own]], k=at)
            assert found == pytest.approx(expected, rel=1e-12)


def test_queries_without_a_relevant_row_are_not_counted() -> None:
    y, scores = np.array([0.0, 0, 0, 3, 1]), np.array([1.0, 2, 3, 1, 2])
    queries = queries_of(np.array([0, 0, 0, 1, 1]))
    found = ndcg(y, scores, queries)
    assert np.isnan(found[0])
    assert mean_ndcg(y, scores, queries) == found[1] < 1
    assert mean_ndcg(np.zeros(5), scores, queries) == 1


def test_queries_count_by_the_mean_weight_of_their_rows() -> None:
    """As LightGBM's NDCG does; a query of weight 0 does not count, as one without a relevant row."""
    y, scores, query = drawn(4)
    y[query == query[0]] = 0
    weight = np.random.default_rng(5).uniform(0, 3, len(y)).astype(np.float32)
    weight[query == query[1]] = 0
    total, counted = 0.0, 0.0
    for each in set(query.tolist()) - {int(query[0])}:
        own = query == each
        mean = sum(weight[own].tolist()) / own.sum()
        total += mean * ndcg_score([2.0 ** y[own] - 1], [scores[own]], k=10)
        counted += mean
    assert query[0] != query[1]
    queries = queries_of(query)
    assert mean_ndcg(y, scores, queries, weight=weight) == pytest.approx(total / counted, rel=1e-12)
    assert Rankings(y, weight, Loss(RANKING), queries=queries).loss(scores[:, None]) == pytest.approx(1 - total / counted)
    assert Loss(RANKING).measure(scores, y, weight, query) == pytest.approx(total / counted)
    assert measure_ranking(y, scores, query, weight)["ndcg_10"] == pytest.approx(total / counted)
    assert mean_ndcg(y, scores, queries, weight=np.zeros(len(y))) == 1


def test_a_query_that_counts_keeps_all_its_rows() -> None:
    """Queries of weight 0 are not held out in place of others."""
    weight, query = np.array([0, 1, 0, 0, 2], np.float32), np.array([7, 7, 3, 3, 5])
    rows = TabularRows(np.arange(5.0)[:, None], np.zeros(5), weight, Split("groups", query), query)
    assert rows.counted().x[:, 0].tolist() == [0, 1, 4]


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_whole_queries_are_the_latest(share: float) -> None:
    """None of them is before one that is fitted, by the last of its rows."""
    _, _, query = drawn(6, 200, 20)
    number, when = np.unique(query, return_inverse=True)[1], np.random.default_rng(7).integers(0, 1000, 200).astype(float)
    split = split_queries(Split("latest", when), number, query.tolist(), "when")
    own, held = split.parts(np.arange(200), int(200 * share))
    last = {side: [max(when[query == each]) for each in set(query[rows])] for side, rows in (("own", own), ("held", held))}
    assert len(last["own"]) + len(last["held"]) == len(set(query))
    assert max(last["own"]) < min(last["held"])
    assert abs(len(held) - 200 * share) <= 10


def test_groups_hold_whole_queries() -> None:
    query, user = np.array([0, 0, 1, 1, 2, 2]), np.array([1, 1, 0, 0, 1, 1])
    split = split_queries(Split("groups", user), query, list("aabbcc"), "user")
    assert (split.kind, split.key.tolist()) == ("groups", user.tolist())
    assert split_queries(RANDOM, query, list("aabbcc"), None).key.tolist() == query.tolist()
    user[3] = 1
    with pytest.raises(DataError, match=r"data\.split_by is 'user', which differs within the query 'b', expected whole queries"):
        split_queries(Split("groups", user), query, list("aabbcc"), "user")


def test_relevances_must_have_a_gain() -> None:
    check_relevance(np.array([0.0, 0.5, 30]))
    for bad in (-1.0, 31.0):
        with pytest.raises(ArgumentError, match=f"holds {bad:g}, expected relevances from 0 to 30"):
            check_relevance(np.array([1.0, bad]))


def test_ranks_begin_at_1_in_each_query() -> None:
    ranks = ranks_in(np.array([0.5, 2.0, 0.5, 1.0, 7.0]), queries_of(np.array([3, 3, 3, 3, 1])))
    assert ranks.tolist() == [3, 1, 3, 2, 1]


def slow_pulls(y: np.ndarray, scores: np.ndarray, query: np.ndarray, top: int = 30) -> tuple[list[float], list[float]]:
    """Pull and curvature of each row by the definition: NDCG before and after each exchange of two rows."""
    n = len(y)
    pull, curvature = [0.0] * n, [0.0] * n
    for each in set(query.tolist()):
        rows = [row for row in range(n) if query[row] == each]
        order = sorted(rows, key=lambda row: -scores[row])  # equal scores stay as they are
        ideal = sum((2 ** y[row] - 1) / math.log2(2 + at) for at, row in enumerate(sorted(rows, key=lambda row: -y[row])[:top]))
        if not ideal:
            continue
        apart = max(scores[rows]) > min(scores[rows])
        own, curved, total = dict.fromkeys(rows, 0.0), dict.fromkeys(rows, 0.0), 0.0
        for first in rows:
            for second in rows:
                if y[first] <= y[second] or min(order.index(first), order.index(second)) >= top:
                    continue
                swapped = [second if row == first else first if row == second else row for row in order]
                sums = [sum((2 ** y[row] - 1) / math.log2(2 + at) for at, row in enumerate(each)) for each in (order, swapped)]
                change = abs(sums[1] - sums[0]) / ideal
                ahead = scores[first] - scores[second]
                change /= (0.01 + abs(ahead)) if apart else 1
                chance = 1 / (1 + math.exp(ahead))
                own[first] += change * chance
                own[second] -= change * chance
                curved[first] += change * chance * (1 - chance)
                curved[second] += change * chance * (1 - chance)
                total += 2 * change * chance
        for row in rows if total else ():
            pull[row] = own[row] * math.log2(1 + total) / total
            curvature[row] = curved[row] * math.log2(1 + total) / total
    return pull, curvature


@pytest.mark.parametrize(("n", "queries", "is_flat"), [(60, 5, False), (60, 5, True), (45, 1, False), (3, 3, False)])
def test_pulls_are_those_of_all_pairs(n: int, queries: int, is_flat: bool) -> None:
    """One query of 45 rows has pairs outside of the 30 places that count."""
    y, scores, query = drawn(1, n, queries)
    scores = scores * (not is_flat)
    weight = np.random.default_rng(2).integers(0, 3, n).astype(np.float32)
    goal = Rankings(y, weight, Loss(RANKING), queries=queries_of(query))
    pull, curvature = goal.residuals(scores[:, None])
    assert curvature is not None
    for found, expected in zip((pull, curvature), slow_pulls(y, scores, query), strict=True):
        np.testing.assert_allclose(found[:, 0], np.array(expected) * weight, rtol=1e-9, atol=1e-15)


def test_rows_are_newton_steps() -> None:
    y, scores, query = drawn(3)
    goal = Rankings(y, np.ones(len(y), np.float32), Loss(RANKING), queries=queries_of(query))
    cells, rows = np.random.default_rng(0).integers(0, 4, len(y)), np.empty((5, 1))
    pull, curvature = goal.residuals(scores[:, None])
    goal.fill(cells, scores[:, None], (pull, curvature), Step(0.1, 2.0), rows)
    assert curvature is not None
    for row in range(4):
        own = cells == row
        expected = 0.1 * pull[own].sum() / (curvature[own].sum() + 40 * curvature.mean())
        assert rows[row, 0] == pytest.approx(expected)
    assert rows[4, 0] == 0


def test_queries_are_needed() -> None:
    rows = TabularRows(np.zeros((4, 1)), np.array([0.0, 1, 0, 1]), np.ones(4, np.float32))
    with pytest.raises(ArgumentError, match="query is None, expected the query of each row"):
        rows.goal(1, 1, Loss(RANKING))
    with pytest.raises(ArgumentError, match="query is None, expected the query of each row"):
        Loss(RANKING).measure(rows.y, rows.y)
    with pytest.raises(ArgumentError, match="function is None, expected the function that is the loss"):
        rows.goal(1, 1, Loss(OWN))


def test_tables_learn_an_order() -> None:
    """Rows of a query are ordered by one column; another, the same in all rows of a query, tells their relevance and no order."""
    random = np.random.default_rng(0)
    query = np.repeat(np.arange(40), 12)
    level, own = random.integers(0, 200, 40)[query], random.integers(0, 200, len(query))
    codes = np.stack([level, own]).astype(np.uint8)
    y = (own > 100).astype(float) + (own > 160) + (level > 100)
    goal = Rankings(y, np.ones(len(y), np.float32), Loss(RANKING), queries=queries_of(query))
    fitted = boost(codes, np.array([199, 199]), goal, Boosting(n_tables=20, n_anchors=3, candidates=16))
    scores = np.zeros((len(y), 1))
    score(codes, fitted.anchors, fitted.weight, scores)
    assert goal.loss(np.zeros((len(y), 1))) > 0.3
    assert goal.loss(scores) < 0.01
    assert fitted.losses["train"][-1] == pytest.approx(goal.loss(scores))

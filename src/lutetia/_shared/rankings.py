"""Orders of rows within queries, measured by NDCG (Järvelin and Kekäläinen, 2002).

A row of relevance r gains 2**r - 1, and place p, from 1, counts 1 / log2(p + 1) of that. NDCG@k is the sum over the first k
places as a part of that of the best order, so 1 is perfect. Rows with equal scores share what their places count, as if their
order were drawn, so that the order of a file is no help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lutetia._shared.compiled import jit
from lutetia.errors import ArgumentError

Array = np.ndarray[Any, Any]
AT = 10  # places that a ranking is measured by, where nothing else is said
MOST_RELEVANCE = 30.0  # a gain is 2**relevance - 1, so 30 stands for a billion


@dataclass(frozen=True, eq=False)
class Queries:
    """Rows by their queries: query q has the rows order[starts[q]:starts[q + 1]], which need not lie together; int64."""

    order: Array
    starts: Array

    def __len__(self) -> int:
        return len(self.starts) - 1


def queries_of(query: Array) -> Queries:
    """Queries, in the order of their values, from the query of each row [n]."""
    order = np.argsort(query, kind="stable").astype(np.int64)
    sorted_query = query[order]
    changes = np.flatnonzero(sorted_query[1:] != sorted_query[:-1]) + 1
    return Queries(order, np.concatenate([[0], changes, [len(order)]]).astype(np.int64))


def check_relevance(y: Array, name: str = "y") -> None:
    """Refuse relevances that have no gain: below 0, or above 30."""
    if len(y) and not (y.min() >= 0 and y.max() <= MOST_RELEVANCE):
        bad = float(y.min() if y.min() < 0 else y.max())
        raise ArgumentError(
            f"{name} holds {bad:.6g}, expected relevances from 0 to {MOST_RELEVANCE:g}: a row of relevance r gains 2**r - 1"
        )


def ndcg(relevance: Array, scores: Array, queries: Queries, at: int | None = AT) -> Array:
    """NDCG@at of each query, float64 [Q], of all places with None; NaN where no row is relevant, so that all orders are alike."""
    found = np.empty(len(queries))
    _ndcg(gains_of(relevance), scores.astype(np.float64), queries.order, queries.starts, len(scores) if at is None else at, found)
    return found


def mean_ndcg(relevance: Array, scores: Array, queries: Queries, at: int | None = AT, weight: Array | None = None) -> float:
    """The mean over the queries that have a relevant row; 1 where none has. Queries count by the mean weight of their rows, of
    which `weight` has one each [n]."""
    found = ndcg(relevance, scores, queries, at)
    counts = np.ones(len(found)) if weight is None else query_weights(weight, queries)
    counted = ~np.isnan(found) & (counts > 0)
    return float(np.average(found[counted], weights=counts[counted])) if counted.any() else 1.0


def query_weights(weight: Array, queries: Queries) -> Array:
    """How much each query counts, float64 [Q]: the mean weight of its rows, as in LightGBM."""
    sums = np.add.reduceat(weight[queries.order].astype(np.float64), queries.starts[:-1]) if len(weight) else np.zeros(0)
    return sums / np.diff(queries.starts)


def gains_of(relevance: Array) -> Array:
    """What rows of these relevances are worth."""
    return np.exp2(relevance.astype(np.float64)) - 1


def ranks_in(scores: Array, queries: Queries) -> Array:
    """The rank of each row within its query, int64 [n], from 1 for the highest score; equal scores have the same."""
    ranks = np.empty(len(scores), np.int64)
    for begin, end in zip(queries.starts[:-1], queries.starts[1:], strict=True):
        rows = queries.order[begin:end]
        own = -scores[rows]
        ranks[rows] = 1 + np.searchsorted(np.sort(own), own)
    return ranks


@jit(nogil=True)
def _ndcg(gains, scores, order, starts, at, found):  # type: ignore[no-untyped-def]
    for query in range(len(starts) - 1):
        rows = order[starts[query] : starts[query + 1]]
        own = gains[rows]
        best, places = np.sort(own)[::-1], np.argsort(-scores[rows])
        ideal = 0.0
        for place in range(min(at, len(rows))):
            ideal += best[place] / np.log2(place + 2.0)
        if ideal == 0:
            found[query] = np.nan
            continue
        total, first = 0.0, 0
        while first < min(at, len(rows)):
            last, gained, counted = first, 0.0, 0.0  # rows of one score, whose places are shared
            while last < len(rows) and scores[rows[places[last]]] == scores[rows[places[first]]]:
                gained += own[places[last]]
                counted += 1 / np.log2(last + 2.0) if last < at else 0.0
                last += 1
            total += gained / (last - first) * counted
            first = last
        found[query] = total / ideal

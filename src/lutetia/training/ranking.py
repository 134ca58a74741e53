"""What tables are fitted to where rows are to be ordered within queries: LambdaRank (Burges, "From RankNet to LambdaRank to
LambdaMART", 2010).

Each pair of rows of a query pulls the scores of the more relevant one up and of the other down: by the slope of RankNet's loss,
log(1 + exp(-d)) of the difference d of their scores, times how far NDCG would change if the two exchanged their places. As
LightGBM does it (its `lambdarank_norm`), that is divided by |d|, so that pairs far apart do not decide, and a query whose pulls
add up to s counts log2(1 + s), so that long queries do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from lutetia._shared.elementary import exp_double
from lutetia._shared.loops import U, entry, jit, jit_any_order, kernel
from lutetia._shared.rankings import AT, Queries, gains_of, mean_ndcg, ndcg, queries_of
from lutetia._shared.threads import spread
from lutetia.training.goals import Curved, Residuals, useful_threads

Array = np.ndarray[Any, Any]
TOP = 30  # places: a pair counts if one of its rows is there, and NDCG is that of these places
LEAST_APART = 0.01  # of two scores
FEW = 32  # rows that are sorted by insertion
MEASURED_AT = (5, AT)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rankings(Curved):
    """Relevances y float64 [n] of the rows of queries, each row with a weight float32 [n]; scores are what rows are sorted by."""

    queries: Queries
    more: ClassVar[float] = 20.0  # a pull depends on where all other rows of the query are now, so it is less certain

    def start(self) -> Array:
        """No score, float64 [1]: only differences count."""
        return np.zeros(1)

    def residuals(self, scores: Array) -> Residuals:
        """The pull of all pairs on each score, and its curvature: float64 [n, 1] each."""
        pull, curvature = np.zeros(len(scores)), np.zeros(len(scores))
        threads = useful_threads(len(scores), self.threads)
        spread(threads, len(self.queries), _pulls, self._ranked, np.ascontiguousarray(scores[:, 0]), pull, curvature)
        return (pull * self.weight)[:, None], (curvature * self.weight)[:, None]

    @cached_property
    def _ranked(self) -> tuple[Array, ...]:
        """What pulls need besides the scores: the gain of each row, the queries, what places count, and the best DCG of each."""
        order, starts = self.queries.order, self.queries.starts
        discounts = 1 / np.log2(np.arange(np.diff(starts).max(initial=0)) + 2.0)
        ideals = np.zeros(len(self.queries))
        _ideals(gains_of(self.y), order, starts, discounts, ideals)
        return gains_of(self.y), order, starts, discounts, ideals

    def loss(self, scores: Array) -> float:
        """What NDCG@10 lacks to 1, the mean over queries."""
        return 1 - mean_ndcg(self.y, scores[:, 0], self.queries)


def measure_ranking(y: Array, scores: Array, query: Array) -> dict[str, Any]:
    """NDCG@5 and NDCG@10 of scores [n] for relevances [n], the means over queries; the same of rows in an order by chance; and
    how many queries there are, and how many of them have no relevant row and are not counted."""
    queries, flat = queries_of(query), np.zeros(len(y))
    known: dict[str, Any] = {f"ndcg_{at}": mean_ndcg(y, scores, queries, at) for at in MEASURED_AT}
    known |= {f"chance_{at}": mean_ndcg(y, flat, queries, at) for at in MEASURED_AT}
    lacking = int(np.isnan(ndcg(y, flat, queries)).sum())
    return {
        "loss": 1 - known[f"ndcg_{AT}"],
        "measure": f"ndcg_{AT}",
        **known,
        "queries": len(queries),
        "without_relevant": lacking,
    }


# ---- loops -----------------------------------------------------------------------------------------------------------


@entry
def _ideals(gains, order, starts, discounts, ideals):
    """The DCG of the best order of each query, of the first places: ideals [Q]."""
    for query in range(len(ideals)):
        best = np.sort(gains[order[starts[query] : starts[query + 1]]])[::-1]
        for place in range(min(TOP, len(best))):
            ideals[query] += best[place] * discounts[place]


@kernel
def _pulls(ranked, scores, pull, curvature, begin, end):
    """The pulls on the scores [n] of a range of queries, and their curvature, [n] each."""
    gains, order, starts, discounts, ideals = ranked
    longest = 0
    for query in range(begin, end):
        longest = max(longest, starts[query + 1] - starts[query])
    room = np.empty((6, longest))
    for query in range(begin, end):
        if ideals[query] > 0:
            rows = order[starts[query] : starts[query + 1]]
            _pull_query(rows, gains, scores, discounts, ideals[query], room)
            for place in range(len(rows)):
                row = U(rows[place])
                pull[row], curvature[row] = room[0, place], room[1, place]


@jit
def _pull_query(rows, gains, scores, discounts, ideal, room):
    """The pulls on the rows of a query and their curvature, room[0] and room[1]; the rest of it [6, rows] is used up."""
    n = len(rows)
    own, other, curved, pulled = room[2, :n], room[3, :n], room[4, :n], room[5, :n]
    places = _descending(rows, scores)
    for place in range(n):
        own[place], other[place] = scores[rows[places[place]]], gains[rows[places[place]]]
        curved[place], pulled[place] = 0.0, 0.0
    is_apart, total = own[0] > own[n - 1], 0.0
    force, bend = room[0, :n], room[1, :n]  # of the pairs of one row, those below it
    for high in range(min(TOP, n)):
        for low in range(U(high + 1), U(n)):
            apart, gain = own[high] - own[low], other[high] - other[low]
            change = abs(gain) * (discounts[high] - discounts[low]) / ideal
            change /= LEAST_APART + apart if is_apart else 1.0
            power = exp_double(-apart)
            wrong = (power if gain > 0 else 1.0) / (1 + power)  # the chance that RankNet gives the wrong order
            force[low] = change * wrong if gain > 0 else -change * wrong
            bend[low] = change * wrong * (1 - wrong)
        for low in range(U(high + 1), U(n)):
            pulled[low] -= force[low]
            curved[low] += bend[low]
        pulled[high] += _sum(force[high + 1 :])
        curved[high] += _sum(bend[high + 1 :])
        total += 2 * _sum_of_sizes(force[high + 1 :])
    factor = np.log2(1 + total) / total if total > 0 else 1.0
    for place in range(n):
        force[places[place]], bend[places[place]] = factor * pulled[place], factor * curved[place]


@jit
def _descending(rows, scores):
    """The places of rows by their scores, the highest first; of equal ones the first."""
    if len(rows) > FEW:
        return np.argsort(-scores[rows], kind="mergesort")
    places = np.empty(len(rows), np.int64)
    for number in range(len(rows)):
        place = number
        while place > 0 and scores[rows[places[place - 1]]] < scores[rows[number]]:
            places[place] = places[place - 1]
            place -= 1
        places[place] = number
    return places


@jit_any_order
def _sum(values):
    total = 0.0
    for place in range(len(values)):
        total += values[place]
    return total


@jit_any_order
def _sum_of_sizes(values):
    total = 0.0
    for place in range(len(values)):
        total += abs(values[place])
    return total

"""What tables are fitted to where rows are to be ordered within queries: LambdaRank (Burges, "From RankNet to LambdaRank to
LambdaMART", 2010).

Each pair of rows of a query pulls the scores of the more relevant one up and of the other down: by the slope of RankNet's loss,
log(1 + exp(-d)) of the difference d of their scores, times how far NDCG would change if the two exchanged their places. As
LightGBM does it (its `lambdarank_norm`), that is divided by |d|, so that pairs far apart do not decide, and a query whose pulls
add up to s counts log2(1 + s), so that long queries do not. Last, the pull on a row is multiplied by its weight, as there; where
all rows of a query weigh the same, that is the weight of the query, as XGBoost has it.
"""

# mypy: disable-error-code=no-untyped-def

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
MOST_STEPS = np.uint64(32)  # of a sort by insertion, for each row
OWN, GAIN, PULL, CURVATURE, FORCE, BEND = (np.uint64(k) for k in range(6))  # of the rows of a query, while pairs are added up
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
        """What pulls need besides the scores: the gain of each row, the rows of the queries in the order of the last scores, what
        places count, and the best DCG of each query."""
        order, starts = self.queries.order, self.queries.starts
        discounts = 1 / np.log2(np.arange(np.diff(starts).max(initial=0)) + 2.0)
        ideals = np.zeros(len(self.queries))
        _ideals(gains_of(self.y), order, starts, discounts, ideals)
        return gains_of(self.y), order.copy(), starts, discounts, ideals

    def loss(self, scores: Array) -> float:
        """What NDCG@10 lacks to 1, the mean over queries."""
        return 1 - mean_ndcg(self.y, scores[:, 0], self.queries, weight=self.weight)


def measure_ranking(y: Array, scores: Array, query: Array, weight: Array | None = None) -> dict[str, Any]:
    """NDCG@5 and NDCG@10 of scores [n] for relevances [n], the means over queries, which count by the mean weight of their rows;
    the same of rows in an order by chance; and how many queries there are, and how many of them have no relevant row and are
    not counted."""
    queries, flat = queries_of(query), np.zeros(len(y))
    known: dict[str, Any] = {f"ndcg_{at}": mean_ndcg(y, scores, queries, at, weight) for at in MEASURED_AT}
    known |= {f"chance_{at}": mean_ndcg(y, flat, queries, at, weight) for at in MEASURED_AT}
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
    gains, rows, starts, discounts, ideals = ranked
    longest = 0
    for query in range(begin, end):
        longest = max(longest, starts[query + 1] - starts[query])
    room = np.empty((6, longest))
    for query in range(begin, end):
        if ideals[query] > 0:
            first, n = U(starts[query]), U(starts[query + 1] - starts[query])
            _sort(rows, first, n, scores, room)
            for place in range(n):
                room[GAIN, place] = gains[U(rows[first + place])]
                room[PULL, place], room[CURVATURE, place] = 0.0, 0.0
            factor = _pull_query(n, discounts, ideals[query], room)
            for place in range(n):
                row = U(rows[first + place])
                pull[row], curvature[row] = factor * room[PULL, place], factor * room[CURVATURE, place]


@jit
def _sort(rows, first, n, scores, room):
    """Sort the rows of a query by their scores, the highest first, of equal ones the first row; with their scores.

    They lie as the last table left them, nearly in order: so by insertion, unless that takes too many steps.
    """
    left = MOST_STEPS * n
    for number in range(n):
        row, place = rows[first + number], number
        score = scores[U(row)]
        while place > 0:
            other, before = rows[first + place - U(1)], room[OWN, place - U(1)]
            if before > score or (before == score and other < row):
                break
            rows[first + place], room[OWN, place] = other, before
            place -= U(1)
            left -= U(1) if left > 0 else U(0)
        rows[first + place], room[OWN, place] = row, score
        if left == 0:
            break
    if left == 0:
        own = np.sort(rows[first : first + n])
        places = np.argsort(-scores[own], kind="mergesort")
        for place in range(n):
            rows[first + place] = own[U(places[place])]
            room[OWN, place] = scores[U(rows[first + place])]


@jit
def _pull_query(n, discounts, ideal, room):
    """The pulls of the pairs of n rows in order, added up, and their curvature; returns by what they are to be multiplied."""
    is_apart, total = room[OWN, U(0)] > room[OWN, n - U(1)], 0.0
    least, times = (LEAST_APART, 1.0) if is_apart else (1.0, 0.0)
    for high in range(min(U(TOP), n)):
        score, gain, discount = room[OWN, high], room[GAIN, high], discounts[high]
        for low in range(high + U(1), n):
            apart, more = score - room[OWN, low], gain - room[GAIN, low]
            power, distance = exp_double(-apart), least + times * apart
            change = more * (discount - discounts[low]) / (ideal * distance * (1 + power))
            part = power if more > 0 else 1.0  # over 1 + power, the chance that RankNet gives the wrong order
            room[FORCE, low] = change * part
            room[BEND, low] = abs(change) * power / (1 + power)
        for low in range(high + U(1), n):
            room[PULL, low] -= room[FORCE, low]
            room[CURVATURE, low] += room[BEND, low]
        pulled, curved, size = _sums(room, high + U(1), n)
        room[PULL, high] += pulled
        room[CURVATURE, high] += curved
        total += 2 * size
    return np.log2(1 + total) / total if total > 0 else 1.0


@jit_any_order
def _sums(room, begin, end):
    """Σ of the forces, of the bends, and of the sizes of the forces."""
    force, bend, size = 0.0, 0.0, 0.0
    for place in range(begin, end):
        force += room[FORCE, place]
        bend += room[BEND, place]
        size += abs(room[FORCE, place])
    return force, bend, size

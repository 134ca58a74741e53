"""What tables are fitted to where rows are to be ordered within queries: LambdaRank (Burges, "From RankNet to LambdaRank to
LambdaMART", 2010).

Each pair of rows of a query pulls the scores of the more relevant one up and of the other down: by the slope of RankNet's loss,
log(1 + exp(-d)) of the difference d of their scores, times how far NDCG would change if the two exchanged their places. As
LightGBM does it (its `lambdarank_norm`), that is divided by |d|, so that pairs far apart do not decide, and a query whose pulls
add up to s counts log2(1 + s), so that long queries do not. Last, the pull on a row is multiplied by its weight, as there; where
all rows of a query weigh the same, that is the weight of the query, as XGBoost has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lutetia._shared.compiled import jit
from lutetia._shared.rankings import AT, Queries, gains_of, mean_ndcg, ndcg, queries_of
from lutetia.training.goals import Curved, Residuals

Array = np.ndarray[Any, Any]
TOP = 30  # places: a pair counts if one of its rows is there, and NDCG is that of these places
LEAST_APART = 0.01  # of two scores
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
        pull, curvature = np.zeros_like(scores), np.zeros_like(scores)
        order, starts = self.queries.order, self.queries.starts
        _pulls(gains_of(self.y), np.ascontiguousarray(scores[:, 0]), order, starts, pull[:, 0], curvature[:, 0])
        return pull * self.weight[:, None], curvature * self.weight[:, None]

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


@jit(nogil=True)
def _pulls(gains, scores, order, starts, pull, curvature):  # type: ignore[no-untyped-def]
    for query in range(len(starts) - 1):
        rows = order[starts[query] : starts[query + 1]]
        best = np.sort(gains[rows])[::-1]
        ideal = 0.0
        for place in range(min(TOP, len(rows))):
            ideal += best[place] / np.log2(place + 2.0)
        if ideal == 0:
            continue
        places = np.argsort(-scores[rows], kind="mergesort")
        is_apart, total = scores[rows[places[0]]] > scores[rows[places[-1]]], 0.0
        for high in range(min(TOP, len(rows))):
            for low in range(high + 1, len(rows)):
                more, less = rows[places[high]], rows[places[low]]
                if gains[more] == gains[less]:
                    continue
                if gains[more] < gains[less]:
                    more, less = less, more
                ahead = scores[more] - scores[less]
                change = (gains[more] - gains[less]) * (1 / np.log2(high + 2.0) - 1 / np.log2(low + 2.0)) / ideal
                change /= LEAST_APART + abs(ahead) if is_apart else 1.0
                chance = 1 / (1 + np.exp(ahead))  # that RankNet gives the wrong order
                pull[more] += change * chance
                pull[less] -= change * chance
                curvature[more] += change * chance * (1 - chance)
                curvature[less] += change * chance * (1 - chance)
                total += 2 * change * chance
        if total > 0:
            pull[rows] *= np.log2(1 + total) / total
            curvature[rows] *= np.log2(1 + total) / total

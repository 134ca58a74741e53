"""`LUTRanker`: tables whose sum is a score to sort the rows of a query by."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils import assert_all_finite, check_consistent_length, column_or_1d

from lutetia._shared.losses import RANKING, Loss
from lutetia._shared.rankings import AT, check_relevance, mean_ndcg, queries_of
from lutetia.sklearn.base import Array
from lutetia.sklearn.boosted import PARAMS, BoostedEstimator
from lutetia.sklearn.checks import check_params
from lutetia.training import Split, TabularRows

if TYPE_CHECKING:
    from lutetia.precompute import Build


class LUTRanker(BoostedEstimator):
    """A ranker of lookup tables, fitted by LambdaRank to NDCG; its parameters are those of `LUTClassifier`.

    Rows belong to queries, and their relevance, from 0 to 30, says which of a query are to come first: a row of relevance r gains
    2**r - 1. `fit` takes the queries as `group`, the number of rows of each query one after another, as LightGBM does, or as
    `qid`, the query of each row, as XGBoost does; rows of a query need not lie together. `predict` gives scores, which mean
    nothing but the order of the rows of a query. `sample_weight` has a weight for each row, which multiplies what moves it as in
    LightGBM, or one for each query, as in XGBoost; in NDCG a query counts by the mean weight of its rows. A tenth of the queries
    decides how many tables there are: early_stopping="auto", which is on from 50 queries.
    """

    def __init__(
        self,
        n_tables: int = 2000,
        n_anchors: int = 6,
        *,
        learning_rate: float = 0.1,
        candidates: int = 64,
        pairs: float = 0.25,
        max_rows: int = 8192,
        smoothing: float = 1.0,
        max_bins: int = 255,
        categorical_features: Any = "from_dtype",
        text_features: Any = "auto",
        handle_unknown: str = "error",
        monotonic_cst: Any = None,
        interaction_cst: Any = None,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_tables, self.n_anchors, self.learning_rate = n_tables, n_anchors, learning_rate
        self.candidates, self.pairs, self.max_rows, self.smoothing = candidates, pairs, max_rows, smoothing
        self.max_bins, self.categorical_features, self.handle_unknown = max_bins, categorical_features, handle_unknown
        self.monotonic_cst, self.interaction_cst = monotonic_cst, interaction_cst
        self.early_stopping, self.validation_fraction = early_stopping, validation_fraction
        self.n_iter_no_change, self.random_state, self.n_jobs, self.verbose = n_iter_no_change, random_state, n_jobs, verbose
        self.text_features = text_features

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        eval_set: Any = None,
        *,
        group: Any = None,
        qid: Any = None,
        eval_group: Any = None,
        eval_qid: Any = None,
    ) -> Self:
        """Fit to X [n, columns] and relevances y [n] of the rows of queries: `group` or `qid` says which.

        An `eval_set` (X, y) has its own `eval_group` or `eval_qid`, alone or in a list. A weight counts for its row in all pairs.
        """
        check_params(self, PARAMS)
        rows = self._rows(X, y, None)
        query = query_numbers(len(rows.y), group, qid)
        rows = self._in_queries(rows, query, sample_weight)
        if len(np.unique(query)) == len(query):
            raise ValueError("every row has a query of its own, expected rows that share one: there is nothing to order")
        if eval_set is None:
            _refuse("without eval_set", eval_group=eval_group, eval_qid=eval_qid)
        else:
            more_x, more_y, *weight = self._only_set(eval_set)
            held = self._more_rows(more_x, more_y)
            own = query_numbers(len(held.y), _only(eval_group), _only(eval_qid), "eval_")
            eval_set = self._in_queries(held, own, *weight)
        self._fit(rows, 1, eval_set)
        return self

    @property
    def _loss(self) -> Loss:
        return Loss(RANKING)

    def to_circuit(
        self, X: Any = None, y: Any = None, sample_weight: Any = None, *, group: Any = None, qid: Any = None, **options: Any
    ) -> Build:
        """As `LUTClassifier.to_circuit`, with the queries of training data, X and y, as `group` or `qid`."""
        rows = None if y is None else self._more_rows(X, y)
        if rows is not None:
            rows = self._in_queries(rows, query_numbers(len(rows.y), group, qid), sample_weight)
        return super().to_circuit(X, rows, **options)

    def _target(self, y: Any, reset: bool = False) -> Array:
        y = column_or_1d(y, warn=True)
        if y.dtype.kind in "OUS":
            y = y.astype(np.float64)
        assert_all_finite(y, input_name="y", estimator_name=type(self).__name__)
        check_relevance(y, "y" if reset else "y of eval_set")
        return y.astype(np.float64)

    def predict(self, X: Any) -> Array:
        """The score of each row, float64 [n]: the higher, the sooner a row comes within its query."""
        return self._scores(X)[:, 0].astype(np.float64)

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, *, group: Any = None, qid: Any = None, at: int | None = AT
    ) -> float:
        """The mean NDCG@at over the queries that have a relevant row; of all places with at=None.

        Equal scores share their places. scikit-learn's `ndcg_score` of the gains 2**y - 1 gives the same. With `sample_weight` a
        query counts by the mean weight of its rows.
        """
        y = self._target(y, reset=True)
        scores = self.predict(X)
        check_consistent_length(scores, y)
        query = query_numbers(len(y), group, qid)
        weight = None if sample_weight is None else self._weights(row_weights(sample_weight, query), scores)
        return mean_ndcg(y, scores, queries_of(query), at, weight)

    def _in_queries(self, rows: TabularRows, query: Array, sample_weight: Any = None) -> TabularRows:
        """Rows with the number of the query of each, [n], and their weights, held out by whole queries."""
        weight = self._weights(row_weights(sample_weight, query), rows.x)
        return replace(rows, weight=weight, query=query, split=Split("groups", query))

    def _describe_target(self) -> dict[str, Any]:
        return {"task": "ranking"}


def row_weights(sample_weight: Any, query: Array) -> Any:
    """The weights of rows, from these or from one for each query, in the order in which queries first come; `query` [n] are their
    numbers."""
    first, number = np.unique(query, return_index=True, return_inverse=True)[1:]
    if sample_weight is None or np.shape(sample_weight) != first.shape:
        return sample_weight
    return np.asarray(sample_weight)[np.argsort(np.argsort(first))][number]


def query_numbers(n: int, group: Any, qid: Any, prefix: str = "") -> Array:
    """The number of the query of each of n rows, int64 [n], from the sizes of groups or from the name of each row's query."""
    names = f"{prefix}group", f"{prefix}qid"
    if (group is None) == (qid is None):
        found = "both" if group is not None else "neither"
        raise ValueError(f"{names[0]} and {names[1]} are {found} given, expected one: sizes of queries, or the query of each row")
    if qid is not None:
        values = column_or_1d(qid)
        if len(values) != n:
            raise ValueError(f"{names[1]} holds {len(values)} rows, expected {n}, one for each row of X")
        if any(value is None or value != value for value in values):
            raise ValueError(f"{names[1]} holds a missing value, expected the query of each row")
        return np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)[1].astype(np.int64)
    sizes = column_or_1d(group)
    if sizes.dtype.kind not in "iu" or (len(sizes) and sizes.min() < 1) or sizes.sum() != n:
        raise ValueError(f"{names[0]} is {_short(sizes)}, expected whole numbers above 0 whose sum is {n}, the rows of X")
    return np.repeat(np.arange(len(sizes)), sizes)


def _only(given: Any) -> Any:
    """What LightGBM and XGBoost are given in a list of one."""
    return given[0] if isinstance(given, list) and len(given) == 1 and not np.isscalar(given[0]) else given


def _refuse(why: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} is given {why}, expected None")


def _short(values: Array) -> str:
    shown = ", ".join(map(str, values[:5].tolist()))
    return f"[{shown}{', ..' if len(values) > 5 else ''}]"

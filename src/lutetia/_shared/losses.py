"""What the numbers of a regression are fitted to, and measured by.

squared_error    the prediction is the mean; measured by the root of the mean squared error
absolute_error   the median; the mean absolute error
quantile         the number that a part `quantile` of all rows stays below; the mean pinball loss
poisson          the mean of counts and amounts, never negative: exp of the sum of the tables; the mean Poisson deviance

Scores that order the rows of a query are fitted by "lambdarank" (`lutetia.training.ranking`) and measured by NDCG. A loss of the
user's own, "own", is a function (`lutetia.training.own_loss`), which no folder holds: its models are measured by squared errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lutetia.errors import ArgumentError, check_choice, fail

Array = np.ndarray[Any, Any]
LOSSES = ("squared_error", "absolute_error", "quantile", "poisson")
RANKING, OWN = "lambdarank", "own"
# By name: the key and the noun of what a model is measured by; the root of the squared error is meant.
MEASURES = {
    "squared_error": ("rmse", "RMSE"),
    "absolute_error": ("mae", "mean absolute error"),
    "quantile": ("pinball", "pinball loss"),
    "poisson": ("deviance", "Poisson deviance"),
    RANKING: ("ndcg_10", "NDCG@10"),
    OWN: ("rmse", "RMSE"),
}
NOUNS = dict(MEASURES.values())
ERRORS = NOUNS.keys() - {MEASURES[RANKING][0]}  # the less, the better


@dataclass(frozen=True)
class Loss:
    """A loss of numbers by its name; `quantile` is for "quantile" alone, and the `function` for "own", where it is at hand."""

    name: str = "squared_error"
    quantile: float | None = None
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_choice("loss", self.name, (*LOSSES, RANKING, OWN))
        if self.name != "quantile" and self.quantile is not None:
            fail("quantile", self.quantile, f'None with loss="{self.name}"')
        is_number = isinstance(self.quantile, int | float) and not isinstance(self.quantile, bool)
        if self.name == "quantile" and not (is_number and 0 < self.level < 1):
            fail("quantile", self.quantile, 'a number between 0 and 1 with loss="quantile"')

    @property
    def level(self) -> float:
        """The quantile that is predicted, where it is one: the median for absolute errors."""
        return 0.5 if self.quantile is None else float(self.quantile)

    @property
    def key(self) -> str:
        """The name of its measure in a JSON document."""
        return MEASURES[self.name][0]

    @property
    def noun(self) -> str:
        """The name of its measure for readers."""
        return MEASURES[self.name][1]

    @property
    def is_log(self) -> bool:
        """Whether the tables add up to the logarithm of the prediction."""
        return self.name == "poisson"

    @property
    def is_own(self) -> bool:
        """Whether it is a function of the user's own."""
        return self.name == OWN

    @property
    def measured(self) -> Loss:
        """The loss that a model is measured by: its own, or squared errors where that is not known."""
        return Loss() if self.is_own else self

    @property
    def is_ranking(self) -> bool:
        """Whether the tables add up to scores that mean nothing but the order of rows."""
        return self.name == RANKING

    @property
    def has_intervals(self) -> bool:
        """Whether a prediction is the middle of an interval; a quantile is an end, and a score has no truth to be off from."""
        return self.name not in ("quantile", RANKING)

    def numbers(self, sums: Array) -> Array:
        """Predictions from the sums of the tables, float64."""
        sums = np.asarray(sums, np.float64)
        return np.exp(sums) if self.is_log else sums

    def check_target(self, y: Array, name: str = "y") -> None:
        """Refuse numbers that cannot be fitted: below 0, or all 0, of counts."""
        self.check_sign(y, name)
        if self.is_log and len(y) and not (y > 0).any():
            raise ArgumentError(f'{name} is 0 in every row, expected a number above 0 in some with loss="poisson"')

    def check_sign(self, y: Array, name: str = "y") -> None:
        """Refuse numbers that are never predicted: below 0, of counts."""
        if self.is_log and len(y) and (y < 0).any():
            raise ArgumentError(f'{name} holds {float(y.min()):.6g}, expected numbers of at least 0 with loss="poisson"')

    def mean(self, predicted: Array, y: Array, weight: Array | None = None) -> float:
        """The mean loss of predictions [n] of y [n]."""
        error = y - predicted
        if self.measured.name == "squared_error":
            each = error**2
        elif self.name == "absolute_error":
            each = np.abs(error)
        elif self.name == "quantile":
            each = np.maximum(self.level * error, (self.level - 1) * error)
        else:
            some = np.where(y > 0, y, 1.0)
            each = 2 * (np.where(y > 0, y * np.log(some / predicted), 0.0) - error)
        return float(np.average(each, weights=weight))

    def measure(self, predicted: Array, y: Array, weight: Array | None = None, query: Array | None = None) -> float:
        """What a model is measured by: the mean loss, or its root for squared errors; of scores NDCG@10, by the query of each
        row."""
        if self.is_ranking:
            from lutetia._shared.rankings import mean_ndcg, queries_of

            if query is None:
                fail("query", query, "the query of each row, as the model ranks rows")
            return mean_ndcg(y, predicted, queries_of(query), weight=weight)
        mean = self.mean(predicted, y, weight)
        return mean**0.5 if self.measured.name == "squared_error" else mean

    def explained(self, predicted: Array, y: Array, weight: Array | None = None) -> float:
        """The part of the loss of the best constant that predictions avoid: R² of squared errors, D² of the others."""
        is_mean = self.measured.name in ("squared_error", "poisson")
        constant = np.average(y, weights=weight) if is_mean else _quantile(y, self.level, weight)
        if self.is_log and not constant > 0:
            return 0.0
        most = self.mean(np.full(len(y), constant), y, weight)
        return 1 - self.mean(predicted, y, weight) / most if most > 0 else 0.0


def _quantile(y: Array, level: float, weight: Array | None) -> float:
    """A quantile of numbers y [n], which count by their weights."""
    if weight is None:
        return float(np.quantile(y, level))
    order = np.argsort(y, kind="stable")
    below = np.cumsum(weight[order], dtype=np.float64)
    return float(y[order[np.searchsorted(below, level * below[-1] * (1 - 1e-12))]])

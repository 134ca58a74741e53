"""`LUTOutlierDetector`: tables whose sum says how unusual a row is."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import OutlierMixin

from lutetia.models import UNUSUAL, UNUSUAL_CLASSES, rarity
from lutetia.sklearn.base import Array, TabularEstimator
from lutetia.sklearn.checks import check_params
from lutetia.sklearn.explanation import Explanation
from lutetia.training import (
    UNUSUAL_ANCHORS,
    UNUSUAL_SHARE,
    UNUSUAL_TABLES,
    TabularRows,
    fit_unusual,
    unusual_settings,
)

PARAMS: dict[str, tuple[type | tuple[type, ...], float, float]] = {"n_tables": (int, 1, np.inf), "n_anchors": (int, 1, 12)}


class LUTOutlierDetector(OutlierMixin, TabularEstimator):
    """Finds unusual rows by lookup tables, with the methods of scikit-learn's outlier detectors.

    Half of the `n_tables` tables count how few samples answer `n_anchors` random comparisons alike; the others tell the samples
    from rows that are made up of them. Fit it to usual rows, and it finds unusual ones among new rows; or to rows of which a few
    are unusual. `contamination` is the part of the samples that it flags, and as everywhere more of new rows: these it has not
    seen. With "auto" it flags one in a hundred new rows that are like the samples: up to five more fits, each without a part of
    the samples, say from which score on.

    Missing values are a value of their own. Columns of categories: see `LUTClassifier`; with handle_unknown="missing" a category
    that was not fitted counts as missing. `offset_` is 0: the limit is in the tables, also of C and circuits.
    """

    early_stopping = False

    def __init__(
        self,
        n_tables: int = UNUSUAL_TABLES,
        n_anchors: int = UNUSUAL_ANCHORS,
        *,
        contamination: float | str = 0.01,
        categorical_features: Any = "from_dtype",
        handle_unknown: str = "missing",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_tables, self.n_anchors, self.contamination = n_tables, n_anchors, contamination
        self.categorical_features, self.handle_unknown = categorical_features, handle_unknown
        self.random_state, self.n_jobs = random_state, n_jobs

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to X [n, columns], two rows or more; y is not used."""
        check_params(self, PARAMS)
        share, is_auto = self.contamination, isinstance(self.contamination, str) and self.contamination == "auto"
        is_number = isinstance(share, int | float | np.number) and not isinstance(share, bool)
        if not is_auto and not (is_number and 0 < float(share) <= 0.5):
            raise ValueError(f'contamination is {share!r}, expected "auto" or a number above 0, 0.5 at most')
        matrix, _ = self._parts(X, reset=True)
        if len(matrix) < 2:
            raise ValueError(f"X holds n_samples = {len(matrix)}, expected 2 or more")
        settings = unusual_settings(self.n_tables, self.n_anchors, self._seed(), self._threads())
        shape = self._shape(len(UNUSUAL_CLASSES))
        wanted = UNUSUAL_SHARE if is_auto else float(share)
        model = fit_unusual(matrix, shape, settings, wanted, of_fitted=not is_auto)
        rows = TabularRows(matrix, np.zeros(len(matrix)), np.ones(len(matrix), np.float32))
        model.metadata |= {**self._describe_data(rows), "task": UNUSUAL, "classes": list(UNUSUAL_CLASSES)}
        self.model_, self.n_tables_, self.offset_ = model, self.n_tables, 0.0
        return self

    def decision_function(self, X: Any) -> Array:
        """How usual each row is, float64 [n]: below 0 where it is flagged. To four places, as sums are rounded beyond them."""
        scores = self._scores(X).astype(np.float64)
        return np.round(scores[:, 0] - scores[:, 1], 4)

    def score_samples(self, X: Any) -> Array:
        """The same as `decision_function`."""
        return self.decision_function(X)

    def predict(self, X: Any) -> Array:
        """1 for usual rows, -1 for those that are flagged, int64 [n]."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def rarity(self, X: Any) -> Array:
        """The part of usual rows that are less unusual than each row, float64 [n]: of rows that were fitted, or with
        contamination="auto" of others."""
        return rarity(self.model_.metadata, -self.decision_function(X))

    def explain(
        self, X: Any, *, target: Any = UNUSUAL_CLASSES[1], rule: str | None = None, background: Any = None
    ) -> Explanation:
        """Which columns and comparisons made each row unusual: above 0 where they did. See `LUTClassifier.explain`."""
        return super().explain(X, target=target, rule=rule, background=background)

    def _class_number(self, target: Any) -> int:
        if target not in UNUSUAL_CLASSES:
            raise ValueError(f"target is {target!r}, expected one of {', '.join(map(repr, UNUSUAL_CLASSES))}")
        return UNUSUAL_CLASSES.index(target)

    def _restore(self, model: Any, state: dict[str, Any]) -> None:
        super()._restore(model, state)
        self.offset_ = 0.0

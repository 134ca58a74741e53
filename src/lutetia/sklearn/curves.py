"""What each column does to the predictions of an estimator, in all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sklearn.utils.validation import check_is_fitted

if TYPE_CHECKING:
    from lutetia.report import Curves


class WithCurves:
    """An estimator of tables, whose columns have curves."""

    def curves(self, X: Any) -> Curves:
        """What each column does to the prediction in all rows, and with interaction_cst="pairwise" each two columns; X holds rows
        to average over, such as those that were fitted.

        With interaction_cst="no_interactions" or "pairwise" curves and pairs are the whole model. Without, a curve is the mean
        over 128 rows of X (partial dependence). The result has `to_text()`, `to_html()` and `to_dict()`; a notebook draws it.
        """
        from lutetia.report import find_curves

        check_is_fitted(self, "model_")
        return find_curves(self.model_, torch.from_numpy(self._matrix(X)))  # type: ignore[attr-defined]

"""Can tables be fitted here? Run as a separate program: one small fit of each kind, then `ok` on the standard output."""

from typing import Any

import numpy as np

from lutetia.sklearn import LUTClassifier, LUTRanker, LUTRegressor
from lutetia.training import Boosting, Shape, TabularRows, fit_tabular


def main() -> None:
    x = np.arange(64.0)[:, None]
    small: dict[str, Any] = {"n_tables": 8, "n_anchors": 2, "candidates": 64, "random_state": 0, "n_jobs": 1}
    assert LUTClassifier(**small).fit(x, x[:, 0] > 20).score(x, x[:, 0] > 20) > 0.9, "a fit of classes"
    number = LUTRegressor(**small, intervals=True, monotonic_cst=[1], early_stopping=False).fit(x, x[:, 0] + x[:, 0] % 7)
    assert np.diff(number.predict(x)).min() >= 0, "a monotonic constraint"
    low, high = number.predict_interval(x).T
    assert (low < high).all(), "an interval"
    assert LUTRanker(**small).fit(x, x[:, 0] // 16, group=[8] * 8).score(x, x[:, 0] // 16, group=[8] * 8) > 0.9, "a ranking"
    images, n = np.random.default_rng(0).integers(0, 9, (40, 64)).astype(np.float64), 40
    rows = TabularRows(images, np.arange(n) % 2, np.ones(n, np.float32))
    model, _ = fit_tabular(rows, Shape(2, (0,) * 64, (8, 8)), Boosting(n_tables=4, n_anchors=2, candidates=8, patches=True))
    assert model.patches is not None, "patterns in images"
    print("ok")


if __name__ == "__main__":
    main()

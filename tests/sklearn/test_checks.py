"""scikit-learn's own checks of estimators: all of them, none left out."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from lutetia.sklearn import GateClassifier, LUTClassifier, LUTOutlierDetector, LUTRegressor

SMALL = {"n_tables": 20, "candidates": 16, "n_jobs": 1}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """scikit-learn removes the folders of its memory maps at exit, which a process that is killed never reaches."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


OTHERS = {"absolute_error": None, "quantile": 0.3, "poisson": None}  # losses, with their quantiles


@parametrize_with_checks([LUTClassifier(**SMALL), LUTRegressor(**{**SMALL, "n_tables": 40})])
def test_tables(estimator: Any, check: Any) -> None:
    check(estimator)


def _not_for(estimator: Any) -> dict[str, str]:
    """scikit-learn's check of several targets has numbers below 0, whatever the tags say."""
    return {"check_regressor_multioutput": "counts are never negative"} if estimator.loss == "poisson" else {}


@parametrize_with_checks(
    [LUTRegressor(**{**SMALL, "n_tables": 40}, loss=name, quantile=q) for name, q in OTHERS.items()],
    expected_failed_checks=_not_for,
)
def test_losses(estimator: Any, check: Any) -> None:
    check(estimator)


@parametrize_with_checks([LUTOutlierDetector(n_tables=20, n_anchors=5, n_jobs=1)])
def test_outliers(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([GateClassifier(n_tables=100, max_epochs=15, n_thresholds=7, n_jobs=1)])
def test_gates(estimator: Any, check: Any) -> None:
    check(estimator)

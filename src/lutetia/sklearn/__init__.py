"""Estimators for tables of data, with scikit-learn's methods: `LUTClassifier`, `LUTRegressor`, `LUTRanker`,
`GateClassifier`.

scikit-learn is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lutetia.errors import require

if TYPE_CHECKING:
    from lutetia.report import Comparison
    from lutetia.sklearn.boosted import LUTClassifier, LUTRegressor
    from lutetia.sklearn.explanation import Explanation
    from lutetia.sklearn.gates import GateClassifier
    from lutetia.sklearn.ranker import LUTRanker

__all__ = ["Comparison", "Explanation", "GateClassifier", "LUTClassifier", "LUTRanker", "LUTRegressor"]
_HOMES = {
    "LUTClassifier": "boosted",
    "LUTRegressor": "boosted",
    "LUTRanker": "ranker",
    "GateClassifier": "gates",
    "Comparison": "explanation",
    "Explanation": "explanation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"lutetia.sklearn has no {name!r}")
    require("sklearn", "lutetia.sklearn", "scikit-learn")
    return getattr(importlib.import_module(f"lutetia.sklearn.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

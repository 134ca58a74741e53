"""Estimators for tables of data, with scikit-learn's methods: `LUTClassifier`, `LUTRegressor`, `LUTRanker`,
`GateClassifier`, `LUTOutlierDetector`; `compare`, which puts them beside others; and `WindowFeatures`, which makes columns of
windows of signals.

scikit-learn is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lutetia.errors import require

if TYPE_CHECKING:
    from lutetia.report import Comparison
    from lutetia.sklearn.boosted import LUTClassifier, LUTRegressor
    from lutetia.sklearn.comparing import compare
    from lutetia.sklearn.contest import OURS as OUR_NAME
    from lutetia.sklearn.contest import Contest, document, fit_ours, play
    from lutetia.sklearn.explanation import Explanation
    from lutetia.sklearn.gates import GateClassifier
    from lutetia.sklearn.outliers import LUTOutlierDetector
    from lutetia.sklearn.peers import CONSTANT as CONSTANT_ANSWER
    from lutetia.sklearn.peers import METHODS as PEER_METHODS
    from lutetia.sklearn.peers import Fitted, Problem, contestants
    from lutetia.sklearn.ranker import LUTRanker
    from lutetia.sklearn.windows import CutWindows, WindowFeatures, cut_windows

__all__ = [
    "Comparison",
    "CutWindows",
    "Explanation",
    "GateClassifier",
    "LUTClassifier",
    "LUTOutlierDetector",
    "LUTRanker",
    "LUTRegressor",
    "WindowFeatures",
    "compare",
    "cut_windows",
]
_HOMES = {
    "LUTClassifier": "boosted",
    "LUTRegressor": "boosted",
    "LUTOutlierDetector": "outliers",
    "LUTRanker": "ranker",
    "GateClassifier": "gates",
    "Comparison": "explanation",
    "Explanation": "explanation",
    "compare": "comparing",
    **dict.fromkeys(("CutWindows", "WindowFeatures", "cut_windows"), "windows"),
    # For the command `lutetia compare`.
    **dict.fromkeys(("Contest", "document", "fit_ours", "play", "OUR_NAME"), "contest"),
    **dict.fromkeys(("CONSTANT_ANSWER", "Fitted", "PEER_METHODS", "Problem", "contestants"), "peers"),
}
_OWN = {"CONSTANT_ANSWER": "CONSTANT", "OUR_NAME": "OURS", "PEER_METHODS": "METHODS"}  # what a name is called where it lives


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"lutetia.sklearn has no {name!r}")
    require("sklearn", "lutetia.sklearn", "scikit-learn")
    return getattr(importlib.import_module(f"lutetia.sklearn.{_HOMES[name]}"), _OWN.get(name, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Checks of the estimators' parameters, with errors like scikit-learn's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

Limits: TypeAlias = Mapping[str, tuple[type | tuple[type, ...], float, float]]  # by name: the type, the least, the most


def check_params(estimator: Any, limits: Limits) -> None:
    """Check the parameters that are numbers, and those that all estimators share."""
    for name, (kind, low, high) in limits.items():
        value: Any = getattr(estimator, name)
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, bool) or not isinstance(value, kind) or not low <= float(value) <= high:  # type: ignore[arg-type]
            expected = f"of at least {low:g}" if high == np.inf else f"from {low:g} to {high:g}"
            raise ValueError(f"{name} is {value!r}, expected {'an integer' if kind is int else 'a number'} {expected}")
    if estimator.early_stopping not in (True, False, "auto"):
        raise ValueError(f'early_stopping is {estimator.early_stopping!r}, expected True, False or "auto"')
    if estimator.handle_unknown not in ("error", "missing"):
        raise ValueError(f'handle_unknown is {estimator.handle_unknown!r}, expected "error" or "missing"')
    wanted = estimator.categorical_features
    if isinstance(wanted, str) and wanted != "from_dtype":
        raise ValueError(f'categorical_features is {wanted!r}, expected "from_dtype", None or a list of columns')

"""Checks of the estimators' parameters, with errors like scikit-learn's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from lutetia.errors import did_you_mean
from lutetia.training import Interactions

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
    wanted = estimator.text_features
    if isinstance(wanted, str) and wanted != "auto":
        raise ValueError(f'text_features is {wanted!r}, expected "auto", None or a list of columns')


def monotone_columns(wanted: Any, names: Sequence[str] | None, n_columns: int) -> tuple[int, ...]:
    """What `monotonic_cst` says of each column: -1, 0 or 1; none where nothing is constrained. As in scikit-learn it is None, one
    number per column, or a dict by names of columns, which stand for 0 where they are not in it."""
    if wanted is None:
        return ()
    if isinstance(wanted, Mapping):
        if names is None:
            raise ValueError(
                "monotonic_cst is a dict, which needs a table whose columns have names, expected one number per column"
            )
        unknown = [name for name in wanted if name not in names]
        if unknown:
            hint = did_you_mean(unknown[0], names)
            raise ValueError(f"monotonic_cst has {unknown[0]!r}, which is not a column of the training data: {hint}")
        wanted = [wanted.get(name, 0) for name in names]
    signs = np.asarray(wanted)
    if signs.shape != (n_columns,):
        raise ValueError(f"monotonic_cst has shape {signs.shape}, expected ({n_columns},): -1, 0 or 1 for each column")
    if signs.dtype.kind not in "iuf" or not np.isin(signs, (-1, 0, 1)).all():
        raise ValueError(f"monotonic_cst is {wanted!r}, expected -1, 0 or 1 for each column")
    return tuple(int(sign) for sign in signs) if signs.any() else ()


MOST_COLUMNS = {"no_interactions": 1, "pairwise": 2}


def interactions(wanted: Any, names: Sequence[str] | None, n_columns: int) -> Interactions:
    """What `interaction_cst` says of columns that may meet. As in scikit-learn it is None, "no_interactions", "pairwise", or a
    list of sets of columns, by their numbers or their names."""
    if wanted is None:
        return Interactions()
    if isinstance(wanted, str):
        if wanted not in MOST_COLUMNS:
            raise ValueError(f"interaction_cst is {wanted!r}, expected one of {', '.join(map(repr, MOST_COLUMNS))}, or a list")
        return Interactions(MOST_COLUMNS[wanted])
    is_list = isinstance(wanted, list | tuple) and len(wanted)
    if not is_list or not all(isinstance(group, list | tuple | set | frozenset) and group for group in wanted):
        raise ValueError(f"interaction_cst is {wanted!r}, expected a list of sets of columns, each of one column at least")
    return Interactions(0, tuple(tuple(sorted({_column(each, names, n_columns) for each in group})) for group in wanted))


def interaction_cst(most: int, groups: Sequence[Sequence[int]]) -> str | list[list[int]] | None:
    """The parameter that gives these limits."""
    named = {count: name for name, count in MOST_COLUMNS.items()}
    return named.get(most) or [list(group) for group in groups] or None


def _column(wanted: Any, names: Sequence[str] | None, n_columns: int) -> int:
    """The number of a column that a set has by number or by name."""
    if isinstance(wanted, str):
        if names is None or wanted not in names:
            hint = "its columns have no names" if names is None else did_you_mean(wanted, names)
            raise ValueError(f"interaction_cst has {wanted!r}, which is not a column of the training data: {hint}")
        return list(names).index(wanted)
    if isinstance(wanted, bool) or not isinstance(wanted, int | np.integer) or not 0 <= wanted < n_columns:
        raise ValueError(f"interaction_cst has {wanted!r}, expected names of columns, or numbers from 0 to {n_columns - 1}")
    return int(wanted)

"""LightGBM's text model, as `Booster.save_model` writes it.

Comparisons are those of `src/io/tree.cpp` and `include/LightGBM/tree.h`: a value goes left if it is at most the threshold, in
doubles. Numbers within 1e-35 of zero are read as zero. What is missing goes by the `decision_type` of a node.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from lutetia._shared.losses import RANKING as RANKING_LOSS
from lutetia._shared.losses import Loss
from lutetia.errors import DataError
from lutetia.integrations.trees.ensemble import (
    CLASSES,
    MOST_COLUMNS,
    MOST_OUTPUTS,
    NUMBER,
    RANKING,
    Choice,
    Ensemble,
    Split,
    Tree,
    as_codes,
    as_values,
    numbers,
    refuse,
)
from lutetia.integrations.trees.lightgbm_categories import Categories, categories_of, set_test, sets_of

ZERO = float(np.float32(1e-35))  # kZeroThreshold
CATEGORY, DEFAULT_LEFT = 1, 2
NONE, ZEROS, NANS = 0, 1, 2  # what is missing: nothing, as NaN is read as 0; zeros and NaN; NaN
IDENTITY = {"regression_l2": "squared_error", "regression": "squared_error", "huber": "squared_error", "fair": "squared_error"}
IDENTITY |= {"regression_l1": "absolute_error", "mape": "absolute_error", "none": "squared_error", "custom": "squared_error"}
LOGS = ("poisson", "gamma", "tweedie")
RANKERS = ("lambdarank", "rank_xendcg")
LEVEL = re.compile(r"^\[alpha: (0?\.\d{1,17})\]$", re.MULTILINE)  # of a quantile
DEFAULT_LEVEL = 0.9  # as in LightGBM
SPAN = re.compile(r"\[(\S+):(\S+)\]")


def read_lightgbm(text: str) -> Ensemble:
    """The ensemble of a text model."""
    head, *blocks = re.split(r"^Tree=", text.split("\nend of trees")[0], flags=re.MULTILINE)
    if "\nend of trees" not in text:
        raise DataError("the model has no line 'end of trees', expected one: it is cut off")
    known = _fields(head, "the head of the model")
    n_columns, per_round = _whole(known, "max_feature_idx") + 1, _whole(known, "num_tree_per_iteration")
    if not 1 <= n_columns <= MOST_COLUMNS:
        raise DataError(f"max_feature_idx is {n_columns - 1:,}, expected 0 to {MOST_COLUMNS - 1:,}")
    if not 1 <= per_round <= MOST_OUTPUTS:
        raise DataError(f"num_tree_per_iteration is {per_round}, expected 1 to {MOST_OUTPUTS}")
    if not blocks or len(blocks) % per_round:
        raise DataError(f"the model has {len(blocks)} trees, expected a multiple of {per_round}")
    level = LEVEL.search(text)
    task, loss, scale = _objective(known.get("objective", "custom"), per_round, float(level[1]) if level else DEFAULT_LEVEL)
    if "average_output" in known:
        scale *= per_round / len(blocks)
    trees, whole = [], set(range(n_columns)) if "\n[use_missing: 0]" not in text else set()
    infos = known.get("feature_infos", "").split()
    categories = categories_of(infos if len(infos) == n_columns else (), text)
    for number, block in enumerate(blocks):
        fields = _fields(block.partition("\n")[2], f"tree {number}")
        tree = _tree(fields, number, scale, whole, categories)
        trees.append(tree._replace(output=number % per_round))
    return Ensemble(
        "LightGBM", trees, n_columns, np.zeros(per_round), task, loss,
        names=_names(known, n_columns), spans=_spans(infos, n_columns, categories),
        whole=frozenset(whole), categories=categories.values,
    )  # fmt: skip


def _fields(text: str, where: str) -> dict[str, str]:
    """The lines `key=value` of a part of the file."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition("=")
        if key in found:
            raise DataError(f"{where} has {key!r} twice, expected it once")
        if key:
            found[key] = value
    return found


def _whole(fields: Mapping[str, str], key: str) -> int:
    try:
        return int(fields[key])
    except KeyError:
        raise DataError(f"the model has no {key}, expected a text model of LightGBM") from None
    except ValueError:
        raise DataError(f"{key} is {fields[key][:40]!r}, expected a whole number") from None


def _list(fields: Mapping[str, str], key: str, kind: type, count: int, where: str) -> list[Any]:
    words = fields.get(key, "").split()
    if len(words) != count:
        raise DataError(f"{where} has {len(words)} numbers in {key}, expected {count}")
    try:
        return [kind(word) for word in words]
    except ValueError as error:
        raise DataError(f"{where} has no numbers in {key}: {error}") from None


def _objective(text: str, per_round: int, level: float) -> tuple[str, Loss, float]:
    """The task, the loss of a number, where it is a quantile of this `level`, and what leaves are multiplied by."""
    name, *options = text.split() or ["custom"]
    given = dict(each.partition(":")[::2] for each in options)
    if "sqrt" in given:
        raise refuse("the objective predicts square roots (reg_sqrt)", "a model without reg_sqrt: tables have no squares")
    if name in ("binary", "multiclass"):
        if (name == "binary") != (per_round == 1):
            raise DataError(f"the objective {name} has {per_round} trees in a round, which contradict each other")
        try:
            scale = float(given.get("sigmoid", 1)) if name == "binary" else 1.0
        except ValueError:
            scale = math.nan
        if not 0 < scale < math.inf:
            raise DataError(f"sigmoid is {given.get('sigmoid')!r}, expected a number above 0")
        return CLASSES, Loss(), scale
    if per_round == 1:
        if name in RANKERS:
            return RANKING, Loss(RANKING_LOSS), 1.0
        if name == "quantile":
            return NUMBER, Loss("quantile", level), 1.0
        if name in IDENTITY:
            return NUMBER, Loss(IDENTITY[name]), 1.0
        if name in LOGS:
            return NUMBER, Loss("poisson"), 1.0
    raise refuse(
        f"the objective is {name!r} with {per_round} trees in a round",
        "binary, multiclass (softmax), a regression, poisson, gamma, tweedie or lambdarank",
    )


def _names(known: Mapping[str, str], n_columns: int) -> list[str] | None:
    names = known.get("feature_names", "").split(" ")
    return None if names == [f"Column_{number}" for number in range(n_columns)] or names == [""] else names


def _spans(infos: list[str], n_columns: int, categories: Categories) -> list[tuple[float, float]] | None:
    """The ranges of columns; of one that the model does not read from 0 to 0, and of categories those of their numbers."""
    if len(infos) != n_columns:
        return None
    spans = []
    for column, info in enumerate(infos):
        if values := categories.values.get(column):
            codes = as_codes(values) or range(len(values))
            spans.append((float(min(codes)), float(max(codes))))
        elif (match := SPAN.fullmatch(info)) is not None:
            try:
                low, high = float(match[1]), float(match[2])
            except ValueError:
                return None
            if not low <= high:
                return None
            spans.append((low, high))
        else:
            spans.append((0.0, 0.0))
    return spans


def _tree(fields: Mapping[str, str], number: int, scale: float, whole: set[int], categories: Categories) -> Tree:
    """A tree that adds to output 0; columns in which it knows missing values are not `whole`."""
    where, n_leaves = f"tree {number}", _whole(fields, "num_leaves")
    if fields.get("is_linear", "0").strip() not in ("", "0"):
        raise refuse(f"{where} has linear functions in its leaves (linear_tree)", "numbers: tables do not multiply")
    if not 1 <= n_leaves <= len(fields.get("leaf_value", "")) + 1:
        raise DataError(f"{where} has {n_leaves} leaves, expected as many as it has values")
    values = [scale * value for value in _list(fields, "leaf_value", float, n_leaves, where)]
    count = n_leaves - 1
    columns, kinds = (_list(fields, key, int, count, where) for key in ("split_feature", "decision_type"))
    edges = _list(fields, "threshold", float, count, where)
    branches = [_list(fields, key, int, count, where) for key in ("left_child", "right_child")]
    # A branch to leaf n is ~n; leaves become the nodes behind those of the tests.
    left, right = ([count + ~each if each < 0 else each for each in own] for own in branches)
    whole -= {column for column, kind in zip(columns, kinds, strict=True) if kind >> 2 & 3 != NONE}
    sets = sets_of(fields, where)
    tests: list[Split | Choice | None] = [
        set_test(column, edge, sets, categories, where) if kind & CATEGORY else _test(kind, column, edge, where)
        for kind, column, edge in zip(kinds, columns, edges, strict=True)
    ]
    ends = [0] * n_leaves
    return Tree([*tests, *([None] * n_leaves)], [*left, *ends], [*right, *ends], as_values([*([0.0] * count), *values]), 0)


def _test(kind: int, column: int, edge: float, where: str) -> Split:
    missing, missing_right = kind >> 2 & 3, not kind & DEFAULT_LEFT
    if missing not in (NONE, ZEROS, NANS):
        raise DataError(f"{where} has the decision_type {kind}, expected kinds 0 to 2 of missing values")
    if -ZERO <= edge < ZERO:  # numbers that near to zero are zero
        edge = ZERO if edge >= 0 else math.nextafter(-ZERO, -math.inf)
    if missing == NONE:
        return numbers(column, edge, edge < 0.0)
    if missing == NANS:
        return numbers(column, edge, missing_right)
    zero = (math.nextafter(-ZERO, -math.inf), ZERO)
    cuts = tuple(sorted({*zero, edge} - {math.inf}))
    numbers(column, edge, missing_right)  # refuses what is no number
    right = [missing_right]
    for low, high in zip((-math.inf, *cuts), (*cuts, math.inf), strict=True):
        is_zero = low >= zero[0] and high <= zero[1]
        right.append(missing_right if is_zero else low >= edge)
    return Split(column, cuts, tuple(right))

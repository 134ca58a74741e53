"""XGBoost's JSON or UBJSON model, as `Booster.save_model` writes it.

A value goes left if it is below the threshold, both as 32-bit floats, and what is missing goes left by `default_left`.
https://xgboost.readthedocs.io/en/stable/tutorials/saving_model.html has the schema.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from lutetia._shared.losses import RANKING as RANKING_LOSS
from lutetia._shared.losses import Loss
from lutetia.errors import DataError
from lutetia.integrations.trees.ensemble import (
    CLASSES,
    MOST_OUTPUTS,
    NUMBER,
    RANKING,
    Choice,
    Ensemble,
    Split,
    Tree,
    as_values,
    numbers,
    refuse,
)
from lutetia.integrations.trees.fields import at, floats, items, mapping, text, whole, wholes
from lutetia.integrations.trees.single import cut_from
from lutetia.integrations.trees.xgboost_categories import Categories, categories_of, set_test, sets_of

IDENTITY = {"reg:squarederror": "squared_error", "reg:linear": "squared_error", "reg:pseudohubererror": "squared_error"}
IDENTITY |= {"reg:absoluteerror": "absolute_error", "binary:logitraw": "squared_error", "reg:squaredlogerror": "squared_error"}
LOGS = ("count:poisson", "reg:gamma", "reg:tweedie")
SOFTMAX = ("multi:softprob", "multi:softmax")
RANKERS = ("rank:ndcg", "rank:pairwise", "rank:map")
QUANTILE = "reg:quantileerror"
LONGEST_BASE = 1 << 20


def read_xgboost(document: Any) -> Ensemble:
    """The ensemble of a document."""
    learner = mapping(document, "learner")
    booster = mapping(learner, "gradient_booster")
    name = text(booster, "name")
    if name not in ("gbtree", "dart"):
        raise refuse(f"the booster is {name!r}", "gbtree or dart: the others have no trees")
    model = mapping(booster, *(("gbtree",) if name == "dart" else ()), "model")
    n_columns = whole(learner, "learner_model_param", "num_feature")
    if whole(learner, "learner_model_param", "num_target") != 1 if "num_target" in learner["learner_model_param"] else False:
        raise refuse("the model predicts several targets", "one")
    groups = max(1, whole(learner, "learner_model_param", "num_class"))
    if groups > MOST_OUTPUTS:
        raise DataError(f"num_class is {groups:,}, expected at most {MOST_OUTPUTS:,}")
    task, loss, base = _objective(learner, groups)
    trees = items(model, "trees")
    if groups > len(trees):
        raise DataError(f"num_class is {groups:,}, and there are {len(trees):,} trees, expected one at least for each class")
    info = wholes(model, len(trees), "tree_info")
    factors = floats(booster, len(trees), "weight_drop") if name == "dart" else [1.0] * len(trees)
    kinds, names = (items(learner, key) if learner.get(key) else [] for key in ("feature_types", "feature_names"))
    categories = categories_of(model, [_named(each, number) for number, each in enumerate(trees)], kinds)
    made = [
        _tree(each, number, output, factor, categories)
        for number, (each, output, factor) in enumerate(zip(trees, info, factors, strict=True))
    ][: _kept(learner, model, len(trees))]
    return Ensemble(
        "XGBoost", made, n_columns, base, task, loss,
        names=[str(each) for each in names] or None, categories=categories.values, unknown="error",
    )  # fmt: skip


def _named(tree: Any, number: int) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise DataError(f"tree {number} is {str(tree)[:40]!r}, expected named lists")
    return tree


def _kept(learner: dict[str, Any], model: dict[str, Any], count: int) -> int:
    """How many trees count: those up to the best round, where training stopped early."""
    best = (learner.get("attributes") or {}).get("best_iteration")
    if best is None:
        return count
    starts = wholes(model, None, "iteration_indptr") if "iteration_indptr" in model else []
    rounds = whole({"best_iteration": best}, "best_iteration") + 1
    if not starts:
        raise refuse("the model stopped early, and does not say which trees a round has", "one saved by XGBoost 2 or later")
    if not 1 <= rounds < len(starts) or not 0 <= starts[rounds] <= count:
        raise DataError(f"best_iteration is {best}, expected 0 to {len(starts) - 2}")
    return starts[rounds]


def _objective(learner: dict[str, Any], groups: int) -> tuple[str, Loss, np.ndarray[Any, Any]]:
    """The task, the loss of a number, and what the trees are added to."""
    name = text(learner, "objective", "name")
    base = _base(at(learner, "learner_model_param", "base_score"), groups)
    if name == "binary:logistic" and groups == 1:
        if not ((base > 0) & (base < 1)).all():
            raise DataError(f"base_score is {base.tolist()}, expected a probability between 0 and 1")
        with np.errstate(over="ignore", divide="ignore"):
            return CLASSES, Loss(), -np.log(1 / base.astype(np.float32) - np.float32(1)).astype(np.float64)
    if name in SOFTMAX and groups > 1:
        return CLASSES, Loss(), base
    if groups == 1 and name in IDENTITY:
        return NUMBER, Loss(IDENTITY[name]), base
    if groups == 1 and name in LOGS:
        if not (base > 0).all():
            raise DataError(f"base_score is {base.tolist()}, expected a number above 0 with {name}")
        return NUMBER, Loss("poisson"), np.log(base.astype(np.float32)).astype(np.float64)
    if groups == 1 and name in RANKERS:
        return RANKING, Loss(RANKING_LOSS), base
    if groups == 1 and name == QUANTILE:
        return NUMBER, Loss("quantile", _level(learner)), base
    raise refuse(
        f"the objective is {name!r} of {groups} outputs",
        f"one of binary:logistic, {', '.join((*SOFTMAX, *IDENTITY, *LOGS, QUANTILE, *RANKERS))}",
    )


def _level(learner: dict[str, Any]) -> float:
    given = text(learner, "objective", "quantile_loss_param", "quantile_alpha")
    try:
        levels = json.loads(given)
        levels = levels if isinstance(levels, list) else [levels]
        level = float(levels[0]) if len(levels) == 1 else math.nan
    except (ValueError, TypeError, IndexError, OverflowError, RecursionError):
        level = math.nan
    if not 0 < level < 1:
        raise refuse(f"quantile_alpha is {given[:60]!r}", "one quantile between 0 and 1")
    return level


def _base(given: Any, groups: int) -> np.ndarray[Any, Any]:
    """base_score: a number, or one for each output in brackets, as a string."""
    try:
        values = json.loads(given) if isinstance(given, str) and len(given) < LONGEST_BASE else given
        base = np.array(values, np.float64).reshape(-1)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise DataError(f"base_score is {str(given)[:60]!r}, expected a number, or a list of them") from None
    if len(base) not in (1, groups):
        raise DataError(f"base_score has {len(base)} numbers, expected {groups}")
    return np.broadcast_to(base, groups).astype(np.float32).astype(np.float64)


def _tree(tree: dict[str, Any], number: int, output: int, factor: float, categories: Categories) -> Tree:
    where = f"tree {number}"
    left = wholes(tree, None, "left_children")
    count = len(left)
    if "size_leaf_vector" in tree.get("tree_param", {}) and whole(tree, "tree_param", "size_leaf_vector") > 1:
        raise refuse(f"{where} has a vector in each leaf (multi_output_tree)", "a number: multi_strategy=one_output_per_tree")
    right, columns, default = (wholes(tree, count, key) for key in ("right_children", "split_indices", "default_left"))
    conditions = floats(tree, count, "split_conditions")
    kinds = wholes(tree, count, "split_type") if "split_type" in tree else [0] * count
    sets = sets_of(tree, count)
    tests: list[Split | Choice | None] = []
    values = np.zeros(count)
    for node in range(count):
        if left[node] == -1:
            tests.append(None)
            values[node] = np.float32(conditions[node]) * np.float32(factor)
        elif kinds[node]:
            tests.append(set_test(columns[node], sets.get(node), categories, not default[node]))
        else:
            tests.append(numbers(columns[node], cut_from(conditions[node]), not default[node]))
    return Tree(tests, left, right, as_values(values.tolist()), output)

"""Fitted ensembles of scikit-learn: histogram gradient boosting, gradient boosting, forests and single trees.

Forests, trees and gradient boosting compare values as 32-bit floats, histogram gradient boosting as they are; a value goes left
if it is at most the threshold.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lutetia._shared.losses import Loss
from lutetia.errors import ArgumentError
from lutetia.integrations.trees.ensemble import (
    CHANCES,
    CLASSES,
    NUMBER,
    Choice,
    Ensemble,
    Split,
    Tree,
    as_values,
    choice,
    numbers,
    refuse,
)
from lutetia.integrations.trees.single import cut_above

Array = np.ndarray[Any, Any]
FORESTS = ("RandomForestRegressor", "ExtraTreesRegressor")
FOREST_CLASSIFIERS = ("RandomForestClassifier", "ExtraTreesClassifier")
TREES = ("DecisionTreeRegressor", "ExtraTreeRegressor")
TREE_CLASSIFIERS = ("DecisionTreeClassifier", "ExtraTreeClassifier")
BOOSTED = ("GradientBoostingRegressor", "GradientBoostingClassifier")
HISTOGRAMS = ("HistGradientBoostingRegressor", "HistGradientBoostingClassifier")
CONSTANTS = ("DummyClassifier", "DummyRegressor")
BAGS = ("BaggingRegressor", "BaggingClassifier")
AVERAGED = (*FORESTS, *FOREST_CLASSIFIERS, *TREES, *TREE_CLASSIFIERS, *BAGS)
KNOWN = (*HISTOGRAMS, *BOOSTED, *AVERAGED)
SHARE = 2.0**-24  # of a probability


def read_scikit(model: Any, probability_of: Any = None) -> Ensemble:
    """The ensemble of a fitted estimator; of a forest with `probability_of` the probability of one class as a number."""
    name = type(model).__name__
    if not hasattr(model, "n_features_in_"):
        raise ArgumentError(f"the {name} is not fitted, expected one that is")
    if probability_of is not None and name not in (*FOREST_CLASSIFIERS, *TREE_CLASSIFIERS, BAGS[1]):
        raise ArgumentError(f"probability_of is {probability_of!r}, expected None: a {name} has no averaged probabilities")
    if name in AVERAGED:
        return _averaged(model, name, probability_of)
    return _boosted(model, name) if name in BOOSTED else _histograms(model)


def _known(model: Any) -> dict[str, Any]:
    names = [str(each) for each in model.feature_names_in_] if hasattr(model, "feature_names_in_") else None
    classes = model.classes_.tolist() if hasattr(model, "classes_") and not isinstance(model.classes_, list) else None
    return {"n_columns": int(model.n_features_in_), "names": names, "classes": classes}


# ---- averages --------------------------------------------------------------------------------------------------------


def _averaged(model: Any, name: str, probability_of: Any) -> Ensemble:
    """A forest, a bag of trees or a tree whose answers are averages of leaves."""
    own = [model] if name in (*TREES, *TREE_CLASSIFIERS) else list(model.estimators_)
    if isinstance(getattr(model, "classes_", None), list) or any(getattr(each, "n_outputs_", 1) != 1 for each in (model, *own)):
        raise refuse(f"the {name} predicts several targets", "one")
    other = next((each for each in own if type(each).__name__ not in (*TREES, *TREE_CLASSIFIERS)), None)
    if other is not None:
        raise refuse(f"the {name} holds a {type(other).__name__}", f"one of {', '.join((*TREES, *TREE_CLASSIFIERS))}")
    known, base = _known(model), np.zeros(1)
    kind: dict[str, Any] = {"task": NUMBER}
    if not hasattr(model, "classes_"):
        values = [each.tree_.value[:, 0] / len(own) for each in own]
        kind["loss"] = Loss("absolute_error" if getattr(model, "criterion", "") == "absolute_error" else "squared_error")
    elif probability_of is not None:
        number, known["classes"] = _class_number(model, probability_of), None
        values = [_probabilities(each, model)[:, [number]] / len(own) for each in own]
    else:
        base, kind = np.zeros(len(model.classes_)), {"task": CLASSES, "sums": CHANCES}
        if len(base) == 1:
            raise refuse(f"the {name} was fitted to one class, {model.classes_.tolist()[0]!r}", "two classes at least")
        # Whole numbers of SHARE add up exactly in 32-bit floats, in any order, so that equal votes are equal sums.
        values = [np.rint(_probabilities(each, model) / (len(own) * SHARE)) * SHARE for each in own]
    read = getattr(model, "estimators_features_", [None] * len(own))
    output = 0 if kind["task"] == NUMBER else None
    trees = [tree_of(each.tree_, told, columns, output) for each, told, columns in zip(own, values, read, strict=True)]
    return Ensemble("scikit-learn", trees, base=base, **kind, **known)


def _class_number(model: Any, wanted: Any) -> int:
    """The class whose probability is predicted."""
    classes = model.classes_.tolist()
    found = [number for number, value in enumerate(classes) if value == wanted]
    if not found:
        raise ArgumentError(f"probability_of is {wanted!r}, expected one of the classes {classes}")
    return found[0]


def _probabilities(tree: Any, model: Any) -> Array:
    """The probabilities of a model's classes at the nodes of one of its trees, float64 [nodes, classes]. A tree of a bag may know
    some of the classes only, which it numbers."""
    values = tree.tree_.value[:, 0].astype(np.float64)
    values = values / np.maximum(values.sum(1, keepdims=True), math.ulp(0.0))  # counts, before scikit-learn 1.3
    if values.shape[1] == len(model.classes_):
        return values
    found = np.zeros((len(values), len(model.classes_)))
    found[:, tree.classes_.astype(np.int64)] = values
    return found


def tree_of(tree: Any, values: Array, read: Array | None, output: int | None) -> Tree:
    """A `sklearn.tree._tree.Tree` with the values of its nodes [nodes, outputs]; of a bag, one that reads some columns."""
    leaf = tree.children_left < 0
    columns = tree.feature if read is None else np.asarray(read)[tree.feature]
    missing_left = getattr(tree, "missing_go_to_left", np.ones(len(leaf), bool))
    cuts = {value: cut_above(value) for value in np.unique(tree.threshold[~leaf]).tolist()}
    tests: list[Split | Choice | None] = [
        None if is_leaf else numbers(column, cuts[edge], not goes_left)
        for is_leaf, column, edge, goes_left in zip(
            leaf.tolist(), columns.tolist(), tree.threshold.tolist(), np.asarray(missing_left).tolist(), strict=True
        )
    ]
    own = np.where(leaf[:, None], values, 0.0)
    return Tree(tests, tree.children_left.tolist(), tree.children_right.tolist(), own, output)


# ---- gradient boosting -----------------------------------------------------------------------------------------------


def _boosted(model: Any, name: str) -> Ensemble:
    is_classifier = name.endswith("Classifier")
    outputs = model.estimators_.shape[1]
    if model.init_ is not None and model.init_ != "zero" and type(model.init_).__name__ not in CONSTANTS:
        raise refuse(f"the {name} starts from a {type(model.init_).__name__}", "init=None or 'zero': a constant")
    factor = 2.0 if is_classifier and model.loss == "exponential" else 1.0  # whose probability is expit(2 score)
    some = np.zeros((1, model.n_features_in_), np.float32)
    base = factor * np.asarray(model._raw_predict_init(some), np.float64).reshape(-1)
    scale = factor * model.learning_rate
    trees = [
        tree_of(tree.tree_, scale * tree.tree_.value[:, 0], None, output)
        for stage in model.estimators_
        for output, tree in enumerate(stage)
    ]
    if is_classifier:
        return Ensemble("scikit-learn", trees, base=base, task=CLASSES, **_known(model))
    assert outputs == 1
    loss = {"absolute_error": Loss("absolute_error"), "quantile": Loss("quantile", getattr(model, "alpha", 0.5))}
    return Ensemble("scikit-learn", trees, base=base, task=NUMBER, loss=loss.get(model.loss, Loss()), **_known(model))


def _histograms(model: Any) -> Ensemble:
    order, categories = _histogram_columns(model)
    base = np.asarray(model._baseline_prediction, np.float64).reshape(-1)
    trees = [
        _histogram_tree(each, order, categories)._replace(output=output)
        for stage in model._predictors
        for output, each in enumerate(stage)
    ]
    known = _known(model) | {"categories": categories}
    if type(model).__name__.endswith("Classifier"):
        return Ensemble("scikit-learn", trees, base=base, task=CLASSES, **known)
    name = model.loss if isinstance(model.loss, str) else type(model.loss).__name__
    losses = {
        "squared_error": Loss(), "absolute_error": Loss("absolute_error"), "poisson": Loss("poisson"), "gamma": Loss("poisson"),
        "quantile": Loss("quantile", model.quantile) if name == "quantile" else Loss(),
    }  # fmt: skip
    if name not in losses:
        raise refuse(f"the loss is {name}", f"one of {', '.join(losses)}")
    return Ensemble("scikit-learn", trees, base=base, task=NUMBER, loss=losses[name], **known)


def _histogram_columns(model: Any) -> tuple[list[int], dict[int, list[Any]]]:
    """The columns in the order of the trees, those of categories first, and the values of these by their numbers."""
    chosen = getattr(model, "is_categorical_", None)
    if chosen is None:
        return list(range(model.n_features_in_)), {}
    first = np.flatnonzero(chosen).tolist()
    encoder = getattr(getattr(model, "_preprocessor", None), "named_transformers_", {}).get("encoder")
    if encoder is None:
        raise refuse(f"the {type(model).__name__} has categories without their values", "one fitted by scikit-learn 1.4 or later")
    values = [[each for each in own.tolist() if each is not None and each == each] for own in encoder.categories_]
    return [*first, *np.flatnonzero(~np.asarray(chosen)).tolist()], dict(zip(first, values, strict=True))


def _histogram_tree(predictor: Any, order: list[int], categories: dict[int, list[Any]]) -> Tree:
    """A tree that adds to output 0. A category that is not known goes where what is missing goes."""
    nodes, sets = predictor.nodes, predictor.raw_left_cat_bitsets
    tests: list[Split | Choice | None] = []
    for node in nodes:
        column, missing_right = order[node["feature_idx"]], not node["missing_go_to_left"]
        if node["is_leaf"]:
            tests.append(None)
        elif node["is_categorical"]:
            count, words = len(categories[column]), sets[node["bitset_idx"]].tolist()
            left = [at for at in range(count) if words[at // 32] >> at % 32 & 1]
            tests.append(choice(column, left, count, goes_right=False, others=(missing_right, missing_right)))
        else:
            tests.append(numbers(column, float(node["num_threshold"]), missing_right))
    values = np.where(nodes["is_leaf"].astype(bool), nodes["value"], 0.0)
    return Tree(tests, nodes["left"].tolist(), nodes["right"].tolist(), as_values(values), 0)

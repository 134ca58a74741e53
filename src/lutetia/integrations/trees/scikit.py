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
from lutetia.integrations.trees.ensemble import CLASSES, NUMBER, Ensemble, Split, Tree, as_values, numbers, refuse
from lutetia.integrations.trees.single import cut_above

Array = np.ndarray[Any, Any]
FORESTS = ("RandomForestRegressor", "ExtraTreesRegressor")
FOREST_CLASSIFIERS = ("RandomForestClassifier", "ExtraTreesClassifier")
TREES = ("DecisionTreeRegressor", "ExtraTreeRegressor")
TREE_CLASSIFIERS = ("DecisionTreeClassifier", "ExtraTreeClassifier")
BOOSTED = ("GradientBoostingRegressor", "GradientBoostingClassifier")
HISTOGRAMS = ("HistGradientBoostingRegressor", "HistGradientBoostingClassifier")
CONSTANTS = ("DummyClassifier", "DummyRegressor")
KNOWN = (*HISTOGRAMS, *BOOSTED, *FORESTS, *FOREST_CLASSIFIERS, *TREES, *TREE_CLASSIFIERS)


def read_scikit(model: Any, probability_of: Any = None) -> Ensemble:
    """The ensemble of a fitted estimator; of a forest of classes the probability of one class as a number."""
    name = type(model).__name__
    if not hasattr(model, "n_features_in_"):
        raise ArgumentError(f"the {name} is not fitted, expected one that is")
    if name in (*FOREST_CLASSIFIERS, *TREE_CLASSIFIERS):
        return _averaged(model, name, _class_number(model, name, probability_of))
    if probability_of is not None:
        raise ArgumentError(f"probability_of is {probability_of!r}, expected None: a {name} has no averaged probabilities")
    if name in (*FORESTS, *TREES):
        return _averaged(model, name, None)
    return _boosted(model, name) if name in BOOSTED else _histograms(model)


def _known(model: Any) -> dict[str, Any]:
    names = [str(each) for each in model.feature_names_in_] if hasattr(model, "feature_names_in_") else None
    classes = model.classes_.tolist() if hasattr(model, "classes_") and not isinstance(model.classes_, list) else None
    return {"n_columns": int(model.n_features_in_), "names": names, "classes": classes}


# ---- averages --------------------------------------------------------------------------------------------------------


def _class_number(model: Any, name: str, wanted: Any) -> int:
    """The class whose probability is predicted; the average of probabilities is no softmax of scores."""
    classes = model.classes_
    if isinstance(classes, list) or getattr(model, "n_outputs_", 1) != 1:
        raise refuse(f"the {name} predicts several targets", "one")
    if wanted is None:
        raise refuse(
            f"a {name} averages probabilities, and a classifier of tables adds up scores",
            f"probability_of=CLASS, one of {classes.tolist()}: a regression that predicts the probability of that class exactly",
        )
    found = [number for number, value in enumerate(classes.tolist()) if value == wanted]
    if not found:
        raise ArgumentError(f"probability_of is {wanted!r}, expected one of the classes {classes.tolist()}")
    return found[0]


def _averaged(model: Any, name: str, number: int | None) -> Ensemble:
    """A forest or a tree whose answers are averages of leaves."""
    if getattr(model, "n_outputs_", 1) != 1:
        raise refuse(f"the {name} predicts {model.n_outputs_} targets", "one")
    own = getattr(model, "estimators_", None) or [model]
    absolute = getattr(model, "criterion", "") == "absolute_error"
    loss = Loss("absolute_error") if absolute else Loss()
    trees = [tree_of(each.tree_, 1 / len(own), 0, number) for each in own]
    return Ensemble("scikit-learn", trees, base=np.zeros(1), task=NUMBER, loss=loss, **(_known(model) | {"classes": None}))


def tree_of(tree: Any, scale: float, output: int, number: int | None = None) -> Tree:
    """A `sklearn.tree._tree.Tree`; of one that holds probabilities those of the class `number`."""
    leaf = tree.children_left < 0
    values = tree.value[:, 0, 0 if number is None else number].astype(np.float64)
    if number is not None:  # counts, before scikit-learn 1.3
        values = values / np.maximum(tree.value[:, 0].sum(1), math.ulp(0.0))
    missing_left = getattr(tree, "missing_go_to_left", np.ones(len(leaf), bool))
    cuts = {value: cut_above(value) for value in np.unique(tree.threshold[~leaf]).tolist()}
    tests: list[Split | None] = [
        None if is_leaf else numbers(column, cuts[edge], not goes_left)
        for is_leaf, column, edge, goes_left in zip(
            leaf.tolist(), tree.feature.tolist(), tree.threshold.tolist(), np.asarray(missing_left).tolist(), strict=True
        )
    ]
    own = np.where(leaf, values, 0.0) * scale
    return Tree(tests, tree.children_left.tolist(), tree.children_right.tolist(), as_values(own), output)


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
    trees = [tree_of(tree.tree_, scale, output) for stage in model.estimators_ for output, tree in enumerate(stage)]
    if is_classifier:
        return Ensemble("scikit-learn", trees, base=base, task=CLASSES, **_known(model))
    assert outputs == 1
    loss = {"absolute_error": Loss("absolute_error"), "quantile": Loss("quantile", getattr(model, "alpha", 0.5))}
    return Ensemble("scikit-learn", trees, base=base, task=NUMBER, loss=loss.get(model.loss, Loss()), **_known(model))


def _histograms(model: Any) -> Ensemble:
    if getattr(model, "is_categorical_", None) is not None and np.any(model.is_categorical_):
        number = int(np.flatnonzero(model.is_categorical_)[0])
        raise refuse(
            f"the {type(model).__name__} takes column {number} as categories",
            "numbers: fit it with categorical_features=None on codes as numbers",
        )
    base = np.asarray(model._baseline_prediction, np.float64).reshape(-1)
    trees = [_histogram_tree(each.nodes, output) for stage in model._predictors for output, each in enumerate(stage)]
    if type(model).__name__.endswith("Classifier"):
        return Ensemble("scikit-learn", trees, base=base, task=CLASSES, **_known(model))
    name = model.loss if isinstance(model.loss, str) else type(model.loss).__name__
    losses = {
        "squared_error": Loss(), "absolute_error": Loss("absolute_error"), "poisson": Loss("poisson"), "gamma": Loss("poisson"),
        "quantile": Loss("quantile", model.quantile) if name == "quantile" else Loss(),
    }  # fmt: skip
    if name not in losses:
        raise refuse(f"the loss is {name}", f"one of {', '.join(losses)}")
    return Ensemble("scikit-learn", trees, base=base, task=NUMBER, loss=losses[name], **_known(model))


def _histogram_tree(nodes: Array, output: int) -> Tree:
    leaf = nodes["is_leaf"].astype(bool)
    tests: list[Split | None] = [
        None if is_leaf else numbers(int(column), float(edge), not goes_left)
        for is_leaf, column, edge, goes_left in zip(
            leaf, nodes["feature_idx"], nodes["num_threshold"], nodes["missing_go_to_left"], strict=True
        )
    ]
    values = np.where(leaf, nodes["value"], 0.0)
    return Tree(tests, nodes["left"].tolist(), nodes["right"].tolist(), as_values(values), output)

"""`from_trees`: a fitted ensemble of any of four libraries as an estimator of tables that predicts the same."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia.errors import ArgumentError
from lutetia.integrations.trees.catboost import read_catboost
from lutetia.integrations.trees.ensemble import CLASSES, Ensemble, refuse
from lutetia.integrations.trees.lightgbm import read_lightgbm
from lutetia.integrations.trees.scikit import KNOWN, read_scikit
from lutetia.integrations.trees.tables import to_tabular
from lutetia.integrations.trees.xgboost import read_xgboost

if TYPE_CHECKING:
    from lutetia.sklearn import LUTClassifier, LUTRanker, LUTRegressor


def from_trees(
    model: Any,
    feature_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    *,
    probability_of: Any = None,
    n_anchors: int | None = None,
    missing: str = "seen",
) -> LUTClassifier | LUTRegressor | LUTRanker:
    """An estimator of tables that predicts what a fitted model of trees predicts.

    `model` is an estimator or a booster of LightGBM, XGBoost, CatBoost or scikit-learn (HistGradientBoosting*, GradientBoosting*,
    RandomForest*, ExtraTrees*, DecisionTree*, Bagging* of trees). `feature_names` and `class_names` replace the names that it
    knows in explanations, pages and commands; `predict` gives the classes that the model was fitted to. Of a forest of classes,
    whose tables add up probabilities, `probability_of`, a class, makes a regression that predicts the probability of that class
    alone. A table asks `n_anchors` questions; by default as many as make the fewest rows. `missing` says in which columns missing
    values go where the library sends them: "exact", in all; "seen", in those that had some in training, where the library tells;
    "none", in no column.
    """
    import lutetia.sklearn

    ensemble = ensemble_of(model, probability_of)
    tabular = to_tabular(ensemble, feature_names, class_names, n_anchors, missing).model
    params: dict[str, Any] = {"n_tables": tabular.config.n_tables, "n_anchors": tabular.config.n_anchors}
    if ensemble.loss.is_ranking:
        kind: Any = lutetia.sklearn.LUTRanker
    elif ensemble.task == CLASSES:
        kind = lutetia.sklearn.LUTClassifier
    else:
        kind = lutetia.sklearn.LUTRegressor
        params |= {"loss": ensemble.loss.name, "quantile": ensemble.loss.quantile}
    state: dict[str, Any] = {"named": feature_names is not None or ensemble.names is not None}
    if "unknown" in tabular.metadata:
        params["handle_unknown"] = tabular.metadata["unknown"]
    if ensemble.task == CLASSES:
        classes = np.asarray(range(ensemble.n_classes) if ensemble.classes is None else ensemble.classes)
        state |= {"class_kind": classes.dtype.kind if classes.dtype.kind in "iufbU" else "O", "classes": classes.tolist()}
    estimator = kind(**params)
    estimator._restore(tabular, state)
    return estimator


def ensemble_of(model: Any, probability_of: Any = None) -> Ensemble:
    """The ensemble of a fitted model, by the library that it is of."""
    library, name = type(model).__module__.partition(".")[0], type(model).__name__
    if library == "sklearn" and name in KNOWN:
        return read_scikit(model, probability_of)
    if probability_of is not None:
        raise ArgumentError(f"probability_of is {probability_of!r}, expected None: it is for forests of scikit-learn")
    if library == "lightgbm":
        return _lightgbm(model, name)
    if library == "xgboost":
        return _xgboost(model, name)
    if library == "catboost":
        return _catboost(model)
    raise refuse(f"the model is a {type(model).__module__}.{name}", f"one of LightGBM, XGBoost, CatBoost, or {', '.join(KNOWN)}")


def _with(ensemble: Ensemble, model: Any) -> Ensemble:
    """An ensemble with the classes that an estimator was fitted to."""
    from dataclasses import replace

    classes = getattr(model, "classes_", None)
    return ensemble if ensemble.task != CLASSES or classes is None else replace(ensemble, classes=np.asarray(classes).tolist())


def _lightgbm(model: Any, name: str) -> Ensemble:
    booster = model if name == "Booster" else model.booster_
    return _with(read_lightgbm(booster.model_to_string()), None if name == "Booster" else model)


def _xgboost(model: Any, name: str) -> Ensemble:
    missing = getattr(model, "missing", math.nan)
    if missing is not None and not (isinstance(missing, float) and math.isnan(missing)):
        raise refuse(f"the model takes {missing!r} for a missing value", "missing=nan: replace that number by NaN in the data")
    booster = model if name == "Booster" else model.get_booster()
    document = json.loads(bytes(booster.save_raw("json")))
    if name.startswith("XGBRF"):
        document["learner"].get("attributes", {}).pop("best_iteration", None)
    return _with(read_xgboost(document), None if name == "Booster" else model)


def _catboost(model: Any) -> Ensemble:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        document = json.loads(path.read_bytes())
    own = read_catboost(document)
    return _with(own, model if len(getattr(model, "classes_", ())) else None)

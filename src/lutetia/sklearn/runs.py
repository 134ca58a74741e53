"""What an estimator knows of a model that `lutetia train` has fitted."""

from __future__ import annotations

from typing import Any

from lutetia.models import Tabular, Targets, data_columns, finds_unusual
from lutetia.sklearn.checks import interaction_cst


def state_of_run(model: Tabular | Targets) -> dict[str, Any] | None:
    """The state of an estimator that was fitted by `lutetia train`; None where the data did not leave enough to tell."""
    if isinstance(model, Targets):
        return _several_state(model)
    config, known = model.config, model.metadata
    if (
        "forecast" in known
        or config.core != "tables"
        or "task" not in known
        or (not model.is_regression and "classes" not in known)
    ):
        return None
    params = {"n_tables": config.n_tables, "n_anchors": config.n_anchors, "handle_unknown": known.get("unknown", "error")}
    if model.is_regression and not model.loss.is_ranking:
        params |= {"loss": config.loss, "quantile": config.quantile}
    if config.monotone:  # of the second class, by the order that scikit-learn gives them
        turned = -1 if not model.is_regression and sorted(known["classes"]) != known["classes"] else 1
        signs = [0 if each.input is None else config.monotone[each.input] for each in data_columns(known, model.n_columns, False)]
        params["monotonic_cst"] = [turned * sign for sign in signs]
    if limited := interaction_cst(config.most_columns, config.column_groups):
        params["interaction_cst"] = limited
    if finds_unusual(known):
        return {"class": "LUTOutlierDetector", "params": params, "named": "features" in known}
    name = "LUTRanker" if model.loss.is_ranking else "LUTRegressor" if model.is_regression else "LUTClassifier"
    state = {"class": name, "params": params, "named": "features" in known}
    return state if model.is_regression else state | {"class_kind": "U", "classes": known["classes"]}


def _several_state(model: Targets) -> dict[str, Any] | None:
    """The same of several targets."""
    config, known = model.config, model.metadata
    classes = [own.get("classes") for own in known.get("targets", ())]
    params = {"n_tables": config.n_tables, "n_anchors": config.n_anchors, "handle_unknown": known.get("unknown", "error")}
    if model.is_regression:
        params |= {"loss": config.loss, "quantile": config.quantile}
        return {"class": "LUTRegressor", "params": params, "named": "features" in known}
    state = {"class": "LUTClassifier", "params": params, "named": "features" in known}
    return state | {"class_kinds": ["U"] * len(classes), "classes": classes} if classes and all(classes) else None

"""The methods that `lutetia compare` puts beside ours: each with its defaults, each given columns as it takes them best."""

from __future__ import annotations

import importlib.util
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lutetia._shared.losses import Loss
from lutetia._shared.rankings import queries_of, query_weights
from lutetia.errors import require
from lutetia.sklearn.peer_columns import CategoryColumns, NumberColumns, ScaledColumns
from lutetia.training import Shape, TabularRows

Array = np.ndarray[Any, Any]
MOST_NATIVE = 255  # categories of a column that HistGradientBoosting takes as such
STEPS = 1000  # of a linear model, at most: with the default of 100 some do not arrive
CONSTANT = "constant answer"


@dataclass(frozen=True)
class Problem:
    """What is to be learned, besides the rows: the shape of the table, the loss of numbers, and how fits run."""

    shape: Shape
    loss: Loss = field(default_factory=Loss)
    balanced: bool = False
    seed: int = 0
    threads: int = 1

    @property
    def has_classes(self) -> bool:
        """Whether classes are predicted."""
        return self.shape.n_classes > 1


class Fitted(NamedTuple):
    """A fitted model: what it predicts, probabilities [n, n_classes] or numbers or scores [n]; and its bytes on disk."""

    predict: Callable[[TabularRows], Array]
    size: Callable[[], int]


Fit = Callable[[TabularRows], Fitted]


@dataclass(frozen=True)
class Given:
    """What an estimator is made for and fitted to."""

    problem: Problem
    columns: NumberColumns
    x: Any
    y: Array
    weight: Array | None  # None where all count alike: a forest would draw other rows
    query: Array | None  # in order

    @property
    def kind(self) -> str:
        """The end of the names of estimators."""
        return "Classifier" if self.problem.has_classes else "Regressor"


class Method(NamedTuple):
    """A method: its name, the package that has it, its columns, how it is fitted, and what it has no estimator for."""

    name: str
    package: str
    columns: type[NumberColumns]
    fit: Callable[[Given], Any]
    lacks: dict[str, str] = {}  # noqa: RUF012  (by the name of a loss, why)

    @property
    def is_installed(self) -> bool:
        """Whether its package is there; it is not imported."""
        return importlib.util.find_spec(self.package.replace("scikit-learn", "sklearn")) is not None


def fit_peer(method: Method, problem: Problem, rows: TabularRows) -> Fitted:
    """A method fitted to rows. Classes that these rows lack are never predicted."""
    if rows.query is not None:
        rows = rows.at(np.argsort(rows.query, kind="stable"))
    if problem.balanced and problem.has_classes:
        rows = rows.balanced(problem.shape.n_classes)
    present, y = np.unique(rows.y, return_inverse=True) if problem.has_classes else (None, rows.y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a linear model that has not converged, names of columns
        columns = method.columns(rows, problem.shape)
        weight = None if (rows.weight == rows.weight[0]).all() else rows.weight.astype(np.float64)
        given = Given(problem, columns, columns.made(rows), y, weight, rows.query)
        estimator = method.fit(given)

    def predict(others: TabularRows) -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = columns.made(others)
            if present is None:
                return np.asarray(estimator.predict(x), np.float64).reshape(-1)
            chances = np.zeros((len(others.y), problem.shape.n_classes))
            chances[:, present] = estimator.predict_proba(x)
            return chances

    return Fitted(predict, lambda: len(pickle.dumps((columns, estimator))))


# ---- the methods -----------------------------------------------------------------------------------------------------


def _constant(given: Given) -> Any:
    from sklearn.dummy import DummyClassifier, DummyRegressor

    loss = given.problem.loss
    if given.problem.has_classes:
        return DummyClassifier(strategy="prior").fit(given.x, given.y, given.weight)
    level = {"absolute_error": 0.5, "quantile": loss.level}.get(loss.name)
    made = DummyRegressor() if level is None else DummyRegressor(strategy="quantile", quantile=level)
    return made.fit(given.x, given.y, given.weight)


def _linear(given: Given) -> Any:
    from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

    if given.problem.has_classes:
        made = LogisticRegression(max_iter=STEPS)
    else:
        made = PoissonRegressor(max_iter=STEPS) if given.problem.loss.is_log else Ridge()
    return made.fit(given.x, given.y, given.weight)


def _forest(given: Given) -> Any:
    from sklearn import ensemble

    own = {"criterion": "poisson"} if given.problem.loss.is_log else {}
    made = getattr(ensemble, f"RandomForest{given.kind}")(random_state=given.problem.seed, n_jobs=given.problem.threads, **own)
    return made.fit(given.x, given.y, given.weight)


def _histograms(given: Given) -> Any:
    from sklearn import ensemble

    loss, counts = given.problem.loss, given.problem.shape.n_categories
    native = [number for number in given.columns.category_columns() if counts[number] <= MOST_NATIVE]
    own: dict[str, Any] = {"random_state": given.problem.seed, "categorical_features": native or None}
    if not given.problem.has_classes and not loss.is_ranking:
        own |= {"loss": loss.name, "quantile": loss.quantile}
    return getattr(ensemble, f"HistGradientBoosting{given.kind}")(**own).fit(given.x, given.y, given.weight)


def _lightgbm(given: Given) -> Any:
    lightgbm = require("lightgbm", "LightGBM", "lightgbm")
    loss = given.problem.loss
    own: dict[str, Any] = {"random_state": given.problem.seed, "n_jobs": given.problem.threads, "verbose": -1}
    categories: Any = given.columns.category_columns() or "auto"
    if loss.is_ranking:
        sizes = np.diff(queries_of(_query(given)).starts)
        return lightgbm.LGBMRanker(**own).fit(given.x, given.y, given.weight, group=sizes, categorical_feature=categories)
    if not given.problem.has_classes and loss != Loss():
        own |= {"objective": {"absolute_error": "l1"}.get(loss.name, loss.name)}
        own |= {"alpha": loss.quantile} if loss.quantile is not None else {}
    return getattr(lightgbm, f"LGBM{given.kind}")(**own).fit(given.x, given.y, given.weight, categorical_feature=categories)


def _xgboost(given: Given) -> Any:
    xgboost = require("xgboost", "XGBoost", "xgboost")
    loss = given.problem.loss
    own: dict[str, Any] = {"random_state": given.problem.seed, "n_jobs": given.problem.threads, "verbosity": 0}
    if categories := given.columns.category_columns():
        types = ["c" if number in categories else "q" for number in range(given.x.shape[1])]
        own |= {"enable_categorical": True, "feature_types": types}
    if loss.is_ranking:
        query = _query(given)
        weight = None if given.weight is None else query_weights(given.weight, queries_of(query))
        return xgboost.XGBRanker(**own).fit(given.x, given.y, qid=query, sample_weight=weight)
    if not given.problem.has_classes and loss != Loss():
        names = {"absolute_error": "reg:absoluteerror", "quantile": "reg:quantileerror", "poisson": "count:poisson"}
        own |= {"objective": names[loss.name]}
        own |= {"quantile_alpha": loss.quantile} if loss.quantile is not None else {}
    return getattr(xgboost, f"XGB{given.kind}")(**own).fit(given.x, given.y, sample_weight=given.weight)


class _ForCatBoost(NumberColumns):
    """Categories as words, as CatBoost takes them."""

    def made(self, rows: TabularRows) -> Any:
        x = super().made(rows)
        if not (categories := self.category_columns()):
            return x
        x = x.astype(object)
        for number in categories:
            x[:, number] = [str(each) for each in x[:, number]]
        return x


def _catboost(given: Given) -> Any:
    catboost = require("catboost", "CatBoost", "catboost")
    loss = given.problem.loss
    own: dict[str, Any] = {"random_seed": given.problem.seed, "thread_count": given.problem.threads, "verbose": False}
    own |= {"allow_writing_files": False, "cat_features": given.columns.category_columns() or None}
    if not given.problem.has_classes and loss != Loss():
        names = {"absolute_error": "MAE", "quantile": f"Quantile:alpha={loss.level:g}", "poisson": "Poisson"}
        own |= {"loss_function": names[loss.name]}
    return getattr(catboost, f"CatBoost{given.kind}")(**own).fit(given.x, given.y, sample_weight=given.weight)


def _query(given: Given) -> Array:
    assert given.query is not None
    return given.query


def _method(name: str, package: str, columns: Any, fit: Callable[[Given], Any], **lacks: str) -> Method:
    return Method(name, package, columns, fit, lacks)


NO_QUANTILES = {
    "absolute_error": "it has no fast fit to absolute errors",
    "quantile": "it has no fast fit to quantiles",
}
METHODS = (
    _method(CONSTANT, "scikit-learn", NumberColumns, _constant),
    _method("linear model", "scikit-learn", ScaledColumns, _linear, **NO_QUANTILES),
    _method("random forest", "scikit-learn", CategoryColumns, _forest, **NO_QUANTILES),
    _method("HistGradientBoosting", "scikit-learn", NumberColumns, _histograms),
    _method("LightGBM", "lightgbm", NumberColumns, _lightgbm),
    _method("XGBoost", "xgboost", NumberColumns, _xgboost),
    _method("CatBoost", "catboost", _ForCatBoost, _catboost, lambdarank="its ranker is not compared"),
)


def contestants(problem: Problem, methods: tuple[Method, ...] = METHODS) -> tuple[dict[str, Fit], dict[str, str]]:
    """How each method is fitted to rows, by its name; and the methods that are left out, and why."""
    fits: dict[str, Fit] = {}
    left_out: dict[str, str] = {}
    for method in methods:
        if (why := method.lacks.get(problem.loss.name)) and not problem.has_classes:
            left_out[method.name] = why
        elif not method.is_installed:
            left_out[method.name] = f"not installed: pip install {method.package}"
        else:
            fits[method.name] = partial(fit_peer, method, problem)
    return fits, left_out

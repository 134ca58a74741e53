"""`LUTClassifier` and `LUTRegressor`: one layer of lookup tables, fitted table by table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite, column_or_1d, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from lutetia._shared.losses import LOSSES, OWN, Loss
from lutetia.errors import check_choice
from lutetia.models import Tabular, best_class, text_columns
from lutetia.sklearn.base import Array, TabularEstimator, probabilities
from lutetia.sklearn.checks import check_params, interactions, monotone_columns
from lutetia.sklearn.curves import WithCurves
from lutetia.sklearn.several import KINDS, SeveralClasses, SeveralNumbers
from lutetia.training import (
    Boosted,
    Boosting,
    Each,
    RefitTrial,
    Shape,
    TabularRows,
    balanced_factors,
    describe_texts,
    fit_tabular,
    function_name,
    half_widths,
    interval_bounds,
    interval_ends,
    refit_tables,
    try_refit,
    with_texts,
)

PARAMS: dict[str, tuple[type | tuple[type, ...], float, float]] = {
    "n_tables": (int, 1, np.inf),
    "n_anchors": (int, 1, 12),
    "learning_rate": ((int, float), 1e-12, np.inf),
    "candidates": (int, 1, np.inf),
    "pairs": ((int, float), 0, 1),
    "max_rows": (int, 1, np.inf),
    "smoothing": ((int, float), 0, np.inf),
    "max_bins": (int, 2, 255),
    "n_iter_no_change": (int, 1, np.inf),
}


ENOUGH_FOR_INTERVALS = 45  # samples, of which a fifth, nine, say how wide intervals must be
TABLES_OF_FEW = 250  # at most, where early_stopping="auto" finds too few samples to hold some out
LARGEST = float(np.finfo(np.float32).max)


class BoostedEstimator(WithCurves, TabularEstimator):
    """What classifier and regressor have in common: how their tables are fitted."""

    monotonic_cst: Any
    interaction_cst: Any

    def _fit(self, rows: TabularRows, n_classes: int, eval_set: Any) -> None:
        with self._progress(self.n_tables * (1 + getattr(self, "calibrate", False))) as each:
            self.model_, fitted = self.fit_rows(rows, self._shape(n_classes), eval_set, each)
        self.n_tables_ = self.n_iter_ = len(fitted.anchors)
        self.losses_, self.temperature_ = fitted.losses, fitted.temperature
        known = {**self._describe_data(rows), **self._describe_target()}
        self.model_.metadata = describe_texts(known, self.model_.metadata)

    def fit_rows(
        self, rows: TabularRows, shape: Shape, eval_set: Any = None, each: Each | None = None
    ) -> tuple[Tabular, Boosted]:
        """The model that these parameters fit to rows, and how its fit went; the estimator stays as it is."""
        own, valid = self._held_out(rows, eval_set)
        settings = self._boosting(eval_set, rows)
        return fit_tabular(own, shape, settings, most_codes=self._most_codes(), valid=valid, each=each)

    def _shape(self, n_classes: int) -> Shape:
        """The shape of the data, with the constraints of the columns."""
        shape = super()._shape(n_classes)
        wanted = monotone_columns(self.monotonic_cst, self._names_in(), self.n_features_in_)
        if any(wanted[number] for number in self.texts_ if wanted):
            raise ValueError("Columns of text cannot have monotonic constraints")
        monotone = tuple(wanted[number] for number in self._plain) if wanted else ()
        if monotone and n_classes > 2:
            raise ValueError("monotonic constraints are not supported for multiclass classification")
        wrong = [number for number, sign in zip(self._plain, monotone, strict=False) if sign and number in self.categories_]
        if wrong:
            raise ValueError(f"Categorical features cannot have monotonic constraints: {self.names()[wrong[0]]!r} has one")
        meet = interactions(self.interaction_cst, self._names_in(), self.n_features_in_)
        return replace(shape, monotone=monotone, interactions=meet)

    def _boosting(self, eval_set: Any, rows: TabularRows) -> Boosting:
        """The settings of the estimator's parameters, to fit these rows."""
        stops = self.n_iter_no_change if eval_set is not None or self._stops_early(rows) else None
        few = stops is None and self.early_stopping == "auto"
        return Boosting(
            n_tables=min(self.n_tables, TABLES_OF_FEW) if few else self.n_tables,
            n_anchors=self.n_anchors,
            rate=self.learning_rate,
            candidates=self.candidates,
            pairs=self.pairs,
            rows=self.max_rows,
            smoothing=self.smoothing,
            patience=stops,
            calibrate=getattr(self, "calibrate", False),
            enough_tables=getattr(self, "enough_tables", False),
            intervals=getattr(self, "intervals", False),
            loss=self._loss.name,
            quantile=self._loss.quantile,
            function=self._loss.function,
            seed=self._seed(),
            threads=self._threads(),
        )

    def _refit(self, X: Any, y: Any, n_tables: int, sample_weight: Any = None) -> tuple[Tabular, RefitTrial | None]:
        """The first tables as a model, fitted again to X and y if that helps on held-out samples; and the trial."""
        rows = y if isinstance(y, TabularRows) else self._weighted(self._more_rows(X, y, sample_weight))
        first = self.model_.first(n_tables)
        if n_tables == self.n_tables_ or self.model_.loss.is_own or self.model_.adds_chances or self.texts_:
            return first, None  # the own loss says nothing of two models, a fit adds scores, and words were weighed by these rows
        settings = self._boosting(None, rows)
        trial = try_refit(self.model_, rows, n_tables, settings)
        if trial is not None and not trial.gains:
            return first, trial
        return refit_tables(self.model_, rows, n_tables, self.n_tables_ - n_tables, settings), trial

    def _weighted(self, rows: TabularRows) -> TabularRows:
        return rows

    @property
    def _loss(self) -> Loss:
        """What numbers are fitted to, checked; nothing of classes."""
        return Loss()

    def _most_codes(self) -> int:
        return int(self.max_bins)

    def _describe_target(self) -> dict[str, Any]:
        raise NotImplementedError


class ClassifierTarget(ClassifierMixin):
    """Classes of any kind as numbers, and back."""

    classes_: Array  # sorted, as scikit-learn's metrics expect
    _order: Array | None = None  # the output of the model for each of them, where a run of `lutetia train` has another order

    def _target(self, y: Any, reset: bool = False) -> Array:
        y = column_or_1d(y, warn=True)
        if y.dtype.kind in "fO":
            assert_all_finite(y, input_name="y", estimator_name=type(self).__name__) if y.dtype.kind == "f" else _check_objects(y)
        check_classification_targets(y)
        if reset:
            self._order = None
            self.classes_, numbers = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                raise ValueError(
                    f"y holds one class, {self.classes_.tolist()[0]!r}: the number of classes has to be greater than one"
                )
            return numbers.astype(np.int64)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y of eval_set holds the class {unknown.tolist()[0]!r}, which is not in the training data")
        return np.searchsorted(self.classes_, y).astype(np.int64)

    def _weighted(self, rows: TabularRows) -> TabularRows:
        """The rows with class_weight in their weights."""
        if self.class_weight is None:
            return rows
        factors = _class_factors(self.class_weight, self.classes_, rows)
        return replace(rows, weight=(rows.weight * factors[rows.y]).astype(np.float32))

    def _describe_target(self) -> dict[str, Any]:
        names = [str(name) for name in self.classes_]
        known: dict[str, Any] = {"task": "classification"}
        if len(set(names)) == len(names) and all(name.strip() for name in names):
            known["classes"] = names
        return known

    def _class_number(self, target: Any) -> int:
        numbers = [number for number, value in enumerate(self.classes_.tolist()) if value == target]
        if not numbers:
            raise ValueError(f"target is {target!r}, expected one of the classes {self.classes_.tolist()}")
        return numbers[0] if self._order is None else int(self._order[numbers[0]])

    def _scores(self, X: Any) -> Array:
        scores = super()._scores(X)
        return scores if self._order is None else scores[:, self._order]

    def predict(self, X: Any) -> Array:
        """The most probable class of each sample, [n]."""
        scores = self._scores(X)
        return self.classes_[best_class(self.model_, torch.from_numpy(scores)).numpy()]

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, float64 [n, n_classes], in the order of `classes_`."""
        scores = self._scores(X)
        return probabilities(self.model_, scores)

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def decision_function(self, X: Any) -> Array:
        """The scores [n, n_classes]; of two classes [n], positive for the second."""
        scores = self._scores(X).astype(np.float64)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def _state(self) -> dict[str, Any]:
        kind = self.classes_.dtype.kind
        classes = self.classes_ if self._order is None else self.classes_[np.argsort(self._order)]
        return {**super()._state(), "class_kind": kind, "classes": [_json(each) for each in classes.tolist()]}

    def _restore(self, model: Any, state: dict[str, Any]) -> None:
        super()._restore(model, state)
        classes = np.array(state["classes"], dtype=KINDS[state["class_kind"]])
        order = np.argsort(classes, kind="stable")
        self.classes_, self._order = classes[order], None if (order == np.arange(len(order))).all() else order


class LUTClassifier(SeveralClasses, ClassifierTarget, BoostedEstimator):
    """A classifier of lookup tables: `n_tables` tables of 2**n_anchors rows each, whose sum is the score of each class.

    Columns become ranks by quantiles of the training data; each table asks `n_anchors` questions, a column against a threshold or
    two columns against each other, each the best of `candidates` for the remaining loss. Missing values have their own rank.
    Columns of categories: see `categorical_features`. Columns of text become words: those of a frame that hold strings and look
    like it, or those that `text_features` lists by name or number, or none with None. With `monotonic_cst`, as in scikit-learn,
    the score of the second of two classes never falls as a column of 1 rises, and never rises with one of -1: a number per
    column, or a dict by their names. `interaction_cst`, as there, limits which columns meet in a table: "no_interactions",
    "pairwise", or a list of sets of columns, by numbers or names. With `calibrate` a trial fit to four fifths of the samples
    says, on the last fifth, by what number (`temperature_`) scores are divided, so that probabilities are not too high. With
    `enough_tables` the same samples say how many tables are enough, of `n_tables` at most. An `eval_set`, (X, y) or (X, y,
    sample_weight), or `early_stopping`, ends the fit after 10 · n_iter_no_change tables that did not help.

    Samples count by `sample_weight` in the fit and in all that is held out of it: early stopping, calibration, intervals.
    """

    def __init__(
        self,
        n_tables: int = 500,
        n_anchors: int = 6,
        *,
        learning_rate: float = 0.1,
        candidates: int = 64,
        pairs: float = 0.25,
        max_rows: int = 8192,
        smoothing: float = 1.0,
        max_bins: int = 255,
        categorical_features: Any = "from_dtype",
        text_features: Any = "auto",
        handle_unknown: str = "error",
        monotonic_cst: Any = None,
        interaction_cst: Any = None,
        class_weight: Any = None,
        calibrate: bool = False,
        enough_tables: bool = False,
        early_stopping: bool | str = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_tables, self.n_anchors, self.learning_rate = n_tables, n_anchors, learning_rate
        self.candidates, self.pairs, self.max_rows, self.smoothing = candidates, pairs, max_rows, smoothing
        self.max_bins, self.categorical_features, self.handle_unknown = max_bins, categorical_features, handle_unknown
        self.class_weight, self.early_stopping, self.validation_fraction = class_weight, early_stopping, validation_fraction
        self.calibrate, self.enough_tables = calibrate, enough_tables
        self.monotonic_cst, self.interaction_cst = monotonic_cst, interaction_cst
        self.n_iter_no_change, self.random_state, self.n_jobs, self.verbose = n_iter_no_change, random_state, n_jobs, verbose
        self.text_features = text_features

    def fit(self, X: Any, y: Any, sample_weight: Any = None, eval_set: Any = None) -> Self:
        """Fit to X [n, columns] and classes y [n] of any kind; of several targets, or labels that may occur together,
        [n, targets]."""
        check_params(self, PARAMS)
        for name in ("calibrate", "enough_tables"):
            if getattr(self, name) not in (True, False):
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected True or False")
        if self.enough_tables and not self.calibrate:
            raise ValueError("enough_tables is True and calibrate is False, whose trial fit says how many are enough")
        rows = self._weighted(self._rows(X, y, sample_weight))
        self._fit(rows, len(self.classes_), eval_set)
        return self


class NumberTarget(BoostedEstimator):
    """Numbers, and the intervals of their predictions."""

    loss: Any

    def _target(self, y: Any, reset: bool = False) -> Array:
        y = column_or_1d(y, warn=True)
        if y.dtype.kind in "OUS":
            y = y.astype(np.float64)
        assert_all_finite(y, input_name="y", estimator_name=type(self).__name__)
        largest = float(np.abs(y.astype(np.float64)).max(initial=0))
        if largest > LARGEST:
            raise ValueError(f"y holds a number of size {largest:.6g}, expected numbers that fit a 32-bit float")
        if not reset:
            self._loss.check_sign(y, "y of eval_set")
        return y.astype(np.float64)

    def predict(self, X: Any) -> Array:
        """The number predicted for each sample, float64 [n]."""
        check_is_fitted(self, "model_")
        return self.model_.loss.numbers(self._scores(X)[:, 0])

    def predict_interval(self, X: Any) -> Array:
        """What nine in ten numbers of new samples lie between, float64 [n, 2]: low and high.

        For an estimator that was fitted with intervals=True, or by `lutetia train`.
        """
        middle = self.predict(X)
        reach = half_widths(self.model_, self._matrix(X))
        if reach is None:
            is_middle = self.model_.loss.has_intervals
            why = "fit it with intervals=True" if is_middle else "a quantile is an end of an interval, not its middle"
            raise ValueError(f"the errors of this model are not known: {why}")
        return np.stack(interval_ends(self.model_, middle, reach), 1)

    def _describe_target(self) -> dict[str, Any]:
        return {"task": "regression", **({"loss_name": function_name(self.loss)} if callable(self.loss) else {})}


class LUTRegressor(SeveralNumbers, RegressorMixin, NumberTarget):
    """A regressor of lookup tables; its parameters are those of `LUTClassifier`, and `loss`, named as in scikit-learn:
    "squared_error" predicts the mean, "absolute_error" the median, "quantile" the number that a part `quantile` of all samples
    stays below, and "poisson" the mean of counts or amounts that are never negative, through logarithms. A function of your own,
    (y_true, y_pred) or (y_true, y_pred, sample_weight) -> (gradient, hessian), is a loss as in LightGBM and XGBoost; where it has
    a method `value(y_true, y_pred)`, the loss of each sample, early stopping goes by that.

    The best number of tables differs by a factor of ten between regressions, so by default a tenth of the samples decides it:
    early_stopping="auto", which is on from 100 samples. With `intervals` a few more tables learn how far off each prediction may
    be, and a fifth of the samples, which is not fitted, says how wide intervals must be: see `predict_interval`.
    """

    def __init__(
        self,
        n_tables: int = 2000,
        n_anchors: int = 6,
        *,
        loss: str | Callable[..., Any] = "squared_error",
        quantile: float | None = None,
        learning_rate: float = 0.1,
        candidates: int = 64,
        pairs: float = 0.25,
        max_rows: int = 8192,
        smoothing: float = 1.0,
        max_bins: int = 255,
        categorical_features: Any = "from_dtype",
        text_features: Any = "auto",
        handle_unknown: str = "error",
        monotonic_cst: Any = None,
        interaction_cst: Any = None,
        intervals: bool = False,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_tables, self.n_anchors, self.learning_rate = n_tables, n_anchors, learning_rate
        self.loss, self.quantile = loss, quantile
        self.monotonic_cst, self.interaction_cst = monotonic_cst, interaction_cst
        self.candidates, self.pairs, self.max_rows, self.smoothing = candidates, pairs, max_rows, smoothing
        self.max_bins, self.categorical_features, self.handle_unknown = max_bins, categorical_features, handle_unknown
        self.intervals, self.early_stopping, self.validation_fraction = intervals, early_stopping, validation_fraction
        self.n_iter_no_change, self.random_state, self.n_jobs, self.verbose = n_iter_no_change, random_state, n_jobs, verbose
        self.text_features = text_features

    def fit(self, X: Any, y: Any, sample_weight: Any = None, eval_set: Any = None) -> Self:
        """Fit to X [n, columns] and numbers y [n], of several targets [n, targets]."""
        check_params(self, PARAMS)
        if self.intervals not in (True, False):
            raise ValueError(f"intervals is {self.intervals!r}, expected True or False")
        loss = self._loss
        if self.intervals and not loss.has_intervals:
            raise ValueError('intervals is True with loss="quantile", expected False: a quantile is an end, not a middle')
        rows = self._rows(X, y, sample_weight)
        for y in rows.y.reshape(len(rows.y), -1).T:
            loss.check_target(y[rows.weight > 0])
        if not self.intervals:
            self._fit(rows, 1, eval_set)
            return self
        count = int((rows.weight > 0).sum())
        if count < ENOUGH_FOR_INTERVALS:
            raise ValueError(f"intervals is True with {count} samples, expected {ENOUGH_FOR_INTERVALS} or more")
        own, held = rows.held_out(self._seed())
        self._fit(own, 1, eval_set)
        if self.target_names_ is not None:
            self._know_errors(held)
            return self
        x = with_texts(held, text_columns(self.model_.metadata)).x
        self.model_.metadata |= interval_bounds(self.model_, x, held.y, held.weight)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = isinstance(self.loss, str) and self.loss == "poisson"
        return tags

    @property
    def _loss(self) -> Loss:
        """What numbers are fitted to: by its name, or a function."""
        if callable(self.loss):
            return Loss(OWN, self.quantile, self.loss)
        if isinstance(self.loss, str) and self.loss == OWN:
            raise ValueError(f"loss is {OWN!r}, a function that no folder holds: set_params(loss=FUNCTION) before fit")
        check_choice("loss", self.loss, LOSSES)
        return Loss(self.loss, self.quantile)

    def _saved_params(self) -> dict[str, Any]:
        return super()._saved_params() | ({"loss": OWN} if callable(self.loss) else {})


def _class_factors(wanted: Any, classes: Array, rows: TabularRows) -> Array:
    """The factor of each class, [n_classes]; "balanced" counts samples by their weights."""
    if isinstance(wanted, str) and wanted == "balanced":
        return balanced_factors(rows, len(classes))
    return compute_class_weight(wanted, classes=classes, y=classes[rows.y])


def _check_objects(y: Array) -> None:
    missing = [value for value in y if value is None or value != value]
    if missing:
        raise ValueError("Input y contains NaN.")


def _json(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)

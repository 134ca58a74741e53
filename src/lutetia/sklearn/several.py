"""Several targets in one estimator: y [n, targets], as scikit-learn's trees, forests and neighbours take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from sklearn.utils import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from lutetia.errors import ArgumentError
from lutetia.models import Targets, chances
from lutetia.sklearn.base import TabularEstimator
from lutetia.training import Boosted, Each, TabularRows, fit_targets, one_target, target_bounds

if TYPE_CHECKING:
    from lutetia.report import Curves

Array = np.ndarray[Any, Any]
KINDS = {"i": np.int64, "u": np.uint64, "f": np.float64, "b": bool, "U": None, "O": object}  # of classes in a folder


def target_columns(y: Any) -> list[Array] | None:
    """The columns of y [n, targets]; None of one target."""
    shape: tuple[int, ...] = np.shape(y) if hasattr(y, "shape") or isinstance(y, list | tuple) else ()
    if len(shape) != 2 or shape[1] < 2:
        return None
    if hasattr(y, "columns"):  # of a frame, whose columns may differ in type
        return [np.asarray(y[name]) for name in y.columns]
    return list(np.asarray(y).T)


def target_names(y: Any, count: int) -> list[str]:
    """What the targets are called: the columns of a frame, or y0, y1, .."""
    names = [str(name) for name in getattr(y, "columns", ())]
    if len(set(names)) == count and all(map(str.strip, names)):
        return names
    return [f"y{number}" for number in range(count)]


class SeveralTargets:
    """What classifier and regressor do with several targets; `target_names_` names them."""

    model_: Any
    target_names_: list[str] | None = None  # None of one target

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.target_tags.multi_output = True
        if tags.classifier_tags is not None:
            tags.classifier_tags.multi_label = True
        return tags

    def _target(self, y: Any, reset: bool = False) -> Array:
        columns = target_columns(y)
        if reset:
            self.target_names_ = None if columns is None else target_names(y, len(columns))
        elif (0 if columns is None else len(columns)) != len(self.target_names_ or ()):
            found, wanted = (1 if each is None else len(each) for each in (columns, self.target_names_))
            raise ValueError(f"y has {found} targets, expected {wanted} as in fit")
        if columns is None:
            return super()._target(y, reset)  # type: ignore[misc]
        return self._targets(columns, reset)

    def _targets(self, columns: Sequence[Array], reset: bool) -> Array:
        raise NotImplementedError

    def fit_rows(self, rows: TabularRows, shape: Any, eval_set: Any = None, each: Each | None = None) -> tuple[Any, Boosted]:
        """The model that these parameters fit to rows, and how its fit went; the estimator stays as it is."""
        if rows.y.ndim == 1:
            return super().fit_rows(rows, shape, eval_set, each)  # type: ignore[misc]
        estimator: Any = self
        own, valid = estimator._held_out(rows, eval_set)
        settings, most_codes = estimator._boosting(eval_set, rows), estimator._most_codes()
        try:
            return fit_targets(own, shape, self._outputs(), settings, most_codes=most_codes, valid=valid, each=each)
        except ArgumentError as error:
            raise ValueError(str(error)) from error

    def _outputs(self) -> tuple[int, ...]:
        raise NotImplementedError

    def _several_scores(self, X: Any) -> list[Array]:
        """The scores [n, outputs] of each target."""
        scores = TabularEstimator._scores(self, X)  # type: ignore[arg-type]
        return [np.ascontiguousarray(scores[:, part]) for part in self.model_.slices]

    def one_target(self, name: Any) -> Self:
        """The estimator of one of several targets, by its name or its number: it explains, writes C and becomes a circuit."""
        check_is_fitted(self, "model_")
        if self.target_names_ is None:
            raise ValueError(f"the target is {name!r}, and the estimator has one target alone")
        number = self.model_.number_of(str(name))
        made = type(self)(**self.get_params(deep=False))  # type: ignore[attr-defined]
        for key, value in vars(self).items():
            if key.endswith("_") or key == "_order":
                setattr(made, key, value)
        made.target_names_, made.model_ = None, self.model_.part(number)
        made.n_tables_ = made.model_.config.n_tables  # type: ignore[attr-defined]
        made._take_target(self, number)
        return made

    def _take_target(self, other: Any, number: int) -> None:
        """Take what is known of one target of another estimator."""

    def explain(self, X: Any, *, output: Any = None, **options: Any) -> Any:
        """Which columns and which comparisons made each prediction, or with `target` the score of that class.

        Of several targets, `output` says which one is explained, by its name or number. `rule` is one of `lutetia.relevance`:
        "decisive" by default. "shapley" gives exact Shapley values: how each column moved the prediction away from the average of
        `background`, such as the rows that were fitted, of which 128 are drawn.
        """
        check_is_fitted(self, "model_")
        if output is not None:
            return self.one_target(output).explain(X, **options)
        self._one_model("explain")
        return super().explain(X, **options)  # type: ignore[misc]

    def curves(self, X: Any) -> Curves:
        self._one_model("curves")
        return super().curves(X)  # type: ignore[misc]

    def to_circuit(self, *given: Any, **options: Any) -> Any:
        self._one_model("to_circuit")
        return super().to_circuit(*given, **options)  # type: ignore[misc]

    def to_c(self, **options: Any) -> dict[str, str]:
        self._one_model("to_c")
        return super().to_c(**options)  # type: ignore[misc]

    def _one_model(self, what: str) -> None:
        """Refuse several targets."""
        check_is_fitted(self, "model_")
        if self.target_names_ is not None:
            names = ", ".join(map(repr, self.target_names_))
            of_one = f"one_target({self.target_names_[0]!r}).{what}(..)"
            raise ValueError(f"{what} is for one target, and this estimator has {names}: {of_one}")

    def _describe_target(self) -> dict[str, Any]:
        if self.target_names_ is None:
            return super()._describe_target()  # type: ignore[misc]
        told = [{"target": name, **own} for name, own in zip(self.target_names_, self._told_of_each(), strict=True)]
        return {"task": "regression" if self.model_.is_regression else "classification", "targets": told}

    def _told_of_each(self) -> list[dict[str, Any]]:
        return [{} for _ in self.target_names_ or ()]

    def _restore(self, model: Any, state: dict[str, Any]) -> None:
        self.target_names_ = model.names if isinstance(model, Targets) else None
        super()._restore(model, state)  # type: ignore[misc]


class SeveralNumbers(SeveralTargets):
    """Several numbers."""

    def _targets(self, columns: Sequence[Array], reset: bool) -> Array:
        return np.stack([super(SeveralTargets, self)._target(column, reset) for column in columns], 1)  # type: ignore[misc]

    def _outputs(self) -> tuple[int, ...]:
        return (1,) * len(self.target_names_ or ())

    def predict(self, X: Any) -> Array:
        """The number predicted for each sample, float64 [n]; of several targets [n, targets]."""
        check_is_fitted(self, "model_")
        if self.target_names_ is None:
            return super().predict(X)  # type: ignore[misc]
        return np.stack([self.model_.loss.numbers(own[:, 0]) for own in self._several_scores(X)], 1)

    def predict_interval(self, X: Any) -> Array:
        """What nine in ten numbers of new samples lie between, float64 [n, 2]: low and high; of several targets [n, targets, 2].

        For an estimator that was fitted with intervals=True, or by `lutetia train`.
        """
        if self.target_names_ is None:
            return super().predict_interval(X)  # type: ignore[misc]
        return np.stack([self.one_target(number).predict_interval(X) for number in range(len(self.target_names_))], 1)

    def _know_errors(self, held: TabularRows) -> None:
        """Take the errors of rows that were not fitted into what is known of each target."""
        told = zip(self.model_.metadata["targets"], target_bounds(self.model_, held), strict=True)
        self.model_.metadata["targets"] = [{**own, **bounds} for own, bounds in told]


class SeveralClasses(SeveralTargets):
    """Several classes: labels that may occur together, or columns of classes. `classes_` has a list for each target."""

    classes_: Any
    _order: Any
    class_weight: Any

    def _targets(self, columns: Sequence[Array], reset: bool) -> Array:
        kept = self.classes_ if not reset else [None] * len(columns)
        found = []
        for number, column in enumerate(columns):
            self.classes_ = kept[number]
            try:
                found.append(super(SeveralTargets, self)._target(column, reset))  # type: ignore[misc]
            except ValueError as error:
                raise ValueError(f"target {number} of y: {error}") from error
            kept[number] = self.classes_
        self.classes_, self._order = kept, [None] * len(columns)
        return np.stack(found, 1)

    def _outputs(self) -> tuple[int, ...]:
        return tuple(map(len, self.classes_))

    def _take_target(self, other: Any, number: int) -> None:
        self.classes_, self._order = other.classes_[number], other._order[number]

    def _weighted(self, rows: TabularRows) -> TabularRows:
        """The rows with class_weight in their weights: of several targets the product of theirs, as in scikit-learn's trees."""
        if self.target_names_ is None or self.class_weight is None:
            return super()._weighted(rows)  # type: ignore[misc]
        weight = rows.weight.astype(np.float64)
        every = self.class_weight if isinstance(self.class_weight, list) else [self.class_weight] * len(self.classes_)
        if len(every) != len(self.classes_) or (isinstance(self.class_weight, dict)):
            raise ValueError(f"class_weight is {self.class_weight!r}, expected 'balanced', or a list of one for each target")
        for number, (wanted, classes) in enumerate(zip(every, self.classes_, strict=True)):
            y = one_target(rows, number).y
            weight *= compute_class_weight(wanted, classes=classes, y=classes[y], sample_weight=rows.weight)[y]
        return TabularRows(rows.x, rows.y, weight.astype(np.float32), rows.split, rows.query, rows.texts)

    def predict(self, X: Any) -> Array:
        """The most probable class of each sample, [n]; of several targets [n, targets]."""
        check_is_fitted(self, "model_")
        if self.target_names_ is None:
            return super().predict(X)  # type: ignore[misc]
        best = [own.argmax(1) for own in self._ordered_scores(X)]
        return np.stack([classes[own] for classes, own in zip(self.classes_, best, strict=True)], 1)

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class, float64 [n, n_classes], in the order of `classes_`; of several targets a list."""
        check_is_fitted(self, "model_")
        if self.target_names_ is None:
            return super().predict_proba(X)  # type: ignore[misc]
        return [chances(self.model_, torch.from_numpy(own)).numpy() for own in self._ordered_scores(X)]

    def predict_log_proba(self, X: Any) -> Any:
        """The logarithms of `predict_proba`."""
        found = self.predict_proba(X)
        with np.errstate(divide="ignore"):
            return [np.log(own) for own in found] if isinstance(found, list) else np.log(found)

    @available_if(lambda self: self.target_names_ is None)
    def decision_function(self, X: Any) -> Array:
        """The scores [n, n_classes]; of two classes [n], positive for the second. As in scikit-learn's trees there are none of
        several targets."""
        return super().decision_function(X)  # type: ignore[misc]

    def _ordered_scores(self, X: Any) -> list[Array]:
        """The scores of each target, in the order of its `classes_`."""
        found = zip(self._several_scores(X), self._order, strict=True)
        return [own if order is None else own[:, order] for own, order in found]

    def _told_of_each(self) -> list[dict[str, Any]]:
        told = []
        for classes in self.classes_:
            names = [str(name) for name in classes]
            is_plain = len(set(names)) == len(names) and all(name.strip() for name in names)
            told.append({"classes": names} if is_plain else {})
        return told

    def _state(self) -> dict[str, Any]:
        if self.target_names_ is None:
            return super()._state()  # type: ignore[misc]
        listed = [
            own.tolist() if order is None else own[np.argsort(order)].tolist()
            for own, order in zip(self.classes_, self._order, strict=True)
        ]
        kinds = [own.dtype.kind for own in self.classes_]
        plain = [[each if isinstance(each, str | int | float | bool) else str(each) for each in own] for own in listed]
        return {"named": hasattr(self, "feature_names_in_"), "class_kinds": kinds, "classes": plain}

    def _restore(self, model: Any, state: dict[str, Any]) -> None:
        if not isinstance(model, Targets):
            super()._restore(model, state)
            return
        super()._restore(model, {**state, "class_kind": "U", "classes": []})
        self.classes_, self._order = [], []
        for kind, known in zip(state["class_kinds"], state["classes"], strict=True):
            classes: Array = np.array(known, dtype=KINDS[kind])
            order = np.argsort(classes, kind="stable")
            self.classes_.append(classes[order])
            self._order.append(None if (order == np.arange(len(order))).all() else order)

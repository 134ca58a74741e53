"""What the estimators share: tables of data in, checked as scikit-learn checks them; predictions, explanations, circuits and
folders out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_array, check_consistent_length, check_is_fitted, validate_data

from lutetia.errors import DataError
from lutetia.models import (
    Grams,
    Model,
    Tabular,
    Targets,
    as_readings,
    chances,
    data_columns,
    in_run,
    load,
    read_config,
    save,
    text_columns,
    text_inputs,
)
from lutetia.sklearn.columns import check_names, find_categories, find_dates, find_texts, is_frame, texts_of, to_matrix
from lutetia.sklearn.explanation import Explanation, explain_rows
from lutetia.sklearn.progress import progress
from lutetia.sklearn.runs import state_of_run
from lutetia.training import DateColumn, Shape, TabularRows, add_table_scores, as_texts, describe_columns, read_texts

if TYPE_CHECKING:
    from lutetia.precompute import Build
    from lutetia.training import RefitTrial

Array = np.ndarray[Any, Any]
AT_ONCE = 1 << 17  # samples that are encoded and scored together
SIMULATED = 64  # samples of training data
MOST_WEIGHT = 1e30  # of a sample, so that sums of weights are 32-bit floats
ENOUGH, ENOUGH_QUERIES = 100, 50  # samples, or queries, of which early_stopping="auto" holds some out


class TabularEstimator(BaseEstimator):
    """A `lutetia.models.Tabular` behind scikit-learn's methods; `model_` is that model once it is fitted."""

    model_: Any  # a Tabular, of several targets a Targets
    n_features_in_: int
    feature_names_in_: Array
    categories_: dict[int, list[Any]]
    dates_: dict[int, DateColumn]  # by the number of a column of dates, how they are written
    texts_: list[int]  # the numbers of the columns of text

    # Of the subclasses; here so that their names are known.
    categorical_features: Any
    text_features: Any = None  # of estimators that take no texts
    handle_unknown: str
    max_bins: int
    early_stopping: bool | str
    validation_fraction: float
    n_iter_no_change: int
    random_state: Any
    n_jobs: int | None
    verbose: int

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = False
        tags.input_tags.categorical = False
        return tags

    # ---- data in -----------------------------------------------------------------------------------------------------

    def _matrix(self, X: Any) -> Array:
        """X as inputs of the model, float64 [n, inputs], its columns checked against those of fit."""
        matrix, texts = self._parts(X)
        return np.concatenate([matrix, text_inputs(text_columns(self.model_.metadata), texts)], 1) if texts else matrix

    def _parts(self, X: Any, reset: bool = False) -> tuple[Array, tuple[Grams, ...]]:
        """X as float64 [n, columns], its columns checked against those of fit, or with `reset` learned; and its texts."""
        if hasattr(X, "collect"):
            raise TypeError(f"X is a {type(X).__name__}, which holds no rows yet, expected X.collect()")
        if type(X).__name__ == "Series":
            raise ValueError("Expected 2D array, got a Series, one row or one column, instead: X[:1] is a table of one row")
        if is_frame(X):
            check_names(X)
        held = isinstance(X, np.ndarray) and X.dtype.kind in "OUS" and X.ndim == 2
        categories, dates, texts = ({}, {}, []) if reset else (self.categories_, self.dates_, self.texts_)
        if reset:
            asked = [self.categorical_features, self.text_features]
            listed = any(wanted is not None and not isinstance(wanted, str) for wanted in asked)
        if is_frame(X) or (held and (categories or dates or texts if not reset else listed)):
            validate_data(self, X, reset=reset, skip_check_array=True)
            if reset:
                categories = find_categories(X, self.categorical_features, self._names_in(), X.shape[1])
                dates = find_dates(X, categories) if is_frame(X) else {}
                texts = find_texts(X, self.text_features, self._names_in(), {*categories, *dates})
            matrix = to_matrix(X, categories, self.names(X.shape[1]), self.handle_unknown, dates, texts)
            if matrix.shape[1] or not texts:
                matrix = check_array(matrix, dtype=np.float64, ensure_all_finite="allow-nan", estimator=self, input_name="X")
        else:
            if reset or not self._is_plain(X):  # scikit-learn's checks take longer than the prediction of a row
                X = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=reset)
            matrix = X
            if reset and listed:
                categories = find_categories(matrix, self.categorical_features, self._names_in(), matrix.shape[1])
            if texts:
                raise ValueError(f"X holds numbers in column {self.names()[texts[0]]!r}, expected texts as in the training data")
            if categories:
                matrix = to_matrix(matrix, categories, self.names(matrix.shape[1]), self.handle_unknown)
        titles = self.names()
        if reset:
            named = [titles[number] for number in texts]
            if len(set(named)) < len(named) or not all(map(str.strip, named)):
                raise ValueError(f"the columns of text are named {named}, expected a name of its own for each")
            self.categories_, self.dates_, self.texts_ = categories, dates, texts
            self._check_columns(matrix)
        return matrix, tuple(read_texts(texts_of(X, number), titles[number], number, reset) for number in texts)

    def _is_plain(self, X: Any) -> bool:
        """Whether X is an array that scikit-learn's checks would hand back as it is, without a word."""
        return (
            type(X) is np.ndarray
            and X.dtype == np.float64
            and X.ndim == 2
            and len(X) > 0
            and X.shape[1] == self.n_features_in_ > 0
            and not hasattr(self, "feature_names_in_")
            and not np.isinf(X).any()
        )

    @property
    def _plain(self) -> list[int]:
        """The numbers of the columns that are not text: the first inputs of the model, in their order."""
        texts = frozenset(self.texts_)
        return [number for number in range(self.n_features_in_) if number not in texts]

    def _names_in(self) -> list[str] | None:
        return [str(name) for name in self.feature_names_in_] if hasattr(self, "feature_names_in_") else None

    def names(self, n_columns: int | None = None) -> list[str]:
        """The names of the columns: those of the frame that fit was given, or x0, x1, .."""
        return self._names_in() or [f"x{number}" for number in range(n_columns or self.n_features_in_)]

    def _check_columns(self, matrix: Array) -> None:
        empty = np.flatnonzero(np.isnan(matrix).all(0))
        if len(empty):
            number = self._plain[empty[0]]
            name = self.names()[number]
            raise ValueError(
                f"Input X has no value in column {name!r} (number {number}): all its values are missing. Leave it out."
            )

    def _weights(self, sample_weight: Any, matrix: Array) -> Array:
        weight = _check_sample_weight(sample_weight, matrix, dtype=np.float64, ensure_non_negative=True)
        if not weight.sum() > 0:
            raise ValueError("sample_weight is zero for every sample, expected a positive weight for some")
        largest = float(weight.max())
        if not 1 / MOST_WEIGHT <= largest <= MOST_WEIGHT:
            raise ValueError(f"the largest sample_weight is {largest:.6g}, expected {1 / MOST_WEIGHT:g} to {MOST_WEIGHT:g}")
        return weight.astype(np.float32)

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TabularRows:
        """What fit was given, checked; classes become numbers."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        matrix, texts = self._parts(X, reset=True)
        check_consistent_length(matrix, y)
        target = self._target(y, reset=True)
        return TabularRows(matrix, target, self._weights(sample_weight, matrix), texts=texts)

    def _target(self, y: Any, reset: bool = False) -> Array:
        raise NotImplementedError

    def _held_out(self, rows: TabularRows, eval_set: Any) -> tuple[TabularRows, TabularRows | None]:
        """The rows to fit and those to validate on: what was given, or with early stopping a part of the training data."""
        if eval_set is not None:
            return rows, eval_set if isinstance(eval_set, TabularRows) else self._more_rows(*self._only_set(eval_set))
        if not self._stops_early(rows):
            return rows, None
        rows = rows.counted()
        count = max(1, round(len(rows.y) * self.validation_fraction))
        order = np.roll(np.random.default_rng(self._seed()).permutation(len(rows.y)), -count)
        own, held = rows.split.parts(order, count)
        if not 0 < self.validation_fraction < 1 or not (len(own) and len(held)):
            what = "samples" if rows.query is None else "queries"
            raise ValueError(f"validation_fraction is {self.validation_fraction}, expected to leave {what} on both sides")
        return rows.at(own), rows.at(held)

    def _only_set(self, eval_set: Any) -> tuple[Any, ...]:
        """What an eval_set holds: (X, y) or (X, y, sample_weight), given as it is or in a list of one."""
        pairs = eval_set if isinstance(eval_set, list) else [eval_set]
        if len(pairs) != 1 or len(pairs[0]) not in (2, 3):
            raise ValueError(f"eval_set holds {len(pairs)} sets, expected one: (X, y), or (X, y, sample_weight)")
        return tuple(pairs[0])

    def _more_rows(self, X: Any, y: Any, sample_weight: Any = None) -> TabularRows:
        """Rows besides those of fit."""
        (matrix, texts), target = self._parts(X), self._target(y)
        check_consistent_length(matrix, target)
        return TabularRows(matrix, target, self._weights(sample_weight, matrix), texts=texts)

    def _stops_early(self, rows: TabularRows) -> bool:
        """Whether some of the samples, or queries, are held out to decide when to stop; "auto": if there are enough of them."""
        if self.early_stopping != "auto":
            return bool(self.early_stopping)
        return len(rows.y) >= ENOUGH if rows.query is None else len(np.unique(rows.query)) >= ENOUGH_QUERIES

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state) & 0x7FFFFFFF
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _threads(self) -> int:
        if self.n_jobs is None:
            return torch.get_num_threads()
        if self.n_jobs == 0:
            raise ValueError("n_jobs is 0, expected a positive number, or -1 for all processors")
        return self.n_jobs if self.n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + self.n_jobs)

    def _shape(self, n_classes: int) -> Shape:
        plain = self._plain
        counts = tuple(len(self.categories_.get(number, ())) for number in plain)
        return Shape(n_classes, counts, (len(plain),), frozenset(at for at, number in enumerate(plain) if number in self.dates_))

    def _progress(self, total: int) -> Any:
        return progress(type(self).__name__, total, bool(self.verbose))

    # ---- predictions -------------------------------------------------------------------------------------------------

    def _scores(self, X: Any) -> Array:
        """The sums of the tables, float32 [n, outputs]."""
        check_is_fitted(self, "model_")
        matrix = self._matrix(X)
        if self.model_.config.core == "gates":
            with torch.no_grad():
                return self.model_(torch.from_numpy(matrix)).numpy()
        return table_scores(self.model_, matrix, self._threads())

    # ---- explanations, circuits --------------------------------------------------------------------------------------

    def explain(self, X: Any, *, target: Any = None, rule: str | None = None, background: Any = None) -> Explanation:
        """Which columns and which comparisons made each prediction, or with `target` the score of that class.

        `rule` is one of `lutetia.relevance`: "decisive" by default; gates are explained by "occlusion". "shapley" gives exact
        Shapley values: how each column moved the prediction away from the average of `background`, such as the rows that were
        fitted, of which 128 are drawn.
        """
        check_is_fitted(self, "model_")
        matrix = self._matrix(X)
        number = None if target is None else self._class_number(target)
        titles = self.names()
        texts = {titles[each]: as_texts(texts_of(X, each)) for each in self.texts_}
        others = None if background is None else self._matrix(background)
        return explain_rows(self.model_, matrix, number, rule, texts, others)

    def _class_number(self, target: Any) -> int:
        raise ValueError(f"target is {target!r}, expected None: a regression has no classes")

    def to_circuit(
        self,
        X: Any = None,
        y: Any = None,
        sample_weight: Any = None,
        *,
        weight_bits: int = 8,
        input_bits: int | None = None,
        readings: str | Mapping[str, str] | None = None,
        n_tables: int | None = None,
        prove: bool = True,
        time_limit: float = 600.0,
    ) -> Build:
        """The fitted tables, or the first `n_tables` of them, as a circuit: written, simulated and with `prove` proved.

        Its inputs are codes of 8 bits, one per encoded column (`model_.encode`), or readings: whole numbers that stand for the
        values of a column. With `input_bits` they have so many bits; `readings` says what they are, by the names of columns, or
        for all: "-40+0.0625*u12" are 12 bits, unsigned, in steps of 0.0625 from -40 on; "auto" is what the data asks for. `X`
        holds samples to simulate; random inputs by default. With training data, `X` and `y`
        and where they were weighted `sample_weight`, the rows of the first `n_tables` are fitted to it again, which recovers much
        of what the others contributed, unless that is worse on held-out samples; 64 samples of it are simulated. The result's
        `report` says what was checked and under "refit" what was kept, its `hardware` holds the Verilog and VHDL.
        """
        from lutetia.precompute import CHECK, MAKE, OPTIMISE, PROOF, Build, run_steps

        check_is_fitted(self, "model_")
        model = self.model_ if n_tables is None else self.model_.first(n_tables)
        trial: RefitTrial | None = None
        if n_tables is not None and y is not None:
            model, trial = self._refit(X, y, n_tables, sample_weight)
        network = model.network(weight_bits)
        if input_bits is not None or readings is not None:
            network = model.on_values(network, input_bits, as_readings(readings))
        matrix = None if X is None else self._matrix(X)
        samples = None if matrix is None else network.quantise(torch.from_numpy(matrix if y is None else matrix[:SIMULATED]))
        classes = self.model_.metadata.get("classes", ())
        build = Build(network.graph, samples=samples, classes=classes, time_limit=time_limit)
        if trial is not None:
            build.report["refit"] = trial.to_dict()
        run_steps(build, [*OPTIMISE, *MAKE, *(step for step in CHECK if prove or step is not PROOF)])
        return build

    def _refit(self, X: Any, y: Any, n_tables: int, sample_weight: Any = None) -> tuple[Tabular, RefitTrial | None]:
        return self.model_.first(n_tables), None

    def to_c(self, *, weight_bits: int = 8, readings: str | Mapping[str, str] | None = None) -> dict[str, str]:
        """The fitted tables as C99, the text of `model.c` and `model.h`: no floating point, no heap.

        Its inputs are codes of 8 bits, one per encoded column (`model_.encode`); it gives the number of the class in `classes_`,
        or of a run of `lutetia train` the number that the class has there.
        A regressor gives a whole number, to be multiplied by `model_.network(weight_bits).graph.output_edge.scale[0]`; so does
        its circuit. With `intervals=True`, `lutetia_half_width` gives the half width of `predict_interval` in the same unit.
        With loss="poisson" the answer is the logarithm of the prediction, and the half width is one of the prediction, in the
        unit that `model.h` names LUTETIA_WIDTH_UNIT.
        With `readings`, "auto" or texts such as "3.3/4096*u12" by the names of columns, `lutetia_encode` makes the codes of whole
        numbers, such as those of a sensor.
        """
        from lutetia.precompute import c_files, integer_model

        check_is_fitted(self, "model_")
        return c_files(integer_model(self.model_, weight_bits=weight_bits, readings=readings))

    # ---- folders -----------------------------------------------------------------------------------------------------

    def _describe_data(self, rows: TabularRows) -> dict[str, Any]:
        """The metadata of the model: names, ranges, categories."""
        plain = self._plain
        place = {number: str(at) for at, number in enumerate(plain)}
        categories = {place[number]: [_plain(each) for each in values] for number, values in self.categories_.items()}
        known = describe_columns(rows.x, rows.x)
        if hasattr(self, "feature_names_in_") or self.texts_:
            known["features"] = [name if name.strip() else f"x{number}" for number, name in enumerate(self.names())]
            known["features"] = [known["features"][number] for number in plain]
        if categories:
            known["categories"] = categories
            known["unknown"] = self.handle_unknown
        if self.dates_:
            known["dates"] = {place[number]: asdict(column) for number, column in self.dates_.items()}
        return known

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the estimator to a folder without a pickle: `load` reads it, and so do `lutetia predict`, `explain`, `build`."""
        check_is_fitted(self, "model_")
        params = {name: _plain(value) for name, value in self._saved_params().items() if value is not None}
        for name, value in params.items():
            if not isinstance(value, str | int | float | bool | list | dict):
                raise ValueError(f"{name} is {value!r}, which a folder cannot hold: expected plain values")
        state = {"class": type(self).__name__, "params": params, **self._state()}
        save(self.model_, path, config={"estimator": state}, overwrite=overwrite)

    def _saved_params(self) -> dict[str, Any]:
        return self.get_params(deep=False)

    def _state(self) -> dict[str, Any]:
        return {"named": hasattr(self, "feature_names_in_")}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The estimator that a folder holds, saved by `save` or by `lutetia train` on a table of data."""
        model = load(path, expected=Model)
        if not isinstance(model, Tabular | Targets):
            raise DataError(f"{path} holds a {type(model).__name__}, expected a Tabular")
        state = read_config(in_run(path)).get("estimator", state_of_run(model))
        if not isinstance(state, dict) or state.get("class") != cls.__name__:
            held = state.get("class") if isinstance(state, dict) else "a model without an estimator"
            raise DataError(f"{path} holds {held}, expected a {cls.__name__}")
        try:
            estimator = cls(**state["params"])
            estimator._restore(model, state)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        return estimator

    def _restore(self, model: Tabular | Targets, state: dict[str, Any]) -> None:
        columns = data_columns(model.metadata, model.n_columns, by_signal=False)
        self.model_, self.n_features_in_ = model, len(columns)
        self.n_tables_ = model.config.n_tables
        place = {str(column.input): number for number, column in enumerate(columns)}
        self.texts_ = [number for number, column in enumerate(columns) if column.text is not None]
        self.categories_ = {place[number]: list(values) for number, values in model.metadata.get("categories", {}).items()}
        self.dates_ = {place[number]: DateColumn(**known) for number, known in model.metadata.get("dates", {}).items()}
        if state["named"]:
            self.feature_names_in_ = np.array([column.name for column in columns], dtype=object)


def table_scores(model: Tabular | Targets, x: Array, threads: int) -> Array:
    """The sums of the tables of a model for its inputs, float32 [n, outputs]."""
    anchors, weight = model.tables.anchors.numpy().astype(np.int64), model.tables.weight.detach().numpy()
    scores = np.zeros((len(x), weight.shape[2]), np.float32)
    for begin in range(0, len(x), AT_ONCE):
        codes = model.encoding.codes(x[begin : begin + AT_ONCE], threads)
        add_table_scores(codes, anchors, weight, scores[begin : begin + AT_ONCE], threads)
    return scores


def probabilities(model: Tabular, scores: Array) -> Array:
    """Scores of a model as probabilities, float64 [n, n_classes]."""
    return chances(model, torch.from_numpy(scores)).numpy()


def _plain(value: Any) -> Any:
    """A parameter as TOML and JSON hold it."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray | tuple | list):
        return [_plain(each) for each in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=str)
    return {str(key): _plain(each) for key, each in value.items()} if isinstance(value, dict) else value

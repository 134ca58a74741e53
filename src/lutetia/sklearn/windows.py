"""Windows of sensor signals for estimators: `cut_windows` cuts recordings, `WindowFeatures` makes columns of the windows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from lutetia.errors import DataError
from lutetia.models import (
    LONGEST_SIGNAL,
    LONGEST_WINDOW,
    MOST_SIGNAL_DECIMALS,
    SHAPE_SAMPLES,
    SHORTEST_WINDOW,
    SignalWindows,
    Tabular,
    load,
    most_apart,
    signal_windows,
)
from lutetia.sklearn.columns import is_frame, is_missing
from lutetia.training import Boosting, LabelledWindows, ShapeTrial, Split, choose_shapes, make_signal, try_shapes

Array = np.ndarray[Any, Any]
BLOCKS, ENOUGH_IN_BLOCKS = 20, 500  # of windows that follow each other and may overlap, in a trial of so many or more


class CutWindows(NamedTuple):
    """Windows: x float64 [n, channels, length]; their labels y [n], the names of their recordings, series [n], where these were
    given; and the row where each begins, starts int64 [n]."""

    x: Array
    y: Array | None
    series: Array | None
    starts: Array


def cut_windows(X: Any, length: int, step: int | None = None, *, y: Any = None, series: Any = None) -> CutWindows:
    """Cut recordings, X [rows, channels] with a row for each sample in time, an array or a frame of numbers, into windows of
    `length` rows, one every `step`, half a window by default. A window lies in one recording: rows that follow each other and
    have one value of `series` [rows]. With the labels y [rows] windows in which they change, or one is missing, are left out.

    Windows overlap: hold them out by recordings, such as with `GroupKFold` and the `series` of the result as groups.
    """
    _check_length("length", length)
    step = max(1, length // 2) if step is None else step
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 1:
        raise ValueError(f"step is {step!r}, expected a whole number of at least 1")
    x = np.asarray(X.to_numpy() if is_frame(X) else X)
    if x.ndim != 2:
        raise ValueError(f"X has the shape {list(x.shape)}, expected [rows, channels]: a row for each sample in time")
    x = _numbers(x)
    labels, names = (None if given is None else _column(name, given, len(x)) for name, given in (("y", y), ("series", series)))
    begins = [0] if names is None else [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1).tolist()]
    ends = [*begins[1:], len(x)]
    starts = np.concatenate([np.arange(begin, end - length + 1, step) for begin, end in zip(begins, ends, strict=True)])
    if labels is not None:
        changes = np.concatenate([[0], np.cumsum(labels[1:] != labels[:-1])])
        lacks = np.concatenate([[0], np.cumsum([is_missing(label) for label in labels.tolist()])])
        last = starts + length - 1
        starts = starts[(changes[last] == changes[starts]) & (lacks[last + 1] == lacks[starts])]
    if not len(starts):
        raise ValueError(f"X has no window of {length} rows of one recording and one label in its {len(x):,} rows")
    every = np.lib.stride_tricks.sliding_window_view(x, length, axis=0)
    return CutWindows(every[starts], None if labels is None else labels[starts], None if names is None else names[starts], starts)


class WindowFeatures(TransformerMixin, BaseEstimator):
    """Columns for an estimator from windows of signals X [n, channels, length], such as `cut_windows` gives: of each channel its
    mean, range, changes, crossings and the like, 37 to 45 numbers by the length, as `lutetia train` with data.window makes them.
    With `shapes` fit also chooses up to 200 shapes, of which transform says how often they are in a window: "auto" asks a trial
    on the labels y whether they help, and without labels has none.

    `decimals` are the decimal places that a sample keeps, a number or one for each channel; by default those that the data of fit
    needs, at 16 bits a sample. `signals` names the channels; x0, x1, .. by default. `windows_` says how columns are made,
    `trial_` what the trial said.
    """

    windows_: SignalWindows
    trial_: ShapeTrial | None

    def __init__(
        self,
        *,
        decimals: int | Sequence[int] | None = None,
        signals: Sequence[str] | None = None,
        shapes: str | bool = "auto",
    ) -> None:
        self.decimals, self.signals, self.shapes = decimals, signals, shapes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn how long windows are and how fine their samples, of X [n, channels, length]; and by the labels or numbers y [n]
        which shapes to count."""
        x = self._checked(X)
        if not (isinstance(self.shapes, bool) or self.shapes == "auto"):
            raise ValueError(f"shapes is {self.shapes!r}, expected 'auto', True or False")
        _check_length("the length of windows", x.shape[2])
        names = [f"x{number}" for number in range(x.shape[1])] if self.signals is None else list(self.signals)
        is_named = all(isinstance(name, str) and name.strip() and len(name) <= LONGEST_SIGNAL for name in names)
        if len(names) != x.shape[1] or len(set(names)) < len(names) or not is_named:
            raise ValueError(f"signals is {self.signals!r}, expected a different name for each of the {x.shape[1]} channels")
        places = self._places(x.shape[1])
        try:
            made = [make_signal(name, x[:, at].ravel(), places[at]) for at, name in enumerate(names)]
        except DataError as error:
            raise ValueError(str(error)) from error
        signals, bits = zip(*made, strict=True)
        self.windows_ = SignalWindows(x.shape[2], max(1, x.shape[2] // 2), signals, max(bits))
        self.trial_ = None
        if self.shapes is True or (self.shapes and y is not None):
            self._choose_shapes(x, y)
        return self

    def _choose_shapes(self, x: Array, y: Any) -> None:
        """Count shapes, if they are wanted or help."""
        if y is None:
            raise ValueError("shapes is True and y is None, expected labels or numbers, by which shapes are chosen")
        if not most_apart(x.shape[2]):
            if self.shapes is True:
                raise ValueError(f"shapes is True and windows have {x.shape[2]} samples, expected {SHAPE_SAMPLES} or more")
            return
        y = column_or_1d(y, warn=True)
        check_consistent_length(x, y)
        is_number = type_of_target(y) == "continuous"
        classes, numbers = np.unique(y, return_inverse=True)
        split = Split("groups", np.arange(len(y)) * BLOCKS // len(y)) if len(y) >= ENOUGH_IN_BLOCKS else Split()
        given = LabelledWindows(
            self.windows_,
            self._samples(x),
            np.arange(len(x)) * x.shape[2],
            y.astype(np.float64) if is_number else numbers,
            1 if is_number else max(2, len(classes)),
            split,
        )
        if self.shapes == "auto":
            self.trial_ = try_shapes(given, Boosting(n_anchors=2, pairs=0.0))
        if self.shapes is True or (self.trial_ is not None and self.trial_.gains):
            self.windows_ = replace(self.windows_, shapes=choose_shapes(given))

    def _samples(self, x: Array) -> Array:
        """Windows one after another, as samples int64 [rows, channels]."""
        return self.windows_.samples(np.ascontiguousarray(x.transpose(0, 2, 1)).reshape(-1, x.shape[1]))

    def transform(self, X: Any) -> Array:
        """Windows [n, channels, length] -> columns, float64 [n, channels * features + shapes]."""
        check_is_fitted(self, "windows_")
        x, windows = self._checked(X), self.windows_
        if x.shape[1:] != (len(windows.signals), windows.length):
            shape = [len(windows.signals), windows.length]
            raise ValueError(f"X has windows of the shape {list(x.shape[1:])}, expected {shape}, as in fit")
        return windows.inputs(self._samples(x), np.arange(len(x)) * windows.length)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """The names of the columns: "accel_x: range"."""
        check_is_fitted(self, "windows_")
        return np.array(self.windows_.titles, dtype=object)

    def save(self, estimator: Any, path: str | os.PathLike[str], step: int | None = None) -> None:
        """Save an estimator that was fitted to these columns together with its windows, one every `step` rows, half a window by
        default: `lutetia predict`, `explain` and `build --target c` then take recordings."""
        check_is_fitted(self, "windows_")
        model, windows = getattr(estimator, "model_", None), self.windows_
        if not isinstance(model, Tabular) or model.n_columns != len(windows.titles):
            raise ValueError(f"estimator is {estimator!r}, expected one of lutetia.sklearn that was fitted to these columns")
        if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 1):
            raise ValueError(f"step is {step!r}, expected a whole number of at least 1")
        known = {**windows.to_dict(), "step": windows.step if step is None else step}
        model.metadata = {**model.metadata, "features": windows.titles, "windows": known}
        estimator.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The features that a model saved by `save`, or by `lutetia train` with data.window, is made of."""
        windows = signal_windows(load(path, expected=Tabular).metadata)
        if windows is None:
            raise DataError(f"{path} holds a model of rows, expected one of windows of signals")
        names = [each.name for each in windows.signals]
        made = cls(decimals=[each.decimals for each in windows.signals], signals=names, shapes=bool(windows.shapes))
        made.windows_, made.trial_ = windows, None
        return made

    def _checked(self, X: Any) -> Array:
        x = np.asarray(X)
        if x.ndim != 3 or 0 in x.shape:
            hint = ": X[:, None] has one channel" if x.ndim == 2 else ""
            raise ValueError(f"X has the shape {list(x.shape)}, expected windows [n, channels, length]{hint}")
        return _numbers(x)

    def _places(self, n_channels: int) -> list[int | None]:
        given = self.decimals
        listed: list[Any] = [given] * n_channels if given is None or not isinstance(given, list | tuple) else list(given)
        is_places = all(each is None or (type(each) is int and 0 <= each <= MOST_SIGNAL_DECIMALS) for each in listed)
        if len(listed) != n_channels or not is_places:
            raise ValueError(
                f"decimals is {given!r}, expected 0 to {MOST_SIGNAL_DECIMALS}, or one for each of {n_channels} channels"
            )
        return listed


def _check_length(name: str, length: object) -> None:
    if isinstance(length, bool) or not isinstance(length, int | np.integer) or not SHORTEST_WINDOW <= length <= LONGEST_WINDOW:
        raise ValueError(f"{name} is {length!r}, expected {SHORTEST_WINDOW} to {LONGEST_WINDOW:,} samples")


def _numbers(x: Array) -> Array:
    """Numbers as float64, none of which is missing or infinite."""
    if x.dtype.kind not in "biuf":
        raise ValueError(f"X holds {x.dtype}, expected numbers")
    x = x.astype(np.float64)
    if not np.isfinite(x).all():
        raise ValueError("X holds NaN or infinity, expected a number for every sample: fill them in, or leave out such windows")
    return x


def _column(name: str, given: Any, n_rows: int) -> Array:
    values = np.asarray(given)
    if values.shape != (n_rows,):
        raise ValueError(f"{name} has the shape {list(values.shape)}, expected [{n_rows}], one for each row of X")
    return values

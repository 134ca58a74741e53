"""A loss of the user's own: a function of numbers and predictions that gives its slope and its curvature.

As in LightGBM and XGBoost, `loss(y_true, y_pred)`, float64 [n] each, returns (gradient, hessian), [n] each, by the prediction;
one with a third argument is given the weights and applies them itself. A loss need not give its value: while tables are fitted,
its change is added up from slopes and steps. Where it has a method `value(y_true, y_pred)`, [n], that is used.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lutetia.errors import ArgumentError
from lutetia.training.goals import Curved, Residuals

Array = np.ndarray[Any, Any]
STEPS, HALVES = 50, 40  # of the search for the constant that a fit starts from
CLOSE = 1e-9  # to it, as a part of the first slope
LONGEST_NAME = 200
WEIGHTS = ("sample_weight", "weight", "weights")  # names of a third argument that has a default


@dataclass(frozen=True, eq=False)
class OwnNumbers(Curved):
    """Numbers y float64 [n] by a function, each sample with a weight float32 [n]; the scores are its predictions."""

    seen: list[tuple[Array, Array, float]] = field(default_factory=list)  # the last scores, their slopes, the change so far

    def start(self) -> Array:
        """The constant of the lowest loss, float64 [1]: by Newton's method from the mean or from 0, whichever has less slope."""
        found = {at: self._sums(at) for at in (float(super().start()[0]), 0.0)}
        usable = [at for at, sums in found.items() if not math.isnan(sums[0])]
        if not usable:
            self._gradients(np.zeros(len(self.y)))  # raises what is wrong
        at = min(usable, key=lambda each: abs(found[each][0]))
        slope, curved = found[at]
        least = CLOSE * abs(slope)
        for _ in range(STEPS):
            if not (abs(slope) > least and curved > 0):
                break
            step = -slope / curved
            for _ in range(HALVES):
                sums = self._sums(at + step)
                if abs(sums[0]) < abs(slope):
                    at, (slope, curved) = at + step, sums
                    break
                step /= 2
            else:
                break
        return np.array([at])

    def residuals(self, scores: Array) -> Residuals:
        """How far the loss falls with each score, and its curvature: float64 [n, 1] each."""
        gradient, hessian = self._gradients(scores[:, 0])
        if not hessian.sum() > 0:
            raise ArgumentError(f"the hessian of {self._name} is 0 for every sample, expected a number above 0 for some")
        return -gradient[:, None], hessian[:, None]

    def loss(self, scores: Array) -> float:
        """The mean loss, or how far it has changed since the first call: Σ of the mean slope of each step, times the step."""
        value, own = getattr(self.kind.function, "value", None), scores[:, 0].copy()
        if value is not None:
            each = _numbers(value(self.y.copy(), own), len(own), f"value of {self._name}")
            return float(np.average(each, weights=self.weight))
        slope, total = self._gradients(own)[0] / self.weight.sum(), 0.0
        if self.seen:
            last, before, total = self.seen.pop()
            total += float(((slope + before) / 2 * (own - last)).sum())
        self.seen.append((own, slope, total))
        return total

    @property
    def _name(self) -> str:
        assert self.kind.function is not None
        return function_name(self.kind.function)

    def _sums(self, at: float) -> tuple[float, float]:
        """Slope and curvature of a constant; NaN where it has none."""
        try:
            with np.errstate(all="ignore"):
                gradient, hessian = self._gradients(np.full(len(self.y), at))
        except NotFiniteError:
            return math.nan, math.nan
        return float(gradient.sum()), float(hessian.sum())

    def _gradients(self, predicted: Array) -> tuple[Array, Array]:
        """Gradient and hessian of predictions [n], checked, times the weights: float64 [n] each."""
        function, n = self.kind.function, len(self.y)
        assert function is not None
        takes = n_arguments(function)
        given = (self.y.copy(), predicted.copy(), self.weight.astype(np.float64))
        found = function(*given[:takes])
        if not isinstance(found, tuple | list) or len(found) != 2:
            shown = f"{len(found)} values" if isinstance(found, tuple | list) else f"a {type(found).__name__}"
            raise ArgumentError(f"{self._name} returned {shown}, expected a pair: gradient and hessian")
        gradient, hessian = (
            _numbers(each, n, f"{what} of {self._name}") for each, what in zip(found, ("gradient", "hessian"), strict=True)
        )
        if (hessian < 0).any():
            least = float(hessian.min())
            raise ArgumentError(f"the hessian of {self._name} holds {least:.6g}, expected numbers of at least 0")
        weight = self.weight if takes == 2 else 1.0
        return gradient * weight, hessian * weight


class NotFiniteError(ArgumentError):
    """A loss that has no slope where it was asked."""


def _numbers(given: Any, n: int, name: str) -> Array:
    """What a function returned, as finite numbers float64 [n]."""
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"the {name} is a {type(given).__name__}, expected numbers [{n}]") from error
    if values.shape != (n,):
        raise ArgumentError(f"the {name} has the shape {list(values.shape)}, expected [{n}], one for each sample")
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise NotFiniteError(f"the {name} holds {bad}, expected finite numbers")
    return values


def n_arguments(function: Callable[..., Any]) -> int:
    """How many arguments a loss takes: 2, or 3 with the weights."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # compiled code may not say
        return 2
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [
        each for each in parameters if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if len(positional) < 2 or len(needed) > 3 or any(each.kind == each.KEYWORD_ONLY for each in needed):
        wanted = "(y_true, y_pred) or (y_true, y_pred, sample_weight)"
        raise ArgumentError(f"{function_name(function)} takes {inspect.signature(function)}, expected {wanted}")
    return 3 if len(needed) == 3 or (len(positional) > 2 and positional[2].name in WEIGHTS) else 2


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function, of what a partial one calls, or of the class of an object, for readers."""
    while isinstance(function, functools.partial):
        function = function.func
    name = str(getattr(function, "__name__", type(function).__name__))
    return name[:LONGEST_NAME] if name.strip() else type(function).__name__

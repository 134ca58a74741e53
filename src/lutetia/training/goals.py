"""What tables are fitted to: classes, and numbers by one of four losses.

A goal gives the residuals by which anchors are chosen, and fills the rows of a table: by Newton's step, or where there is one by
the exact answer, the quantile of the residuals of a row's samples, or the logarithm of the ratio of their means.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from lutetia._shared.losses import Loss
from lutetia._shared.threads import spread
from lutetia.training.goal_loops import (
    CHUNK,
    class_losses,
    class_residuals,
    class_sums,
    count_losses,
    count_residuals,
    number_losses,
    number_residuals,
    number_sums,
    parts_of,
    quantile_residuals,
)
from lutetia.training.quantile_loops import quantile_rows

Array = np.ndarray[Any, Any]
Residuals = tuple[Array, Array | None]  # of the scores, and the curvature of the loss where it is not the weight
SQUARED = Loss()
MORE_COUNTS = 4.0  # times the smoothing: counts vary more than by Poisson's law, so their means are less certain
LEAST_MEAN = 1e-9  # of counts
LEAST = 1e-12  # curvature of a row without samples
LEAST_SMOOTHING = 1e-3  # samples: the row of counts that are all 0 would be minus infinity


@dataclass(frozen=True)
class Step:
    """How far rows are moved: the fraction `rate` of what fits their samples, and `smoothing` samples that need no correction."""

    rate: float
    smoothing: float


def useful_threads(n: int, threads: int) -> int:
    """How many threads go over n samples, of those that may: fewer samples take less time than it takes to wake a thread."""
    return threads if n >= 2 * CHUNK else 1


def sums_of(loop: Any, samples: tuple[Array, Array, Array], n_rows: int, threads: int) -> Array:
    """Σ missing [n, K] and Σ of the curvature that a loop makes of `held` [n], of the samples of each row, which their cells [n]
    say: [2, n_rows, K]. `samples` are cells, missing and held."""
    n, n_outputs = samples[1].shape
    parts = np.zeros((-(-n // CHUNK), 2, n_rows, n_outputs))
    spread(useful_threads(n, threads), len(parts), loop, *samples, parts)
    return parts.sum(0) if len(parts) > 1 else parts[0]


class Goal(Protocol):
    """What tables are fitted to; scores are float64 [n, n_outputs], cells uint16 [n] say which row each sample reads."""

    @property
    def n_outputs(self) -> int: ...

    @property
    def weight(self) -> Array: ...

    def start(self) -> Array: ...

    def residuals(self, scores: Array) -> Residuals: ...

    def sums(self, cells: Array, residuals: Residuals, n_rows: int) -> Array: ...

    def held(self, residuals: Residuals) -> Array: ...

    def fill(self, cells: Array, scores: Array, residuals: Residuals, step: Step, rows: Array) -> None: ...

    def loss(self, scores: Array) -> float: ...


@dataclass(frozen=True, eq=False)
class Classes:
    """Classes y int64 [n] of n_outputs, each sample with a weight float32 [n]; scores are logits."""

    y: Array
    n_outputs: int
    weight: Array
    threads: int = 1

    def start(self) -> Array:
        """The logits of the classes' shares, float64 [n_outputs]."""
        shares = np.bincount(self.y, self.weight, self.n_outputs) + 1e-3
        logits = np.log(shares / shares.sum())
        return logits - logits.mean()

    def residuals(self, scores: Array) -> Residuals:
        """The residuals, float64 [n, n_outputs], of which the curvature follows."""
        missing = np.empty_like(scores)
        spread(useful_threads(len(scores), self.threads), len(scores), class_residuals, scores, self.y, self.weight, missing)
        return missing, None

    def sums(self, cells: Array, residuals: Residuals, n_rows: int) -> Array:
        """Σ residuals and Σ curvature of the samples of each row, float64 [2, n_rows, n_outputs]."""
        return sums_of(class_sums, (cells, residuals[0], self.weight), n_rows, self.threads)

    def held(self, residuals: Residuals) -> Array:
        """How much samples count where anchors are chosen, float32 [n]."""
        return self.weight

    def fill(self, cells: Array, scores: Array, residuals: Residuals, step: Step, rows: Array) -> None:
        """The rows [R, n_outputs] of a table: Newton's step, of logits that count once per class."""
        (sums, curved), share = self.sums(cells, residuals, len(rows)), 1 - 1 / self.n_outputs
        rows[:] = step.rate * share * sums / (curved + step.smoothing * 0.25 * share + LEAST)

    def loss(self, scores: Array) -> float:
        """The mean cross-entropy in nats."""
        losses, threads = np.zeros(-(-len(scores) // CHUNK)), useful_threads(len(scores), self.threads)
        spread(threads, len(losses), class_losses, scores.astype(np.float64, copy=False), self.y, self.weight, losses)
        return float(losses.sum() / self.weight.sum(dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers y float64 [n] by their squared errors, each sample with a weight float32 [n]; the scores are these numbers."""

    y: Array
    weight: Array
    kind: Loss = SQUARED
    n_outputs: int = 1
    threads: int = 1

    def start(self) -> Array:
        """The mean, float64 [1]."""
        return np.array([np.average(self.y, weights=self.weight)])

    def residuals(self, scores: Array) -> Residuals:
        """The residuals, float64 [n, 1]; the curvature is the weight."""
        missing = np.empty((len(scores), 1))
        self._over(len(scores), number_residuals, self.y, scores, self.weight, missing)
        return missing, None

    def _over(self, n: int, loop: Any, *arguments: Any) -> None:
        spread(useful_threads(n, self.threads), n, loop, *arguments)

    def _parts(self, curvature: Array | None, whole: float) -> Array:
        assert curvature is not None
        parts = np.empty(len(curvature), np.float32)
        self._over(len(curvature), parts_of, curvature, whole, parts)
        return parts

    def sums(self, cells: Array, residuals: Residuals, n_rows: int) -> Array:
        """Σ residuals and Σ curvature, or weight, of the samples of each row, float64 [2, n_rows, 1]."""
        missing, curvature = residuals
        held = self.weight if curvature is None else curvature[:, 0]
        return sums_of(number_sums, (cells, missing, held), n_rows, self.threads)

    def held(self, residuals: Residuals) -> Array:
        """How much samples count where anchors are chosen, float32 [n]."""
        return self.weight

    def fill(self, cells: Array, scores: Array, residuals: Residuals, step: Step, rows: Array) -> None:
        """The rows [R, 1] of a table: the mean of the residuals."""
        sums, held = self.sums(cells, residuals, len(rows))
        rows[:] = step.rate * sums / (held + step.smoothing + LEAST)

    def loss(self, scores: Array) -> float:
        """The mean loss."""
        return self._sum(number_losses, scores, self._slopes) / self._held

    @property
    def _slopes(self) -> tuple[float, float, float]:
        """Of the loss of an error: what it is multiplied by where it is above 0, below 0, and what its square is."""
        return 0.0, 0.0, 1.0

    @cached_property
    def _held(self) -> float:
        """The sum of the weights."""
        return float(self.weight.sum(dtype=np.float64))

    def _sum(self, loop: Any, scores: Array, *more: Any) -> float:
        """Σ of the losses of all samples."""
        losses = np.zeros(-(-len(scores) // CHUNK))
        spread(useful_threads(len(scores), self.threads), len(losses), loop, (self.y, self.weight), scores, *more, losses)
        return float(losses.sum())


@dataclass(frozen=True, eq=False)
class Quantiles(Numbers):
    """Numbers by a quantile of theirs, the median for absolute errors; the scores are that quantile."""

    def start(self) -> Array:
        """The quantile of all numbers, float64 [1]."""
        rows = np.zeros((1, 1))
        quantile_rows(np.zeros(len(self.y), np.uint16), self.y, self.weight, (self.kind.level, 1.0, 0.0), rows)
        return rows[0]

    def residuals(self, scores: Array) -> Residuals:
        """Which way each score is off, float64 [n, 1]: the slope of the loss."""
        missing = np.empty((len(scores), 1))
        self._over(len(scores), quantile_residuals, self.y, scores, self.weight, self.kind.level, missing)
        return missing, None

    @property
    def _slopes(self) -> tuple[float, float, float]:
        level = self.kind.level
        return (level, level - 1, 0.0) if self.kind.name == "quantile" else (1.0, -1.0, 0.0)

    def fill(self, cells: Array, scores: Array, residuals: Residuals, step: Step, rows: Array) -> None:
        """The rows [R, 1] of a table: the quantile of how far their samples are off."""
        level = self.kind.level
        smoothing = step.smoothing / (level * (1 - level))  # the fewer samples decide a quantile, the less certain it is
        quantile_rows(cells, self.y - scores[:, 0], self.weight, (level, step.rate, smoothing), rows)


@dataclass(frozen=True, eq=False)
class Counts(Numbers):
    """Counts or amounts, at least 0, by their Poisson deviance; the scores are logarithms of their means."""

    def start(self) -> Array:
        """The logarithm of the mean, float64 [1]."""
        return np.log([self._mean])

    @cached_property
    def _mean(self) -> float:
        """The mean count; more than 0 also where no sample of the fit has a count."""
        return max(float(super().start()[0]), LEAST_MEAN)

    @cached_property
    def _least(self) -> float:
        """What is added to Σ (mean - count · score) for half the deviance: Σ (count · log count - count), times the weights."""
        counted = self.y > 0
        own = self.y[counted]
        return float((self.weight[counted] * (own * np.log(own) - own)).sum())

    def residuals(self, scores: Array) -> Residuals:
        """The residuals of the counts, and the means as the curvature: float64 [n, 1] each."""
        missing, curvature = np.empty((2, len(scores), 1))
        self._over(len(scores), count_residuals, self.y, scores, self.weight, missing, curvature)
        return missing, curvature

    def held(self, residuals: Residuals) -> Array:
        """The curvature, as a multiple of that of the mean: a sample with a large mean tells more."""
        return self._parts(residuals[1], self._mean)

    def fill(self, cells: Array, scores: Array, residuals: Residuals, step: Step, rows: Array) -> None:
        """The rows [R, 1] of a table: log(Σ y / Σ mean) of their samples, with some more that have the mean of all."""
        missing, held = self.sums(cells, residuals, len(rows))
        more = MORE_COUNTS * max(step.smoothing, LEAST_SMOOTHING) * self._mean
        rows[:] = step.rate * np.log((np.maximum(held + missing, 0.0) + more) / (held + more))

    def loss(self, scores: Array) -> float:
        """The mean deviance."""
        return 2 * (self._sum(count_losses, scores) + self._least) / self._held


@dataclass(frozen=True, eq=False)
class Curved(Numbers):
    """Scores by a loss of which slope and curvature are known, and nothing else."""

    more: ClassVar[float] = 1.0  # times the smoothing

    def held(self, residuals: Residuals) -> Array:
        """The curvature, as a multiple of the mean."""
        assert residuals[1] is not None
        return self._parts(residuals[1], self._mean_curvature(residuals[1]))

    def fill(self, cells: Array, scores: Array, residuals: Residuals, step: Step, rows: Array) -> None:
        """The rows [R, 1] of a table by Newton's step, with some more samples that have the mean curvature and no slope."""
        assert residuals[1] is not None
        sums, curved = self.sums(cells, residuals, len(rows))
        more = self.more * max(step.smoothing, LEAST_SMOOTHING) * self._mean_curvature(residuals[1])
        rows[:] = step.rate * sums / (curved + more)

    def _mean_curvature(self, curvature: Array) -> float:
        """The mean of a sample of weight 1; 1 where there is none."""
        return float(curvature.sum() / self.weight.sum()) or 1.0


GOALS = {"squared_error": Numbers, "absolute_error": Quantiles, "quantile": Quantiles, "poisson": Counts}


def number_goal(y: Array, weight: Array, kind: Loss, threads: int = 1) -> Numbers:
    """The goal of a loss, for numbers y float64 [n] with weights float32 [n]."""
    return GOALS[kind.name](y, weight, kind, threads=threads)

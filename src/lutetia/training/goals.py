"""What tables are fitted to: classes, and numbers by one of four losses.

A goal gives the residuals by which anchors are chosen, and fills the rows of a table: by Newton's step, or where there is one by
the exact answer, the quantile of the residuals of a row's samples, or the logarithm of the ratio of their means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from lutetia._shared.compiled import jit
from lutetia._shared.losses import Loss
from lutetia._shared.threads import spread
from lutetia.training.goal_loops import CHUNK, class_losses, class_residuals, class_sums, number_sums

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
    return parts.sum(0)


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
        return (self.y - scores[:, 0])[:, None] * self.weight[:, None], None

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
        return self.kind.mean(self.kind.numbers(scores[:, 0]), self.y, self.weight)


@dataclass(frozen=True, eq=False)
class Quantiles(Numbers):
    """Numbers by a quantile of theirs, the median for absolute errors; the scores are that quantile."""

    def start(self) -> Array:
        """The quantile of all numbers, float64 [1]."""
        rows = np.zeros((1, 1))
        _quantile_rows(np.zeros(len(self.y), np.uint16), self.y, self.weight, self.kind.level, 1.0, 0.0, rows)
        return rows[0]

    def residuals(self, scores: Array) -> Residuals:
        """Which way each score is off, float64 [n, 1]: the slope of the loss."""
        off = self.y - scores[:, 0]
        slope = np.where(off > 0, self.kind.level, np.where(off < 0, self.kind.level - 1, 0.0))
        return (slope * self.weight)[:, None], None

    def fill(self, cells: Array, scores: Array, residuals: Residuals, step: Step, rows: Array) -> None:
        """The rows [R, 1] of a table: the quantile of how far their samples are off."""
        level = self.kind.level
        smoothing = step.smoothing / (level * (1 - level))  # the fewer samples decide a quantile, the less certain it is
        _quantile_rows(cells, self.y - scores[:, 0], self.weight, level, step.rate, smoothing, rows)


@dataclass(frozen=True, eq=False)
class Counts(Numbers):
    """Counts or amounts, at least 0, by their Poisson deviance; the scores are logarithms of their means."""

    def start(self) -> Array:
        """The logarithm of the mean, float64 [1]."""
        return np.log([self._mean()])

    def _mean(self) -> float:
        """The mean count; more than 0 also where no sample of the fit has a count."""
        return max(float(super().start()[0]), LEAST_MEAN)

    def residuals(self, scores: Array) -> Residuals:
        """The residuals of the counts, and the means as the curvature: float64 [n, 1] each."""
        mean = np.exp(scores)
        return (self.y[:, None] - mean) * self.weight[:, None], mean * self.weight[:, None]

    def held(self, residuals: Residuals) -> Array:
        """The curvature, as a multiple of that of the mean: a sample with a large mean tells more."""
        assert residuals[1] is not None
        return (residuals[1][:, 0] / self._mean()).astype(np.float32)

    def fill(self, cells: Array, scores: Array, residuals: Residuals, step: Step, rows: Array) -> None:
        """The rows [R, 1] of a table: log(Σ y / Σ mean) of their samples, with some more that have the mean of all."""
        missing, held = self.sums(cells, residuals, len(rows))
        more = MORE_COUNTS * max(step.smoothing, LEAST_SMOOTHING) * self._mean()
        rows[:] = step.rate * np.log((np.maximum(held + missing, 0.0) + more) / (held + more))


@dataclass(frozen=True, eq=False)
class Curved(Numbers):
    """Scores by a loss of which slope and curvature are known, and nothing else."""

    more: ClassVar[float] = 1.0  # times the smoothing

    def held(self, residuals: Residuals) -> Array:
        """The curvature, as a multiple of the mean."""
        assert residuals[1] is not None
        return (residuals[1][:, 0] / self._mean_curvature(residuals[1])).astype(np.float32)

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


# ---- loops -----------------------------------------------------------------------------------------------------------


@jit(nogil=True)
def _quantile_rows(cells, off, weight, level, rate, smoothing, rows):  # type: ignore[no-untyped-def]
    """The rows [R, 1] of a table: the quantile of `off` [n] over the samples of each, which count by their weights."""
    starts = np.zeros(len(rows) + 1, np.int64)
    for sample in range(len(cells)):
        starts[cells[sample] + 1] += weight[sample] > 0
    for cell in range(len(rows)):
        starts[cell + 1] += starts[cell]
    values, held, place = np.empty(starts[-1]), np.empty(starts[-1]), starts.copy()
    for sample in range(len(cells)):
        if weight[sample] > 0:
            cell = cells[sample]
            values[place[cell]], held[place[cell]] = off[sample], weight[sample]
            place[cell] += 1
    for cell in range(len(rows)):
        one = slice(starts[cell], starts[cell + 1])
        total = held[one].sum()
        rows[cell, 0] = (
            rate * total / (total + smoothing) * _quantile(values[one], held[one], level * total) if total > 0 else 0.0
        )


@jit(inner=True, nogil=True)
def _quantile(values, held, wanted):  # type: ignore[no-untyped-def]
    """The value up to which values hold `wanted` of their weights; the middle of two where it ends between them.

    Values left and right of the place are set aside, by one of them in the middle, until it is found; both arrays are reordered.
    """
    first, last = 0, len(values)
    equal = 1e-9 * max(wanted, 1e-300)
    before, low = 0.0, -np.inf  # the weight of the values set aside on the left, and the greatest of them
    high = np.inf
    while True:
        pivot = values[first + (last - first) // 2]
        left, right, place, lighter, own = first, last, first, 0.0, 0.0
        below, above = low, high
        while place < right:
            value, weight = values[place], held[place]
            if value < pivot:
                lighter, below = lighter + weight, max(below, value)
                values[place], held[place], values[left], held[left] = values[left], held[left], value, weight
                left, place = left + 1, place + 1
            elif value > pivot:
                right, above = right - 1, min(above, value)
                values[place], held[place], values[right], held[right] = values[right], held[right], value, weight
            else:
                own += weight
                place += 1
        if abs(before + lighter - wanted) <= equal and below > -np.inf:
            return (below + pivot) / 2
        if before + lighter > wanted:
            last, high = left, pivot
        elif abs(before + lighter + own - wanted) <= equal and above < np.inf:
            return (pivot + above) / 2
        elif before + lighter + own >= wanted or right == last:
            return pivot
        else:
            before, low, first = before + lighter + own, pivot, right

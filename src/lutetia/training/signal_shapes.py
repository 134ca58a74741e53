"""Shapes to count in windows of signals: many candidates, of which those that tell classes apart best and differ from each other
are kept, and a trial that says whether they help.

The numbers below were chosen on series that are not those of `lutetia bench windows` that were not looked at: see
docs/notes/windows.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from lutetia.models import SHAPE_KERNELS, SignalShape, SignalWindows, most_apart, shape_counts
from lutetia.training.boosting import Boosting, Each
from lutetia.training.calibration import held_out
from lutetia.training.patches import between, groups_of, mean_loss
from lutetia.training.splits import RANDOM, Split
from lutetia.training.tabular import Shape, TabularRows, fit_tabular

Array = np.ndarray[Any, Any]
N_SHAPES = 200  # kept: 100 were half a point worse, 300 no better
N_CONSTANTS = 4  # of each kernel, distance and signal, that its sum is compared with: 2 were a point worse, 8 no better
MOST_CANDIDATES = 8192
MOST_ALIKE = 0.95  # the correlation of two that are kept
LOOKED_AT = 16  # windows whose sums the constants are quantiles of
MOST_SCORED, MOST_TRIED = 500, 2000  # windows that choose shapes, and of a trial
FEWEST_TRIED, ENOUGH, TURNS = 20, 500, 5  # windows of a trial; from how many it takes one turn, and how many turns before
TABLES_TRIED = 300
LEAST_GAIN = 0.005  # in the log loss of classes, or as a part of that of numbers
GOLDEN = (5**0.5 - 1) / 2  # its multiples fill the quantiles evenly


@dataclass(frozen=True, eq=False)
class LabelledWindows:
    """Windows to learn from: samples int64 [rows, signals], the row where each begins, starts int64 [n], and y [n], its class or
    number. Some are held out of a trial as `split` says."""

    windows: SignalWindows
    samples: Array
    starts: Array
    y: Array
    n_classes: int
    split: Split = RANDOM

    def at(self, rows: Array | slice) -> LabelledWindows:
        """Some of the windows."""
        return replace(self, starts=self.starts[rows], y=self.y[rows], split=self.split.at(rows))

    def rows(self, shapes: tuple[SignalShape, ...]) -> TabularRows:
        """The inputs of a model that counts some shapes."""
        x = replace(self.windows, shapes=shapes).inputs(self.samples, self.starts)
        return TabularRows(x, self.y, np.ones(len(self.y), np.float32))


@dataclass(frozen=True)
class ShapeTrial:
    """The mean losses on held-out windows, `rows` in all, of fits without and with shapes; and how much shapes, which cost memory
    and time, have to gain at least."""

    rows: int
    plain: float
    shapes: float
    least: float

    @property
    def gains(self) -> bool:
        """Whether shapes help."""
        return self.plain - self.shapes > self.least


def choose_shapes(given: LabelledWindows, seed: int = 0) -> tuple[SignalShape, ...]:
    """The shapes whose shares differ most between classes, or between parts of the numbers; of those that are alike one."""
    return _best(_candidates(given, seed), given)


def _best(candidates: list[SignalShape], given: LabelledWindows) -> tuple[SignalShape, ...]:
    """Those of some candidates."""
    some = given.at(slice(None, None, -(-len(given.y) // MOST_SCORED) or 1))
    if not candidates or not len(some.y):
        return ()
    counts = shape_counts(some.samples, some.starts, candidates, some.windows.length).astype(np.float32)
    differ = between(counts.astype(np.float64), groups_of(some.y, some.n_classes))
    centred = counts - counts.mean(0)
    norms = np.sqrt(np.einsum("nm,nm->m", centred, centred))
    order = [number for number in np.argsort(-differ, kind="stable").tolist() if norms[number] > 0]
    kept: list[int] = []
    held = np.empty((N_SHAPES, len(counts)), np.float32)
    for number in order:
        own = centred[:, number] / norms[number]
        if kept and np.abs(held[: len(kept)] @ own).max() > MOST_ALIKE:
            continue
        held[len(kept)] = own
        kept.append(number)
        if len(kept) == N_SHAPES:
            break
    return tuple(sorted(candidates[number] for number in kept))


def _candidates(given: LabelledWindows, seed: int) -> list[SignalShape]:
    """Shapes of all kernels, at distances that double, above quantiles of what their sums are in a few windows, whatever the
    labels of these."""
    random = np.random.default_rng(seed)
    length, n_signals = given.windows.length, len(given.windows.signals)
    distances = [1 << power for power in range(most_apart(length).bit_length())]
    combined = [*product(range(n_signals), distances, range(len(SHAPE_KERNELS)))]
    most = MOST_CANDIDATES // N_CONSTANTS
    if len(combined) > most:
        combined = [combined[number] for number in np.sort(random.choice(len(combined), most, replace=False))]
    starts = random.permutation(given.starts)[:LOOKED_AT]
    looked_at = given.samples[starts[:, None] + np.arange(length)]  # [windows, length, signals]
    found: dict[SignalShape, None] = {}
    for number, (signal, apart, kernel) in enumerate(combined):
        sums = _sums(looked_at[:, :, signal], kernel, apart)
        quantiles = (np.arange(1, N_CONSTANTS + 1) + number * N_CONSTANTS) * GOLDEN % 1
        for above in np.quantile(sums, quantiles, method="lower").tolist():
            found[SignalShape(signal, kernel, apart, int(above))] = None
    return list(found)


def _sums(x: Array, kernel: int, apart: int) -> Array:
    """How far three of nine samples are above the six others, six times: x [windows, length] -> [windows, places]."""
    nine = np.stack([x[:, place * apart : x.shape[1] - (8 - place) * apart] for place in range(9)])
    return 3 * nine[list(SHAPE_KERNELS[kernel])].sum(0) - nine.sum(0)


def try_shapes(given: LabelledWindows, settings: Boosting, each: Each | None = None) -> ShapeTrial | None:
    """Fit some windows with and without shapes, and compare the losses on a fifth that is held out, some times where windows are
    few; None for too few windows."""
    given = given.at(slice(None, None, -(-len(given.y) // MOST_TRIED) or 1))
    if len(given.y) < FEWEST_TRIED:
        return None
    fewer = replace(settings, n_tables=min(settings.n_tables, TABLES_TRIED), patience=None, calibrate=False, intervals=False)
    candidates = _candidates(given, settings.seed)
    rows, losses = 0, np.zeros(2)
    for turn in range(1 if len(given.y) >= ENOUGH else TURNS):
        own, held = held_out(len(given.y), turn, given.split)
        if given.n_classes > 1:  # nothing can be said of a class that is not fitted
            held = held[np.isin(given.y[held], given.y[own])]
        if len(held) and len(np.unique(given.y[own])) > 1:
            losses += len(held) * np.array(_losses(given.at(own), given.at(held), candidates, fewer, each))
            rows += len(held)
    if not rows:
        return None
    plain, shapes = (losses / rows).tolist()
    return ShapeTrial(rows, plain, shapes, LEAST_GAIN * (1 if given.n_classes > 1 else plain))


def _losses(
    own: LabelledWindows, held: LabelledWindows, candidates: list[SignalShape], settings: Boosting, each: Each | None
) -> list[float]:
    """The losses on held-out windows of a fit without and of one with shapes."""
    found = []
    for shapes in ((), _best(candidates, own)):
        rows = own.rows(shapes)
        n_inputs = rows.x.shape[1]
        model, _ = fit_tabular(rows, Shape(own.n_classes, (0,) * n_inputs, (n_inputs,)), settings, each=each)
        found.append(mean_loss(model, held.rows(shapes)))
    return found

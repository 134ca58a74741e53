"""Patterns to count in images: random detectors, of which the counts that tell classes apart best are kept, and a trial that says
whether they help.

The numbers below were chosen on glyphs, on filtered noise, and on training images of MNIST, also placed anywhere, that are not
those of `lutetia bench images`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lutetia.models import MOST_CHANNELS, Patches, Tabular
from lutetia.training.boosting import Boosting, Each

if TYPE_CHECKING:
    from lutetia.training.tabular import Shape, TabularRows

Array = np.ndarray[Any, Any]
N_DETECTORS, N_PAIRS = 96, 6
COUNTS_EACH = 24  # counts of each detector that are kept: more detectors with fewer counts each were no better
N_COUNTS = N_DETECTORS * COUNTS_EACH
SIZES = (3, 5, 7, 10)  # pixels across a patch
QUANTILES = (0.5, 0.95)  # of the differences between two pixels of a patch, between which the threshold lies
LOOKED_AT = 64  # images that these differences are taken from
MOST_SCORED, MOST_TRIED = 2000, 2000  # images that choose counts, and of a trial
LEAST_TRIED = 100  # images of a trial
TABLES_TRIED = 200
GROUPS = 8  # of numbers to predict, which stand for classes
SMALLEST_SIDE = 8  # pixels


@dataclass(frozen=True)
class PatchTrial:
    """The losses on `rows` held-out images of fits by pixels alone, and by pixels and patches."""

    rows: int
    pixels: float
    patches: float

    @property
    def gains(self) -> bool:
        """Whether patches help."""
        return self.patches < self.pixels


def can_have_patches(shape: tuple[int, ...]) -> bool:
    """Whether inputs of a shape are images large enough for patches, and not of too many channels."""
    return len(shape) > 1 and min(shape[-2:]) >= SMALLEST_SIDE and (len(shape) == 2 or shape[0] <= MOST_CHANNELS)


def choose_patches(rows: TabularRows, shape: Shape, seed: int, threads: int = 1) -> Patches:
    """Detectors drawn for images, rows.x [n, pixels], with the counts of each that differ most between classes."""
    random = np.random.default_rng(seed)
    kept = np.flatnonzero(rows.weight > 0)
    some = kept[:: -(-len(kept) // MOST_SCORED) or 1]
    x, groups = rows.x[some], groups_of(rows.y[some], shape.n_classes)
    patches = Patches(shape.input_shape, N_DETECTORS, N_PAIRS, N_COUNTS)
    patches.span.copy_(torch.tensor(_span(rows.x)))
    levels = patches.levels(x[random.choice(len(x), min(LOOKED_AT, len(x)), replace=False)])
    sizes = [size for size in SIZES if size + 3 <= min(shape.input_shape[-2:])]
    for detector in range(N_DETECTORS):
        pairs = _pairs(random, sizes[detector // 2 % len(sizes)])
        plane = int(random.integers(patches.shape[0])) if detector % 2 else -1
        patches.pairs[detector] = torch.from_numpy(pairs)
        patches.plane[detector] = plane
        patches.threshold[detector] = _threshold(levels, pairs[0], plane, float(random.uniform(*QUANTILES)))
    for detector in range(N_DETECTORS):
        own = slice(detector * COUNTS_EACH, (detector + 1) * COUNTS_EACH)
        patches.counted[own] = _best_counts(patches, detector, x, groups, threads)
    return patches


def _span(x: Array) -> tuple[float, float]:
    """The values of the darkest and the brightest level: 0 and 1 for images from files, else those of the data."""
    low, high = float(np.nan_to_num(np.nanmin(x))), float(np.nan_to_num(np.nanmax(x)))
    return (0.0, 1.0) if 0 <= low <= high <= 1 or low == high else (low, high)


def groups_of(y: Array, n_classes: int) -> Array:
    """Classes, or numbers cut into as many parts: int64 [n]."""
    if n_classes > 1:
        return y.astype(np.int64)
    return np.searchsorted(np.quantile(y, np.arange(1, GROUPS) / GROUPS), y)


def _pairs(random: np.random.Generator, size: int) -> Array:
    """Different pairs of places in a patch: int32 [N_PAIRS, 4]."""
    left, right = np.divmod(random.choice(size**4, 4 * N_PAIRS, replace=False), size**2)
    apart = np.flatnonzero(left != right)[:N_PAIRS]
    places = [part for each in (left[apart], right[apart]) for part in np.divmod(each, size)]
    return np.stack(places, 1).astype(np.int32)


def _threshold(levels: Array, pair: Array, plane: int, quantile: float) -> int:
    """A quantile of how far the two pixels of a pair are apart: levels int16 [n, C, H, W]."""
    (above, left, below, right), (height, width) = pair.tolist(), levels.shape[2:]
    down, across = height - max(above, below), width - max(left, right)
    one, other = (levels[:, :, r : r + down, c : c + across] for r, c in ((above, left), (below, right)))
    apart = np.abs(one - other)
    return int(np.quantile(apart.sum(1) if plane < 0 else apart[:, plane], quantile))


def _best_counts(patches: Patches, detector: int, x: Array, groups: Array, threads: int) -> torch.Tensor:
    """The counts of a detector that differ most between groups of images, int32 [COUNTS_EACH, 3], in order."""
    alone = Patches(patches.shape, 1, N_PAIRS, 0)
    alone.pairs, alone.plane, alone.threshold = (
        each[detector : detector + 1] for each in (patches.pairs, patches.plane, patches.threshold)
    )
    alone.counted, alone.span = all_counts(N_PAIRS), patches.span
    differ = between(np.sqrt(alone.counts(x, threads)), groups)
    best = np.sort(np.argsort(-differ, kind="stable")[:COUNTS_EACH])
    chosen = alone.counted[torch.from_numpy(best)].clone()
    chosen[:, 0] = detector
    return chosen


def all_counts(n_pairs: int) -> torch.Tensor:
    """All counts that one detector can have: int32 [addresses · regions, 3]."""
    numbers = torch.arange(2**n_pairs * 21, dtype=torch.int32)
    return torch.stack([torch.zeros_like(numbers), numbers // 21, numbers % 21], 1)


def between(values: Array, groups: Array) -> Array:
    """The variance of columns between groups over that within them: values [n, m], groups int64 [n] -> [m]."""
    sizes = np.bincount(groups)
    sums = np.eye(len(sizes))[:, groups] @ values
    around = sums.sum(0) ** 2 / len(values)
    between = (sums**2 / np.maximum(sizes, 1)[:, None]).sum(0) - around
    return between / (np.einsum("nm,nm->m", values, values) - around - between + 1e-9)


def try_patches(rows: TabularRows, shape: Shape, settings: Boosting, each: Each | None = None) -> PatchTrial | None:
    """Fit some images with and without patches, and compare the losses on a fifth that is held out; None for too few images."""
    from lutetia.training.tabular import fit_tabular

    kept = rows.counted()
    if len(kept.y) < LEAST_TRIED:
        return None
    own, held = kept.at(slice(None, None, -(-len(kept.y) // MOST_TRIED))).held_out(0)
    if not len(held.y) or (shape.n_classes > 1 and len(np.unique(own.y)) < 2):
        return None
    fewer = min(settings.n_tables, TABLES_TRIED)
    plain = replace(settings, n_tables=fewer, patience=None, calibrate=False, intervals=False, shift=0)
    losses = []
    for used in (False, True):
        model, _ = fit_tabular(own, shape, replace(plain, patches=used), each=each)
        losses.append(mean_loss(model, held))
    return PatchTrial(len(held.y), *losses)


@torch.no_grad()
def mean_loss(model: Tabular, held: TabularRows) -> float:
    """The loss of a model on rows that it has not seen."""
    x = torch.from_numpy(held.x.reshape(-1, *model.config.input_shape))
    if model.is_regression:
        return float(model.loss.mean(model.numbers(x).numpy(), held.y))
    return float(torch.nn.functional.cross_entropy(model(x).double(), torch.from_numpy(held.y.astype(np.int64))))

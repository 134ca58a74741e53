"""Several targets at once: each keeps a goal of its own, all are fitted by the same tables, whose rows have numbers for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from lutetia.training.goals import Goal, Residuals, Step

Array = np.ndarray[Any, Any]
LEAST_SCALE = 1e-12  # of residuals: a target may have no spread


def part_slices(sizes: Sequence[int]) -> list[slice]:
    """The outputs of each of several targets, of so many outputs each."""
    return [slice(*ends) for ends in pairwise([0, *accumulate(sizes)])]


@dataclass(frozen=True, eq=False)
class Together:
    """The goals of several targets, of the same samples; scores float64 [n, K] are theirs side by side, `weight` float32 [n] says
    how much samples count where anchors are chosen."""

    goals: tuple[Goal, ...]
    weight: Array

    @property
    def n_outputs(self) -> int:
        """The outputs of all targets, K."""
        return sum(goal.n_outputs for goal in self.goals)

    @cached_property
    def parts(self) -> list[slice]:
        """The outputs of each target."""
        return part_slices([goal.n_outputs for goal in self.goals])

    @cached_property
    def scale(self) -> Array:
        """What makes the residuals of all targets alike before the first table, [K]."""
        missing, _ = self.residuals(np.tile(self.start().astype(np.float64), (len(self.weight), 1)))
        spread = [np.sqrt(np.mean(missing[:, part] ** 2)) for part in self.parts]
        return np.concatenate([np.full(part.stop - part.start, 1 / max(own, LEAST_SCALE))
                               for part, own in zip(self.parts, spread, strict=True)])  # fmt: skip

    def start(self) -> Array:
        """The scores of each target's start, float64 [K]."""
        return np.concatenate([goal.start() for goal in self.goals])

    def residuals(self, scores: Array) -> tuple[Array, Any]:
        """The residuals of all targets, float64 [n, K], and those of each."""
        each = [goal.residuals(own) for goal, own in zip(self.goals, self._own(scores), strict=True)]
        return np.concatenate([missing for missing, _ in each], 1), each

    def sums(self, cells: Array, residuals: tuple[Array, Any], n_rows: int) -> Array:
        """Σ residuals and Σ curvature of the samples of each row, float64 [2, n_rows, K]."""
        each: list[Residuals] = residuals[1]
        return np.concatenate([goal.sums(cells, own, n_rows) for goal, own in zip(self.goals, each, strict=True)], 2)

    def held(self, residuals: tuple[Array, Any]) -> Array:
        """How much samples count where anchors are chosen, float32 [n]."""
        return self.weight

    def fill(self, cells: Array, scores: Array, residuals: tuple[Array, Any], step: Step, rows: Array) -> None:
        """The rows [R, K] of a table: those of each target."""
        for goal, part, own, scored in zip(self.goals, self.parts, residuals[1], self._own(scores), strict=True):
            filled = np.empty((len(rows), goal.n_outputs))
            goal.fill(cells, scored, own, step, filled)
            rows[:, part] = filled

    def losses(self, scores: Array) -> Array:
        """The loss of each target, [targets]."""
        return np.array([goal.loss(own) for goal, own in zip(self.goals, self._own(scores), strict=True)])

    def loss(self, scores: Array) -> float:
        """The mean of the losses of the targets."""
        return float(self.losses(scores).mean())

    def _own(self, scores: Array) -> list[Array]:
        """The scores of each target, as loops take them."""
        return [np.ascontiguousarray(scores[:, part]) for part in self.parts]

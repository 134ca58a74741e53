"""Learning rates over a run: they rise, then fall."""

from __future__ import annotations

import math

from lutetia.training.config import Schedule


def factor(schedule: Schedule, done: float, per_step: float = 0.0) -> float:
    """The factor on the rates after the fraction `done` of a run.

    `per_step` is what one step adds: the warm-up starts at one step's worth, since a first step with rate 0 would be wasted.
    """
    if done < schedule.warmup:
        return min(1.0, (done + per_step) / schedule.warmup)
    if schedule.kind == "constant":
        return 1.0
    left = 1 - (min(done, 1.0) - schedule.warmup) / max(1 - schedule.warmup, 1e-12)
    height = left if schedule.kind == "linear" else 0.5 * (1 - math.cos(math.pi * left))
    return schedule.floor + (1 - schedule.floor) * height

"""How sure a classifier is: scores that were fitted until the training rows are certain are divided by a temperature, found on
rows that a trial fit has not seen, so that probabilities are as high as the classes are frequent. The classes stay the same. The
same rows say how many tables are enough."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lutetia.training.goals import Goal
from lutetia.training.splits import RANDOM, Split

Array = np.ndarray[Any, Any]
HELD = 5  # one row in five is held out of the trial
HIGHEST = 20.0  # temperature
ROUNDS = 40  # of the search, each of which leaves 0.62 of the range
FEWEST_TABLES, STEP = 40, 1.5  # where a trial is first looked at, and how much later each time
GOLDEN = (math.sqrt(5) - 1) / 2


def held_out(n: int, seed: int, split: Split = RANDOM) -> tuple[Array, Array]:
    """The rows of a trial fit and those held out of it."""
    order = np.roll(np.random.default_rng(seed).permutation(n), -(n // HELD))
    own, held = split.parts(order, n // HELD)
    return np.sort(own), np.sort(held)


def best_temperature(scores: Array, goal: Goal) -> float:
    """The temperature, at least 1, by which scores float64 [n, classes] have the lowest loss.

    The loss is convex in the inverse of the temperature, so a golden-section search finds the lowest. Scores are never raised: a
    few rows that are all correct would make them infinite.
    """
    low, high = 0.0, math.log(HIGHEST)
    for _ in range(ROUNDS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if goal.loss(scores / math.exp(left)) <= goal.loss(scores / math.exp(right)):
            high = right
        else:
            low = left
    return math.exp(low) if low > 0 else 1.0


def table_looks(n_tables: int) -> list[int]:
    """After how many tables a trial is looked at, the last of them after all."""
    looks = [FEWEST_TABLES]
    while looks[-1] < n_tables:
        looks.append(math.ceil(looks[-1] * STEP))
    return [*(each for each in looks if each < n_tables), n_tables]


def row_losses(scores: Array, y: Array) -> Array:
    """The log loss of each row, [n], by scores [n, classes]."""
    top = scores.max(1)
    return np.log(np.exp(scores - top[:, None]).sum(1)) + top - scores[np.arange(len(y)), y]


def enough_of(losses: Array, weight: Array) -> int:
    """Which of several looks has the lowest mean of losses [looks, n]: the last, unless one is lower by more than the standard
    error of their difference."""
    means = np.average(losses, 1, weight)
    best = int(means.argmin())
    apart = losses[-1] - losses[best]
    error = np.sqrt(np.average((apart - np.average(apart, weights=weight)) ** 2, weights=weight) / len(apart))
    return best if means[-1] - means[best] > error else len(losses) - 1

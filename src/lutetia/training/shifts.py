"""Images moved by a pixel or more, from which a fit learns that what they show may lie elsewhere."""

from __future__ import annotations

from itertools import product

import numpy as np

from lutetia.training.formats import Array


def moves(reach: int) -> list[tuple[int, int]]:
    """All moves of `reach` steps at most, each step down, up, right or left: pixels (down, right), no move first."""
    steps = range(-reach, reach + 1)
    return sorted((move for move in product(steps, steps) if _distance(move) <= reach), key=lambda move: (_distance(move), move))


def moved(x: Array, shape: tuple[int, ...], move: tuple[int, int]) -> Array:
    """Images x [n, pixels] of a shape (.., height, width), moved; the pixels at the border are repeated."""
    if move == (0, 0):
        return x
    (height, width), (down, right) = shape[-2:], move
    rows = np.clip(np.arange(height) - down, 0, height - 1)
    columns = np.clip(np.arange(width) - right, 0, width - 1)
    return x.reshape(len(x), -1, height, width)[:, :, rows[:, None], columns].reshape(len(x), -1)


def _distance(move: tuple[int, int]) -> int:
    return abs(move[0]) + abs(move[1])

"""Monotonic constraints: answers that never fall, or never rise, as a column rises.

An anchor that reads a constrained input has a direction: as the input rises, its answer goes from 0 to 1, or from 1 to 0. If the
rows of a table never fall along these directions, whatever the other answers are, then no sum of such tables does, also when its
numbers were scaled or rounded. So each table is fitted as usual, and the rows that go the wrong way are pooled with those that
they contradict: isotonic regression over the partial order of the addresses, by the generalised pool-adjacent-violators algorithm
(Burdakov, Sysoev, Grimvall and Hussian, 2006).

A value that is missing has the code 0, and is compared with no other: the anchor code > 0 has no direction.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia._shared.compiled import jit

Array = np.ndarray[Any, Any]


def directions(anchors: Array, signs: Array) -> Array:
    """Which way the answers of anchors int64 [.., 2] should move scores, int8 [..]: 1 up, -1 down, 0 for those without a
    constraint. `signs` int8 [n_inputs] are those of the inputs; two inputs of one sign contradict each other (`contradict`)."""
    left, right = anchors[..., 0], anchors[..., 1]
    is_pair = right < len(signs)
    other = np.where(is_pair, -signs[np.where(is_pair, right, 0)], 0)
    tells_missing = right == len(signs)  # code > 0
    return np.where(tells_missing, 0, np.where(signs[left] != 0, signs[left], other)).astype(np.int8)


def contradict(left: Array, right: Array, signs: Array) -> Array:
    """Whether a comparison of two inputs would have to move scores both ways, bool [n]."""
    return signs[left] * signs[right] > 0


def make_monotone(rows: Array, held: Array, way: Array) -> None:
    """Pool the rows [R, K] of a table that go the wrong way, which count by `held` [R, K]; `way` [A] are the directions of its
    anchors. Of two outputs the first is that of the other class, which goes the other way."""
    for output in range(rows.shape[1]):
        sign = 1.0 if output == rows.shape[1] - 1 else -1.0
        column = sign * rows[:, output]
        _pool(column, held[:, output], way)
        rows[:, output] = sign * column


@jit(nogil=True)
def _pool(rows, held, way):  # type: ignore[no-untyped-def]
    """Rows float64 [R] that do not fall from a cell to the next along any direction.

    Cells are numbered so that all directions go up, by the answers of anchors that go down turned round. Then a cell comes after
    all that are below it. Each in its turn is pooled with the highest of the pools below it that are higher.
    """
    n_cells, turned = len(rows), 0
    for place in range(len(way)):
        turned |= np.int64(way[place] < 0) << place
    least = max(held.max(), 1.0) * 1e-12  # cells without samples follow the others
    pool, following, last = np.arange(n_cells), np.full(n_cells, -1), np.arange(n_cells)
    value, mass = np.empty(n_cells), np.empty(n_cells)
    for cell in range(n_cells):
        value[cell], mass[cell] = rows[cell ^ turned], held[cell ^ turned] + least
        while True:
            highest, number = value[cell], -1
            member = cell
            while member >= 0:
                for place in range(len(way)):
                    if way[place] != 0 and member >> place & 1:
                        below = pool[member ^ (1 << place)]
                        if below != cell and value[below] > highest:
                            highest, number = value[below], below
                member = following[member]
            if number < 0:
                break
            total = mass[cell] + mass[number]
            value[cell] = (value[cell] * mass[cell] + value[number] * mass[number]) / total
            mass[cell] = total
            member = number
            while member >= 0:
                pool[member] = cell
                member = following[member]
            following[last[cell]] = number
            last[cell] = last[number]
    for cell in range(n_cells):  # a mean of two numbers is rounded, and may be above both
        own = value[pool[cell]]
        for place in range(len(way)):
            if way[place] != 0 and cell >> place & 1:
                own = max(own, rows[(cell ^ (1 << place)) ^ turned])
        rows[cell ^ turned] = own

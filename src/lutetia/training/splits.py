"""Which rows are held out: any, the latest, or whole groups.

Rows of one patient, or of one day, tell of each other: a model that was fitted to some of them looks better on the others than it
will on new ones. What is held out of the held-in rows again, to stop or to calibrate a fit, is parted in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SPLITS = ("random", "latest", "groups")


@dataclass(frozen=True, eq=False)
class Split:
    """How rows are parted: `kind` is one of `SPLITS`. The `key` [n] says of each row when it was, or the number of its group; it
    is None where any row may be held out."""

    kind: str = "random"
    key: Array | None = None

    def at(self, rows: Array | slice) -> Split:
        """The same for some of the rows."""
        return self if self.key is None else Split(self.kind, self.key[rows])

    def parts(self, order: Array, count: int) -> tuple[Array, Array]:
        """The rows to fit, and about `count` to hold out; none where no border lies between rows. `order` [n] has all rows, of
        which the last are held out where the key leaves a choice."""
        if self.key is None:
            return order[: len(order) - count], order[len(order) - count :]
        chosen = _latest(self.key, count) if self.kind == "latest" else _whole_groups(self.key, order, count)
        return order[~chosen[order]], order[chosen[order]]


RANDOM = Split()


def _latest(key: Array, count: int) -> Array:
    """Which rows are the latest, bool [n]: about `count`, so that those of one time are on one side."""
    times = np.sort(key)
    borders = np.flatnonzero(np.diff(times)) + 1  # so many rows are before a later one
    if not count or not len(borders):
        return np.zeros(len(key), bool)
    return key >= times[borders[np.abs(borders - (len(key) - count)).argmin()]]


def _whole_groups(key: Array, order: Array, count: int) -> Array:
    """Which rows belong to groups that are held out, bool [n]: groups as the order has them, each that brings the number of rows
    nearer to `count`; the smallest where all are too large."""
    backwards = key[order[::-1]]
    groups = backwards[np.sort(np.unique(backwards, return_index=True)[1])]
    sizes = np.bincount(key)
    chosen: list[int] = []
    total = 0
    for group in groups.tolist() if count and len(groups) > 1 else ():
        more = total + int(sizes[group])
        if abs(more - count) < abs(total - count) and more < len(key):
            chosen.append(group)
            total = more
    if count and not chosen and len(groups) > 1:
        chosen.append(int(groups[sizes[groups].argmin()]))
    return np.isin(key, chosen)

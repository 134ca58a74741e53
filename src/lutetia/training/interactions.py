"""Limits on which columns meet in a table: the sum of such tables is a sum of curves of one column each, of maps of two, or of
functions of the columns of a group, which a person can read one by one.

Which columns a table has is found one column after another, each by the best of a few thresholds of all columns that may still
join. Then the anchors of the table are chosen anew, among candidates of these columns alone. All that a column becomes, such as
the parts of a date, is one column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from lutetia.training.anchors import AnchorSearch, Draw

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Interactions:
    """Which columns may meet in a table: `most` of them, 0 for any number; or those of one of the `groups`, where there are any.
    Columns in no group are a group of their own."""

    most: int = 0
    groups: tuple[tuple[int, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.most or self.groups)

    def all_groups(self, n_columns: int) -> list[frozenset[int]]:
        """The groups, with that of the columns in none."""
        rest = frozenset(range(n_columns)).difference(*self.groups)
        return [*map(frozenset, self.groups), *([rest] if rest else [])]


ANY = Interactions()


@dataclass(frozen=True, eq=False)
class Limits:
    """What tables keep to, by encoded inputs.

    signs   int8 [F]: the last score never falls as an input of sign 1 rises, and never rises with one of sign -1
    owners  int64 [F]: the column of each input, of which `interactions` says which may meet
    """

    signs: Array | None = None
    owners: Array | None = None
    interactions: Interactions = ANY


class LimitedSearch:
    """The search for the anchors of tables whose columns may meet. `draw_of(tops, pairs)` draws candidates of the inputs whose
    tops are not 0, a part `pairs` of them pairs of inputs."""

    def __init__(self, search: AnchorSearch, draw_of: Callable[[Array, bool], Draw], tops: Array, limits: Limits) -> None:
        assert limits.owners is not None
        useful = tops > 0 if (tops > 0).any() else limits.owners == limits.owners[0]
        self.search, self.owners, self.limits = search, limits.owners, limits.interactions
        self.useful = frozenset(self.owners[useful].tolist())
        self.groups = self.limits.all_groups(int(self.owners.max()) + 1)

        @cache
        def draw(columns: frozenset[int], pairs: bool) -> Draw:
            own = useful & np.isin(self.owners, list(columns))
            return draw_of(np.where(own, np.maximum(tops, 1), 0), pairs)

        self.draw = draw

    def choose(self, *given: Array) -> Array:
        """The anchors of a table, int64 [A, 2]; see `AnchorSearch`."""
        found = np.empty((0, 2), np.int64)
        columns: frozenset[int] = frozenset()
        while len(found) < self.search.n_anchors and (others := self._may_join(columns)):
            drawn = self.draw(others, False)(1)
            known = np.broadcast_to(found[:, None], (len(found), *drawn.shape[1:]))
            found = self.search.best(np.concatenate([known, drawn]), *given)
            columns |= {int(self.owners[found[-1, 0]])}
        allowed = columns if self.limits.most else self._open_to(columns)[0]
        return self.search.best(self.draw(allowed & self.useful, True)(self.search.n_anchors), *given)

    def _open_to(self, columns: Collection[int]) -> list[frozenset[int]]:
        """The groups that hold all these columns."""
        return [group for group in self.groups if group.issuperset(columns)]

    def _may_join(self, columns: frozenset[int]) -> frozenset[int]:
        """The columns among which the next one of a table is chosen; none where the others are known."""
        if self.limits.most:
            return self.useful - columns if len(columns) < self.limits.most else frozenset()
        groups = self._open_to(columns)
        if not columns or len(groups) == 1:
            return frozenset() if columns else self.useful
        return (frozenset.union(*groups) - frozenset.intersection(*groups)) & self.useful

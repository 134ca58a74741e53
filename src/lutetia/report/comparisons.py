"""The questions that the tables of a model of columns ask, and what each answer does for a score."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lutetia._shared.numbers import short_number
from lutetia.models import Tabular

Array = np.ndarray[Any, Any]


class Comparison(NamedTuple):
    """A question that tables ask, its answer for one sample, and what the score loses with the other answer."""

    feature: str
    operator: str  # ">" or "<="
    other: str  # the threshold, in the unit of the column, or another column
    effect: float

    @property
    def text(self) -> str:
        """The question with its answer, as text."""
        is_more = self.operator == ">"
        if self.other in ("missing", "[missing]"):
            return f"{self.feature} is {'known' if is_more else 'missing'}"
        if self.other.endswith("]"):  # categories that come before or at the threshold
            return f"{self.feature} {'not in' if is_more else 'in'} {self.other}"
        return f"{self.feature} {self.operator} {self.other}"

    def __str__(self) -> str:
        return f"{self.text} ({short_number(self.effect, 3, sign=True)})"


def comparisons(model: Tabular, codes: Array, contrast: Array, names: list[str]) -> list[Comparison]:
    """All comparisons of one sample, codes uint8 [n_encoded], equal ones together, the most effective first. Two columns whose
    ranks differ are compared once: the higher is above the lower, whichever a table names first.

    `contrast` [outputs] says with which weights the outputs are explained.
    """
    anchors = model.tables.anchors.numpy().astype(np.int64)
    weight = model.tables.weight.detach().double().numpy()
    led = weight @ contrast  # [T, 2**A]
    n_tables, n_anchors, _ = anchors.shape
    known = np.concatenate([codes.astype(np.int64), np.arange(256)])
    bits = known[anchors[..., 0]] > known[anchors[..., 1]]
    cells = (bits << np.arange(n_anchors)).sum(1)
    own = led[np.arange(n_tables), cells]
    flipped = led[np.arange(n_tables)[:, None], cells[:, None] ^ (1 << np.arange(n_anchors))]
    effects: dict[tuple[int, int], float] = {}
    source = model.encoding.source.tolist()
    first = [source.index(column) for column in source]  # input of a column: whether it is known is the same question to all
    for anchor, effect in zip(anchors.reshape(-1, 2).tolist(), (own[:, None] - flipped).ravel().tolist(), strict=True):
        left, right = anchor
        if right == len(source):
            left = first[left]
        elif right < len(source) and source[left] != source[right] and known[left] < known[right]:
            left, right = right, left
        key = (left, right)
        effects[key] = effects.get(key, 0.0) + effect
    told = []
    for (left, right), effect in sorted(effects.items(), key=lambda item: -abs(item[1])):
        operator = ">" if known[left] > known[right] else "<="
        told.append(Comparison(model.input_name(left, names), operator, _other(model, left, right, names), effect))
    return told


def _other(model: Tabular, left: int, right: int, names: list[str]) -> str:
    """What an input is compared with: a threshold, the same column in another order of its categories, or another column."""
    source = model.encoding.source
    if right >= len(source):
        return model.threshold_text(left, right - len(source))
    if source[left] == source[right] and model.encoding.ranks[left].any():
        return model.order_text(left, right)
    return f"{model.input_name(right, names)} by rank"

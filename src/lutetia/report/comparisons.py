"""The questions that the tables of a model of columns ask, and what each answer does for a score."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lutetia._shared.numbers import short_number
from lutetia.models import Tabular, finds_unusual, gram_text, text_columns

Array = np.ndarray[Any, Any]


class Comparison(NamedTuple):
    """A question that tables ask, its answer for one sample, and what the score loses with the other answer."""

    feature: str
    operator: str  # ">" or "<="; of a word of a text "contains" or "lacks"; of an interval or a set "in" or "not in"
    other: str  # the threshold, in the unit of the column, or another column; the word in quotes
    effect: float

    @property
    def text(self) -> str:
        """The question with its answer, as text."""
        if self.operator in ("in", "not in"):
            return f"{self.feature} {self.operator} {self.other}"
        is_more = self.operator == ">"
        if self.other in ("missing", "[missing]"):
            return f"{self.feature} is {'known' if is_more else 'missing'}"
        if self.other.endswith("]"):  # categories that come before or at the threshold
            return f"{self.feature} {'not in' if is_more else 'in'} {self.other}"
        return f"{self.feature} {self.operator} {self.other}"

    def __str__(self) -> str:
        return f"{self.text} ({short_number(self.effect, 3, sign=True)})"


class Questions:
    """The questions that the tables of a model ask, prepared for any number of samples."""

    def __init__(self, model: Tabular, names: list[str]) -> None:
        self._model, self._names = model, names
        self._anchors = model.tables.anchors.numpy().astype(np.int64)  # [T, A, 2]
        self._weight = model.tables.weight.detach().double().numpy()  # [T, 2**A, outputs]
        source = model.encoding.source.numpy()
        left, right = self._anchors.reshape(-1, 2).T
        self._words, self._texts_of = _text_inputs(model)
        self._asked = np.flatnonzero(np.isin(source, list(self._words)))
        of = np.array([self._texts_of.get(column, (column, ""))[0] for column in source.tolist()])
        first, numbers = np.unique(of, return_index=True, return_inverse=True)[1:]
        # Whether a column is known is the same question to all of its inputs.
        self._left, self._right = np.where(right == len(source), first[numbers][left], left), right
        self._two_columns = (right < len(source)) & (source[left] != source[np.minimum(right, len(source) - 1)])
        self._texts: dict[tuple[int, int], tuple[str, str]] = {}

    def __call__(self, codes: Array, contrast: Array) -> list[Comparison]:
        """All comparisons of one sample, codes uint8 [n_encoded], equal ones together, the most effective first, but words that
        a text lacks last. Of an unusual row only those that made it so: what all rows share is rarest the other way round. Two
        columns whose ranks differ are compared once: the higher is above the lower, whichever a table names first.

        `contrast` [outputs] says with which weights the outputs are explained.
        """
        n_tables, n_anchors, _ = self._anchors.shape
        known = np.concatenate([codes.astype(np.int64), np.arange(256)])
        bits = known[self._anchors[..., 0]] > known[self._anchors[..., 1]]
        cells = (bits << np.arange(n_anchors)).sum(1)
        led = self._weight @ contrast  # [T, 2**A]
        flipped = led[np.arange(n_tables)[:, None], cells[:, None] ^ (1 << np.arange(n_anchors))]
        turned = self._two_columns & (known[self._left] < known[self._right])
        left, right = np.where(turned, self._right, self._left), np.where(turned, self._left, self._right)
        keys, places, same = np.unique(left * len(known) + right, return_index=True, return_inverse=True)
        effects = np.bincount(same, (led[np.arange(n_tables), cells][:, None] - flipped).ravel())
        asked, others = np.divmod(keys, len(known))
        lacking = np.isin(asked, self._asked) & (known[asked] <= known[others])  # most words there are
        order = np.lexsort((places, -np.abs(effects), lacking))
        order = order[effects[order] > 0] if finds_unusual(self._model.metadata) else order
        found = zip(*(part[order].tolist() for part in (asked, others, effects)), strict=True)
        return [self._told(this, that, bool(known[this] > known[that]), effect) for this, that, effect in found]

    def _told(self, left: int, right: int, is_more: bool, effect: float) -> Comparison:
        texts = self._texts.get((left, right))
        if texts is None:
            own, other = self._model.input_name(left, self._names), _other(self._model, left, right, self._names)
            column = int(self._model.encoding.source[left])
            if other == "missing" and column in self._texts_of:
                own = self._texts_of[column][1]
            texts = self._texts[left, right] = own, other
        if right < len(self._model.encoding.source) and self._model.is_interval(left, right):
            return Comparison(texts[0], "in" if is_more else "not in", self._model.interval_text(left, right), effect)
        chosen = None if right < (count := len(self._model.encoding.source)) else self._model.set_text(left, right - count)
        if chosen is not None:
            return Comparison(texts[0], "in" if is_more else "not in", chosen, effect)
        word = self._words.get(int(self._model.encoding.source[left]))
        if word is not None and right == len(self._model.encoding.source) + 1:  # above 0, with 1 the code of 0
            return Comparison(word[0], "contains" if is_more else "lacks", word[1], effect)
        return Comparison(texts[0], ">" if is_more else "<=", texts[1], effect)


def _text_inputs(model: Tabular) -> tuple[dict[int, tuple[str, str]], dict[int, tuple[int, str]]]:
    """By input, the column and the word that it is, in quotes; and the first input of the text column that it is of, and that."""
    words: dict[int, tuple[str, str]] = {}
    texts: dict[int, tuple[int, str]] = {}
    for each in text_columns(model.metadata):
        texts |= dict.fromkeys(each.inputs, (each.first, each.name))
        words |= {each.asked + number: (each.name, f'"{gram_text(word)}"') for number, word in enumerate(each.words)}
    return words, texts


def _other(model: Tabular, left: int, right: int, names: list[str]) -> str:
    """What an input is compared with: a threshold, the same column in another order of its categories, or another column."""
    source = model.encoding.source
    if right >= len(source):
        return model.threshold_text(left, right - len(source))
    if source[left] == source[right] and model.encoding.ranks[left].any():
        return model.order_text(left, right)
    return f"{model.input_name(right, names)} by rank"

"""Anchors of tables: which comparisons are tried, and which of them are taken.

Each anchor is the best of a few candidates: the one whose comparison, together with those chosen before it for the same table,
leaves the least variance within the cells of what the tables are fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lutetia.training.anchor_loops import room_of, room_of_cells, search, walk, words_of
from lutetia.training.anchor_vectors import AT_ONCE
from lutetia.training.monotone import contradict, directions

Array = np.ndarray[Any, Any]
Draw = Callable[[int], Array]
AHEAD = 16  # tables whose candidates are drawn together: numpy takes as long to draw a few as to draw hundreds
MISSING_ASKED = 0.1  # of the candidates of a constrained input with missing values: whether it is missing


class AnchorSearch:
    """The search for the anchors of one table after another, by codes uint8 [F, n]. `draw(k)` gives candidates for k anchors,
    int64 [k, C, 2], and `way` their directions, int8 [k, C]."""

    def __init__(self, codes: Array, n_anchors: int, draw: Draw, way: Callable[[Array], Array] | None = None) -> None:
        self.words, self.n_inputs = words_of(codes), len(codes)
        self.cells, self.n_anchors = room_of_cells(n_anchors, 0), n_anchors
        self.sample = room_of(0, len(self.words))
        self.way, self.asked = way, self._asked(draw)

    def _ways(self, candidates: Array) -> Array:
        return np.zeros(candidates.shape[:2], np.int8) if self.way is None else self.way(candidates)

    def _asked(self, draw: Draw) -> Iterator[tuple[Array, Array]]:
        """The candidates [A, C, 2] of a table and their directions [A, C]."""
        while True:
            drawn = draw(AHEAD * self.n_anchors)
            ways = self._ways(drawn)
            for first in range(0, len(drawn), self.n_anchors):
                yield drawn[first : first + self.n_anchors], ways[first : first + self.n_anchors]

    def choose(self, rows: Array, missing: Array, direction: Array, held: Array) -> Array:
        """The anchors of a table, int64 [A, 2], by rows uint32 [m]: missing float64 [n, K] in a direction [K] is what they are
        fitted to, and held float32 [n] how much they count."""
        return self._best(*next(self.asked), rows, missing, direction, held)

    def best(self, candidates: Array, *given: Array) -> Array:
        """The best anchors int64 [k, 2] among candidates int64 [k, C, 2], by what `choose` takes."""
        return self._best(candidates, self._ways(candidates), *given)

    def _best(self, candidates: Array, ways: Array, rows: Array, missing: Array, direction: Array, held: Array) -> Array:
        if len(self.sample.entries) != len(rows):
            self.sample = room_of(len(rows), len(self.words))
        if self.cells.own.shape[1] < candidates.shape[1] + 2 * AT_ONCE:
            self.cells = room_of_cells(self.n_anchors, candidates.shape[1])
        anchors = np.empty((len(candidates), 2), np.int64)
        asked = candidates, ways, np.empty(candidates.shape[1]), anchors
        search(self.words, self.n_inputs, self.sample, self.cells, asked, (missing, direction, held, rows))
        return anchors


def row_drawer(random: np.random.Generator, n: int, count: int) -> Callable[[], Array]:
    """Draws `count` of n rows, or gives all where there are no more, uint32: a row and those that follow in steps, round and
    round, which takes a tenth of the time of numpy's draw. The step is prime to n, so no row comes twice."""
    rows = np.arange(min(n, count), dtype=np.uint32)
    drawn: list[list[int]] = []

    def draw() -> Array:
        if n > count:
            if not drawn:
                drawn.extend(random.integers(1, n, (AHEAD, 2)).tolist())
            first, step = drawn.pop()
            while math.gcd(step, n) > 1:
                step += 1
            walk(rows, first, step, n)
        return rows

    return draw


def drawer(
    random: np.random.Generator, tops: Array, count: int, pairs: float, kinds: tuple[int, ...] = (), words: int | None = None
) -> Draw:
    """Draws `count` candidates for an anchor, of inputs that vary, as many of each kind; a part `pairs` compares two inputs.
    Those from `words` on say whether a word is there, and are asked nothing else."""
    useful = np.flatnonzero(tops > 0)
    useful = useful if len(useful) else np.arange(len(tops))
    groups = [group for group in np.split(useful, np.searchsorted(useful, kinds)) if len(group)]
    ends = [count * number // len(groups) for number in range(len(groups) + 1)]
    shares = [(group, end - begin) for group, begin, end in zip(groups, ends, ends[1:], strict=False)]

    def draw(useful: Array, shape: tuple[int, int]) -> Array:
        place = random.integers(len(useful), size=shape)
        left = useful[place]
        if words is not None and useful[0] >= words:
            return np.stack([left, np.full(shape, len(tops) + 1)], 2)
        right = len(tops) + (random.random(shape) * np.maximum(tops[left], 1)).astype(np.int64)
        if len(useful) > 1:
            other = useful[(place + random.integers(1, len(useful), shape)) % len(useful)]
            right = np.where(random.random(shape) < pairs, other, right)
        return np.stack([left, right], 2)

    return lambda n: np.concatenate([draw(group, (n, share)) for group, share in shares], 1)


def constrained(draw: Draw, random: np.random.Generator, tops: Array, signs: Array, asked: Array) -> Draw:
    """Candidates that the signs of inputs allow: a pair that contradicts them becomes a threshold of its first input. A part
    `asked` [F] of them asks whether an input is missing, which low thresholds cannot stand for."""

    def allowed(n: int) -> Array:
        drawn = draw(n)
        left, right = drawn[..., 0], drawn[..., 1]
        is_pair = right < len(signs)
        wrong = is_pair & contradict(left, np.where(is_pair, right, left), signs)
        chance, place = random.random((2, *left.shape))
        right = np.where(wrong, len(signs) + (place * np.maximum(tops[left], 1)).astype(np.int64), right)
        return np.stack([left, np.where(chance < asked[left], len(signs), right)], 2)

    return allowed


def missing_asked(codes: Array, signs: Array) -> Array:
    """The part of the candidates of each input that ask whether it is missing, [F]: of those with a sign that are missing."""
    return np.where((signs != 0) & (codes.min(1, initial=255) == 0), MISSING_ASKED, 0.0)


def way_of(signs: Array, n_outputs: int) -> Callable[[Array], Array]:
    """The directions of candidates for the residuals that anchors are chosen by: of two classes those of the first."""
    return lambda candidates: directions(candidates, signs if n_outputs == 1 else -signs)

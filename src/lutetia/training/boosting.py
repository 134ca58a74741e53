"""Tables fitted one after another: each corrects what those before it leave, at anchors chosen for that.

A table with anchors is a tree that asks the same questions on each path, so this is gradient boosting, with trees that are
tables from the start. Inputs are codes, whole numbers from 0 to 255, 0 for what is missing; a second entry of F + t in an anchor
stands for the constant t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lutetia._shared.compiled import jit
from lutetia._shared.losses import Loss
from lutetia._shared.threads import spread
from lutetia.nn import Chooser
from lutetia.training.goals import Goal, Residuals, Step
from lutetia.training.monotone import contradict, directions, make_monotone

Array = np.ndarray[Any, Any]
N_CONSTANTS = 255  # thresholds 0 to 254: code > t
CONSTANTS = np.arange(N_CONSTANTS, dtype=np.uint8)
BLOCK = 256  # samples that stay in the cache while all tables are asked
MISSING_ASKED = 0.1  # of the candidates of a constrained input with missing values: whether it is missing
BETWEEN = 10  # tables from one look at the validation data to the next


@dataclass(frozen=True)
class Boosting:
    """How tables are fitted.

    rate        the fraction of its correction that a table applies
    candidates  among which each anchor is chosen, a part `pairs` of them pairs of inputs, the others thresholds
    rows        samples that choose the anchors of one table, at most; all samples fill its rows
    smoothing   samples without a correction that are added to each row
    sketch      random directions that stand for the classes where anchors are chosen
    patience    validations without an improvement before the end; None: all tables are fitted
    balanced    whether classes count alike, however many samples they have
    calibrate   whether a trial fit says by how much the scores of classes are divided
    intervals   whether more tables learn how far off each number may be
    loss        of numbers, and its quantile or its function: see `lutetia._shared.losses`
    kinds       inputs at which others of a kind of their own begin: each kind is drawn as often, and compared with itself
    words       the first of the inputs that are words of texts, of which only whether they occur is asked
    patches     whether patterns in images are counted, too: see `lutetia.models.patches`
    shift       pixels by which images are moved, at most: each is fitted at all places in reach
    """

    n_tables: int = 500
    n_anchors: int = 6
    rate: float = 0.1
    candidates: int = 64
    pairs: float = 0.25
    rows: int = 8192
    smoothing: float = 1.0
    sketch: int = 1
    patience: int | None = None
    balanced: bool = False
    calibrate: bool = False
    intervals: bool = False
    loss: str = "squared_error"
    quantile: float | None = None
    function: Callable[..., Any] | None = None
    shift: int = 0
    kinds: tuple[int, ...] = ()
    words: int | None = None
    patches: bool = False
    seed: int = 0
    threads: int = 1

    @property
    def step(self) -> Step:
        """How far the rows of a table are moved."""
        return Step(self.rate, self.smoothing)

    @property
    def number_loss(self) -> Loss:
        """The loss of numbers, checked."""
        return Loss(self.loss, self.quantile, self.function)


@dataclass(eq=False)
class Boosted:
    """Fitted tables: anchors int64 [T, A, 2], weight float64 [T, 2**A, K], base float64 [K]; and the losses during the fit. A
    model divides the rows by the temperature."""

    anchors: Array
    weight: Array
    base: Array
    temperature: float = 1.0
    losses: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Validation:
    """Validation data: codes uint8 [F, n] and its goal."""

    codes: Array
    goal: Goal


Each = Callable[[int, dict[str, float]], None]


def boost(
    codes: Array,
    tops: Array,
    goal: Goal,
    settings: Boosting,
    *,
    signs: Array | None = None,
    valid: Validation | None = None,
    each: Each | None = None,
) -> Boosted:
    """Fit tables to codes uint8 [F, n], where input f is at most tops[f]; `each(tables, losses)` reports progress. With signs
    int8 [F] the last score never falls as an input of sign 1 rises, and never rises with one of sign -1."""
    random = np.random.default_rng(settings.seed)
    n, k = codes.shape[1], goal.n_outputs
    base = goal.start()
    scores = np.tile(base.astype(np.float64), (n, 1))  # a sum of hundreds of small steps
    held = None if valid is None else np.tile(base, (valid.codes.shape[1], 1))
    weight = np.zeros((settings.n_tables, 1 << settings.n_anchors, k))
    anchors = np.empty((settings.n_tables, settings.n_anchors, 2), np.int64)
    way = None if signs is None else _chooser_way(signs, k)
    draw = _drawer(random, tops, settings)
    if signs is not None:
        least = np.where((signs != 0) & (codes.min(1, initial=N_CONSTANTS) == 0), MISSING_ASKED, 0.0)
        draw = _constrained(draw, random, tops, signs, least)
    chooser = Chooser(codes, CONSTANTS, draw, settings.threads, way)
    losses: dict[str, list[float]] = {"train": [], "valid": []}
    best, waited, count = (np.inf, settings.n_tables), 0, settings.n_tables
    for table in range(settings.n_tables):
        residuals = goal.residuals(scores)
        rows = random.choice(n, settings.rows, replace=False) if n > settings.rows else np.arange(n)
        own = _sketched(residuals[0][rows], settings.sketch, random)
        anchors[table] = chooser.choose(settings.n_anchors, rows, own, goal.held(residuals)[rows])
        one = slice(table, table + 1)
        cells = np.empty(n, np.int64)
        spread(settings.threads if n > BLOCK * 16 else 1, n, _cells, codes, anchors[table], cells)
        goal.fill(cells, scores, residuals, settings.step, weight[table])
        if signs is not None:
            make_monotone(weight[table], _held(cells, residuals, goal, weight.shape[1]), directions(anchors[table], signs))
        scores += weight[table][cells]
        if valid is not None and held is not None:
            score(valid.codes, anchors[one], weight[one], held, settings.threads)
        if (table + 1) % BETWEEN == 0 or table + 1 == settings.n_tables:
            now = {"train": goal.loss(scores)}
            if valid is not None and held is not None:
                now["valid"] = valid.goal.loss(held)
                waited = 0 if now["valid"] < best[0] else waited + 1
                best = (now["valid"], table + 1) if waited == 0 else best
            for name, loss in now.items():
                losses[name].append(loss)
            if each is not None:
                each(table + 1, now)
            if settings.patience is not None and valid is not None and waited >= settings.patience:
                break
    if settings.patience is not None and valid is not None:
        count = best[1]
    return Boosted(anchors[:count].copy(), weight[:count].copy(), base, losses=losses)


def refit(
    codes: Array, goal: Goal, anchors: Array, weight: Array, rounds: int, settings: Boosting, signs: Array | None = None
) -> Array:
    """New rows [T, 2**A, K] of tables that keep their anchors [T, A, 2]: each round corrects the tables one after another. Each
    of the first tables of a fit has learned little. These rounds make up for the tables that are left out. See `boost` for signs.
    """
    n, weight = codes.shape[1], weight.astype(np.float64)
    scores, step, cells = np.zeros((n, goal.n_outputs)), np.empty(weight.shape[1:]), np.empty(n, np.int64)
    score(codes, anchors, weight, scores, settings.threads)
    for turn in range(rounds):
        table = turn % len(anchors)
        spread(settings.threads if n > BLOCK * 16 else 1, n, _cells, codes, anchors[table], cells)
        residuals = goal.residuals(scores)
        goal.fill(cells, scores, residuals, settings.step, step)
        if signs is not None:  # the rows are to be monotone, not the step
            step += weight[table]
            make_monotone(step, _held(cells, residuals, goal, len(step)), directions(anchors[table], signs))
            step -= weight[table]
        weight[table] += step
        scores += step[cells]
    return weight


def _held(cells: Array, residuals: Residuals, goal: Goal, n_rows: int) -> Array:
    """How much the samples of each row of a table count, float64 [n_rows, K]: by the curvature of the loss."""
    _, curvature = residuals
    by_output = np.repeat(goal.weight[:, None], goal.n_outputs, 1) if curvature is None else curvature
    return np.stack([np.bincount(cells, column, n_rows) for column in by_output.T], 1)


def _chooser_way(signs: Array, n_outputs: int) -> Callable[[Array], Array]:
    """The directions of candidates for the residuals that anchors are chosen by: of two classes those of the first."""
    return lambda candidates: directions(candidates, signs if n_outputs == 1 else -signs)


def _sketched(missing: Array, directions: int, random: np.random.Generator) -> Array:
    """Residuals [m, K] projected onto a few random directions [m, k]: choosing by all K would cost K times as much."""
    k = missing.shape[1]
    if k <= directions or k == 2:
        return np.ascontiguousarray(missing[:, : min(k, 1 if k == 2 else k)])
    return missing @ random.standard_normal((k, directions))


def _drawer(random: np.random.Generator, tops: Array, settings: Boosting) -> Callable[[], Array]:
    """Candidates int64 [c, 2] of inputs that vary, as many of each kind."""
    useful = np.flatnonzero(tops > 0)
    useful = useful if len(useful) else np.arange(len(tops))
    groups = [group for group in np.split(useful, np.searchsorted(useful, settings.kinds)) if len(group)]
    ends = [settings.candidates * number // len(groups) for number in range(len(groups) + 1)]
    shares = [(group, end - begin) for group, begin, end in zip(groups, ends, ends[1:], strict=False)]
    n_inputs = len(tops)

    def draw(useful: Array, count: int) -> Array:
        left = random.choice(useful, count)
        right = n_inputs + (random.random(count) * np.maximum(tops[left], 1)).astype(np.int64)
        if settings.words is not None and useful[0] >= settings.words:
            return np.stack([left, np.full(count, n_inputs + 1)], 1)
        pair = (random.random(count) < settings.pairs) & (len(useful) > 1)
        step_to = max(len(useful), 2)
        others = useful[(np.searchsorted(useful, left[pair]) + random.integers(1, step_to, int(pair.sum()))) % len(useful)]
        right[pair] = others
        return np.stack([left, right], 1)

    return lambda: np.concatenate([draw(group, count) for group, count in shares])


def _constrained(
    draw: Callable[[], Array], random: np.random.Generator, tops: Array, signs: Array, asked: Array
) -> Callable[[], Array]:
    """Candidates that the signs of inputs allow: a pair that contradicts them becomes a threshold of its first input. A part
    `asked` [F] of them asks whether an input is missing, which low thresholds cannot stand for."""

    def constrained() -> Array:
        drawn = draw()
        left, right = drawn[:, 0], drawn[:, 1]
        is_pair = right < len(signs)
        wrong = is_pair & contradict(left, np.where(is_pair, right, left), signs)
        chance, place = random.random((2, len(drawn)))
        right = np.where(wrong, len(signs) + (place * np.maximum(tops[left], 1)).astype(np.int64), right)
        return np.stack([left, np.where(chance < asked[left], len(signs), right)], 1)

    return constrained


def score(codes: Array, anchors: Array, weight: Array, scores: Array, threads: int = 1) -> None:
    """Add the rows that tables give: codes uint8 [F, n], anchors [T, A, 2], weight [T, 2**A, K] -> scores [n, K]."""
    n = codes.shape[1]
    spread(threads, -(-n // BLOCK), _score, codes, anchors, weight, scores)


# ---- loops -----------------------------------------------------------------------------------------------------------


@jit(nogil=True)
def _cells(codes, anchors, cells, begin, end):  # type: ignore[no-untyped-def]
    """The row that each of a range of samples reads of one table."""
    cells[begin:end] = 0
    n_inputs = codes.shape[0]
    for place in range(len(anchors)):
        left = codes[anchors[place, 0]]
        if anchors[place, 1] >= n_inputs:
            constant = anchors[place, 1] - n_inputs
            for sample in range(begin, end):
                cells[sample] |= np.int64(left[sample] > constant) << place
        else:
            right = codes[anchors[place, 1]]
            for sample in range(begin, end):
                cells[sample] |= np.int64(left[sample] > right[sample]) << place


@jit(nogil=True)
def _score(codes, anchors, weight, scores, begin, end):  # type: ignore[no-untyped-def]
    """All tables for a range of blocks."""
    n_inputs, n = codes.shape
    n_tables, n_anchors, _ = anchors.shape
    k = weight.shape[2]
    cells = np.empty(BLOCK, np.uint16)
    for block in range(begin, end):
        first = block * BLOCK
        size = min(BLOCK, n - first)
        for table in range(n_tables):
            cells[:] = 0
            for place in range(n_anchors):
                left = codes[anchors[table, place, 0], first : first + size]
                bit = np.uint16(1 << place)
                if anchors[table, place, 1] >= n_inputs:
                    constant = np.uint8(anchors[table, place, 1] - n_inputs)
                    for at in range(size):
                        cells[at] |= bit if left[at] > constant else np.uint16(0)
                else:
                    right = codes[anchors[table, place, 1], first : first + size]
                    for at in range(size):
                        cells[at] |= bit if left[at] > right[at] else np.uint16(0)
            own = weight[table]
            for at in range(size):
                cell = cells[at]
                for output in range(k):
                    scores[first + at, output] += own[cell, output]

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

from lutetia._shared.loops import U, entry, kernel
from lutetia._shared.losses import Loss
from lutetia._shared.threads import spread
from lutetia.training.anchors import AnchorSearch, Draw, constrained, drawer, missing_asked, row_drawer, way_of
from lutetia.training.goal_loops import BLOCK, add_rows, cells_of, read_cells, shared_answers
from lutetia.training.goals import Goal, Step, useful_threads
from lutetia.training.interactions import LimitedSearch, Limits
from lutetia.training.monotone import directions, make_monotone
from lutetia.training.together import Together

Array = np.ndarray[Any, Any]
N_CONSTANTS = 255  # thresholds 0 to 254: code > t
FEW = 8  # samples that are added up one after another
FREE = Limits()
BETWEEN = 10  # tables from one look at the validation data to the next


@dataclass(frozen=True)
class Boosting:
    """How tables are fitted.

    rate        the fraction of its correction that a table applies
    candidates  among which each anchor is chosen, a part `pairs` of them pairs of inputs, the others thresholds
    rows        samples that choose the anchors of one table, at most; all samples fill its rows
    smoothing   samples without a correction that are added to each row
    patience    validations without an improvement before the end; None: all tables are fitted
    balanced    whether classes count alike, however many samples they have
    calibrate   whether a trial fit says by how much the scores of classes are divided
    enough_tables  whether that trial also says how many tables are enough, of n_tables at most
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
    patience: int | None = None
    balanced: bool = False
    calibrate: bool = False
    enough_tables: bool = False
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
    model divides the rows by the temperature, of several targets by that of each output [K]."""

    anchors: Array
    weight: Array
    base: Array
    temperature: float | Array = 1.0
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
    limits: Limits = FREE,
    valid: Validation | None = None,
    each: Each | None = None,
) -> Boosted:
    """Fit tables to codes uint8 [F, n], where input f is at most tops[f]; `each(tables, losses)` reports progress. Tables
    keep to the limits."""
    random = np.random.default_rng(settings.seed)
    n, k, signs = codes.shape[1], goal.n_outputs, limits.signs
    base = goal.start()
    scores = np.tile(base.astype(np.float64), (n, 1))  # a sum of hundreds of small steps
    held = None if valid is None else np.tile(base, (valid.codes.shape[1], 1))
    weight = np.zeros((settings.n_tables, 1 << settings.n_anchors, k))
    anchors = np.empty((settings.n_tables, settings.n_anchors, 2), np.int64)
    chooser = _chooser(codes, tops, settings, limits, k, random)
    rows, cells, threads = row_drawer(random, n, settings.rows), np.empty(n, np.uint16), useful_threads(n, settings.threads)
    losses: dict[str, list[float]] = {"train": [], "valid": []}
    watch = _Watch(goal, settings)
    for table in range(settings.n_tables):
        residuals = goal.residuals(scores)
        anchors[table] = chooser.choose(rows(), residuals[0], watch.direction(random), goal.held(residuals))
        one = slice(table, table + 1)
        spread(threads, n, read_cells, codes, anchors[table], cells)
        goal.fill(cells, scores, residuals, settings.step, weight[table])
        weight[table][:, watch.done] = 0
        ignore_constant_answers(cells, weight[table])
        if signs is not None:
            held_by = goal.sums(cells, residuals, weight.shape[1])[1]
            make_monotone(weight[table], held_by, directions(anchors[table], signs))
        spread(threads, n, add_rows, weight[table], cells, scores)
        if valid is not None and held is not None:
            score(valid.codes, anchors[one], weight[one], held, settings.threads)
        if (table + 1) % BETWEEN == 0 or table + 1 == settings.n_tables:
            now = {"train": goal.loss(scores)}
            if valid is not None and held is not None:
                now["valid"] = valid.goal.loss(held)
                watch.look(table + 1, losses_of(valid.goal, held))
            for name, loss in now.items():
                losses[name].append(loss)
            if each is not None:
                each(table + 1, now)
            if watch.done.all():
                break
    count = first_of_each(weight, goal, watch.counts)
    return Boosted(anchors[:count].copy(), weight[:count].copy(), base, losses=losses)


def _chooser(
    codes: Array, tops: Array, settings: Boosting, limits: Limits, n_outputs: int, random: np.random.Generator
) -> AnchorSearch | LimitedSearch:
    """What chooses the anchors of tables within limits."""
    signs = limits.signs
    asked = None if signs is None else missing_asked(codes, signs)

    def draw_of(tops: Array, pairs: bool = True) -> Draw:
        part = settings.pairs if pairs else 0.0
        draw = drawer(random, tops, settings.candidates, part, settings.kinds, settings.words)
        return draw if signs is None or asked is None else constrained(draw, random, tops, signs, asked)

    search = AnchorSearch(codes, settings.n_anchors, draw_of(tops), None if signs is None else way_of(signs, n_outputs))
    return LimitedSearch(search, draw_of, tops, limits) if limits.interactions else search


class _Watch:
    """When the outputs of a goal need no more tables: several targets one by one, all others at once. `counts` says for each how
    many tables it keeps, `done` bool [K] which outputs have enough."""

    def __init__(self, goal: Goal, settings: Boosting) -> None:
        self.parts, self.patience = parts_of(goal), settings.patience
        self.scale = goal.scale if isinstance(goal, Together) else None
        self.counts = np.full(len(self.parts), settings.n_tables)
        self.best, self.waited = np.full(len(self.parts), np.inf), np.zeros(len(self.parts), np.int64)
        self.done = np.zeros(goal.n_outputs, bool)

    def look(self, n_tables: int, losses: Array) -> None:
        """Take the losses [parts] on validation data after so many tables."""
        if self.patience is None:
            return
        going = self.waited < self.patience
        better = going & (losses < self.best)
        self.waited = np.where(better, 0, self.waited + going)
        self.best[better], self.counts[better] = losses[better], n_tables
        for part, waited in zip(self.parts, self.waited, strict=True):
            self.done[part] = waited >= self.patience

    def direction(self, random: np.random.Generator) -> Array:
        """A random direction [K] that stands for the outputs where anchors are chosen: to choose by all would cost K times as
        much. Two classes are as far off as each other."""
        n_outputs = len(self.done)
        if self.scale is not None:
            return random.standard_normal(n_outputs) * self.scale * ~self.done
        return random.standard_normal(n_outputs) if n_outputs > 2 else np.eye(n_outputs)[0]


def parts_of(goal: Goal) -> list[slice]:
    """The outputs that are stopped together: those of each target."""
    return goal.parts if isinstance(goal, Together) else [slice(0, goal.n_outputs)]


def losses_of(goal: Goal, scores: Array) -> Array:
    """The loss of each of these parts, [parts]."""
    return goal.losses(scores) if isinstance(goal, Together) else np.array([goal.loss(scores)])


def first_of_each(weight: Array, goal: Goal, counts: Array) -> int:
    """Keep only the first `counts` tables of each part, in rows [T, R, K]; returns how many tables are left."""
    for part, count in zip(parts_of(goal), counts.tolist(), strict=True):
        weight[count:, :, part] = 0
    return int(counts.max())


def refit(
    codes: Array, goal: Goal, anchors: Array, weight: Array, rounds: int, settings: Boosting, signs: Array | None = None
) -> Array:
    """New rows [T, 2**A, K] of tables that keep their anchors [T, A, 2]: each round corrects the tables one after another. Each
    of the first tables of a fit has learned little. These rounds make up for the tables that are left out. `signs` are those of
    `Limits`.
    """
    n, weight = codes.shape[1], weight.astype(np.float64)
    scores, step, cells = np.zeros((n, goal.n_outputs)), np.empty(weight.shape[1:]), np.empty(n, np.uint16)
    threads = useful_threads(n, settings.threads)
    score(codes, anchors, weight, scores, settings.threads)
    for turn in range(rounds):
        table = turn % len(anchors)
        spread(threads, n, read_cells, codes, anchors[table], cells)
        residuals = goal.residuals(scores)
        goal.fill(cells, scores, residuals, settings.step, step)
        ignore_constant_answers(cells, step)
        if signs is not None:  # the rows are to be monotone, not the step
            step += weight[table]
            make_monotone(step, goal.sums(cells, residuals, len(step))[1], directions(anchors[table], signs))
            step -= weight[table]
        weight[table] += step
        spread(threads, n, add_rows, step, cells, scores)
    return weight


def ignore_constant_answers(cells: Array, rows: Array) -> None:
    """Copy the rows [R, K] of a table that the addresses cells uint16 [n] have to those that differ in answers which all samples
    share, such as that nothing is missing. Such an answer has decided nothing, and no reason should name it."""
    set_in_all, set_in_one = shared_answers(cells)
    varying = set_in_all ^ set_in_one
    if varying != len(rows) - 1:
        rows[:] = rows[np.arange(len(rows)) & varying | set_in_all]


def score(codes: Array, anchors: Array, weight: Array, scores: Array, threads: int = 1) -> None:
    """Add the rows that tables give: codes uint8 [F, n], anchors [T, A, 2], weight [T, 2**A, K] -> scores [n, K]."""
    n = codes.shape[1]
    if n <= FEW:
        _score_few(codes, anchors, weight, scores)
    else:
        spread(threads, -(-n // BLOCK), _score, codes, anchors, weight, scores)


# ---- loops -----------------------------------------------------------------------------------------------------------


@entry
def _score_few(codes, anchors, weight, scores):  # type: ignore[no-untyped-def]
    """One sample after another: a block of a few costs as much as one of many."""
    n_inputs = len(codes)
    for sample in range(codes.shape[1]):
        for table in range(len(anchors)):
            cell = U(0)
            for place in range(anchors.shape[1]):
                left, right = codes[anchors[table, place, 0], sample], anchors[table, place, 1]
                other = codes[right, sample] if right < n_inputs else right - n_inputs
                cell |= U(left > other) << U(place)
            for output in range(U(weight.shape[2])):
                scores[sample, output] += weight[U(table), cell, output]


@kernel
def _score(codes, anchors, weight, scores, begin, end):  # type: ignore[no-untyped-def]
    """All tables for a range of blocks."""
    cells = np.empty(BLOCK, np.uint16)
    for block in range(begin, end):
        first, last = block * BLOCK, min((block + 1) * BLOCK, codes.shape[1])
        for table in range(len(anchors)):
            cells_of(codes, first, anchors[table], cells[: last - first])
            rows = weight[table]
            for at in range(U(last - first)):
                cell = U(cells[at])
                for output in range(U(weight.shape[2])):
                    scores[U(first) + at, output] += rows[cell, output]

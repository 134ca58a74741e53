"""Methods on one table of data, each fitted to the same rows and tested on the same others, fold by fold; and what that says.

Two methods differ by more than chance explains where the mean of their differences over folds is outside of what a t test allows
in 19 of 20 cases. Folds share rows to fit, so their differences vary less than those of new tables would: the variance is
corrected by the share of rows to test (Nadeau and Bengio, 2003).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lutetia._shared.numbers import short_number
from lutetia.models import Tabular, save, text_columns
from lutetia.sklearn.base import probabilities, table_scores
from lutetia.sklearn.peers import CONSTANT, Fit, Fitted, Problem
from lutetia.training import TabularRows, describe_columns, describe_texts, with_texts

Array = np.ndarray[Any, Any]
OURS = "Lutetia"
SURE = 0.95
ROUNDING = 1e-12  # of a score, by which sums in another order differ
LEAST = 1e-15  # of a probability in the log loss
PER = 1000  # rows, for seconds of a prediction


class Turn(NamedTuple):
    """What a method did in one fold."""

    score: float
    log_loss: float | None  # of classes
    fit_seconds: float
    predict_seconds: float  # of 1,000 rows
    size: int  # bytes


@dataclass(frozen=True, eq=False)
class Contest:
    """The rows of a table, how they are parted, and what is to be learned from them."""

    problem: Problem
    rows: TabularRows
    folds: list[tuple[Array, Array]]  # the numbers of the rows to fit, and of those to test on

    @property
    def share(self) -> float:
        """Rows to test for each row to fit."""
        return float(np.mean([len(test) / len(train) for train, test in self.folds]))


def play(contest: Contest, fit: Fit) -> Iterator[Turn]:
    """One method in all folds."""
    from threadpoolctl import threadpool_limits

    for train, test in contest.folds:
        own, others = contest.rows.at(train), contest.rows.at(test)
        with threadpool_limits(contest.problem.threads):
            begun = time.perf_counter()
            fitted = fit(own)
            done = time.perf_counter()
            predicted = fitted.predict(others)
            ended = time.perf_counter()
        per = (ended - done) * PER / len(others.y)
        yield Turn(*_measured(contest.problem, predicted, others), done - begun, per, fitted.size())


def _measured(problem: Problem, predicted: Array, rows: TabularRows) -> tuple[float, float | None]:
    """Accuracy and log loss of probabilities, or the measure of numbers; rows count by their weights."""
    if not problem.has_classes:
        return problem.loss.measure(predicted, rows.y, rows.weight, rows.query), None
    if problem.balanced:
        rows = rows.balanced(problem.shape.n_classes)
    chances = predicted[np.arange(len(rows.y)), rows.y]
    right, losses = predicted.argmax(1) == rows.y, -np.log(np.maximum(chances, LEAST))
    accuracy, loss = (float(np.average(each, weights=rows.weight)) for each in (right, losses))
    return accuracy, loss


def fit_ours(fit: Callable[[TabularRows], Tabular], threads: int, rows: TabularRows) -> Fitted:
    """Our model, by the function that fits it."""
    model = fit(rows)
    texts = text_columns(model.metadata)
    model.metadata = describe_texts(describe_columns(rows.x, rows.x) if texts else {}, model.metadata)  # as a saved model has it

    def predict(others: TabularRows) -> Array:
        scores = table_scores(model, with_texts(others, texts).x, threads)
        return model.loss.numbers(scores[:, 0]) if model.is_regression else probabilities(model, scores)

    def size() -> int:
        with tempfile.TemporaryDirectory() as place:
            save(model, Path(place) / "model")
            return sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file())

    return Fitted(predict, size)


# ---- what it says ----------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """By how much ours is better on average, and what chance explains on either side."""

    mean: float
    chance: float

    @property
    def sign(self) -> int:
        """1 where ours is better by more than chance explains, -1 where it is worse, 0 where they are level."""
        return 0 if abs(self.mean) <= self.chance else 1 if self.mean > 0 else -1


def difference(ours: Sequence[float], theirs: Sequence[float], share: float, way: int = 1) -> Difference:
    """How two lists of scores differ, fold by fold; way is 1 where more is better, -1 where less is."""
    from scipy import stats

    apart = way * (np.array(ours) - np.array(theirs))
    tiny = ROUNDING * float(np.abs([ours, theirs]).max())
    apart[np.abs(apart) <= tiny] = 0
    mean = float(apart.mean())
    error = apart.std(ddof=1) * (1 / len(apart) + share) ** 0.5
    return Difference(0.0 if abs(mean) <= tiny else mean, float(stats.t.ppf((1 + SURE) / 2, len(apart) - 1) * error))


@dataclass(frozen=True)
class Standing:
    """What all turns of all methods that were done say."""

    problem: Problem
    turns: Mapping[str, Sequence[Turn]]
    share: float

    @property
    def way(self) -> int:
        """1 where a larger score is better, -1 where a smaller one is."""
        return 1 if self.problem.has_classes or self.problem.loss.is_ranking else -1

    @property
    def measure(self) -> str:
        """What scores are, for readers."""
        if self.problem.has_classes:
            return "balanced accuracy" if self.problem.balanced else "accuracy"
        return self.problem.loss.noun

    def scores(self, name: str) -> list[float]:
        """The scores of a method, fold by fold."""
        return [turn.score for turn in self.turns[name]]

    def losses(self, name: str) -> list[float]:
        """The log losses of a method, fold by fold; none of numbers."""
        return [turn.log_loss for turn in self.turns[name] if turn.log_loss is not None]

    def order(self) -> list[str]:
        """The methods, the best on average first; of equal ones ours."""
        return sorted(self.turns, key=lambda name: (-self.way * round(float(np.mean(self.scores(name))), 12), name != OURS))

    def against(self, name: str, one: str = OURS) -> Difference:
        """How a method, ours by default, differs from another."""
        return difference(self.scores(one), self.scores(name), self.share, self.way)

    def amount(self, value: float, name: str, unit: bool = True) -> str:
        """A difference from a method for readers, without its sign: "0.8 points", "2.1%"."""
        if self.problem.has_classes:
            return f"{short_number(100 * abs(value), 2)}{' points' if unit else ''}"
        scale = 0.0 if self.problem.loss.is_ranking else abs(float(np.mean(self.scores(name))))
        return short_number(abs(value), 2) if not scale else f"{short_number(100 * abs(value) / scale, 2)}%"

    def told(self, name: str) -> str:
        """How ours stands against a method: "ahead by 0.8 points"."""
        found = self.against(name)
        amount = self.amount(found.mean, name)
        if found.sign:
            return f"{'ahead' if found.sign > 0 else 'behind'} by {amount}"
        if not found.mean:
            return "level"
        return f"level: {amount} {'ahead' if found.mean > 0 else 'behind'}, ±{self.amount(found.chance, name, False)} by chance"

    def verdict(self) -> str:
        """One sentence on whether to use ours here."""
        others = [name for name in self.order() if name not in (OURS, CONSTANT)]
        if OURS not in self.turns or not others:
            missing = "Lutetia was" if OURS not in self.turns else "the other methods were"
            return f"There is nothing to say: {missing} not measured."
        if CONSTANT in self.turns and all(self.against(CONSTANT, name).sign <= 0 for name in (OURS, *others)):
            said = f"No method is surely better than one answer for all rows ({self.measure})"
            if any(self.by_loss(CONSTANT, name) > 0 for name in (OURS, *others)):
                return f"{said}, but some have better probabilities.{self._losses_told(others)}"
            return f"{said}: these columns say little about the target."
        by = self.measure if self.way > 0 else f"{self.measure}, lower is better"
        better = [name for name in others if self.against(name).sign < 0]
        if better:
            return f"Use {better[0]} here: Lutetia is {self.told(better[0])} ({by}), more than chance explains."
        level = [name for name in others if self.against(name).sign == 0]
        worse = [name for name in others if name not in level]
        if not level:
            amount = self.amount(self.against(worse[0]).mean, worse[0])
            return f"Use Lutetia here: it is {amount} ahead of {worse[0]}, the next ({by}), more than chance explains."
        ahead = f" It is ahead of {_listed(worse)}." if worse else ""
        return f"Lutetia is level with {_listed(level)}: chance explains the differences ({by}).{ahead}{self._losses_told(level)}"

    def by_loss(self, name: str, one: str = OURS) -> int:
        """The sign of the difference in log loss; 0 without classes."""
        ours, theirs = (self.losses(each) for each in (one, name))
        return difference(ours, theirs, self.share, -1).sign if ours and theirs else 0

    def _losses_told(self, names: Sequence[str]) -> str:
        """Which of some methods have better or worse probabilities than ours, beyond chance; empty where none has."""
        told = []
        for sign, way in ((1, "ahead of"), (-1, "behind")):
            own = [name for name in names if self.by_loss(name) == sign]
            told += [f"{way} {_listed(own)}"] if own else []
        return f" By log loss, Lutetia is {' and '.join(told)}." if told else ""

    def methods(self) -> list[dict[str, Any]]:
        """Each method as plain values, the best first."""
        rows = []
        for name in self.order():
            turns, found = self.turns[name], self.against(name) if OURS in self.turns else None
            losses = self.losses(name)
            row: dict[str, Any] = {"method": name, "score": float(np.mean(self.scores(name))), "folds": self.scores(name)}
            row["log_loss"] = float(np.mean(losses)) if losses else None
            row |= {key: float(np.median([getattr(turn, key) for turn in turns])) for key in ("fit_seconds", "predict_seconds")}
            row["bytes"] = int(np.median([turn.size for turn in turns]))
            if found is not None and name != OURS:
                row |= {"lutetia_is": self.told(name), "difference": found.mean, "chance": found.chance}
            rows.append(row)
        return rows


def document(contest: Contest, turns: Mapping[str, Sequence[Turn]], left_out: Mapping[str, str]) -> dict[str, Any]:
    """All of it as plain values: docs/compare.md says what they are."""
    problem, rows = contest.problem, contest.rows
    standing = Standing(problem, turns, contest.share)
    task = "classification" if problem.has_classes else "ranking" if problem.loss.is_ranking else "regression"
    return {
        "task": task,
        "measure": standing.measure,
        "larger_is_better": standing.way > 0,
        "rows": len(rows.y),
        "columns": rows.x.shape[1] + len(rows.texts),
        "folds": [{"fit": len(train), "test": len(test)} for train, test in contest.folds],
        "threads": problem.threads,
        "methods": standing.methods(),
        "left_out": dict(left_out),
        "given": given_text(problem, rows),
        "verdict": standing.verdict(),
    }


def given_text(problem: Problem, rows: TabularRows) -> list[str]:
    """How columns that are more than numbers were given to each method."""
    shape, told = problem.shape, []
    if any(shape.n_categories):
        told.append("categories: as such to boosting, to the linear model and the forest a column each, at most 50 per column")
    if any(count > 255 for count in shape.n_categories):
        told.append("columns of more than 255 categories: to HistGradientBoosting as the numbers of categories in their order")
    if np.isnan(rows.x).any():
        told.append("missing values: to the linear model the median and a column that says so, to the others as such")
    if shape.dates:
        told.append("dates: to all as seconds and year, month, day, weekday and hour, where these differ")
    if rows.texts:
        told.append("texts: words as TF-IDF, all of them to the linear model, the 300 most frequent of each text to the others")
    if len(shape.input_shape) > 1:
        told.append("images: pixels in a row to all others; Lutetia's shifts and patterns are its own")
    if any(shape.monotone):
        told.append("monotonic constraints: Lutetia's alone")
    if shape.interactions:
        told.append("limits on columns that meet: Lutetia's alone")
    return told


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last

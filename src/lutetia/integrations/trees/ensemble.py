"""Ensembles of trees as plain values, whichever library fitted them, and the checks that all of them share.

A test of a tree is a list of cuts in one column: a value's code is 0 where it is missing, else one more than the cuts below it,
and `right` says of each code whether it goes right. So every rule for missing values and for zeros is the same kind of test. Of
categories, the codes are 0 for what is missing, 1 for a category that is not known, and then one for each that is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lutetia._shared.losses import Loss
from lutetia.errors import ArgumentError, DataError

Array = np.ndarray[Any, Any]
MOST_COLUMNS, MOST_OUTPUTS, MOST_NODES, MOST_CATEGORIES = 100_000, 10_000, 1 << 24, 1 << 16
FIRST_CATEGORY = 2  # its code: before it are what is missing and what is not known
LARGEST_CODE = MOST_CATEGORIES - 1  # of categories that stay whole numbers
ENDS = (math.inf, -math.inf)
LARGEST = float(np.finfo(np.float32).max)
CLASSES, NUMBER, RANKING = "classification", "regression", "ranking"
SCORES, CHANCES = "scores", "probabilities"  # what the trees of classes add up to


class Split(NamedTuple):
    """A test of one column: finite `cuts` that rise, and of each code, what is missing first, whether it goes right."""

    column: int
    cuts: tuple[float, ...]
    right: tuple[bool, ...]


class Choice(NamedTuple):
    """A test of a column of categories: the codes that go right, as the bits of a whole number."""

    column: int
    right: int


class Tree(NamedTuple):
    """Nodes by number, the root first: the test of each, None for a leaf; the nodes that follow it; and the value of each leaf,
    [nodes, outputs] or, where the tree adds to one `output`, [nodes, 1]."""

    tests: list[Split | Choice | None]
    left: list[int]
    right: list[int]
    values: Array
    output: int | None


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trees whose values are added to `base` [outputs]: a number by its loss, scores of classes (softmax), or of a ranking.

    Of two classes there is one output, the logarithm of the odds of the second; but with `sums` of probabilities, in a forest,
    there is one for each class. `names` of columns and `classes` are those that
    the library knows, `spans` the ranges of the columns in the training data, and `whole` are the columns in which nothing was
    missing when the trees were fitted. `categories` are the values of columns of categories by their numbers, and `unknown` says
    what another one is: "missing", which goes where trees send what they do not know, or an "error".
    """

    library: str
    trees: list[Tree]
    n_columns: int
    base: Array
    task: str
    loss: Loss = field(default_factory=Loss)
    names: list[str] | None = None
    classes: list[Any] | None = None
    spans: list[tuple[float, float]] | None = None
    whole: frozenset[int] = frozenset()
    sums: str = SCORES
    categories: dict[int, list[Any]] = field(default_factory=dict)
    unknown: str = "missing"

    def __post_init__(self) -> None:
        if not 1 <= self.n_columns <= MOST_COLUMNS:
            raise DataError(f"the model has {self.n_columns:,} columns, expected 1 to {MOST_COLUMNS:,}")
        if not 1 <= len(self.base) <= MOST_OUTPUTS:
            raise DataError(f"the model has {len(self.base):,} outputs, expected 1 to {MOST_OUTPUTS:,}")
        if not np.isfinite(self.base).all():
            raise DataError(f"the trees start from {self.base.tolist()}, expected finite numbers")
        for key, given, count in (("columns", self.names, self.n_columns), ("classes", self.classes, self.n_classes)):
            if given is not None and len(given) != count:
                raise DataError(f"the model names {len(given):,} {key}, expected {count:,}")
        for column, values in self.categories.items():
            _check_categories(column, values)
        for number, tree in enumerate(self.trees):
            check_tree(tree, self, number)

    @property
    def n_classes(self) -> int:
        """Outputs that a model of tables has: both classes of two."""
        return 2 if self.task == CLASSES and len(self.base) == 1 else len(self.base)


def choice(column: int, chosen: Collection[int], count: int, goes_right: bool, others: tuple[bool, bool]) -> Choice:
    """The test "one of the categories `chosen`", of so many by their numbers, which goes right or left; and whether of `others`
    what is missing and what is not known goes right."""
    members = sum(1 << number for number in chosen)
    members = members if goes_right else (1 << count) - 1 & ~members
    return Choice(column, members << FIRST_CATEGORY | others[1] << 1 | others[0])


def as_codes(values: Sequence[Any]) -> list[int] | None:
    """Categories that are whole numbers, none of them negative or very large, as these numbers; None for others."""
    if all(type(each) in (int, float) and each == int(each) and 0 <= each <= LARGEST_CODE for each in values):
        return [int(each) for each in values]
    return None


def _check_categories(column: int, values: Sequence[Any]) -> None:
    if len(values) > MOST_CATEGORIES:
        raise DataError(f"column {column} has {len(values):,} categories, expected at most {MOST_CATEGORIES:,}")
    wrong = next((each for each in values if not isinstance(each, str | int | float) or each != each or each in ENDS), None)
    if wrong is not None:
        raise DataError(f"column {column} has the category {str(wrong)[:60]!r}, expected words or numbers")
    if len({str(each) for each in values}) < len(values) or len(set(values)) < len(values):
        raise DataError(f"column {column} has two categories of one name, expected each once")


def numbers(column: int, edge: float, missing_right: bool) -> Split:
    """The test "above `edge` goes right"; nothing is above inf."""
    if math.isnan(edge) or edge == -math.inf:
        raise DataError(f"a tree splits column {column} at {edge}, expected a number")
    if edge == math.inf:
        return Split(column, (), (missing_right, False))
    return Split(column, (edge + 0.0,), (missing_right, False, True))  # + 0.0: a zero has no sign


def check_tree(tree: Tree, ensemble: Ensemble, number: int) -> None:
    """Check that every node follows exactly one other, that columns and outputs exist, and that values are numbers."""
    count, seen, reached = len(tree.tests), [False] * len(tree.tests), 0
    if not 1 <= count <= MOST_NODES:
        raise DataError(f"tree {number} has {count:,} nodes, expected 1 to {MOST_NODES:,}")
    outputs = 1 if tree.output is not None else len(ensemble.base)
    if not (len(tree.left) == len(tree.right) == count) or tree.values.shape != (count, outputs):
        raise DataError(f"tree {number} says that it has {count:,} nodes, but not each has two branches or a value")
    if tree.output is not None and not 0 <= tree.output < len(ensemble.base):
        raise DataError(f"tree {number} adds to output {tree.output}, expected 0 to {len(ensemble.base) - 1}")
    waiting = [0]
    while waiting:
        node = waiting.pop()
        if not 0 <= node < count:
            raise DataError(f"tree {number} goes to node {node}, expected 0 to {count - 1}")
        if seen[node]:
            raise DataError(f"tree {number} comes to node {node} twice, expected one way to each")
        seen[node] = True
        reached += 1
        test = tree.tests[node]
        if test is None:
            if not (np.abs(tree.values[node]) <= LARGEST).all():
                raise DataError(f"tree {number} has the value {tree.values[node].tolist()} in a leaf, expected 32-bit floats")
            continue
        if not 0 <= test.column < ensemble.n_columns:
            raise DataError(f"tree {number} asks for column {test.column}, expected 0 to {ensemble.n_columns - 1}")
        known = ensemble.categories.get(test.column)
        if isinstance(test, Choice) != (known is not None):
            raise DataError(f"tree {number} asks for column {test.column} as categories and as numbers, expected one of them")
        if isinstance(test, Choice) and known is not None and test.right >> FIRST_CATEGORY + len(known):
            raise DataError(f"tree {number} asks for categories of column {test.column} beyond its {len(known):,}")
        waiting += [tree.left[node], tree.right[node]]


def refuse(found: str, expected: str) -> ArgumentError:
    """An error about a model that tables cannot be equal to."""
    return ArgumentError(f"{found}, expected {expected}")


def as_values(values: Sequence[float] | Array, outputs: int = 1) -> Array:
    """The values of nodes as an array, float64 [nodes, outputs]."""
    return np.asarray(values, np.float64).reshape(-1, outputs)

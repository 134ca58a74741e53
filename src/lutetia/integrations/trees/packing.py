"""Leaves into tables: which leaves share a table, so that there are few tables and none has many comparisons.

A leaf is reached where every column that its path compares lies in certain codes. A *bit* is a comparison code > t of an axis,
and a leaf needs those at which its codes begin or end: of several cuts of one column two at most, where nothing is missing.
Where that is too many, one bit says whether a code lies between two cuts. Of categories a bit says whether one is in a set: a bit
for each test on the path, or where that is too many one for all of them. A table of these bits is the value of the leaf in the
rows that reach it, and 0 elsewhere. Leaves share a table if it has bits for all of them. So any group of leaves is a table, of
one tree or of several.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lutetia.errors import ArgumentError
from lutetia.integrations.trees.ensemble import FIRST_CATEGORY, Choice, Ensemble, Split, Tree

Array = np.ndarray[Any, Any]
MOST_BITS = 14  # of a table: that is how many columns exact Shapley values can tell apart
LEAST_BITS = 4  # smaller tables save little, and are more of them
WINDOW = 64  # tables that a leaf may join, the latest
MORE_BITS = 3  # than the longest path needs, that are tried
PER_BIT = 4  # what a comparison costs, in rows


class Between(NamedTuple):
    """A bit for an interval: whether the code of an axis is above `low`, a cut or with 0 what is missing, and at most `high`."""

    axis: int
    low: int
    high: int


class Chosen(NamedTuple):
    """A bit for a set: whether a column of categories is one of those whose numbers are the bits of `members`."""

    axis: int
    members: int


class Leaf(NamedTuple):
    """The codes that lead to a leaf, by axis as the bits of a whole number; its bits alike, and fewer bits where intervals have
    one; its value, and where it is added."""

    codes: dict[int, int]
    bits: int
    fewer: int
    value: Array
    output: int | None

    def needs(self, most: int) -> int:
        """Its bits: those of cuts alone if they are at most so many."""
        return self.bits if self.bits.bit_count() <= most else self.fewer


class Group(NamedTuple):
    """A table: the numbers of its bits, and its leaves with those that each of them needs."""

    bits: list[int]
    leaves: list[tuple[Leaf, int]]


class Axes:
    """The columns that an ensemble compares, its axes, with the cuts of each, and the number of each bit: that of (axis, t), or
    of an interval or a set. Of categories one is (axis, 0), that there is a value.

    In `whole` columns nothing is missing, and what is missing there goes with the least values, or the unknown categories."""

    def __init__(self, ensemble: Ensemble, whole: Collection[int] = ()) -> None:
        found: dict[int, set[float]] = {}
        for test in _tests(ensemble):
            found.setdefault(test.column, set()).update(test.cuts if isinstance(test, Split) else ())
        self.columns = sorted(found)
        self.cuts = [sorted(found[column]) for column in self.columns]
        self.number = {column: at for at, column in enumerate(self.columns)}
        self.n_categories = [len(known) if (known := ensemble.categories.get(each)) else 0 for each in self.columns]
        self.is_chosen = [column in ensemble.categories for column in self.columns]
        # Missing, then from one cut to the next; or missing, unknown, and the categories.
        self.n_codes = [len(cuts) + 2 + count for cuts, count in zip(self.cuts, self.n_categories, strict=True)]
        n_bits = [1 if chosen else count - 1 for chosen, count in zip(self.is_chosen, self.n_codes, strict=True)]
        self.first = np.cumsum([0, *n_bits]).tolist()  # the number of the first bit of each
        self._place = [{cut: at for at, cut in enumerate(cuts)} for cuts in self.cuts]
        self._right: dict[Split | Choice, tuple[int, int]] = {}
        self._whole = frozenset(whole)
        self._more: list[Between | Chosen] = []  # the bits after those of cuts
        self._number_of: dict[Between | Chosen, int] = {}

    def right(self, test: Split | Choice) -> tuple[int, int]:
        """The axis of a test, and the codes that go right."""
        known = self._right.get(test)
        if known is None:
            axis = self.number[test.column]
            codes = self._codes(axis, test) if isinstance(test, Split) else test.right
            known = self._right[test] = axis, codes & ~1 | codes >> 1 & 1 if test.column in self._whole else codes
        return known

    def _codes(self, axis: int, test: Split) -> int:
        ends = [0, 1, *(self._place[axis][cut] + 2 for cut in test.cuts), self.n_codes[axis]]
        codes = 0
        for at, goes in enumerate(test.right):
            if goes:
                codes |= (1 << ends[at + 1]) - (1 << ends[at])
        return codes

    def bits(self, axis: int, codes: int, sets: int) -> int:
        """The bits at which codes of an axis begin or end; of categories those of the sets that were asked for."""
        if self.is_chosen[axis]:
            return sets | self._known(axis, codes)
        return self._changes(axis, codes) << self.first[axis]

    def chosen(self, axis: int, codes: int) -> int:
        """The bit of a set of categories: of the codes, or of the others where an unknown category is among these."""
        members = codes >> FIRST_CATEGORY
        members = ~members & (1 << self.n_categories[axis]) - 1 if codes >> 1 & 1 else members
        return self._bit(Chosen(axis, members)) if members else 0

    def _known(self, axis: int, codes: int) -> int:
        """The bit for what is missing, where it goes another way than an unknown category."""
        return ((codes ^ codes >> 1) & 1) << self.first[axis]

    def _changes(self, axis: int, codes: int) -> int:
        return (codes ^ (codes >> 1)) & ((1 << (self.n_codes[axis] - 1)) - 1)

    def fewer(self, axis: int, codes: int) -> int:
        """The same with one bit for an interval, or for all codes but one, and one more where what is missing is apart; and one
        for a set of categories."""
        if self.is_chosen[axis]:
            return self.chosen(axis, codes) | self._known(axis, codes)
        changes = self._changes(axis, codes)
        ends = _ends(changes)
        if ends is None:
            return changes << self.first[axis]
        return self._bit(Between(axis, *ends)) | ((changes & 1) << self.first[axis] if changes.bit_count() == 3 else 0)

    def _bit(self, of: Between | Chosen) -> int:
        if of not in self._number_of:
            self._number_of[of] = self.first[-1] + len(self._more)
            self._more.append(of)
        return 1 << self._number_of[of]

    def of(self, bit: int) -> tuple[int, int] | Between | Chosen:
        """The axis of a bit, and its t; or the interval or the set that it stands for."""
        if bit >= self.first[-1]:
            return self._more[bit - self.first[-1]]
        axis = bisect_right(self.first, bit) - 1
        return axis, bit - self.first[axis]

    def sets(self, bits: int) -> list[tuple[int, Chosen]]:
        """The bits among `bits` that are sets, with these."""
        found = ((bit, self.of(bit)) for bit in numbers_in(bits >> self.first[-1] << self.first[-1]))
        return [(bit, of) for bit, of in found if isinstance(of, Chosen)]

    def interval(self, axis: int, codes: int, bits: int) -> tuple[int, int, int] | None:
        """Where one of `bits` stands for an interval at whose ends codes of an axis begin or end: that bit, a code in the
        interval, and one that is neither there nor missing."""
        ends = _ends(self._changes(axis, codes))
        bit = None if ends is None else self._number_of.get(Between(axis, *ends))
        if bit is None or ends is None or not bits >> bit & 1:
            return None
        return bit, ends[1], ends[1] + 1


def _ends(changes: int) -> tuple[int, int] | None:
    """The two ends of an interval, where codes change there and perhaps at what is missing, and nowhere else."""
    count = changes.bit_count()
    if count == 2 or (count == 3 and changes & 1):
        low, high = numbers_in(changes)[-2:]
        return low, high
    return None


def _tests(ensemble: Ensemble) -> Iterator[Split | Choice]:
    for tree in ensemble.trees:
        yield from (test for test in tree.tests if test is not None)


def leaves_of(tree: Tree, axes: Axes) -> list[Leaf]:
    """The leaves of a tree that some row reaches and that add something."""
    found: list[Leaf] = []
    waiting: list[tuple[int, dict[int, int], dict[int, int]]] = [(0, {}, {})]  # a node, its codes and its sets by axis
    while waiting:
        node, codes, sets = waiting.pop()
        test = tree.tests[node]
        if test is None:
            if tree.values[node].any():
                bits = fewer = 0
                for axis, own in codes.items():
                    bits |= axes.bits(axis, own, sets.get(axis, 0))
                    fewer |= axes.fewer(axis, own)
                found.append(Leaf(codes, bits, fewer, tree.values[node], tree.output))
            continue
        axis, right = axes.right(test)
        every = (1 << axes.n_codes[axis]) - 1
        here = codes.get(axis, every)
        if axes.is_chosen[axis] and 0 < here & right < here:
            sets = sets | {axis: sets.get(axis, 0) | axes.chosen(axis, right)}
        for child, own in ((tree.right[node], here & right), (tree.left[node], here & ~right)):
            if own:  # no row comes to the other
                waiting.append((child, codes if own == here else codes | {axis: own}, sets))
    return found


class _Bin:
    """A table that is being filled."""

    __slots__ = ("bits", "count", "leaves")

    def __init__(self) -> None:
        self.bits, self.count = 0, 0
        self.leaves: list[tuple[Leaf, int]] = []

    def add(self, leaf: Leaf, bits: int) -> None:
        self.bits |= bits
        self.count = self.bits.bit_count()
        self.leaves.append((leaf, bits))


def pack(trees: Sequence[list[Leaf]], most: int) -> list[_Bin]:
    """Tables of at most `most` bits that hold all leaves, those of the first trees first.

    The longest paths of a tree come first, and each leaf joins the table that needs the fewest bits more for it.
    """
    bins: list[_Bin] = []
    known: dict[int, _Bin] = {}
    for leaves in trees:
        for leaf, bits in sorted(((leaf, leaf.needs(most)) for leaf in leaves), key=lambda each: -each[1].bit_count()):
            best = known.get(bits)
            least = most + 1
            for each in reversed(bins[-WINDOW:]) if best is None else ():
                union = (each.bits | bits).bit_count()
                if union <= most and union - each.count < least:
                    best, least = each, union - each.count
                    if not least:
                        break
            if best is None:
                best = _Bin()
                bins.append(best)
            best.add(leaf, bits)
            known[bits] = best
    return bins


def group(ensemble: Ensemble, axes: Axes, n_bits: int | None = None) -> tuple[list[Group], int]:
    """The tables of an ensemble and the bits of the largest allowed: `n_bits`, or by default the number with the fewest rows."""
    trees = [leaves_of(tree, axes) for tree in ensemble.trees]
    depths = [(leaf.fewer.bit_count(), number) for number, leaves in enumerate(trees) for leaf in leaves]
    longest, where = max(depths, default=(0, 0))
    if longest > MOST_BITS:
        count = sum(depth > MOST_BITS for depth, _ in depths)
        raise ArgumentError(
            f"tree {where} has a leaf that takes {longest} comparisons, expected at most {MOST_BITS}: a table has 2 to the power "
            f"of that many rows. {count:,} of {len(depths):,} leaves take more. Fit the trees with a max_depth of up to "
            f"{MOST_BITS}, or 8 for small tables"
        )
    if n_bits is not None and not max(1, longest) <= n_bits <= MOST_BITS:
        raise ArgumentError(f"n_anchors is {n_bits}, expected {max(1, longest)} to {MOST_BITS}: the longest path has {longest}")
    least = max(longest, LEAST_BITS)
    tried = [n_bits] if n_bits is not None else range(least, min(least + MORE_BITS, MOST_BITS) + 1)
    packed = {most: pack(trees, most) for most in tried}
    best = min(packed, key=lambda most: (len(packed[most]) * (2**most * ensemble.n_classes + PER_BIT * most), most))
    return [Group(numbers_in(each.bits), each.leaves) for each in packed[best]], best


def numbers_in(bits: int) -> list[int]:
    """The places of the ones of a whole number, rising."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found

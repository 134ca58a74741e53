"""Columns of any unit as codes that tables can compare: whole numbers from 0 to 255, in which 0 stands for what is missing.

A column of numbers becomes its rank among edges, so that columns of different units can be compared with each other and each
threshold is a number of its own unit. A column of dates becomes such ranks of itself and of those parts (month, weekday, ..) that
vary: numbers in order, so that one threshold is a season or a weekend. A column of categories, numbered from 0, becomes their
rank by the mean of the target; with several classes it becomes one such input for each of the most frequent ones. An image may
have further columns, after those of its pixels: counts of patterns.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lutetia._shared.memo import Memo
from lutetia._shared.threads import spread
from lutetia.errors import fail
from lutetia.models.dates import part_of, varying_parts
from lutetia.models.patches import Patches

Array = np.ndarray[Any, Any]
TOP = 255  # the largest code
MOST_ORDERS = 8  # inputs that a column of categories becomes, at most
PRIOR = 10.0  # samples of the mean that each category is thought to have besides its own
AT_ONCE = 1 << 12  # images whose patterns are counted together
MOST_COUNTED = 1 << 13  # images whose counts decide where the edges of counts lie


class Encoding(nn.Module):
    """x [n, columns], NaN for what is missing -> codes [n, n_encoded].

    source   int64 [n_encoded]: the column of each input
    edges    float64 [n_encoded, n_edges]: the code of a number is one more than the edges below it; inf where there are fewer
    ranks    uint8 [n_encoded, n_categories]: the code of each category; an input of numbers has none, all 0
    parts    for each input the part of a date that it is; "" for the column itself
    patches  of images: what is counted in them, the columns after those of x
    """

    source: Tensor
    edges: Tensor
    ranks: Tensor

    def __init__(
        self, n_encoded: int, n_edges: int, n_categories: int, parts: Sequence[str] = (), patches: Patches | None = None
    ) -> None:
        super().__init__()
        self.patches = patches
        self.parts = tuple(parts) or ("",) * n_encoded
        self.register_buffer("source", torch.zeros(n_encoded, dtype=torch.int64))
        self.register_buffer("edges", torch.full((n_encoded, n_edges), float("inf"), dtype=torch.float64))
        self.register_buffer("ranks", torch.zeros(n_encoded, n_categories, dtype=torch.uint8))

    def codes(self, x: Array, threads: int = 1) -> Array:
        """x float64 [n, columns] -> uint8 [n_encoded, n]."""
        known: _Known = PREPARED.get((self.source, self.edges, self.ranks), self.parts)
        n_columns = x.shape[1] + (0 if self.patches is None else self.patches.n_counts)
        if known.first < 0 or known.last >= n_columns:
            fail("encoding.source", self.source.tolist(), f"columns from 0 to {n_columns - 1}")
        if self.patches is None:
            return _encode_all(x, known, threads)
        codes = np.empty((len(self.parts), len(x)), np.uint8)
        for begin in range(0, len(x), AT_ONCE):
            part = x[begin : begin + AT_ONCE]
            counted = np.concatenate([part, self.patches.counts(part, threads)], 1)
            codes[:, begin : begin + AT_ONCE] = _encode_all(counted, known, threads)
        return codes

    def forward(self, x: Tensor) -> Tensor:
        """x [n, columns] -> codes as floats [n, n_encoded]."""
        codes = self.codes(x.detach().cpu().double().numpy(), torch.get_num_threads())
        return torch.from_numpy(np.ascontiguousarray(codes.T)).to(x.device, torch.float32)

    def tops(self) -> Array:
        """The largest code of each input, int64 [n_encoded]: below it thresholds make a difference."""
        numbers = 1 + np.isfinite(self.edges.cpu().numpy()).sum(1)
        ranks = self.ranks.cpu().numpy()
        return np.where(ranks.any(1), ranks.max(1, initial=0), numbers).astype(np.int64)


class _Input(NamedTuple):
    """An encoded input: its column, the edges of numbers, the codes of categories where it has any, and its part of a date."""

    column: int
    edges: Array
    ranks: Array | None
    part: str


class _Known(NamedTuple):
    """An encoding as loops take it: the inputs in numpy, and those of numbers as arrays; the first and the last column."""

    inputs: list[_Input]
    others: list[int]
    loop: tuple[Array, Array, Array, Array]
    first: int
    last: int


def _prepare(source: Tensor, edges: Tensor, ranks: Tensor, parts: tuple[str, ...]) -> _Known:
    columns, all_edges, all_ranks = source.cpu().numpy(), edges.cpu().double().numpy(), ranks.cpu().numpy()
    inputs = [
        _Input(column, own_edges[np.isfinite(own_edges)], own_ranks if own_ranks.any() else None, part)
        for column, own_edges, own_ranks, part in zip(columns.tolist(), all_edges, all_ranks, parts, strict=True)
    ]
    numbers = [number for number, each in enumerate(inputs) if each.ranks is None and not each.part]
    packed = np.full(all_edges.shape, np.inf)
    for own, each in zip(packed, inputs, strict=True):
        own[: len(each.edges)] = each.edges
    loop = np.array(numbers, np.int64), columns.copy(), packed, np.array([len(each.edges) for each in inputs], np.int32)
    others = sorted(set(range(len(inputs))) - set(numbers))
    return _Known(inputs, others, loop, int(columns.min(initial=0)), int(columns.max(initial=-1)))


PREPARED = Memo(_prepare, trusting=False)


def _encode_all(x: Array, known: _Known, threads: int) -> Array:
    """The codes uint8 [n_encoded, n] of x [n, columns]. Compiled, numbers take an eighth of the time, but to load numba takes
    0.8 s: where nothing else has loaded it, numpy is used."""
    codes = np.empty((len(known.inputs), len(x)), np.uint8)
    if "numba" not in sys.modules:
        spread(threads, len(x), _encode, x, known.inputs, range(len(known.inputs)), codes)
        return codes
    from lutetia.models.encoding_loops import rank

    if len(known.loop[0]):  # as one kind of array: for each kind the loop would be compiled again
        spread(threads, len(x), rank, np.require(x, np.float64, ["C", "W"]), known.loop, codes)
    if known.others:
        spread(threads, len(x), _encode, x, known.inputs, known.others, codes)
    return codes


def _encode(x: Array, inputs: Sequence[_Input], numbers: Sequence[int], codes: Array, begin: int, end: int) -> None:
    """The codes of some inputs for a range of samples, in numpy."""
    for number in numbers:
        own = inputs[number]
        values = x[begin:end, own.column]
        values = part_of(values, own.part) if own.part else values
        if own.ranks is not None:
            known = (values >= 0) & (values < len(own.ranks)) & (values == np.floor(values))
            codes[number, begin:end] = np.where(known, own.ranks[np.where(known, values, 0).astype(np.int64)], 0)
        else:
            above = np.searchsorted(own.edges, values)
            codes[number, begin:end] = np.where(np.isnan(values), 0, above + 1)


@dataclass(frozen=True, eq=False)
class Columns:
    """What an encoding is learned from: x float64 [n, columns], target float64 [n, k], weight [n]; and of each column the number
    of its categories, 0 for numbers. `dates` are the columns of dates. Categories are ordered by their means of some columns of
    the target, `ordered_by`; by default those of the most frequent classes."""

    x: Array
    target: Array
    weight: Array
    n_categories: list[int]
    dates: Collection[int] = ()
    ordered_by: Sequence[int] | None = None

    def orders(self, target: Array, weight: Array) -> Sequence[int]:
        """The columns of the target [n, k] that order categories."""
        if self.ordered_by is not None:
            return self.ordered_by
        if target.shape[1] <= 2:
            return [target.shape[1] - 1]
        return np.argsort(-(target * weight[:, None]).sum(0), kind="stable")[:MOST_ORDERS].tolist()


def fit_encoding(columns: Columns, most_codes: int = TOP, patches: Patches | None = None) -> Encoding:
    """The encoding of columns, and of counts of patterns, by samples of positive weight."""
    kept = columns.weight > 0
    x, target, weight = columns.x[kept], columns.target[kept], columns.weight[kept]
    inputs: list[tuple[int, Array, Array, str]] = []  # the column, edges, ranks and part of each
    none = np.zeros(0, np.uint8)
    for column, count in enumerate(columns.n_categories):
        known = np.isfinite(x[:, column])
        values, own = x[known, column], weight[known]
        if count:
            means = target[known][:, columns.orders(target[known], own)]
            inputs += [(column, np.zeros(0), ranks, "") for ranks in _ranks(values, means, own, count, most_codes)]
            continue
        inputs.append((column, _edges(values, own, most_codes), none, ""))
        for part in varying_parts(values) if column in columns.dates else ():
            inputs.append((column, _edges(part_of(values, part), own, most_codes), none, part))
    if patches is not None:
        some = slice(None, None, -(-len(x) // MOST_COUNTED) or 1)
        counts = patches.counts(x[some], torch.get_num_threads()).astype(np.float64)
        for number, own_counts in enumerate(counts.T, len(columns.n_categories)):
            inputs.append((number, _edges(own_counts, weight[some], most_codes), none, ""))
    source, edges, ranks, parts = zip(*inputs, strict=True)
    encoding = Encoding(len(source), max(map(len, edges)), max(map(len, ranks)), parts, patches)
    encoding.source.copy_(torch.tensor(source))
    for number, (own_edges, own_ranks) in enumerate(zip(edges, ranks, strict=True)):
        encoding.edges[number, : len(own_edges)] = torch.from_numpy(own_edges)
        encoding.ranks[number, : len(own_ranks)] = torch.from_numpy(own_ranks)
    return encoding


def _edges(values: Array, weight: Array, most_codes: int) -> Array:
    """Numbers between the distinct values, or where those are too many between their quantiles: float64 [n_edges]."""
    distinct, place = np.unique(values, return_inverse=True)
    if len(distinct) > most_codes:
        share = np.cumsum(np.bincount(place, weight))
        wanted = share[-1] * np.arange(1, most_codes) / most_codes
        below = np.unique(np.searchsorted(share, wanted * (1 - 1e-12)))
        below = below[below < len(distinct) - 1]
    else:
        below = np.arange(len(distinct) - 1)
    low, high = distinct[below], distinct[below + 1]
    middle = low / 2 + high / 2
    return np.where(middle < high, middle, low)  # neighbours have no number between them


def _ranks(values: Array, target: Array, weight: Array, count: int, most_codes: int) -> list[Array]:
    """The codes of categories 0 to count - 1, uint8 [count], in an order for each column of target [n, k]. One without a
    sample has the code of the category whose mean is nearest to that of all: what is missing is another thing, and its code, 0,
    is beside the lowest."""
    place = values.astype(np.int64)
    held = np.bincount(place, weight, count)
    orders = []
    for own in target.T:
        mean = np.average(own, weights=weight) if len(own) else 0.0
        means = (np.bincount(place, weight * own, count) + PRIOR * mean) / (held + PRIOR)
        rank = np.empty(count, np.int64)
        rank[np.lexsort((np.arange(count), means, held <= 0))] = np.arange(count)
        known = max(1, int((held > 0).sum()))
        codes = 1 + (rank * min(1.0, (most_codes - 1) / max(1, known - 1))).astype(np.int64)
        usual = np.where(held > 0, np.abs(means - mean), np.inf).argmin()
        orders.append(np.where(held > 0, codes, codes[usual]).astype(np.uint8))
    return orders

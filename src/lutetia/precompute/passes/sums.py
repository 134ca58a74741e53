"""Layers too wide for one table: exact sums of whole numbers, then thresholds or a table of the sum.

What follows the sum (batch norm, activation, quantiser) is a function of one number per channel. If it is monotone with few steps
it becomes comparisons with constants, otherwise a table whose address is the sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import ArgumentError
from lutetia.precompute.front.block import LayerBlock
from lutetia.precompute.front.translate import as_numbers
from lutetia.precompute.ir.graph import Builder
from lutetia.precompute.ir.interpret import to_levels
from lutetia.precompute.ir.stream import Compare, Layer, Lookup, StreamEdge, Sum, Table, TableData
from lutetia.precompute.passes.scaled import MANY, add_scaled, scaling_of
from lutetia.precompute.tables.domains import Binary, Domain, domain_for
from lutetia.precompute.tables.exact import ExactSum, exact_sum

FEW_STEPS = 3  # up to here comparisons always win over a table of the sum
SHORT_SUM = 8  # bits of a sum whose table is small in any case
TABLE_LANES = 6  # this many comparisons fit into one table directly
CHUNK = 2**22


class Steps(NamedTuple):
    """A step function of the sum s of one channel: levels[j] while exactly j of `s > thresholds[i]` hold."""

    thresholds: np.ndarray
    levels: np.ndarray


def add_sums(builder: Builder, node: Layer, source: int, max_bits: int) -> int:
    """Add the nodes of one layer; the number of the last one."""
    if any(domain.step != 1 for domain in builder.edge(source).domains):
        source = as_numbers(builder, source, domain_for(-1, 1))
    edge = builder.edge(source)
    found = exact_sum(node.block, edge)
    sum_edge = edge.carrying(found.domains, [found.scale / found.divisor] * len(found.domains))
    summed = builder.add(Sum((source,), sum_edge, found.first, found.places, found.coefficient, found.bias, name=node.name))
    if len(node.block.ops) == 1:
        return summed
    function = _Rest(node.block, found, node.edge)
    widest = max(domain.bits for domain in found.domains)
    steps = function.by_enumeration() if widest <= max_bits else function.by_bisection(node.name)
    too_wide = widest > min(max_bits, SHORT_SUM)
    if steps is not None and max(len(each.thresholds) for each in steps) >= MANY:
        channels = zip(steps, found.domains, strict=True)
        scalings = [scaling_of(each.thresholds, each.levels, domain) for each, domain in channels]
        if all(domain.step == 1 for domain in node.edge.domains) and None not in scalings:
            return add_scaled(builder, node, found, source, summed, [each for each in scalings if each is not None])
    if steps is not None and (too_wide or max(len(each.thresholds) for each in steps) <= FEW_STEPS):
        return _thresholds(builder, node, summed, steps)
    if widest > max_bits:
        raise ArgumentError(
            f"{node.name} ({node.block}) has sums of {widest} bits, more than max_bits={max_bits}, "
            "and what follows is not monotone"
        )
    return _table_of_sums(builder, node, summed, function)


class _Rest:
    """What follows the sum, as a function of whole numbers."""

    def __init__(self, block: LayerBlock, found: ExactSum, edge: StreamEdge) -> None:
        self.block, self.found, self.edge = block, found, edge
        self.low = np.array([domain.low for domain in found.domains])
        self.high = np.array([domain.high for domain in found.domains])

    def __call__(self, sums: np.ndarray) -> np.ndarray:
        """sums [n, channels] -> levels [n, channels]."""
        real: Tensor = torch.from_numpy(sums).to(torch.float64) * self.found.scale
        if self.found.divisor != 1:
            real = real / self.found.divisor
        return to_levels(self.block.finish(real, 1), self.edge.scale).numpy()

    def everywhere(self) -> np.ndarray:
        """The levels from the lowest to the highest sum of each channel, the last one repeated: [range, channels]."""
        count = int((self.high - self.low).max()) + 1
        size = max(1, CHUNK // len(self.low))
        parts = []
        for begin in range(0, count, size):
            offsets = np.arange(begin, min(begin + size, count))[:, None]
            parts.append(self(np.minimum(self.low + offsets, self.high)))
        return np.concatenate(parts)

    def by_enumeration(self) -> list[Steps] | None:
        """The steps of every channel; None when one both rises and falls."""
        levels = self.everywhere()
        change = np.diff(levels, axis=0)
        if ((change > 0).any(0) & (change < 0).any(0)).any():
            return None
        found = []
        for channel in range(levels.shape[1]):
            at = np.flatnonzero(change[:, channel])
            column = levels[:, channel]
            found.append(Steps(self.low[channel] + at, np.concatenate([column[:1], column[at + 1]])))
        return found

    def by_bisection(self, name: str) -> list[Steps] | None:
        """The same for wide sums, where every op is known to rise or fall; None when one is not."""
        if not all(op.monotone for op in self.block.ops[1:]):
            return None
        ends = self(np.stack([self.low, self.high]))
        first, last = ends
        found: list[tuple[list[int], list[int]]] = [([], [int(level)]) for level in first]
        position, level = self.low.copy(), first.copy()
        while (level != last).any():
            # The last sum at which each channel is still on its present level, by halving.
            low, high = position, self.high
            while (high - low > 1).any():
                middle = (low + high) // 2
                same = self(middle[None])[0] == level
                low, high = np.where(same, middle, low), np.where(same, high, middle)
            following = self(np.minimum(low + 1, self.high)[None])[0]
            for channel in np.flatnonzero(level != last):
                found[channel][0].append(int(low[channel]))
                found[channel][1].append(int(following[channel]))
            position, level = np.where(level != last, low + 1, position), np.where(level != last, following, level)
        return [Steps(np.array(at, dtype=np.int64), np.array(levels, dtype=np.int64)) for at, levels in found]


def _thresholds(builder: Builder, node: Layer, summed: int, steps: list[Steps]) -> int:
    """Comparisons with constants, then a table (or a count and a table) from their answers to the level."""
    edge = builder.edge(summed)
    left = np.concatenate([np.full(len(each.thresholds), channel) for channel, each in enumerate(steps)]).astype(np.int64)
    constant = np.concatenate([each.thresholds for each in steps]).astype(np.int64)
    if not len(left):  # every channel is constant; an unused lane keeps the bus from being empty
        left, constant = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    lanes_edge = edge.carrying([Binary()] * len(left))
    lanes = builder.add(Compare((summed,), lanes_edge, left, np.full(len(left), -1), constant, name=node.name))
    first = np.cumsum([0, *(len(each.thresholds) for each in steps)])
    if max(len(each.thresholds) for each in steps) <= TABLE_LANES:
        return builder.add(_table_of_lanes(node, lanes, steps, first))
    counts = [domain_for(0, len(each.thresholds)) for each in steps]
    total = len(constant) if first[-1] else 0
    ones = np.ones(total, dtype=np.int64)
    count_edge = edge.carrying(counts)
    start, zero = first.astype(np.int64), np.zeros(len(steps), dtype=np.int64)
    counted = builder.add(Sum((lanes,), count_edge, start, np.arange(total), ones, zero, name=node.name))
    return builder.add(_table_of_counts(node, counted, steps, count_edge))


def _table_of_lanes(node: Layer, source: int, steps: list[Steps], first: np.ndarray) -> Table:
    tables: list[TableData] = []
    lookups = []
    for channel, each in enumerate(steps):
        lanes, domain = len(each.thresholds), node.edge.domains[channel]
        # Thresholds rise, so the answers are ones up to a lane and zeros from there on; lane 0 is most significant.
        addresses = [(2**lanes - 1) ^ (2 ** (lanes - count) - 1) for count in range(lanes + 1)]
        tables.append(_by_address(addresses, lanes, each.levels, domain))
        lookups.append(Lookup(channel, tuple(range(int(first[channel]), int(first[channel + 1]))), (channel,)))
    return Table((source,), node.edge, tuple(tables), tuple(lookups), name=node.name)


def _table_of_counts(node: Layer, source: int, steps: list[Steps], edge: StreamEdge) -> Table:
    tables = [
        _by_address(list(range(len(each.levels))), edge.domains[channel].bits, each.levels, node.edge.domains[channel])
        for channel, each in enumerate(steps)
    ]
    lookups = [Lookup(channel, tuple(edge.bits_of(channel)), (channel,)) for channel in range(len(steps))]
    return Table((source,), node.edge, tuple(tables), tuple(lookups), name=node.name)


def _table_of_sums(builder: Builder, node: Layer, summed: int, function: _Rest) -> int:
    edge, levels = builder.edge(summed), function.everywhere()
    tables, lookups = [], []
    for channel, domain in enumerate(edge.domains):
        own = levels[: domain.radix, channel]
        addresses = domain.encode(torch.arange(domain.low, domain.high + 1)).tolist()
        tables.append(_by_address(addresses, domain.bits, own, node.edge.domains[channel]))
        lookups.append(Lookup(channel, tuple(edge.bits_of(channel)), (channel,)))
    return builder.add(Table((summed,), node.edge, tuple(tables), tuple(lookups), name=node.name))


def _by_address(addresses: list[int], bits: int, levels: np.ndarray, domain: Domain) -> TableData:
    """A table that holds levels at some addresses; the others cannot occur."""
    values = torch.from_numpy(np.ascontiguousarray(levels))
    domain.check("a level", values)
    contents = np.zeros((2**bits, 1), dtype=np.int64)
    care = np.zeros(2**bits, dtype=bool)
    contents[addresses, 0], care[addresses] = domain.encode(values).numpy(), True
    return TableData(contents, (domain.bits,), None if care.all() else care)

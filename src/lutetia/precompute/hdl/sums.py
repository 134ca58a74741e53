"""The module of sums: products with constants as shared adders, single bits counted by compressors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lutetia.precompute.hdl.design import Design, Slice, SumTerm, Total, compressors, slices, totals
from lutetia.precompute.hdl.dialect import BusPiece, Dialect
from lutetia.precompute.ir.stream import StreamEdge, Sum
from lutetia.precompute.passes.sharing import AdderPart, AdderTree, Range, shared_adders

CHAIN = 16  # terms of a sum that are written without brackets


def write_sum(d: Dialect, design: Design, node: Sum) -> None:
    """Every sum of a node, in the bits of its target, where it is exact."""
    (edge,) = design.edges(node)
    d.passed()
    idle: list[str] = []
    made = totals(node, edge)
    tree = adder_tree(made, edge)
    adders = None if tree is None else _Adders(d, tree, made, edge)
    pieces = []
    for number, total in enumerate(made):
        counted = _counted(d, total, number, edge.width, idle)
        rest = [_term(d, term, edge.width, total) for term in total.terms] if adders is None else adders.texts(number)
        texts = [*counted, *rest]
        if total.bias or not texts:
            texts.append(f"+ {d.constant(total.bias, total.target.bits)}")
        if texts[0].startswith("-"):
            texts.insert(0, f"+ {d.constant(0, total.target.bits)}")
        pieces.append(BusPiece(total.target, d.as_bus(_added(texts))))
    d.set_bus(node.edge.width, pieces, constant=not node.coefficient.any())
    if unread(edge, channel_bits(edge, node.index[node.coefficient != 0])):
        idle.append("in_data")
    d.unused(*idle)


def unread(edge: StreamEdge, bits: np.ndarray) -> bool:
    """Whether there are bits of a bus that nothing reads: bits are the numbers of those that are."""
    return len(np.unique(bits)) < edge.width


def channel_bits(edge: StreamEdge, channels: np.ndarray) -> np.ndarray:
    """The bits of some channels on their bus."""
    own = [np.arange(edge.offsets[channel], edge.offsets[channel + 1]) for channel in np.unique(channels)]
    return np.concatenate(own) if own else np.zeros(0, dtype=np.int64)


def adder_tree(made: list[Total], edge: StreamEdge) -> AdderTree | None:
    """The shared adders of some sums; None where every term is a channel by itself and nothing is shared."""
    channels = slices(edge)
    place = {channel: number for number, channel in enumerate(channels)}
    sums: list[dict[int, int]] = [{} for _ in made]
    for own, total in zip(sums, made, strict=True):
        for term in total.terms:
            number = place[term.channel]
            own[number] = own.get(number, 0) + term.coefficient
    plain = all(abs(coefficient) == 1 for own in sums for coefficient in own.values())
    if plain and sum(map(len, sums)) == len(set().union(*sums)):  # no channel is in two sums
        return None
    tree = shared_adders([_code_range(channel) for channel in channels], sums)
    return None if tree is None or (plain and not tree.shared) else tree


def _code_range(channel: Slice) -> Range:
    """The range of a channel's bits: the proof assumes no more."""
    return Range(-(2 ** (channel.bits - 1)), 2 ** (channel.bits - 1) - 1) if channel.signed else Range(0, 2**channel.bits - 1)


@dataclass
class _Adders:
    """The adders of a tree as lines of a module; each as wide as its numbers, or as what reads it needs."""

    d: Dialect
    tree: AdderTree
    made: list[Total]
    edge: StreamEdge

    def __post_init__(self) -> None:
        channels = slices(self.edge)
        self.values = [("in_data", channel, self.edge.width) for channel in channels]
        widths = self._widths(len(channels))
        for number, adder in enumerate(self.tree.adders):
            bits, name = widths[number], f"s{number}"
            text = _added([self._text(part, bits) for part in adder])
            self.d.let(name, bits, self.d.as_bus(text))
            self.values.append((name, Slice(0, bits, self.tree.ranges[len(channels) + number].signed), bits))

    def _widths(self, first: int) -> list[int]:
        """Bits of each adder; bits beyond those of all readers would be dropped."""
        need = [0] * len(self.tree.ranges)
        for parts, total in zip(self.tree.outputs, self.made, strict=True):
            for part in parts:
                need[part.value] = max(need[part.value], total.target.bits - part.shift)
        widths = []
        for number in reversed(range(len(self.tree.adders))):
            bits = max(1, min(need[first + number], self.tree.ranges[first + number].bits))
            widths.append(bits)
            for part in self.tree.adders[number]:
                need[part.value] = max(need[part.value], bits - part.shift)
        return widths[::-1]

    def texts(self, output: int) -> list[str]:
        """What is left of one sum, the positive terms first."""
        parts = sorted(self.tree.outputs[output], key=lambda part: -part.sign)
        return [self._text(part, self.made[output].target.bits) for part in parts]

    def _text(self, part: AdderPart, bits: int) -> str:
        """With its sign in front."""
        text = self.d.number(*self.values[part.value], bits)
        return f"{'-' if part.sign < 0 else '+'} {self.d.times(2**part.shift, text, bits) if part.shift else text}"


def _added(texts: list[str]) -> str:
    """Signed terms, the first one positive, as an expression; brackets keep recursive parsers within their stack."""
    if len(texts) <= CHAIN:
        return " ".join(texts).removeprefix("+ ")
    plus, minus = ([text[2:] for text in texts if text[0] == sign] for sign in "+-")
    return f"{_bracketed(plus)} - {_bracketed(minus)}" if minus else _bracketed(plus)


def _bracketed(texts: list[str]) -> str:
    """A balanced tree of additions."""
    if len(texts) <= CHAIN:
        return f"({' + '.join(texts)})"
    half = len(texts) // 2
    return f"({_bracketed(texts[:half])} + {_bracketed(texts[half:])})"


def _term(d: Dialect, term: SumTerm, width: int, total: Total) -> str:
    """With its sign in front."""
    bits, size = total.target.bits, abs(term.coefficient)
    text = d.number("in_data", term.channel, width, bits)
    return f"{'-' if term.coefficient < 0 else '+'} {d.times(size, text, bits) if size != 1 else text}"


def _counted(d: Dialect, total: Total, number: int, width: int, idle: list[str]) -> list[str]:
    """The count of the single bits as terms: compressors, and the bits that are left. Unread bits go to `idle`."""
    if not total.bits:
        return []
    bits = total.target.bits
    made, left, _ = compressors(len(total.bits))
    places = {at: ("in_data", channel.low, width) for at, channel in enumerate(total.bits)}
    for column in made:
        name, size = f"c{number}_{column.outputs[0]}", len(column.outputs)
        texts = []
        for at in column.inputs:
            bus, low, bus_width = places[at]
            texts.append(d.number(bus, Slice(low, 1, False), bus_width, size))
        d.let(name, size, d.as_bus(" + ".join(texts)))
        places |= {at: (name, place, size) for place, at in enumerate(column.outputs)}
    terms = []
    for row in range(max(map(len, left.values()))):
        chosen = {weight: d.bit(*places[own[row]]) for weight, own in left.items() if len(own) > row and weight < bits}
        if chosen:
            name = f"r{number}_{row}"
            d.let(name, bits, d.joined([chosen.get(weight, d.zero) for weight in reversed(range(bits))]))
            terms.append(f"+ {d.number(name, Slice(0, bits, False), bits, bits)}")
    # A bit of a higher weight than the sum has is proven to be zero: the sum fits.
    idle += sorted({places[at][0] for weight, own in left.items() if weight >= bits for at in own})
    return terms

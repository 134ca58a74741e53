"""What Verilog and VHDL have in common: names, buses, which node reads which, and what each node computes.

One module per node, with data, valid and ready on both sides, one per different table, and a top module that joins them. Where a
node has several readers, a fork follows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lutetia.errors import ArgumentError, fail
from lutetia.precompute.hdl.reserved import RESERVED
from lutetia.precompute.ir.graph import Graph, without_dead_nodes
from lutetia.precompute.ir.netlist import columns
from lutetia.precompute.ir.stream import Argmax, Compare, Register, StreamEdge, StreamNode, Sum, Table, TableData, Unpack, Window
from lutetia.precompute.tables.domains import Domain


class Slice(NamedTuple):
    """A channel on a bus: its lowest bit, its number of bits, and whether they are two's complement."""

    low: int
    bits: int
    signed: bool

    @property
    def high(self) -> int:
        return self.low + self.bits - 1


def slices(edge: StreamEdge) -> list[Slice]:
    """The channels of an edge."""
    return [Slice(int(low), domain.bits, domain.signed) for low, domain in zip(edge.offsets[:-1], edge.domains, strict=True)]


@dataclass(frozen=True)
class SourceReader:
    """One source of one node: the node it reads, and which of that node's readers it is."""

    source: int
    branch: int


@dataclass(frozen=True)
class Design:
    """A graph with everything named."""

    name: str
    graph: Graph
    tables: tuple[TableData, ...]
    numbers: dict[tuple[object, ...], int]  # of tables, by their key
    readers: tuple[tuple[SourceReader, ...], ...]  # per node, its sources
    branches: tuple[int, ...]  # per node, how many read it
    last: bool = False  # whether a marker goes with the last answer of each frame

    def module(self, number: int) -> str:
        """The name of the module of a node; a register is one of the fixed circuits."""
        node = self.graph.nodes[number]
        return f"{self.name}_register" if isinstance(node, Register) else f"{self.name}_{number}_{node.kind}"

    def table(self, number: int) -> str:
        """The name of the module of a table."""
        return f"{self.name}_t{number}"

    def table_number(self, table: TableData) -> int:
        return self.numbers[table.key]

    def tables_of(self, node: StreamNode) -> list[int]:
        """The tables that a node uses and that have their own module."""
        found = node.tables if isinstance(node, Table) else ()
        return sorted({self.table_number(table) for table in found if table.k})

    def edges(self, node: StreamNode) -> list[StreamEdge]:
        """The edges that a node reads."""
        return [self.graph.nodes[source].edge for source in node.sources]

    @property
    def has_state(self) -> bool:
        """Whether it needs a clock."""
        held = any(isinstance(node, Window | Register | Unpack) for node in self.graph.nodes)
        return held or self.last or any(count > 1 for count in self.branches)


def design(graph: Graph, name: str, last: bool = False) -> Design:
    """Name everything."""
    if last and graph.output_edge.samples is None:
        raise ArgumentError("last=True marks the end of frames, and an endless stream has none: give it a length")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z](_?[a-z0-9])*", name):
        fail("name", name, "a small letter, then small letters and digits with single _ in between")
    if name in RESERVED:
        fail("name", name, f"another name: it is a reserved word of {RESERVED[name]}")
    graph = without_dead_nodes(graph)
    for node in graph.nodes:
        if isinstance(node, Window) and node.pads and None in graph.nodes[node.source].edge.shape:
            raise ArgumentError(
                f"{node.name or 'a window'} pads by {node.padding} and {node.ends}, but an endless stream has no end to pad: "
                "give its frames a length, Stream(.., length=n)"
            )
    tables: dict[tuple[object, ...], TableData] = {}
    for node in graph.nodes:
        for table in node.tables if isinstance(node, Table) else ():
            tables.setdefault(table.key, table)
    readers = [0] * len(graph.nodes)
    for node in graph.nodes:
        for source in node.sources:
            readers[source] += 1
    readers[graph.output] += 1
    taken = [0] * len(graph.nodes)
    sources = []
    for node in graph.nodes:
        own = []
        for source in node.sources:
            own.append(SourceReader(source, taken[source]))
            taken[source] += 1
        sources.append(tuple(own))
    numbers = {key: number for number, key in enumerate(tables)}
    return Design(name, graph, tuple(tables.values()), numbers, tuple(sources), tuple(readers), last)


# ---- nodes in numbers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowWalk:
    """A window over frames of `height` × `width` samples, `width` None for an endless row."""

    height: int
    width: int | None
    pad_y: int  # in front
    pad_x: int
    end_y: int  # padding behind
    end_x: int
    field_y: int  # places before the last tap
    field_x: int
    stride_y: int
    stride_x: int
    offsets: tuple[int, ...]  # of each tap, in samples before the newest one
    fill: int  # one sample of padding, as its bits

    @property
    def rows(self) -> int:
        return self.height + self.pad_y + self.end_y

    @property
    def columns(self) -> int:
        return (self.width or 0) + self.pad_x + self.end_x

    @property
    def depth(self) -> int:
        """Samples that are kept."""
        return max(self.offsets) + 1


def walk(node: Window, edge: StreamEdge) -> WindowWalk:
    """A sequence is an image of one row."""
    one = len(node.kernel) == 1
    axes = ((node.kernel, 1), (node.stride, 1), (node.dilation, 1), (node.padding, 0), (node.ends, 0))
    (ky, kx), (sy, sx), (dy, dx), (py, px), (qy, qx) = (((default, axis[0]) if one else axis) for axis, default in axes)
    height, width = (1, edge.shape[0]) if one else (edge.shape[0] or 1, edge.shape[1])
    columns = (width or 0) + px + qx
    offsets = [(ky - 1 - i) * dy * columns + (kx - 1 - j) * dx for i in range(ky) for j in range(kx)]
    fill = bus_word(edge, node.fill)
    return WindowWalk(height, width, py, px, qy, qx, (ky - 1) * dy, (kx - 1) * dx, sy, sx, tuple(offsets), fill)


def bus_word(edge: StreamEdge, values: tuple[int, ...]) -> int:
    """One sample as the bits on the bus."""
    word = 0
    for value, domain, low in zip(values, edge.domains, edge.offsets[:-1].tolist(), strict=True):
        word |= code(domain, int(value)) << low
    return word


def code(domain: Domain, value: int) -> int:
    """The code of one value."""
    return (value - domain.low) // domain.step if domain.step != 1 else value & (2**domain.bits - 1)


class SumTerm(NamedTuple):
    """A channel times a constant."""

    channel: Slice
    coefficient: int


class Total(NamedTuple):
    """One sum: where it goes, its terms and its bias. All arithmetic is modulo 2**bits, where it is exact."""

    target: Slice
    bias: int
    terms: list[SumTerm]
    bits: list[Slice]  # single bits with the coefficient 1, which are counted


COUNTED = 7  # this many single bits or more are counted by compressors


def totals(node: Sum, edge: StreamEdge) -> list[Total]:
    """The sums of a node."""
    channels = slices(edge)
    made = []
    for output, target in enumerate(slices(node.edge)):
        terms, single = [], []
        for at in range(int(node.start[output]), int(node.start[output + 1])):
            channel, coefficient = channels[int(node.index[at])], int(node.coefficient[at])
            if coefficient == 1 and channel.bits == 1 and not channel.signed:
                single.append(channel)
            elif coefficient:
                terms.append(SumTerm(channel, coefficient))
        if len(single) < COUNTED:
            terms, single = [*terms, *(SumTerm(channel, 1) for channel in single)], []
        made.append(Total(target, int(node.bias[output]), terms, single))
    return made


class Lane(NamedTuple):
    """One comparison, left > right, in two's complement of `bits` bits; `right` may be a constant."""

    left: Slice
    right: Slice | int
    bits: int


def lanes(node: Compare, edge: StreamEdge) -> list[Lane]:
    """The comparisons of a node, each as wide as it must be."""
    channels = slices(edge)
    made = []
    for left, right, constant in zip(node.left.tolist(), node.right.tolist(), node.constant.tolist(), strict=True):
        other: Slice | int = channels[right] if right >= 0 else constant
        widths = [channels[left].bits + (not channels[left].signed)]
        widths.append(other.bits + (not other.signed) if isinstance(other, Slice) else _signed_bits(other))
        made.append(Lane(channels[left], other, max(widths)))
    return made


def _signed_bits(value: int) -> int:
    return (value if value >= 0 else ~value).bit_length() + 1


class Match(NamedTuple):
    """A step of a tournament: the later of two is taken when it is greater. Entries: channels first, then earlier matches."""

    first: int
    second: int


def tournament(count: int) -> list[Match]:
    """All matches; the last one is the final. Neighbours meet, so the first of equals wins."""
    made: list[Match] = []
    entries = list(range(count))
    while len(entries) > 1:
        following = []
        for at in range(0, len(entries) - 1, 2):
            following.append(count + len(made))
            made.append(Match(entries[at], entries[at + 1]))
        entries = following + entries[len(entries) // 2 * 2 :]
    return made


def common_width(node: Argmax, edge: StreamEdge) -> int:
    """The number of two's-complement bits that hold every channel."""
    return max(domain.bits + (not domain.signed) for domain in edge.domains)


class Column(NamedTuple):
    """A compressor: up to six bits of one weight become their count, of three bits (or two)."""

    weight: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def compressors(count: int) -> tuple[list[Column], dict[int, list[int]], int]:
    """Count bits: compressors, then for each weight the remaining bits (at most two), and the number of bits.

    Bits are numbered, the given ones first. A compressor of six bits takes three LUTs of six inputs and leaves three bits.
    """
    columns: dict[int, list[int]] = {0: list(range(count))}
    made: list[Column] = []
    number = count
    while any(len(bits) > 2 for bits in columns.values()):
        following: dict[int, list[int]] = {}
        for weight, bits in sorted(columns.items()):
            while len(bits) > 2:
                group, bits = bits[:6], bits[6:]
                size = 3 if len(group) > 3 else 2
                outputs = tuple(range(number, number + size))
                number += size
                made.append(Column(weight, tuple(group), outputs))
                for place, output in enumerate(outputs):
                    following.setdefault(weight + place, []).append(output)
            following.setdefault(weight, []).extend(bits)
        columns = {weight: bits for weight, bits in following.items() if bits}
    return made, columns, number


def truth(table: TableData) -> list[str]:
    """For each output bit, lowest first, its column as hexadecimal digits, row 0 in the lowest bit."""
    digits = (len(table.contents) + 3) // 4
    packed = np.packbits(columns(table), axis=1, bitorder="little")[:, ::-1]
    return [row.tobytes().hex()[-digits:] for row in packed]

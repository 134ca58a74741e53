"""What the module of each kind of node holds, in any dialect. A register has none: it is a fixed circuit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from lutetia.precompute.hdl.design import (
    Design,
    Slice,
    common_width,
    lanes,
    slices,
    tournament,
    walk,
)
from lutetia.precompute.hdl.dialect import BusPiece, Dialect
from lutetia.precompute.hdl.sums import channel_bits, unread, write_sum
from lutetia.precompute.ir.stream import (
    Argmax,
    Compare,
    Lookup,
    Pool,
    StreamNode,
    Sum,
    Table,
    TableData,
    Unpack,
    Window,
    Wire,
)

Rule: TypeAlias = Callable[[Dialect, Design, StreamNode], None]


def write_node(dialect: Dialect, design: Design, number: int) -> None:
    """The lines of one node's module."""
    node = design.graph.nodes[number]
    RULES[type(node)](dialect, design, node)


def _wire(d: Dialect, design: Design, node: Wire) -> None:
    edges = design.edges(node)
    owner = [(source, channel) for source, edge in enumerate(edges) for channel in range(edge.channels)]
    parts = [slices(edge) for edge in edges]
    names = ["in_data"] if len(edges) == 1 else [f"in{source}_data" for source in range(len(edges))]
    chosen = [owner[place] for place in node.index.tolist()]
    texts = [d.part(names[source], parts[source][channel], edges[source].width) for source, channel in chosen]
    d.set_bus(node.edge.width, [BusPiece(*each) for each in zip(slices(node.edge), texts, strict=True)])
    read = [{channel for own, channel in chosen if own == source} for source in range(len(edges))]
    d.unused(*(name for name, edge, own in zip(names, edges, read, strict=True) if len(own) < edge.channels))
    if len(edges) == 1:
        d.passed()
        return
    d.signal(0, "all_valid", "taken")
    d.assign("all_valid", d.all_of([f"in{source}_valid" for source in range(len(edges))]))
    d.assign("out_valid", "all_valid")
    d.assign("taken", d.all_of(["all_valid", "out_ready"]))
    for source in range(len(edges)):
        d.assign(f"in{source}_ready", "taken")


def _table(d: Dialect, design: Design, node: Table) -> None:
    (edge,) = design.edges(node)
    d.passed()
    targets = slices(node.edge)
    pieces: list[BusPiece] = []
    read = [np.array(lookup.inputs, dtype=np.int64) for lookup in node.lookups]
    for number, lookup in enumerate(node.lookups):
        table = node.tables[lookup.table]
        if table.k:
            _lookup(d, design.table(design.table_number(table)), number, lookup, table, edge.width)
        pieces += _pieces(d, table, number, [targets[output] for output in lookup.outputs])
    bits = np.concatenate(read) if read else np.zeros(0, dtype=np.int64)
    d.set_bus(node.edge.width, pieces, constant=not len(bits))
    if unread(edge, bits):
        d.unused("in_data")


def _lookup(d: Dialect, module: str, number: int, lookup: Lookup, table: TableData, width: int) -> None:
    address = [d.bit("in_data", source, width) for source in lookup.inputs]
    flips = [lookup.flip >> (table.k - 1 - place) & 1 for place in range(table.k)]
    address = [d.inverted(text) if flip else text for text, flip in zip(address, flips, strict=True)]
    d.signal(table.out_bits, f"y{number}")
    d.instance(module, f"u{number}", {"a": d.pin(f"a{number}", table.k, d.joined(address)), "y": f"y{number}"})


def _pieces(d: Dialect, table: TableData, number: int, targets: list[Slice]) -> list[BusPiece]:
    """What a lookup drives on the bus: its whole output where that is contiguous, else channel by channel."""
    if not table.k:
        return [BusPiece(own, d.literal(int(code), own.bits)) for own, code in zip(targets, table.contents[0], strict=True)]
    if all(one.high + 1 == other.low for one, other in pairwise(targets)):
        return [BusPiece(Slice(targets[0].low, table.out_bits, False), f"y{number}")]
    lows = np.cumsum([0, *table.bits[:-1]]).tolist()
    texts = [d.part(f"y{number}", Slice(low, bits, False), table.out_bits) for low, bits in zip(lows, table.bits, strict=True)]
    return [BusPiece(own, text) for own, text in zip(targets, texts, strict=True)]


def _compare(d: Dialect, design: Design, node: Compare) -> None:
    (edge,) = design.edges(node)
    d.passed()
    pieces = []
    for number, lane in enumerate(lanes(node, edge)):
        left = d.number("in_data", lane.left, edge.width, lane.bits)
        if isinstance(lane.right, Slice):
            right = d.number("in_data", lane.right, edge.width, lane.bits)
        else:
            right = d.constant(lane.right, lane.bits)
        pieces.append(BusPiece(Slice(number, 1, False), d.truth(d.greater(left, right))))
    d.set_bus(node.edge.width, pieces)
    if unread(edge, channel_bits(edge, np.concatenate([node.left, node.right[node.right >= 0]]))):
        d.unused("in_data")


def _pool(d: Dialect, design: Design, node: Pool) -> None:
    (edge,) = design.edges(node)
    d.passed()
    channels, pieces = slices(edge), []
    for number, target in enumerate(slices(node.edge)):
        own = channels[number * node.taps : (number + 1) * node.taps]
        best = d.part("in_data", own[0], edge.width)
        for tap, channel in enumerate(own[1:], 1):
            other = d.part("in_data", channel, edge.width)
            d.let(f"m{number}_{tap}", channel.bits, d.choice(d.greater_bus(other, best, channel.signed), other, best))
            best = f"m{number}_{tap}"
        pieces.append(BusPiece(target, best))
    d.set_bus(node.edge.width, pieces)


def _argmax(d: Dialect, design: Design, node: Argmax) -> None:
    (edge,) = design.edges(node)
    d.passed()
    bits, places = common_width(node, edge), node.edge.width
    for number, channel in enumerate(slices(edge)):
        d.let(f"v{number}", bits, d.number("in_data", channel, edge.width, bits), number=True)
        d.let(f"p{number}", places, d.literal(number, places))
    matches = tournament(edge.channels)
    last = edge.channels + len(matches) - 1
    for number, (first, second) in enumerate(matches, edge.channels):
        later = d.greater(f"v{second}", f"v{first}")
        if number < last:
            d.let(f"v{number}", bits, d.choice(later, f"v{second}", f"v{first}"), number=True)
        d.let(f"p{number}", places, d.choice(later, f"p{second}", f"p{first}"))
    if not matches:
        d.unused("v0")
    d.assign("out_data", f"p{last}")


def _window(d: Dialect, design: Design, node: Window) -> None:
    """The fixed window, whose taps are whole samples, and wires that put the taps of each channel together."""
    (edge,) = design.edges(node)
    plan, width = walk(node, edge), edge.width
    numbers = {
        "BITS": width, "HEIGHT": plan.height, "WIDTH": plan.width or 0, "PAD_Y": plan.pad_y, "PAD_X": plan.pad_x,
        "END_Y": plan.end_y, "END_X": plan.end_x,
        "FIELD_Y": plan.field_y, "FIELD_X": plan.field_x, "STRIDE_Y": plan.stride_y, "STRIDE_X": plan.stride_x,
        "DEPTH": plan.depth, "TAPS": len(plan.offsets),
    }  # fmt: skip
    generics = {name: str(value) for name, value in numbers.items()}
    generics |= {"OFFSETS": d.integers(plan.offsets), "FILL": d.literal(plan.fill, width)}
    whole = width * len(plan.offsets)
    d.signal(whole, "taps")
    names = ("clk", "rst", "in_data", "in_valid", "in_ready", "out_valid", "out_ready")
    d.instance(f"{design.name}_window", "u", {**{name: name for name in names}, "out_data": "taps"}, generics)
    pieces = []
    for channel, own in enumerate(slices(edge)):
        first = int(node.edge.offsets[channel * node.taps])
        for tap in range(len(plan.offsets)):
            text = d.part("taps", Slice(tap * width + own.low, own.bits, False), whole)
            pieces.append(BusPiece(Slice(first + tap * own.bits, own.bits, False), text))
    d.set_bus(node.edge.width, pieces)


def _unpack(d: Dialect, design: Design, node: Unpack) -> None:
    """The fixed circuit, which takes its parts one after the other, and wires that put them in that order."""
    (edge,) = design.edges(node)
    width = node.edge.width
    channels = slices(edge)
    order = [channels[channel * node.parts + part] for part in range(node.parts) for channel in range(node.edge.channels)]
    d.signal(edge.width, "parts")
    bits = [bit for own in order for bit in range(own.low, own.high + 1)]
    d.assign_bits("parts", [d.bit("in_data", bit, edge.width) for bit in reversed(bits)])
    names = ("clk", "rst", "in_valid", "in_ready", "out_data", "out_valid", "out_ready")
    pins = {**{name: name for name in names}, "in_data": "parts"}
    d.instance(f"{design.name}_unpack", "u", pins, {"BITS": str(width), "PARTS": str(node.parts)})


RULES: dict[type[StreamNode], Callable[..., None]] = {
    Wire: _wire, Table: _table, Compare: _compare, Sum: write_sum, Pool: _pool, Argmax: _argmax, Window: _window,
    Unpack: _unpack,
}  # fmt: skip

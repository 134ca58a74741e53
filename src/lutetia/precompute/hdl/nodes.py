"""What the module of each kind of node holds, in any dialect. A register has none: it is a fixed circuit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from lutetia.precompute.hdl.design import (
    Design,
    Slice,
    SumTerm,
    Total,
    common_width,
    compressors,
    lanes,
    slices,
    totals,
    tournament,
    walk,
)
from lutetia.precompute.hdl.dialect import BusPiece, Dialect
from lutetia.precompute.ir.stream import (
    Argmax,
    Compare,
    Lookup,
    Pool,
    StreamEdge,
    StreamNode,
    Sum,
    Table,
    TableData,
    Window,
    Wire,
)

CHAIN = 16  # terms of a sum that are written without brackets
Rule: TypeAlias = Callable[[Dialect, Design, StreamNode], None]


def write_node(dialect: Dialect, design: Design, number: int) -> None:
    """The lines of one node's module."""
    node = design.graph.nodes[number]
    RULES[type(node)](dialect, design, node)


def unread(edge: StreamEdge, bits: np.ndarray) -> bool:
    """Whether there are bits of a bus that nothing reads: bits are the numbers of those that are."""
    return len(np.unique(bits)) < edge.width


def _channel_bits(edge: StreamEdge, channels: np.ndarray) -> np.ndarray:
    own = [np.arange(edge.offsets[channel], edge.offsets[channel + 1]) for channel in np.unique(channels)]
    return np.concatenate(own) if own else np.zeros(0, dtype=np.int64)


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
    """What a lookup gives to the bus: its whole output where that lies together there, else channel by channel."""
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
    if unread(edge, _channel_bits(edge, np.concatenate([node.left, node.right[node.right >= 0]]))):
        d.unused("in_data")


def _sum(d: Dialect, design: Design, node: Sum) -> None:
    (edge,) = design.edges(node)
    d.passed()
    idle: list[str] = []
    pieces = []
    for number, total in enumerate(totals(node, edge)):
        texts = [*_counted(d, total, number, edge.width, idle), *(_term(d, term, edge.width, total) for term in total.terms)]
        if total.bias or not texts:
            texts.append(f"+ {d.constant(total.bias, total.target.bits)}")
        if texts[0].startswith("-"):
            texts.insert(0, f"+ {d.constant(0, total.target.bits)}")
        pieces.append(BusPiece(total.target, d.as_bus(_added(texts))))
    d.set_bus(node.edge.width, pieces, constant=not node.coefficient.any())
    if unread(edge, _channel_bits(edge, node.index[node.coefficient != 0])):
        idle.append("in_data")
    d.unused(*idle)


def _added(texts: list[str]) -> str:
    """Signed terms, the first one positive, as an expression; brackets keep tools that read by recursion within their stack."""
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
    """The count of the single bits as terms: compressors, and what they leave. What is not read goes to `idle`."""
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


RULES: dict[type[StreamNode], Callable[..., None]] = {
    Wire: _wire, Table: _table, Compare: _compare, Sum: _sum, Pool: _pool, Argmax: _argmax, Window: _window,
}  # fmt: skip

"""The Verilog of each kind of node: the lines of its module between the ports and `endmodule`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from lutetia.precompute.hdl.design import (
    Design,
    Slice,
    Term,
    Total,
    common_width,
    compressors,
    lanes,
    slices,
    totals,
    tournament,
    walk,
)
from lutetia.precompute.ir.stream import Argmax, Compare, Edge, Lookup, Node, Pool, Register, Sum, Table, TableData, Window, Wire

PASS = ["assign out_valid = in_valid;", "assign in_ready = out_ready;"]


def span(bits: int) -> str:
    """`[7:0]`."""
    return f"[{bits - 1}:0]"


def part(bus: str, channel: Slice, width: int) -> str:
    """A channel of a bus that is `width` wide; a bus of one channel has no need of a part."""
    if channel.bits == width:
        return bus
    return f"{bus}[{channel.low}]" if channel.bits == 1 else f"{bus}[{channel.high}:{channel.low}]"


def bit(bus: str, place: int, width: int) -> str:
    return bus if width == 1 else f"{bus}[{place}]"


def extended(bus: str, channel: Slice, width: int, bits: int) -> str:
    """A channel with so many bits: by its sign, by zeros, or cut, where only the lower bits matter."""
    text = part(bus, channel, width)
    if channel.bits == bits:
        return text
    if channel.bits > bits:
        return part(bus, Slice(channel.low, bits, False), width)
    more = bits - channel.bits
    if channel.signed:
        return f"{{{{{more}{{{bit(bus, channel.high, width)}}}}}, {text}}}"
    return f"{{{more}'d0, {text}}}"


def unused(bus: str, used: np.ndarray) -> list[str]:
    """Tell the linter about the bits that nothing reads: bool [width]."""
    return [] if used.all() else [f"wire unused = &{{1'b0, {bus}}};"]


def _used(edge: Edge, channels: set[int]) -> np.ndarray:
    used = np.zeros(edge.width, dtype=bool)
    for channel in channels:
        used[edge.offsets[channel] : edge.offsets[channel + 1]] = True
    return used


def process(width: int, lines: list[str], constant: bool = False) -> list[str]:
    """Lines that set `result`, of so many bits, as one process.

    A simulator copies a wide bus for each `assign` to a part of it: 256 tables with 64 outputs took minutes, and take seconds.
    Where nothing is read a process would never start, so constants are assigned.
    """
    if constant:
        return [f"wire {span(width)} result;", "assign out_data = result;", *(f"assign {line}" for line in lines)]
    listed = [f"    {line}" for line in lines]
    return [f"reg {span(width)} result;", "assign out_data = result;", "always @* begin", *listed, "end"]


def body(design: Design, number: int) -> list[str]:
    """The lines of one node."""
    return RULES[type(design.graph.nodes[number])](design, design.graph.nodes[number])


def _wire(design: Design, node: Wire) -> list[str]:
    edges = design.edges(node)
    owner = [(source, channel) for source, edge in enumerate(edges) for channel in range(edge.channels)]
    parts = [slices(edge) for edge in edges]
    names = ["in_data"] if len(edges) == 1 else [f"in{source}_data" for source in range(len(edges))]
    texts = [
        part(names[source], parts[source][channel], edges[source].width)
        for source, channel in (owner[place] for place in node.index.tolist())
    ]
    lines = process(node.edge.width, [f"result = {_joined(texts[::-1])};"])
    read = [{owner[place][1] for place in node.index.tolist() if owner[place][0] == source} for source in range(len(edges))]
    idle = [name for name, edge, own in zip(names, edges, read, strict=True) if len(own) < edge.channels]
    if idle:
        lines.append(f"wire unused = &{{1'b0, {', '.join(idle)}}};")
    if len(edges) == 1:
        return [*PASS, *lines]
    valids = " & ".join(f"in{source}_valid" for source in range(len(edges)))
    lines += [f"assign out_valid = {valids};", "wire taken = out_valid & out_ready;"]
    return [*lines, *(f"assign in{source}_ready = taken;" for source in range(len(edges)))]


def _table(design: Design, node: Table) -> list[str]:
    (edge,) = design.edges(node)
    targets = slices(node.edge)
    lines = list(PASS)
    used = np.zeros(edge.width, dtype=bool)
    pieces: list[tuple[int, str]] = []  # the lowest bit of each on the bus
    for number, lookup in enumerate(node.lookups):
        lines += _lookup(design, node, number, lookup, edge.width)
        pieces += _pieces(node.tables[lookup.table], number, [targets[output] for output in lookup.outputs])
        used[list(lookup.inputs)] = True
    joined = _joined([text for _, text in sorted(pieces, reverse=True)])
    return [*lines, *process(node.edge.width, [f"result = {joined};"], not used.any()), *unused("in_data", used)]


def _lookup(design: Design, node: Table, number: int, lookup: Lookup, width: int) -> list[str]:
    table, k = node.tables[lookup.table], len(lookup.inputs)
    if not k:
        return []
    address = [
        ("~" if lookup.flip >> (k - 1 - place) & 1 else "") + bit("in_data", source, width)
        for place, source in enumerate(lookup.inputs)
    ]
    return [
        f"wire {span(table.out_bits)} y{number};",
        f"{design.table(design.table_number(table))} u{number} (.a({_joined(address)}), .y(y{number}));",
    ]


def _pieces(table: TableData, number: int, targets: list[Slice]) -> list[tuple[int, str]]:
    """What a lookup gives to the bus: its whole output where that lies together there, else channel by channel."""
    if not table.k:
        codes = zip(targets, table.contents[0].tolist(), strict=True)
        return [(target.low, f"{target.bits}'d{value}") for target, value in codes]
    if all(one.high + 1 == other.low for one, other in pairwise(targets)):
        return [(targets[0].low, f"y{number}")]
    lows = np.cumsum([0, *table.bits]).tolist()
    return [
        (target.low, part(f"y{number}", Slice(low, target.bits, False), table.out_bits))
        for target, low in zip(targets, lows, strict=False)
    ]


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{{{', '.join(parts)}}}"


def _compare(design: Design, node: Compare) -> list[str]:
    (edge,) = design.edges(node)
    lines = []
    for number, lane in enumerate(lanes(node, edge)):
        left = _signed("in_data", lane.left, edge.width, lane.bits)
        if isinstance(lane.right, Slice):
            right = _signed("in_data", lane.right, edge.width, lane.bits)
        else:
            right = f"$signed({lane.bits}'d{lane.right % 2**lane.bits})"
        lines.append(f"{bit('result', number, node.edge.width)} = {left} > {right};")
    used = _used(edge, {*node.left.tolist(), *node.right[node.right >= 0].tolist()})
    return [*PASS, *process(node.edge.width, lines), *unused("in_data", used)]


def _signed(bus: str, channel: Slice, width: int, bits: int) -> str:
    return f"$signed({extended(bus, channel, width, bits)})"


def _sum(design: Design, node: Sum) -> list[str]:
    (edge,) = design.edges(node)
    lines, sums = list(PASS), []
    for number, total in enumerate(totals(node, edge)):
        counts, text = _total(total, number, edge.width)
        lines += counts
        sums.append(f"{part('result', total.target, node.edge.width)} = {text};")
    return [
        *lines,
        *process(node.edge.width, sums),
        *unused("in_data", _used(edge, set(node.index[node.coefficient != 0].tolist()))),
    ]


def _total(total: Total, number: int, width: int) -> tuple[list[str], str]:
    """The compressors of a sum, and the sum as an expression."""
    bits = total.target.bits
    lines, text = _count(total, number, width) if total.bits else ([], "")
    for term in total.terms:
        text += _term(term, width, bits, first=not text)
    if total.bias or not text:
        text += f"{' + ' if text else ''}{bits}'d{total.bias % 2**bits}"
    return lines, text


def _term(term: Term, width: int, bits: int, first: bool) -> str:
    text = extended("in_data", term.channel, width, bits)
    size, sign = abs(term.coefficient), "-" if term.coefficient < 0 else "+"
    if size != 1:
        text = f"{bits}'d{size % 2**bits} * {text}"
    if first:
        return text if sign == "+" else f"{bits}'d0 - {text}"
    return f" {sign} {text}"


def _count(total: Total, number: int, width: int) -> tuple[list[str], str]:
    """Compressors, and the sum of what they leave."""
    bits = total.target.bits
    made, left, _ = compressors(len(total.bits))
    names = {at: part("in_data", channel, width) for at, channel in enumerate(total.bits)}
    names |= {at: f"c{number}_{at}" for column in made for at in column.outputs}
    lines = []
    for column in made:
        size = len(column.outputs)
        outputs = ", ".join(names[at] for at in reversed(column.outputs))
        pad = f"{size - 1}'d0, "
        lines.append(f"wire {outputs};")
        lines.append(f"assign {{{outputs}}} = {' + '.join(f'{{{pad}{names[at]}}}' for at in column.inputs)};")
    addends = []
    for row in range(max(map(len, left.values()))):
        chosen = {weight: names[row_bits[row]] for weight, row_bits in left.items() if len(row_bits) > row and weight < bits}
        if chosen:
            addends.append("{" + ", ".join(chosen.get(weight, "1'b0") for weight in reversed(range(bits))) + "}")
    if any(weight >= bits for weight in left):  # proven to be zero: the sum fits
        idle = [names[at] for weight, own in left.items() if weight >= bits for at in own]
        lines.append(f"wire unused_{number} = &{{1'b0, {', '.join(idle)}}};")
    return lines, " + ".join(addends)


def _pool(design: Design, node: Pool) -> list[str]:
    (edge,) = design.edges(node)
    channels, lines = slices(edge), list(PASS)
    for number, target in enumerate(slices(node.edge)):
        own = channels[number * node.taps : (number + 1) * node.taps]
        best = part("in_data", own[0], edge.width)
        for tap, channel in enumerate(own[1:], 1):
            name, other = f"m{number}_{tap}", part("in_data", channel, edge.width)
            greater = f"$signed({other}) > $signed({best})" if channel.signed else f"{other} > {best}"
            lines.append(f"wire {span(channel.bits)} {name} = {greater} ? {other} : {best};")
            best = name
        lines.append(f"assign {part('out_data', target, node.edge.width)} = {best};")
    return lines


def _argmax(design: Design, node: Argmax) -> list[str]:
    (edge,) = design.edges(node)
    bits, places = common_width(node, edge), node.edge.width
    lines = list(PASS)
    for number, channel in enumerate(slices(edge)):
        lines.append(f"wire signed {span(bits)} v{number} = {extended('in_data', channel, edge.width, bits)};")
        lines.append(f"wire {span(places)} p{number} = {places}'d{number};")
    matches = tournament(edge.channels)
    for number, (first, second) in enumerate(matches, edge.channels):
        lines.append(f"wire g{number} = v{second} > v{first};")
        if number < edge.channels + len(matches) - 1:
            lines.append(f"wire signed {span(bits)} v{number} = g{number} ? v{second} : v{first};")
        lines.append(f"wire {span(places)} p{number} = g{number} ? p{second} : p{first};")
    if not matches:
        lines.append("wire unused = &{1'b0, v0};")
    return [*lines, f"assign out_data = p{edge.channels + len(matches) - 1};"]


def _register(design: Design, node: Register) -> list[str]:
    width = node.edge.width
    if node.depth == 1:
        return [
            f"reg {span(width)} data;",
            "reg full;",
            "assign in_ready = !full | out_ready;",
            "assign out_valid = full;",
            "assign out_data = data;",
            "always @(posedge clk)",
            "    if (rst) begin",
            "        full <= 1'b0;",
            f"        data <= {width}'d0;",
            "    end else if (in_ready) begin",
            "        full <= in_valid;",
            "        if (in_valid) data <= in_data;",
            "    end",
        ]
    place, count = (node.depth - 1).bit_length(), node.depth.bit_length()
    return [
        f"reg {span(width)} data [0:{node.depth - 1}];",
        f"reg {span(place)} first, last;",
        f"reg {span(count)} held;",
        "wire push = in_valid & in_ready;",
        "wire pop = out_valid & out_ready;",
        f"assign in_ready = held != {count}'d{node.depth} | out_ready;",
        f"assign out_valid = held != {count}'d0;",
        "assign out_data = data[first];",
        "always @(posedge clk)",
        "    if (push) data[last] <= in_data;",
        "always @(posedge clk)",
        "    if (rst) begin",
        f"        first <= {place}'d0;",
        f"        last <= {place}'d0;",
        f"        held <= {count}'d0;",
        "    end else begin",
        f"        if (push) last <= last == {place}'d{node.depth - 1} ? {place}'d0 : last + {place}'d1;",
        f"        if (pop) first <= first == {place}'d{node.depth - 1} ? {place}'d0 : first + {place}'d1;",
        f"        if (push & !pop) held <= held + {count}'d1;",
        f"        if (pop & !push) held <= held - {count}'d1;",
        "    end",
    ]


def _window(design: Design, node: Window) -> list[str]:
    (edge,) = design.edges(node)
    plan, width = walk(node, edge), edge.width
    kept = plan.depth * width
    axes = [_Axis("x", plan.columns if plan.width is not None else None, plan.width, plan.pad_x, plan.field_x, plan.stride_x)]
    if plan.rows > 1:
        axes.append(_Axis("y", plan.rows, plan.height, plan.pad_y, plan.field_y, plan.stride_y))
    inside = [term for axis in axes for term in axis.inside()]
    due = " & ".join(f"wait_{axis.name} == {axis.waits}'d0" for axis in axes if axis.waits) or "1'b1"
    sample = f"in_frame ? in_data : {width}'d{plan.fill}" if inside else "in_data"
    lines = [
        *(line for axis in axes for line in axis.declared()),
        f"reg {span(kept)} line;",
        "reg full;",
        "wire free = !full | out_ready;",
        *([f"wire in_frame = {' & '.join(inside)};"] if inside else []),
        f"wire move = free & {'(in_valid | !in_frame)' if inside else 'in_valid'};",
        f"wire due = {due};",
        f"wire {span(width)} sample = {sample};",
        f"assign in_ready = free{' & in_frame' if inside else ''};",
        "assign out_valid = full;",
    ]
    parts = slices(edge)
    for channel, own in enumerate(parts):
        for tap, offset in enumerate(plan.offsets):
            target = Slice(own.bits * tap + int(node.edge.offsets[channel * node.taps]), own.bits, own.signed)
            source = Slice(offset * width + own.low, own.bits, own.signed)
            lines.append(f"assign {part('out_data', target, node.edge.width)} = {part('line', source, kept)};")
    lines += ["always @(posedge clk)", "    if (rst) begin", "        full <= 1'b0;", f"        line <= {kept}'d0;"]
    lines += [f"        {line}" for axis in axes for line in axis.reset()]
    lines += ["    end else begin", "        full <= move & due | full & !out_ready;", "        if (move) begin"]
    lines.append(f"            line <= {'sample' if plan.depth == 1 else f'{{line[{kept - width - 1}:0], sample}}'};")
    lines += [f"            {line}" for line in _advance(axes)]
    return [*lines, "        end", "    end"]


class _Axis:
    """The counters of one axis of a window: where it is, and how many places are left to the next window."""

    def __init__(self, name: str, places: int | None, size: int | None, pad: int, field: int, stride: int) -> None:
        self.name, self.places, self.size, self.pad, self.field, self.stride = name, places, size, pad, field, stride
        self.bits = (places - 1).bit_length() if places is not None else 0
        self.waits = max(field, stride - 1).bit_length() if field or stride > 1 else 0

    def declared(self) -> list[str]:
        lines = [f"reg {span(self.bits)} {self.name};"] if self.bits else []
        return [*lines, f"reg {span(self.waits)} wait_{self.name};"] if self.waits else lines

    def inside(self) -> list[str]:
        if not self.pad or self.size is None:
            return []
        return [
            f"{self.name} >= {self.bits}'d{self.pad}",
            f"{self.name} < {self.bits}'d{self.pad + self.size}",
        ]

    def reset(self) -> list[str]:
        lines = [f"{self.name} <= {self.bits}'d0;"] if self.bits else []
        return [*lines, f"wait_{self.name} <= {self.waits}'d{self.field};"] if self.waits else lines

    @property
    def last(self) -> str:
        return f"{self.name} == {self.bits}'d{self.places - 1}" if self.bits and self.places is not None else "1'b1"

    def onward(self) -> list[str]:
        lines = [f"{self.name} <= {self.name} + {self.bits}'d1;"] if self.bits else []
        if not self.waits:
            return lines
        again = f"wait_{self.name} == {self.waits}'d0 ? {self.waits}'d{self.stride - 1} : wait_{self.name} - {self.waits}'d1"
        return [*lines, f"wait_{self.name} <= {again};"]


def _advance(axes: list[_Axis]) -> list[str]:
    """One place on, and at the end of an axis back to its start and one on along the next."""
    first, rest = axes[0], axes[1:]
    if first.places is None:  # an endless row
        return first.onward()
    over = [*first.reset(), *(_advance(rest) if rest else [])]
    if not first.bits:
        return over
    lines = [f"if ({first.last}) begin", *(f"    {line}" for line in over), "end else begin"]
    return [*lines, *(f"    {line}" for line in first.onward()), "end"]


RULES: dict[type[Node], Callable[..., list[str]]] = {
    Wire: _wire, Table: _table, Compare: _compare, Sum: _sum, Pool: _pool, Argmax: _argmax, Register: _register, Window: _window,
}  # fmt: skip

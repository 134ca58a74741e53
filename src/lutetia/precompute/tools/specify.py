"""What each combinational node must compute, as plain Verilog, written from the graph independently of the emission.

A specification is the definition in `ir.stream` word by word: numbers in two's complement of one generous width, sums as sums,
maxima one after the other. Only tables are shared with the emission: their rows are proved on their own.
"""

from __future__ import annotations

from collections.abc import Callable

from lutetia.precompute.hdl.design import Design
from lutetia.precompute.ir.stream import Argmax, Compare, Pool, StreamEdge, StreamNode, Sum, Table, TableData, Wire

TableName = Callable[[TableData], str]


def specification(plan: Design, number: int, name: str, table: TableName) -> str:
    """A module from the buses of all sources, side by side in `a`, to the bus of the node, `y`."""
    node = plan.graph.nodes[number]
    edges = plan.edges(node)
    width = sum(edge.width for edge in edges)
    lines = [f"module {name} (input wire [{width - 1}:0] a, output wire [{node.edge.width - 1}:0] y);"]
    lines += RULES[type(node)](node, edges, table)
    return "\n".join([*lines, "endmodule", ""])


def _spans(edges: list[StreamEdge]) -> list[tuple[int, int]]:
    """The lowest bit and the bits of each channel of all sources."""
    spans, low = [], 0
    for edge in edges:
        for domain in edge.domains:
            spans.append((low, domain.bits))
            low += domain.bits
    return spans


def _numbers(edges: list[StreamEdge], width: int) -> list[str]:
    """Every channel as a number `v0`, `v1`, .. in two's complement; a ±1 channel as its code."""
    lines = []
    signed = [domain.signed and domain.step == 1 for edge in edges for domain in edge.domains]
    for channel, ((low, bits), sign) in enumerate(zip(_spans(edges), signed, strict=True)):
        top = f"a[{low + bits - 1}]" if sign else "1'b0"
        lines.append(f"wire signed [{width - 1}:0] v{channel} = {{{{{width - bits}{{{top}}}}}, a[{low + bits - 1}:{low}]}};")
    return lines


def _constant(value: int, width: int) -> str:
    return f"$signed({width}'h{value % 2**width:x})"


def _wire(node: Wire, edges: list[StreamEdge], table: TableName) -> list[str]:
    spans = _spans(edges)
    parts = [f"a[{spans[place][0] + spans[place][1] - 1}:{spans[place][0]}]" for place in reversed(node.index.tolist())]
    return [f"assign y = {{{', '.join(parts)}}};"]


def _table(node: Table, edges: list[StreamEdge], table: TableName) -> list[str]:
    lines = []
    offsets = node.edge.offsets.tolist()
    for number, lookup in enumerate(node.lookups):
        rows = node.tables[lookup.table]
        lines.append(f"wire [{rows.out_bits - 1}:0] y{number};")
        if rows.k:
            address = ", ".join(f"a[{bit}]" for bit in lookup.inputs)
            flip = f"{rows.k}'h{lookup.flip:x}"
            lines.append(f"{table(rows)} t{number} (.a({{{address}}} ^ {flip}), .y(y{number}));")
        else:
            codes = [f"{bits}'d{int(code)}" for code, bits in zip(rows.contents[0], rows.bits, strict=True)]
            lines.append(f"assign y{number} = {{{', '.join(reversed(codes))}}};")
        low = 0
        for output, bits in zip(lookup.outputs, rows.bits, strict=True):
            lines.append(f"assign y[{offsets[output + 1] - 1}:{offsets[output]}] = y{number}[{low + bits - 1}:{low}];")
            low += bits
    return lines


def _compare(node: Compare, edges: list[StreamEdge], table: TableName) -> list[str]:
    numbers = [int(value).bit_length() for value in node.constant.tolist()]
    width = max([domain.bits for domain in edges[0].domains] + numbers) + 2
    lines = _numbers(edges, width)
    for lane, (left, right, constant) in enumerate(
        zip(node.left.tolist(), node.right.tolist(), node.constant.tolist(), strict=True)
    ):
        lines.append(f"assign y[{lane}] = v{left} > {f'v{right}' if right >= 0 else _constant(constant, width)};")
    return lines


def _sum(node: Sum, edges: list[StreamEdge], table: TableName) -> list[str]:
    lines = _numbers(edges, 62)
    for output in range(len(node.bias)):
        terms = [_constant(int(node.bias[output]), 62)]
        for place in range(int(node.start[output]), int(node.start[output + 1])):
            terms.append(f"{_constant(int(node.coefficient[place]), 62)} * v{int(node.index[place])}")
        low, high = node.edge.offsets[output], node.edge.offsets[output + 1]
        lines.append(f"wire signed [61:0] s{output} = {' + '.join(terms)};")
        lines.append(f"assign y[{high - 1}:{low}] = s{output}[{high - low - 1}:0];")
    return lines


def _running(chosen: list[int], width: int, prefix: str) -> tuple[list[str], str, str]:
    """The greatest of some numbers, one after the other, and its place among them: lines, the value, the place."""
    places = max(len(chosen).bit_length(), 1)
    best, place = f"v{chosen[0]}", f"{places}'d0"
    lines = []
    for number, channel in enumerate(chosen[1:], 1):
        lines.append(f"wire {prefix}g{number} = v{channel} > {best};")
        lines.append(f"wire signed [{width - 1}:0] {prefix}b{number} = {prefix}g{number} ? v{channel} : {best};")
        lines.append(f"wire [{places - 1}:0] {prefix}p{number} = {prefix}g{number} ? {places}'d{number} : {place};")
        best, place = f"{prefix}b{number}", f"{prefix}p{number}"
    return lines, best, place


def _pool(node: Pool, edges: list[StreamEdge], table: TableName) -> list[str]:
    width = max(domain.bits for domain in edges[0].domains) + 2
    lines = _numbers(edges, width)
    for output in range(node.edge.channels):
        own = list(range(output * node.taps, (output + 1) * node.taps))
        more, best, _ = _running(own, width, f"o{output}")
        low, high = node.edge.offsets[output], node.edge.offsets[output + 1]
        lines += [*more, f"wire signed [{width - 1}:0] m{output} = {best};"]
        lines.append(f"assign y[{high - 1}:{low}] = m{output}[{high - low - 1}:0];")
    return lines


def _argmax(node: Argmax, edges: list[StreamEdge], table: TableName) -> list[str]:
    width = max(domain.bits for domain in edges[0].domains) + 2
    more, _, place = _running(list(range(edges[0].channels)), width, "o")
    return [*_numbers(edges, width), *more, f"assign y = {place};"]


RULES: dict[type[StreamNode], Callable[..., list[str]]] = {
    Wire: _wire, Table: _table, Compare: _compare, Sum: _sum, Pool: _pool, Argmax: _argmax,
}  # fmt: skip

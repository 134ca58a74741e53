"""What a graph costs: a table of its nodes, before any synthesis.

LUTs of tables are upper bounds: a tree of k-input LUTs over the address bits that matter, or the smallest form that `minimise`
found. LUTs of sums and comparisons are estimates: one per bit of every addition, one per two bits of a comparison.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia.precompute.ir.stream import Argmax, Compare, Pool, Register, Sum, Table, Unpack, Window

if TYPE_CHECKING:
    from lutetia.precompute.ir.graph import Graph
    from lutetia.precompute.ir.stream import StreamEdge, StreamNode, TableData


@dataclass(frozen=True)
class CostRow:
    """One node."""

    node: int
    kind: str
    name: str
    channels: int
    bits: int  # of its bus
    tables: int  # different ones
    lookups: int
    widest: int  # address bits
    table_bits: int  # rows × output bits of the different tables
    luts: int
    flip_flops: int


@dataclass(frozen=True)
class CostTable:
    """All nodes, and their sum."""

    rows: tuple[CostRow, ...]
    k: int  # inputs of a LUT
    latency: int  # cycles from a sample to what it completes, when nothing stalls

    @property
    def luts(self) -> int:
        return sum(row.luts for row in self.rows)

    @property
    def flip_flops(self) -> int:
        return sum(row.flip_flops for row in self.rows)

    @property
    def table_bits(self) -> int:
        return sum(row.table_bits for row in self.rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain data."""
        return [asdict(row) for row in self.rows]

    def __str__(self) -> str:
        head = ["node", "kind", "name", "channels", "bits", "tables", "lookups", "widest", "table bits", f"LUT{self.k}", "FF"]
        body = [[str(value) for value in asdict(row).values()] for row in self.rows]
        total = ["", "total", "", "", "", *(str(sum(getattr(row, name) for row in self.rows)) for name in ("tables", "lookups"))]
        body.append([*total, "", str(self.table_bits), str(self.luts), str(self.flip_flops)])
        widths = [max(len(line[at]) for line in [head, *body]) for at in range(len(head))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in [head, *body]]
        return "\n".join([*lines, f"latency {self.latency} cycles; LUTs are bounds and estimates, not synthesis"])


def cost(graph: Graph, k: int = 6) -> CostTable:
    """What every node needs."""
    latency: list[int] = []
    rows = []
    for number, node in enumerate(graph.nodes):
        latency.append(max((latency[source] for source in node.sources), default=0) + node.latency)
        edges = [graph.nodes[source].edge for source in node.sources]
        rows.append(_row(number, node, edges, k))
    return CostTable(tuple(rows), k, latency[graph.output])


def _row(number: int, node: StreamNode, edges: list[StreamEdge], k: int) -> CostRow:
    tables = node.tables if isinstance(node, Table) else ()
    lookups = node.lookups if isinstance(node, Table) else ()
    return CostRow(
        number,
        node.kind,
        node.name,
        node.edge.channels,
        node.edge.width,
        len(tables),
        len(lookups),
        max((table.k for table in tables), default=0),
        sum(len(table.contents) * table.out_bits for table in tables),
        _luts(node, edges, k),
        _flip_flops(node, edges),
    )


def _luts(node: StreamNode, edges: list[StreamEdge], k: int) -> int:
    if isinstance(node, Table):
        own = [table_luts(table, k) for table in node.tables]
        return sum(own[lookup.table] for lookup in node.lookups)
    if isinstance(node, Sum):
        terms = sum(digits(int(value)) for value in node.coefficient)
        adders = terms + int((node.bias != 0).sum()) - len(node.bias)
        mean = node.edge.width / max(len(node.bias), 1)
        return max(0, round(adders * mean))
    if isinstance(node, Compare):
        bits = [edges[0].domains[channel].bits for channel in node.left.tolist()]
        return sum(max(1, width // 2) for width in bits)
    if isinstance(node, Unpack):
        return node.edge.width * -(-(node.parts - 1) // 3)  # a LUT chooses one of four bits
    if isinstance(node, Pool):
        return sum((node.taps - 1) * max(1, 2 * domain.bits) for domain in node.edge.domains)
    if isinstance(node, Argmax):
        widest = max(domain.bits for domain in edges[0].domains)
        return (edges[0].channels - 1) * (2 * widest + node.edge.width)
    return 0


def _flip_flops(node: StreamNode, edges: list[StreamEdge]) -> int:
    if isinstance(node, Register):
        return node.depth * node.edge.width
    if isinstance(node, Unpack):
        return max((node.parts - 1).bit_length(), 1)
    if not isinstance(node, Window):
        return 0
    fields = [(size - 1) * step for size, step in zip(node.kernel, node.dilation, strict=True)]
    width = (edges[0].shape[-1] or 0) + node.padding[-1] + node.ends[-1]
    stored = fields[-1] + 1 + (fields[0] * width if len(fields) == 2 else 0)
    return stored * edges[0].width


def digits(value: int) -> int:
    """Additions and subtractions that a product with a constant needs: the digits of its signed form that are not zero."""
    return ((3 * abs(value)) ^ abs(value)).bit_count()


def table_luts(table: TableData, k: int = 6) -> int:
    """An upper bound on LUTs of k inputs: from the form that `minimise` found, or a tree per output bit that needs one."""
    luts = getattr(table.form, "luts", None)
    if luts is not None:
        return int(luts)
    return sum(_tree(_needed(table, column, bit), k) for column in range(len(table.bits)) for bit in range(table.bits[column]))


def _needed(table: TableData, column: int, bit: int) -> int:
    """How many address bits one output bit depends on."""
    values = (table.contents[:, column] >> bit) & 1
    count = 0
    for place in range(table.k):
        halves = values.reshape(2**place, 2, -1)
        differ = halves[:, 0] != halves[:, 1]
        if table.care is not None:
            counts = table.care.reshape(2**place, 2, -1)
            differ = differ & counts[:, 0] & counts[:, 1]
        count += bool(np.any(differ))
    return count


@cache
def _tree(inputs: int, k: int) -> int:
    """LUTs of k inputs for any function of n inputs: cofactors, and multiplexers over them. Wires and constants are free."""
    if inputs <= 1:
        return 0
    if inputs <= k:
        return 1
    select = max(s for s in range(1, k) if s + 2**s <= k) if k > 2 else 1
    if select == 1 or inputs - 1 <= k:
        return 2 * _tree(inputs - 1, k) + (1 if k > 2 else 3)
    return 2**select * _tree(inputs - select, k) + 1

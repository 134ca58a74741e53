"""`precompute`: every layer of a graph becomes tables, or, where a unit is too wide for one, exact sums and thresholds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_range
from lutetia.precompute.front.ops import Linear
from lutetia.precompute.front.units import structure_of, unit_bits
from lutetia.precompute.ir.graph import Builder, Graph, without_dead_nodes
from lutetia.precompute.ir.interpret import evaluate, to_levels
from lutetia.precompute.ir.stream import Layer, Lookup, StreamEdge, Table, TableData
from lutetia.precompute.passes.dontcare import dont_cares
from lutetia.precompute.passes.sums import add_sums
from lutetia.precompute.tables.domains import Domain, enumerate_rows, n_rows, pack
from lutetia.precompute.tables.enumerate import unit_values

MAX_BITS = 24
PROBES = 16
NUDGES, NUDGE = 32, 1e-9  # how often inputs are moved, and by which part of themselves: far more than what rounding does


def precompute(graph: Graph, max_bits: int) -> Graph:
    """Replace every `Layer`."""
    check_range("max_bits", max_bits, 1, MAX_BITS)
    builder = Builder()
    place: dict[int, int] = {}
    for number, node in enumerate(graph.nodes):
        sources = tuple(place[source] for source in node.sources)
        if isinstance(node, Layer):
            place[number] = _lowered(builder, node, sources[0], max_bits)
        else:
            place[number] = builder.add(replace(node, sources=sources))
    return dont_cares(without_dead_nodes(graph.replaced(builder.nodes, place[graph.output])))


def _lowered(builder: Builder, node: Layer, source: int, max_bits: int) -> int:
    edge, block = builder.edge(source), node.block
    units = structure_of(block)
    widest = max((unit_bits(edge, unit.inputs) for unit in units), default=0)
    if widest <= max_bits:
        table = _table(node, source, edge)
        _probe(node, table, edge)
        return builder.add(table)
    if isinstance(block.ops[0], Linear) and not any(op.mixes for op in block.ops[1:]):
        return add_sums(builder, node, source, max_bits)
    raise ArgumentError(
        f"{node.name} ({block}) has a unit of {widest} bits, more than max_bits={max_bits}, and does not start with sums: "
        "use fewer inputs or bits, or put a quantiser inside"
    )


def _probe(node: Layer, table: Table, edge: StreamEdge) -> None:
    """Compare with the block itself on a few samples, which shows a wrong structure.

    A sum that lies on the border between two levels falls on either side, as the machine happens to add it up: where they differ,
    inputs moved by next to nothing must give the table's answer.
    """
    generator = torch.Generator().manual_seed(0)
    columns = [domain.values()[torch.randint(domain.radix, (PROBES,), generator=generator)] for domain in edge.domains]
    x = torch.stack(columns, 1)
    wanted = torch.from_numpy(evaluate(table, [x.numpy()], [edge]))
    real = x * torch.tensor(edge.scale, dtype=torch.float64)
    agrees = to_levels(node.block(real), node.edge.scale) == wanted
    for _ in range(NUDGES):
        if agrees.all():
            return
        signs = torch.randint(2, real.shape, generator=generator).double() * 2 - 1
        agrees |= to_levels(node.block(real * (1 + NUDGE * signs)), node.edge.scale) == wanted
    if not agrees.all():
        raise ArgumentError(f"{node.name} ({node.block}) does not split as its weights, or a claim about it, say")


def _table(node: Layer, source: int, edge: StreamEdge) -> Table:
    """The bank of tables of one layer."""
    units = structure_of(node.block)
    convert = _converter(node.edge)
    values = unit_values(node.block, units, edge.domains, convert, edge.scale)
    tables, lookups = [], []
    for number, (unit, levels) in enumerate(zip(units, values, strict=True)):
        outputs = [node.edge.domains[output] for output in unit.outputs]
        tables.append(table_of(tuple(edge.domains[place] for place in unit.inputs), levels, outputs, node.name))
        bits = [bit for place in unit.inputs for bit in edge.bits_of(place)]
        lookups.append(Lookup(number, tuple(bits), unit.outputs))
    return Table((source,), node.edge, tuple(tables), tuple(lookups), name=node.name)


def _converter(edge: StreamEdge) -> Callable[[Tensor], Tensor]:
    scale = edge.scale[0] if edge.scale else 1.0
    small = all(domain.bits < 16 for domain in edge.domains)

    def convert(real: Tensor) -> Tensor:
        levels = to_levels(real, (scale,))
        return levels.to(torch.int16) if small else levels

    return convert


def table_of(inputs: tuple[Domain, ...], levels: Tensor, outputs: list[Domain], name: str = "") -> TableData:
    """Levels in the order of the domain [n_rows, n_outputs] -> a table of codes by address, with don't-cares for absent codes."""
    for column, domain in enumerate(outputs):
        domain.check(f"output {column} of {name}", levels[:, column])
    codes = torch.stack([domain.encode(levels[:, column]) for column, domain in enumerate(outputs)], 1)
    bits = tuple(domain.bits for domain in outputs)
    packed = codes.numpy().astype(np.int16 if max(bits, default=1) < 16 else np.int64)
    addresses = _addresses(inputs)
    if addresses is None:
        return TableData(packed, bits)
    contents = np.zeros((2 ** sum(domain.bits for domain in inputs), len(bits)), dtype=packed.dtype)
    care = np.zeros(len(contents), dtype=bool)
    contents[addresses], care[addresses] = packed, True
    return TableData(contents, bits, care)


@cache
def _addresses(inputs: tuple[Domain, ...]) -> np.ndarray | None:
    """The address of each row of the domain; None if rows and addresses are the same."""
    if n_rows(inputs) == 2 ** sum(domain.bits for domain in inputs):
        return None
    return pack(inputs, enumerate_rows(inputs)).numpy()


def minimise(graph: Graph, k: int) -> Graph:
    """Give every table its cheapest `form` in LUTs of k inputs; each distinct table is handled once."""
    check_range("k", k, 3, 6)
    from lutetia.precompute.passes.minimise import minimise_tables

    different = {table.key: table for node in graph.nodes if isinstance(node, Table) for table in node.tables}
    known = dict(zip(different, minimise_tables(list(different.values()), k), strict=True))
    nodes = [
        replace(node, tables=tuple(known[table.key] for table in node.tables)) if isinstance(node, Table) else node
        for node in graph.nodes
    ]
    return graph.replaced(nodes, graph.output)

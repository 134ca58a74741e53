"""A graph from tables that were written by hand, loaded from files, or made one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch

from lutetia.errors import ArgumentError, fail
from lutetia.precompute.ir.graph import Builder, Graph
from lutetia.precompute.ir.stream import Input, Lookup, Register, Stream, StreamEdge, Table, TableData
from lutetia.precompute.passes.dontcare import dont_cares
from lutetia.precompute.tables.domains import Domain, domain_for
from lutetia.precompute.tables.table import IOTable

TableLayer: TypeAlias = "IOTable | Sequence[IOTable | tuple[IOTable, Sequence[int]]]"
WIDEST = 20  # address bits


def table_graph(layers: Sequence[TableLayer], input: Stream | None = None) -> Graph:
    """A stream graph of tables, one layer after the other, each followed by a register.

        table_graph([IOTable.load("edge.json")])  # one table that reads every channel
        table_graph([[first, second], joined])    # side by side: each reads the channels that follow
        table_graph([[(first, (0, 2)), (second, (2, 1))]], input=Stream(3, Binary()))  # (table, the channels it reads)

    Without `input`, the domains of the first layer define the input. A table must hold every input that can reach it, or have a
    default.
    """
    if not isinstance(layers, Sequence) or isinstance(layers, str) or not len(layers):
        fail("layers", layers, "a list of tables, or of lists of tables side by side")
    if input is not None and not isinstance(input, Stream):
        fail("input", input, "a Stream, such as Stream(3, Binary())")
    first = _reading(0, layers[0])
    edge = StreamEdge(_entering(first)) if input is None else input.edge("vector" if input.length is None else "sequence")
    builder = Builder()
    node = builder.add(Input((), edge, name="input"))
    for number, layer in enumerate(layers):
        node = _layer(builder, node, _reading(number, layer), f"layer{number}")
    return dont_cares(Graph(builder.nodes, node))


def _reading(number: int, layer: object) -> list[tuple[IOTable, tuple[int, ...]]]:
    """The tables of a layer with the channels they read."""
    if isinstance(layer, IOTable):
        return [(layer, tuple(range(layer.n_inputs)))]
    reading, following = [], 0
    for each in layer if isinstance(layer, Sequence) else ():
        table, channels = each if isinstance(each, tuple) and len(each) == 2 else (each, None)
        if not isinstance(table, IOTable):
            fail(f"a table of layer {number}", table, "an IOTable")
        if channels is None:
            channels, following = range(following, following + table.n_inputs), following + table.n_inputs
        if len(channels) != table.n_inputs or not all(isinstance(channel, int) for channel in channels):
            fail(f"the channels of a table of layer {number}", channels, f"{table.n_inputs} whole numbers, one per input")
        reading.append((table, tuple(channels)))
    if not reading:
        fail(f"layer {number}", layer, "an IOTable, or a list of them")
    return reading


def _entering(reading: list[tuple[IOTable, tuple[int, ...]]]) -> tuple[Domain, ...]:
    """The domains of the input that the first layer reads."""
    domains: dict[int, Domain] = {}
    for table, channels in reading:
        for channel, domain in zip(channels, table.domains, strict=True):
            if domains.setdefault(channel, domain) != domain:
                raise ArgumentError(f"channel {channel} is read as {domains[channel]} and as {domain}: choose one with input=")
    if set(domains) != set(range(len(domains))):
        raise ArgumentError(f"the first layer reads channels {sorted(domains)}, expected all of 0 to {max(domains)}, or input=")
    return tuple(domains[channel] for channel in range(len(domains)))


def _layer(builder: Builder, source: int, reading: list[tuple[IOTable, tuple[int, ...]]], name: str) -> int:
    edge = builder.edge(source)
    domains: list[Domain] = []
    tables, lookups = [], []
    for number, (table, channels) in enumerate(reading):
        if any(not 0 <= channel < edge.channels for channel in channels):
            raise ArgumentError(f"table {number} of {name} reads channels {channels}, expected some of 0 to {edge.channels - 1}")
        outputs = tuple(range(len(domains), len(domains) + table.n_outputs))
        answers = domain_of(table)
        domains += [answers] * table.n_outputs
        read = [edge.domains[channel] for channel in channels]
        tables.append(_contents(table, read, answers, f"table {number} of {name}"))
        bits = tuple(bit for channel in channels for bit in edge.bits_of(channel))
        lookups.append(Lookup(number, bits, outputs))
    made = edge.carrying(domains)
    node = builder.add(Table((source,), made, tuple(tables), tuple(lookups), name=name))
    return builder.add(Register((node,), made, name=name))


def domain_of(table: IOTable) -> Domain:
    """The narrowest integers that hold every output and the default."""
    own = table.output_domain
    return domain_for(min((own.low, *(table.default or ()))), max((own.high, *(table.default or ()))))


def _contents(table: IOTable, read: list[Domain], out: Domain, name: str) -> TableData:
    """The rows of a table by the codes of the channels that it reads; codes without a value do not count."""
    k = sum(domain.bits for domain in read)
    if k > WIDEST:
        raise ArgumentError(f"{name} reads {k} bits, expected at most {WIDEST}")
    address = torch.arange(2**k)
    columns, care, low = [], torch.ones(2**k, dtype=torch.bool), k
    for domain in read:
        low -= domain.bits
        values = domain.decode(address >> low & (2**domain.bits - 1))
        care &= domain.holds(values)
        columns.append(values)
    rows = torch.stack(columns, 1) if columns else torch.zeros(1, 0, dtype=torch.int64)
    contents = torch.zeros(2**k, table.n_outputs, dtype=torch.int64)
    answers = table(rows[care])  # refuses an input that no row holds, with that input
    contents[care] = out.encode(answers)
    kept = None if bool(care.all()) else care.numpy()
    return TableData(contents.numpy().astype(np.int64), (out.bits,) * table.n_outputs, kept)

"""Classifiers of one-bit tables that vote, as stream graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from lutetia.errors import fail
from lutetia.precompute.front.trace import argmax_node
from lutetia.precompute.ir.graph import Builder, Graph
from lutetia.precompute.ir.stream import Compare, Input, Lookup, Register, StreamEdge, Sum, Table, TableData
from lutetia.precompute.passes.dedupe import dedupe
from lutetia.precompute.passes.dontcare import dont_cares
from lutetia.precompute.tables.domains import Binary, UInt, domain_for


def votes_graph(model: Any) -> Graph:
    """Comparisons, tables, counts, argmax, each behind a register: of a `lutetia.models.Votes`."""
    _check(model, "Votes")
    cuts = np.broadcast_to(np.array(model.thresholds, dtype=np.int64), (model.n_inputs, len(model.thresholds)))
    return _graph(model, cuts, [(model.choice, model.weight)], ["votes"])


def gates_graph(model: Any) -> Graph:
    """The same of a `lutetia.models.Gates`, with its hidden layers; tables that are wires or constants are left out."""
    _check(model, "Gates")
    layers = model.layers()
    names = [*(f"hidden{number}" for number in range(len(layers) - 1)), "votes"]
    return dedupe(dont_cares(_graph(model, model.cuts().numpy(), layers, names)))


def _check(model: Any, kind: str) -> None:
    from lutetia import models

    if not isinstance(model, getattr(models, kind)):
        fail("model", model, f"a lutetia.models.{kind}")


def _graph(model: Any, cuts: np.ndarray, layers: list[tuple[Tensor, Tensor]], names: list[str]) -> Graph:
    """cuts [n_inputs, n_thresholds]; bit t · n_inputs + i is x_i > cuts[i, t]."""
    wires = [choice.detach().cpu().argmax(2).numpy() for choice, _ in layers]  # [n_tables, k] each
    alive = _alive(wires)
    builder = Builder()
    edge = StreamEdge((UInt(model.bits),) * model.n_inputs)
    node = builder.add(Input((), edge))
    used = alive[0]
    lanes = edge.carrying([Binary()] * len(used))
    constants = cuts[used % model.n_inputs, used // model.n_inputs].astype(np.int64)
    node = builder.add(Compare((node,), lanes, used % model.n_inputs, np.full(len(used), -1), constants, name="bits"))
    node = builder.add(Register((node,), lanes, name="bits"))
    for number, (_, weight) in enumerate(layers):
        rows = (weight.detach().cpu() >= 0).long().numpy()[alive[number + 1]]
        read = np.searchsorted(alive[number], wires[number][alive[number + 1]])
        node = _layer(builder, node, rows, read, names[number])
    classes = model.classes.cpu().numpy()
    order = np.argsort(classes, kind="stable")
    start = np.searchsorted(classes[order], np.arange(model.n_classes + 1)).astype(np.int64)
    counts = edge.carrying([domain_for(0, int(size)) for size in np.diff(start)])
    ones, zero = np.ones(model.n_tables, dtype=np.int64), np.zeros(model.n_classes, dtype=np.int64)
    node = builder.add(Sum((node,), counts, start, order.astype(np.int64), ones, zero, name="counts"))
    node = builder.add(Register((node,), counts, name="counts"))
    return dedupe(Graph(builder.nodes, argmax_node(builder, node)))


def _alive(wires: list[np.ndarray]) -> list[np.ndarray]:
    """The bits, and the tables of each layer, that something reads, rising; all of the last layer."""
    alive = [np.arange(len(wires[-1]))]
    for read in reversed(wires):
        alive.insert(0, np.unique(read[alive[0]]))
    return alive


def _layer(builder: Builder, source: int, rows: np.ndarray, read: np.ndarray, name: str) -> int:
    """A table for each row of `rows` [n_tables, 2**k], that reads the bits `read` [n_tables, k], and a register."""
    tables = tuple(TableData(own[:, None], (1,)) for own in rows)
    # Place 0 is the lowest address bit, and a lookup names the highest first.
    lookups = tuple(Lookup(at, tuple(own[::-1].tolist()), (at,)) for at, own in enumerate(read))
    edge = builder.edge(source).carrying([Binary()] * len(rows))
    node = builder.add(Table((source,), edge, tables, lookups, name=name))
    return builder.add(Register((node,), edge, name=name))

"""A classifier of tables that vote as a stream graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.precompute.front.trace import argmax_node
from lutetia.precompute.ir.graph import Builder, Graph
from lutetia.precompute.ir.stream import Compare, Input, Lookup, Register, StreamEdge, Sum, Table, TableData
from lutetia.precompute.passes.dedupe import dedupe
from lutetia.precompute.tables.domains import Binary, UInt, domain_for


def votes_graph(model: Any) -> Graph:
    """Comparisons, tables, counts, argmax, each behind a register: of a `lutetia.models.Votes`."""
    read = model.choice.detach().cpu().argmax(2).numpy()  # [n_tables, k]
    votes = (model.weight.detach().cpu() >= 0).long().numpy()
    used, place = np.unique(read, return_inverse=True)
    place = place.reshape(read.shape)
    builder = Builder()
    edge = StreamEdge((UInt(model.bits),) * model.n_inputs)
    node = builder.add(Input((), edge))
    constants = np.array(model.thresholds, dtype=np.int64)[used // model.n_inputs]
    lanes = edge.carrying([Binary()] * len(used))
    node = builder.add(Compare((node,), lanes, used % model.n_inputs, np.full(len(used), -1), constants, name="bits"))
    node = builder.add(Register((node,), lanes, name="bits"))
    tables = tuple(TableData(rows[:, None], (1,)) for rows in votes)
    # Place 0 is the lowest address bit, and a lookup names the highest first.
    lookups = tuple(Lookup(at, tuple(own[::-1].tolist()), (at,)) for at, own in enumerate(place))
    voted = edge.carrying([Binary()] * model.n_tables)
    node = builder.add(Table((node,), voted, tables, lookups, name="votes"))
    node = builder.add(Register((node,), voted, name="votes"))
    classes = model.classes.cpu().numpy()
    order = np.argsort(classes, kind="stable")
    start = np.searchsorted(classes[order], np.arange(model.n_classes + 1)).astype(np.int64)
    counts = edge.carrying([domain_for(0, int(size)) for size in np.diff(start)])
    ones, zero = np.ones(model.n_tables, dtype=np.int64), np.zeros(model.n_classes, dtype=np.int64)
    node = builder.add(Sum((node,), counts, start, order.astype(np.int64), ones, zero, name="counts"))
    node = builder.add(Register((node,), counts, name="counts"))
    return dedupe(Graph(builder.nodes, argmax_node(builder, node)))

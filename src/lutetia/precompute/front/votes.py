"""Classifiers of one-bit tables that vote, as stream graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from lutetia.errors import fail
from lutetia.precompute.front.translate import argmax_node
from lutetia.precompute.ir.graph import Builder, Graph
from lutetia.precompute.ir.stream import Compare, Input, Lookup, Register, StreamEdge, Sum, Table, TableData
from lutetia.precompute.passes.dedupe import dedupe
from lutetia.precompute.passes.dontcare import dont_cares
from lutetia.precompute.tables.domains import Binary, UInt, domain_for


def votes_graph(model: Any) -> Graph:
    """The stream graph of a `lutetia.models.Votes`: comparisons, tables, counts, argmax, each followed by a register."""
    _check(model, "Votes")
    cuts = np.broadcast_to(np.array(model.thresholds, dtype=np.int64), (model.n_inputs, len(model.thresholds)))
    return _graph(model, cuts, [(model.choice.detach().argmax(2), model.weight)], ["votes"])


def gates_graph(model: Any) -> Graph:
    """The stream graph of a `lutetia.models.Gates` with its hidden layers; tables that are wires or constants are left out."""
    _check(model, "Gates")
    layers = list(zip(model.wired(), (weight for _, weight in model.layers()), strict=True))
    names = [*(f"hidden{number}" for number in range(len(layers) - 1)), "votes"]
    return dedupe(dont_cares(_graph(model, model.cuts().cpu().numpy(), layers, names)))


def _check(model: object, kind: str) -> None:
    from lutetia import models

    if not isinstance(model, getattr(models, kind)):
        fail("model", model, f"a lutetia.models.{kind}")


def _graph(model: Any, cuts: np.ndarray, layers: list[tuple[Tensor, Tensor]], names: list[str]) -> Graph:
    """Of each layer the bits that tables read [n_tables, k] and their rows; cuts [n_inputs, n_thresholds]: bit t · n_inputs + i
    is x_i > cuts[i, t]."""
    wires = _wires(layers, cuts.size, getattr(model, "skip", False))
    needed = _needed(wires, cuts.size)
    builder = Builder()
    edge = StreamEdge((UInt(model.bits),) * model.n_inputs)
    node = builder.add(Input((), edge))
    held = needed[0]
    lanes = edge.carrying([Binary()] * len(held))
    constants = cuts[held % model.n_inputs, held // model.n_inputs].astype(np.int64)
    node = builder.add(Compare((node,), lanes, held % model.n_inputs, np.full(len(held), -1), constants, name="bits"))
    node = builder.add(Register((node,), lanes, name="bits"))
    first = cuts.size
    for number, (_, weight) in enumerate(layers):
        given = needed[number + 1]
        own = given[given >= first] - first
        rows = (weight.detach().cpu() >= 0).long().numpy()[own]
        read = [*(held_bit[None] for held_bit in given[given < first]), *wires[number][own]]
        node = _layer(builder, node, rows, [np.searchsorted(held, places) for places in read], names[number])
        held, first = given, first + len(weight)
    classes = model.classes.cpu().numpy()
    order = np.argsort(classes, kind="stable")
    start = np.searchsorted(classes[order], np.arange(model.n_classes + 1)).astype(np.int64)
    counts = edge.carrying([domain_for(0, int(size)) for size in np.diff(start)])
    ones, zero = np.ones(model.n_tables, dtype=np.int64), np.zeros(model.n_classes, dtype=np.int64)
    node = builder.add(Sum((node,), counts, start, order.astype(np.int64), ones, zero, name="counts"))
    node = builder.add(Register((node,), counts, name="counts"))
    return dedupe(Graph(builder.nodes, argmax_node(builder, node)))


def _wires(layers: list[tuple[Tensor, Tensor]], n_bits: int, skip: bool) -> list[np.ndarray]:
    """The bits that the tables of each layer read, [n_tables, k], numbered: the inputs first, then layer by layer."""
    firsts = np.cumsum([0, n_bits, *(len(weight) for _, weight in layers)])
    wires = [wired.cpu().numpy() for wired, _ in layers]
    return wires if skip else [own + firsts[number] for number, own in enumerate(wires)]


def _needed(wires: list[np.ndarray], n_bits: int) -> list[np.ndarray]:
    """The sorted bits that later layers read of the inputs and of each layer; all bits of the last layer."""
    ends = np.cumsum([n_bits, *map(len, wires)])
    needed = [np.arange(ends[-2], ends[-1])]
    for first, own in zip(ends[-2::-1], reversed(wires), strict=True):
        after = needed[0]
        needed.insert(0, np.union1d(after[after < first], own[after[after >= first] - first]))
    return needed


def _layer(builder: Builder, source: int, rows: np.ndarray, read: list[np.ndarray], name: str) -> int:
    """Bits that are passed on, then a table for each row of `rows` [n_tables, 2**k]; `read`, the bits each reads; a register."""
    passed = [np.arange(2)] * (len(read) - len(rows))
    tables = tuple(TableData(own[:, None], (1,)) for own in [*passed, *rows])
    # Place 0 is the lowest address bit, and a lookup names the highest first.
    lookups = tuple(Lookup(at, tuple(own[::-1].tolist()), (at,)) for at, own in enumerate(read))
    edge = builder.edge(source).carrying([Binary()] * len(read))
    node = builder.add(Table((source,), edge, tables, lookups, name=name))
    return builder.add(Register((node,), edge, name=name))

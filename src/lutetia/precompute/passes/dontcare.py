"""Don't-cares: addresses that cannot occur, or that did not.

Sound: a code outside its domain never occurs, nor does one that no row of the table before it holds; both follow from the graph
alone, channel by channel. Unsound, and only on request: an address that did not occur in given data. Either way the rows that do
not count are used at once, to drop address bits that no longer matter.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_tensor
from lutetia.precompute.front.support import reduce_lookups
from lutetia.precompute.ir.graph import Graph
from lutetia.precompute.ir.interpret import encode, trace_values
from lutetia.precompute.ir.stream import Input, Lookup, Pool, Register, StreamEdge, Table, Window, Wire
from lutetia.precompute.tables.domains import Domain

Reach: TypeAlias = list[np.ndarray | None]  # per channel, which codes may occur: bool [2**bits]; None: any
Seen: TypeAlias = dict[int, list[np.ndarray]]  # by the number of a table node, for each lookup the rows that are read
AT_ONCE = 4096  # samples whose values at every node are held together
WIDEST = 16  # maximum bits of a channel whose codes are examined one by one


def dont_cares(graph: Graph, unseen: Tensor | None = None, check: Tensor | None = None, labels: Tensor | None = None) -> Graph:
    """Mark the rows that do not count, and drop the address bits that no longer matter."""
    if unseen is None and (check is not None or labels is not None):
        raise ArgumentError("check and labels go with unseen=x, the data whose absent addresses are dropped")
    made = _with_care(graph, None)
    if unseen is None:
        return made
    changed = _with_care(made, _occurring(made, unseen))
    return changed.reported(**_report(graph, changed, unseen if check is None else check, labels))


def _occurring(graph: Graph, x: Tensor) -> Seen:
    """Which rows of their tables the lookups of each node read for x: bool [2**k] each."""
    seen = {
        number: [np.zeros(2 ** len(lookup.inputs), dtype=bool) for lookup in node.lookups]
        for number, node in enumerate(graph.nodes)
        if isinstance(node, Table)
    }
    for part in x.split(AT_ONCE):
        values = trace_values(graph, part)
        for number, masks in seen.items():
            node = graph.nodes[number]
            assert isinstance(node, Table)
            edge, given = graph.nodes[node.source].edge, values[node.source]
            codes = encode(edge, given.reshape(-1, given.shape[-1]))
            for lookup, mask in zip(node.lookups, masks, strict=True):
                mask[_addresses(lookup, edge, codes)] = True
    return seen


def _addresses(lookup: Lookup, edge: StreamEdge, codes: np.ndarray) -> np.ndarray:
    """The address that a lookup puts together for each sample, before it is flipped: int64 [n]."""
    address = np.zeros(len(codes), dtype=np.int64)
    for channel, bit in zip(*_places(lookup, edge), strict=True):
        address = (address << 1) | (codes[:, channel] >> bit & 1)
    return address


def _places(lookup: Lookup, edge: StreamEdge) -> tuple[np.ndarray, np.ndarray]:
    """The channel of each address bit, and its place there."""
    at = np.array(lookup.inputs, dtype=np.int64)
    channels = np.searchsorted(edge.offsets, at, side="right") - 1
    return channels, at - edge.offsets[channels]


def _with_care(graph: Graph, seen: Seen | None) -> Graph:
    reaches: list[Reach] = []
    nodes = []
    for number, node in enumerate(graph.nodes):
        before = [reach for source in node.sources for reach in reaches[source]]
        if isinstance(node, Table):
            edge = graph.nodes[node.source].edge
            node, reach = _table(node, edge, before, None if seen is None else seen[number])
        else:
            reach = _reach(node, before)
        nodes.append(node)
        reaches.append(reach)
    return graph.replaced(nodes, graph.output)


def reachable_rows(graph: Graph) -> dict[tuple[Any, ...], np.ndarray]:
    """For each table, by its key, the rows that some input may read: bool [2**k].

    Computed from the domains and the rows alone, whatever earlier passes marked: addresses dropped as unseen in data count here.
    """
    reaches: list[Reach] = []
    found: dict[tuple[Any, ...], np.ndarray] = {}
    for node in graph.nodes:
        before = [reach for source in node.sources for reach in reaches[source]]
        if not isinstance(node, Table):
            reaches.append(_reach(node, before))
            continue
        edge = graph.nodes[node.source].edge
        own: list[Any] = [None] * len(node.tables)
        for lookup in node.lookups:
            mask = _possible(lookup, edge, before, None)
            mask = np.ones(len(node.tables[lookup.table].contents), dtype=bool) if mask is None else mask
            own[lookup.table] = mask if own[lookup.table] is None else own[lookup.table] | mask
        for table, mask in zip(node.tables, own, strict=True):
            rows = np.zeros(len(table.contents), dtype=bool) if mask is None else mask
            found[table.key] = rows | found[table.key] if table.key in found else rows
        marked = [replace(table, care=mask) for table, mask in zip(node.tables, own, strict=True)]
        reaches.append(_table_reach(replace(node, tables=tuple(marked))))
    return found


def _reach(node: Any, before: Reach) -> Reach:
    """Which codes a node may give."""
    if isinstance(node, Wire):
        return [before[place] for place in node.index]
    if isinstance(node, Register):
        return before
    if isinstance(node, Window):
        found = [
            _with(reach, domain, fill)
            for reach, domain, fill in zip(before, node.edge.domains[:: node.taps], node.fill, strict=True)
        ]
        padded = found if node.pads else before
        return [reach for reach in padded for _ in range(node.taps)]
    if isinstance(node, Pool):
        return before[:: node.taps]
    if isinstance(node, Input):
        return [_codes(domain) for domain in node.edge.domains]
    return [_codes(domain) for domain in node.edge.domains]


def _codes(domain: Domain) -> np.ndarray | None:
    if domain.bits > WIDEST or domain.is_full:
        return None
    found = np.zeros(2**domain.bits, dtype=bool)
    found[domain.encode(domain.values()).numpy()] = True
    return found


def _with(reach: np.ndarray | None, domain: Domain, fill: int) -> np.ndarray | None:
    if reach is None:
        return None
    found = reach.copy()
    found[int(domain.encode(torch.tensor(fill)))] = True
    return found


def _table(node: Table, edge: StreamEdge, before: Reach, occurring: list[np.ndarray] | None) -> tuple[Table, Reach]:
    possible: list[np.ndarray | None] = [np.zeros(len(table.contents), dtype=bool) for table in node.tables]
    for number, lookup in enumerate(node.lookups):
        known = possible[lookup.table]
        if known is None:
            continue
        mask = _possible(lookup, edge, before, None if occurring is None else occurring[number])
        possible[lookup.table] = None if mask is None else known | mask
    tables = []
    for table, mask in zip(node.tables, possible, strict=True):
        care = mask if table.care is None else table.care if mask is None else table.care & mask
        tables.append(replace(table, care=care, form=None if care is not table.care else table.form))
    reduced, lookups = reduce_lookups(tables, list(node.lookups))
    made = replace(node, tables=tuple(reduced), lookups=tuple(lookups))
    return made, _table_reach(made)


def _possible(lookup: Lookup, edge: StreamEdge, before: Reach, occurring: np.ndarray | None) -> np.ndarray | None:
    """The rows of its table that a lookup may read, of those that occur: bool [2**k], or None for all."""
    k = len(lookup.inputs)
    channels, bits = _places(lookup, edge)
    mask = None
    for channel in dict.fromkeys(channels.tolist()):
        reach = before[channel]
        if reach is None:
            continue
        own = np.flatnonzero(channels == channel)
        allowed = np.zeros(2 ** len(own), dtype=bool)
        allowed[_gather(np.flatnonzero(reach), bits[own])] = True
        if allowed.all():
            continue
        pattern = _pattern(k, tuple(own.tolist()))
        mask = allowed[pattern] if mask is None else mask & allowed[pattern]
    if occurring is not None:
        mask = occurring if mask is None else mask & occurring
    if mask is None:
        return None
    return mask[np.arange(2**k) ^ lookup.flip]


@lru_cache(maxsize=256)
def _pattern(k: int, places: tuple[int, ...]) -> np.ndarray:
    """The bits at some places of every address of k bits (place 0 is the most significant one)."""
    return _gather(np.arange(2**k), k - 1 - np.array(places))


def _gather(numbers: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Chosen bits of numbers, the first one most significant."""
    found = np.zeros(len(numbers), dtype=np.int64)
    for bit in bits:
        found = (found << 1) | (numbers >> bit & 1)
    return found


def _table_reach(node: Table) -> Reach:
    found: Reach = [None] * node.edge.channels
    for lookup in node.lookups:
        table = node.tables[lookup.table]
        rows = table.contents if table.care is None else table.contents[table.care]
        for column, output in enumerate(lookup.outputs):
            if table.bits[column] <= WIDEST:
                reach = np.zeros(2 ** table.bits[column], dtype=bool)
                reach[rows[:, column]] = True
                found[output] = None if reach.all() else reach
    return found


def _report(before: Graph, after: Graph, x: Tensor, labels: Tensor | None) -> dict[str, Any]:
    """What dropping unseen addresses cost on some data."""
    first, second = before(x), after(x)
    same = float((first == second).flatten(1).all(1).double().mean())
    report: dict[str, Any] = {"pass": "dont_cares", "unseen": True, "samples": len(x), "unchanged": same}
    if labels is not None:
        check_tensor("labels", labels, [len(x)])
        for name, answers in (("accuracy_before", first), ("accuracy_after", second)):
            picked = answers.flatten(1)
            chosen = picked[:, 0] if picked.shape[1] == 1 else picked.argmax(1)
            report[name] = float((chosen == labels).double().mean())
        report["accuracy_cost"] = report["accuracy_before"] - report["accuracy_after"]
    return report

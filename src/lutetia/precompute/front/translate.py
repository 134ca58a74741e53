"""Tables that only translate, ±1 into numbers that can be added and compared; and the argmax, which compares them."""

from __future__ import annotations

import numpy as np

from lutetia.precompute.ir.graph import Builder
from lutetia.precompute.ir.stream import Argmax, Lookup, Table, TableData
from lutetia.precompute.tables.domains import Domain, Ternary, domain_for


def as_numbers(builder: Builder, node: int, domain: Domain) -> int:
    """A node that carries the ±1 channels of another in a domain of plain numbers; the other channels as they were."""
    edge = builder.edge(node)
    tables: dict[Domain, int] = {}
    data: list[TableData] = []
    lookups, domains = [], []
    for channel, before in enumerate(edge.domains):
        if before not in tables:
            after = domain if before.step != 1 else before
            values = before.decode(_codes(before))
            contents = after.encode(values).numpy()[:, None].astype(np.int64)
            tables[before] = len(data)
            data.append(TableData(contents, (after.bits,)))
        lookups.append(Lookup(tables[before], tuple(edge.bits_of(channel)), (channel,)))
        domains.append(domain if before.step != 1 else before)
    made = edge.carrying(domains, edge.scale)
    return builder.add(Table((node,), made, tuple(data), tuple(lookups), name="translate"))


def argmax_node(builder: Builder, node: int, name: str = "argmax") -> int:
    """An argmax after a node."""
    if any(domain.step != 1 for domain in builder.edge(node).domains):
        node = as_numbers(builder, node, Ternary())
    edge = builder.edge(node)
    made = edge.carrying([domain_for(0, edge.channels - 1)])
    return builder.add(Argmax((node,), made, name=name))


def _codes(domain: Domain):  # type: ignore[no-untyped-def]
    import torch

    return torch.arange(2**domain.bits)

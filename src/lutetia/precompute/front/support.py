"""Which address bits a table really needs, given the rows that count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lutetia.precompute.ir.stream import Lookup, TableData


def reduce_table(table: TableData) -> tuple[TableData, tuple[int, ...]]:
    """The table without the address bits it does not depend on, and the bits that remain (0 is the most significant one). Rows
    that do not count may have any answer, so a bit is dropped if no two rows that count differ only in that bit and in their
    answer.
    """
    contents, care = table.contents, table.care
    if care is not None and care.all():
        care = None
    kept = list(range(table.k))
    for bit in reversed(range(table.k)):
        merged = _without(contents, care, bit, len(kept))
        if merged is not None:
            contents, care = merged
            del kept[bit]
    if care is not None and care.all():
        care = None
    if len(kept) == table.k and care is table.care:
        return table, tuple(kept)
    return replace(table, contents=contents, care=care, form=None), tuple(kept)


def _without(contents: np.ndarray, care: np.ndarray | None, bit: int, k: int) -> tuple[np.ndarray, np.ndarray | None] | None:
    """The rows with one address bit removed, or None if they depend on it."""
    halves = contents.reshape(2**bit, 2, 2 ** (k - 1 - bit), -1)
    zero, one = halves[:, 0], halves[:, 1]
    if care is None:
        return (zero.reshape(-1, contents.shape[1]), None) if np.array_equal(zero, one) else None
    counts = care.reshape(2**bit, 2, 2 ** (k - 1 - bit))
    first, second = counts[:, 0], counts[:, 1]
    if ((zero != one).any(-1) & first & second).any():
        return None
    merged = np.where(first[..., None], zero, one)
    return merged.reshape(-1, contents.shape[1]), (first | second).reshape(-1)


def reduce_lookups(tables: list[TableData], lookups: list[Lookup]) -> tuple[list[TableData], list[Lookup]]:
    """Reduce every table, and remove the dropped bits from the lookups that read it."""
    reduced = [reduce_table(table) for table in tables]
    made = []
    for lookup in lookups:
        before, (_, kept) = tables[lookup.table], reduced[lookup.table]
        if len(kept) != before.k:
            flip = 0
            for place in kept:
                flip = (flip << 1) | (lookup.flip >> (before.k - 1 - place) & 1)
            lookup = replace(lookup, inputs=tuple(lookup.inputs[place] for place in kept), flip=flip)
        made.append(lookup)
    return [table for table, _ in reduced], made

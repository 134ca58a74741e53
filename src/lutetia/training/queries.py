"""The queries of a ranking: rows with the same cell in one column, which are ordered among themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lutetia.errors import DataError
from lutetia.training.columns import is_missing, row_name, text_of
from lutetia.training.formats import Array
from lutetia.training.splits import Split


def check_query(path: Path, columns: Collection[str], task: str | None, query: str | None) -> None:
    """Refuse a ranking without a column of queries, and queries without a ranking."""
    if task == "ranking" and query is None:
        raise DataError("a ranking orders the rows of queries: --set data.query=NAME names the column of queries")
    if task != "ranking" and query is not None:
        raise DataError(f'data.query is {query!r}, expected data.task = "ranking" too')
    if query is not None and query not in columns:
        known = ", ".join([*columns][:20]) or "none: it holds no columns"
        raise DataError(f"{path} has no column {query!r}, expected data.query to be one of {known}")


def split_queries(split: Split, query: Array, cells: Sequence[Any], by: str | None) -> Split:
    """How rows are parted where those of a query, whose numbers are `query` [n], must stay together: by query, by the latest time
    of each, or by groups of queries. `cells` name the queries and `by` the column of the groups in messages."""
    if split.key is None:
        return Split("groups", query)
    last = np.full(query.max() + 1, split.key.min())
    np.maximum.at(last, query, split.key)
    strange = np.flatnonzero(last[query] != split.key)
    if split.kind == "groups" and len(strange):
        own = text_of(cells[strange[0]])
        raise DataError(f"data.split_by is {by!r}, which differs within the query {own!r}, expected whole queries in each group")
    return Split(split.kind, last[query])


def query_numbers(values: Sequence[Any], where: str, lines: Sequence[int] | None = None) -> Array:
    """The number of the query of each row, int64 [n], from the cells of a column."""
    empty = next((row for row, value in enumerate(values) if is_missing(value)), None)
    if empty is not None:
        raise DataError(f"{where} has no value in {row_name(empty, lines)}, expected the query of each row")
    return np.unique([text_of(value) for value in values], return_inverse=True)[1].astype(np.int64)

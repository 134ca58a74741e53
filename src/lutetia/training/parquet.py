"""Parquet files as columns of cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lutetia.errors import DataError, require
from lutetia.training.columns import Column
from lutetia.training.formats import check_expansion

CELL = 8  # bytes that a cell takes in memory at least


def read_parquet(path: Path, check_names: Callable[[Path, Sequence[str]], None]) -> dict[str, Column]:
    """The columns of a parquet file. A few bytes of it may encode a billion rows, so its footer is read first."""
    parquet: Any = require("pyarrow.parquet", "reading parquet files", "pyarrow")
    types: Any = require("pyarrow.types", "reading parquet files", "pyarrow")
    with parquet.ParquetFile(path) as file:
        schema, groups = file.schema_arrow, [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    check_names(path, schema.names)
    for column in schema:
        if types.is_nested(column.type) or (types.is_fixed_size_binary(column.type) and not types.is_decimal(column.type)):
            raise DataError(f"{path}, column {column.name!r} holds {column.type}, expected numbers or text")
    cells = sum(group.num_rows for group in groups) * len(schema)
    check_expansion(path, max(cells * CELL, sum(group.total_byte_size for group in groups)))
    texts = [each.name for each in schema if types.is_string(each.type) or types.is_binary(each.type)]
    with parquet.ParquetFile(path, read_dictionary=texts) as file:  # so that a long text that comes often is there once
        table = file.read()
    columns = {}
    for column in schema:
        own = table[column.name]
        if types.is_timestamp(column.type):  # Python has no nanoseconds, and may not know the zone
            own = own.cast(
                require("pyarrow", "reading parquet files").timestamp("us", "UTC" if column.type.tz else None), safe=False
            )
        columns[column.name] = Column(_cells_of(own))
    return columns


def _cells_of(column: Any) -> list[Any]:
    """The cells of a column of pyarrow; each distinct text is one object."""
    cells: list[Any] = []
    for chunk in column.chunks:
        if hasattr(chunk, "dictionary"):
            words = chunk.dictionary.to_pylist()
            cells += [None if index is None else words[index] for index in chunk.indices.to_pylist()]
        else:
            cells += chunk.to_pylist()
    return cells

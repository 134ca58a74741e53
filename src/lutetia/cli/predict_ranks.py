"""`lutetia predict` with a ranking: the rows of each query by their scores, the best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lutetia._shared.numbers import short_number
from lutetia._shared.rankings import queries_of, ranks_in
from lutetia.cli.inputs import NamedInputs, read_usable
from lutetia.cli.predict import SHOWN, STDOUT, PredictRequest, input_warnings, kept_columns, more_text, write_rows
from lutetia.cli.show import console, one_line, print_warning
from lutetia.models import Tabular, as_floats
from lutetia.training import query_numbers

Array = np.ndarray[Any, Any]


def predict_ranks(model: Tabular, request: PredictRequest, show: bool) -> dict[str, Any]:
    """Scores, and ranks within queries; on a screen sorted by them. Files without a column of queries hold one query together."""
    (files, _), out, column = read_usable(model, request.given), request.out, model.metadata.get("query")
    scores = np.concatenate([model.numbers(as_floats(model, file.x)).numpy() for file in files])
    texts, numbers = _queries(files, column)
    ranks = ranks_in(scores, queries_of(numbers))
    names = [name for file in files for name in file.names]
    rows = zip(names, texts, scores.tolist(), ranks.tolist(), strict=True)
    listed = [{"input": name, "query": query, "score": value, "rank": rank} for name, query, value, rank in rows]
    warnings = input_warnings(model, files)
    if out is not None:
        kept = kept_columns(files, None) if request.keep else None
        before = [[each["input"], *([] if column is None else [each["query"] or ""])] for each in listed]
        header = ["input", *([] if column is None else [column])] if kept is None else kept.header
        cells = [
            [*own, repr(each["score"]), str(each["rank"])]
            for own, each in zip(before if kept is None else kept.rows, listed, strict=True)
        ]
        write_rows(out, [*header, "score", "rank"], cells)
    if show:
        for warning in warnings:
            print_warning(warning)
        if out != STDOUT:
            _show(listed, np.lexsort((ranks, numbers)), column, more_text(len(listed), out))
    return {"kind": model.kind, "target": model.metadata.get("target"), "query": column, "predictions": listed,
            "warnings": warnings, "skipped": []}  # fmt: skip


def _queries(files: Sequence[NamedInputs], column: str | None) -> tuple[list[str | None], Array]:
    """The query of each row as its file writes it, None where there is no such column; and its number [n]."""
    texts: list[str | None] = []
    for file in files:
        cells = None if column is None or file.columns is None else file.columns.get(column)
        where = f"{file.names[0].removesuffix(' row 0')}, column {column!r}"
        if cells is not None:
            query_numbers(cells, where)  # an error where one is missing
        texts += [None] * len(file.names) if cells is None else map(str, cells)
    order = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return texts, np.array([order[text] for text in texts], np.int64)


def _show(listed: Sequence[dict[str, Any]], order: Array, column: str | None, more: str) -> None:
    """The rows of each query, the best first."""
    screen, last = console(), object()
    for each in (listed[row] for row in order[:SHOWN]):
        if each["query"] is not None and each["query"] != last:
            screen.print(one_line(f"{column} {each['query']}"), soft_wrap=True, markup=False)
        last = each["query"]
        told = f"{each['rank']:>4}. {one_line(each['input'])}  score {short_number(each['score'], 6)}"
        screen.print(told, soft_wrap=True, markup=False)
    if len(listed) > SHOWN:
        screen.print(more, soft_wrap=True, markup=False)

"""`lutetia import`: a fitted model of trees as a folder that every other command takes."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lutetia.cli.guard import UsageError, did_you_mean
from lutetia.cli.inputs import read_inputs
from lutetia.cli.show import console, one_line
from lutetia.cli.values import NO_VALUE
from lutetia.errors import ArgumentError, DataError
from lutetia.files import check_writable
from lutetia.integrations.trees import Ensemble, Imported, read_ensemble, to_tabular
from lutetia.models import TENSORS_FILE, best_class, save
from lutetia.training import column_names, describe_columns, is_table, read_cells, read_table_file

Array = np.ndarray[Any, Any]


class ImportRequest(NamedTuple):
    """The options of the command."""

    given: Path
    out: Path | None
    data: Path | None
    target: str | None
    classes: str | None
    missing: str


def run_import(request: ImportRequest) -> dict[str, Any]:
    """Write the model of tables; returns what `--json` prints."""
    if request.missing not in NO_VALUE:
        raise UsageError(f"--missing is {request.missing!r}: {did_you_mean(request.missing, NO_VALUE)}")
    out = Path("runs") / request.given.name.partition(".")[0] if request.out is None else request.out
    if (out / TENSORS_FILE).exists():
        raise ArgumentError(f"--out is {out}, which holds another model, expected a new folder")
    check_writable(out)
    ensemble = read_ensemble(request.given)
    classes = None if request.classes is None else _names(request.classes)
    names = None if request.data is None else _columns(request, ensemble)
    known: dict[str, Any] = {}
    if request.data is not None:
        plain = to_tabular(ensemble, names, classes, missing="none")
        rows = _rows(request.data, plain)
        known = describe_columns(rows, rows)
        if classes is None and ensemble.classes is None and not plain.model.is_regression:
            classes = _labels(request, plain, rows)
        if request.missing == "seen":
            whole = frozenset(range(ensemble.n_columns)) - set(known["empty"])
            ensemble = replace(ensemble, whole=ensemble.whole | whole if ensemble.library == "XGBoost" else ensemble.whole)
    made = to_tabular(ensemble, names, classes, missing=request.missing)
    made.model.metadata |= known | ({} if request.target is None else {"target": request.target})
    save(made.model, out)
    return _told(request, ensemble, made, out, classes)


def _names(text: str) -> list[str]:
    """Names with commas between them, as in a row of a CSV file."""
    (names,) = csv.reader([" ".join(text.splitlines())], skipinitialspace=True)
    return names


def _columns(request: ImportRequest, ensemble: Ensemble) -> list[str] | None:
    """The names of the columns where the model has none: those of the data, without the target."""
    assert request.data is not None
    if ensemble.names is not None:
        return None
    if is_table(request.data) and ".csv" not in request.data.suffixes:
        names = list(read_table_file(request.data).columns)
    else:
        cells = read_cells(request.data)
        if cells.header is None:
            return None
        names = column_names(cells.header)
    if request.target is not None:
        if request.target not in names:
            raise DataError(f"{request.data} has no column {request.target!r}: {did_you_mean(request.target, names)}")
        names.remove(request.target)
    if len(names) == ensemble.n_columns + 1:
        names = names[:-1]
    if len(names) != ensemble.n_columns:
        raise DataError(
            f"{request.data} has {len(names)} columns besides the target, expected {ensemble.n_columns}, those of the model"
        )
    return names


def _rows(data: Path, made: Imported) -> Array:
    """The columns of the model in a file, float64 [n, columns]."""
    (given,) = read_inputs(made.model, [str(data)])
    return given.x.double().numpy()


def _labels(request: ImportRequest, made: Imported, rows: Array) -> list[str] | None:
    """The names of classes that the model has numbers for: of each the label that most of its rows have, if no two share one."""
    if request.data is None or request.target is None or not is_table(request.data):
        return None
    labels = read_table_file(request.data).columns.get(request.target)
    if labels is None or len(labels) != len(rows):
        return None
    answers = best_class(made.model, made.model(torch.from_numpy(rows))).tolist()
    found = []
    for number in range(made.model.config.n_classes):
        own = [str(label) for label, answer in zip(labels, answers, strict=True) if answer == number and label is not None]
        label, count = Counter(own).most_common(1)[0] if own else ("", 0)
        if count <= len(own) / 2:
            return None
        found.append(label)
    return found if len({*found}) == len({str(label) for label in labels if label is not None}) == len(found) else None


def _told(request: ImportRequest, ensemble: Ensemble, made: Imported, out: Path, classes: list[str] | None) -> dict[str, Any]:
    config, known = made.model.config, made.model.metadata
    names = known["features"]
    whole = {"seen": ensemble.whole, "exact": (), "none": range(ensemble.n_columns)}[request.missing]
    return {
        "out": str(out),
        "library": ensemble.library,
        "task": known["task"],
        "loss": config.loss if made.model.is_regression else None,
        "columns": ensemble.n_columns,
        "outputs": list(known.get("classes", ())) or [request.target or "a number"],
        "classes_from": str(request.data) if request.classes is None and classes is not None else None,
        "trees": made.n_trees,
        "leaves": made.n_leaves,
        "tables": config.n_tables,
        "comparisons": config.n_anchors,
        "rows": config.n_tables << config.n_anchors,
        "bytes": 4 * sum(each.numel() for each in made.model.parameters()),
        "without_missing": [names[column] for column in sorted(whole)],
    }


def show_import(told: dict[str, Any]) -> None:
    """What became of the trees."""
    screen = console()
    what = {"classification": "classes", "regression": "a number", "ranking": "scores of rankings"}[told["task"]]
    of = f" ({', '.join(one_line(name) for name in told['outputs'][:6])})" if told["task"] == "classification" else ""
    screen.print(
        f"model     {told['library']}, {told['trees']:,} trees of {told['columns']:,} columns, for {what}{of}", soft_wrap=True
    )
    if told["classes_from"]:
        said = f"named by {told['classes_from']}: each by the label that most of its rows have there (--classes)"
        screen.print(f"classes   {one_line(said)}", soft_wrap=True)
    rows = f"{told['tables']:,} tables of {2 ** told['comparisons']:,} rows, {told['comparisons']} comparisons each"
    screen.print(f"tables    {told['leaves']:,} leaves in {rows}: {told['bytes'] / 2**20:.2f} MB", soft_wrap=True)
    count = len(told["without_missing"])
    if count:
        columns = "all columns are" if count == told["columns"] else f"{count:,} columns are"
        screen.print(f"missing   {columns} taken to have no missing value: one there counts as the least number", soft_wrap=True)
    screen.print(f"saved     {told['out']}", soft_wrap=True)

"""A run on a table of data with several targets: `data.target` is a list. Each target is read, checked and measured as if it were
the only one, all have the same columns and rows; one model is fitted to all."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from lutetia.errors import ArgumentError, DataError
from lutetia.training.boosting import Each
from lutetia.training.data import Data, Names, Samples, fingerprint, numbers_among
from lutetia.training.folder import RunFolder
from lutetia.training.table_checks import check_fit
from lutetia.training.table_files import (
    LearningTable,
    TableFile,
    find_target,
    make_table,
    read_table_file,
    task_of,
    with_targets,
)
from lutetia.training.table_fit import table_shape
from lutetia.training.table_measure import measure
from lutetia.training.table_parts import hold_out, learning_rows, part_rows, part_table
from lutetia.training.table_run import MODEL, TableConfig, guess_config, held_out, leave, metadata_of
from lutetia.training.tabular import TabularRows
from lutetia.training.target_column import make_target
from lutetia.training.target_fit import fit_targets, target_bounds
from lutetia.training.units import find_unit

NONE: Mapping[str, Sequence[str]] = MappingProxyType({})


class OpenedTarget(NamedTuple):
    """One of several targets: its table, and the rows in the splits, the same for all."""

    name: str
    table: LearningTable
    data: Data


def targets_of(config: TableConfig) -> list[str]:
    """The names of several targets; none of a run on one."""
    return list(config.data.target) if isinstance(config.data.target, list) else []


def of_target(config: TableConfig, name: str) -> TableConfig:
    """The config as if one of its targets were the only one: the others are no inputs."""
    others = [each for each in targets_of(config) if each != name]
    return replace(config, data=replace(config.data, target=name, leave_out=[*config.data.leave_out, *others]))


def _check(config: TableConfig) -> list[str]:
    """The targets, or an error where runs on several have no such setting."""
    names, data = targets_of(config), config.data
    _check_names(names)
    given = {
        "data.window": data.window,
        "data.query": data.query,
        "fit.monotone": {name: sign for name, sign in config.fit.monotone.items() if sign},
        "fit.interactions": config.fit.interactions,
        'data.task="ranking"': data.task == "ranking",
    }
    if wrong := [key for key, value in given.items() if value]:
        raise DataError(f"{wrong[0]} is for one target, and data.target is {names}: train a model for each")
    return names


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise DataError(f"data.target is {[*names]}, expected each column once")


def _check_kinds(path: Path, kinds: Mapping[str, str]) -> None:
    """Refuse targets of which some are classes and some numbers."""
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{name!r} a {kind}" for name, kind in kinds.items())
        raise DataError(
            f"{path}: the targets are of different kinds, {told}: --task says which if all can be, or train a model for each"
        )


def open_targets(
    config: TableConfig, folder: Path, classes: Mapping[str, Sequence[str]] = NONE, file: TableFile | None = None
) -> list[OpenedTarget]:
    """The targets of a config; `classes` are those of models of some targets, in their order. A `file` that was read is not read
    again."""
    path, wanted = folder / config.data.path, config.data
    file = read_table_file(path, wanted.images, wanted.skip_unusable) if file is None else file
    if file.x is not None:
        raise DataError(
            f"{path} holds arrays or images, which have one target, expected columns with data.target={wanted.target}"
        )
    names = [find_target(file, name) for name in _check(config)]
    if wanted.skip_unusable:
        file = with_targets(file, [*names, *wanted.reading.rows.names.values()], wanted.missing)
    first = of_target(replace(config, data=replace(wanted, target=names)), names[0]).data
    table = make_table(file, names[0], wanted.task, first.reading)
    if table.texts:
        own = ", ".join(repr(each.name) for each in table.texts)
        raise DataError(
            f"{path}: {own} is read as text, whose words are learned for one target: leave it out, or train a model for each"
        )
    left_out = {name: why for name, why in table.left_out.items() if name not in names}
    tables = []
    for name in names:
        y, found = make_target(file.columns[name], wanted.task, f"{path}, column {name!r}", file.lines)
        made = replace(table, y=y, classes=found, left_out=left_out, target_unit=None if found else find_unit(file.columns[name]))
        if found and name in classes:
            made = replace(made, y=numbers_among(found, classes[name], path)[y], classes=list(classes[name]))
        tables.append(made)
    _check_kinds(path, {name: task_of(each) for name, each in zip(names, tables, strict=True)})
    train, test = part_rows(tables, wanted.test, path)
    opened = []
    for name, made in zip(names, tables, strict=True):
        parts = part_table(made, wanted.test, path, (train, test))
        data = Data(parts, fingerprint([made.x, made.y]), Names(made.classes, made.features), folder)
        opened.append(OpenedTarget(name, made, data))
    return opened


def guess_targets(path: Path, targets: Sequence[str], task: str | None, file: TableFile, **asked: Any) -> TableConfig:
    """The config for a file with several targets: that for the first of them, if the others are no inputs."""
    names = [find_target(file, target) for target in targets]
    _check_names(names)
    if asked.get("skip"):
        file = with_targets(file, names)
    columns = {name: cells for name, cells in file.columns.items() if name not in names[1:]}
    if len(columns) < 2:
        raise DataError(f"{path} has no column to learn from besides {', '.join(map(repr, names))}")
    config, table = guess_config(path, names[0], task, file=replace(file, columns=columns), **asked)
    if task is None:
        found = {name: make_target(file.columns[name], None, f"{path}, column {name!r}", file.lines)[1] for name in names[1:]}
        others = {name: "classification" if classes else "regression" for name, classes in found.items()}
        _check_kinds(path, {names[0]: task_of(table), **others})
    data = replace(config.data, target=names, text=None if not table.texts else config.data.text)
    return replace(config, data=data)


def joined_rows(opened: Sequence[OpenedTarget], split: str) -> TabularRows | None:
    """The rows of a split with all targets, y [n, targets]; None where there is no such split."""
    parts = [each.data.splits.get(split) for each in opened]
    if not isinstance(parts[0], Samples):
        return None
    rows = learning_rows(parts[0])
    return replace(rows, y=np.stack([part.y for part in parts if isinstance(part, Samples)], 1))


def train_targets(
    config: TableConfig, folder: Path, out: Path, opened: Sequence[OpenedTarget], *, again: bool = False, each: Each | None = None
) -> dict[str, Any]:
    """Fit what a config with several targets describes, and write it to `out`, as `train_table` does; returns the summary."""
    with RunFolder(out).held(again):
        return _train(config, folder, out, opened, each)


def check_targets(config: TableConfig, opened: Sequence[OpenedTarget]) -> None:
    """Refuse settings that do not fit a target."""
    for own in opened:
        check_fit(of_target(config, own.name), own.table)


def _train(config: TableConfig, folder: Path, out: Path, opened: Sequence[OpenedTarget], each: Each | None) -> dict[str, Any]:
    check_targets(config, opened)
    begun, table = time.perf_counter(), opened[0].table
    rows, test = joined_rows(opened, "train"), joined_rows(opened, "test")
    assert rows is not None
    settings = config.boosting()
    own, held = (rows, None) if config.fit.patience is None else hold_out(rows, config.data.path)
    outputs = tuple(max(1, len(each.table.classes)) for each in opened)
    try:
        model, fitted = fit_targets(own, table_shape(config, table), outputs, settings, valid=held, each=each)
    except ArgumentError as error:
        raise DataError(f"{config.data.path}: {error}") from error
    common = metadata_of(table, rows, of_target(config, opened[0].name))
    for key in ("target", "classes", "target_unit"):
        common.pop(key, None)
    model.metadata = {**common, "targets": [_known(target) for target in opened]}
    if test is not None:
        bounds = zip(model.metadata["targets"], target_bounds(model, test), strict=True)
        model.metadata["targets"] = [{**known, **own} for known, own in bounds]
    summary: dict[str, Any] = {
        "task": task_of(table),
        "out": str(out),
        "checkpoint": str(out / MODEL),
        "rows": {name: len(part.y) for name, part in opened[0].data.splits.items() if isinstance(part, Samples)},
        "types": [{"column": name, "type": kind} for name, kind in table.types],
        "left_out": table.left_out,
        "skipped": table.skipped,
        **held_out(config, table),
        "tables": len(fitted.anchors),
        "balanced": config.fit.balanced,
        **({} if table.classes else {"fit_loss": settings.loss, "quantile": config.fit.quantile}),
        "weights": sum(each.numel() for each in model.parameters()),
        "seconds": round(time.perf_counter() - begun, 3),
    }
    temperatures = np.ravel(fitted.temperature)
    summary["targets"] = [
        {
            "target": target.name,
            "tables": part.config.n_tables,
            "temperature": float(temperatures[model.slices[number].start]) if len(temperatures) > 1 else 1.0,
            **{name: _measured(part, split, config) for name, split in target.data.splits.items() if isinstance(split, Samples)},
        }
        for number, (target, part) in enumerate(zip(opened, model.all_parts, strict=True))
    ]
    leave(config, folder, out, model, summary)
    return summary


def _known(target: OpenedTarget) -> dict[str, Any]:
    """What metadata says of a target alone."""
    own: dict[str, Any] = {"target": target.name}
    if target.table.classes:
        own["classes"] = target.table.classes
    if target.table.target_unit is not None:
        own["target_unit"] = target.table.target_unit
    return own


def _measured(part: Any, split: Samples, config: TableConfig) -> dict[str, Any]:
    found = measure(part, split.x, split.y, split.weight)
    found |= {} if split.weight is None else {"weighted_by": config.data.weight}
    if classes := part.metadata.get("classes"):
        counts = np.bincount(split.y, split.weight, len(classes))
        found |= {"most_frequent": classes[counts.argmax()], "its_share": float(counts.max() / counts.sum())}
    return found

"""A run on a table of data: the config that is guessed from a file or edited by hand, the fit, and the files of its folder.

config.toml        what was guessed, to be edited: `lutetia train FOLDER/config.toml` fits again
checkpoints/best   the model
summary.json       what `lutetia train --json` prints
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lutetia import toml
from lutetia._shared.folders import MANIFEST
from lutetia._shared.losses import LOSSES, RANKING
from lutetia.errors import DataError
from lutetia.files import write_atomically
from lutetia.models import LONGEST_WINDOW as LONGEST
from lutetia.models import SHORTEST_WINDOW as SHORTEST
from lutetia.models import UNKNOWN, UNUSUAL, SignalShape, Tabular, Targets, TextColumn, save, text_columns
from lutetia.training.boosting import Boosting, Each
from lutetia.training.columns import identifies_rows, missing_words, numbers_rows
from lutetia.training.data import Data, Names, Samples, fingerprint, numbers_among
from lutetia.training.folder import RunFolder
from lutetia.training.forecasts import choose_base, forecast_table, naive_errors
from lutetia.training.images import ImageSettings, guess_images, has_colours_last, labelled_images
from lutetia.training.intervals import interval_bounds
from lutetia.training.patches import N_COUNTS, PatchTrial, can_have_patches
from lutetia.training.ranges import describe_columns
from lutetia.training.row_columns import RowColumns
from lutetia.training.schema import Origin, build, option
from lutetia.training.shape_run import shapes_told, with_shapes
from lutetia.training.shifts import moves
from lutetia.training.splits import SPLITS
from lutetia.training.table_checks import check_fit
from lutetia.training.table_files import (
    TASKS,
    LearningTable,
    Reading,
    TableFile,
    find_target,
    make_table,
    read_table_file,
    task_of,
)
from lutetia.training.table_fit import fit_rows, table_shape
from lutetia.training.table_measure import measure
from lutetia.training.table_parts import learning_rows, part_table
from lutetia.training.tabular import TabularRows
from lutetia.training.texts import describe_texts, loudest_words, model_rows
from lutetia.training.unusual import CANDIDATES, N_ANCHORS, N_TABLES, SHARE
from lutetia.training.windows import window_table

Array = np.ndarray[Any, Any]
MODEL = Path("checkpoints") / "best"
HEAD = "# What was guessed from the data. Edit it, then: lutetia train THIS FILE\n"
ENOUGH, ENOUGH_QUERIES = 100, 50  # rows, or queries, to fit, of which some can be spared for that
FEW_TABLES = 250  # of a ranking with fewer queries
SMALLEST_SIDE, MOST_CODES = 8, 1 << 30  # pixels of an image that is shifted, bytes of codes of all shifted images
ENOUGH_TO_TRY, SURE = 200, 100_000  # rows from which probabilities are calibrated, and of which there is little to correct
ENOUGH_ERRORS = 1000  # rows to fit, from which intervals differ: of 442 in `lutetia bench intervals` they were no narrower


@dataclass(frozen=True)
class TableSettings:
    """[data] of a run on a table: paths are relative to the config file."""

    path: str
    target: str | list[str] | None = None  # the name of a column, or several; none for images and arrays
    task: str | None = option(None, choices=TASKS)
    categorical: list[str] = field(default_factory=list)  # columns that are categories though they look like numbers
    leave_out: list[str] = field(default_factory=list)
    dates: list[str] | None = None  # columns of dates; without it those that look like it
    text: list[str] | None = None  # columns of text, whose words are learned from; without it those that look like it
    day_first: bool | None = None  # whether 02/03/2024 is the second of March, where no date of the file says so
    size: tuple[int, int] | None = option(None, low=1, high=4096)  # height and width to which images are resized
    colour: bool | None = None  # of images: whether they keep their colours
    colour_last: bool | None = None  # of arrays of images: whether they are [n, height, width, channels]
    unknown: str | None = option(None, choices=UNKNOWN)  # what categories are that the fit has not seen: an error, or missing
    query: str | None = None  # of a ranking: the column whose equal values are one query
    missing: list[str] = field(default_factory=list)  # words that stand for no value, besides NA, null, ?, ..
    shift: int | None = option(None, low=0, high=3)  # of images: pixels by which they are moved, at most, in the fit
    patches: str | bool | None = option(None, choices=("auto", True, False))  # of images: whether patterns are counted
    skip_unusable: bool = False  # go on without damaged images and rows without a target
    test: float = option(0.2, low=0, high=0.9)  # of the rows, held out and never fitted
    split: str = option("random", choices=SPLITS)  # which rows: any, the latest, or whole groups
    split_by: str | None = None  # the column of dates or numbers for "latest", without it the order of the file; or of groups
    weight: str | None = None  # the column that says how much rows count
    window: int | None = option(None, low=SHORTEST, high=LONGEST)  # of signals: rows that are one sample
    ahead: int | None = option(None, low=1, high=LONGEST)  # rows from the last one of a window to the one to predict
    season: int | None = option(None, low=1, high=LONGEST)  # rows after which a series repeats itself; 1 if it does not
    step: int | None = option(None, low=1)  # rows from the beginning of a window to that of the next; half a window by default
    series: str | None = None  # the column that names recordings
    signals: dict[str, int] = field(default_factory=dict)  # the columns of signals, and the decimal places of each
    shapes: str | bool | None = option(None, choices=("auto", True, False))  # of signals: whether shapes are counted

    @property
    def images(self) -> ImageSettings:
        """How the images of a folder are read."""
        return ImageSettings(self.size, bool(self.colour))

    @property
    def reading(self) -> Reading:
        """How columns are read."""
        rows = RowColumns(self.split, self.split_by, self.weight)
        return Reading(
            self.categorical, self.leave_out, self.missing, self.dates, self.day_first, self.skip_unusable, rows, self.query,
            self.text,
        )  # fmt: skip


@dataclass(frozen=True)
class FitSettings:
    """[fit]: see `lutetia.training.boosting.Boosting`."""

    n_tables: int = option(500, low=1, high=1_000_000)
    n_anchors: int = option(6, low=1, high=12)
    rate: float = option(0.1, low=0)
    candidates: int = option(64, low=1, high=1_000_000)
    pairs: float = option(0.25, low=0, high=1)
    rows: int = option(8192, low=1)
    smoothing: float = option(1.0, low=0)
    patience: int | None = option(None, low=1)  # looks, ten tables apart, at a tenth of the rows that is held out for them
    balanced: bool = False  # classes count alike, however many rows they have
    calibrate: bool = False  # a trial fit says how sure the probabilities may be
    enough_tables: bool = False  # that trial also says how many tables are enough, of n_tables at most
    intervals: bool = False  # of numbers: more tables say which rows may be further off than others
    flagged: float | None = option(None, low=0, high=0.5)  # of unusual rows: the part of rows like these that is flagged
    loss: str = option("squared_error", choices=LOSSES)  # of numbers: see lutetia._shared.losses
    quantile: float | None = option(None, low=0, high=1)  # that loss = "quantile" predicts
    monotone: dict[str, int] = field(default_factory=dict)  # by column: 1, the answer never falls with it, or -1, it never rises
    interactions: int | list[Any] | None = None  # columns that meet in a table: 1 or 2 at most, or lists of their names
    seed: int = option(0, low=0, high=2**63 - 1)


@dataclass(frozen=True)
class TableConfig:
    """A whole file."""

    data: TableSettings
    fit: FitSettings = field(default_factory=FitSettings)

    def boosting(self) -> Boosting:
        """How tables are fitted, on the threads of torch."""
        of_columns = ("monotone", "interactions", "flagged")  # see `Shape`, and `fit_unusual`
        fit = {name: value for name, value in dataclasses.asdict(self.fit).items() if name not in of_columns}
        fit |= {"loss": RANKING} if self.data.task == "ranking" else {}
        shift, patches = self.data.shift or 0, self.data.patches is True
        return Boosting(**fit, shift=shift, patches=patches, threads=torch.get_num_threads())

    def to_dict(self) -> dict[str, Any]:
        """As TOML has it: without what is None, or an empty table."""
        tables = dataclasses.asdict(self)
        if self.data.task in ("ranking", UNUSUAL):
            del tables["fit"]["loss"]  # which is that of numbers
        if self.data.task == UNUSUAL:
            for key in ("balanced", "calibrate", "enough_tables", "intervals"):
                del tables["fit"][key]
        return {name: {key: each for key, each in table.items() if each not in (None, {})} for name, table in tables.items()}


def is_table_config(tables: Mapping[str, Any]) -> bool:
    """Whether tables of TOML describe a run on a table of data."""
    data = tables.get("data")
    return "fit" in tables or (isinstance(data, Mapping) and "kind" not in data and "path" in data)


def holds_table_run(folder: Path) -> bool:
    """Whether a run on a table has left its model in a folder."""
    return (folder / MODEL / MANIFEST).is_file()


def make_table_config(tables: Mapping[str, Any], name: str, overridden: Collection[str] = ()) -> TableConfig:
    """A config from tables that were read; tables of the model's own are ignored, unless their keys were `overridden`."""
    passed_over = {"format", "lutetia", "kind", "model", "estimator"} - {key.partition(".")[0] for key in overridden}
    own = {key: value for key, value in tables.items() if key not in passed_over}
    made, origin = build(TableConfig, own, Origin(name, overridden)), Origin(name, overridden)
    if not isinstance(target := made.data.target, list):
        return made
    if not target or not all(isinstance(each, str) and each.strip() for each in target):
        origin.fail("data.target", target, "the name of a column, or a list of names")
    return made if len(target) > 1 else dataclasses.replace(made, data=dataclasses.replace(made.data, target=target[0]))


def open_table(
    config: TableConfig,
    folder: Path,
    classes: Sequence[str] = (),
    file: TableFile | None = None,
    shapes: tuple[SignalShape, ...] = (),
) -> tuple[LearningTable, Data]:
    """The table, and its rows in the splits "train" and "test"; `classes` are those of a model, in its order, and `shapes` those
    that it counts in windows of signals. A `file` that was read is not read again."""
    path = folder / config.data.path
    wanted = config.data
    file = read_table_file(path, wanted.images, wanted.skip_unusable) if file is None else file
    file = _colours_first(file) if wanted.colour_last else file
    if isinstance(wanted.target, list):
        raise DataError(f"{path}: data.target lists {len(wanted.target)} columns, expected one: this is for one target")
    if wanted.ahead is not None:
        table = forecast_table(file, wanted)
    elif wanted.window:
        table = window_table(file, wanted, shapes)
    else:
        table = make_table(file, wanted.target, wanted.task, wanted.reading)
    if classes and table.classes:
        table = dataclasses.replace(table, y=numbers_among(table.classes, classes, path)[table.y], classes=list(classes))
    names = Names(table.classes, table.features)
    held = [table.x, table.y, *(part for own in table.texts for part in (own.numbers, own.starts))]
    return table, Data(part_table(table, wanted.test, path), fingerprint(held), names, folder)


def _colours_first(file: TableFile) -> TableFile:
    """Arrays of images [n, height, width, channels] as [n, channels, height, width]."""
    if file.x is None or file.x.ndim != 4:
        found = "columns" if file.x is None else f"x {list(file.x.shape)}"
        raise DataError(f"data.colour_last is true and {file.path} holds {found}, expected x [n, height, width, channels]")
    return dataclasses.replace(file, x=np.moveaxis(file.x, -1, 1))


def train_table(
    config: TableConfig,
    folder: Path,
    out: Path,
    *,
    again: bool = False,
    each: Each | None = None,
    opened: tuple[LearningTable, Data] | None = None,
) -> dict[str, Any]:
    """Fit what a config describes, whose paths are relative to `folder`, and write it to `out`; returns the summary.

    `out` is empty or, where `again` says so, holds the run of this config; `opened` is what `open_table` gave for it.
    """
    with RunFolder(out).held(again):
        return _train(config, folder, out, each, open_table(config, folder) if opened is None else opened)


def _train(config: TableConfig, folder: Path, out: Path, each: Each | None, opened: tuple[LearningTable, Data]) -> dict[str, Any]:
    check_fit(config, opened[0])
    begun = time.perf_counter()
    (table, data), tried = with_shapes(config, opened, each)
    samples = data.splits["train"]
    assert isinstance(samples, Samples)
    rows = learning_rows(samples)
    shape, begun_with = table_shape(config, table), None
    if table.forecast is not None and not config.boosting().number_loss.is_log:
        base, begun_with = choose_base(rows, shape, config.boosting(), table.forecast.forecast)
        shape = dataclasses.replace(shape, base=base)
    model, fitted, trial = fit_rows(config, rows, shape, each)
    model.metadata |= describe_texts(metadata_of(table, rows, config), model.metadata)
    texts = text_columns(model.metadata)
    summary: dict[str, Any] = {
        "task": task_of(table),
        "out": str(out),
        "checkpoint": str(out / MODEL),
        "rows": {name: len(part.y) for name, part in data.splits.items() if isinstance(part, Samples)},
        "types": [{"column": name, "type": kind} for name, kind in table.types],
        "left_out": table.left_out,
        "skipped": table.skipped,
        **held_out(config, table),
        "tables": len(fitted.anchors),
        "balanced": config.fit.balanced,
        **_patches_told(model, trial),
        **({} if table.windows is None else {"windows": table.windows.told} | shapes_told(table.windows, tried)),
        **(
            {}
            if table.forecast is None
            else {"forecast": table.forecast.told, "base": None if begun_with is None else dataclasses.asdict(begun_with)}
        ),
        **({"texts": _texts_told(texts, table.classes)} if texts else {}),
        **({} if table.classes else {"fit_loss": config.boosting().loss, "quantile": config.fit.quantile}),
        "monotone": config.fit.monotone,
        **({"interactions": config.fit.interactions} if config.fit.interactions else {}),
        "temperature": fitted.temperature,
        **({"most_tables": config.fit.n_tables} if config.fit.calibrate and config.fit.enough_tables else {}),
        "weights": sum(each.numel() for each in model.parameters()),
        "seconds": round(time.perf_counter() - begun, 3),
    }
    if not table.classes and isinstance(test := data.splits.get("test"), Samples):
        model.metadata |= interval_bounds(model, model_rows(test, texts), test.y, test.weight)
    for name, part in data.splits.items():
        assert isinstance(part, Samples)
        summary[name] = measure(model, model_rows(part, texts), part.y, part.weight, part.query)
        summary[name] |= {} if part.weight is None else {"weighted_by": config.data.weight}
        if table.forecast is not None and not table.classes:
            summary[name]["naive"] = naive_errors(table.forecast.forecast, part.x, part.y)
        if table.classes and not table.is_unusual:
            counts = np.bincount(part.y, part.weight, len(table.classes))
            summary[name] |= {"most_frequent": table.classes[counts.argmax()], "its_share": float(counts.max() / counts.sum())}
    leave(config, folder, out, model, summary)
    return summary


def held_out(config: TableConfig, table: LearningTable) -> dict[str, Any]:
    """How rows to test were parted from those to fit, and by which column."""
    if table.windows is not None:
        return dict(zip(("held_out", "held_out_by"), table.windows.held, strict=True))
    if table.forecast is not None:
        return {"held_out": "latest", "held_out_by": None}
    return {"held_out": config.data.split, "held_out_by": config.data.split_by}


def _patches_told(model: Tabular, trial: PatchTrial | None) -> dict[str, Any]:
    """How many patterns are counted in images, and what a trial said of them; nothing where nothing was tried or counted."""
    counted = 0 if model.patches is None else model.patches.n_counts
    told = None if trial is None else dataclasses.asdict(trial)
    return {"patches": {"counts": counted, "trial": told}} if counted or told else {}


def _texts_told(texts: Sequence[TextColumn], classes: Sequence[str]) -> list[dict[str, Any]]:
    """What is made of each text column: words that are weighed and looked for, and those of the greatest weight."""
    return [
        {"column": each.name, "weighed": len(each.grams), "looked_for": len(each.words), "speak": loudest_words(each, classes)}
        for each in texts
    ]


def metadata_of(table: LearningTable, rows: TabularRows, config: TableConfig) -> dict[str, Any]:
    known: dict[str, Any]
    if len(table.input_shape) > 1:
        known = {"input_low": float(np.nanmin(rows.x)), "input_high": float(np.nanmax(rows.x))}
    else:
        known = describe_columns(table.x, rows.x)
    known["task"] = task_of(table)
    if table.windows is not None:
        known["windows"] = table.windows.windows.to_dict()
    if table.forecast is not None:
        known["forecast"] = table.forecast.forecast.to_dict()
    if table.classes:
        known["classes"] = table.classes
    if table.features:
        known["features"] = table.features
    if table.categories:
        known["categories"] = {str(number): values for number, values in table.categories.items()}
    if table.dates:
        known["dates"] = {str(number): dataclasses.asdict(column) for number, column in table.dates.items()}
    if table.target_unit is not None:
        known["target_unit"] = table.target_unit
    if table.units:
        known["units"] = {str(number): unit for number, unit in table.units.items()}
    if config.data.target is not None:
        known["target"] = config.data.target
    if config.data.query is not None:
        known["query"] = config.data.query
    if config.data.weight is not None:
        known["weight"] = config.data.weight
    if config.data.missing:
        known["missing"] = config.data.missing
    if config.data.unknown is not None:
        known["unknown"] = config.data.unknown
    if config.data.size is not None:
        known["resized"] = True
    return known


def leave(config: TableConfig, folder: Path, out: Path, model: Tabular | Targets, summary: dict[str, Any]) -> None:
    """Write the folder of a run: the model first, then the config, whose path leads from there to the data."""
    path = (folder / config.data.path).resolve()
    try:
        relative = os.path.relpath(path, out.resolve())
    except ValueError:  # another drive
        relative = str(path)
    own = dataclasses.replace(config, data=dataclasses.replace(config.data, path=relative))
    state = json.dumps({"step": summary["tables"], "data_folder": str(out.resolve())}) + "\n"
    save(model, out / MODEL, config=own.to_dict(), files={"state.json": state.encode()})
    with write_atomically(out / "config.toml") as file:
        file.write((HEAD + toml.dumps(own.to_dict())).encode())
    with write_atomically(out / "summary.json") as file:
        file.write((json.dumps(summary, indent=2) + "\n").encode())


def guess_config(
    path: Path,
    target: str | None,
    task: str | None,
    skip: bool = False,
    file: TableFile | None = None,
    day_first: bool | None = None,
    query: str | None = None,
) -> tuple[TableConfig, LearningTable]:
    """The config for a file: its target, its task and the types of its columns; with `skip`, without what is unusable. A `file`
    that was read is not read again. `day_first` is for dates that do not say so themselves, `query` the column of a ranking's
    queries."""
    images = _guess_images(path, skip)
    file = read_table_file(path, images, skip) if file is None else file
    is_last = file.x is not None and has_colours_last(file.x.shape)
    file = _colours_first(file) if is_last else file
    name = None if file.x is not None or task == UNUSUAL else find_target(file, target)
    others = {column: values for column, values in file.columns.items() if column not in (name, query)}
    counting = [column for column, values in others.items() if numbers_rows(values) or identifies_rows(column, values)]
    counting = counting if len(counting) < len(others) else []  # a curve over one number is to be learned
    words = sorted({word for values in others.values() for word in missing_words(values)})
    reading = Reading((), counting, words, None, day_first, skip, query=query)
    table = make_table(file, target if task == UNUSUAL else name, task, reading)
    wanted = task or task_of(table)
    dates = [table.features[number] for number in table.dates] or None
    columns = [column for column in table.left_out if column in file.columns]
    texts = [own.name for own in table.texts] or None
    settings = TableSettings(
        str(path), name, wanted, [], columns, dates, texts, day_first, query=query, missing=words, skip_unusable=skip
    )
    if table.is_unusual:
        settings = dataclasses.replace(settings, unknown="missing")
    if path.is_dir():
        settings = dataclasses.replace(settings, size=images.size, colour=images.colour)
    if is_last:
        settings = dataclasses.replace(settings, colour_last=True)
    shift = _shift(table.input_shape, len(table.y)) if len(table.input_shape) > 1 else None
    patches = "auto" if can_have_patches(table.input_shape) else None
    settings = dataclasses.replace(settings, shift=shift, patches=patches)
    return TableConfig(settings, guess_fit(settings, table)), table


def guess_fit(settings: TableSettings, table: LearningTable) -> FitSettings:
    """How a table is best fitted, by its task and its size."""
    n_rows = len(table.y) * (1 - settings.test)
    if table.is_unusual:
        return FitSettings(n_tables=N_TABLES, n_anchors=N_ANCHORS, candidates=CANDIDATES, pairs=0.0, flagged=SHARE)
    # How many tables are best differs more between regressions than between classifications: see `LUTRegressor`.
    if table.query is not None:
        enough = (table.query.max() + 1) * (1 - settings.test) >= ENOUGH_QUERIES
        return FitSettings(n_tables=2000, patience=5) if enough else FitSettings(n_tables=FEW_TABLES)
    if settings.task == "regression" and n_rows >= ENOUGH:
        return FitSettings(n_tables=2000, patience=5, intervals=n_rows >= ENOUGH_ERRORS)
    calibrate = bool(table.classes) and ENOUGH_TO_TRY <= n_rows <= SURE
    n_tables = 1000 if settings.shift else FitSettings.n_tables  # shifted images are more to learn
    return FitSettings(n_tables=n_tables, calibrate=calibrate, enough_tables=calibrate)


def _shift(shape: tuple[int, ...], n: int) -> int:
    """By how many pixels images are best shifted: none where they are tiny, or would not fit into memory."""
    return int(min(shape[-2:]) >= SMALLEST_SIDE and n * (math.prod(shape) + N_COUNTS) * len(moves(1)) <= MOST_CODES)


def _guess_images(path: Path, skip: bool) -> ImageSettings:
    images = [image for image, _ in labelled_images(path)] if path.is_dir() else []
    return guess_images(images, skip) if images else ImageSettings()

"""The data of the run that a checkpoint comes from: `lutetia build` measures accuracy on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from lutetia import training
from lutetia.cli.given_rows import given_rows
from lutetia.cli.guard import UsageError
from lutetia.errors import DataError, LutetiaError
from lutetia.models import Model, Tabular, TextColumn, shapes_of, signal_windows, text_columns
from lutetia.training import (
    Boosting,
    HeldRows,
    LearningTable,
    TableConfig,
    held_rows,
    is_table_config,
    make_table_config,
    model_rows,
    open_table,
    open_targets,
    read_state,
    read_toml,
    targets_of,
)

MOST_CALIBRATION = 2000  # samples that choose the bits of the inputs
Opened = TypeVar("Opened")
SPLITS = ("test", "valid", "train")  # where accuracy is measured, the best first


@dataclass(frozen=True)
class Measured:
    """Samples to measure on, samples to choose bits by, and those that were fitted: x [n, ...], labels [n] each; of a ranking the
    queries [n] of the first."""

    split: str
    x: Tensor
    labels: Tensor
    calibration: tuple[Tensor, Tensor]
    train: tuple[Tensor, Tensor] | None = None
    fitted: training.Samples | None = None  # the same with their weights, and by what they are parted
    query: Tensor | None = None


def open_run_data(checkpoint: Path, data: Path | None, model: Model[Any]) -> Measured | str:
    """The samples of a checkpoint's run, from the folder `data` where it is given, with classes numbered as `model` does; or why
    there are none. Of a model without a run, such as trees that were imported, those of the file `data`."""
    if isinstance(model, Tabular) and data is not None and data.is_file():
        return _file_samples(checkpoint, data, model)
    opened = _open_run(checkpoint, data, model.metadata)
    return opened if isinstance(opened, str) else _measured(opened, text_columns(model.metadata))


def _file_samples(checkpoint: Path, data: Path, model: Tabular) -> Measured:
    """The rows of a file, for a model that does not come from a run."""
    if _has_run(checkpoint):
        raise UsageError(f"--data is {data}, a file, expected the folder of the data: {checkpoint} names the file itself")
    given = given_rows(model, data, None)
    x = torch.from_numpy(np.ascontiguousarray(given.x))
    y = torch.from_numpy(given.y if model.is_regression else given.y.astype(np.int64))
    return Measured(data.name, x, y, (x[:MOST_CALIBRATION], y[:MOST_CALIBRATION]), (x, y))


def _has_run(checkpoint: Path) -> bool:
    """Whether the config of a checkpoint says what it was trained on."""
    place = next((each for each in _places(checkpoint) if (each / "config.toml").is_file()), None)
    return place is not None and "data" in read_toml(place / "config.toml")


def has_core(model: Model[Any]) -> bool:
    """Whether the circuit of a model works step by step: it counts patterns in images, or takes windows of signals."""
    return isinstance(model, Tabular) and (model.patches is not None or "windows" in model.metadata)


def run_recordings(checkpoint: Path, data: Path | None, model: Tabular) -> list[np.ndarray]:
    """The recordings of the run of a model of windows, whole numbers [samples, signals] each; none where they cannot be read."""
    windows, missing = signal_windows(model.metadata), model.metadata.get("missing", ())
    assert windows is not None

    def opened(config: TableConfig, folder: Path) -> list[np.ndarray]:
        return training.recordings(training.read_table_file(folder / config.data.path), windows, missing)

    found = _of_table_run(checkpoint, data, opened)
    return [] if isinstance(found, str) else found


def run_rows(checkpoint: Path, model: Model[Any]) -> HeldRows | str:
    """Rows of recordings that were held out of the run of a model of windows; or why there are none."""
    windows = signal_windows(model.metadata)
    assert windows is not None
    return _of_table_run(checkpoint, None, lambda config, folder: held_rows(config, folder, windows))


def _of_table_run(checkpoint: Path, data: Path | None, opened: Callable[[TableConfig, Path], Opened]) -> Opened | str:
    """What is opened of the file of a run, by its config and the folder of the file; or why it is not."""
    place = next((each for each in _places(checkpoint) if (each / "config.toml").is_file()), None)
    if place is None or not _has_run(checkpoint):
        return f"{checkpoint} does not say what it was trained on"
    config = make_table_config(read_toml(place / "config.toml"), str(place))
    folders = [data] if data is not None else [*_recorded(place), Path(), place]
    found = _first_opened(folders, lambda folder: opened(config, folder))
    return f"its data cannot be opened: {found}" if isinstance(found, str) else found


def training_rows(checkpoint: Path, data: Path | None, model: Model[Any], use: str = "--rule shapley compares with") -> Tensor:
    """The rows that a model of columns was trained on, as it takes them: x [n, columns]; `use` says what for."""
    if not isinstance(model, Tabular) or len(model.config.input_shape) != 1:
        raise UsageError(f"{use} rows of a table, and this is no model of a table of data")
    opened = open_run_data(checkpoint, data, model)
    if isinstance(opened, str) or opened.train is None:
        why = opened if isinstance(opened, str) else "it has none"
        raise DataError(
            f"{use} the rows that {checkpoint} was trained on: {why}; --data names their "
            + ("folder" if _has_run(checkpoint) else "file")
        )
    return opened.train[0].double()


def fit_settings(checkpoint: Path) -> Boosting | None:
    """The settings of the fit of a run on a table of data; None for any other model."""
    place = next((each for each in _places(checkpoint) if (each / "config.toml").is_file()), None)
    tables = {} if place is None else read_toml(place / "config.toml")
    if not is_table_config(tables):
        return None
    return make_table_config(tables, str(place)).boosting()


def open_run_text(checkpoint: Path, data: Path | None) -> bytes | str:
    """The text of a checkpoint's run, from the best split to measure on; or why there is none."""
    opened = _open_run(checkpoint, data)
    if isinstance(opened, str):
        return opened
    texts = {name: part for name, part in opened.splits.items() if isinstance(part, training.Text)}
    split = next((name for name in SPLITS if name in texts), None)
    return "its data is not text" if split is None else bytes(texts[split].bytes)


def as_fitted(config: TableConfig, metadata: Mapping[str, Any]) -> TableConfig:
    """The config of a run, whose columns of categories and of text are those of its model, whatever they look like now."""
    names = metadata.get("features", ())
    categories = [names[int(number)] for number in metadata.get("categories", {})]
    texts = [each.name for each in text_columns(metadata)]
    wanted = config.data
    wanted = replace(wanted, categorical=[*dict.fromkeys([*wanted.categorical, *categories])])
    return replace(config, data=replace(wanted, text=texts) if wanted.text is None else wanted)


def _open_run(checkpoint: Path, data: Path | None, metadata: Mapping[str, Any] = MappingProxyType({})) -> training.Data | str:
    place = next((each for each in _places(checkpoint) if (each / "config.toml").is_file()), None)
    if place is None or not _has_run(checkpoint):
        return f"{checkpoint} does not say what it was trained on"
    tables = read_toml(place / "config.toml")
    table = as_fitted(make_table_config(tables, str(place)), metadata) if is_table_config(tables) else None
    classes = metadata.get("classes", ())
    wanted = table or training.read_config(place / "config.toml").data

    def opened(folder: Path) -> training.Data:
        if isinstance(wanted, TableConfig):
            return open_rows(wanted, folder, metadata)[1]
        return training.open_data(wanted, folder, classes)

    found = _first_opened([data] if data is not None else [*_recorded(place), Path(), place], opened)
    return f"its data cannot be opened: {found} (--data FOLDER says where it is)" if isinstance(found, str) else found


def open_rows(config: TableConfig, folder: Path, metadata: Mapping[str, Any]) -> tuple[LearningTable, training.Data]:
    """The table and the rows of a run, for the model of that metadata; of several targets those of the model's own."""
    classes = metadata.get("classes", ())
    if not targets_of(config):
        return open_table(config, folder, classes, shapes=shapes_of(metadata))
    name = metadata.get("target", "")
    several = open_targets(config, folder, {name: classes} if classes else {})
    return next((each[1:] for each in several if each.name == name), several[0][1:])


def _first_opened(folders: Sequence[Path], opened: Callable[[Path], Opened]) -> Opened | str:
    """What is opened from the first of some folders that has it; or why it is not in the first of all."""
    why = ""
    for folder in folders:
        try:
            return opened(folder)
        except LutetiaError as error:
            why = why or str(error)
    return why


def _places(checkpoint: Path) -> list[Path]:
    """Where a checkpoint keeps its config: in itself, or, for the folder of a run, in the checkpoint that it stands for."""
    return [checkpoint / "checkpoints" / "best", checkpoint / "checkpoints" / "last", checkpoint]


def _recorded(place: Path) -> list[Path]:
    """The folder that paths of the data were relative to, where the checkpoint says so."""
    try:
        folder = read_state(place).get("data_folder")
    except LutetiaError:
        return []
    return [Path(folder)] if isinstance(folder, str) else []


def _measured(opened: training.Data, texts: Sequence[TextColumn]) -> Measured | str:
    splits = {
        name: replace(part, x=model_rows(part, texts), texts=())
        for name, part in opened.splits.items()
        if isinstance(part, training.Samples)
    }
    if not splits:
        return "its data is text"
    split = next(name for name in SPLITS if name in splits)
    parts = [splits[name] for name in ("valid", "train") if name in splits]
    x = torch.cat([torch.as_tensor(each.x) for each in parts])[:MOST_CALIBRATION]
    labels = torch.cat([torch.as_tensor(each.y) for each in parts])[:MOST_CALIBRATION]
    pairs = {name: (torch.as_tensor(part.x), torch.as_tensor(part.y)) for name, part in splits.items()}
    query = None if splits[split].query is None else torch.as_tensor(splits[split].query)
    return Measured(split, *pairs[split], (x, labels), pairs.get("train"), splits.get("train"), query)

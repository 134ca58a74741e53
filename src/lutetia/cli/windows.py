"""Windows of recordings on the command line: what `lutetia train` says of them, and those of other files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia.cli.show import console, one_line
from lutetia.errors import DataError
from lutetia.models import Classifier, SignalWindows, finds_unusual, signal_windows
from lutetia.training import (
    class_numbers,
    find_target,
    read_table_file,
    recordings,
    unusual_numbers,
    window_labels,
    window_places,
    window_rows,
)

if TYPE_CHECKING:  # a config loads what fits
    from lutetia.training import TableConfig, TableFile, WindowRows, WindowsRead

Array = np.ndarray[Any, Any]
RECORDINGS = (".csv", ".csv.gz", ".tsv", ".parquet", ".pq")


def windows_file(path: Path, file: TableFile | None) -> TableFile:
    """A file that was read, if windows can be made of it: one of columns."""
    if file is None or file.x is not None:
        raise DataError(
            f"{path} has no columns, expected a .csv or .parquet file with a row for each sample in time (data.window)"
        )
    return file


def show_windows(config: TableConfig, read: WindowsRead) -> None:
    """What windows were made of, what was left out, and how rows to test are kept from those to fit."""
    screen, windows, counts, target = console(), read.windows, read.counts, one_line(str(config.data.target))
    of = f"{counts.recordings:,} recordings" if windows.series is not None else "one recording"
    each = f"{len(windows.features)} features of each signal"
    screen.print(
        f"windows of {windows.length:,} rows, one every {windows.step:,}, from {of}: {each} (data.window, data.step)",
        soft_wrap=True,
    )
    left = [
        (counts.changing, f"in which {target} changes or has no value"),
        (counts.lacking, "in which a sample is missing"),
    ]
    for count, why in left:
        if count:
            screen.print(f"  left out: {count:,} window{'s' * (count > 1)} {why}", soft_wrap=True)
    if counts.short and windows.series is not None:
        many = f"{counts.short:,} recording{'s' * (counts.short > 1)}"
        screen.print(f"  left out: {many} shorter than a window", soft_wrap=True)
    if not config.data.test:
        return
    what, by = read.held
    if "blocks" not in what:
        screen.print(f"  held out by {one_line(by)}: no window to test overlaps one to fit", soft_wrap=True)
        return
    told = f"  held out in blocks of {one_line(by)} that follow each other: no window to test overlaps one to fit"
    screen.print(told + (f" ({read.why})" if read.why else ""), soft_wrap=True)
    hint = "" if windows.series is not None else "; --set data.series=COLUMN names recordings, and tests on whole ones"
    screen.print(f"  a new recording may differ more than the next minute of a known one{hint}", soft_wrap=True)


def shapes_text(counts: int, trial: dict[str, Any] | None) -> str:
    """How many shapes are counted in a window, and what a trial said of that."""
    said = f"{counts:,} shapes are counted in each window" if counts else "no shapes are counted"
    if trial is None:
        return f"{said} (data.shapes)"
    why = f"{trial['shapes']:.4f} with shapes, {trial['plain']:.4f} without, on {trial['rows']:,} windows"
    return f"{said} (data.shapes): in a trial the loss was {why}"


def read_windows(model: Classifier, path: Path) -> tuple[WindowRows, dict[str, Sequence[Any]]]:
    """The windows of a recording as a model takes them, and what is known of each besides."""
    windows, file = _opened(model, path)
    rows = window_rows(file, windows, model.metadata.get("missing", []))
    return rows, window_places(file, rows, windows)


def recorded_windows(model: Classifier, path: Path) -> tuple[list[str], list[Array]]:
    """The windows of a recording, each called by its rows, and their samples, int64 [samples, signals] each."""
    windows, file = _opened(model, path)
    missing = model.metadata.get("missing", [])
    rows = window_rows(file, windows, missing)
    samples = np.concatenate(recordings(file, windows, missing))
    names = window_names(path, window_places(file, rows, windows))
    return names, [samples[start : start + windows.length] for start in rows.starts.tolist()]


def window_names(path: Path, places: Mapping[str, Sequence[Any]]) -> list[str]:
    """What windows are called, by their first and last rows."""
    return [f"{path} rows {first} to {last}" for first, last in zip(places["first row"], places["last row"], strict=True)]


def labelled_windows(model: Classifier, path: Path, label: str | int | None) -> tuple[Array, Array, int]:
    """Windows [n, inputs] that have one label, and these, float64 [n]; and how many others there are, in which it changes or has
    no value. `label` is the column of labels, the model's by default."""
    windows, file = _opened(model, path)
    is_unusual = finds_unusual(model.metadata)
    if is_unusual and label is None:
        rows = window_rows(file, windows, model.metadata.get("missing", []))
        return rows.inputs, np.zeros(len(rows.inputs), np.int64), 0
    target = find_target(file, model.metadata.get("target") if label is None else label)
    rows, classes = window_rows(file, windows, model.metadata.get("missing", [])), model.metadata.get("classes")
    labels = window_labels(file, target, windows, rows, is_number=classes is None)
    kept = [number for number, own in enumerate(labels) if own is not None]
    if not kept:
        raise DataError(f"{path}: {target!r} changes or lacks in all {len(labels):,} windows, expected rows of one label")
    own, where = [labels[number] for number in kept], f"{path}, column {target!r}"
    y = unusual_numbers(own, where) if is_unusual else class_numbers(own, classes, where)
    return rows.inputs[kept], y, len(labels) - len(kept)


def _opened(model: Classifier, path: Path) -> tuple[SignalWindows, TableFile]:
    windows = signal_windows(model.metadata)
    assert windows is not None
    return windows, table_file(path, f"the model takes windows of {windows.length:,} rows of a file")


def table_file(path: Path, why: str) -> TableFile:
    """A file with a row for each sample in time."""
    try:
        is_there = path.exists()
    except (OSError, ValueError):  # text that cannot be a name
        is_there = False
    if not is_there or not path.name.lower().endswith(RECORDINGS):
        found = "is no .csv or .parquet file" if is_there else "does not exist"
        raise DataError(f"{str(path)[:80]} {found}, expected a recording: {why}")
    return read_table_file(path)

"""Some rows of recordings that were held out: what a page shows first of a model of windows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lutetia.errors import DataError
from lutetia.models import SignalWindows
from lutetia.training.table_files import LearningTable, TableFile, read_table_file
from lutetia.training.table_parts import part_table
from lutetia.training.table_run import TableConfig
from lutetia.training.windows import recordings, window_table

Array = np.ndarray[Any, Any]
MOST_ROWS, MOST_SAMPLES, LARGEST = 4000, 1 << 16, 1 << 20  # of an example; and samples of a window, beyond which there is none
MOST_STRETCHES = 8


class HeldRows(NamedTuple):
    """Samples int64 [rows, signals]; the rows where stretches of them begin, and what each is called; and which they are."""

    samples: Array
    begins: list[int]
    names: list[str]
    said: str


def held_rows(config: TableConfig, folder: Path, windows: SignalWindows) -> HeldRows:
    """Rows of the file of a run, as samples of a model's windows: stretches that were held out, with all classes where they have
    room; of a run that held out nothing, stretches that were fitted."""
    path, wanted = folder / config.data.path, config.data
    if windows.length * len(windows.signals) > LARGEST:
        raise DataError(f"{path}: a window has {windows.length * len(windows.signals):,} samples, expected {LARGEST:,} at most")
    file = read_table_file(path, wanted.images, wanted.skip_unusable)
    table = window_table(file, wanted)
    parts = part_table(_numbered(table), wanted.test, path)
    held = parts.get("test", parts["train"])
    chosen = np.sort(np.asarray(held.x).astype(np.int64)[:, 0])
    stretches = _stretches(table, chosen, windows)
    samples = np.concatenate(recordings(file, windows, wanted.missing))
    rows = [np.arange(begin, end) for begin, end in stretches]
    kind = "held out" if "test" in parts else "fitted"
    begins = np.cumsum([0, *map(len, rows[:-1])]).tolist()
    names = [_name(file, windows, begin, end) for begin, end in stretches]
    return HeldRows(samples[np.concatenate(rows)], begins, names, f"Rows of {path.name} that were {kind}")


def _numbered(table: LearningTable) -> LearningTable:
    """The same table, whose columns are the number of each window alone: it is parted as the table is."""
    return dataclasses.replace(table, x=np.arange(len(table.y), dtype=np.float64)[:, None], input_shape=(1,))


def _stretches(table: LearningTable, chosen: Array, windows: SignalWindows) -> list[tuple[int, int]]:
    """Where stretches of rows begin and end, in the order of the file: each of windows, by their numbers, that follow each other
    in one recording or block. They begin at the first window of each class, then at the first that follows no other."""
    read, key = table.windows, table.split.key
    assert read is not None
    assert key is not None
    starts = read.starts[chosen]
    recording = np.searchsorted(read.begins, starts, side="right")
    apart = (np.diff(starts) > max(windows.length, windows.step)) | (np.diff(key[chosen]) != 0) | (np.diff(recording) != 0)
    begins = np.concatenate([[0], np.flatnonzero(apart) + 1])
    last = np.repeat([*(begins[1:] - 1), len(starts) - 1], np.diff([*begins, len(starts)]))  # of the stretch of each window
    labels = table.y[chosen] if table.classes else np.zeros(len(chosen))
    order = [*dict.fromkeys([*np.sort(np.unique(labels, return_index=True)[1]).tolist(), *begins.tolist()])][:MOST_STRETCHES]
    left = max(windows.length, min(MOST_ROWS, MOST_SAMPLES // len(windows.signals)))
    most = max(windows.length, left // len(order))
    found: list[tuple[int, int]] = []
    for window in order:
        begin, end = int(starts[window]), int(starts[last[window]]) + windows.length
        end = min([end, begin + most, *(other for other, _ in found if other > begin)])
        is_known = any(first <= begin < behind for first, behind in found)
        if not is_known and windows.length <= end - begin <= left:
            found.append((begin, end))
            left -= end - begin
    return sorted(found)


def _name(file: TableFile, windows: SignalWindows, begin: int, end: int) -> str:
    """What a stretch is called: its recording, where that has a name, and its rows."""
    rows = f"rows {begin:,} to {end - 1:,}"
    column = file.columns.get(windows.series) if windows.series is not None else None
    return rows if column is None else f"{windows.series} {column[begin]}: {rows}"

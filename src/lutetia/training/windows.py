"""Windows of a recording: which columns are signals, where windows begin, what each is labelled, and which are held out together.

A recording has a row per sample in time. A window is some rows that follow each other in one recording, and has the label of its
rows; a window in which the label changes, or lacks, is left out. Windows overlap, so that rows of one would be fitted and tested
on, were they parted at random: they are parted by whole recordings, or by blocks of rows, and no window lies in two of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia._shared.numbers import short_number
from lutetia.errors import DataError, did_you_mean
from lutetia.models import LONGEST_SIGNAL, UNUSUAL, UNUSUAL_CLASSES, SignalColumn, SignalShape, SignalWindows
from lutetia.models import MOST_SIGNAL_DECIMALS as MOST_DECIMALS
from lutetia.training.columns import AS_ASKED, is_missing, number_of, plain_numbers, row_name, shown_text, text_of, without_words
from lutetia.training.ranges import decimals_of
from lutetia.training.splits import Split
from lutetia.training.table_files import LearningTable, TableFile, check_unusual, find_target
from lutetia.training.target_column import make_target

if TYPE_CHECKING:
    from lutetia.training.table_run import TableSettings

Array = np.ndarray[Any, Any]
FINE, ROOM = 1000, 2  # steps that a signal varies by at least, and how much larger than all that was seen a sample may be
FEWEST_SERIES, IN_SERIES = 5, 2  # recordings that are held out whole, and of those that have a class
BLOCK, SHORTEST_BLOCK, BLOCKS = 5, 2, 20  # windows that a block is as long as, at most and at least, and blocks that are wished
LARGEST = 2.0**31
MOST_FALLS = 0.01  # of the steps of a time that are not up: where it begins anew


@dataclass(frozen=True)
class WindowCounts:
    """What windows were made of: how many, of how many recordings; windows that were left out as the target changed in them, or
    was missing, or a sample was; and recordings that are too short."""

    windows: int
    recordings: int
    changing: int = 0
    lacking: int = 0
    short: int = 0


@dataclass(frozen=True, eq=False)
class WindowsRead:
    """The windows of a table of data: how they are made, what they were made of, the ends of each signal, and what is held out
    together, "groups" by a column or "blocks" of some rows, and why not by recordings. The samples int64 [rows, signals], and the
    rows where windows and recordings begin, int64 [n] each."""

    windows: SignalWindows
    counts: WindowCounts
    ends: list[tuple[float, float]]
    held: tuple[str, str]
    samples: Array
    starts: Array
    begins: Array
    why: str = ""

    @property
    def told(self) -> dict[str, Any]:
        """For a summary: the windows, and what they were made of."""
        return {"length": self.windows.length, "step": self.windows.step, "series": self.windows.series, **asdict(self.counts)}

    @property
    def types(self) -> list[tuple[str, str]]:
        """Each signal, its ends and its step."""
        told = []
        for signal, (low, high) in zip(self.windows.signals, self.ends, strict=True):
            step = short_number(10.0**-signal.decimals)
            told.append((signal.name, f"signal, {short_number(low)} to {short_number(high)} in steps of {step}"))
        return told


@dataclass(frozen=True, eq=False)
class WindowRows:
    """Where the windows of a file begin, int64 [n], their inputs, float64 [n, inputs], and its recordings: where each begins,
    int64 [recordings]."""

    starts: Array
    inputs: Array
    series: Array


def window_rows(file: TableFile, windows: SignalWindows, missing: Sequence[str] = ()) -> WindowRows:
    """The windows of a file, as a model takes them, whatever their labels. A file without the column of series is one
    recording."""
    samples = windows.samples(_values(file, [signal.name for signal in windows.signals], missing))
    begins = recording_begins(file, windows.series if windows.series in file.columns else None)
    starts = _starts(begins, len(samples), windows)
    if not len(starts):
        raise DataError(_too_short(file.path, begins, len(samples), windows.length))
    return WindowRows(starts, windows.inputs(samples, starts), begins)


def recordings(file: TableFile, windows: SignalWindows, missing: Sequence[str] = ()) -> list[Array]:
    """The recordings of a file as samples, int64 [samples, signals] each; an empty cell is 0."""
    values = _values(file, [signal.name for signal in windows.signals], missing, may_lack=True)
    begins = recording_begins(file, windows.series if windows.series in file.columns else None)
    return np.split(windows.samples(np.nan_to_num(values)), begins[1:])


def window_labels(file: TableFile, target: str, windows: SignalWindows, rows: WindowRows, is_number: bool) -> list[Any]:
    """The label of each window: that of its rows, or the mean of numbers; None where it changes, or where a row has none."""
    cells = file.columns[target]
    if not is_number:
        code = _codes(cells)
        same = _same(code, code < 0)(rows.starts, windows.length)
        return [text_of(cells[start]) if own else None for start, own in zip(rows.starts.tolist(), same.tolist(), strict=True)]
    numbers = target_numbers(file, target)
    means = np.lib.stride_tricks.sliding_window_view(numbers, windows.length)[rows.starts].mean(1)
    return [None if math.isnan(mean) else mean for mean in means.tolist()]


def window_table(file: TableFile, wanted: TableSettings, shapes: tuple[SignalShape, ...] = ()) -> LearningTable:
    """The windows of a file as samples to learn from, parted by recordings or blocks; in which some shapes are counted."""
    _refuse_settings(file.path, wanted)
    if isinstance(wanted.target, list):
        raise DataError(f"data.target is {wanted.target}, expected one column with data.window")
    is_unusual = wanted.task == UNUSUAL
    if is_unusual:
        check_unusual(file, wanted.target, wanted.reading)
    name = None if is_unusual else find_target(file, wanted.target)
    named = {"data.series": wanted.series, "data.split_by": wanted.split_by}
    for setting, column in named.items():
        if column is not None and column not in file.columns:
            raise DataError(
                f"{setting} is {column!r}, which is not a column of {file.path}: {did_you_mean(column, file.columns)}"
            )
        if column is not None and column == name:
            raise DataError(f"{setting} is {column!r}, the column to predict, expected another one")
    besides = [each for each in (name, *named.values()) if each is not None]
    begins = recording_begins(file, wanted.series)
    signals, left_out = find_signals(file, wanted, besides, begins)
    values = _values(file, list(signals), wanted.missing, may_lack=wanted.skip_unusable)
    columns, bits = zip(
        *(make_signal(name, own, places) for (name, places), own in zip(signals.items(), values.T, strict=True)), strict=True
    )
    length = wanted.window or 0
    windows = SignalWindows(length, wanted.step or max(1, length // 2), columns, max(bits), wanted.series, shapes)
    task = wanted.task or guessed_task(file, str(name))
    held, why, key = _held_together(file, replace(wanted, task=task), name, begins, length)
    starts = _starts(begins, len(values), windows)
    if not len(starts):
        raise DataError(_too_short(file.path, begins, len(values), length))
    starts = starts[key[starts] == key[starts + length - 1]]  # blocks are of rows that follow each other
    empty = np.isnan(values).any(1)
    lacking = ~_same(np.zeros(len(values), np.int64), empty)(starts, length)
    rows = WindowRows(starts[~lacking], np.empty((0, 0)), begins)
    labels = [0] * len(rows.starts) if name is None else window_labels(file, name, windows, rows, task == "regression")
    kept = np.array([label is not None for label in labels], bool)
    if wanted.split_by is not None:
        kept &= _same(key, np.zeros(len(key), bool))(rows.starts, length)
    if not kept.any():
        raise DataError(
            f"{file.path}: {name!r} changes or lacks in all {len(kept):,} windows of {length:,} rows, expected shorter ones"
        )
    y, classes = np.zeros(kept.sum(), np.int64), list(UNUSUAL_CLASSES)
    if name is not None:
        own_labels = [label for label, own in zip(labels, kept, strict=True) if own]
        y, classes = make_target(own_labels, task, f"{file.path}, column {name!r}")
    starts = rows.starts[kept]
    samples = windows.samples(np.nan_to_num(values))
    x = windows.inputs(samples, starts)
    short = np.diff([*begins.tolist(), len(values)]) < length
    counts = WindowCounts(len(starts), len(begins), int((~kept).sum()), int(lacking.sum()), int(short.sum()))
    ends = list(zip(np.nanmin(values, 0).tolist(), np.nanmax(values, 0).tolist(), strict=True))
    split = Split("latest" if wanted.split == "latest" else "groups", key[starts])
    read = WindowsRead(windows, counts, ends, held, samples, starts, begins, why)
    return LearningTable(
        x, y, windows.titles, classes, {}, left_out, x.shape[1:], split=split, windows=read, is_unusual=is_unusual
    )


def _refuse_settings(path: Path, wanted: TableSettings) -> None:
    """Refuse settings that columns of a row have, and windows have not."""
    for key in ("categorical", "dates", "text", "query", "weight"):
        if given := getattr(wanted, key):
            raise DataError(
                f"data.{key} is {given!r}, expected none with data.window: windows are made of signals, of numbers alone"
            )
    if wanted.task == "ranking":
        raise DataError(
            f"{path}: a ranking orders rows, and data.window makes windows of them: --task classification or regression"
        )
    if wanted.split == "latest" and wanted.split_by is not None:
        raise DataError("data.split_by with data.window names groups: the rows of a recording are in the order of time")
    if wanted.split == "random" and wanted.split_by is not None:
        raise DataError(f'data.split_by is {wanted.split_by!r} and data.split is "random", expected "groups"')
    if wanted.split == "groups" and wanted.split_by is None:
        raise DataError('data.split is "groups", expected data.split_by to name the column of the groups')


# ---- signals ---------------------------------------------------------------------------------------------------------


def find_signals(
    file: TableFile, wanted: TableSettings, besides: Collection[str], begins: Array
) -> tuple[dict[str, int | None], dict[str, str]]:
    """The columns that are signals, and the decimal places of those that data.signals lists; why the others are left out."""
    unknown = [each for each in [*wanted.signals, *wanted.leave_out] if each not in file.columns]
    if unknown:
        setting = "signals" if unknown[0] in wanted.signals else "leave_out"
        raise DataError(
            f"data.{setting} has {unknown[0]!r}, which is not a column of {file.path}: {did_you_mean(unknown[0], file.columns)}"
        )
    if twice := [each for each in wanted.signals if each in besides]:
        raise DataError(f"data.signals has {twice[0]!r}, which is the target or names rows, expected signals")
    for column, decimals in wanted.signals.items():
        if type(decimals) is not int or not 0 <= decimals <= MOST_DECIMALS:
            raise DataError(f"data.signals: {column!r} is {decimals!r}, expected its decimal places, 0 to {MOST_DECIMALS}")
    found: dict[str, int | None] = {}
    left_out: dict[str, str] = {}
    for column, cells in file.columns.items():
        if column in besides:
            continue
        why = AS_ASKED if column in wanted.leave_out else ""
        if not why and column not in wanted.signals:
            why = _no_signal(column, without_words(cells, wanted.missing), begins)
            why = why or ("data.signals does not list it" if wanted.signals else "")
        if why:
            left_out[column] = why
        else:
            found[column] = wanted.signals.get(column)
    if not found and wanted.ahead is None:
        raise DataError(f"{file.path} has no signal, a column of numbers that goes up and down, expected one besides the target")
    return found, left_out


def _no_signal(column: str, cells: Sequence[Any], begins: Array) -> str:
    """Why a column is no signal; empty where it is one."""
    numbers = plain_numbers(cells)
    if numbers is None:
        word = next((cell for cell in cells if not is_missing(cell) and number_of(text_of(cell)) is None), None)
        return (
            "all its values are missing"
            if all(map(is_missing, cells))
            else f"no signal: {shown_text(text_of(word))} is not a number"
        )
    known = numbers[~np.isnan(numbers)]
    if len(column) > LONGEST_SIGNAL:
        return "its name is too long"
    if (known == known[0]).all():
        return f"all its values are {short_number(float(known[0]))}"
    steps = np.delete(np.diff(numbers), begins[1:] - 1)
    falls = int((~(steps > 0)).sum())
    if falls > MOST_FALLS * len(steps):
        return ""
    return (
        "it only rises, as a time does"
        if not falls
        else f"it rises, but for {falls:,} row{'s' * (falls > 1)}: a time that begins anew there"
    )


def make_signal(name: str, values: Array, decimals: int | None) -> tuple[SignalColumn, int]:
    """A signal with the decimal places of its values: so many that they fit 16 bits, unless it would vary by few steps then; and
    the bits of its samples."""
    known = values[~np.isnan(values)]
    if not len(known):
        raise DataError(f"column {name!r} has no value, expected a signal")
    top, spread = float(np.abs(known).max()), float(known.max() - known.min())
    if top >= LARGEST:
        raise DataError(
            f"column {name!r} has the value {top:.6g}, expected signals below {LARGEST:.6g}: divide it by a power of ten"
        )

    def fits(places: int, bits: int) -> bool:
        return ROOM * top * 10.0**places < 2.0 ** (bits - 1)

    if decimals is None:
        natural = decimals_of(known[:, None])[0]
        natural = MOST_DECIMALS if natural is None else natural
        fitting = max((places for places in range(MOST_DECIMALS + 1) if fits(places, 16)), default=0)
        fine = next((places for places in range(MOST_DECIMALS + 1) if spread * 10.0**places >= FINE), MOST_DECIMALS)
        decimals = min(natural, max(fitting, fine))
        while decimals and not fits(decimals, 32):
            decimals -= 1
    if top * 10.0**decimals >= LARGEST:
        raise DataError(f"data.signals: {name!r} with {decimals} decimal places takes more than 32 bits, expected fewer places")
    return SignalColumn(name, decimals), 16 if fits(decimals, 16) else 32


def _values(file: TableFile, names: Sequence[str], missing: Sequence[str], may_lack: bool = False) -> Array:
    """The signals of a file as float64 [rows, signals]; a cell that holds no number is an error, or NaN where it may lack."""
    parts = []
    for name in names:
        if name not in file.columns:
            raise DataError(f"{file.path} has no column {name!r}, a signal of the model: {did_you_mean(name, file.columns)}")
        cells = without_words(file.columns[name], missing)
        numbers = plain_numbers(cells)
        if numbers is None:
            row = next((at for at, cell in enumerate(cells) if not is_missing(cell) and number_of(text_of(cell)) is None), 0)
            place = f"{file.path}, {row_name(row, file.lines)}, column {name!r}"
            raise DataError(f"{place}: {shown_text(text_of(cells[row]))}, expected a number, a sample of a signal")
        if not may_lack and len(empty := np.flatnonzero(np.isnan(numbers))):
            place = f"{file.path}, {row_name(int(empty[0]), file.lines)}, column {name!r}"
            raise DataError(
                f"{place} is empty, expected a sample: fill it in; to train without its windows: --set data.skip_unusable=true"
            )
        parts.append(numbers)
    return np.stack(parts, 1)


def signal_values(file: TableFile, names: Sequence[str], missing: Sequence[str]) -> Array:
    """The signals of a file as float64 [rows, signals], NaN for an empty cell."""
    return _values(file, names, missing, may_lack=True)


# ---- recordings and windows ------------------------------------------------------------------------------------------


def _codes(cells: Sequence[Any]) -> Array:
    """A number for each different cell, -1 for those without a value, int64 [n]."""
    known: dict[str, int] = {}
    return np.array([-1 if is_missing(cell) else known.setdefault(text_of(cell), len(known)) for cell in cells], np.int64)


def recording_begins(file: TableFile, series: str | None) -> Array:
    """The rows where recordings begin: the first, and those whose series is another than that of the row before."""
    if series is None:
        return np.zeros(1, np.int64)
    code = _codes(file.columns[series])
    if len(empty := np.flatnonzero(code < 0)):
        raise DataError(
            f"{file.path}, {row_name(int(empty[0]), file.lines)}, column {series!r} is empty, expected the name of a recording"
        )
    return np.concatenate([[0], np.flatnonzero(np.diff(code)) + 1])


def _starts(begins: Array, n_rows: int, windows: SignalWindows) -> Array:
    """The rows where windows begin, int64 [n]: each lies in one recording."""
    ends = [*begins[1:].tolist(), n_rows]
    parts = [np.arange(begin, end - windows.length + 1, windows.step) for begin, end in zip(begins.tolist(), ends, strict=True)]
    return np.concatenate(parts)


def _too_short(path: Path, begins: Array, n_rows: int, length: int) -> str:
    longest = int(np.diff([*begins.tolist(), n_rows]).max())
    return f"{path} has no window of {length:,} rows: its longest recording has {longest:,}"


def _same(code: Array, lacks: Any) -> Any:
    """Says of windows [n] whether their rows all have one code, and none of them lacks: (starts, length) -> bool [n]."""
    changes = np.concatenate([[0], np.cumsum(np.diff(code) != 0)])
    lacking = np.concatenate([[0], np.cumsum(lacks)])
    return lambda starts, length: (
        (changes[starts + length - 1] == changes[starts]) & (lacking[starts + length] == lacking[starts])
    )


def guessed_task(file: TableFile, target: str) -> str:
    """What rows that have a target look like: classes, or numbers."""
    known = [cell for cell in file.columns[target] if not is_missing(cell)]
    return "classification" if make_target(known, None, f"{file.path}, column {target!r}")[1] else "regression"


def target_numbers(file: TableFile, target: str) -> Array:
    """The target of a regression, float64 [rows], NaN where it has no value."""
    cells = file.columns[target]
    numbers = [math.nan if is_missing(cell) else number_of(text_of(cell)) for cell in cells]
    if None in numbers:
        row = numbers.index(None)
        place = f"{file.path}, {row_name(row, file.lines)}, column {target!r}"
        raise DataError(f"{place}: {shown_text(text_of(cells[row]))}, expected a number for a regression")
    return np.array(numbers, np.float64)


def _held_together(
    file: TableFile, wanted: TableSettings, target: str | None, begins: Array, length: int
) -> tuple[tuple[str, str], str, Array]:
    """What is held out together, why not whole recordings, and for each row the number of what it belongs to, int64 [rows]."""
    n_rows = len(next(iter(file.columns.values())))
    if wanted.split == "groups":
        code = _codes(file.columns[str(wanted.split_by)])
        if len(empty := np.flatnonzero(code < 0)):
            raise DataError(
                f"{file.path}, {row_name(int(empty[0]), file.lines)}, column {wanted.split_by!r} is empty, expected a group"
            )
        return ("groups", str(wanted.split_by)), "", code
    series = None if wanted.series is None else _codes(file.columns[wanted.series])
    labels = np.zeros(n_rows, np.int64) if target is None else _codes(file.columns[target])
    why = "" if series is None else _few_series(series, labels, wanted)
    if series is not None and not why:
        kind = "latest" if wanted.split == "latest" else "groups"
        return (kind, str(wanted.series)), "", series
    block = max(SHORTEST_BLOCK * length, min(BLOCK * length, n_rows // BLOCKS))
    key, first = np.empty(n_rows, np.int64), 0
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), n_rows], strict=True):
        count = max(1, round((end - begin) / block))  # of equal lengths
        key[begin:end] = first + np.arange(end - begin) * count // (end - begin)
        first += count
    return ("latest blocks" if wanted.split == "latest" else "blocks", f"{block:,} rows"), why, key


def _few_series(series: Array, labels: Array, wanted: TableSettings) -> str:
    """Why recordings are not held out whole; empty where they are."""
    count = len(np.unique(series))
    if count < FEWEST_SERIES:
        return f"there are {count} recordings, and {FEWEST_SERIES} are needed to hold out whole ones"
    if wanted.task == "regression" or wanted.split == "latest":
        return ""
    known = np.unique(np.stack([labels, series], 1)[labels >= 0], axis=0)[:, 0]
    if (np.bincount(known)[np.unique(known)] < IN_SERIES).any():
        return "a class is in one recording only"
    return ""


def window_places(file: TableFile, rows: WindowRows, windows: SignalWindows) -> dict[str, Sequence[Any]]:
    """What is known of each window besides its inputs: its recording, where the file names it, its first and its last row."""
    told: dict[str, Sequence[Any]] = {}
    if windows.series is not None and windows.series in file.columns:
        told[windows.series] = [file.columns[windows.series][start] for start in rows.starts.tolist()]
    return told | {"first row": rows.starts.tolist(), "last row": (rows.starts + windows.length - 1).tolist()}

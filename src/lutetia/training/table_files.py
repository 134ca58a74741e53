"""Files of data as columns with names and types: CSV, parquet, npz, and folders of images by class."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia._shared.numbers import whole_number
from lutetia.errors import ArgumentError, DataError, LutetiaError, did_you_mean
from lutetia.files import check_file
from lutetia.models import MISSING_WORDS, UNUSUAL, UNUSUAL_CLASSES, Grams
from lutetia.training.arrays import read_npz
from lutetia.training.columns import (
    AS_ASKED,
    Column,
    is_missing,
    number_of,
    plain_numbers,
    read_column,
    row_name,
    why_left_out,
    without_words,
)
from lutetia.training.date_columns import DateColumn, DatesFound, constant_dates, dated, dates_text, find_dates, have_times
from lutetia.training.formats import Array
from lutetia.training.images import (
    ImageSettings,
    class_folders,
    images_in,
    labelled_images,
    read_images,
    where_images_lie,
)
from lutetia.training.parquet import read_parquet
from lutetia.training.queries import check_query, query_numbers, split_queries
from lutetia.training.row_columns import NONE as NO_ROW_COLUMNS
from lutetia.training.row_columns import RowColumns, RowReader
from lutetia.training.splits import RANDOM, Split
from lutetia.training.tables import read_cells
from lutetia.training.target_column import check_name, make_target
from lutetia.training.texts import check_texts, looks_like_text, read_texts, texts_text
from lutetia.training.units import find_unit, without_unit

if TYPE_CHECKING:
    from lutetia.training.forecasts import ForecastRead
    from lutetia.training.windows import WindowsRead

DEEPEST = 10  # rows from the top in which names of columns are looked for that are not in the first
UNNAMED = "column "  # and its number
KINDS = "a .csv, .parquet or .npz file, or a folder with a folder of images for each class"
TASKS = ("classification", "regression", "ranking", UNUSUAL)
AS_THEY_ARE = ImageSettings()


@dataclass(frozen=True, eq=False)
class TableFile:
    """What a file holds: columns of values by name, None for what is missing; or x [n, ...], and the targets of the rows.

    `skipped` names the rows, or the images, that were to be skipped because nothing can be learned from them, `left_out` the
    folders without images.
    """

    path: Path
    columns: dict[str, Column]
    x: Array | None = None
    target: list[Any] | None = None
    lines: list[int] | None = None  # of a text: where each row is
    skipped: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class LearningTable:
    """Numbers to learn from: x float64 [n, columns], NaN for missing; y int64 classes or float64 numbers [n].

    `categories` are the values that the numbers of a column stand for, `dates` says how those of a column of dates are written,
    whose numbers are seconds; `left_out` are the columns or folders that are not used, and why, `skipped` the rows or images.
    """

    x: Array
    y: Array
    features: list[str]
    classes: list[str]  # empty for a regression
    categories: dict[int, list[str]]
    left_out: dict[str, str]
    input_shape: tuple[int, ...]
    skipped: list[str] = field(default_factory=list)
    units: dict[int, str] = field(default_factory=dict)  # that the numbers of a column have in the file
    target_unit: str | None = None  # of a regression
    dates: dict[int, DateColumn] = field(default_factory=dict)
    weight: Array | None = None  # float32 [n]: how much rows count, 1 on average; None where all count alike
    split: Split = RANDOM  # by what rows are parted
    query: Array | None = None  # of a ranking: the number of the query of each row, int64 [n]
    texts: tuple[Grams, ...] = ()  # columns besides those of x
    windows: WindowsRead | None = None  # of signals, of which the rows of x are made
    forecast: ForecastRead | None = None  # or what is known before a moment that is forecast
    is_unusual: bool = False  # rows of which unusual ones are to be found: nothing is to be predicted, all y are 0

    @property
    def types(self) -> list[tuple[str, str]]:
        """Each column, and the type it was read as."""
        if (read := self.windows or self.forecast) is not None:
            return read.types
        told = []
        for number, name in enumerate(self.features):
            count = len(self.categories.get(number, ()))
            distinct = np.unique(self.x[:, number][np.isfinite(self.x[:, number])])
            missing = int(np.isnan(self.x[:, number]).sum())
            kind = f"{count:,} categor{'y' if count == 1 else 'ies'}" if count else "number"
            kind += f" in {self.units[number]}" if number in self.units else ""
            kind += "" if count else f", {len(distinct):,} values"
            words = [each for each in self.categories.get(number, ()) if number_of(each) is None]
            if words and 2 * len(words) < count:  # a column of numbers, but for a few cells
                kind += f", because {words[0]!r} is not a number"
            if number in self.dates:
                kind = dates_text(self.x[:, number], self.dates[number])
            told.append((name, kind + (f", {missing:,} missing" if missing else "")))
        for own in self.texts:
            told.insert(own.place, (own.name, texts_text(own)))
        return told


def task_of(table: LearningTable) -> str:
    """One of `TASKS`."""
    if table.is_unusual:
        return UNUSUAL
    return "classification" if table.classes else "regression" if table.query is None else "ranking"


def read_table_file(path: Path, images: ImageSettings = AS_THEY_ARE, skip: bool | None = None) -> TableFile:
    """Read a file or a folder of one of the kinds; `images` says how those of a folder are read, `skip` whether without those
    that are damaged: see `read_images`."""
    if path.is_dir():
        return _images(path, images, skip)
    suffix = "".join(path.suffixes[-2:]).lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    if suffix in (".csv", ".csv.gz", ".tsv"):
        cells = read_cells(path)
        if not cells.rows:
            raise DataError(f"{path} has column names and no rows below them, expected at least two")
        names, columns = named(cells.header or [""] * cells.width), list(zip(*cells.rows, strict=True))
        while cells.header is not None and len(columns) > 1 and not cells.header[len(columns) - 1] and not any(columns[-1]):
            columns.pop()  # each line ends with a delimiter
        _check_names(path, names)
        return TableFile(path, {name: _values(column) for name, column in zip(names, columns, strict=False)}, lines=cells.lines)
    if suffix in (".parquet", ".pq"):
        if not path.exists():
            raise DataError(f"{path} does not exist, expected {KINDS}")
        check_file(path, "a parquet file")
        try:
            return TableFile(path, read_parquet(path, _check_names))
        except LutetiaError:
            raise
        except Exception as error:  # pyarrow's errors have no common parent that says so
            raise DataError(f"{path} is not a parquet file, or is damaged: {error}") from error
    if suffix == ".npz":
        return _arrays(path)
    raise DataError(f"{path} {'does not exist' if not path.exists() else 'is no table'}, expected {KINDS}")


def _values(cells: Sequence[str]) -> Column:
    """The cells of a column of text, None for those that hold no value."""
    return Column([None if cell.lower() in MISSING_WORDS else cell for cell in cells])


def named(header: Sequence[str]) -> list[str]:
    """The names of columns; those without one are numbered."""
    return [name or f"{UNNAMED}{number}" for number, name in enumerate(header)]


def is_table(path: Path) -> bool:
    """Whether a path, by its name, holds data and not a config."""
    return path.is_dir() or path.name.lower().endswith((".csv", ".csv.gz", ".tsv", ".parquet", ".pq", ".npz"))


@dataclass(frozen=True)
class Reading:
    """How the columns of a file are read, besides what they look like: those of categories, those left out, words for no value,
    those of dates, and whether the day comes first in dates that do not say so. With `skip`, rows without a target, or without
    what `rows` asks of them, are skipped. Of a ranking, `query` is the column whose equal values are one query. `text` are the
    columns of text; None for those that look like it.
    """

    categorical: Sequence[str] = ()
    leave_out: Sequence[str] = ()
    missing: Sequence[str] = ()
    dates: Sequence[str] | None = None
    day_first: bool | None = None
    skip: bool = False
    rows: RowColumns = NO_ROW_COLUMNS
    query: str | None = None
    text: Sequence[str] | None = None


AS_GUESSED = Reading()


def make_table(file: TableFile, target: str | int | None, task: str | None, wanted: Reading = AS_GUESSED) -> LearningTable:
    """The columns as numbers; types and the task are guessed where they are not given."""
    if task is not None and task not in TASKS:
        raise ArgumentError(f"task is {task!r}, expected one of {', '.join(map(repr, TASKS))}")
    check_query(file.path, file.columns, task, wanted.query)
    if task == UNUSUAL:
        check_unusual(file, target, wanted)
    if file.x is not None:
        wanted.rows.check(file.columns, None, file.path)
        if wanted.rows.split != "random" and file.path.is_dir():
            raise DataError(f'data.split is "{wanted.rows.split}", expected "random": the images of a folder have no order')
        file = with_targets(file, ()) if wanted.skip else file
        y, classes = make_target([*(file.target or ())], task, str(file.path))
        assert file.x is not None
        x = file.x.astype(np.float64)
        names = [f"x{number}" for number in range(math.prod(x.shape[1:]))] if x.ndim == 2 else []
        split = RowReader({}, DatesFound({}, {}), file.path, file.lines).split(wanted.rows, len(x))
        shape = tuple(x.shape[1:])
        return LearningTable(x.reshape(len(x), -1), y, names, classes, {}, file.left_out, shape, file.skipped, split=split)
    name = None if task == UNUSUAL else find_target(file, target)
    targets = () if name is None else (name,)
    if name is not None and name == wanted.query:
        raise DataError(f"{file.path}, column {name!r} is the target, expected data.query to be another")
    _check_listed(file, wanted)
    besides = targets if wanted.query is None else (*targets, wanted.query)
    others = _columns(file, wanted, (*besides, *wanted.categorical, *(wanted.text or ())))
    found = find_dates(others, wanted.dates, wanted.day_first, file.lines)
    dropped = _left_out(file, wanted, found)
    wanted.rows.check(file.columns, name, file.path)
    dropped |= {column: why for column, why in wanted.rows.no_inputs.items() if column not in (*wanted.categorical, *besides)}
    file = with_targets(file, [*targets, *wanted.rows.names.values()], wanted.missing) if wanted.skip else file
    reader = RowReader(_columns(file, wanted, targets), found, file.path, file.lines)
    n_rows = len(next(iter(file.columns.values())))
    split, weight = reader.split(wanted.rows, n_rows), None
    if wanted.rows.weight is not None:
        weight = reader.weight(wanted.rows.weight)
    y, classes = np.zeros(n_rows, np.int64), list(UNUSUAL_CLASSES)
    if name is not None:
        y, classes = make_target(file.columns[name], task, f"{file.path}, column {name!r}", file.lines)
    query = None
    if wanted.query is not None:
        query = query_numbers(file.columns[wanted.query], f"{file.path}, column {wanted.query!r}", file.lines)
        split = split_queries(split, query, file.columns[wanted.query], wanted.rows.by)
    parts: list[Array] = []
    features: list[str] = []
    categories: dict[int, list[str]] = {}
    units: dict[int, str] = {}
    dates: dict[int, DateColumn] = {}
    texts: list[Grams] = []
    for column, values in _columns(file, wanted, (*besides, *dropped)).items():
        order, unit = found.orders.get(column), None
        known: list[str] = []
        if order is not None:
            numbers = dated(values, order, f"{file.path}, column {column!r}", file.lines)
            why = constant_dates(numbers)
        else:
            unit = None if column in wanted.categorical or column in (wanted.text or ()) else find_unit(values)
            may_be_text = name is not None and column not in wanted.categorical and unit is None
            if may_be_text and _is_text(column, values, wanted, found):
                texts.append(read_texts(values, column, len(parts) + len(texts)))
                continue
            why, numbers, known = read_column(without_unit(values, unit), column in wanted.categorical)
            why = found.unused.get(column, why)
        if why:
            dropped[column] = why
            continue
        if order is not None:
            dates[len(parts)] = DateColumn(order, have_times(numbers))
        if unit is not None:
            units[len(parts)] = unit
        if known:
            categories[len(parts)] = known
        parts.append(numbers)
        features.append(column)
    if not parts and not texts:
        besides_target = "" if name is None else f" besides {name!r}"
        raise DataError(f"{file.path} has no column to learn from{besides_target}")
    target_unit = None if classes or name is None else find_unit(file.columns[name])
    x, shape = np.stack(parts, 1) if parts else np.empty((len(y), 0)), (len(parts),)
    skipped = file.skipped
    return LearningTable(
        x, y, features, classes, categories, dropped, shape, skipped, units, target_unit, dates, weight=weight, split=split,
        query=query, texts=tuple(texts), is_unusual=task == UNUSUAL,
    )  # fmt: skip


def check_unusual(file: TableFile, target: str | int | None, wanted: Reading) -> None:
    """Refuse what unusual rows are not found in, or by."""
    if file.x is not None or file.path.suffix.lower() == ".npz":
        raise DataError(f"{file.path} holds arrays or images, expected a .csv or .parquet file to find unusual rows in")
    if target is not None:
        hint = "data.leave_out leaves columns out"
        raise DataError(f"data.target is {target!r}, expected none to find unusual rows, which predicts nothing: {hint}")
    for key, given in (("text", wanted.text), ("weight", wanted.rows.weight)):
        if given:
            raise DataError(f"data.{key} is {given!r}, expected none: unusual rows are not found by it")


def _is_text(column: str, values: Sequence[Any], wanted: Reading, found: DatesFound) -> bool:
    """Whether a column is to be read as text: as data.text says, or without it as the column looks."""
    if wanted.text is not None:
        return column in wanted.text
    return column not in found.unused and plain_numbers(values) is None and looks_like_text(values)


def _columns(file: TableFile, wanted: Reading, besides: Collection[str]) -> dict[str, Sequence[Any]]:
    """All columns but some, None for what is missing by the words for it."""
    return {name: without_words(values, wanted.missing) for name, values in file.columns.items() if name not in besides}


def _left_out(file: TableFile, wanted: Reading, found: DatesFound) -> dict[str, str]:
    """The columns that are to be left out, and why."""
    columns, why = _columns(file, wanted, ()), {**dict.fromkeys(found.orders, AS_ASKED), **found.unused}
    return {name: why.get(name) or why_left_out(name, columns[name], name in wanted.categorical) for name in wanted.leave_out}


def _check_listed(file: TableFile, wanted: Reading) -> None:
    """Refuse settings that name columns which the file does not have, or one column as two types."""
    listed = {"categorical": wanted.categorical, "leave_out": wanted.leave_out, "dates": wanted.dates or ()}
    for kind, given in (*listed.items(), ("text", wanted.text or ())):
        unknown = [each for each in given if each not in file.columns]
        if unknown:
            hint = did_you_mean(unknown[0], file.columns)
            raise DataError(f"data.{kind} has {unknown[0]!r}, which is not a column of {file.path}: {hint}")
    twice = [each for each in wanted.dates or () if each in wanted.categorical]
    if twice:
        raise DataError(f"data.dates and data.categorical both have {twice[0]!r}, expected it in one of them")
    check_texts(wanted.text or (), listed)


def with_targets(file: TableFile, names: Sequence[str], missing: Sequence[str] = ()) -> TableFile:
    """The rows that have a value in the columns of these names, or a target beside arrays; the others are named as skipped. In
    all columns but the first, that of the target, some words stand for no value."""
    needed = [file.columns[name] if not at else without_words(file.columns[name], missing) for at, name in enumerate(names)]
    rows = zip(*(needed or [file.target or ()]), strict=True)
    lacking = [any(map(is_missing, row)) for row in rows]
    kept = [row for row, lacks in enumerate(lacking) if not lacks]
    if not kept:
        raise DataError(f"{file.path} has no row with a target, expected at least two")
    return replace(
        file,
        columns={title: Column([column[row] for row in kept]) for title, column in file.columns.items()},
        x=None if file.x is None else file.x[kept],
        target=None if file.target is None else [file.target[row] for row in kept],
        lines=None if file.lines is None else [file.lines[row] for row in kept],
        skipped=[*file.skipped, *(row_name(row, file.lines) for row, lacks in enumerate(lacking) if lacks)],
    )


def find_target(file: TableFile, target: str | int | None) -> str:
    """The column that `target` names, by name or by number from 0; the last by default."""
    names = list(file.columns)
    if len(names) < 2:
        wanted = "expected a feature and a target, with commas, semicolons, tabs or | between the cells"
        raise DataError(f"{file.path} has one column, {wanted}")
    if target is None:
        return names[-1]
    if str(target) in names:
        return str(target)
    number = whole_number(str(target))
    if number is not None and -len(names) <= number < len(names):
        return names[number]
    lower = next((row for row in range(min(DEEPEST, *map(len, file.columns.values()))) if _has(file, row, str(target))), None)
    if lower is not None:
        place = row_name(lower, file.lines)
        raise DataError(f"{file.path} has no column {target!r}, but {place} has a cell of that name: remove the lines above it")
    raise DataError(f"{file.path} has no column {target!r} to predict (--target): {did_you_mean(target, names)}")


def _has(file: TableFile, row: int, cell: str) -> bool:
    return any(column[row] == cell for column in file.columns.values())


def _check_names(path: Path, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        check_name(f"{path} has a column", name)
        if name in seen:
            raise DataError(f"{path} has two columns named {name!r}, expected every name once")
        seen.add(name)


def _arrays(path: Path) -> TableFile:
    arrays = read_npz(path)
    by_name: Mapping[str, Array] = {name.lower(): array for name, array in arrays.items()}
    x, y = by_name.get("x", by_name.get("x_train")), by_name.get("y", by_name.get("y_train"))
    if x is None or y is None or x.ndim < 2 or len(x) != len(y) or y.ndim != 1 or x.dtype.kind not in "iufb":
        raise DataError(f"{path} holds {', '.join(arrays) or 'nothing'}, expected numbers x [n, ...] and y [n]")
    names = by_name.get("feature_names", by_name.get("features"))
    words = by_name.get("target_names", by_name.get("classes"))
    targets = y.tolist()
    if words is not None and y.dtype.kind in "iu":
        if words.ndim != 1 or not ((y >= 0) & (y < len(words))).all():
            raise DataError(f"{path} has {words.size} class names and other numbers in y, expected a name for each number")
        targets = [str(words[each]) for each in y]
    if x.ndim == 2:
        titles = [str(name) for name in names] if names is not None and names.shape == (x.shape[1],) else None
        titles = titles or [f"x{number}" for number in range(x.shape[1])]
        _check_names(path, titles)
        target = "y" if "y" not in titles else "target y"
        return TableFile(path, {**{name: Column(x[:, at].tolist()) for at, name in enumerate(titles)}, target: Column(targets)})
    return TableFile(path, {}, x.astype(np.float64) / (255 if x.dtype == np.uint8 else 1), targets)


def _images(path: Path, settings: ImageSettings, skip: bool | None) -> TableFile:
    """A folder of folders, each named after the class of its images."""
    files = labelled_images(path)
    if not files:
        raise DataError(f"{path} holds no folders with images, expected {KINDS}{where_images_lie(path)}")
    x, skipped = read_images([image for image, _ in files], settings, skip)
    damaged = set(skipped)
    targets = [name for image, name in files if image not in damaged]
    empty = {folder.name: "a folder without images" for folder in class_folders(path) if not images_in(folder)}
    return TableFile(path, {}, x, targets, skipped=[str(image) for image in skipped], left_out=empty)

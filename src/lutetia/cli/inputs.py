"""Inputs on the command line: rows of numbers, files of them, images; text for a language model."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lutetia.cli.forecasts import read_forecast
from lutetia.cli.guard import UsageError, did_you_mean
from lutetia.cli.naming import feature_names
from lutetia.cli.show import one_line
from lutetia.cli.values import UNKNOWN
from lutetia.cli.windows import read_windows, window_names
from lutetia.errors import DataError, nearest
from lutetia.files import read_bytes
from lutetia.models import Classifier, LUTTransformer, Tabular, data_columns, load, text_columns, text_inputs
from lutetia.training import (
    IMAGE_SUFFIXES,
    UNNAMED_COLUMN,
    Cells,
    ImageSettings,
    TableFile,
    as_texts,
    check_expansion,
    check_file,
    class_numbers,
    colours_first,
    column_names,
    date_numbers,
    images_in,
    is_damaged,
    is_number,
    labelled_images,
    numeric_columns,
    read_cells,
    read_npy,
    read_npz,
    read_pixels,
    read_table_file,
    unknown_categories,
    without_unit,
    without_words,
)

CELLS, COLUMNS, ARRAYS = (".csv", ".tsv", ".csv.gz"), (".parquet", ".pq"), (".npy", ".npz")  # files with rows
KINDS = "an image (.png, .pgm, ...), a .csv, .parquet, .npy or .npz file, or values with commas between them"
MOST_BYTES = 1 << 26  # of a file: nothing here has larger inputs


class NamedInputs(NamedTuple):
    """Samples for a classifier, and what each is called."""

    x: Tensor  # [n, *input_shape], floats, or uint8 for pixels from 0 to 255
    names: list[str]
    columns: dict[str, Sequence[Any]] | None = None  # of a file of columns, also those that the model does not use
    typed: dict[str, Sequence[Any]] | None = None  # the columns of a row that was typed


def load_for_inputs(checkpoint: Path, unknown: str | None) -> Any:
    """The model of a checkpoint, told what a category is that it has not seen: "error", "missing", or None for what it says."""
    if unknown is not None and unknown not in UNKNOWN:
        raise UsageError(f"--unknown is {unknown!r}: {did_you_mean(unknown, UNKNOWN)}")
    model: Any = load(checkpoint)
    if unknown is not None:
        model.metadata = {**model.metadata, "unknown": unknown}
    return model


def read_inputs(model: Classifier, given: Sequence[str]) -> list[NamedInputs]:
    """All named samples, file by file; for a folder, its images."""
    return [inputs for each in given for path in _files(each) for inputs in [_read(model, path)]]


def read_usable(model: Classifier, given: Sequence[str]) -> tuple[list[NamedInputs], dict[str, DataError]]:
    """All named samples, and by their names why damaged images are not among them; an error if nothing else is named."""
    inputs: list[NamedInputs] = []
    damaged: dict[str, DataError] = {}
    for path in [path for each in given for path in _files(each)]:
        try:
            inputs.append(_read(model, path))
        except DataError as error:
            if not (Path(path).suffix.lower() in IMAGE_SUFFIXES and exists(Path(path)) and is_damaged(Path(path))):
                raise
            damaged[path] = error
    if not inputs:
        raise next(iter(damaged.values()))
    return inputs, damaged


def read_sample(model: Classifier, given: str, row: int | None) -> NamedInputs:
    """One sample [1, *input_shape], floats or uint8; from a file of rows, the row of this number, by default the first."""
    path = Path(given)
    if not given:
        raise DataError(f"INPUT is empty, expected {KINDS}")
    if exists(path) and path.is_dir():
        raise DataError(f"{path} is a folder, expected {KINDS}")
    x, names, columns, typed = _read(model, given)
    is_array = path.name.lower().endswith(ARRAYS)
    has_rows = exists(path) and (is_array or path.name.lower().endswith(CELLS + COLUMNS))
    if row is not None and not (has_rows and (not is_array or len(x) > 1)):
        raise DataError(f"--row is {row}, but {given} has no rows: only .csv files and arrays of several samples do")
    number = row if row is not None else len(x) - 1 if "forecast" in model.metadata else 0  # the last window tells the future
    if not 0 <= number < len(x):
        what = "windows, which --row counts" if {"windows", "forecast"} & model.metadata.keys() else "rows of values"
        raise DataError(f"--row is {number}, expected 0 to {len(x) - 1}: {path} has {len(x):,} {what}")
    at = slice(number, number + 1)
    return NamedInputs(x[at], names[at], None if columns is None else {name: each[at] for name, each in columns.items()}, typed)


def read_tokens(model: LUTTransformer, given: str) -> Tensor:
    """The input of a language model, int64 [S]: the bytes of the file of that name, or of the text; of a long one the end."""
    path = Path(given)
    if given and exists(path):  # an empty name would be this folder
        _check_file(path, "a file of text, or the text itself")
        data = read_bytes(path, "a file of text")
    else:
        data = given.encode("utf-8", "surrogateescape")  # bytes of the shell that are no UTF-8 stay what they were
    if not data:
        raise DataError("INPUT is empty, expected text, or a file that is not empty")
    tokens = torch.tensor(list(data[-model.config.context :]))
    bad = int(tokens.max())
    if bad >= model.config.vocab:
        raise DataError(f"INPUT has the byte {bad}, expected 0 to {model.config.vocab - 1}, the vocabulary of the model")
    return tokens.to(model.embedding.weight.device)


def feature_columns(model: Classifier, cells: Cells) -> list[int]:
    """The columns of a CSV file that are the inputs of the model: by their names where both have them, else all, or all but the
    last, which then is the class."""
    names = column_titles(model)
    wanted = len(names) or math.prod(model.config.input_shape)
    header = [] if cells.header is None else column_names(cells.header)
    if cells.header is None and cells.width > wanted and all(name.startswith(UNNAMED_COLUMN) for name in names):
        header = column_names([""] * cells.width)  # as when it was trained: the class may stand anywhere
    if names and header and len(set(names)) == len(names):
        lacking = [name for name in names if name not in header]
        if not lacking:
            return [header.index(name) for name in names]
        if len(lacking) < len(names):
            raise DataError(_lacking_text(cells.path, lacking[0], header))
    if cells.width not in (wanted, wanted + 1):
        raise DataError(f"{cells.path} has {cells.width} numbers in a row, expected {wanted} for this model")
    return list(range(wanted))


def _lacking_text(path: Path, name: str, names: Sequence[str]) -> str:
    """That a file has no column of a name that the model knows, and which of its names may be meant."""
    near = nearest(name, names)
    return f"{path} has no column {name!r}, which the model was trained on" + (f": is it {near!r}?" if near else "")


def named_rows(model: Tabular, file: TableFile) -> np.ndarray:
    """The columns of a file that the model was trained on, by their names, as its inputs, float64 [n, inputs]."""
    names = column_titles(model)
    lacking = [name for name in names or ["x0"] if name not in file.columns]
    if lacking:
        raise DataError(_lacking_text(file.path, lacking[0], list(file.columns)))
    cells = [(file.columns[name], f"{file.path}, column {name!r}") for name in names]
    return _as_inputs(model, cells, file.lines)


def column_titles(model: Classifier) -> list[str]:
    """The names of the columns of the data, as it wrote them: those of the inputs, but for texts and signals; none where it did
    not."""
    names = feature_names(model)
    is_made = "texts" in model.metadata or "windows" in model.metadata
    return [each.name for each in data_columns(model.metadata, len(names))] if is_made else names


def _as_inputs(model: Tabular, cells: Sequence[tuple[Sequence[Any], str]], lines: Sequence[int] | None) -> np.ndarray:
    """The cells of the columns of the data, and what messages call each, as inputs of the model, float64 [n, inputs]."""
    columns = data_columns(model.metadata, model.n_columns)
    parts = [
        _numbers(model, each.input, values, where, lines)
        for each, (values, where) in zip(columns, cells, strict=True)
        if each.input is not None
    ]
    words = model.metadata.get("missing", [])
    found = {
        each.text.name: each.text.read(as_texts(without_words(values, words)))
        for each, (values, _) in zip(columns, cells, strict=True)
        if each.text is not None
    }
    plain = np.stack(parts, 1) if parts else np.empty((len(cells[0][0]), 0))
    if not found:
        return plain
    texts = text_columns(model.metadata)
    return np.concatenate([plain, text_inputs(texts, [found[each.name] for each in texts])], 1)


def _numbers(model: Tabular, number: int, values: Sequence[Any], where: str, lines: Sequence[int] | None) -> np.ndarray:
    """The cells of an input of the model as it was trained on them, float64 [n]: without its unit, categories by name, dates as
    seconds."""
    known = model.metadata
    values, unit = without_words(values, known.get("missing", [])), known.get("units", {}).get(str(number))
    if (dates := known.get("dates", {}).get(str(number))) is not None:
        return date_numbers(values, dates["order"], where, lines)
    names = category_names(known.get("categories", {}), number)
    where = where if unit is None else f"{where}, in {unit}"
    return class_numbers(without_unit(values, unit), names, where, lines, known.get("unknown", "error"))


def category_names(categories: Mapping[str, Sequence[Any]], number: int) -> list[str] | None:
    """The categories of a column as texts; None for a column of numbers."""
    known = categories.get(str(number))
    return None if known is None else [str(name) for name in known]


def unknown_warnings(model: Classifier, columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """A sentence for each column with categories that the model has not seen, which it takes for missing."""
    told = []
    for number, name in enumerate(feature_names(model)):
        known = category_names(model.metadata.get("categories", {}), number)
        if known is None or name not in columns:
            continue
        strange = unknown_categories(without_words(columns[name], model.metadata.get("missing", [])), known)
        if strange:
            rows = "1 row has" if len(strange) == 1 else f"{len(strange):,} rows have"
            such = f"such as {one_line(strange[0])!r}"
            told.append(f"{rows} a value of {one_line(name)} that the model has not seen, {such}: taken for missing")
    return told


def tabular_rows(model: Tabular, cells: Cells, columns: Sequence[int]) -> np.ndarray:
    """Columns of a CSV file as inputs of the model, float64 [n, inputs]: empty cells are missing, categories given by name."""
    own = [([row[column] for row in cells.rows], f"{cells.path}, {cells.column_name(column)}") for column in columns]
    return _as_inputs(model, own, cells.lines)


# ---- files -----------------------------------------------------------------------------------------------------------


def _files(given: str) -> list[str]:
    """The named file, or the images of a folder, sorted by name; or those of its subfolders, one for each class."""
    path = Path(given)
    if not (exists(path) and path.is_dir()):
        return [given]
    images = sorted(map(str, images_in(path) or [image for image, _ in labelled_images(path)]))
    if not images:
        raise DataError(f"{path} is a folder without images, expected {KINDS}, or a folder of images, or of folders of images")
    return images


def _read(model: Classifier, given: str) -> NamedInputs:
    shape, path = tuple(model.config.input_shape), Path(given)
    if "windows" in model.metadata:
        return _windows(model, given)
    if isinstance(model, Tabular) and "forecast" in model.metadata:
        made, names, told = read_forecast(model, path)
        return NamedInputs(torch.from_numpy(made), names, told)
    titles = column_titles(model) if isinstance(model, Tabular) else []
    is_text = titles[1:] == [] and "texts" in model.metadata  # a column alone needs no comma, nor quotes
    if isinstance(model, Tabular) and titles and (is_text or "," in given) and not exists(path):
        return _typed_row(model, given, is_text)
    if _is_numbers(given) and not exists(path):
        return NamedInputs(_fit(_typed(given), shape, "INPUT")[None], [given])
    if not exists(path):
        raise DataError(f"{_short(given)} does not exist, expected {KINDS}")
    _check_file(path, KINDS)
    suffix, has_cells = path.suffix.lower(), path.name.lower().endswith(CELLS)
    if has_cells or (suffix in COLUMNS and isinstance(model, Tabular)):
        if has_cells or not isinstance(model, Tabular):
            rows, columns = _cells(model, path)
        else:
            file = read_table_file(path)
            rows, columns = named_rows(model, file), dict(file.columns)
        if not len(rows):
            raise DataError(f"{path} has 0 rows of values, expected at least one")
        names = [f"{path} row {number}" for number in range(len(rows))]
        return NamedInputs(torch.from_numpy(rows.reshape(-1, *shape)), names, columns)
    if suffix in ARRAYS:
        x = _fit_rows(_array(path), shape, str(path))
        return NamedInputs(x, [str(path)] if len(x) == 1 else [f"{path} row {number}" for number in range(len(x))])
    if suffix in IMAGE_SUFFIXES:
        return NamedInputs(_fit(_image(path, shape, image_settings(model)), shape, str(path))[None], [str(path)])
    raise DataError(f"{given} ends in {suffix or 'no suffix'}, expected {KINDS}")


def _windows(model: Classifier, given: str) -> NamedInputs:
    """The windows of a recording, each called by its rows."""
    if exists(path := Path(given)):
        _check_file(path, KINDS)
    rows, columns = read_windows(model, path)
    return NamedInputs(torch.from_numpy(rows.inputs), window_names(path, columns), columns)


def _cells(model: Classifier, path: Path) -> tuple[np.ndarray, dict[str, Sequence[Any]]]:
    """The inputs of the model in a CSV file [n, columns], and all its columns by name."""
    cells = read_cells(path)
    wanted = feature_columns(model, cells)
    rows = tabular_rows(model, cells, wanted) if isinstance(model, Tabular) else numeric_columns(cells, wanted)
    return rows, columns_by_name(cells)


def columns_by_name(cells: Cells) -> dict[str, Sequence[Any]]:
    """All columns of a CSV file, also those that share a name."""
    columns: dict[str, Sequence[Any]] = {}
    names = column_names(cells.header or [""] * cells.width)
    by_column = zip(*cells.rows, strict=True) if cells.rows else [()] * len(names)
    for number, (name, values) in enumerate(zip(names, by_column, strict=True)):
        columns[name if name not in columns else f"{name} ({UNNAMED_COLUMN}{number})"] = values
    return columns


def exists(path: Path) -> bool:
    """Whether a file of this name exists; False for text that cannot be a name."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _short(given: str) -> str:
    """What was typed, or the beginning of it."""
    return given if len(given) <= 80 else f"{given[:80]}…"


def _check_file(path: Path, what: str) -> None:
    check_file(path, what)
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path} has {path.stat().st_size:,} bytes, expected {MOST_BYTES:,} at most")


# ---- kinds of files --------------------------------------------------------------------------------------------------


def _is_numbers(text: str) -> bool:
    cells = text.split(",")
    return len(cells) > 1 and all(map(is_number, cells))


def _typed(text: str) -> np.ndarray:
    return _finite(np.array([float(cell) for cell in text.split(",")]), "INPUT")


def _typed_row(model: Tabular, text: str, is_cell: bool) -> NamedInputs:
    """One row of a table of data as it would stand in a CSV file; or the one cell of a row, as it is."""
    (values,) = [[text]] if is_cell else csv.reader([" ".join(text.splitlines())], skipinitialspace=True)
    names = column_titles(model)
    if len(values) != len(names):
        raise DataError(f"INPUT has {len(values)} values, expected {len(names)}: {', '.join(map(one_line, names))}")
    x = tabular_rows(model, Cells(Path("INPUT"), names, [values], [1]), range(len(names)))
    return NamedInputs(torch.from_numpy(x), [text], None, {name: [value] for name, value in zip(names, values, strict=True)})


def _array(path: Path) -> np.ndarray:
    if path.suffix.lower() == ".npz":
        arrays = read_npz(path)
        keys = [key for key in arrays if key in ("x", "X")] or list(arrays)
        if not keys or (len(arrays) > 1 and keys[0] not in ("x", "X")):
            raise DataError(f"{path} holds {', '.join(arrays) or 'nothing'}, expected an array x, or a single array")
        array: Any = arrays[keys[0]]
    else:
        array = read_npy(path)
    if array.dtype.kind not in "iuf":
        raise DataError(f"{path} holds {array.dtype}, expected one array of numbers")
    return array if array.dtype == np.uint8 else _finite(array, str(path))


def _finite(values: np.ndarray, where: str) -> np.ndarray:
    """The values as float32, which must hold them."""
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    if not np.isfinite(values).all():
        raise DataError(f"{where} holds values that are not finite in 32 bits, expected numbers")
    return values


def image_settings(model: Classifier) -> ImageSettings:
    """How a model reads images: resized if those it learned from were, in colour if it has three channels."""
    shape = tuple(model.config.input_shape)
    size = (shape[-2], shape[-1]) if model.metadata.get("resized") and len(shape) > 1 else None
    return ImageSettings(size, len(shape) == 3 and shape[0] == 3)


def _image(path: Path, shape: tuple[int, ...], settings: ImageSettings) -> np.ndarray:
    """Pixels as uint8: grey [H, W] for a model of one channel, [3, H, W] for one of three."""

    def check_size(width: int, height: int) -> None:
        if settings.size is None:
            _check_pixels(path, (width, height), shape)
        else:
            check_expansion(path, width * height * np.dtype(np.float64).itemsize)

    pixels = read_pixels(path, "RGB" if settings.colour else "L", check_size, settings.size)
    return np.moveaxis(pixels, -1, 0).copy() if settings.colour else pixels


def _check_pixels(path: Path, size: tuple[int, int], shape: tuple[int, ...]) -> None:
    """Refuse an image of another size, (width, height), than the model takes, before its pixels are decoded."""
    if len(shape) == 1:
        if size[0] * size[1] != shape[0]:
            raise DataError(f"{path} has {size[0] * size[1]:,} pixels, expected {shape[0]:,} for this model")
    elif size != (shape[-1], shape[-2]):
        pixels = f"{size[1]} × {size[0]}"
        raise DataError(f"{path} has {pixels} pixels, expected {shape[-2]} × {shape[-1]} (height × width) for this model")


def _fit(values: np.ndarray, shape: tuple[int, ...], where: str) -> Tensor:
    """The values in the shape of the model's input, where it holds as many."""
    if values.size != math.prod(shape):
        sizes = " × ".join(map(str, shape))
        raise DataError(f"{where} has {values.size} numbers, expected {math.prod(shape)}: the model takes {sizes}")
    return torch.from_numpy(values.reshape(shape))


def _fit_rows(values: np.ndarray, shape: tuple[int, ...], where: str) -> Tensor:
    """One sample or several, [n, ...], as [n, *shape]."""
    size, values = math.prod(shape), colours_first(values, shape)
    if values.ndim > 1 and len(values) and values.size == len(values) * size:
        return torch.from_numpy(np.ascontiguousarray(values)).reshape(-1, *shape)
    return _fit(values, shape, where)[None]

"""What a model is given on the command line: an image or a row of numbers for a classifier, text for a language model."""

from __future__ import annotations

import csv
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import DataError, require
from lutetia.models import LUTClassifier, LUTTransformer

IMAGES = (".png", ".pgm", ".ppm", ".pbm", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
KINDS = "an image (.png, .pgm, ...), a .npy array, a .csv file, or numbers with commas between them"
MOST_BYTES = 1 << 26  # of a file: nothing here has larger inputs


def read_sample(model: LUTClassifier, given: str, row: int | None) -> Tensor:
    """The input of a classifier: float32 or uint8 [*input_shape]."""
    shape = tuple(model.config.input_shape)
    path = Path(given)
    if _is_numbers(given) and not path.exists():
        return _fit(_numbers(given, given), shape, "INPUT")
    if not _exists(path):
        raise DataError(f"{given} does not exist, expected {KINDS}")
    _check_file(path, KINDS)
    suffix = path.suffix.lower()
    if row is not None and suffix != ".csv":
        raise DataError(f"--row is {row} and {given} is not a .csv file, which alone has rows")
    if suffix == ".csv":
        return _fit(_csv_row(path, row or 0, math.prod(shape)), shape, str(path))
    if suffix == ".npy":
        return _fit(_array(path), shape, str(path))
    if suffix in IMAGES:
        return _fit(_image(path, shape), shape, str(path))
    raise DataError(f"{given} ends in {suffix or 'no suffix'}, expected {KINDS}")


def read_tokens(model: LUTTransformer, given: str) -> Tensor:
    """The input of a language model, int64 [S]: the bytes of a file of that name, else of the text; of a long one the end."""
    path = Path(given)
    if _exists(path):
        _check_file(path, "a file of text, or the text itself")
        data = _bytes(path)
    else:
        data = given.encode("utf-8", "surrogateescape")  # bytes of the shell that are no UTF-8 stay what they were
    if not data:
        raise DataError("INPUT is empty, expected text, or a file that holds some")
    return torch.tensor(list(data[-model.config.context :]))


def _exists(path: Path) -> bool:
    """Whether a file has this name; a text too long or too odd for a name is no file's."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _check_file(path: Path, what: str) -> None:
    if path.is_dir():
        raise DataError(f"{path} is a folder, expected {what}")
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path} has {path.stat().st_size:,} bytes, expected {MOST_BYTES:,} at most")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


# ---- kinds of files --------------------------------------------------------------------------------------------------


def _is_numbers(text: str) -> bool:
    cells = text.split(",")
    return len(cells) > 1 and all(_is_number(cell) for cell in cells)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _numbers(text: str, where: str) -> np.ndarray:
    return np.array([float(cell) for cell in text.split(",")], np.float32)


def _csv_row(path: Path, row: int, n_features: int) -> np.ndarray:
    """One row, counted from 0 below the names where there are any; a last column too many is the class, and left out."""
    try:
        rows = [each for each in csv.reader(_bytes(path).decode("utf-8-sig").splitlines()) if each]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file: {error}") from error
    if rows and not all(_is_number(cell) for cell in rows[0][:n_features]):
        rows = rows[1:]
    if not 0 <= row < len(rows):
        raise DataError(f"{path} has {len(rows)} rows of values, expected one more than --row {row} at least")
    cells = rows[row]
    if len(cells) == n_features + 1:
        cells = cells[:-1]
    bad = next((cell for cell in cells if not _is_number(cell)), None)
    if bad is not None:
        raise DataError(f"{path}, row {row}: {bad!r} is not a number")
    return np.array([float(cell) for cell in cells], np.float32)


def _array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not an array of plain numbers, or is damaged: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf":
        raise DataError(f"{path} holds {getattr(array, 'dtype', 'several arrays')}, expected one array of numbers")
    array = array if array.dtype == np.uint8 else array.astype(np.float32)
    if not np.isfinite(array).all():
        raise DataError(f"{path} holds values that are not finite, expected numbers")
    return array


def _image(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Pixels as uint8: grey [H, W] for a model of one channel, [3, H, W] for one of three."""
    pillow: Any = require("PIL.Image", "reading images", "pillow")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(path) as image:
                wanted = shape[1:] if len(shape) == 3 else shape
                if len(shape) > 1 and image.size != (wanted[1], wanted[0]):
                    found = f"{image.size[1]} × {image.size[0]}"
                    raise DataError(
                        f"{path} has {found} pixels, expected {wanted[0]} × {wanted[1]} (height × width) by the model"
                    )
                colour = len(shape) == 3 and shape[0] == 3
                pixels = np.asarray(image.convert("RGB" if colour else "L"))
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise DataError(f"{path} is not an image that can be read, or is damaged: {error}") from error
    return np.moveaxis(pixels, -1, 0).copy() if colour else pixels.copy()


def _fit(values: np.ndarray, shape: tuple[int, ...], where: str) -> Tensor:
    """The values in the shape of the model's input, where it holds as many."""
    if values.size != math.prod(shape):
        sizes = " × ".join(map(str, shape))
        raise DataError(f"{where} has {values.size} numbers, expected {math.prod(shape)} by the model, which takes {sizes}")
    return torch.from_numpy(values.reshape(shape))

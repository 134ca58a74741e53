"""Untrusted numpy files, .npy and .npz: never unpickled, and never using more memory than the size of the file justifies."""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from lutetia.errors import DataError
from lutetia.files import open_file
from lutetia.training.formats import Array, check_expansion, check_file

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  # 3.0 is for names of fields
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy writes


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an npz file; those that only a pickle could hold are refused."""
    check_file(path, "an npz file")
    try:
        with open_file(path, "an npz file") as raw:
            if raw.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                raise DataError(f"{path} holds a single array, expected an npz file with several named ones")
            with zipfile.ZipFile(raw) as archive:
                return _arrays(archive, path)
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and numpy's parser of headers raise nearly anything for a damaged file
        raise DataError(f"{path} is not an npz file of plain arrays, or is damaged: {_words(error)}") from error


def read_npy(path: Path) -> Array:
    """The array of an npy file."""
    check_file(path, "an npy file")
    try:
        with open_file(path, "an npy file") as raw:
            return _array(raw, os.fstat(raw.fileno()).st_size)
    except DataError:
        raise
    except Exception as error:  # as above
        raise DataError(f"{path} is not an array of plain numbers, or is damaged: {_words(error)}") from error


def _arrays(archive: zipfile.ZipFile, path: Path) -> dict[str, Array]:
    members = archive.infolist()
    check_expansion(path, sum(member.file_size for member in members))
    arrays: dict[str, Array] = {}
    for member in members:
        if member.compress_type not in ZIP_METHODS:
            raise ValueError(f"{member.filename!r} is compressed by method {member.compress_type}, expected deflate or none")
        with archive.open(member) as file:
            arrays[member.filename.removesuffix(".npy")] = _array(file, member.file_size)  # type: ignore[arg-type]
    return arrays


def _array(file: BinaryIO, size: int) -> Array:
    """The array in a stream of a given number of bytes."""
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"its version is {version}, expected 1.0 or 2.0")
    shape, column_first, dtype = HEADERS[version](file)
    if dtype.kind not in "biufcSU" or not dtype.itemsize:
        raise ValueError(f"it holds {dtype}, expected numbers or strings")
    count = math.prod(shape)
    if any(side < 0 for side in shape) or count * dtype.itemsize > size:
        raise ValueError(f"its shape is {list(shape)}, more than its {size:,} bytes hold")
    data = file.read(count * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        raise ValueError(f"it ends after {len(data):,} bytes, expected {count * dtype.itemsize:,}")
    array: Any = np.frombuffer(bytearray(data), dtype, count).reshape(shape, order="F" if column_first else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)


def _words(error: Exception) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__

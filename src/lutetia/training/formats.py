"""Files of data as arrays: idx, npz, and raw bytes by memory map. A file that is not what it should be is named.

idx is the format of MNIST: two zero bytes, a byte for the type, a byte for the number of dimensions, their sizes as big-endian
32-bit integers, then the values. A name that ends in .gz is decompressed on the way.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from lutetia.errors import DataError
from lutetia.files import write_atomically

Array = np.ndarray[Any, Any]
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)


def check_file(path: Path, what: str) -> Path:
    """The path, when a file is there; `what` says what was expected."""
    if path.is_dir():
        raise DataError(f"{path} is a folder, expected {what}")
    if not path.exists():
        raise DataError(f"{path} does not exist, expected {what}")
    return path


def read_whole(path: Path, what: str) -> bytes:
    """The bytes of a file, decompressed where its name ends in .gz."""
    check_file(path, what)
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except GZIP_ERRORS as error:
        raise DataError(f"{path} is truncated or damaged ({error}), expected {what}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def read_idx(path: Path) -> Array:
    """An idx file, .gz or not, in the byte order of this machine."""
    data = read_whole(path, "an idx file")
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX_TYPES or not data[3]:
        raise DataError(f"{path} begins with {data[:4].hex(' ') or 'nothing'}, expected an idx file: 00 00, a type, dimensions")
    n_dims = data[3]
    if len(data) < 4 + 4 * n_dims:
        raise DataError(f"{path} is truncated: {len(data)} bytes, expected a header of {4 + 4 * n_dims}")
    shape = struct.unpack(f">{n_dims}I", data[4 : 4 + 4 * n_dims])
    kind = np.dtype(IDX_TYPES[data[2]])
    wanted = 4 + 4 * n_dims + math.prod(shape) * kind.itemsize
    if len(data) != wanted:
        state = "is truncated" if len(data) < wanted else "is too long"
        size = " × ".join(map(str, shape))
        raise DataError(f"{path} {state}: {len(data)} bytes, expected {wanted} for {size} values of {kind.itemsize} bytes")
    return np.frombuffer(data, kind, offset=4 + 4 * n_dims).reshape(shape).astype(kind.newbyteorder("="))


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an npz file; those that only a pickle could hold are refused."""
    check_file(path, "an npz file")
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise DataError(f"{path} holds a single array, expected an npz file with several named ones")
        with file:
            return {name: file[name] for name in file.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is not an npz file of plain arrays, or is damaged: {error}") from error


def map_bytes(path: Path) -> Array:
    """The bytes of a file, uint8 [n], mapped and not read; a .gz is decompressed once, into the user's cache folder."""
    check_file(path, "a file of bytes")
    if path.suffix == ".gz":
        path = _decompressed(path)
    if not path.stat().st_size:
        raise DataError(f"{path} is empty, expected bytes")
    try:
        return np.memmap(path, np.uint8, mode="r")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def cache_folder() -> Path:
    """Where decompressed files are kept: lutetia in $XDG_CACHE_HOME, or in ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "lutetia"


def _decompressed(path: Path) -> Path:
    """The decompressed twin of a .gz; one that is newer, or elsewhere, has another twin."""
    status = path.stat()
    name = hashlib.sha256(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
    target = cache_folder() / f"{path.stem}-{name}"
    if not target.exists():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"{target.parent} cannot be made ({error.strerror}), and {path} must be decompressed there"
            ) from error
        with gzip.open(path) as source, write_atomically(target) as file:
            while block := _next_block(source, path):
                file.write(block)
    return target


def _next_block(source: gzip.GzipFile, path: Path) -> bytes:
    """Some bytes of a gzip file; its errors are not those of the file they are written to."""
    try:
        return source.read(1 << 20)
    except (*GZIP_ERRORS, OSError) as error:
        raise DataError(f"{path} is truncated or damaged ({error}), expected a gzip file") from error

"""Files of data as arrays: idx, and raw bytes by memory map. Errors name the file.

idx is the format of MNIST: two zero bytes, a byte for the type, a byte for the number of dimensions, their sizes as big-endian
32-bit integers, then the values. A name that ends in .gz is decompressed on the way.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import re
import stat
import struct
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lutetia import files
from lutetia.errors import DataError

Array = np.ndarray[Any, Any]
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
BLOCK = 1 << 20  # bytes that are decompressed at once
SMALL, MOST_TIMES = 64 << 20, 100  # bytes that anything may decompress to, and beyond these a multiple of the file's own
# The cache of decompressed files: how it calls them, and when they go.
TWIN, PART = re.compile(r".*-[0-9a-f]{16}"), re.compile(r"\..*-[0-9a-f]{16}\.[0-9a-f]{8}\.part")
LARGEST_CACHE = 8 << 30  # bytes
TWIN_AGE, PART_AGE = 30 * 86400.0, 86400.0  # seconds without use


def check_file(path: Path, what: str) -> Path:
    """The path, if it is a regular file; `what` is what was expected."""
    if path.is_dir():
        raise DataError(f"{path} is a folder, expected {what}")
    files.check_file(path, what)
    return path


def check_expansion(path: Path, size: int) -> None:
    """Refuse a compressed file whose content has more bytes than the file itself can explain."""
    held = path.stat().st_size
    if size > max(SMALL, MOST_TIMES * held):
        raise DataError(
            f"{path} has {held:,} bytes and decompresses to more than {MOST_TIMES} times as many, expected less: "
            "decompress it first if you trust it"
        )


def read_whole(path: Path, what: str) -> bytes:
    """The bytes of a file, decompressed where its name ends in .gz."""
    check_file(path, what)
    if path.suffix != ".gz":
        return files.read_bytes(path, what)
    parts: list[bytes] = []
    with gzip.open(path) as file:
        while block := _next_block(file, path, what):
            parts.append(block)
            check_expansion(path, len(parts) * BLOCK)
    return b"".join(parts)


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


def map_bytes(path: Path) -> Array:
    """The bytes of a file, uint8 [n], mapped and not read; a .gz is decompressed once, into the user's cache folder."""
    check_file(path, "a file of bytes")
    if path.suffix == ".gz":
        path = _decompressed(path)
    if not path.stat().st_size:
        raise DataError(f"{path} is empty, expected bytes")
    try:
        return np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError) as error:  # ValueError: emptied meanwhile
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def cache_folder() -> Path:
    """Where decompressed files are kept: lutetia in $XDG_CACHE_HOME, or in ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "lutetia"


def _decompressed(path: Path) -> Path:
    """The decompressed copy of a .gz; a newer file, or one elsewhere, gets its own copy."""
    status = path.stat()
    name = hashlib.sha256(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
    target = cache_folder() / f"{path.stem}-{name}"
    if target.is_file():
        with suppress(OSError):  # of a cache that is read-only
            os.utime(target)  # so that it counts as used
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{target.parent} cannot be created ({why}), and {path} must be decompressed there") from error
    _clean(target.parent)
    size = 0
    with gzip.open(path) as source, files.write_atomically(target) as file:
        while block := _next_block(source, path, "a gzip file"):
            size += len(block)
            check_expansion(path, size)
            file.write(block)
    return target


def _clean(folder: Path) -> None:
    """Remove copies not used for a long time, the least recently used above the size limit, and leftovers of killed processes."""
    now = time.time()
    twins = []
    for each in folder.iterdir():
        with suppress(OSError):
            status = each.lstat()
            if not stat.S_ISREG(status.st_mode):
                continue
            if PART.fullmatch(each.name) and now - status.st_mtime > PART_AGE:
                each.unlink()
            elif TWIN.fullmatch(each.name):
                twins.append((status.st_mtime, status.st_size, each))
    total = 0
    for used, size, each in sorted(twins, reverse=True):
        total += size
        if total > LARGEST_CACHE or now - used > TWIN_AGE:
            with suppress(OSError):  # a process that has it mapped keeps it
                each.unlink()


def _next_block(source: gzip.GzipFile, path: Path, what: str) -> bytes:
    """Some bytes of a gzip file; reading errors are kept apart from errors of the file being written."""
    try:
        return source.read(BLOCK)
    except (EOFError, zlib.error, OSError) as error:
        raise DataError(f"{path} is truncated or damaged ({error}), expected {what}") from error

"""Files and folders appear whole or not at all, and only regular files are read."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from lutetia.errors import DataError, fail

LARGEST_TEXT = 64 << 20  # bytes of a JSON file that is read whole


# ---- read ------------------------------------------------------------------------------------------------------------


def path_of(path: object) -> Path:
    """The path that a caller gave; refused if no file can have such a name."""
    if not isinstance(path, str | os.PathLike):
        fail("path", path, "a str or a Path")
    try:
        os.stat(path)
    except ValueError:
        fail("path", path, "a name without a null byte")
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise DataError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
    return Path(path)


def open_file(path: str | os.PathLike[str], what: str) -> BufferedReader:
    """Open a regular file for reading; `what` says what was expected. Devices and pipes, which may never end, are refused."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))  # a pipe would wait here
    except FileNotFoundError as error:
        raise DataError(f"{os.fspath(path)} does not exist, expected {what}") from error
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        raise DataError(f"{_shown(path)} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return open(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise DataError(f"{os.fspath(path)} cannot be read: Is a directory")
    raise DataError(f"{os.fspath(path)} is a device, a pipe or a socket, expected {what}")


def check_file(path: str | os.PathLike[str], what: str) -> None:
    """Refuse what `open_file` would refuse."""
    open_file(path, what).close()


def read_bytes(path: str | os.PathLike[str], what: str, most: int | None = None) -> bytes:
    """The bytes of a regular file, at most `most` of them."""
    with open_file(path, what) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise DataError(f"{os.fspath(path)} has {size:,} bytes, expected {what} of {most:,} at most")
        try:
            return file.read()
        except (OSError, MemoryError) as error:
            raise DataError(f"{os.fspath(path)} cannot be read: {getattr(error, 'strerror', None) or 'no memory'}") from error


def read_text(path: str | os.PathLike[str], what: str, most: int | None = LARGEST_TEXT) -> str:
    """The text of a regular UTF-8 file."""
    try:
        return read_bytes(path, what, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{os.fspath(path)} is not UTF-8 text: {error}") from error


def read_json(path: str | os.PathLike[str], what: str, most: int = LARGEST_TEXT) -> Any:
    """What a regular JSON file holds."""
    text = read_text(path, what, most)
    try:
        return json.loads(text)
    except RecursionError:
        raise DataError(f"{os.fspath(path)} is not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise DataError(f"{os.fspath(path)} is not JSON: {error}") from error


def _shown(path: str | os.PathLike[str]) -> str:
    """A path as a message can hold it."""
    return os.fspath(path).replace("\0", "\\0")


# ---- write -----------------------------------------------------------------------------------------------------------


@contextmanager
def write_atomically(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing: readers see the old one or, when the block has ended well, the new one, never a part."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # a read-only disk refuses this even where there is nothing, and has been reported by now
            part.unlink()


def check_writable(folder: Path) -> None:
    """Refuse, before any work is done, a folder (existing or to be made) that cannot be written to."""
    place = next(each for each in (folder, *folder.parents) if each.exists())
    if not place.is_dir():
        raise DataError(f"{folder} cannot be written: {place} is a file, expected a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise DataError(f"{folder} cannot be written: {place} is read-only")


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and its parents; return those that are new, the deepest first."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remove_empty(missing)
        raise DataError(f"{folder} cannot be created: {error.strerror or error}") from error
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove those of the folders, deepest first, that exist and are empty."""
    for each in folders:
        with suppress(OSError):
            each.rmdir()


def remove(path: Path) -> None:
    """Remove a file, or a folder and its content, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Let a block fill a folder that is made or emptied for it; if the block fails, everything is as before.

    The old content waits in a folder inside it, because the folder itself may not be movable, such as `.` or a mounted disk.
    """
    made = make_folder(folder)
    aside = folder / f".{secrets.token_hex(4)}.old"
    old = {each.name for each in folder.iterdir()}
    try:
        if old:
            aside.mkdir()
        for name in old:
            os.rename(folder / name, aside / name)
        yield
    except BaseException:
        waiting = {each.name for each in aside.iterdir()} if aside.exists() else set()
        for each in folder.iterdir():
            if each != aside and each.name not in old - waiting:
                remove(each)
        for name in waiting:
            os.rename(aside / name, folder / name)
        remove_empty([aside, *made])
        raise
    remove(aside)

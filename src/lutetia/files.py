"""Files and folders appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from lutetia.errors import DataError


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
        with suppress(OSError):  # a read-only disk refuses this even where there is nothing, and has been told of by now
            part.unlink()


def check_writable(folder: Path) -> None:
    """Refuse at once, and not after the work, a folder, there or to be made, in which nothing could be written."""
    place = next(each for each in (folder, *folder.parents) if each.exists())
    if not place.is_dir():
        raise DataError(f"{folder} cannot be written: {place} is a file, expected a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise DataError(f"{folder} cannot be written: {place} is read-only")


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and those it lies in; the ones that were not there before, the deepest first."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remove_empty(missing)
        raise DataError(f"{folder} cannot be made: {error.strerror or error}") from error
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, the deepest first, that are there and hold nothing."""
    for each in folders:
        with suppress(OSError):
            each.rmdir()


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that it holds, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """Let a block fill a folder, made or emptied for it; should the block fail, all is as it was before.

    What the folder held waits in a folder within it: the folder itself may be one that cannot be moved, as `.` or a mounted disk.
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

"""Files that a command is asked to write: a name that cannot be written, or with the wrong suffix, is refused at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lutetia._shared.folders import files_of
from lutetia._shared.pages import is_ours
from lutetia.cli.guard import UsageError, listed
from lutetia.errors import DataError
from lutetia.files import check_writable


def check_output(option: str, path: Path | None, suffixes: Sequence[str] = (), inputs: Sequence[str] = ()) -> None:
    """Refuse, before any work is done, a file that cannot be written or has the wrong suffix, and one that is read: an input, or
    a file of a model.
    """
    if path is None:
        return
    if path.is_dir():
        raise DataError(f"{option} is {path}, a folder, expected a name for a file")
    if suffixes and path.suffix.lower() not in suffixes:
        raise UsageError(f"{option} is {str(path)!r}, expected a name that ends in {listed(suffixes)}")
    if not path.parent.is_dir():
        raise DataError(f"{option} is {path}, and there is no folder {path.parent}")
    check_writable(path.parent)
    if not path.exists():
        return
    if any(_is_same(path, each) for each in inputs):
        raise DataError(f"{option} is {path}, which is also the input, expected another name")
    if path.name in files_of(path.parent):
        raise DataError(f"{option} is {path}, a file of what was saved in {path.parent}, expected another name")


def default_page(name: str) -> Path:
    """The default name of a page; refused if a file of that name is not a page of ours."""
    path = Path(name)
    if path.exists() and not is_ours(path):
        raise DataError(f"{path} already exists and was not written by Lutetia, expected --out to name another file")
    return path


def _is_same(path: Path, given: str) -> bool:
    try:
        return path.samefile(given)
    except (OSError, ValueError):  # numbers or text, not the name of a file
        return False

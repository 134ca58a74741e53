"""Files that a command is asked to write: a name that cannot be written, or means another kind of file, is refused at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lutetia.cli.guard import UsageError, listed
from lutetia.errors import DataError
from lutetia.files import check_writable


def check_output(option: str, path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Refuse, before any work is done, a file that cannot be written or whose name promises another kind."""
    if path is None:
        return
    if path.is_dir():
        raise DataError(f"{option} is {path}, a folder, expected a name for a file")
    if suffixes and path.suffix.lower() not in suffixes:
        raise UsageError(f"{option} is {str(path)!r}, expected a name that ends in {listed(suffixes)}")
    if not path.parent.is_dir():
        raise DataError(f"{option} is {path}, and there is no folder {path.parent}")
    check_writable(path.parent)

"""The folder of a run: its lock, whether it may be used, and what is in it.

config.toml     the config the run was started with
metrics.jsonl   a line for every logged step and every evaluation
checkpoints/    see lutetia.training.checkpoint
loss.png        the loss over the run, drawn at its end
summary.json    what `lutetia train --json` prints
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lutetia.errors import DataError
from lutetia.files import make_folder, remove, remove_empty, write_atomically
from lutetia.training.checkpoint import steps_in
from lutetia.training.config import Config, make_config, read_toml

try:
    import fcntl
except ImportError:  # Windows has no such locks: there, the folder is not protected
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
CONTENT = ("config.toml", "metrics.jsonl", "checkpoints", "tensorboard", "loss.png", "summary.json", LOCK)  # the lock last
# What may differ when a run resumes: how long it lasts, what it logs and keeps, how many share the work, to what its tables are
# rounded, and what helps a run that diverged.
MAY_CHANGE = {
    *(f"train.{key}" for key in ("steps", "epochs", "minutes", "patience", "log_every", "tensorboard", "clip", "table_bits")),
    *(f"checkpoint.{key}" for key in ("every", "keep")),
    "optimizer.tables.lr",
    "optimizer.ngrams.lr",
    "optimizer.rest.lr",
    "schedule.warmup",
    "parallel.detectors",
    "parallel.timeout",
}


class RunFolder:
    """A run folder locked by this process; `close` releases it, and so does the end of the process, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._made: list[Path] = []  # the folders that were not there before
        self._own: list[str] = []  # what this run, and no earlier one, has put here

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def open(self, config: Config, resume: bool, patience: float = 0.0) -> list[str]:
        """Take the folder for a run of this config, or say why not; returns how the config differs from that of the run before.

        `patience` is how many seconds to wait for the folder's last user.
        """
        self._take(patience)
        changes = self._check(config, resume)
        with write_atomically(self.path / "config.toml") as file:
            file.write(config.to_toml().encode())
        return changes

    def _take(self, patience: float) -> None:
        """Make the folder and lock it. Only the holder of the lock may remove its file, so a lock may be gone after the wait."""
        until = time.monotonic() + patience
        while self._lock is None:
            try:
                self._made = [*make_folder(self.path), *self._made]
            except DataError as error:
                if isinstance(error.__cause__, FileExistsError | NotADirectoryError):
                    raise DataError(f"{self.path} is a file, or lies in one, expected a folder for the run") from error
                raise
            if fcntl is None:
                return
            opened = _open_lock(self.path / LOCK)
            if opened is None:
                continue
            handle, created = opened
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                if time.monotonic() >= until:
                    raise DataError(f"{self.path} is in use by another run, expected another folder (--out)") from None
                time.sleep(0.1)
                continue
            if _is_open_as(handle, self.path / LOCK):
                self._lock, self._own = handle, [LOCK] if created else []
            else:
                os.close(handle)

    def _check(self, config: Config, resume: bool) -> list[str]:
        file = self.path / "config.toml"
        if not file.exists():
            self._check_empty()
            return []
        if not resume:
            raise DataError(f"{self.path} already holds a run: continue it with --resume, or choose another folder with --out")
        changes = []
        for key, was, now in differences(make_config(read_toml(file), str(file)).to_dict(), config.to_dict()):
            if key not in MAY_CHANGE:
                raise DataError(f"{self.path} holds a run of another config: {key} was {was!r} and is {now!r} now")
            changes.append(f"{key} was {was!r} and is {now!r} now")
        return changes

    def _check_empty(self) -> None:
        """Refuse a folder with files that no run has written, so that everything in it belongs to this run."""
        others = [path.name for path in self.path.iterdir() if path.name != LOCK]
        if others:
            raise DataError(f"{self.path} holds {others[0]} and no run, expected an empty folder or that of a run")
        self._own = list(CONTENT)

    @contextmanager
    def held(self, again: bool) -> Iterator[None]:
        """Hold the folder for a block that leaves a whole run in it: an empty folder, or that of the same run, fitted again."""
        self._take(0.0)
        try:
            if not again:
                self._check_empty()
            yield
        except BaseException:
            self.abandon()
            raise
        self.close()

    def abandon(self) -> None:
        """After a failure: leave the folder as it was found, unless there is a checkpoint to continue from."""
        if self._lock is not None or fcntl is None:
            if not steps_in(self.checkpoints):
                for name in self._own:  # the lock last, and while it is held
                    remove(self.path / name)
            self.close()
        remove_empty(self._made)

    def close(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _open_lock(file: Path) -> tuple[int, bool] | None:
    """The open lock file, and whether it was not there before; None where another run has just removed it or its folder."""
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644), True
    except FileExistsError:
        pass
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{file.parent} cannot be written: {error.strerror}") from error
    try:
        return os.open(file, os.O_RDWR), False
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{file} cannot be opened: {error.strerror}") from error


def _is_open_as(handle: int, file: Path) -> bool:
    """Whether the open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(file))
    except FileNotFoundError:
        return False


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """The keys of two configs that differ, with both values; None where one has none."""
    found = []
    for name in dict.fromkeys([*old, *new]):
        was, now, key = old.get(name), new.get(name), f"{prefix}{name}"
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            found += differences(was, now, f"{key}.")
        elif was != now:
            found.append((key, was, now))
    return found

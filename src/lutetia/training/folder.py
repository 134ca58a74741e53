"""The folder of a run: whose it is, whether it may be used, and what lies in it.

config.toml     the config the run was started with
metrics.jsonl   a line for every logged step and every evaluation
checkpoints/    see lutetia.training.checkpoint
loss.png        the loss over the run, drawn at its end
summary.json    what `lutetia train --json` prints
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lutetia.errors import DataError
from lutetia.files import make_folder, remove, remove_empty, write_atomically
from lutetia.training.checkpoint import steps_in
from lutetia.training.config import Config, make_config, read_toml

try:
    import fcntl
except ImportError:  # Windows has no such locks: there, nobody is kept out
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
CONTENT = ("config.toml", "metrics.jsonl", "checkpoints", "tensorboard", "loss.png", "summary.json", LOCK)
# What may differ when a run goes on: how long it lasts, what it tells and keeps, and how many share the work.
MAY_CHANGE = {
    *(f"train.{key}" for key in ("steps", "epochs", "minutes", "patience", "log_every", "tensorboard")),
    *(f"checkpoint.{key}" for key in ("every", "keep")),
    "parallel.detectors",
}


class RunFolder:
    """A run folder that this process holds; `close` lets it go, and so does the end of the process, however it comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._made: list[Path] = []  # the folders that were not there before
        self._own: list[str] = []  # what this run, and no earlier one, has put here

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def open(self, config: Config, resume: bool, patience: float = 0.0) -> None:
        """Take the folder for a run of this config, or say why not; `patience` is how many seconds to wait for its last user."""
        try:
            self._made = make_folder(self.path)
        except DataError as error:
            if isinstance(error.__cause__, FileExistsError | NotADirectoryError):
                raise DataError(f"{self.path} is a file, or lies in one, expected a folder for the run") from error
            raise
        self._take(patience)
        self._check(config, resume)
        with write_atomically(self.path / "config.toml") as file:
            file.write(config.to_toml().encode())

    def _take(self, patience: float) -> None:
        if fcntl is None:
            return
        until = time.monotonic() + patience
        file = self.path / LOCK
        self._own = [] if file.exists() else [LOCK]
        try:
            self._lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror}") from error
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= until:
                    self.close()
                    raise DataError(f"{self.path} is in use by another run, expected a folder of its own (--out)") from None
            time.sleep(0.1)

    def _check(self, config: Config, resume: bool) -> None:
        file = self.path / "config.toml"
        if not file.exists():
            others = [path.name for path in self.path.iterdir() if path.name != LOCK]
            if others:
                raise DataError(f"{self.path} holds {others[0]} and no run, expected an empty folder or that of a run")
            self._own = list(CONTENT)
            return
        if not resume:
            raise DataError(f"{self.path} holds a run already: go on with it by --resume, or choose another folder with --out")
        for key, was, now in differences(make_config(read_toml(file), str(file)).to_dict(), config.to_dict()):
            if key not in MAY_CHANGE:
                raise DataError(f"{self.path} holds a run of another config: {key} was {was!r} and is {now!r} now")

    def abandon(self) -> None:
        """After a failure: leave the folder as it was found, unless there is a checkpoint to go on from."""
        self.close()
        if not steps_in(self.checkpoints):
            for name in self._own:
                remove(self.path / name)
            remove_empty(self._made)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


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

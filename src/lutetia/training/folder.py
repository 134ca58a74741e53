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
from lutetia.files import write_atomically
from lutetia.training.config import Config, make_config, read_toml

try:
    import fcntl
except ImportError:  # Windows has no such locks: there, nobody is kept out
    fcntl = None  # type: ignore[assignment]

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

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def open(self, config: Config, resume: bool, patience: float = 0.0) -> None:
        """Take the folder for a run of this config, or say why not; `patience` is how many seconds to wait for its last user."""
        existed = self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise DataError(f"{self.path} is a file, or lies in one, expected a folder for the run") from error
        except OSError as error:
            raise DataError(f"{self.path} cannot be made: {error.strerror}") from error
        self._take(patience)
        try:
            self._check(config, resume, existed)
        except BaseException:
            self.close()
            raise
        with write_atomically(self.path / "config.toml") as file:
            file.write(config.to_toml().encode())

    def _take(self, patience: float) -> None:
        if fcntl is None:
            return
        until = time.monotonic() + patience
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= until:
                    self.close()
                    raise DataError(f"{self.path} is in use by another run, expected a folder of its own (--out)") from None
            time.sleep(0.1)

    def _check(self, config: Config, resume: bool, existed: bool) -> None:
        file = self.path / "config.toml"
        if not file.exists():
            others = [path.name for path in self.path.iterdir() if path.name != ".lock"] if existed else []
            if others:
                raise DataError(f"{self.path} holds {others[0]} and no run, expected an empty folder or that of a run")
            return
        if not resume:
            raise DataError(f"{self.path} holds a run already: go on with it by --resume, or choose another folder with --out")
        for key, was, now in differences(make_config(read_toml(file), str(file)).to_dict(), config.to_dict()):
            if key not in MAY_CHANGE:
                raise DataError(f"{self.path} holds a run of another config: {key} was {was!r} and is {now!r} now")

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

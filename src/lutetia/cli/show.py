"""What the command puts on the screen: a console that prints text as it is, and JSON for machines."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

PAUSE = 10.0  # seconds between two lines of progress in a pipe
WIDE = 160  # columns of a file or a pipe, so that a row of a table stays one line for grep


def console(stderr: bool = False) -> Console:
    """A console without markup, so that a path named `[red]x` prints as `[red]x`; NO_COLOR and pipes are respected."""
    screen = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not screen.is_terminal and not os.environ.get("COLUMNS"):
        screen.width = WIDE
    return screen


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def print_error(message: str) -> None:
    console(stderr=True).print(Text("error: ", style="bold red"), message, sep="", soft_wrap=True)


def one_line(text: str) -> str:
    """The text on one line, with control characters and undecodable bytes written out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))


def forgive_encoding() -> None:
    """Let a terminal that lacks a character show a question mark instead of failing the job."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")


def print_warning(message: str) -> None:
    console(stderr=True).print(Text("warning: ", style="bold yellow"), one_line(message), sep="", soft_wrap=True)


def name_next(*words: object) -> None:
    """Print the next command, ready to type; to stderr, so that piped output is unchanged."""
    console(stderr=True).print(Text(f"next: {shlex.join(map(one_line, map(str, words)))}", style="dim"), soft_wrap=True)


def name_evaluation(run: object, splits: Iterable[str]) -> None:
    """Name the command that measures the model of a run on the best of its splits."""
    held_out = any(split in ("test", "valid") for split in splits)
    name_next("lutetia", "evaluate", run, *([] if held_out else ["--split", "train"]))


def as_typed(given: str, row: int | None = None, unknown: str | None = None) -> list[object]:
    """An input, its row in a file and what its unknown categories are, as typed after a command: a leading minus sign is not an
    option."""
    options = [*([] if row is None else ["--row", row]), *([] if unknown is None else ["--unknown", unknown])]
    return [*options, *(["--"] if given.startswith("-") else []), given]


class Progress:
    """The progress of a job: a bar in a terminal, a line every PAUSE seconds in a pipe, nothing for a shorter job."""

    def __init__(self, what: str, total: int, show: bool) -> None:
        self.what, self.total, self.show, self.done = what, total, show, 0
        self.screen = console(stderr=True)
        self._last = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int = 1) -> None:
        """Count this many more as done."""
        self.done += count
        if not self.show:
            return
        if self.screen.is_terminal:
            self._draw()
        elif time.monotonic() - self._last >= PAUSE:
            self._last = time.monotonic()
            self.screen.print(f"{self.what}: {self.done:,} of {self.total:,}", soft_wrap=True)

    def _draw(self) -> None:
        if self._bar is None:
            if time.monotonic() - self._last < 1.0:  # most are over by then
                return
            from rich.progress import Progress as Bar

            self._bar = Bar(console=self.screen, transient=True)
            self._bar.add_task(self.what, total=self.total)
            self._bar.start()
        self._bar.update(0, completed=self.done)

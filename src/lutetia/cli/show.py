"""What the command puts on the screen: a console that prints text as it is, and JSON for machines."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

WIDE = 160  # columns of a file or a pipe, so that a row of a table stays one line for grep


def console(stderr: bool = False) -> Console:
    """A console without markup, so that a path named `[red]x` prints as `[red]x`; NO_COLOR and pipes are respected."""
    screen = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not screen.is_terminal and not os.environ.get("COLUMNS"):
        screen.width = WIDE
    return screen


def print_json(value: Any) -> None:
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

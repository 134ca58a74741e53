"""The demo runs chapter by chapter: each does real work in a folder and reports one sentence on its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from lutetia._shared.folders import files_in
from lutetia.errors import ArgumentError
from lutetia.files import filling, read_text, write_atomically

if TYPE_CHECKING:
    from lutetia.demo.learn import Digits
    from lutetia.models import LUTTransformer
    from lutetia.report import CellTable, Circuit, Decisions, PartFlow, Reading, Strip, Training, Writing


PAGE = "report.html"
LIST = "files.txt"  # names every other file that the demo left in its folder, one to a line


@dataclass
class Context:
    """The inputs of a chapter, and what earlier chapters left for it and for the report."""

    out: Path  # an existing folder
    say: Callable[[str], None] = lambda text: None  # shows what is being done
    digits: Digits | None = None
    writer: LUTTransformer | None = None  # the language model with LUT attention

    reading: Reading | None = None
    trained: list[Training] = field(default_factory=list)
    wrote: list[Writing] = field(default_factory=list)
    decided: Decisions | None = None
    strips: list[Strip] = field(default_factory=list)
    circuit: Circuit | None = None
    flows: list[PartFlow] = field(default_factory=list)
    speed: list[CellTable] = field(default_factory=list)
    data: list[CellTable] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)  # the headline numbers, in words that need no explanation


@dataclass(frozen=True)
class Told:
    """The result of a chapter."""

    said: str  # one sentence
    files: tuple[Path, ...] = ()
    text: str = ""  # shown as it is


@dataclass(frozen=True)
class Chapter:
    name: str
    title: str
    tell: Callable[[Context], Told]


def chapters() -> tuple[Chapter, ...]:
    """All chapters, in order: each may use what earlier ones left in the context."""
    from lutetia.demo import build, columns, connect, curves, explain, learn, numbers, reporting, signals, trees, unusual, write

    return (
        Chapter("learn", "train a network without multiplications", learn.tell),
        Chapter("write", "generate text from an index cache", write.tell),
        Chapter("attend", "generate text with attention split over two cores", write.tell_softmax),
        Chapter("explain", "explain decisions", explain.tell),
        Chapter("build", "turn the network into a circuit", build.tell),
        Chapter("columns", "learn from a table of data", columns.tell),
        Chapter("numbers", "predict a number with an interval", numbers.tell),
        Chapter("curves", "read a model whole, curve by curve", curves.tell),
        Chapter("unusual", "find what is unusual", unusual.tell),
        Chapter("trees", "take over trees of another library", trees.tell),
        Chapter("signals", "learn from windows of a sensor", signals.tell),
        Chapter("connect", "use a model of another library", connect.tell),
        Chapter("report", "write the report", reporting.tell),
    )


def run(out: Path, console: Console, json: bool) -> dict[str, Any]:
    """Run every chapter, writing into the folder `out`; return the results as plain values. With `json` nothing is printed."""
    check_folder(out)
    if json:
        console = Console(quiet=True)
    begun = time.perf_counter()
    story = chapters()
    with filling(out):
        told = tell_all(Context(out), story, console)
    made = sorted(files_in(out))
    with write_atomically(out / LIST) as file:
        file.write("".join(f"{name}\n" for name in made).encode())
    listed = [
        {"name": chapter.name, "title": chapter.title, "said": each.said, "files": list(map(str, each.files)), "text": each.text}
        for chapter, each in zip(story, told, strict=True)
    ]
    return {"out": str(out), "seconds": time.perf_counter() - begun, "chapters": listed}


def check_folder(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier demo, which is replaced."""
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"--out is {str(out)!r}, which is a file, expected a folder or a name for a new one")
    made = read_text(out / LIST, "a list of files").splitlines() if (out / LIST).is_file() else []
    others = files_in(out) - {*made, LIST}
    if others:
        raise ArgumentError(f"--out is {str(out)!r}, which holds {min(others)}, not a demo: choose another folder, or empty it")


def tell_all(context: Context, story: tuple[Chapter, ...], console: Console) -> list[Told]:
    told = []
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(story))
        for chapter in story:
            progress.update(task, description=chapter.title)
            context.say = lambda text, title=chapter.title: progress.update(task, description=f"{title}: {text}")  # type: ignore[misc]
            each = chapter.tell(context)
            show(chapter, each, console)
            told.append(each)
            progress.advance(task)
    return told


def show(chapter: Chapter, told: Told, console: Console) -> None:
    tick = "ok" if console.options.ascii_only else "✓"
    console.print(Text(f"{tick} {chapter.title}: ", style="bold green"), Text(told.said), sep="", soft_wrap=True)
    if told.text:
        console.print(Text(told.text.rstrip()), soft_wrap=True)
    for path in told.files:
        console.print(Text(f"  wrote {path}"), soft_wrap=True)

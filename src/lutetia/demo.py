"""`lutetia demo`: what Lutetia does today, chapter by chapter, and what is not there yet.

A chapter is a function that does something real in a folder and says what came of it; CHAPTERS lists them in the order told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from lutetia.errors import ArgumentError

NOT_THERE_YET = ("train a model", "generate text", "explain a decision", "build hardware", "one report of it all")


@dataclass(frozen=True)
class Context:
    """What a chapter is given."""

    out: Path  # an existing folder


@dataclass(frozen=True)
class Told:
    """What came of a chapter."""

    said: str  # one sentence
    files: tuple[Path, ...] = ()
    text: str = ""  # shown as it is


@dataclass(frozen=True)
class Chapter:
    name: str
    title: str
    tell: Callable[[Context], Told]


def run(out: Path, console: Console, json: bool) -> dict[str, Any]:
    """Tell every chapter, writing into the folder `out`; return it all as plain values. With `json` the console stays silent."""
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"--out is {str(out)!r}, which is a file, expected a folder or a name for a new one")
    out.mkdir(parents=True, exist_ok=True)
    if json:
        console = Console(quiet=True)
    told = tell_all(Context(out), console)
    console.print(Text(f"Not there yet: {', '.join(NOT_THERE_YET)}."), soft_wrap=True)
    chapters = [
        {"name": chapter.name, "title": chapter.title, "said": each.said, "files": list(map(str, each.files)), "text": each.text}
        for chapter, each in zip(CHAPTERS, told, strict=True)
    ]
    return {"out": str(out), "chapters": chapters, "not_there_yet": list(NOT_THERE_YET)}


def tell_all(context: Context, console: Console) -> list[Told]:
    told = []
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(CHAPTERS))
        for chapter in CHAPTERS:
            progress.update(task, description=chapter.title)
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


def flow(context: Context) -> Told:
    """Record a lookup layer written in plain torch, and draw where its data went."""
    import torch

    from lutetia.flow import record, step

    generator = torch.Generator().manual_seed(0)
    x = torch.rand(5, 8, generator=generator)
    anchors = torch.rand(3, 2, 8, generator=generator).argsort()[..., :2]  # [detectors, bits, 2]: the two inputs a bit compares
    tables = torch.rand(3, 4, 2, generator=generator)  # [detectors, rows, outputs]
    with record() as recorded:
        with step("compare", inputs={"x": x, "anchors": anchors}) as now:
            greater = x[:, anchors[..., 0]] > x[:, anchors[..., 1]]
            now.outputs(greater=greater)
        with step("address", inputs={"greater": greater}) as now:
            index = (greater * torch.tensor([1, 2])).sum(-1)
            now.outputs(index=index)
        with step("look up", inputs={"tables": tables, "index": index}) as now:
            rows = tables[torch.arange(3), index]
            now.outputs(rows=rows)
        with step("add", inputs={"rows": rows}) as now:
            now.outputs(y=rows.sum(1))
    page = context.out / "flow.html"
    recorded.save(page)
    moved = sum(tensor.bytes for each in recorded.steps for tensor in each.outputs)
    said = f"a lookup layer in plain torch took {len(recorded.steps)} steps and made {moved} bytes; open the page in a browser"
    return Told(said, (page,), recorded.mermaid())


CHAPTERS = (Chapter("flow", "record a run and draw its data flow", flow),)

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

NOT_THERE_YET = ("generate text", "explain a decision", "build hardware", "one report of it all")


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


def learn(context: Context) -> Told:
    """Train one layer of tables to read handwritten digits, and show what it makes of those it has not seen."""
    import torch

    from lutetia import nn
    from lutetia.errors import require

    data = require("sklearn.datasets", "the demo's digits", "scikit-learn").load_digits()
    pixels, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    torch.manual_seed(0)
    order = torch.randperm(len(labels))
    seen, unseen = order[:1437], order[1437:]

    layer = nn.LUT(64, 10, n_detectors=512, n_anchors=6, seed=0)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01, weight_decay=0.0)
    losses = []
    for _ in range(12):
        for batch in seen[torch.randperm(len(seen))].split(64):
            noisy = pixels[batch] + 0.1 * torch.randn(len(batch), 64)
            loss = torch.nn.functional.cross_entropy(layer(noisy), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    with torch.no_grad():
        guesses = layer(pixels[unseen]).argmax(1)
    right = guesses == labels[unseen]
    picture = context.out / "digits.png"
    draw_digits(picture, losses, pixels[unseen].view(-1, 8, 8), guesses, right)
    said = (
        f"512 tables learned to read digits, {right.float().mean():.1%} of {len(unseen)} unseen ones right; "
        "the network only compares and adds"
    )
    return Told(said, (picture,))


def draw_digits(path: Path, losses: list[float], images: Any, guesses: Any, right: Any) -> None:
    """The loss curve beside forty digits and what the network read; mistakes come first, in red."""
    from lutetia.errors import require
    from lutetia.files import write_atomically

    figure = require("matplotlib.figure", "the demo's picture", "matplotlib").Figure(figsize=(11, 4), layout="constrained")
    curve, grid = figure.subfigures(1, 2, width_ratios=(1, 1.6))
    axes = curve.subplots()
    axes.plot(losses, color="#2e7d32", linewidth=0.8)
    axes.set(xlabel="step", ylabel="loss", yscale="log", title="learning")
    first = right.int().argsort(stable=True)[:40]
    for place, number in zip(grid.subplots(4, 10).flat, first.tolist(), strict=True):
        place.imshow(images[number].numpy(), cmap="Greys")
        place.set_title(str(int(guesses[number])), color="black" if right[number] else "red", fontsize=11, pad=2)
        place.set_axis_off()
    with write_atomically(path) as file:
        figure.savefig(file, format="png", dpi=110)


def attend(context: Context) -> Told:
    """Run attention made of tables over a sequence at once, and again token by token from its index cache."""
    import torch

    from lutetia import nn
    from lutetia.errors import JobError

    attention = nn.LUTAttention(64, 64, n_detectors=16, n_anchors=3, positional_dim=3, max_length=128, sums="fixed", seed=0)
    tokens = torch.randn(1, 128, 64, generator=torch.Generator().manual_seed(0))
    cache = attention.new_cache(1)
    with torch.no_grad():
        at_once = attention(tokens)
        one_by_one = torch.cat([attention(tokens[:, j : j + 1], cache=cache) for j in range(128)], 1)
    if not torch.equal(at_once, one_by_one):
        raise JobError("decoding token by token did not give the bits of the whole sequence at once")
    kept = cache.indices.nbytes
    said = (
        f"16 tables attended over 128 tokens; decoding them one by one gave the same bits and kept {kept / 1024:.0f} KiB of "
        f"indices, where keys and values of this width would be {2 * tokens.nbytes / 1024:.0f} KiB"
    )
    return Told(said)


def flow(context: Context) -> Told:
    """Record one training step of a layer of tables, and draw where its data went."""
    import torch

    from lutetia import nn
    from lutetia.flow import record

    layer = nn.LUT(64, 10, n_detectors=512, n_anchors=5, seed=0)
    x = torch.rand(100, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with record() as recorded:
        layer(x).square().mean().backward()
    page = context.out / "flow.html"
    recorded.save(page)
    moved = sum(tensor.bytes for each in recorded.steps for tensor in (*each.inputs, *each.outputs))
    said = f"one training step took {len(recorded.steps)} kernels and moved {moved / 1e6:.1f} MB; open the page in a browser"
    return Told(said, (page,), recorded.mermaid(symbols={"B": 100, "I": 64, "O": 10, "N_t": 512, "N_c": 5, "2^N_c": 32}))


CHAPTERS = (
    Chapter("learn", "train a network without multiplications", learn),
    Chapter("attend", "attend without multiplications", attend),
    Chapter("flow", "record a run and draw its data flow", flow),
)

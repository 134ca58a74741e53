"""A progress bar on the error stream, while tables are fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, dict[str, float]], None]


@contextmanager
def progress(name: str, total: int, show: bool) -> Iterator[Report | None]:
    """What to call with the steps done and the losses; None where nothing is shown."""
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total)

        def report(done: int, losses: dict[str, float]) -> None:
            told = ", ".join(f"{split} loss {loss:.4f}" for split, loss in losses.items())
            bar.update(task, completed=done, description=f"{name} {told}")

        yield report

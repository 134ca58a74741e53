"""The live display of a run: a bar, the loss, the speed and the time left; without a terminal, a line now and then."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from lutetia.training.task import told

PAUSE = 10.0  # seconds between two lines in a pipe


class Display(Protocol):
    """What the loop reports."""

    def update(self, done: float, step: int, values: Mapping[str, Any]) -> None:
        """`done` is the completed fraction of the run; `values` are new numbers, often none."""

    def say(self, text: str) -> None:
        """A message to show, terminal or not."""


class Silent:
    """Shows nothing."""

    def update(self, done: float, step: int, values: Mapping[str, Any]) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class Live:
    """A progress bar on a rich console; without a terminal, a line every PAUSE seconds."""

    def __init__(self, console: Any, unit: str) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.console, self.unit = console, unit
        columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal, refresh_per_second=5)
        self._task = self._bar.add_task("starting", total=1.0)
        self._texts: dict[str, str] = {}
        self._last_line = time.monotonic()

    def __enter__(self) -> Live:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def update(self, done: float, step: int, values: Mapping[str, Any]) -> None:
        if "per_second" in values:
            self._texts["loss"] = f"loss {values['loss']:.4f}"
            if "bits_per_byte" in values:
                self._texts["loss"] += f" ({values['bits_per_byte']:.3f} bits per byte)"
            self._texts["speed"] = f"{values['per_second']:,.0f} {self.unit}/s"
            self._texts["left"] = f"{clock(values['left'])} left"
        elif "loss" in values:
            self._texts["valid"] = f"valid {told(values)}"
        order = ("loss", "valid", "speed", "left")
        parts = [f"step {step}", *(self._texts[name] for name in order if name in self._texts)]
        if self.console.is_terminal:
            self._bar.update(self._task, completed=min(done, 1.0), description=" · ".join(parts))
        elif time.monotonic() - self._last_line >= PAUSE:
            self._last_line = time.monotonic()
            self.say(f"{min(done, 1.0):4.0%} " + ", ".join(parts))

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """A duration in readable form."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"

"""The log of a run: one JSON object per line in metrics.jsonl, TensorBoard, and a plot of the loss at the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lutetia.errors import DataError, MissingFeatureError, require
from lutetia.files import read_bytes, write_atomically

FILE = "metrics.jsonl"


class Metrics:
    """Appends to metrics.jsonl, and to TensorBoard's files when that is wanted and installed."""

    def __init__(self, folder: Path, after: int, tensorboard: bool, say: Callable[[str], None]) -> None:
        """`after` is the step that the run continues from: lines that a killed run wrote beyond it are dropped."""
        self.path = folder / FILE
        kept = [line for line in read_metrics(self.path) if line["step"] <= after]
        with write_atomically(self.path) as file:
            file.write("".join(json.dumps(line) + "\n" for line in kept).encode())
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115  # closed by close
        self._board = _board(folder, after, say) if tensorboard else None

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """One line: `kind` is "train", "valid" or "test"."""
        try:
            self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._file.flush()
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror or error}") from error
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{name}/{kind}", value, step)

    def close(self) -> None:
        with suppress(OSError):  # a line could not be written, and this was reported
            self._file.close()
        if self._board is not None:
            self._board.close()


def _board(folder: Path, after: int, say: Callable[[str], None]) -> Any:
    try:
        board = require("torch.utils.tensorboard", "train.tensorboard", "tensorboard")
    except MissingFeatureError as error:
        say(f"{error}; continuing without it")
        return None
    return board.SummaryWriter(str(folder / "tensorboard"), purge_step=after + 1)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, up to the first that a kill has cut short."""
    lines: list[dict[str, Any]] = []
    if not path.exists():
        return lines
    for text in read_bytes(path, "the metrics of a run").decode("utf-8", "replace").splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            break
        if not isinstance(line, dict) or not isinstance(line.get("step"), int) or not isinstance(line.get("kind"), str):
            break
        lines.append(line)
    return lines


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def draw(folder: Path, title: str = "") -> Path:
    """Draw loss.png from the metrics of a run."""
    require("matplotlib", "the picture of the loss")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = read_metrics(folder / FILE)
    unit = "bits per byte" if any("bits_per_byte" in line for line in lines) else "loss in nats"
    key = "bits_per_byte" if unit == "bits per byte" else "loss"
    figure = Figure(figsize=(8, 4.5), dpi=120)
    figure.subplots_adjust(left=0.1, right=0.98, bottom=0.12, top=0.93)  # to fit them would take as long as to draw
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for kind, style in (("train", {"linewidth": 1.0}), ("valid", {"marker": "o", "markersize": 3}), ("test", {"marker": "*"})):
        points = [(line["step"], line[key]) for line in lines if line["kind"] == kind and _is_finite(line.get(key))]
        if points:
            axes.plot(*zip(*points, strict=True), label=kind, **style)
    axes.set(xlabel="step", ylabel=unit)
    axes.set_title(title.replace("$", r"\$"), fontsize=10)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False)
    with write_atomically(folder / "loss.png") as file:
        figure.savefig(file, format="png")
    return folder / "loss.png"

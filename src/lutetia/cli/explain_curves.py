"""`lutetia explain --curves`: what each column of a table does in all rows, in the terminal, as a page, a picture or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from lutetia._shared.numbers import short_number
from lutetia.cli.build_data import training_rows
from lutetia.cli.guard import UsageError
from lutetia.cli.one_target import one_output
from lutetia.cli.outputs import check_output
from lutetia.cli.pictures import bars
from lutetia.cli.show import console, one_line
from lutetia.errors import require
from lutetia.files import write_atomically
from lutetia.models import Tabular, load
from lutetia.precompute import page_title
from lutetia.report import Curves, find_curves, write_curves

MOST_LINES, MOST_PICTURES, ACROSS = 12, 12, 3


class CurvesRequest(NamedTuple):
    """What was asked for: the options of the command."""

    html: Path | None
    png: Path | None
    data: Path | None  # where the rows are, if they have moved
    output: str | None = None  # of several targets, the one to explain


def explain_curves(checkpoint: Path, request: CurvesRequest, show: bool) -> dict[str, Any]:
    """Find the curves of a model, write what was asked for, and with `show` name the largest. Returns what `--json` prints."""
    check_output("--html", request.html, (".html", ".htm"))
    check_output("--png", request.png, (".png",))
    model: Any = one_output(load(checkpoint), request.output, "explain --curves")
    if not isinstance(model, Tabular) or model.config.core != "tables" or len(model.config.input_shape) != 1:
        raise UsageError("--curves is for models of columns of data that are made of tables, and this is none")
    found = find_curves(model, training_rows(checkpoint, request.data, model, "--curves averages over"))
    if request.html is not None:
        write_curves(request.html, found, page_title(checkpoint))
    if request.png is not None:
        _draw(found, request.png)
    if show:
        _show(found, request)
    return {"kind": model.kind, **found.to_dict()}


def _show(found: Curves, request: CurvesRequest) -> None:
    screen = console()
    names = [each.name for each in found.curves] + [" and ".join(each.names) for each in found.maps]
    sizes = [each.importance for each in found.curves] + [each.importance for each in found.maps]
    screen.print(bars(screen, list(map(one_line, names)), sizes), end="", soft_wrap=True)
    for line in found.to_text(MOST_LINES).splitlines()[: min(MOST_LINES, len(found.curves))]:
        screen.print(Text(one_line(line.partition(" ")[2])), soft_wrap=True)
    if len(found.outputs) == 1:
        average = short_number(float(found.average[0]), 6)
        screen.print(Text(one_line(f"{found.outputs[0]} is {average} on average, over {found.n_rows:,} rows")), soft_wrap=True)
    screen.print(Text(found.said()), soft_wrap=True)
    for kind, path in (("page", request.html), ("picture", request.png)):
        if path is not None:
            screen.print(Text(f"{kind} {one_line(str(path))}"), soft_wrap=True)


def _draw(found: Curves, path: Path) -> None:
    """The largest curves side by side: steps of numbers, bars of categories."""
    shown = found.curves[:MOST_PICTURES]
    down = -(-len(shown) // ACROSS) or 1
    figure = require("matplotlib.figure", "--png", "matplotlib").Figure(figsize=(12, 3 * down), layout="constrained")
    panes = figure.subplots(down, ACROSS, squeeze=False).ravel()
    for axes, curve in zip(panes, shown, strict=False):
        first = int(curve.is_missing)
        for number, name in enumerate(found.outputs):
            own = curve.values[:, number]
            if curve.edges is not None:
                low, high = curve.ends
                ends = [low, *curve.edges.clip(low, high).tolist(), high]
                axes.stairs(own[first:], ends, baseline=None, label=name)
            else:
                axes.plot(own, curve.labels, "o", label=name)
        axes.set_title(curve.name, parse_math=False, fontsize=10)
    for axes in panes[len(shown) :]:
        axes.set_axis_off()
    if 1 < len(found.outputs) <= 10 and shown:
        panes[0].legend(fontsize=7, frameon=False)
    with write_atomically(path) as file:
        figure.savefig(file, format="png", dpi=140)

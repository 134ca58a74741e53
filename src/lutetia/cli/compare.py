"""`lutetia compare`: our model beside other methods on the user's own table, on the same rows, and whether it is better there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.table import Column, Table
from rich.text import Text

from lutetia._shared.numbers import short_number
from lutetia.cli.apart import Ended, Overtime, apart
from lutetia.cli.compare_windows import GIVEN, fit_theirs, fit_windows, numbered
from lutetia.cli.guard import UsageError
from lutetia.cli.outputs import check_output
from lutetia.cli.show import Progress, console, one_line
from lutetia.cli.train_table import read_table, show_types
from lutetia.errors import DataError, JobError
from lutetia.models import Tabular
from lutetia.sklearn import CONSTANT_ANSWER as CONSTANT
from lutetia.sklearn import OUR_NAME, PEER_METHODS, Contest, Problem, contestants, document, fit_ours, play
from lutetia.training import LearningTable, Shape, TableConfig, TabularRows, fit_rows, fold_rows, held_out, is_table, table_shape

MOST_FOLDS = 20


class CompareRequest(NamedTuple):
    """What the command line asked for."""

    path: Path
    target: str | None
    task: str | None
    settings: list[str]
    folds: int
    minutes: float
    html: Path | None


def play_apart(contest: Contest, fit: Any, seconds: float) -> Iterator[Any]:
    """One method in all folds, in a process of its own."""
    return apart(play, (contest, fit), seconds, [fit_ours.__module__, *_peer_modules()])


def compare(request: CompareRequest, show: bool) -> dict[str, Any]:
    """Compare; with `show`, print the columns first and the progress. Returns what `--json` prints."""
    if not 2 <= request.folds <= MOST_FOLDS:
        raise UsageError(f"--folds is {request.folds}, expected 2 to {MOST_FOLDS}")
    if not request.minutes > 0:
        raise UsageError(f"--minutes is {request.minutes:g}, expected a number above 0")
    check_output("--html", request.html, (".html", ".htm"), [str(request.path)])
    target = [] if request.target is None else [request.target]
    config, folder, opened = read_table(request.path, target, request.task, request.settings)
    if isinstance(opened, list):
        raise UsageError(
            f"compare is for one target, and {', '.join(each.name for each in opened)} are {len(opened)}: --target NAME"
        )
    table = opened[0]
    if table.forecast is not None:
        raise UsageError(
            "compare does not forecast: data.ahead is for train, which prints the errors of the last value and the season"
        )
    if table.is_unusual:
        raise UsageError("--task is unusual, which predicts nothing that methods could be compared by: lutetia bench unusual")
    if show:
        show_types(config, folder, opened, guessed=request.target is None and is_table(request.path))
    contest = make_contest(config, table, request.folds)
    fits, left_out = contestants(contest.problem)
    ours = partial(fit_ours, partial(_model, config, contest.problem.shape), contest.problem.threads)
    has_shapes = table.windows is not None and bool(config.data.shapes)
    if has_shapes:
        ours = partial(fit_windows, config, table, contest.problem.threads)
        fits = {name: partial(fit_theirs, fit, table.x) for name, fit in fits.items()}
        contest = numbered(contest)
    fits = {OUR_NAME: ours, **fits}
    turns = {}
    with Progress("fits", len(fits) * request.folds, show) as progress:
        for name, fit in fits.items():
            done: list[Any] = []
            try:
                for turn in play_apart(contest, fit, 60 * request.minutes):
                    done.append(turn)
                    progress.advance()
                turns[name] = done
            except Overtime:
                of = f"{len(done)} of {request.folds} folds were done"
                left_out[name] = f"it took longer than {request.minutes:g} minutes, {of}: --minutes gives more"
            except Ended as error:
                if name == OUR_NAME:
                    raise JobError(f"the fit of our own model did not end well: {error}") from error
                left_out[name] = str(error)
            progress.advance(request.folds - len(done))
    about = {"data": str(request.path), "target": config.data.target, "classes": table.classes}
    about |= {**held_out(config, table), "weighted_by": config.data.weight}
    said = document(contest, turns, left_out)
    return {**about, **said, "given": [*said["given"], *([GIVEN] if has_shapes else [])]}


def make_contest(config: TableConfig, table: LearningTable, folds: int) -> Contest:
    """The rows of a table, parted so that the first fold is what `lutetia train` fits and tests on."""
    if not config.data.test:
        raise DataError("data.test is 0, expected more: methods are compared on rows that were not fitted")
    weight = np.ones(len(table.y), np.float32) if table.weight is None else table.weight
    rows = TabularRows(table.x, table.y, weight, table.split, table.query, table.texts)
    boosting = config.boosting()
    shape = table_shape(config, table)
    problem = Problem(shape, boosting.number_loss, config.fit.balanced, config.fit.seed, torch.get_num_threads())
    return Contest(problem, rows, fold_rows(rows, bool(table.classes), config.data.test, folds, config.data.path))


def _model(config: TableConfig, shape: Shape, rows: TabularRows) -> Tabular:
    return fit_rows(config, rows, shape)[0]


def _peer_modules() -> list[str]:
    """What other methods load, to be loaded once."""
    return ["sklearn.ensemble", *(each.package for each in PEER_METHODS if each.is_installed and each.package != "scikit-learn")]


# ---- on a screen -----------------------------------------------------------------------------------------------------


def show_comparison(told: dict[str, Any]) -> None:
    """The table, what it was made of, and the verdict."""
    screen = console()
    numbers = (Column(name, justify="right") for name in columns_of(told)[1:-1])
    table = Table(Column("method", no_wrap=True), *numbers, Column("Lutetia is"))
    for row in told["methods"]:
        table.add_row(*map(Text, cells_of(told, row)), style="bold" if row["method"] == OUR_NAME else "")
    screen.print(table)
    for line in notes_of(told):
        screen.print(line, soft_wrap=True)
    screen.print(Text(told["verdict"], style="bold"), soft_wrap=True)


def columns_of(told: dict[str, Any]) -> list[str]:
    """The titles of the columns."""
    losses = ["log loss"] if told["task"] == "classification" else []
    return ["method", told["measure"], *losses, "fit, s", "1,000 rows, s", "MB on disk", "Lutetia is"]


def cells_of(told: dict[str, Any], row: dict[str, Any]) -> list[str]:
    """A row of the table as text."""
    is_share = told["task"] == "classification"
    score = f"{row['score']:.2%}" if is_share else short_number(row["score"], 5)
    losses = [f"{row['log_loss']:.4f}"] if is_share else []
    taken = [short_number(row[key], 2) for key in ("fit_seconds", "predict_seconds")]
    return [row["method"], score, *losses, *taken, short_number(row["bytes"] / 1e6, 2), row.get("lutetia_is", "")]


def notes_of(told: dict[str, Any]) -> list[str]:
    """What the numbers are, how columns were given, and what is missing."""
    folds = told["folds"]
    tested = sum(each["test"] for each in folds)
    sizes = f"{folds[0]['fit']:,} to fit and {folds[0]['test']:,} to test in the first"
    means = f"means of {len(folds)} folds of {told['rows']:,} rows, {sizes}; {tested:,} rows tested in all"
    means += f"; rows count by {one_line(told['weighted_by'])}" if told["weighted_by"] else ""
    given = [f"{means}; all methods with their defaults, on {told['threads']} threads", *told["given"]]
    return [*given, *(f"left out: {name}: {one_line(why)}" for name, why in told["left_out"].items())]


def write_page(path: Path, told: dict[str, Any]) -> None:
    """The same as a page, with a picture of the differences."""
    from lutetia.report import CellTable, Gap, Standings, write_standings

    others = [row for row in told["methods"] if "difference" in row and row["method"] != CONSTANT]
    factor, unit = (100, f"points of {told['measure']}") if told["task"] == "classification" else (1, told["measure"])
    gaps = [Gap(row["method"], factor * row["difference"], factor * row["chance"]) for row in others]
    name = f"{Path(told['data']).name}: {told['target'] or 'y'}"
    rows = [cells_of(told, row) for row in told["methods"]]
    shown = Standings(name, told["verdict"], gaps, unit, CellTable(columns_of(told), rows), notes_of(told))
    write_standings(path, shown)

"""`lutetia train` on a file of data: types are guessed and shown, tables fitted, and a config written that can be edited."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lutetia._shared.losses import NOUNS
from lutetia._shared.numbers import short_number
from lutetia.cli.class_lines import class_lines
from lutetia.cli.data_warnings import alike_texts, data_warnings, rows_text
from lutetia.cli.forecasts import base_line, forecast_lines, naive_text
from lutetia.cli.guard import UsageError, stop_if_interrupted
from lutetia.cli.show import Progress, console, one_line
from lutetia.cli.train_targets import asked_targets, only_target, target_lines, targets_text
from lutetia.cli.windows import shapes_text, show_windows, windows_file
from lutetia.errors import DataError
from lutetia.training import (
    Data,
    LearningTable,
    OpenedTarget,
    TableConfig,
    check_fit,
    check_targets,
    duration_text,
    guess_config,
    guess_forecast,
    guess_targets,
    guess_windows,
    held_out,
    holds_table_run,
    is_table,
    make_table_config,
    n_unusual_fits,
    open_table,
    open_targets,
    override_setting,
    read_table_file,
    read_toml,
    suit_limits,
    targets_of,
    train_table,
    train_targets,
)

SHOWN = 30  # columns on a screen
SHOWN_CLASSES = 10
SHOWN_SKIPPED = 5
RARE = 0.5  # of the rows that a class would have if all had as many


class TableRequest(NamedTuple):
    """What the command line asked for."""

    path: Path
    out: Path | None
    target: Sequence[str]
    task: str | None
    settings: list[str]
    resume: bool
    device: str | None
    data: Path | None


def run_table(request: TableRequest, show: bool) -> dict[str, Any]:
    """Fit, leave a run folder, and return the summary."""
    if request.resume:
        raise UsageError("--resume works only for training in steps: a table of data is fitted in one pass")
    if request.device not in (None, "cpu"):
        raise UsageError(f"--device is {request.device}, expected cpu: tables of data are fitted there")
    if request.data is not None:
        raise UsageError("--data works only for training in steps: [data] of a table's config has its path")
    path = request.path
    again = False
    if is_table(path):
        name = path.name.split(".")[0] if path.is_file() else Path(os.path.abspath(path)).name
        out = request.out or Path("runs") / name
        if (out / "config.toml").exists():
            raise DataError(f"{out} already holds a run: edit {out / 'config.toml'} and train that, or choose --out")
    else:
        # The config of a run lies in its folder, and is fitted again there.
        folder, is_own = path.parent, path.name == "config.toml" and holds_table_run(path.parent)
        name = Path(os.path.abspath(folder)).name if path.name == "config.toml" else path.stem
        out = request.out or (folder if is_own else Path("runs") / name)
        again = is_own and os.path.realpath(out) == os.path.realpath(folder)
    config, folder, opened = read_table(path, request.target, request.task, request.settings)
    if show:
        is_guess = not request.target and is_table(path) and path.suffix.lower() != ".npz"
        if isinstance(opened, list):
            first = replace(config, data=replace(config.data, target=opened[0].name))
            show_types(first, folder, opened[0][1:], False, targets_text(opened))
        else:
            show_types(config, folder, opened, guessed=is_guess)
    trials = 1 + config.fit.calibrate
    if not isinstance(opened, list) and opened[0].is_unusual:
        trials = n_unusual_fits(len(opened[1].splits["train"]))
    with Progress("fitting tables", trials * config.fit.n_tables, show) as progress:

        def each(done: int, losses: dict[str, float]) -> None:
            stop_if_interrupted()
            progress.advance(done - progress.done)

        if isinstance(opened, list):
            return train_targets(config, folder, out, opened, again=again, each=each)
        return train_table(config, folder, out, again=again, each=each, opened=opened)


def read_table(
    path: Path, target: Sequence[str], task: str | None, settings: list[str]
) -> tuple[TableConfig, Path, tuple[LearningTable, Data] | list[OpenedTarget]]:
    """The config of a file of data, or one that was written, with what --set says; the folder of its paths; and what it opens, of
    several targets each."""
    file = None
    if is_table(path):
        folder = Path()
        file = None if path.is_dir() else read_table_file(path)  # images are read as the config says
        asked = _asked(settings)
        implied = "ranking" if asked["query"] is not None else "regression" if asked["has_loss"] else None
        del asked["has_loss"]
        names = asked_targets(target or asked.pop("targets"), file)
        asked.pop("targets", None)
        has_windows, has_ahead = asked.pop("has_windows"), asked.pop("has_ahead")
        if has_ahead:
            config = guess_forecast(path, windows_file(path, file), only_target(names), task or implied, settings)
        elif has_windows:
            config = guess_windows(path, windows_file(path, file), only_target(names), task or implied, settings)
        elif len(names) > 1 and file is not None:
            config = guess_targets(path, names, task or implied, file, **asked)
        else:
            config, _ = guess_config(path, only_target(names), task or implied, file=file, **asked)
    else:
        if target or task is not None:
            raise UsageError(f"--target and --task are for data: {path} names its own in [data]")
        folder, config = path.parent, make_table_config(read_toml(path), str(path))
    config = _with(config, settings, str(path), guessed=is_table(path))
    file = file if config.data.path == str(path) else None
    if targets_of(config):
        several = open_targets(config, folder, file=file)
        check_targets(config, several)
        return config, folder, several
    opened = open_table(config, folder, file=file)
    check_fit(config, opened[0])  # before the screen says what would be done
    return config, folder, opened


def _asked(settings: list[str]) -> dict[str, Any]:
    """What --set says that a guess depends on, too: whether to skip what is unusable, how dates are written, the column of
    queries, which only a ranking has, whether there is a loss, which only numbers have, and whether rows are samples in time."""
    tables: dict[str, Any] = {"data": {}, "fit": {}}
    for setting in settings:
        override_setting(tables, setting)
    data, order = tables["data"], tables["data"].get("day_first")
    skip, has_loss = data.get("skip_unusable") is True, bool({"loss", "quantile"} & tables["fit"].keys())
    query = None if data.get("query") is None else str(data["query"])
    told = {"skip": skip, "day_first": order if isinstance(order, bool) else None, "query": query, "has_loss": has_loss}
    target = data.get("target")
    told |= {"has_windows": "window" in data, "has_ahead": "ahead" in data}
    return told | {"targets": target if isinstance(target, list) else []}


def _with(config: TableConfig, settings: list[str], name: str, guessed: bool) -> TableConfig:
    """The config with what --set says; columns that it makes categories or dates are not left out by a guess, and a quantile has
    no intervals."""
    tables = config.to_dict()
    keys = [override_setting(tables, setting) for setting in settings]
    changed = make_table_config(tables, name, keys)
    if not guessed:
        return changed
    data, changed = changed.data, replace(changed, fit=suit_limits(changed.fit, keys))
    if changed.fit.loss == "quantile" and "fit.intervals" not in keys:
        changed = replace(changed, fit=replace(changed.fit, intervals=False))
    if "data.dates" not in keys:
        data = replace(data, dates=[column for column in data.dates or () if column not in data.categorical] or None)
    if "data.text" not in keys:
        typed = {*data.categorical, *(data.dates or ())}
        data = replace(data, text=[column for column in data.text or () if column not in typed] or None)
    if "data.leave_out" not in keys:
        typed = {*data.categorical, *(data.dates or ()), *(data.text or ())}
        data = replace(data, leave_out=[column for column in data.leave_out if column not in typed])
    return replace(changed, data=data)


def show_types(config: TableConfig, folder: Path, opened: tuple[LearningTable, Data], guessed: bool, several: str = "") -> None:
    """Show the types of the columns before the fit, and how to choose another target if this one was guessed; `several` tells of
    several targets."""
    table, data = opened
    types, screen = table.types, console()
    unit = "row" if table.windows is None and table.forecast is None else "window"
    count = ", ".join(f"{rows_text(part, unit)} to {'fit' if name == 'train' else name}" for name, part in data.splits.items())
    kind = f"classification, {len(table.classes)} classes" if table.classes else "regression"
    kind = "unusual rows" if table.is_unusual else kind if table.query is None else "ranking"
    target = f" {'of' if table.query is None else 'by'} {one_line(str(config.data.target))}" if config.data.target else ""
    target += ", the last column (--target names another)" if target and guessed else ""
    parted = held_out(config, table)
    is_drawn = parted["held_out"] == "random" or "test" not in data.splits
    held = "" if is_drawn else f", {held_out_text(parted['held_out'], parted['held_out_by'])}"
    screen.print(f"{several or kind + target}: {count}{held}", soft_wrap=True, markup=False)
    if table.windows is not None:
        show_windows(config, table.windows)
    if table.forecast is not None:
        for told in forecast_lines(table, bool(config.data.test)):
            screen.print(told, soft_wrap=True, markup=False)
    if config.data.weight is not None:
        screen.print(f"rows count by {one_line(config.data.weight)}, in the fit and in what is measured", soft_wrap=True)
    width = max((len(one_line(name)) for name in [*(name for name, _ in types[:SHOWN]), *table.left_out]), default=0)
    for name, told in types[:SHOWN]:
        screen.print(f"  {one_line(name):<{width}}  {one_line(told)}", soft_wrap=True)
    if len(types) > SHOWN:
        screen.print(f"  and {len(types) - SHOWN} more columns", soft_wrap=True)
    for name, why in table.left_out.items():
        screen.print(f"  {one_line(name):<{width}}  left out: {one_line(why)}", soft_wrap=True)
    if table.texts:
        names = json.dumps([own.name for own in table.texts], ensure_ascii=False)
        told = f"  --set {shlex.quote(f'data.text={one_line(names)}')} chooses the columns of text; [] for none"
        screen.print(told, soft_wrap=True, markup=False)
    if any("different values" in why for why in table.left_out.values()):
        screen.print("""  --set 'data.categorical=["NAME"]' keeps a column of many values as categories""", soft_wrap=True)
    if any("data.day_first" in why for why in table.left_out.values()):
        screen.print("  --set data.day_first=true (or false) keeps such dates", soft_wrap=True)
    if any("is not a number" in told for _, told in types):
        screen.print(
            """  --set 'data.missing=["WORD"]' reads such a word as missing, and the column as numbers""", soft_wrap=True
        )
    if any("identifier" in why for why in table.left_out.values()):
        screen.print("""  --set 'data.leave_out=[]' keeps identifiers and numbers of rows""", soft_wrap=True)
    for told in alike_texts(table):
        screen.print(f"  {told}", soft_wrap=True, markup=False)
    if told := monotone_text(config.fit.monotone, table.classes):
        screen.print(f"  {told} (fit.monotone)", soft_wrap=True)
        for name in (table.features[number] for number in table.dates):
            if config.fit.monotone.get(name):
                screen.print(f"  {one_line(name)} is compared as a date, not by its month or weekday", soft_wrap=True)
    if config.fit.interactions:
        screen.print(f"  {interactions_text(config.fit.interactions)} (fit.interactions)", soft_wrap=True, markup=False)
    if told := _latest_text(config, table):
        screen.print(told, soft_wrap=True)
    for told in data_warnings(config, table, data):
        screen.print(told, soft_wrap=True, markup=False)
    if len(table.input_shape) > 1:
        screen.print(f"  {_images_text(config, table.input_shape)}", soft_wrap=True)
    if table.skipped:
        images = (folder / config.data.path).is_dir()
        lacks = "" if images else f" without {_lacking(config)}"
        screen.print(_skipped_text(table.skipped, "damaged image" if images else "row", lacks), soft_wrap=True)
    if config.data.missing:
        words = ", ".join(repr(one_line(word)) for word in config.data.missing)
        screen.print(f"also missing: {words} (data.missing in the config)", soft_wrap=True, markup=False)


def monotone_text(signs: Mapping[str, int], classes: Sequence[str]) -> str:
    """What constraints say: "the prediction never falls as age rises, and never rises as price rises"; empty without any."""
    what = f"the probability of {one_line(classes[1])}" if len(classes) == 2 else "the prediction"
    told = []
    for sign, verb in ((1, "falls"), (-1, "rises")):
        names = [one_line(name) for name, own in signs.items() if own == sign]
        told += [f"never {verb} as {' or '.join(names)} rises"] if names else []
    return f"{what} {', and '.join(told)}" if told else ""


def interactions_text(wanted: int | Sequence[Sequence[str]]) -> str:
    """What limits say: "a table compares one column", or the groups of columns that may meet."""
    if isinstance(wanted, int):
        return f"a table compares {'one column' if wanted == 1 else f'{wanted} columns at most'}"
    groups = "; ".join(", ".join(map(one_line, group)) for group in wanted)
    return f"a table compares columns of one group: {groups}; or of those in no group"


def _latest_text(config: TableConfig, table: LearningTable) -> str:
    """That rows to test are not the latest though the file has dates, and what to type; empty where no date is passed over."""
    if not table.dates or not config.data.test or config.data.split_by is not None:
        return ""
    column = min(table.dates)
    name, dates = table.features[column], table.x[:, column]
    by = f"--set {_setting('data.split_by', name)}"
    if config.data.split == "random":
        what = "rows" if table.query is None else "queries"
        why = f"{what} to test are drawn at random, not the latest"
        return f"{why}; to test on the latest: --set data.split=latest {by}"
    is_sorted = config.data.split != "latest" or (np.diff(dates[~np.isnan(dates)]) >= 0).all()
    return "" if is_sorted else f"the file is not in the order of {one_line(name)}; to test on its latest rows: {by}"


def _setting(key: str, name: str) -> str:
    """What to type after --set to give a key the name of a column."""
    plain = name.isidentifier() and name.isascii() and name not in ("true", "false", "inf", "nan")
    return shlex.quote(f"{key}={name if plain else json.dumps(one_line(name), ensure_ascii=False)}")


def held_out_text(split: str, by: str | None) -> str:
    """Which rows are held out, where they are not drawn at random: "the latest by sold"."""
    of = one_line(by or "")
    if split in ("blocks", "latest blocks"):
        return f"{'the latest' if split != 'blocks' else 'whole'} blocks of {of}"
    return f"whole groups by {of}" if split == "groups" else f"the latest by {of}" if by else "the last of the file"


def _lacking(config: TableConfig) -> str:
    """What rows that are skipped lack: "a target", or one of several columns that each row needs."""
    others = [one_line(name) for name in config.data.reading.rows.names.values()]
    return f"a target or without {' or '.join(others)}" if others else "a target"


def _skipped_text(skipped: list[str], kind: str, lacks: str) -> str:
    """What is not learned from: "skipped 2 rows without a target: line 3, line 8"."""
    count = f"{len(skipped):,} {kind}{'' if len(skipped) == 1 else 's'}{lacks}"
    more = f" and {len(skipped) - SHOWN_SKIPPED:,} more" if len(skipped) > SHOWN_SKIPPED else ""
    return f"skipped {count}: {', '.join(map(one_line, skipped[:SHOWN_SKIPPED]))}{more} (data.skip_unusable in the config)"


def _images_text(config: TableConfig, shape: tuple[int, ...]) -> str:
    """How images are read: "images of 28 × 28 pixels, in colour"."""
    resized = "resized to" if config.data.size else "of"
    colours = {True: ", in colour", False: ", grey", None: ""}[config.data.colour]
    moved = (
        f", each also fitted shifted by {config.data.shift} pixel{'' if config.data.shift == 1 else 's'}"
        if config.data.shift
        else ""
    )
    where = "data.size, data.colour, data.shift and data.patches in the config"
    return f"images {resized} {shape[-2]} × {shape[-1]} pixels{colours}{moved} ({where})"


def show_table(summary: dict[str, Any]) -> None:
    """The outcome of a fit, in a few lines."""
    screen = console()
    screen.print(
        f"{summary['tables']} tables in {duration_text(summary['seconds'])}, {summary['weights']:,} weights", soft_wrap=True
    )
    if "patches" in summary:
        screen.print(_patches_text(**summary["patches"]), soft_wrap=True)
    if "shapes" in summary:
        screen.print(shapes_text(**summary["shapes"]), soft_wrap=True)
    if told := base_line(summary.get("base")):
        screen.print(told, soft_wrap=True)
    for each in summary.get("texts", ()):
        screen.print(_words_text(each), soft_wrap=True, markup=False)
    if summary["tables"] < summary.get("most_tables", 0):
        why = f"more, up to {summary['most_tables']:,}, were worse on rows that a trial did not see"
        screen.print(f"{summary['tables']} tables are enough: {why}", soft_wrap=True)
    if "targets" in summary:
        for line in target_lines(summary, split_text):
            screen.print(line, soft_wrap=True, markup=False)
        show_places(summary)
        return
    if summary["temperature"] > 1:
        why = "on rows that a trial did not see, probabilities were too high"
        screen.print(f"scores divided by {summary['temperature']:.2f}: {why}", soft_wrap=True)
    for split in ("train", "test"):
        if split in summary:
            screen.print(f"{split:<6}{split_text(summary, split)}", soft_wrap=True, markup=False)
    if "classes" in (test := summary.get("test", {})):
        for line in class_lines(test, SHOWN_CLASSES):
            screen.print(f"      {line}", soft_wrap=True, markup=False)
        if not summary["balanced"] and (rare := missed_class(test)):
            hint = "--set fit.balanced=true makes classes count alike"
            screen.print(f"      {one_line(rare)} is rare and mostly missed: {hint}", soft_wrap=True, markup=False)
    show_places(summary)


def split_text(summary: dict[str, Any], split: str) -> str:
    """How good a model is on a split, on the rows to test beside an answer that is always the same."""
    told = told_measure(summary[split]) + naive_text(summary[split])
    if split == "test" and "its_share" in summary[split]:
        told += f" (always {one_line(summary[split]['most_frequent'])}: {summary[split]['its_share']:.2%})"
    return told


def show_places(summary: dict[str, Any]) -> None:
    """Where the model and its config are."""
    console().print(f"model {summary['checkpoint']}", soft_wrap=True)
    console().print(f"edit  {Path(summary['out']) / 'config.toml'}", soft_wrap=True)


def _words_text(told: dict[str, Any]) -> str:
    """What is made of a text column, and the clearest words of each class: "spam: free, txt, claim"."""
    counts = f"{told['weighed']:,} words and pairs have weights, {told['looked_for']:,} are inputs themselves"
    words = [f"{one_line(name)}: {', '.join(map(one_line, own))}" for name, own in told["speak"].items() if own][:SHOWN_CLASSES]
    return f"{one_line(told['column'])}: {counts}" + (f"; strongest for {'; for '.join(words)}" if words else "")


def _patches_text(counts: int, trial: dict[str, Any] | None) -> str:
    """What is counted in images, and what a trial said of that."""
    said = f"patterns are counted in each image, in {counts:,} ways" if counts else "pixels are compared, no patterns counted"
    if trial is None:
        return said
    why = f"{trial['patches']:.4f} with patterns, {trial['pixels']:.4f} without, on {trial['rows']:,} images"
    return f"{said}: in a trial the loss was {why}"


def missed_class(measured: dict[str, Any]) -> str | None:
    """A class with few of the rows, of which most are taken for other classes."""
    total = sum(each["samples"] for each in measured["classes"])
    for each in measured["classes"]:
        if 0 < each["samples"] < RARE * total / len(measured["classes"]) and 2 * each["right"] < each["samples"]:
            return str(each["class"])
    return None


def ranking_text(measured: dict[str, Any]) -> str:
    """How good an order is, beside an order by chance."""
    text = f"NDCG@10 {measured['ndcg_10']:.4f}, NDCG@5 {measured['ndcg_5']:.4f}"
    text += f" (by chance: {measured['chance_10']:.4f} and {measured['chance_5']:.4f})"
    lacking = measured["without_relevant"]
    return f"{text}, {measured['queries'] - lacking:,} queries" + (
        f", {lacking:,} more without a relevant row" if lacking else ""
    )


def flagged_text(measured: dict[str, Any]) -> str:
    """What is flagged of rows, and where the unusual ones are known how well they are found."""
    if "roc_auc" not in measured:
        return f"{measured['flagged']:.2%} of the rows flagged as unusual, {measured['wanted']:.2%} wanted"
    found = f"{measured['found']:,} of {measured['unusual']:,} unusual rows found, {measured['flagged_rows']:,} rows flagged"
    order = f"average precision {measured['average_precision']:.4f}, ROC AUC {measured['roc_auc']:.4f}"
    return f"{order}; {found}, {measured['false_alarms']:.2%} of the usual ones, {measured['wanted']:.2%} wanted"


def told_measure(measured: dict[str, Any]) -> str:
    """The headline numbers of an evaluation."""
    if "weighted_by" in measured:
        rest = {key: value for key, value in measured.items() if key != "weighted_by"}
        return f"weighted by {one_line(measured['weighted_by'])}: {told_measure(rest)}"
    if "ndcg_10" in measured:
        return ranking_text(measured)
    if "flagged" in measured:
        return flagged_text(measured)
    if "accuracy" in measured:
        return f"accuracy {measured['accuracy']:.2%}, loss {measured['loss']:.4f}"
    unit = f" {one_line(measured['unit'])}" if "unit" in measured else ""
    key = measured.get("measure", "rmse")
    own = f"{NOUNS[key]} {short_number(measured[key], 6)}{unit if key != 'deviance' else ''}"
    own += f", R² {measured['r2']:.4f}" if key == "rmse" else f", D² {measured['d2']:.4f}"
    if key == "pinball":
        return f"{own}, {measured['below']:.1%} of rows at or below the prediction, {100 * measured['quantile']:g}% wanted"
    own += "" if key == "rmse" else f", RMSE {short_number(measured['rmse'], 6)}{unit}"
    if "error_90" in measured:
        own += f", 9 of 10 rows within ±{short_number(measured['error_90'])}{unit}"
    if "inside_90" in measured and not math.isclose(measured["width_90"], 2 * measured.get("error_90", 0)):
        own += f", {measured['inside_90']:.1%} in their intervals of ±{short_number(measured['width_90'] / 2)}{unit} on average"
    return own

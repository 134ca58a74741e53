"""`lutetia predict`: predictions for rows, files, images or text, with probabilities; on the screen, as JSON or CSV."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lutetia._shared.numbers import short_number, with_unit
from lutetia.cli.backend import MOST_AT_ONCE, TableWork, forward_work, kernels_for
from lutetia.cli.guard import UsageError, stop_if_interrupted
from lutetia.cli.inputs import NamedInputs, load_for_inputs, read_tokens, read_usable, unknown_warnings
from lutetia.cli.naming import class_names, range_warnings
from lutetia.cli.outputs import check_output
from lutetia.cli.show import Progress, console, one_line, print_warning
from lutetia.errors import ArgumentError, DataError
from lutetia.files import write_atomically
from lutetia.models import Classifier, LUTTransformer, Tabular, Targets, as_floats, chances, finds_unusual
from lutetia.training import half_widths, interval_ends

BATCH = 1024
AT_ONCE = 1 << 14  # rows of a table
SHOWN = 40  # inputs on a screen; files hold all
SHOWN_SKIPPED = 5  # damaged images
STDOUT = Path("-")


class PredictRequest(NamedTuple):
    """What was asked for: the inputs, the CSV file to write, whether it keeps the columns of the inputs, and what a category is
    that the model has not seen: "error", "missing", or None for what the model says."""

    given: Sequence[str]
    out: Path | None = None
    keep: bool = False
    unknown: str | None = None


class Answers(NamedTuple):
    """The results of `predict`: the names of the outcomes, a prediction for each input, warnings, the kernels that ran, the
    columns of the inputs, and why damaged images have no prediction."""

    names: list[str]
    predictions: list[Prediction]
    warnings: list[str]
    backend: str
    files: list[NamedInputs]
    skipped: dict[str, DataError]


class Prediction(NamedTuple):
    """The prediction for one input: probabilities [C], in the order of the names."""

    input: str
    probabilities: list[float]

    def best(self) -> list[int]:
        """All outcomes, the most probable first."""
        return sorted(range(len(self.probabilities)), key=lambda each: -self.probabilities[each])


def predict(checkpoint: Path, request: PredictRequest, show: bool) -> dict[str, Any]:
    """Predict and write the CSV, if any; with `show`, print the predictions. Returns what `--json` prints."""
    given, out = request.given, request.out
    if not given:
        raise UsageError("predict got no INPUT, expected rows, files or text (lutetia predict --help shows examples)")
    if request.keep and out is None:
        raise UsageError("--keep is for a CSV file, expected --csv FILE too")
    check_output("--csv", None if out == STDOUT else out, (".csv",), given)
    model = load_for_inputs(checkpoint, request.unknown)
    if isinstance(model, Tabular) and model.loss.is_ranking:
        from lutetia.cli.predict_ranks import predict_ranks

        return predict_ranks(model, request, show)
    if isinstance(model, Targets):
        from lutetia.cli.predict_targets import predict_targets

        return predict_targets(model, request, show)
    if isinstance(model, Tabular) and finds_unusual(model.metadata):
        from lutetia.cli.predict_unusual import predict_unusual

        return predict_unusual(model, request, show)
    if isinstance(model, Tabular) and model.is_regression:
        return _numbers(model, request, show)
    if isinstance(model, Classifier):
        answers = _classes(model, given, show)
    elif isinstance(model, LUTTransformer):
        answers = _bytes(model, given)
    else:
        raise ArgumentError(f"{checkpoint} holds a {type(model).__name__}, expected a classifier or a language model")
    names, predictions, warnings, backend, files, skipped = answers
    if out is not None:
        _write_csv(out, names, predictions, kept_columns(files, model.metadata.get("target")) if request.keep else None)
    if show:
        for warning in warnings:
            print_warning(warning)
        if out != STDOUT:
            _show(names, predictions, out)
        _show_skipped(skipped)
    listed = [
        {"input": each.input, "number": each.best()[0], "class": names[each.best()[0]], "probabilities": each.probabilities}
        for each in predictions
    ]
    told = {"kind": model.kind, "classes": names, "predictions": listed, "warnings": warnings, "backend": backend}
    return told | {"skipped": _skipped(skipped)}


def _classes(model: Classifier, given: Sequence[str], show: bool) -> Answers:
    files, skipped = read_usable(model, given)
    predictions, warnings = [], []
    total = sum(len(each.x) for each in files)
    one = forward_work(model, 1)
    size = min(BATCH, max(1, MOST_AT_ONCE // max(1, one.at_once)))
    work = TableWork(total * one.numbers, one.at_once)
    with Progress("predicting", total, show) as progress, kernels_for(model, work) as backend, torch.no_grad():
        for file in files:
            for begin in range(0, len(file.x), size):
                stop_if_interrupted()
                x = as_floats(model, file.x[begin : begin + size])
                found = chances(model, model(x)).tolist()
                predictions += [Prediction(*each) for each in zip(file.names[begin : begin + size], found, strict=True)]
                progress.advance(len(x))
            warnings += range_warnings(model, as_floats(model, file.x), file.names) + unknown_warnings(model, file.columns or {})
    return Answers(class_names(model), predictions, warnings, backend, files, skipped)


def _numbers(model: Tabular, request: PredictRequest, show: bool) -> dict[str, Any]:
    """The predictions of a regression: one number per row."""
    (files, skipped), out = read_usable(model, request.given), request.out
    title, unit = model.metadata.get("target") or "value", model.metadata.get("target_unit")
    listed: list[dict[str, Any]] = []
    with torch.no_grad():
        for file in files:
            x = as_floats(model, file.x)
            values, widths = model.numbers(x).numpy(), half_widths(model, x.numpy())
            ends = [{}] * len(values) if widths is None else _ends(model, values, widths)
            listed += [
                {"input": name, "value": value, **own} for name, value, own in zip(file.names, values.tolist(), ends, strict=True)
            ]
    warnings = input_warnings(model, files)
    if out is not None:
        _write_numbers(out, title, listed, kept_columns(files, model.metadata.get("target")) if request.keep else None)
    if show:
        for warning in warnings:
            print_warning(warning)
        if out != STDOUT:
            shown = listed[-SHOWN:] if "forecast" in model.metadata else listed[:SHOWN]  # the last tells the future
            screen, width = console(), row_width([each["input"] for each in shown])
            for each in shown:
                told = one_line(f"{title} {with_unit(each['value'], unit)}")
                if model.loss.quantile is not None:
                    told += f", the {100 * model.loss.quantile:g}% quantile"
                if "low" in each:
                    told += f", {short_number(each['low'], 6)} to {one_line(with_unit(each['high'], unit))} in 9 of 10 cases"
                screen.print(f"{one_line(each['input']):<{width}}  {told}", soft_wrap=True)
            if len(listed) > SHOWN:
                screen.print(more_text(len(listed), out), soft_wrap=True, markup=False)
        _show_skipped(skipped)
    fitted = {"loss": model.loss.name, "quantile": model.loss.quantile}
    return {
        "kind": model.kind,
        "target": title,
        "unit": unit,
        **fitted,
        "predictions": listed,
        "warnings": warnings,
        "skipped": _skipped(skipped),
    }


def input_warnings(model: Tabular, files: Sequence[NamedInputs]) -> list[str]:
    """What is odd about inputs: outside of the training data's range, and categories that are not known."""
    warnings = [text for file in files for text in range_warnings(model, as_floats(model, file.x), file.names)]
    return warnings + [text for file in files for text in unknown_warnings(model, file.columns or {})]


def _ends(model: Tabular, values: Any, widths: Any) -> list[dict[str, float]]:
    """What nine in ten numbers lie between, for each row."""
    lows, highs = interval_ends(model, values, widths)
    return [{"low": low, "high": high} for low, high in zip(lows.tolist(), highs.tolist(), strict=True)]


def _write_numbers(out: Path, title: str, listed: Sequence[dict[str, Any]], kept: KeptColumns | None) -> None:
    """One line for each input: its name or columns, the number, and the ends of its interval."""
    header, title = (["input"], title) if kept is None else (kept.header, kept.title)
    keys = [key for key in ("value", "low", "high") if key in listed[0]]
    before = [[each["input"]] for each in listed] if kept is None else kept.rows
    rows = [[*own, *(repr(each[key]) for key in keys)] for own, each in zip(before, listed, strict=True)]
    write_rows(out, [*header, title, *(f"{title} {key}" for key in keys[1:])], rows)


def _bytes(model: LUTTransformer, given: Sequence[str]) -> Answers:
    """The next byte of each text."""
    names = [byte_name(token) for token in range(model.config.vocab)]
    texts = [read_tokens(model, text) for text in given]
    work = TableWork()
    for tokens in texts:
        work = work.then(forward_work(model, 1, len(tokens)))
    predictions = []
    with kernels_for(model, work) as backend, torch.no_grad():
        for text, tokens in zip(given, texts, strict=True):
            stop_if_interrupted()
            scores = model(tokens[None])[0, -1]
            predictions.append(Prediction(text, scores.double().softmax(0).tolist()))
    return Answers(names, predictions, [], backend, [], {})


def byte_name(token: int) -> str:
    """A token for readers: a character, an escape, or a number."""
    if token >= 256:
        return f"#{token}"
    return chr(token) if 32 < token < 127 else repr(chr(token)) if token < 128 else f"\\x{token:02x}"


class KeptColumns(NamedTuple):
    """The columns of files of inputs: their names, the cells of each row, and a name for the column of predictions."""

    header: list[str]
    rows: list[list[str]]
    title: str


def kept_columns(files: Sequence[NamedInputs], target: str | None) -> KeptColumns:
    """All columns of the inputs, for a CSV file; the inputs must be files with the same columns."""
    title = f"predicted {target}" if target else "prediction"
    return KeptColumns(*kept_rows(files, [title]), title)


def kept_rows(files: Sequence[NamedInputs], titles: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The names and the rows of those columns, beside which columns of some titles are written."""
    if not files or any(file.columns is None for file in files):
        raise UsageError("--keep is for files of columns, expected every INPUT to be a .csv or .parquet file")
    header = list(files[0].columns or ())
    for file in files:
        if list(file.columns or ()) != header:
            raise DataError(
                f"{file.names[0].removesuffix(' row 0')} has other columns than the first file, which --keep cannot join"
            )
    if twice := [title for title in titles if title in header]:
        raise DataError(f"the input has a column {twice[0]!r} already, so --keep cannot add it: rename it")
    return header, [list(map(_cell, row)) for file in files for row in zip(*(file.columns or {}).values(), strict=True)]


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)


def _write_csv(out: Path, names: Sequence[str], predictions: Sequence[Prediction], kept: KeptColumns | None) -> None:
    """One line for each input: its name or columns, the best class, its probability, then the probability of every class."""
    rows = []
    for number, each in enumerate(predictions):
        best, own = each.best()[0], [each.input] if kept is None else kept.rows[number]
        rows.append([*own, names[best], repr(each.probabilities[best]), *map(repr, each.probabilities)])
    if kept is None:
        write_rows(out, ["input", "class", "probability", *names], rows)
    else:
        write_rows(out, [*kept.header, kept.title, "probability", *(f"probability of {name}" for name in names)], rows)


def write_rows(out: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A CSV file, or the same on stdout."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([header, *rows])
    if out == STDOUT:
        sys.stdout.write(text.getvalue())
        return
    with write_atomically(out) as file:
        file.write(text.getvalue().encode("utf-8", "surrogateescape"))


def more_text(count: int, out: Path | None) -> str:
    """What the screen leaves out, and where it is, or how to get it."""
    return f"and {count - SHOWN:,} more" + (
        ": --csv FILE writes all of them" if out is None else f", all in {one_line(str(out))}"
    )


def row_width(inputs: Sequence[str]) -> int:
    """The width of the names of inputs on a screen."""
    return min(60, max((len(one_line(name)) for name in inputs[:SHOWN]), default=0))


def _show(names: Sequence[str], predictions: Sequence[Prediction], out: Path | None) -> None:
    screen, width = console(), row_width([each.input for each in predictions])
    for each in predictions[:SHOWN]:
        best = each.best()[: 2 if len(names) < 100 else 5]
        told = ", ".join(f"{names[at]} {each.probabilities[at]:.1%}" for at in best)
        screen.print(f"{one_line(each.input):<{width}}  {told}", soft_wrap=True)
    if len(predictions) > SHOWN:
        screen.print(more_text(len(predictions), out), soft_wrap=True, markup=False)


def _skipped(damaged: Mapping[str, DataError]) -> list[dict[str, str]]:
    """The images without a prediction."""
    return [{"input": path, "why": str(error)} for path, error in damaged.items()]


def _show_skipped(damaged: Mapping[str, DataError]) -> None:
    """Name the first damaged images, and count all of them."""
    for error in list(damaged.values())[:SHOWN_SKIPPED]:
        print_warning(one_line(str(error)))
    if damaged:
        count = "1 damaged image has" if len(damaged) == 1 else f"{len(damaged):,} damaged images have"
        print_warning(f"{count} no prediction, so the exit code is 1")

"""`lutetia predict` with a model of several targets: an answer for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lutetia._shared.numbers import short_number, with_unit
from lutetia.cli.inputs import NamedInputs, read_usable
from lutetia.cli.predict import SHOWN, STDOUT, PredictRequest, input_warnings, kept_rows, more_text, row_width, write_rows
from lutetia.cli.show import console, one_line, print_warning
from lutetia.models import Tabular, Targets, as_floats, chances
from lutetia.training import half_widths, interval_ends

Array = np.ndarray[Any, Any]


def predict_targets(model: Targets, request: PredictRequest, show: bool) -> dict[str, Any]:
    """The predictions of each target: a column for each, beside them the ends of intervals, or probabilities."""
    parts, out = model.all_parts, request.out
    files, skipped = read_usable(parts[0], request.given)
    found = [_answers(part, files) for part in parts]
    listed = [
        {"input": name, "targets": {own: answers[row] for own, answers in zip(model.names, found, strict=True)}}
        for row, name in enumerate(name for file in files for name in file.names)
    ]
    warnings = input_warnings(parts[0], files)
    if out is not None:
        _write(out, model, listed, files if request.keep else None)
    if show:
        for warning in warnings:
            print_warning(warning)
        if out != STDOUT:
            _show(model, listed, out)
    return {
        "kind": model.kind,
        "targets": [{"target": name, **_kind(part)} for name, part in zip(model.names, parts, strict=True)],
        "predictions": listed,
        "warnings": warnings,
        "skipped": [{"input": path, "why": str(error)} for path, error in skipped.items()],
    }


def _kind(part: Tabular) -> dict[str, Any]:
    if not part.is_regression:
        return {"classes": list(part.metadata.get("classes", map(str, range(part.config.n_classes))))}
    return {"unit": part.metadata.get("target_unit"), "loss": part.loss.name, "quantile": part.loss.quantile}


@torch.no_grad()
def _answers(part: Tabular, files: Sequence[NamedInputs]) -> list[dict[str, Any]]:
    """The prediction of one target for each row."""
    x = torch.cat([as_floats(part, file.x) for file in files])
    if not part.is_regression:
        names = _kind(part)["classes"]
        found = chances(part, part(x))
        best = found.argmax(1).tolist()
        return [
            {"class": names[number], "probability": own[number], "probabilities": own}
            for number, own in zip(best, found.tolist(), strict=True)
        ]
    values, widths = part.numbers(x).numpy(), half_widths(part, x.numpy())
    if widths is None:
        return [{"value": value} for value in values.tolist()]
    lows, highs = interval_ends(part, values, widths)
    told = zip(values.tolist(), lows.tolist(), highs.tolist(), strict=True)
    return [{"value": value, "low": low, "high": high} for value, low, high in told]


def _write(out: Path, model: Targets, listed: Sequence[dict[str, Any]], files: Sequence[NamedInputs] | None) -> None:
    """One line for each input, its name or its columns, then for each target the answer and what is known of it."""
    header: list[str] = []
    for name, own in listed[0]["targets"].items():
        title = name if files is None else f"predicted {name}"
        header += [title, *(f"{title} {key}" for key in own if key in ("low", "high", "probability"))]
    columns, before = ["input"], [[each["input"]] for each in listed]
    if files is not None:
        columns, before = kept_rows(files, header)
    rows = []
    for own, each in zip(before, listed, strict=True):
        cells = [value for answer in each["targets"].values() for key, value in answer.items() if key != "probabilities"]
        rows.append([*own, *(value if isinstance(value, str) else repr(value) for value in cells)])
    write_rows(out, [*columns, *header], rows)


def _show(model: Targets, listed: Sequence[dict[str, Any]], out: Path | None) -> None:
    screen, width = console(), row_width([each["input"] for each in listed])
    units = [own.get("target_unit") for own in model.metadata.get("targets", [{}] * len(model.names))]
    for each in listed[:SHOWN]:
        told = [_told(name, own, unit) for (name, own), unit in zip(each["targets"].items(), units, strict=True)]
        screen.print(f"{one_line(each['input']):<{width}}  {one_line('; '.join(told))}", soft_wrap=True, markup=False)
    if len(listed) > SHOWN:
        screen.print(more_text(len(listed), out), soft_wrap=True, markup=False)


def _told(name: str, answer: dict[str, Any], unit: str | None) -> str:
    if "class" in answer:
        return f"{name} {answer['class']} {answer['probability']:.1%}"
    told = f"{name} {with_unit(answer['value'], unit)}"
    if "low" not in answer:
        return told
    return f"{told}, {short_number(answer['low'], 6)} to {with_unit(answer['high'], unit)} in 9 of 10 cases"

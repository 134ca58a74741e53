"""Names of classes and features, from the metadata of a checkpoint; and warnings about inputs far from the training data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lutetia._shared.numbers import whole_number
from lutetia.cli.guard import UsageError, did_you_mean
from lutetia.cli.show import one_line
from lutetia.models import Classifier, Model, date_text, has_times

FAR = 1.0  # widths of the training range beyond its ends: further than that is far


def class_names(model: Classifier) -> list[str]:
    """A name for each class, fit for a screen: its number where the data did not name it."""
    return [one_line(name) for name in model.metadata.get("classes", map(str, range(model.config.n_classes)))]


def has_class_names(model: Classifier) -> bool:
    """Whether the classes have names, other than their numbers."""
    return class_names(model) != [str(number) for number in range(model.config.n_classes)]


def class_title(model: Classifier, number: int) -> str:
    """A class in a sentence: its name, or "class 3" if it has only a number."""
    return class_names(model)[number] if has_class_names(model) else f"class {number}"


def feature_names(model: Classifier) -> list[str]:
    """The names of the inputs, as the data wrote them; none where it did not."""
    return list(model.metadata.get("features", ()))


def find_class(model: Classifier, text: str) -> int:
    """The class that --target means: a name, or a number."""
    names = model.metadata.get("classes", [])
    if text in names:
        return int(names.index(text))
    number = whole_number(text)
    if number is not None and 0 <= number < model.config.n_classes:
        return number
    by_number = f"a class from 0 to {model.config.n_classes - 1}"
    hint = f"{by_number}, or its name: {did_you_mean(text, class_names(model))}" if has_class_names(model) else by_number
    raise UsageError(f"--target is {text!r}, expected {hint}")


# ---- ranges ----------------------------------------------------------------------------------------------------------


def range_warnings(model: Model[Any], x: Tensor, names: Sequence[str]) -> list[str]:
    """A sentence where inputs x [n, *input_shape], as the model computes with them, lie far outside the training data."""
    if "input_low" not in model.metadata:
        return []
    rows = x.detach().flatten(1).double().cpu()
    low, high = (
        torch.tensor(model.metadata[key], dtype=torch.float64).expand(rows.shape[1]) for key in ("input_low", "input_high")
    )
    width = torch.where(high > low, high - low, low.abs().clamp(min=1.0))
    beyond = torch.maximum(low - rows, rows - high) / width
    far = (beyond > FAR).any(1)
    if not far.any():
        return []
    row, column = divmod(int(beyond.nan_to_num(-1).argmax()), rows.shape[1])
    feature = _input_name(model, column, x.shape[1:])
    value, begin, end = (_value_text(model, column, float(each)) for each in (rows[row, column], low[column], high[column]))
    said = f"{feature} is {value} in {one_line(names[row])}, trained on {begin} to {end}"
    count = "the input lies" if len(rows) == 1 else f"{int(far.sum())} of {len(rows)} inputs lie"
    return [f"{count} far outside the training data: {said}"]


def _value_text(model: Model[Any], column: int, value: float) -> str:
    is_date = str(column) in model.metadata.get("dates", {})
    return date_text(value, has_times(model.metadata, column)) if is_date else f"{value:.6g}"


def _input_name(model: Model[Any], column: int, shape: torch.Size) -> str:
    names = model.metadata.get("features")
    if names:
        return one_line(names[column])
    if len(shape) == 1:
        return f"x{column}"
    y, x = divmod(column % math.prod(shape[-2:]), shape[-1])
    return f"the pixel in row {y}, column {x}"

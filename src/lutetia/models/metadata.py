"""What a checkpoint says about its data: `model.metadata`, plain values that `metadata.json` holds.

task         "classification", "regression", "ranking", "unusual" or "language"
classes      the names of the classes, one for each output
features     the names of the inputs, one for each number
input_low    the smallest value of each input in the training data, or one number for all of them
input_high   the largest
decimals     by the number of an input, as a string, the decimal places of its values; none where float64 does not show them
empty        the numbers of the inputs of which some values are missing
target       the name of what is predicted
loss_name    the name of a loss of the user's own, a function that is not saved
query        of a ranking: the name of the column whose equal values are one query
weight       the name of the column that said how much rows count
categories   by the number of an input, as a string, the values that its numbers stand for
units        by the number of an input, as a string, the unit that may follow its numbers in a file
target_unit  the unit that may follow the numbers to predict
dates        by the number of an input, as a string, how its dates are written: their `order`, and whether they have `times`;
             its numbers are seconds since the beginning of 1970
texts        by the names of text columns, what is made of them: see `lutetia.models.texts`; their inputs come after all others,
             and `features` names those, too
unusual      of a model of unusual rows, how rare its scores are: see `lutetia.models.unusual`
windows      of a model of sensor signals, the windows that it takes: see `lutetia.models.windows`; `features` names what is made
             of them
forecast     of a model that forecasts a series, what it sees and how far ahead it looks: see `lutetia.models.forecasts`
error_90     of a regression: what the error of nine in ten rows that were not fitted stays within
spread_90    the same as a multiple of the spread of a row, where the model has one
targets      of a model of several targets, for each what is known of it alone: target, classes, target_unit, error_90, spread_90
resized      whether images of other sizes are resized to that of the model
unknown      what a category becomes that is not listed: "error", the default, or "missing"
missing      words that stand for no value, besides those that always do

Every key is optional. A file is checked before it is used: its types, and its lengths against the config of the model.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

from lutetia._shared.numbers import whole_number
from lutetia.errors import ArgumentError, DataError, fail
from lutetia.files import read_json
from lutetia.models.dates import ORDERS
from lutetia.models.forecasts import check_forecast
from lutetia.models.texts import check_text_columns
from lutetia.models.unusual import TASK as UNUSUAL
from lutetia.models.unusual import check_unusual
from lutetia.models.windows import check_signal_windows

METADATA = "metadata.json"
UNKNOWN = ("error", "missing")
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?"})  # cells that hold no value, in any case
TASKS = ("classification", "regression", "ranking", UNUSUAL, "language")
MOST_BYTES = 1 << 26  # of the file: names and ranges of a few hundred thousand inputs
LONGEST_NAME = 1000
MOST_DECIMALS = 18
OF_ONE_TARGET = frozenset({"target", "classes", "target_unit", "error_90", "spread_90"})
NAMES = ("target", "weight", "query", "loss_name")


def check_metadata(metadata: object, config: Any) -> dict[str, Any]:
    """The metadata of a model of that config, without what is None, or an error that names the key."""
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        fail("metadata", metadata, "a dict with strings as keys")
    metadata = {key: value for key, value in metadata.items() if value is not None}
    task = metadata.get("task")
    if task is not None and task not in TASKS:
        fail("metadata.task", task, "one of " + ", ".join(map(repr, TASKS)))
    n_classes, shape = getattr(config, "n_classes", None), getattr(config, "input_shape", None)
    n_inputs = None if shape is None else math.prod(shape)
    _check_names(metadata, "classes", n_classes)
    _check_names(metadata, "features", n_inputs)
    classes = metadata.get("classes", ())
    if len(set(classes)) < len(classes):
        twice = next(name for at, name in enumerate(classes) if name in classes[:at])
        fail("metadata.classes", twice, "a name for one class only")
    _check_range(metadata, n_inputs)
    _check_categories(metadata, n_inputs, n_classes)
    _check_windows(metadata, config, n_inputs)
    _check_targets(metadata, config)
    if "forecast" in metadata:
        if not hasattr(config, "n_encoded") or len(config.input_shape) != 1 or "windows" in metadata:
            fail("metadata.forecast", metadata["forecast"], "none, as the model is not one of columns")
        check_forecast(metadata["forecast"], metadata.get("features", ()), n_inputs)
    check_unusual(metadata, n_classes)
    try:
        return json.loads(json.dumps(dict(metadata), allow_nan=False))  # a copy of plain values, as the file will hold them
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"metadata holds a value that JSON cannot represent: {error}") from error


def _check_names(metadata: Mapping[str, Any], key: str, count: int | None) -> None:
    names = metadata.get(key)
    if names is None:
        return
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        fail(f"metadata.{key}", names, "a list of strings")
    if len(names) != count:
        by = "none, as the model has no such names" if count is None else f"{count}, by the config of the model"
        raise ArgumentError(f"metadata.{key} holds {len(names)} names, expected {by}")
    bad = next((name for name in names if not name.strip() or len(name) > LONGEST_NAME), None)
    if bad is not None:
        fail(f"metadata.{key}", bad, f"names of 1 to {LONGEST_NAME} characters")


def _check_categories(metadata: Mapping[str, Any], n_inputs: int | None, n_classes: int | None) -> None:
    """Check what is known of the columns: plain values by the number of an input, a name, and words."""
    for key in NAMES:
        name = metadata.get(key)
        if name is not None and not (isinstance(name, str) and name.strip() and len(name) <= LONGEST_NAME):
            fail(f"metadata.{key}", name, f"a name of 1 to {LONGEST_NAME} characters")
    if not isinstance(metadata.get("target_unit", ""), str):
        fail("metadata.target_unit", metadata["target_unit"], "a string")
    if not isinstance(metadata.get("resized", False), bool):
        fail("metadata.resized", metadata["resized"], "true or false")
    for key in ("error_90", "spread_90"):
        error = metadata.get(key, 0)
        if not _is_finite(error) or error < 0:
            fail(f"metadata.{key}", error, "a finite number of at least 0")
    if metadata.get("unknown", "error") not in UNKNOWN:
        fail("metadata.unknown", metadata["unknown"], "one of " + ", ".join(map(repr, UNKNOWN)))
    words = metadata.get("missing", [])
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        fail("metadata.missing", words, "a list of words")
    for number, dates in _by_input(metadata, "dates", "how dates are written", n_inputs):
        order, times = (dates.get("order"), dates.get("times")) if isinstance(dates, Mapping) else (None, None)
        if order not in ORDERS or not isinstance(times, bool):
            fail(
                f"metadata.dates[{number!r}]", dates, f"an order, one of {', '.join(map(repr, ORDERS))}, and times, true or false"
            )
    for number, values in _by_input(metadata, "categories", "lists of values", n_inputs):
        if not isinstance(values, list | tuple) or not all(isinstance(each, str | int | float | bool) for each in values):
            fail(f"metadata.categories[{number!r}]", values, "a list of strings or numbers")
        if number in metadata.get("dates", {}):
            fail("metadata.categories", number, "other inputs than those of dates")
    if "texts" in metadata:
        check_text_columns(metadata["texts"], n_inputs, n_classes)
    for number, places in _by_input(metadata, "decimals", "decimal places", n_inputs):
        if isinstance(places, bool) or not isinstance(places, int) or not 0 <= places <= MOST_DECIMALS:
            fail(f"metadata.decimals[{number!r}]", places, f"a whole number from 0 to {MOST_DECIMALS}")
    empty = metadata.get("empty", [])
    wanted = range(n_inputs or 0)
    if not isinstance(empty, list | tuple) or not all(type(each) is int and each in wanted for each in empty):
        fail("metadata.empty", empty, f"a list of the numbers of inputs below {len(wanted)}")
    for number, unit in _by_input(metadata, "units", "units", n_inputs):
        if not isinstance(unit, str):
            fail(f"metadata.units[{number!r}]", unit, "a string")


def _check_targets(metadata: Mapping[str, Any], config: Any) -> None:
    """Check what is known of each of several targets: what a model of it alone may know."""
    told, outputs = metadata.get("targets"), getattr(config, "outputs", None)
    if told is None:
        return
    if outputs is None or not isinstance(told, list | tuple) or len(told) != len(outputs):
        fail("metadata.targets", told, "none" if outputs is None else f"what is known of each of {len(outputs)} targets")
    for number, own in enumerate(told):
        if not isinstance(own, Mapping) or not set(own) <= OF_ONE_TARGET:
            fail(f"metadata.targets[{number}]", own, f"only {', '.join(sorted(OF_ONE_TARGET))}")
        check_metadata(own, config.of(number))
    names = [own["target"] for own in told if "target" in own]
    if len(set(names)) < len(names):
        fail("metadata.targets", names, "a name of its own for each target")


def _check_windows(metadata: Mapping[str, Any], config: Any, n_inputs: int | None) -> None:
    """Check what is known of windows of signals, which only a model of columns has, made of nothing else."""
    if "windows" not in metadata:
        return
    if not hasattr(config, "n_encoded") or len(config.input_shape) != 1:
        fail("metadata.windows", metadata["windows"], "none, as the model is not one of columns")
    check_signal_windows(metadata["windows"], metadata.get("features", ()), n_inputs)
    if others := [key for key in ("texts", "categories", "dates", "units") if metadata.get(key)]:
        fail(f"metadata.{others[0]}", metadata[others[0]], "none beside metadata.windows")


def _by_input(metadata: Mapping[str, Any], key: str, what: str, n_inputs: int | None) -> list[tuple[str, Any]]:
    """The numbers of inputs, and what a key says of each."""
    known = metadata.get(key, {})
    if not isinstance(known, Mapping):
        fail(f"metadata.{key}", known, f"{what} by the number of an input")
    for number in known:
        place = whole_number(number) if isinstance(number, str) else None
        if place is None or not 0 <= place < (n_inputs or 0):
            fail(f"metadata.{key}", number, f"numbers of inputs below {n_inputs or 0}, as strings")
    return list(known.items())


def _check_range(metadata: Mapping[str, Any], n_inputs: int | None) -> None:
    """Check input_low and input_high: both or neither, one number or one per input, low at most high."""
    ends = [metadata.get(key) for key in ("input_low", "input_high")]
    if ends == [None, None]:
        return
    for key, end in zip(("input_low", "input_high"), ends, strict=True):
        values = end if isinstance(end, list | tuple) else [end]
        if not all(_is_finite(value) for value in values):
            fail(f"metadata.{key}", end, "a finite number, or a list of them")
        if isinstance(end, list | tuple) and len(end) != n_inputs:
            wanted = f"{n_inputs or 'none'}, by the config of the model"
            raise ArgumentError(f"metadata.{key} holds {len(end)} numbers, expected {wanted}")
    lows, highs = (end if isinstance(end, list | tuple) else repeat(end) for end in ends)
    pairs = zip(lows, highs, strict=False) if any(isinstance(end, list | tuple) for end in ends) else [tuple(ends)]
    for at, (low, high) in enumerate(pairs):
        if low > high:
            raise ArgumentError(f"metadata.input_low is {low} for input {at}, expected at most input_high, {high}")


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def dump_metadata(metadata: Mapping[str, Any]) -> str:
    """The content of `metadata.json`."""
    return json.dumps(metadata, indent=1, allow_nan=False) + "\n"


def read_metadata(file: Path, config: Any) -> dict[str, Any]:
    """The metadata that a file holds, checked against the config of its model."""
    try:
        return check_metadata(read_json(file, "the metadata of a model", MOST_BYTES), config)
    except ArgumentError as error:
        raise DataError(f"{file}: {error}") from error

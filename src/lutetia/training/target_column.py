"""The column to predict: numbers, or classes by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lutetia.errors import DataError
from lutetia.models import LONGEST_NAME
from lutetia.training.columns import MOST_CLASSES, SHOWN, is_missing, missing_words, number_of, row_name, text_of
from lutetia.training.formats import Array
from lutetia.training.tables import LARGEST, class_order
from lutetia.training.units import find_unit, without_unit

UNUSUAL_WORDS = (("usual", "normal", "no", "false", "0"), ("unusual", "outlier", "anomaly", "yes", "true", "1"))
FEW_CLASSES = 5  # distinct whole numbers that are taken for classes where most rows have one of their own


def make_target(
    values: Sequence[Any], task: str | None, where: str, lines: Sequence[int] | None = None
) -> tuple[Array, list[str]]:
    """The target as numbers [n], and the names of the classes; none for a regression."""
    if not len(values):
        raise DataError(f"{where} has no rows, expected at least two")
    empty = next((number for number, value in enumerate(values) if is_missing(value)), None)
    if empty is not None:
        row = row_name(empty, lines)
        hint = "remove such rows, or skip them: --set data.skip_unusable=true"
        raise DataError(f"{where} has no value in {row}, expected one in each row; {hint}")
    texts = [text_of(value) for value in values]
    bare = without_unit(texts, find_unit(texts))
    by_text = {text: number_of(number) for text, number in set(zip(texts, bare, strict=True))}
    numbers = [by_text[text] for text in texts]
    numeric = None not in by_text.values()
    guessed = task is None
    if guessed and (words := missing_words(values)):
        row = row_name([text.lower() for text in texts].index(words[0]), lines)
        raise DataError(
            f"{where} has {words[0]!r} in {row} and numbers elsewhere: remove such rows, or use --task classification"
        )
    if guessed:
        whole = numeric and all(number.is_integer() for number in by_text.values() if number is not None)
        few = len(by_text) <= (MOST_CLASSES if len(texts) >= 2 * len(by_text) else FEW_CLASSES)
        task = "regression" if numeric and not (whole and few) else "classification"
    if task in ("regression", "ranking"):
        if not numeric:
            raise DataError(f"{where} holds {texts[numbers.index(None)]!r}, expected numbers for a {task}")
        target = np.array(numbers, np.float64)
        far = np.flatnonzero(np.abs(target) > LARGEST)
        if len(far):
            raise DataError(f"{where}, {row_name(int(far[0]), lines)}: {texts[far[0]]} is too large for a 32-bit float")
        return target, []
    classes = sorted(set(texts), key=class_order)
    if len(classes) < 2:
        raise DataError(f"{where} holds one class, {classes[0]!r}, expected at least two")
    if guessed and MOST_CLASSES < len(texts) < 2 * len(classes):
        many = f"{len(classes):,} classes in {len(texts):,} rows, such as {classes[0]!r}"
        raise DataError(f"{where} holds {many}, expected numbers, or classes that rows share (or --task classification)")
    for name in classes:
        check_name(f"{where} has a class", name)
    order = {name: number for number, name in enumerate(classes)}
    return np.array([order[text] for text in texts], np.int64), classes


def unusual_numbers(values: Sequence[Any], where: str, lines: Sequence[int] | None = None) -> Array:
    """Which rows a column says are unusual, int64 [n]: 1 for them, by words such as yes and no."""
    numbers = np.empty(len(values), np.int64)
    for row, value in enumerate(values):
        word = "" if is_missing(value) else text_of(value).strip().lower()
        kind = next((kind for kind, words in enumerate(UNUSUAL_WORDS) if word in words), None)
        if kind is None:
            wanted = " or ".join(", ".join(words) for words in UNUSUAL_WORDS)
            raise DataError(f"{where}, {row_name(row, lines)}: {word!r}, expected whether the row is unusual: {wanted}")
        numbers[row] = kind
    return numbers


def check_name(where: str, name: str) -> None:
    """Refuse a name that no model can keep."""
    if len(name) > LONGEST_NAME:
        raise DataError(f"{where} named {name[:SHOWN]!r}…, {len(name):,} characters, expected {LONGEST_NAME:,} at most")
    if not name.strip():
        raise DataError(f"{where} named {name!r}, expected letters or digits")

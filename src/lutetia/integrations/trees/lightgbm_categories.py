"""Categories in LightGBM's text model: the numbers that each column had, the words for them, and the sets that trees ask for.

A set is 32 bits a word, and what is in it goes left. All else goes right: other categories, what is missing, negative numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from lutetia.errors import DataError
from lutetia.integrations.trees.ensemble import Choice, choice

NUMBERS = re.compile(r"-?\d{1,10}(:-?\d{1,10})*")
WORDS = "\npandas_categorical:"
WORD_BITS = 32
MISSING = -1
NOWHERE = "none"  # what a column tells that no tree can ask for


class Categories(NamedTuple):
    """By the columns of categories, their values, and the number of each by what a file calls it."""

    values: dict[int, list[Any]]
    places: dict[int, dict[int, int]]


def categories_of(infos: Sequence[str], text: str) -> Categories:
    """The categories of a model, by what it tells of its columns; their words where it was fitted to categories of pandas."""
    told = {at: info.split(":") for at, info in enumerate(infos) if NUMBERS.fullmatch(info)}
    found = {at: sorted({int(each) for each in own} - {MISSING}) for at, own in told.items()}
    words = _words(text)
    values: dict[int, list[Any]] = dict(found)
    if words:
        columns = list(found)
        if len(columns) < len(words):  # those of one category tell nothing
            columns = [at for at, info in enumerate(infos) if at in found or info == NOWHERE]
        if len(columns) != len(words):
            raise DataError(
                f"the model names the categories of {len(words):,} columns and tells of {len(found):,} that have some, expected "
                "as many: fit it without columns of one value, and with all categories as those of pandas"
            )
        values = dict(zip(columns, words, strict=True))
    places = {at: {value: place for place, value in enumerate(range(len(own)) if words else own)} for at, own in values.items()}
    return Categories(values, places)


def _words(text: str) -> list[list[Any]]:
    """The values of the columns of categories, in their order; none where the file has none."""
    line = text.rpartition(WORDS)[2].partition("\n")[0] if WORDS in text else "null"
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = line
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, list) for each in found):
        raise DataError(f"pandas_categorical is {line[:60]!r}, expected lists of categories")
    return found


def sets_of(fields: Mapping[str, str], where: str) -> list[list[int]]:
    """The sets of a tree: the numbers of categories in each."""
    if fields.get("num_cat", "0").strip() in ("", "0"):
        return []
    try:
        bounds, bits = ([int(word) for word in fields.get(key, "").split()] for key in ("cat_boundaries", "cat_threshold"))
    except ValueError as error:
        raise DataError(f"{where} has no whole numbers in its sets of categories: {error}") from None
    if not bounds or bounds != sorted(bounds) or bounds[0] != 0 or bounds[-1] != len(bits):
        raise DataError(f"{where} has sets that end at {str(bounds)[:60]}, expected rising numbers from 0 to {len(bits)}")
    if not all(0 <= each < 1 << WORD_BITS for each in bits):
        raise DataError(f"{where} has numbers in cat_threshold beyond {WORD_BITS} bits")
    return [
        [WORD_BITS * at + bit for at, word in enumerate(bits[begin:end]) for bit in range(WORD_BITS) if word >> bit & 1]
        for begin, end in pairwise(bounds)
    ]


def set_test(column: int, edge: float, sets: Sequence[Sequence[int]], known: Categories, where: str) -> Choice:
    """The test of a node, whose threshold is the number of its set."""
    if not (0 <= edge < len(sets) and edge == int(edge)):
        raise DataError(f"{where} asks for set {edge:g} of categories, expected one of its {len(sets)}")
    places = known.places.get(column, {})
    strange = next((each for each in sets[int(edge)] if each not in places), None)
    if strange is not None:
        raise DataError(f"{where} asks for category {strange} of column {column}, which the model does not tell of")
    return choice(column, [places[each] for each in sets[int(edge)]], len(places), goes_right=False, others=(True, True))

"""Categories in XGBoost's model: the words or numbers that each column had, and the sets that trees ask for.

What is in a set goes right. Other categories go left, also numbers that the model has not seen, and what is missing goes by
`default_left`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from lutetia.errors import DataError
from lutetia.integrations.trees.ensemble import MOST_CATEGORIES, Choice, choice
from lutetia.integrations.trees.fields import items, mapping, wholes

KIND = "c"  # of a column of categories


def words_of(model: dict[str, Any]) -> dict[int, list[Any]]:
    """By column the values of categories, where the model was fitted to a frame that had them."""
    if "cats" not in model:
        return {}
    found = {}
    for column, own in enumerate(items(model, "cats", "enc")):
        if "offsets" in mapping(own):
            values: list[Any] = _texts(wholes(own, None, "offsets"), wholes(own, None, "values"), column)
        else:
            values = wholes(own, None, "values")
        if values:
            found[column] = values
    return found


def _texts(offsets: list[int], letters: list[int], column: int) -> list[str]:
    """Texts that follow each other, by where they begin and end."""
    if offsets != sorted(offsets) or (offsets and (offsets[0] != 0 or offsets[-1] != len(letters))):
        raise DataError(
            f"the categories of column {column} end at {str(offsets)[:60]}, expected rising numbers to {len(letters)}"
        )
    data = bytes(each & 0xFF for each in letters)
    try:
        return [data[begin:end].decode("utf-8") for begin, end in pairwise(offsets)]
    except UnicodeDecodeError:
        raise DataError(
            f"the categories of column {column} are not UTF-8: XGBoost cuts words of letters beyond ASCII, so fit it without"
        ) from None


def sets_of(tree: dict[str, Any], count: int) -> dict[int, list[int]]:
    """By the nodes of a tree the categories that go right."""
    if "categories_nodes" not in tree:
        return {}
    nodes = wholes(tree, None, "categories_nodes")
    begins, sizes = (wholes(tree, len(nodes), f"categories_{key}") for key in ("segments", "sizes"))
    listed = wholes(tree, None, "categories")
    for node, begin, size in zip(nodes, begins, sizes, strict=True):
        if not (0 <= node < count and 0 <= begin <= begin + size <= len(listed)):
            raise DataError(f"node {node} has the categories from {begin} on, {size} of them, and the tree lists {len(listed)}")
    if not all(0 <= each < MOST_CATEGORIES for each in listed):
        raise DataError(f"a tree asks for a category beyond 0 to {MOST_CATEGORIES - 1:,}")
    return {node: listed[begin : begin + size] for node, begin, size in zip(nodes, begins, sizes, strict=True)}


class Categories(NamedTuple):
    """By the columns of categories their values, the place of each by its number in trees, and the columns that have words."""

    values: dict[int, list[Any]]
    places: dict[int, dict[int, int]]
    words: frozenset[int]


def categories_of(model: dict[str, Any], trees: Sequence[Mapping[str, Any]], kinds: Sequence[Any]) -> Categories:
    """The categories of a model: words, or the numbers that trees ask for."""
    asked: dict[int, set[int]] = {column: set() for column, kind in enumerate(kinds) if kind == KIND}
    for tree in trees:
        columns = wholes(tree, None, "split_indices")
        for node, codes in sets_of(dict(tree), len(columns)).items():
            asked.setdefault(columns[node], set()).update(codes)
    words = words_of(model)
    numbers = {column: sorted(codes) for column, codes in asked.items()}
    places = {column: {number: place for place, number in enumerate(own)} for column, own in numbers.items()}
    places |= {column: {number: number for number in range(len(own))} for column, own in words.items()}
    return Categories(numbers | words, places, frozenset(words))


def set_test(column: int, chosen: Sequence[int] | None, known: Categories, missing_right: bool) -> Choice:
    """The test of a node. Of words, another one is an error as in XGBoost, so that it may go where what is missing goes."""
    places = known.places.get(column, {})
    if chosen is None or not all(each in places for each in chosen):
        raise DataError(f"a tree asks for categories of column {column} beyond the {len(places):,} that the model lists")
    others = missing_right, missing_right and column in known.words
    return choice(column, {places[each] for each in chosen}, len(places), goes_right=True, others=others)

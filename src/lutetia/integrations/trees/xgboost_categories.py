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
    """By the columns of categories their values, and the columns that have words for them."""

    values: dict[int, list[Any]]
    words: frozenset[int]


def categories_of(model: dict[str, Any], trees: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> Categories:
    """The categories of a model: words, or the numbers that trees ask for."""
    found: dict[int, list[Any]] = {column: [] for column, kind in enumerate(kinds) if kind == KIND}
    asked: dict[int, set[int]] = {}
    for tree in trees:
        columns = wholes(tree, None, "split_indices")
        for node, codes in sets_of(dict(tree), len(columns)).items():
            asked.setdefault(columns[node], set()).update(codes)
    words = words_of(model)
    values = found | {column: list(range(1 + max(codes, default=-1))) for column, codes in asked.items()} | words
    return Categories(values, frozenset(words))


def set_test(column: int, chosen: Sequence[int] | None, known: Categories, missing_right: bool) -> Choice:
    """The test of a node. Of words, another one is an error as in XGBoost, so that it may go where what is missing goes."""
    count = len(known.values.get(column, ()))
    if chosen is None or not all(each < count for each in chosen):
        raise DataError(f"a tree asks for categories of column {column} that the model does not list, expected some of {count:,}")
    others = missing_right, missing_right and column in known.words
    return choice(column, set(chosen), count, goes_right=True, others=others)
